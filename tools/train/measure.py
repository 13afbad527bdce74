"""How much of a draft file's proposals the target accepts, by kind of prompt; nothing of these was trained on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pyspec import DraftEagle3, DraftModel, Engine, SamplingParams, models
from pyspec.bench.kinds import KINDS, prompts_of
from pyspec.speculation.detection import detect_draft

N_MAX = 3
N_TOKENS = 96


@dataclass(frozen=True)
class Measured:
    """Rounds that drafted, and what came of them."""

    rounds: int
    drafted: int
    accepted: int

    @property
    def mean(self) -> float:
        """Accepted tokens a round."""
        return self.accepted / max(1, self.rounds)


def measure(path: Path, *, target: str, n_threads: int, kinds: Iterable[str] = KINDS) -> dict[str, Measured]:
    """Greedy texts on the prompts of `pyspec bench`, with drafts of three tokens, always."""
    draft = DraftEagle3 if detect_draft(path) == "draft-eagle3" else DraftModel
    found = {}
    with Engine(
        models.resolve(target), speculation=draft(str(path), n_max=N_MAX), n_ctx=1024, n_threads=n_threads
    ) as engine:
        for kind in kinds:
            results = [
                engine.generate(
                    prompt.text(engine.model, as_chat=True), SamplingParams(temperature=0.0, max_tokens=N_TOKENS)
                )
                for prompt in prompts_of(kind)
            ]
            counts = [counted for result in results for counted in result.stats.speculators.values()]
            found[kind] = Measured(
                sum(c.drafts for c in counts), sum(c.drafted for c in counts), sum(c.accepted for c in counts)
            )
    return found
