"""A first look at what decodes cost, before the first request."""

from __future__ import annotations

import time
from collections.abc import Sequence

from pyspec._llama import Context
from pyspec.speculation.costs import RowCosts

# Row counts are gone through so often: what disturbs a moment then falls on one measurement of each.
N_PASSES = 3


def measure_decodes(context: Context, rows: Sequence[int], costs: RowCosts, *, limit_s: float = 0.75) -> None:
    """Decodes so many rows at a time, all of them outputs, in several passes, and clears the memory again.

    Args:
        context: with an empty memory, and room for all of it.
        rows: row counts to try.
        costs: takes in the second of two decodes of each pass; the first one builds a graph.
        limit_s: once so many seconds have passed the rest is left to be learned later.
    """
    deadline = time.perf_counter() + limit_s
    for n in [n for _ in range(N_PASSES) for n in rows]:
        if costs and time.perf_counter() > deadline:
            break
        for with_graph in (False, True):
            context.memory.clear()
            t0 = time.perf_counter()
            context.decode([0] * n, pos=0, outputs=True)
            context.synchronize()
            elapsed = time.perf_counter() - t0
            if with_graph or elapsed > limit_s:
                costs.observe(n, 1000.0 * elapsed)
            if elapsed > limit_s:
                break
    context.memory.clear()
