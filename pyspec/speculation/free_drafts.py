"""What is known of drafts that cost nothing to make (n-grams, functions), on one request.

Such a speculator copies. How likely its next token is right depends on how long it has been right: at the beginning of
a copy seldom, in the middle of one nearly always. So every draft is compared with what the target says, verified or
not, and chances are counted by the length of the run of right tokens that has gone before, over the borders of drafts.

A chance is not a certainty, and where rows are dear one wrong draft costs several tokens. So an account is kept of what
drafts have brought and cost: one is verified only as far as the account could bear that all of it is wrong. Whoever has
won may risk what he has won; whoever has not risks a part of a token, or a little more where drafts that nobody
verified would have been right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspec.speculation.acceptance import PositionRates

# Runs from here on are alike. One that long is a copy, and may be drafted at any length.
LONG_RUN = 16


@dataclass
class FreeDrafts:
    """What the controller knows of a speculator whose drafts cost nothing, on one request.

    Attributes:
        rates: how likely its next token is right, by the length of the run before it.
        run: so many tokens it was right in, the last ones of the text.
        expected: what it said comes next, as far as the text has not come yet.
        balance_ms: what verified drafts have brought beyond what they cost.
        verified: this round's draft is being verified.
    """

    rates: PositionRates
    run: int = 0
    expected: Sequence[int] = ()
    balance_ms: float = 0.0
    verified: bool = False

    def propose(self, draft: Sequence[int]) -> None:
        """Takes in the draft of a round."""
        if self.expected and self.expected[0] != draft[0]:
            self.run = 0  # it copies from another place now
        self.expected = tuple(draft)

    def chances(self, n: int) -> list[float]:
        """How likely each of the next n tokens is right, given those before it."""
        by_run = self.rates.rates(LONG_RUN)
        return [by_run[min(self.run + i, LONG_RUN - 1)] for i in range(n)]

    def compare(self, emitted: Sequence[int]) -> int:
        """Takes in what the target has said. Returns how many tokens of the draft were right."""
        if not self.expected:
            self.run = 0
        n_right = 0
        for token in emitted:
            if n_right == len(self.expected):
                break
            right = token == self.expected[n_right]
            self.rates.observe_position(min(self.run, LONG_RUN - 1), right)
            if not right:
                self.run, self.expected = 0, ()
                return n_right
            self.run += 1
            n_right += 1
        self.expected = self.expected[n_right:]
        return n_right
