"""The n-gram speculators, small ones, and a stage for them: what the tests of them share."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings

from pyspec._ngram import (
    NGramCacheRunner,
    NGramMapK4VRunner,
    NGramMapKRunner,
    NGramModRunner,
    NGramRunner,
    NGramSimpleRunner,
    Rehearsal,
)

Make = Callable[[int], NGramRunner]

SIZED = {
    "ngram-simple": NGramSimpleRunner,
    "ngram-map-k": NGramMapKRunner,
    "ngram-map-k4v": NGramMapK4VRunner,
}
# All of them with drafts of up to 8 tokens, the first four with n-grams of two.
ALL: dict[str, Make] = {
    "ngram-simple": lambda n: NGramSimpleRunner(n, size_n=2, size_m=8),
    "ngram-map-k": lambda n: NGramMapKRunner(n, size_n=2, size_m=8),
    "ngram-map-k4v": lambda n: NGramMapK4VRunner(n, size_n=2, size_m=8),
    "ngram-mod": lambda n: NGramModRunner(n, n_match=2, n_max=8, n_min=0),
    "ngram-cache": lambda n: NGramCacheRunner(n, n_draft=8),
}

# On a busy machine a fast example may take long.
patient = settings(deadline=None)

sized = pytest.mark.parametrize("make", SIZED.values(), ids=SIZED)
every = pytest.mark.parametrize("make", ALL.values(), ids=ALL)


def draft(runner: NGramRunner, history: list[int], budget: int = 1024) -> list[int]:
    """What a speculator proposes after a history it has not seen before."""
    stage = Rehearsal(runner)
    stage.feed(history)
    found = stage.propose(budget)
    stage.check()
    stage.forget()
    return found
