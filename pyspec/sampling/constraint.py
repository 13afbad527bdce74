"""What a text has to follow, worked out in Python once a round: the kinds of constraint, and the one that waits.

The decoder asks a constraint where a draft has to end, gets a mask for each row from its masker, and tells it what was
emitted. Grammars of libllama's need none of this, once they apply: their samplers work row by row, in compiled code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pyspec._llama import Sampler
from pyspec.errors import GrammarError
from pyspec.sampling.triggers import Fired, Watch


class Masker(Protocol):
    """Works out masks: for every row a bit per token, 32 to a word, the lowest bit first."""

    def fill(self, asked: Sequence[tuple[Constraint, Sequence[int]]]) -> list[tuple[npt.NDArray[np.uint32], int]]:
        """For each constraint and draft: the masks, and how many tokens of the draft fit.

        Row i says what may stand behind the first i tokens of the draft; there is one more than tokens that fit.
        """


class Constraint(Protocol):
    """What the text of one request has to follow, as far as the text has come.

    Attributes:
        masker: who works out its masks; None: it allows every token, for now.
        error: why nothing can follow any more, or None. Once set it stays.
    """

    @property
    def masker(self) -> Masker | None: ...
    @property
    def error(self) -> str | None: ...

    def fitting(self, draft: Sequence[int]) -> int:
        """How many of the first tokens of a draft may be verified in one round."""

    def forced(self, n_max: int) -> list[int]:
        """The next tokens, where there is no choice; n_max at most."""

    def accept(self, tokens: Sequence[int]) -> Constraint | Sampler:
        """Takes in what was emitted. What the text has to follow from now on: itself, or what takes its place."""


class LazyConstraint:
    """Allows everything until a trigger appears in the text; then a grammar applies.

    Drafts end before the token that would complete a trigger, so that no row behind it is chosen without the grammar.

    Args:
        watch: what to look for.
        start: makes what applies from then on; what it raises ends the request.
    """

    masker: Masker | None = None

    def __init__(self, watch: Watch, start: Callable[[Fired], Constraint | Sampler]) -> None:
        self.error: str | None = None
        self._watch = watch
        self._start = start

    def fitting(self, draft: Sequence[int]) -> int:
        """How many of the first tokens of a draft complete no trigger."""
        return self._watch.quiet(draft)

    def forced(self, n_max: int) -> list[int]:
        """Nothing."""
        return []

    def accept(self, tokens: Sequence[int]) -> Constraint | Sampler:
        """Takes in what was emitted; with a trigger in it, returns the grammar."""
        fired = self._watch.read(tokens)
        if fired is None:
            return self
        try:
            return self._start(fired)
        except GrammarError as error:
            self.error = f"the grammar refuses what follows its trigger: {error}"
            return self
