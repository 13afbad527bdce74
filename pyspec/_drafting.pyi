from pyspec._draft_head import DraftHead
from pyspec._llama import Context
from pyspec._model_drafting import ModelRunner

class DraftRunner(ModelRunner):
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
    def replay(self) -> bool: ...
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
