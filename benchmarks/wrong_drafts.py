#!/usr/bin/env python3
"""What a drafter that is always wrong costs, once the engine has noticed: `auto` beside plain decoding.

    python benchmarks/wrong_drafts.py
    python benchmarks/wrong_drafts.py --targets smollm2-q4_0 --repetitions 9

A function proposes eight tokens in every round, none of which the target would write. Greedy, the same prompts, in
turn. Counted is the time of the tokens behind the first 64. Prints for each target the ratio of the speeds, how many
tokens were verified in vain before and after, and how many texts are the same (with F32 weights two may part where a
draft was verified at a near tie, which is proven; else it ends there); writes them as JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from pyspec import Engine, Model, Result, SamplingParams, models
from pyspec.bench.kinds import prompts_for
from pyspec.bench.lossless import can_flip, first_difference, row_after, row_difference
from pyspec.bench.prompts import chatml

ROOT = Path(__file__).resolve().parent.parent
N_FIRST = 64
LENGTH = 8


def always_wrong(written: Sequence[int], n_prompt: int, n_vocab: int) -> Callable[[Sequence[int]], list[int]]:
    """Of a text that is known: drafts with another token at each place."""

    def draft(tokens: Sequence[int]) -> list[int]:
        at = len(tokens) - n_prompt
        return [(token + 1) % n_vocab for token in written[at : at + LENGTH]]

    return draft


class Drafter:
    """A speculator whose drafts are set for each text."""

    n_max = LENGTH

    def __init__(self) -> None:
        self.draft: Callable[[Sequence[int]], list[int]] = lambda tokens: []

    def __call__(self, tokens: Sequence[int]) -> list[int]:
        return self.draft(tokens)


def late_ms(result: Result) -> float:
    """Milliseconds per token behind the first ones."""
    return 1000 * (result.times[-1] - result.times[N_FIRST - 1]) / (len(result.times) - N_FIRST)


def require_near_tie(model: Model, params: SamplingParams, plain: Result, other: Result) -> None:
    """Where two texts part, rounding must be able to turn the choice around."""
    at = first_difference(plain.token_ids, other.token_ids)
    if at is None:
        return
    prompt, before = plain.prompt_token_ids, plain.token_ids[:at]
    row = row_after(model, [*prompt, *before])
    by = row_difference(model, [*prompt, *plain.token_ids][:144])
    if not can_flip(model, params, prompt, before, row, to=other.token_ids[at], by=by):
        raise SystemExit(f"{model.path}: a text parts at token {at}, and it is no near tie")


def measure(target: str, args: argparse.Namespace) -> dict[str, Any]:
    """One target: the ratio of plain decoding's time to that beside the drafter, over all runs."""
    params = SamplingParams(temperature=0.0, max_tokens=args.tokens, ignore_eos=True)
    drafter = Drafter()
    options: dict[str, Any] = {"n_ctx": 1024, "n_threads": args.threads, "prefix_reuse": False}
    with (
        Model(str(models.resolve(target))) as model,
        Engine(model, speculation=None, **options) as plain,
        Engine(model, speculation=drafter, draft_length="auto", **options) as engine,
    ):
        prompts = [chatml(prompt.request) for prompt in prompts_for(["prose", "chat", "code"], 1)]
        runs = []
        for repetition in range(args.repetitions):
            for number, prompt in enumerate(prompts):
                written = plain.generate(prompt, params)
                drafter.draft = always_wrong(
                    written.token_ids, len(written.prompt_token_ids), engine.model.vocab.n_tokens
                )
                turn = [plain, engine] if (repetition + number) % 2 else [engine, plain]
                done = {which: which.generate(prompt, params) for which in turn}
                beside = done[engine]
                require_near_tie(model, params, written, beside)
                runs.append(
                    {
                        "plain_ms": late_ms(done[plain]),
                        "beside_ms": late_ms(beside),
                        "verified": beside.stats.drafted,
                        "same_text": beside.token_ids == written.token_ids,
                    }
                )
    return {
        "ratio": median(run["plain_ms"] / run["beside_ms"] for run in runs),
        "verified_per_text": sum(run["verified"] for run in runs) / len(runs),
        "runs": runs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--targets", type=lambda t: t.split(","), default=["smollm2-f32", "smollm2-q4_0", "smollm2"])
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "wrong_drafts.json")
    args = parser.parse_args()
    results = {}
    for target in args.targets:
        results[target] = found = measure(target, args)
        print(
            f"{target}: {found['ratio']:.3f} of plain decoding's speed behind the first {N_FIRST} tokens; "
            f"{found['verified_per_text']:.1f} wrong tokens verified per text of {args.tokens}; "
            f"{sum(run['same_text'] for run in found['runs'])} of {len(found['runs'])} texts the same"
        )
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
