from collections.abc import Sequence

from pyspec._draft_head import DraftHead
from pyspec._hidden_drafting import HiddenRunner
from pyspec._llama import Context

class PairRunner(HiddenRunner):
    """A draft model that reads pairs of a token and a hidden state, and how far each sequence has got in it.

    Args:
        contexts: of NextN layers (``ctx_type="mtp"``), one a head, all of one model; or one of an EAGLE-3 model. Their
            memories are this object's alone.
        n_vocab_target: the target's vocabulary size; ids from there on are never proposed.
        n_max: longest draft; with several heads it is no longer than those are many.
        n_min: shortest draft that is submitted; shorter ones are discarded and counted.
        p_min: 0..1: drafting stops before a token the model is less sure of, by a softmax over its ten best.
        n_backlog: rows of hidden states that wait for a sequence's next draft; beyond that the draft reads them anyway.
        head: a reduced output head of the contexts; None: proposals come from the whole one.
    """

    def __init__(
        self,
        contexts: Sequence[Context],
        n_vocab_target: int,
        *,
        n_max: int = 3,
        n_min: int = 0,
        p_min: float = 0.0,
        n_backlog: int | None = None,
        head: DraftHead | None = None,
    ) -> None: ...
