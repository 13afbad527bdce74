"""What is known of drafts that cost nothing to make (n-grams, functions), on one request.

Such a speculator copies. How likely its next token is right depends on how long it has been right: at the beginning of
a copy seldom, in the middle of one nearly always. So every draft is compared with what the target says, verified or
not, and chances are counted by the length of the run of right tokens that has gone before, over the borders of drafts.

A chance is not a certainty, and where rows are dear one wrong draft costs several tokens. So an account is kept of what
drafts have brought and cost: one is verified only as far as the account could bear that all of it is wrong. Whoever has
won may risk what he has won; whoever has not risks a part of a token, or a little more where drafts that nobody
verified would have been right.

To look for a copy takes next to no time, which is still a hundredth of a round of a small model. So where nothing was
found, or something wrong, and drafts have won nothing, the next rounds go on without looking.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pyspec.speculation.acceptance import PositionRates

# Runs from here on are alike. One that long is a copy, and may be drafted at any length.
LONG_RUN = 16
# How likely a token is right, by the run before it, while nothing is known. Low at first: where rows are dear the first
# drafts are only compared, and where they are cheap they are verified all the same.
START = tuple(1.0 - 0.75 * 0.7**run for run in range(LONG_RUN))
PRIOR = 1.5  # what other requests' drafts brought counts as so many observations: texts differ

ALLOWANCE = 0.3  # tokens' time that drafts may cost a request beyond what they have brought
TRUST = 0.9  # and so much more where others of them, not verified, would have been right
CREDIT = 16.0  # tokens' time that they may have in hand at most
FORGIVEN = 0.005  # share of the time by which what they have lost is forgiven
ASKING_MS = 0.05  # about what it takes to ask for a draft and to look at it, all that being in no cache
ASKING_SHARE = 0.004  # of the time that may be spent on asking in vain
LONGEST_REST = 8  # rounds without asking


class Prices(NamedTuple):
    """What is paid with, in milliseconds, in rounds of as many sequences as there are.

    Attributes:
        token_ms: a plain round's time for each of its tokens.
        row_ms: what so many drafted tokens add to a round.
        switch_ms: what a round with a draft takes longer besides, as its graph is another one.
    """

    token_ms: float
    row_ms: Callable[[int], float]
    switch_ms: float


def general_rates() -> PositionRates:
    """What is known of such a speculator over all requests, nothing yet."""
    return PositionRates(start=START, forget=0.97)


@dataclass
class FreeDrafts:
    """What the controller knows of a speculator whose drafts cost nothing, on one request.

    Attributes:
        rates: how likely its next token is right, by the length of the run before it.
        run: so many tokens it was right in, the last ones of the text.
        expected: what it said comes next, as far as the text has not come yet.
        balance_ms: what verified drafts have brought beyond what they cost.
        verified: this round's draft is being verified.
        resting: rounds left in which nobody is asked for a draft.
    """

    rates: PositionRates
    run: int = 0
    expected: Sequence[int] = ()
    balance_ms: float = 0.0
    verified: bool = False
    resting: int = 0

    def rests(self) -> bool:
        """Whether it is not asked for a draft this round; call once a round."""
        resting = self.resting > 0
        self.resting -= resting
        return resting

    def ask(self, prices: Prices) -> None:
        """Enters that it is asked. Where there is nothing to hope for, not again soon, unless it is right this time."""
        if not self.expected and self.balance_ms <= 0.0:
            self.resting = min(LONGEST_REST, int(ASKING_MS / (ASKING_SHARE * prices.token_ms)))

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
        if n_right:
            self.resting = 0
        self.expected = self.expected[n_right:]
        return n_right

    @classmethod
    def after(cls, general: PositionRates) -> FreeDrafts:
        """Of a new request, knowing how drafts went on others."""
        return cls(PositionRates(general, prior_weight=PRIOR))

    # -- the account ---------------------------------------------------------------------------------------------

    def affordable(self, length: int, prices: Prices) -> int:
        """Of a draft, as much as the account could bear to be wrong."""
        if self.run >= LONG_RUN:
            return length
        room = self.balance_ms + ALLOWANCE * prices.token_ms
        if room <= 0.0:
            return 0
        return bisect_right(range(1, length + 1), room - prices.switch_ms, key=prices.row_ms)

    def pay(self, drafted: int, accepted: int, prices: Prices) -> None:
        """Enters what a verified draft has brought and cost."""
        self.balance_ms += accepted * prices.token_ms - prices.row_ms(drafted) - prices.switch_ms
        self.balance_ms = min(self.balance_ms, CREDIT * prices.token_ms)
        self.verified = True

    def trust(self, n_right: int, n_emitted: int, prices: Prices) -> None:
        """Enters time that has passed, and what would have been right without being verified."""
        if self.balance_ms < 0.0:
            self.balance_ms = min(0.0, self.balance_ms + FORGIVEN * prices.token_ms * n_emitted)
        if n_right and not self.verified:
            # It would have brought that much, and more or less the next one will.
            n = max(n_right, LONG_RUN)
            gain = n_right * max(0.0, prices.token_ms - prices.row_ms(n) / n)
            self.balance_ms = max(self.balance_ms, min(self.balance_ms + gain, TRUST * prices.token_ms))
