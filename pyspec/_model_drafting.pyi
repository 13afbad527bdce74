from collections.abc import Sequence

from pyspec._draft_head import DraftHead
from pyspec._llama import Context
from pyspec._speculator import CompiledSpeculator

class ModelRunner(CompiledSpeculator):
    """A speculator that drafts with a model of its own.

    Attributes:
        context: the draft model's (first) context.
        head: its reduced output head; None: it drafts with the whole one.
        p_min: drafting stops before a token the model is less sure of.
    """

    @property
    def context(self) -> Context: ...
    @property
    def head(self) -> DraftHead | None: ...
    @property
    def p_min(self) -> float: ...
    def synced(self, seq: int) -> int:
        """How many committed tokens of the sequence the draft model has read."""
    def set_floors(
        self, floors: Sequence[float], onwards: Sequence[float], calibration: Sequence[float]
    ) -> None:
        """Lets drafts end where the next token is not worth its cost, instead of at p_min.

        Args:
            floors: for each position the least chance (of this proposal and all before it being accepted) with which
                the proposal is worth a row of the target; positions beyond the last one have the last one's. Empty:
                back to p_min.
            onwards: for each position the least chance with which another step behind it is worth taking.
            calibration: chance that a proposal is accepted by the model's confidence in it, which is sorted into as
                many equal intervals from 0 to 1 as there are entries.
        """
    def confidences_of(self, seq: int) -> list[float]:
        """The model's confidence in each proposal of this round, where p_min or floors made it look."""
    def steps(self, seq: int) -> int:
        """Decodes of the draft model the sequence took part in this round."""
    def work(self, seq: int) -> tuple[int, int]:
        """What the sequence has taken part in since construction: (decodes, rows of its own in them)."""
    def round_calls(self) -> list[tuple[int, float]]:
        """The decodes of the draft model in this round: (rows, milliseconds) each."""
    def counts(self) -> dict[str, int]:
        """Work done since construction: decode calls, rows, failed calls, microseconds."""
    def drop_head(self) -> None:
        """Drafts with the whole output head from now on, and frees the reduced one."""
    def time_decodes(self, rows: int, repetitions: int, *, reduced: bool = True) -> list[float]:
        """Decodes on sequence 0, which has to be empty and is so afterwards.

        Args:
            rows: of each decode, the last one an output.
            repetitions: how many decodes.
            reduced: with the reduced output head, where there is one.

        Returns:
            Milliseconds of each; fewer of them where one fails.
        """
