from pyspec._hidden_drafting import HiddenRunner
from pyspec._llama import Context

class BlockRunner(HiddenRunner):
    """A block-diffusion draft, and how far each sequence has got in it.

    Args:
        context: of a DFlash model; its n_ubatch holds a block. Its memory is this object's alone, and needs room for a
            block behind each sequence.
        n_vocab_target: the target's vocabulary size; ids from there on are never proposed.
        mask: the token that stands for one to be filled in; it is never proposed.
        block_size: longest block.
        causal: whether the tokens of a block see only those before them.
        from_anchor: whether the row of the seed is the first proposal already, as in most DSpark models.
        markov: whether the model has a Markov head (DSpark).
        confidence: whether it has a head that says how sure it is of each row; else a softmax over the ten best does.
        n_max: longest draft; it is no longer than a block has room for.
        n_min: shortest draft that is submitted; shorter ones are discarded and counted.
        p_min: 0..1: a draft ends before a token the model is less sure of.
        n_backlog: rows of hidden states that wait for a sequence's next draft; beyond that the draft reads them anyway.
    """

    @property
    def block_size(self) -> int: ...
    def __init__(
        self,
        context: Context,
        n_vocab_target: int,
        *,
        mask: int,
        block_size: int,
        causal: bool = False,
        from_anchor: bool = False,
        markov: bool = False,
        confidence: bool = False,
        n_max: int = 3,
        n_min: int = 0,
        p_min: float = 0.0,
        n_backlog: int | None = None,
    ) -> None: ...
