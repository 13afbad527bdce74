import numpy as np
import numpy.typing as npt

from pyspec._llama import Context
from pyspec._model_drafting import ModelRunner

class HiddenRunner(ModelRunner):
    """A speculator that drafts from hidden states of the target.

    Attributes:
        contexts: of the draft, one for each layer that drafts a token of its own.
    """

    @property
    def contexts(self) -> list[Context]: ...
    def held(self, seq: int) -> list[tuple[int, int]]:
        """Per head: the tokens of the sequence its memory has cells of, first and one behind the last."""
    def waiting(self, seq: int) -> tuple[int, npt.NDArray[np.float32]]:
        """Hidden states that wait for the sequence's next draft: (the first one's position, a copy of the rows)."""
