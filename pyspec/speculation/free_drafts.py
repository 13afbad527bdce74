"""What is known of drafts that cost nothing to make (n-grams, functions), on one request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspec.speculation.acceptance import PositionRates


@dataclass
class FreeDrafts:
    """What the controller knows of a speculator whose drafts cost nothing, on one request.

    Attributes:
        rates: how likely its tokens are accepted.
        longest: its drafts are cut to so many tokens, whatever the rates say.
        watched: a draft that was not verified, as far as the text has not come yet.
        n_right: tokens before those that the text has had.
        debt_ms: what drafts have cost beyond what they brought, as far as it is not paid off; while it is more than a
            token takes nothing is verified.
    """

    rates: PositionRates
    longest: int = 3
    watched: Sequence[int] = ()
    n_right: int = 0
    debt_ms: float = 0.0

    SHORTEST = 3

    def observe(self, drafted: int, accepted: int) -> None:
        """Takes in a draft that was verified."""
        self.rates.observe(drafted, accepted)
        self.longest = max(self.SHORTEST, 2 * accepted, self.longest if accepted == drafted else 0)

    def watch(self, draft: Sequence[int]) -> None:
        """Keeps a draft that is not verified, unless there is one already."""
        if not self.watched:
            self.watched, self.n_right = tuple(draft), 0

    def compare(self, emitted: Sequence[int]) -> int:
        """Takes in what the target has said. Returns how many tokens of the watched draft were right."""
        before = self.n_right
        for token in emitted:
            if not self.watched:
                break
            right = token == self.watched[0]
            self.rates.observe_position(self.n_right, right)
            self.n_right += right
            self.watched = self.watched[1:] if right else ()
            if right:
                self.longest = max(self.longest, 2 * self.n_right)
        return self.n_right - before
