"""Whether counted draws can come from a distribution."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np


def p_value(counts: Counter[int], probabilities: np.ndarray) -> float:
    """Of a chi-square test; tokens expected fewer than five times are taken together."""
    expected = probabilities * sum(counts.values())
    observed = np.array([counts[token] for token in range(len(expected))], float)
    rare = expected < 5
    expected = np.append(expected[~rare], expected[rare].sum())
    observed = np.append(observed[~rare], observed[rare].sum())
    if expected[-1] == 0.0:  # nothing else can be drawn
        if observed[-1] > 0:
            return 0.0
        expected, observed = expected[:-1], observed[:-1]
    k = len(expected) - 1
    statistic = float(((observed - expected) ** 2 / expected).sum())
    # Wilson and Hilferty: the cube root of chi-square is nearly normal.
    z = ((statistic / k) ** (1 / 3) - (1 - 2 / (9 * k))) / math.sqrt(2 / (9 * k))
    return 0.5 * math.erfc(z / math.sqrt(2))
