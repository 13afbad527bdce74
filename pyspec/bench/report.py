"""A benchmark's results: everything that was measured, what it comes to, and where it was run."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pyspec.bench.runs import Bench, Parting, Plan, Run
from pyspec.bench.settings import Setting
from pyspec.bench.summary import Figures, Verdict, auto, best_fixed, figures, verdicts
from pyspec.buildinfo import build_info


@dataclass(frozen=True)
class Report:
    """What a benchmark found.

    Attributes:
        plan: what was run.
        runs: every request.
        figures: by kind of prompt and setting.
        verdicts: by setting, over all kinds.
        partings: where texts were not plain decoding's.
        engines: by setting, the settings of its engine as they were resolved.
        learned: by setting, what an engine that learns had come to believe, where it says.
    """

    plan: Plan
    runs: Sequence[Run]
    figures: Sequence[Figures]
    verdicts: Sequence[Verdict]
    partings: Sequence[Parting]
    engines: dict[str, dict[str, Any]]
    learned: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, bench: Bench, runs: Sequence[Run]) -> Report:
        """The report of a benchmark that has run; the engines are still open."""
        settings = bench.plan.settings
        table = figures(runs, settings)
        return cls(
            plan=bench.plan,
            runs=runs,
            figures=table,
            verdicts=verdicts(table, settings),
            partings=bench.partings,
            engines={setting.name: bench.engine(setting).config.to_dict() for setting in settings},
            learned={setting.name: bench.learned(setting) for setting in settings if setting.learns},
        )

    @property
    def synthetic(self) -> bool:
        """Whether acceptance was drawn at random: the texts are not the model's."""
        return self.plan.synthetic is not None

    @property
    def learning(self) -> list[Setting]:
        """The settings whose engines learn from one request to the next."""
        return [setting for setting in self.plan.settings if setting.learns]

    @property
    def best_fixed(self) -> Verdict | None:
        """The fastest setting with fixed draft lengths."""
        return best_fixed(self.verdicts, self.plan.settings)

    @property
    def auto(self) -> Verdict | None:
        """How auto did, if it was among the settings."""
        return auto(self.verdicts)

    def to_dict(self) -> dict[str, Any]:
        """All of it as values that JSON has."""
        plan = self.plan
        return {
            "machine": {
                "platform": platform.platform(),
                "processor": platform.processor() or platform.machine(),
                **build_info(),
            },
            "settings": [setting.name for setting in plan.settings],
            "learning": [setting.name for setting in self.learning],
            "prompts": [{"kind": kind, "prompt": number, "text": text} for kind, number, text in plan.prompts],
            "sampling": plan.sampling.to_dict(),
            "repetitions": plan.repetitions,
            "more": plan.more,
            "synthetic": None if plan.synthetic is None else asdict(plan.synthetic),
            "engines": self.engines,
            "learned": self.learned,
            "runs": [asdict(run) for run in self.runs],
            "figures": [{**asdict(entry), "acceptance": entry.acceptance} for entry in self.figures],
            "verdicts": [asdict(verdict) for verdict in self.verdicts],
            "best_fixed": None if self.best_fixed is None else self.best_fixed.setting,
            "partings": [asdict(parting) for parting in self.partings],
        }
