"""A first look at what decodes cost, before the first request."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median

from pyspec._llama import Context
from pyspec.speculation.costs import RowCosts

# Row counts are gone through so often: what disturbs a moment then falls on one measurement of each.
N_PASSES = 3


def measure_decodes(context: Context, rows: Sequence[int], costs: RowCosts, *, limit_s: float = 0.75) -> float:
    """Decodes so many rows at a time, all of them outputs, in several passes, and clears the memory again.

    Args:
        context: with an empty memory, and room for all of it.
        rows: row counts to try.
        costs: takes in the second of two decodes of each pass; the first one builds a graph.
        limit_s: once so many seconds have passed the rest is left to be learned later.

    Returns:
        Milliseconds that building a graph takes: what a decode takes longer behind one of other rows. 0: not known.
    """
    deadline = time.perf_counter() + limit_s
    building: list[float] = []
    for turn, n in enumerate([n for _ in range(N_PASSES) for n in rows]):
        if costs and time.perf_counter() > deadline:
            break
        took: list[float] = []
        while len(took) < 2 and sum(took) <= limit_s:
            context.memory.clear()
            t0 = time.perf_counter()
            context.decode([0] * n, pos=0, outputs=True)
            context.synchronize()
            took.append(time.perf_counter() - t0)
        costs.observe(n, 1000.0 * took[-1])
        if turn >= len(rows) > 1 and len(took) == 2:  # in the first pass memory is laid out, too
            building.append(1000.0 * (took[0] - took[1]))
    context.memory.clear()
    return max(0.0, median(building)) if building else 0.0
