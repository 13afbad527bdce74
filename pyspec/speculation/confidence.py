"""What a draft model's confidence says: how likely its token is accepted."""

from __future__ import annotations

from collections.abc import Sequence

# Confidence is sorted into so many equal intervals.
N_BINS = 20


class Calibration:
    """From the draft model's confidence to the chance that its token is accepted, learned per interval."""

    FORGET = 0.98
    PRIOR_WEIGHT = 4.0

    def __init__(self) -> None:
        # A model of the target's kind is right somewhat more often than it is sure.
        self._prior = [0.15 + 0.85 * (b + 0.5) / N_BINS for b in range(N_BINS)]
        self._hits = [0.0] * N_BINS
        self._weight = [0.0] * N_BINS
        self.table = list(self._prior)

    def observe(self, confidences: Sequence[float], accepted: int) -> None:
        """Takes in one verified draft: `accepted` hits, then a miss if it was not accepted whole."""
        for i, confidence in enumerate(confidences[: accepted + 1]):
            b = min(int(confidence * N_BINS), N_BINS - 1)
            self._hits[b] = self._hits[b] * self.FORGET + (i < accepted)
            self._weight[b] = self._weight[b] * self.FORGET + 1.0
            self.table[b] = (self._hits[b] + self.PRIOR_WEIGHT * self._prior[b]) / (self._weight[b] + self.PRIOR_WEIGHT)
