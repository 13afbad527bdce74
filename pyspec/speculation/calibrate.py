"""A first look at what decodes cost, before the first request."""

from __future__ import annotations

import time
from collections.abc import Iterable

from pyspec._llama import Context
from pyspec.speculation.costs import RowCosts


def measure_decodes(context: Context, rows: Iterable[int], costs: RowCosts, *, limit_s: float = 0.75) -> None:
    """Decodes so many rows at a time, all of them outputs, each four times, and clears the memory again.

    Args:
        context: with an empty memory, and room for all of it.
        rows: row counts to try.
        costs: takes in the measurements but the first of each, which builds a graph.
        limit_s: once so many seconds have passed the rest is left to be learned later.
    """
    deadline = time.perf_counter() + limit_s
    for n in rows:
        if costs and time.perf_counter() > deadline:
            break
        for repetition in range(4):
            context.memory.clear()
            t0 = time.perf_counter()
            context.decode([0] * n, pos=0, outputs=True)
            context.synchronize()
            elapsed = time.perf_counter() - t0
            if repetition or elapsed > limit_s:
                costs.observe(n, 1000.0 * elapsed)
            if elapsed > limit_s:
                break
    context.memory.clear()
