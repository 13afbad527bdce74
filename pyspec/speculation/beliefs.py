"""What is remembered of a draft model, to choose its draft lengths: of its rounds, each request, each output head."""

from __future__ import annotations

from dataclasses import dataclass, field

from pyspec.speculation.acceptance import PositionRates
from pyspec.speculation.confidence import Calibration
from pyspec.speculation.costs import RowCosts
from pyspec.speculation.free_drafts import FreeDrafts


@dataclass
class DraftHistory:
    """What rounds with a draft of the model gave lately.

    Attributes:
        tokens: emitted tokens per round.
        drafted: drafted tokens per round.
        steps: decodes of the draft model per round.
        weight: how many rounds that rests on.
        catching_up_ms: what its first decode took longer than a step, for the tokens that it had not read yet.
    """

    tokens: float
    drafted: float
    steps: float
    weight: float = 0.0
    catching_up_ms: float = 0.0

    FORGET = 0.9

    def observe(self, tokens: int, drafted: int, steps: int, catching_up_ms: float) -> None:
        """Takes in one round; the first few count as a plain mean."""
        self.weight = self.weight * self.FORGET + 1.0
        share = 1.0 / self.weight
        self.tokens += share * (tokens - self.tokens)
        self.drafted += share * (drafted - self.drafted)
        self.steps += share * (steps - self.steps)
        self.catching_up_ms += share * (catching_up_ms - self.catching_up_ms)


@dataclass
class SequenceState:
    """What the controller knows of one request; `n_drafts`: so many drafts that rests on, empty ones as well."""

    history: DraftHistory
    rates: PositionRates
    n_drafts: int = 0
    free: dict[str, FreeDrafts] = field(default_factory=dict)
    idle_rounds: int = 0
    patience: int = 16
    probing: bool = False


@dataclass
class HeadBeliefs:
    """What the controller believes of drafting with one output head of the draft model.

    Attributes:
        draft: costs of its steps.
        calibration: how likely its tokens are accepted, by confidence.
        rates: the same by position, over all requests.
        history: what drafts brought lately, over all requests; None: nothing was drafted.
        n_known: rounds, in which the model was asked, that this rests on.
        sequences: by request.
    """

    draft: RowCosts = field(default_factory=RowCosts)
    calibration: Calibration = field(default_factory=Calibration)
    rates: PositionRates = field(default_factory=lambda: PositionRates(forget=0.97))
    history: DraftHistory | None = None
    n_known: int = 0
    sequences: dict[int, SequenceState] = field(default_factory=dict)
