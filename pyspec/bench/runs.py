"""Running a benchmark: every setting on every prompt, in turn, in one process, against plain decoding.

The machine's speed drifts, so a run is compared with the plain run of the same prompt in the same repetition, a few
seconds apart, and the order of the settings moves on from one prompt to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pyspec._llama import Model
from pyspec.bench.kinds import Prompt
from pyspec.bench.lossless import can_flip, first_difference, row_after, row_difference
from pyspec.bench.settings import Setting
from pyspec.engine import Engine, Result
from pyspec.errors import InvalidRequest
from pyspec.sampling import SamplingParams
from pyspec.speculation import Synthetic

# Tokens of the first text of an engine, which nobody measures: weights are read from disk, buffers filled.
WARM_UP_TOKENS = 4


@dataclass(frozen=True)
class Run:
    """One request.

    Attributes:
        setting: name of the setting.
        kind, prompt, repetition: of prompt and run; prompts of a kind are numbered from 0.
        tokens: tokens of the text.
        prompt_tokens: tokens of the prompt.
        prefill_ms, decode_ms: reading the prompt up to the first token, and everything after.
        tokens_per_second: tokens after the first one, over decode_ms.
        ratio: tokens_per_second as a multiple of plain decoding's in the same repetition; None where the text has
            one token only.
        rounds: decodes of the target after the prompt.
        drafted, accepted, discarded, failures: as in `pyspec.Stats`.
        drafted_per_position, accepted_per_position: likewise.
        draft_rows: rows the draft model evaluated.
        overhead: share of decode_ms outside libllama's decodes.
        differs_at: index of the first token that is not plain decoding's; None: the same text.
    """

    setting: str
    kind: str
    prompt: int
    repetition: int
    tokens: int
    prompt_tokens: int
    prefill_ms: float
    decode_ms: float
    tokens_per_second: float
    ratio: float | None
    rounds: int
    drafted: int
    accepted: int
    discarded: int
    failures: int
    drafted_per_position: tuple[int, ...]
    accepted_per_position: tuple[int, ...]
    draft_rows: int
    overhead: float
    differs_at: int | None


@dataclass(frozen=True)
class Parting:
    """A text that is not plain decoding's, from some token on.

    Attributes:
        at: index of the first token that differs.
        gap: difference of the two best logits there, decoded one token at a time.
        near_tie: whether rounding can turn the choice around.
    """

    setting: str
    kind: str
    prompt: int
    at: int
    gap: float
    near_tie: bool


@dataclass(frozen=True)
class Plan:
    """A benchmark before it runs.

    Attributes:
        settings: what is compared; one of them is plain decoding.
        prompts: kind, number within the kind, text.
        sampling: how tokens are chosen, and how many; with a temperature it has a seed.
        repetitions: how often everything is run.
        more: how often, after that, plain decoding and the settings that learn are run once more without the others.
        synthetic: acceptance drawn at random.
        engine: further parameters of the engines.
    """

    settings: Sequence[Setting]
    prompts: Sequence[tuple[str, int, str]]
    sampling: SamplingParams
    repetitions: int = 3
    more: int = 0
    synthetic: Synthetic | None = None
    engine: dict[str, Any] = field(default_factory=dict)

    @property
    def n_runs(self) -> int:
        """Requests that are measured."""
        n_more = 1 + sum(setting.learns for setting in self.settings)
        return len(self.prompts) * (len(self.settings) * self.repetitions + n_more * self.more)


def numbered(prompts: Sequence[Prompt], model: Model, *, as_chat: bool) -> list[tuple[str, int, str]]:
    """Prompts with their number within their kind, as the model gets them."""
    seen: dict[str, int] = {}
    result = []
    for prompt in prompts:
        number = seen[prompt.kind] = seen.get(prompt.kind, -1) + 1
        result.append((prompt.kind, number, prompt.text(model, as_chat=as_chat)))
    return result


class Bench:
    """The engines of a benchmark, one for every setting (settings that differ in draft length alone share one).

    Args:
        model: the target, shared by all of them.
        plan: what is to be run.
        load_progress: as `Engine`'s.

    Attributes:
        partings: where texts were not plain decoding's, after `run`.

    Raises:
        InvalidRequest: no plain decoding in the plan, or a setting that can't be opened.
        PyspecError: whatever opening an engine raises.
    """

    def __init__(self, model: Model, plan: Plan, load_progress: Callable[[str, float], None] | None = None) -> None:
        if not any(setting.is_plain for setting in plan.settings):
            raise InvalidRequest("plain decoding is missing", name="settings", value=plan.settings)
        self.model = model
        self.plan = plan
        self.partings: list[Parting] = []
        self._texts: dict[tuple[str, int], Result] = {}
        self._learned: dict[str, dict[str, Any]] = {}
        self._row_difference: float | None = None
        self._engines: dict[tuple[Any, ...], Engine] = {}
        groups: dict[tuple[Any, ...], list[Setting]] = {}
        for setting in plan.settings:
            groups.setdefault(self._key(setting), []).append(setting)
        with ExitStack() as stack:
            for key, group in groups.items():
                lengths = [setting.n_max for setting in group if setting.n_max is not None]
                self._engines[key] = stack.enter_context(
                    group[0].open(
                        model,
                        n_draft_max=max(lengths) if len(group) > 1 else None,
                        synthetic=plan.synthetic,
                        load_progress=load_progress,
                        **{"n_ctx": self._n_ctx(), **plan.engine},
                    )
                )
            self._close = stack.pop_all()

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *error: object) -> None:
        self._close.close()

    def engine(self, setting: Setting) -> Engine:
        """The engine that runs a setting."""
        return self._engines[self._key(setting)]

    def learned(self, setting: Setting) -> dict[str, Any] | None:
        """What the engine's controller of draft lengths believes and chose, over all requests; None without one."""
        return self._learned.get(setting.name)

    def run(self) -> Iterator[Run]:
        """Runs everything, one request at a time; plain decoding first for each prompt."""
        plan = self.plan
        plain = next(setting for setting in plan.settings if setting.is_plain)
        others = [setting for setting in plan.settings if not setting.is_plain]
        self._warm_up()
        turn = 0
        for repetition in range(plan.repetitions + plan.more):
            if repetition == plan.repetitions:
                others = [setting for setting in others if setting.learns]
            for prompt in plan.prompts:
                reference = self._generate(plain, prompt)
                yield self._measured(plain, prompt, repetition, reference, reference)
                start = turn % len(others) if others else 0
                for setting in others[start:] + others[:start]:
                    yield self._measured(setting, prompt, repetition, self._generate(setting, prompt), reference)
                turn += 1

    def _warm_up(self) -> None:
        """A few tokens from every engine. Engines that learn do so without drafts, and learn nothing of them."""
        _, _, text = self.plan.prompts[0]
        params = self.plan.sampling.replace(max_tokens=WARM_UP_TOKENS)
        for setting in self.plan.settings:
            self.engine(setting).generate(text, params, n_draft_max=0 if setting.learns else None)

    def _generate(self, setting: Setting, prompt: tuple[str, int, str]) -> Result:
        return self.engine(setting).generate(prompt[2], self.plan.sampling, n_draft_max=setting.n_max)

    def _measured(
        self, setting: Setting, prompt: tuple[str, int, str], repetition: int, result: Result, reference: Result
    ) -> Run:
        kind, number, _ = prompt
        stats = result.stats
        speed, plain_speed = stats.tokens_per_second, reference.stats.tokens_per_second
        if stats.draft_length is not None:
            self._learned[setting.name] = stats.draft_length
        differs_at = first_difference(reference.token_ids, result.token_ids)
        if differs_at is not None and not result.synthetic:
            self._note(setting, kind, number, reference, result, differs_at)
        return Run(
            setting=setting.name,
            kind=kind,
            prompt=number,
            repetition=repetition,
            tokens=stats.completion_tokens,
            prompt_tokens=stats.prompt_tokens,
            prefill_ms=stats.prefill_ms,
            decode_ms=stats.decode_ms,
            tokens_per_second=speed,
            ratio=speed / plain_speed if speed and plain_speed else None,
            rounds=stats.rounds,
            drafted=stats.drafted,
            accepted=stats.accepted,
            discarded=stats.discarded,
            failures=stats.draft_failures,
            drafted_per_position=tuple(stats.drafted_per_position),
            accepted_per_position=tuple(stats.accepted_per_position),
            draft_rows=stats.draft_rows,
            overhead=stats.overhead,
            differs_at=differs_at,
        )

    def _note(self, setting: Setting, kind: str, number: int, reference: Result, result: Result, at: int) -> None:
        """Looks into a difference, once for each setting, prompt and place: can rounding be the reason?"""
        if any((p.setting, p.kind, p.prompt, p.at) == (setting.name, kind, number, at) for p in self.partings):
            return
        prompt, tokens = reference.prompt_token_ids, reference.token_ids
        if self._row_difference is None:
            self._row_difference = row_difference(self.model, [*prompt, *tokens][:144])
        row = row_after(self.model, [*prompt, *tokens[:at]])
        best = np.sort(row)[-2:]
        near_tie = at < min(len(tokens), len(result.token_ids)) and can_flip(
            self.model,
            self.plan.sampling.replace(seed=reference.seed),
            prompt,
            tokens[:at],
            row,
            to=result.token_ids[at],
            by=self._row_difference,
        )
        gap = float(best[1] - best[0])
        self.partings.append(Parting(setting.name, kind, number, at, gap, near_tie))

    def _key(self, setting: Setting) -> tuple[Any, ...]:
        # How likely a drafted token is accepted depends on the longest draft where a mean length is asked for.
        return (setting.name,) if self.plan.synthetic is not None else setting.shared_engine

    def _n_ctx(self) -> int:
        """Room for the longest prompt and its text, and for drafts at the end of it."""
        longest = max(len(self.model.vocab.tokenize(text, parse_special=True)) for _, _, text in self.plan.prompts)
        return longest + (self.plan.sampling.max_tokens or 0) + 128
