"""How likely the next drafted token is accepted: estimates per position, per sequence and over all of them."""

from __future__ import annotations

from collections.abc import Sequence


class PositionRates:
    """Chance that the i-th drafted token is accepted, given that those before it were.

    A mean with exponential forgetting for every position, which also forgets in rounds in which nothing was drafted so
    far. What is not known (any more) comes from `prior`, the same speculator over all sequences, or where there is none
    from `start`, as far above or below that as at the position before.

    Args:
        prior: estimates to start from, or None.
        start: the estimates when nothing at all is known, by position, the last one for all behind it.
        forget: weight of the past after one more observation; 0.9 remembers about ten.
        prior_weight: how many observations the prior counts for.
    """

    __slots__ = ("_forget", "_hits", "_prior", "_prior_weight", "_start", "_weight")

    def __init__(
        self,
        prior: PositionRates | None = None,
        *,
        start: Sequence[float] = (0.7,),
        forget: float = 0.92,
        prior_weight: float = 3.0,
    ) -> None:
        self._prior = prior
        self._start = start
        self._forget = forget
        self._prior_weight = prior_weight
        self._hits: list[float] = []
        self._weight: list[float] = []

    def observe(self, drafted: int, accepted: int) -> None:
        """Takes in one verified draft: `accepted` hits, then a miss if it was not accepted whole."""
        n_seen = min(drafted, accepted + 1)
        for i in range(n_seen):
            self.observe_position(i, i < accepted)
        self._fade(n_seen)

    def observe_position(self, position: int, accepted: bool) -> None:
        """Takes in one token of a draft, those before it accepted."""
        while len(self._hits) <= position:
            self._hits.append(0.0)
            self._weight.append(0.0)
        self._hits[position] = self._hits[position] * self._forget + accepted
        self._weight[position] = self._weight[position] * self._forget + 1.0
        if self._prior is not None:
            self._prior.observe_position(position, accepted)

    def _fade(self, first: int) -> None:
        """Another draft has said nothing of the positions from `first` on."""
        for i in range(first, len(self._hits)):
            self._hits[i] *= self._forget
            self._weight[i] *= self._forget
        if self._prior is not None:
            self._prior._fade(first)

    def rates(self, n: int) -> list[float]:
        """Estimates for the positions 1..n."""
        if self._prior is not None:
            base = self._prior.rates(n)
        else:
            base = [*self._start[:n], *[self._start[-1]] * (n - len(self._start))]
        result: list[float] = []
        for i in range(n):
            expected = min(1.0, max(0.0, base[i] + (result[-1] - base[i - 1] if result else 0.0)))
            if i < len(self._hits):
                expected = (self._hits[i] + self._prior_weight * expected) / (self._weight[i] + self._prior_weight)
            result.append(expected)
        return result
