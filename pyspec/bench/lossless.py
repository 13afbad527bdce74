"""Is it the same text? Speculative against plain decoding, and a proof for every place where they part.

    python -m pyspec.bench.lossless -m smollm2-f32 -md smollm2

A kernel may compute a row a little differently inside a larger batch. Where that difference is enough to change the
target's choice, it can flip: a near tie. This program runs plain and speculative decoding on the same prompts; where
two streams part, it computes the row there with plain one-token decoding and changes its logits by up to the model's
measured difference between row widths. If the sampler, in the state it had, then chooses what the other stream has, it
was a near tie (greedy: the two best logits are closer than twice the difference). Anything else would be a fault.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pyspec._decoder import choose
from pyspec._llama import Context, Model
from pyspec.bench.prompts import prompts_for
from pyspec.engine import Engine
from pyspec.models import resolve
from pyspec.sampling import SamplingParams, build_chain
from pyspec.speculation import DraftModel

Row = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Divergence:
    """A place where speculative and plain decoding part.

    Attributes:
        prompt: which prompt.
        n_max: the draft length.
        at: index of the first token that differs.
        gap: difference of the two best logits there, decoded one token at a time.
        near_tie: whether a change of the logits within the model's rounding difference between row widths is enough
            for the other choice.
    """

    prompt: int
    n_max: int
    at: int
    gap: float
    near_tie: bool


def row_difference(model: Model, tokens: Sequence[int], widths: Sequence[int] = (2, 3, 5, 9, 17)) -> float:
    """Largest difference of any logit between rows decoded alone and the same rows decoded several at a time.

    Args:
        tokens: a text of the model's, at least a few dozen tokens.
        widths: how many rows at a time.
    """
    with Context(model, n_ctx=len(tokens), n_outputs_max=max(widths), n_batch=max(512, *widths)) as context:
        alone = _logits(context, tokens, 1)
        return max(float(np.abs(_logits(context, tokens, width) - alone).max()) for width in widths)


def row_after(model: Model, tokens: Sequence[int]) -> Row:
    """The logits after these tokens, decoded one at a time."""
    with Context(model, n_ctx=len(tokens) + 1, n_outputs_max=1) as context:
        for pos, token in enumerate(tokens):
            context.decode([token], pos=[pos])
        return np.array(context.logits(0))


def gap_after(model: Model, tokens: Sequence[int]) -> float:
    """Difference of the two best logits after these tokens, decoded one at a time."""
    best = np.sort(row_after(model, tokens))[-2:]
    return float(best[1] - best[0])


def can_flip(
    model: Model, params: SamplingParams, prompt: Sequence[int], before: Sequence[int], row: Row, to: int, by: float
) -> bool:
    """Whether the sampler chooses another token once no logit has changed by more than `by`.

    Args:
        params: how tokens are chosen, with the seed.
        before: the tokens that were emitted after the prompt: so often has the sampler drawn a random number.
        row: the logits it chooses from.
        to: the token it is to choose.
    """
    plan_rows = np.full((len(before) + 1, row.size), -np.inf, dtype=np.float32)
    plan_rows[np.arange(len(before)), list(before)] = 0.0  # nothing else to choose: the sampler keeps in step
    above = row > row[to]
    rng = np.random.default_rng(0)
    signs = [
        np.where(np.arange(row.size) == to, 1.0, -1.0),
        *(sign * np.where(above, 1.0, -1.0) for sign in (1.0, -1.0)),
        *(rng.choice([-1.0, 1.0], row.size) for _ in range(64)),
    ]
    for sign in signs:
        plan_rows[-1] = row + by * sign
        plan = build_chain(params, model.vocab, n_ctx=len(prompt) + len(before) + 1)
        if choose(plan, plan_rows, list(prompt))[-1] == to:
            return True
    return False


def _logits(context: Context, tokens: Sequence[int], width: int) -> Row:
    """One row per token, `width` at a time; the last few are the batch that is left."""
    context.memory.clear()
    rows = []
    for start in range(0, len(tokens), width):
        piece = list(tokens[start : start + width])
        context.decode(piece, pos=list(range(start, start + len(piece))), outputs=[True] * len(piece))
        rows += [context.logits(i).copy() for i in range(len(piece))]
    return np.stack(rows)


@dataclass(frozen=True)
class Report:
    """What was compared and where it parted."""

    target: str
    draft: str
    n_tokens: int
    n_prompts: int
    n_max: tuple[int, ...]
    row_difference: float
    n_compared: int
    divergences: tuple[Divergence, ...]

    @property
    def faults(self) -> list[Divergence]:
        """Divergences that are no near ties."""
        return [d for d in self.divergences if not d.near_tie]


def compare(
    target: str | Path,
    draft: str | Path,
    *,
    n_max: Sequence[int] = (1, 2, 3, 4, 8, 16),
    n_tokens: int = 160,
    prompts: Sequence[str] | None = None,
    params: SamplingParams | None = None,
    chat: bool = True,
    n_threads: int = 0,
) -> Report:
    """Runs every prompt plainly and at every draft length.

    Args:
        params: how tokens are chosen; None: greedy. With a temperature, give a seed.
        chat: which of the built-in prompts, if none are given.
    """
    prompts = prompts_for(chat) if prompts is None else prompts
    params = (SamplingParams(temperature=0.0) if params is None else params).replace(max_tokens=n_tokens)
    divergences: list[Divergence] = []
    with (
        Model(str(resolve(target))) as model,
        Engine(
            model,
            speculation=DraftModel(draft, n_max=max(n_max)),
            n_ctx=1024,
            n_threads=n_threads,
            prefix_reuse=False,
        ) as engine,
    ):
        texts = [engine.generate(prompt, params, n_draft_max=0) for prompt in prompts]
        first = texts[0]
        difference = row_difference(model, (*first.prompt_token_ids, *first.token_ids)[:144])
        for i, plain in enumerate(texts):
            for length in n_max:
                fast = engine.generate(plain.prompt_token_ids, params, n_draft_max=length)
                at = first_difference(plain.token_ids, fast.token_ids)
                if at is not None:
                    row = row_after(model, (*plain.prompt_token_ids, *plain.token_ids[:at]))
                    best = np.sort(row)[-2:]
                    flips = at < min(len(plain.token_ids), len(fast.token_ids)) and can_flip(
                        model,
                        params.replace(seed=plain.seed),
                        plain.prompt_token_ids,
                        plain.token_ids[:at],
                        row,
                        fast.token_ids[at],
                        2 * difference,
                    )
                    divergences.append(Divergence(i, length, at, float(best[1] - best[0]), flips))
    return Report(
        target=str(target),
        draft=str(draft),
        n_tokens=n_tokens,
        n_prompts=len(prompts),
        n_max=tuple(n_max),
        row_difference=difference,
        n_compared=len(prompts) * len(n_max),
        divergences=tuple(divergences),
    )


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Index of the first token that differs (one stream ending counts); None when they are the same."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return None if len(a) == len(b) else min(len(a), len(b))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m pyspec.bench.lossless", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("-m", "--model", required=True, help="target: a GGUF file or a registered name")
    parser.add_argument("-md", "--model-draft", required=True, help="draft model, likewise")
    parser.add_argument("--lengths", default="1,2,3,4,8,16", help="draft lengths (default: 1,2,3,4,8,16)")
    parser.add_argument("--tokens", type=int, default=160, help="tokens per prompt (default: 160)")
    parser.add_argument("--prompts", type=int, default=10, help="how many of the ten prompts (default: 10)")
    parser.add_argument("--base", action="store_true", help="the target is a base model: prompts without a dialogue")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=1, help="for a temperature above 0 (default: 1)")
    parser.add_argument("--json", type=Path, help="write the report to this file")
    args = parser.parse_args(argv)
    report = compare(
        args.model,
        args.model_draft,
        n_max=[int(n) for n in args.lengths.split(",")],
        n_tokens=args.tokens,
        prompts=prompts_for(not args.base)[: args.prompts],
        params=SamplingParams(temperature=args.temperature, seed=args.seed),
    )
    print(f"{report.target} with {report.draft}: {report.n_compared} runs of {report.n_tokens} tokens")
    print(f"largest difference of a logit between row widths: {report.row_difference:.4g}")
    print(
        f"same token ids: {report.n_compared - len(report.divergences)}, near ties: "
        f"{len(report.divergences) - len(report.faults)}, faults: {len(report.faults)}"
    )
    for d in report.divergences:
        print(
            f"  prompt {d.prompt}, draft length {d.n_max}: parts at token {d.at}, gap {d.gap:.4g}"
            f"{'' if d.near_tie else '  <-- no near tie'}"
        )
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(asdict(report), indent=1) + "\n", encoding="utf-8")
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
