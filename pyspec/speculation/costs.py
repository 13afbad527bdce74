"""What a decode costs, by its number of rows, as the engine sees it while it runs."""

from __future__ import annotations

import math
from bisect import bisect_left


class RowCosts:
    """Milliseconds of a decode by number of rows: measured, smoothed, interpolated where nothing was seen.

    The curve is neither smooth nor convex (on CPUs two rows may cost twice one, and eight little more than four), so
    every row count is kept by itself; only that more rows never cost less is taken for granted, as what disturbs a
    measurement makes it longer. A machine that has become busy makes all of them dearer at once: that is kept apart,
    as a factor that follows quickly, while the shape of the curve follows slowly. Row counts that have not been used
    for a while so keep pace with those that are.
    """

    SHAPE_WEIGHT = 0.05  # of a new measurement, on its own row count, once it is known
    SPEED_WEIGHT = 0.2  # and on the common factor
    N_TRIAL = 3  # the first few measurements of a row count: the smallest one counts
    LARGEST_STEP = 3.0  # a single measurement counts as at most so many times what was expected

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._ms: list[float] = []
        self._seen: list[int] = []
        self._rising: list[float] = []  # self._ms with falls evened out; empty: to be computed
        self._factor = 1.0

    def observe(self, rows: int, ms: float) -> None:
        """Takes in one measurement."""
        if ms <= 0.0:
            return
        self._rising = []
        at = bisect_left(self._rows, rows)
        if at == len(self._rows) or self._rows[at] != rows:
            self._rows.insert(at, rows)
            self._ms.insert(at, ms / self._factor)
            self._seen.insert(at, 1)
            return
        self._seen[at] += 1
        if self._seen[at] <= self.N_TRIAL:
            self._ms[at] = min(self._ms[at], ms / self._factor)
            return
        ratio = ms / (self._ms[at] * self._factor)
        ratio = min(max(ratio, 1.0 / self.LARGEST_STEP), self.LARGEST_STEP)
        self._factor *= ratio**self.SPEED_WEIGHT
        self._ms[at] *= ratio**self.SHAPE_WEIGHT

    def cost_no_less_than(self, rows: int) -> None:
        """Fewer rows than these take as long as these: they get company."""
        ms = self(rows)
        for n in range(1, rows):
            at = bisect_left(self._rows, n)
            if at < len(self._rows) and self._rows[at] == n:
                self._ms[at] = ms / self._factor
        self._rising = []

    def seen(self, rows: int) -> bool:
        """Whether this very row count was measured."""
        at = bisect_left(self._rows, rows)
        return at < len(self._rows) and self._rows[at] == rows

    def __bool__(self) -> bool:
        return bool(self._rows)

    def __call__(self, rows: int) -> float:
        """Expected milliseconds; 0 as long as nothing was measured."""
        known, ms = self._rows, self._rising or self._even_out()
        if not known:
            return 0.0
        at = bisect_left(known, rows)
        if at < len(known) and known[at] == rows:
            return ms[at] * self._factor
        if at == 0:  # fewer rows than ever seen: no cheaper than that
            return ms[0] * self._factor
        if at == len(known):
            if at == 1:
                return ms[0] * self._factor * (1.0 + 0.25 * (rows - known[0]))
            slope = max(0.0, (ms[-1] - ms[0]) / (known[-1] - known[0]))
            return (ms[-1] + slope * (rows - known[-1])) * self._factor
        low, high = known[at - 1], known[at]
        share = (rows - low) / (high - low)
        return (ms[at - 1] + share * (ms[at] - ms[at - 1])) * self._factor

    def _even_out(self) -> list[float]:
        """No row count costs more than a larger one: what disturbs a measurement makes it longer, never shorter."""
        rising, least = [], math.inf
        for ms in reversed(self._ms):
            least = min(least, ms)
            rising.append(least)
        self._rising = rising[::-1]
        return self._rising

    def table(self) -> dict[int, float]:
        """The measured row counts and what they are believed to cost, for the statistics."""
        return {rows: self(rows) for rows in self._rows}
