"""How long a draft may be this round."""

from __future__ import annotations


def draft_budget(*, n_ctx: int, n_committed: int, remaining: int | None, n_rows: int, n_max: int) -> int:
    """Most tokens worth drafting; 0 means a plain round.

    Args:
        n_ctx: tokens the sequence may hold.
        n_committed: tokens it holds, the seed not among them. One cell goes to the seed, one is spare.
        remaining: tokens still to be emitted, or None for no limit. The round emits one token of its own, so the
            last one is never drafted.
        n_rows: rows this sequence may have in the target's batch, the seed's among them.
        n_max: the speculators' own limit, or the request's.
    """
    budget = min(n_ctx - n_committed - 2, n_rows - 1, n_max)
    if remaining is not None:
        budget = min(budget, remaining - 1)
    return max(budget, 0)
