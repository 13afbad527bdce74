"""From runs to figures: medians by kind of prompt, and over all kinds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pyspec.bench.runs import Run
from pyspec.bench.settings import AUTO, Setting


@dataclass(frozen=True)
class Figures:
    """A setting on a kind of prompt. Speeds are medians over the repetitions, their geometric mean over the prompts;
    counts are sums over all runs.

    Attributes:
        setting: its name.
        kind: of prompt; "all": the geometric mean over the kinds, and their sums.
        runs: how many there were.
        tokens_per_second: generation, without the prompt and the first token; None where all texts had one token.
        ratio: to plain decoding of the same prompt in the same repetition; likewise.
        first_ratio, later_ratio: the same for the first repetition, and for those after it: how much an engine that
            learns owes to having seen the prompts before. None with one repetition.
        tokens: of all texts.
        rounds, drafted, accepted, discarded, failures, draft_rows: as in `Run`.
        tokens_per_round: tokens each decode of the target gave.
        acceptance_per_position: accepted share of the first, second, ... token of the drafts.
        drafted_per_position: how often there was one.
        overhead: share of the time outside libllama's decodes.
        same: runs whose token ids were plain decoding's.
    """

    setting: str
    kind: str
    runs: int
    tokens_per_second: float | None
    ratio: float | None
    first_ratio: float | None
    later_ratio: float | None
    tokens: int
    rounds: int
    tokens_per_round: float
    drafted: int
    accepted: int
    discarded: int
    failures: int
    acceptance_per_position: tuple[float, ...]
    drafted_per_position: tuple[int, ...]
    draft_rows: int
    overhead: float
    same: int

    @property
    def acceptance(self) -> float | None:
        """Accepted share of the drafted tokens; None if there were none."""
        return self.accepted / self.drafted if self.drafted else None


@dataclass(frozen=True)
class Verdict:
    """A setting over all kinds of prompts.

    Attributes:
        setting: its name.
        ratio: to plain decoding, the geometric mean over the kinds.
        worst_kind: the kind on which it did worst.
        worst_ratio: and how it did there.
    """

    setting: str
    ratio: float
    worst_kind: str
    worst_ratio: float


ALL = "all"


def figures(runs: Sequence[Run], settings: Sequence[Setting]) -> list[Figures]:
    """The figures of each setting on each kind, then over all kinds if there are several."""
    kinds = list(dict.fromkeys(run.kind for run in runs))
    table = [
        _figures(kind, setting.name, [run for run in runs if run.kind == kind and run.setting == setting.name])
        for kind in kinds
        for setting in settings
    ]
    if len(kinds) > 1:
        for setting in settings:
            own = [entry for entry in table if entry.setting == setting.name]
            table.append(_over_all(setting.name, own, [run for run in runs if run.setting == setting.name]))
    return table


def verdicts(table: Sequence[Figures], settings: Sequence[Setting]) -> list[Verdict]:
    """The settings that speculate, as they were named; those without a speed are left out."""
    result = []
    for setting in settings:
        kinds = [(e.ratio, e.kind) for e in table if e.setting == setting.name and e.kind != ALL and e.ratio]
        if setting.is_plain or not kinds:
            continue
        ratio = _geometric_mean(ratio for ratio, _ in kinds)
        assert ratio is not None
        worst_ratio, worst_kind = min(kinds)
        result.append(Verdict(setting.name, ratio, worst_kind, worst_ratio))
    return result


def best_fixed(found: Sequence[Verdict], settings: Sequence[Setting]) -> Verdict | None:
    """The fastest setting with fixed draft lengths over all kinds; None if there is none."""
    fixed = {setting.name for setting in settings if setting.draft_length == "fixed"}
    return max((v for v in found if v.setting in fixed), key=lambda v: v.ratio, default=None)


def auto(found: Sequence[Verdict]) -> Verdict | None:
    """The verdict of auto, if it was among the settings."""
    return next((v for v in found if v.setting == AUTO), None)


def _figures(kind: str, setting: str, runs: Sequence[Run]) -> Figures:
    later = [run for run in runs if run.repetition > 0]
    first = [run for run in runs if run.repetition == 0] if later else []
    return Figures(
        setting=setting,
        kind=kind,
        tokens_per_second=_speed(runs, "tokens_per_second"),
        ratio=_speed(runs, "ratio"),
        first_ratio=_speed(first, "ratio"),
        later_ratio=_speed(later, "ratio"),
        **_counts(runs),
    )


def _over_all(setting: str, kinds: Sequence[Figures], runs: Sequence[Run]) -> Figures:
    means: dict[str, Any] = {
        name: _geometric_mean(getattr(entry, name) for entry in kinds)
        for name in ("tokens_per_second", "ratio", "first_ratio", "later_ratio")
    }
    return Figures(setting=setting, kind=ALL, **means, **_counts(runs))


def _speed(runs: Sequence[Run], name: str) -> float | None:
    """Median over the repetitions of a prompt, geometric mean over the prompts."""
    by_prompt: dict[tuple[str, int], list[float]] = {}
    for run in runs:
        value = getattr(run, name)
        if value:
            by_prompt.setdefault((run.kind, run.prompt), []).append(value)
    return _geometric_mean(statistics.median(values) for values in by_prompt.values())


def _geometric_mean(values: Iterable[float | None]) -> float | None:
    logarithms = [math.log(value) for value in values if value]
    return math.exp(statistics.fmean(logarithms)) if logarithms else None


def _counts(runs: Sequence[Run]) -> dict[str, Any]:
    sums = {
        name: sum(getattr(run, name) for run in runs)
        for name in ("tokens", "rounds", "drafted", "accepted", "discarded", "failures", "draft_rows")
    }
    drafted = _by_position(run.drafted_per_position for run in runs)
    accepted = _by_position(run.accepted_per_position for run in runs)
    decode_ms = sum(run.decode_ms for run in runs)
    return {
        **sums,
        "runs": len(runs),
        "tokens_per_round": 1.0 + sums["accepted"] / sums["rounds"] if sums["rounds"] else 0.0,
        "acceptance_per_position": tuple(a / d for a, d in zip(accepted, drafted, strict=True)),
        "drafted_per_position": tuple(drafted),
        "overhead": sum(run.overhead * run.decode_ms for run in runs) / decode_ms if decode_ms else 0.0,
        "same": sum(run.differs_at is None for run in runs),
    }


def _by_position(columns: Iterable[Sequence[int]]) -> list[int]:
    total: list[int] = []
    for column in columns:
        total.extend([0] * (len(column) - len(total)))
        for i, count in enumerate(column):
            total[i] += count
    return total
