from collections.abc import Sequence

from pyspec._draft_head import DraftHead
from pyspec._llama import Context
from pyspec._speculator import CompiledSpeculator

class DraftRunner(CompiledSpeculator):
    """A draft model's context, and how far each sequence has got in it.

    Args:
        context: the draft model's context; its memory is this object's alone. It needs as many sequences as the
            target's context, and one output row for each.
        n_vocab_target: the target's vocabulary size; ids from there on are never proposed.
        n_max: longest draft.
        n_min: shortest draft that is submitted; shorter ones are discarded and counted.
        p_min: 0..1: drafting stops before a token the model is less sure of, by a softmax over its ten best.
        replay: evaluate every target batch on the draft as well instead of synchronising lazily.
        capacity: tokens one sequence may hold; None: as many as the context has for each.
        head: a reduced output head of the context; None: proposals come from the whole one.
    """

    @property
    def context(self) -> Context: ...
    @property
    def head(self) -> DraftHead | None: ...
    @property
    def replay(self) -> bool: ...
    @property
    def p_min(self) -> float: ...
    def __init__(
        self,
        context: Context,
        n_vocab_target: int,
        *,
        n_max: int = 3,
        n_min: int = 0,
        p_min: float = 0.0,
        replay: bool = False,
        capacity: int | None = None,
        head: DraftHead | None = None,
    ) -> None: ...
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
    def counts(self) -> dict[str, int]:
        """Work done since construction: decode calls, rows, failed calls, microseconds."""
