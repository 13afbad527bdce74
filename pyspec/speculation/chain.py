"""Who drafts this round: speculators are asked in order, the first that has a draft wins the sequence."""

from __future__ import annotations

from collections.abc import Sequence

from pyspec._decoder import Decoder
from pyspec._drafting import DraftRunner
from pyspec._speculator import CompiledSpeculator
from pyspec.speculation.controller import LengthController
from pyspec.speculation.scripted import DraftRequest, GuardedSpeculator
from pyspec.speculation.stats import Stats


class Chain:
    """The speculators of an engine, and how long their drafts may be.

    Args:
        decoder: whose compiled speculators are those of the list, in the same order.
        speculators: compiled ones, and Python ones under guard.
        controller: chooses the lengths; None: every draft is as long as its speculator and the budget allow.

    Attributes:
        names: of the speculators, in order.
        discarded: by name, tokens of drafts in the last round that were shorter than their speculator's n_min.
    """

    def __init__(
        self,
        decoder: Decoder,
        speculators: Sequence[CompiledSpeculator | GuardedSpeculator],
        controller: LengthController | None = None,
    ) -> None:
        self.controller = controller
        self.discarded: dict[str, int] = {}
        self.names = tuple(speculator.name for speculator in speculators)
        self._decoder = decoder
        self._speculators = speculators
        self._model = next((s for s in speculators if isinstance(s, DraftRunner)), None)
        self._model_asked = False

    def begin(self, seq: int) -> None:
        """A request starts on a sequence."""
        if self.controller is not None:
            self.controller.begin(seq)

    def end(self, seq: int) -> None:
        """It is over."""
        if self.controller is not None:
            self.controller.end(seq)

    def propose(self, seq: int, stats: Stats) -> str | None:
        """Lets the speculators draft for a sequence whose round is planned.

        Returns:
            The name of the one whose draft will be verified, or None.
        """
        decoder, controller = self._decoder, self.controller
        self._model_asked = False
        self.discarded = {}
        budget = decoder.budget(seq)
        if budget == 0:
            return None
        may_draft = self._model_may_draft(seq) if controller is not None else True
        compiled = 0
        for speculator in self._speculators:
            if isinstance(speculator, CompiledSpeculator):
                if speculator is not self._model or may_draft:
                    self._model_asked |= speculator is self._model
                    decoder.propose(compiled)
                    discarded = decoder.result(seq)[3] - sum(self.discarded.values())
                    if discarded:
                        self.discarded[speculator.name] = discarded
                compiled += 1
            else:
                self._offer(seq, speculator, budget, stats)
            length = decoder.n_drafted(seq)
            if length and controller is not None and speculator is not self._model:
                kept = controller.cut(seq, speculator.name, length, n_rows=1, model_may_draft=may_draft)
                decoder.cut(seq, kept)
                length = kept
            if length:
                return speculator.name
        return None

    def verified(
        self, seq: int, source: str | None, *, drafted: int, accepted: int, emitted: int, total_ms: float
    ) -> None:
        """Tells the controller what a round was like."""
        controller, model = self.controller, self._model
        if controller is None:
            return
        calls = model.round_calls() if model is not None and self._model_asked else []
        rows, verify_ms = self._decoder.last_decode()
        controller.observe_round(rows=rows, verify_ms=verify_ms, draft_calls=calls, total_ms=total_ms)
        if model is not None and self._model_asked and (source is None or source == model.name):
            controller.observe_model_draft(
                seq, model.confidences_of(seq)[:drafted], accepted, steps=model.steps(seq), emitted=emitted
            )
        elif source is not None:
            controller.observe_draft(seq, source, drafted, accepted)

    def _model_may_draft(self, seq: int) -> bool:
        """Asks the controller whether the draft model should, and hands it the floors to stop at."""
        controller, model = self.controller, self._model
        if model is None or controller is None:
            return False
        unread = self._decoder.n_committed(seq) + 1 - model.synced(seq)
        (may_draft,) = controller.may_draft([seq], [unread])
        if may_draft:
            floors, onwards = controller.floors(seq)
            model.set_floors(floors, onwards, controller.calibration.table)
        return may_draft

    def _offer(self, seq: int, speculator: GuardedSpeculator, budget: int, stats: Stats) -> None:
        failures = speculator.failures
        draft = speculator.draft(DraftRequest(seq, self._decoder.tokens(seq), budget))
        self._decoder.offer(seq, draft)
        stats.speculator(speculator.name).failures += speculator.failures - failures
