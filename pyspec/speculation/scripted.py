"""Speculators written in Python: an object with ``propose``, or a plain function of the tokens so far.

They run once per round, with the GIL. A test scripts drafts with one; a user brings an idea of their own::

    engine = Engine("target.gguf", speculation=[lambda tokens: tokens[-8:]])
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol, runtime_checkable

_log = logging.getLogger("pyspec.speculation")


@dataclass(frozen=True)
class DraftRequest:
    """What a speculator is told about one sequence that wants a draft.

    Attributes:
        seq: the sequence's number; the same one throughout a request.
        tokens: the prompt and everything emitted so far, the last token included.
        n_max: longest draft that can be used this round; what is longer is cut.
    """

    seq: int
    tokens: Sequence[int]
    n_max: int


@runtime_checkable
class Speculator(Protocol):
    """Anything that proposes: one draft (possibly empty) for each request, in order."""

    def propose(self, requests: Sequence[DraftRequest]) -> Sequence[Iterable[int]]: ...


class FunctionSpeculator:
    """A plain callable as a speculator: it gets the tokens so far and returns the tokens it expects next."""

    def __init__(self, function: Callable[[list[int]], Iterable[int]]) -> None:
        self._function = function
        self.name = getattr(function, "__name__", type(function).__name__)

    def propose(self, requests: Sequence[DraftRequest]) -> Sequence[Iterable[int]]:
        return [self._function(list(request.tokens)) for request in requests]


class GuardedSpeculator:
    """Runs a Python speculator so that it can't harm a request: what it raises is counted and logged once.

    Attributes:
        name: under which its tokens appear in results and statistics.
        failures: how often it raised, or returned something that is not one list of ints per request.
    """

    def __init__(self, speculator: Speculator) -> None:
        self._speculator = speculator
        self.name = str(getattr(speculator, "name", type(speculator).__name__))
        self.failures = 0

    def draft(self, requests: Sequence[DraftRequest]) -> list[list[int] | None]:
        """A draft for each sequence; None where the speculator failed, which it does for one sequence at a time."""
        try:
            drafts = list(self._speculator.propose(list(requests)))
            if len(drafts) != len(requests):
                raise ValueError(f"propose() returned {len(drafts)} drafts for {len(requests)} requests")
            return [
                [int(token) for token in islice(draft, request.n_max)]
                for draft, request in zip(drafts, requests, strict=True)
            ]
        except BaseException:  # a sys.exit() in there must not end the engine's thread either
            if len(requests) > 1:
                return [self.draft([request])[0] for request in requests]
            if self.failures == 0:
                _log.exception("speculator %s failed; the request goes on without its draft", self.name)
            self.failures += 1
            return [None]
