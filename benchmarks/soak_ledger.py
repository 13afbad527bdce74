"""The ledger of `soak.py`: every request that was submitted, and what became of it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from soak_requests import Known

from pyspec import Chunk, Result
from pyspec.bench.lossless import first_difference
from pyspec.engine.metrics import EngineStats
from pyspec.speculation.stats import Stats

PATIENCE_S = 120.0  # longer than any request may take
SUMMED = ("cached_tokens", "completion_tokens", "drafted", "accepted")


@dataclass(frozen=True)
class Parting:
    """Where the text of a request parts from the one it had alone: a near tie, or a fault.

    Attributes:
        request: number of the known request.
        at: index of the first token that differs.
        token: what was there instead; None: the text had ended.
    """

    request: int
    at: int
    token: int | None


class Ledger:
    """What became of every request. Any thread may write.

    Attributes:
        outcomes: how often a request ended in which way.
        partings: texts that are not the one the request had alone.
        violations: what must not be.
        n_compared: texts that were compared.
    """

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.partings: Counter[Parting] = Counter()
        self.violations: list[str] = []
        self.n_submitted = 0
        self.n_compared = 0
        self.n_tokens = 0
        self._lock = threading.Lock()
        self._open: dict[int, tuple[float, str]] = {}
        self._dropped: list[Stats] = []
        self._sums: Counter[str] = Counter()

    def submit(self, what: str) -> int:
        """A request is about to be submitted; returns its number."""
        with self._lock:
            self.n_submitted += 1
            self._open[self.n_submitted] = time.monotonic(), what
            return self.n_submitted

    def end(self, number: int, outcome: str) -> None:
        """It is over."""
        with self._lock:
            if self._open.pop(number, None) is None:
                self.violations.append(f"request {number} ended a second time: {outcome}")
            self.outcomes[outcome] += 1

    def violated(self, what: str) -> None:
        """Something that must not be."""
        with self._lock:
            self.violations.append(what)

    def add(self, stats: Stats) -> None:
        """Adds the statistics of a request that the engine took and that is over."""
        with self._lock:
            self._add(stats)

    def add_dropped(self, stats: Stats) -> None:
        """The same for a request that may not be over yet; they are looked at in the end."""
        with self._lock:
            self._dropped.append(stats)

    def compare(self, known: Known, tokens: Sequence[int], *, whole: bool) -> bool:
        """Compares tokens of a request with those it had alone; where they part is noted.

        Args:
            whole: they are all of its tokens, not just the first ones.

        Returns:
            Whether they are the same.
        """
        alone = known.alone.token_ids if whole else known.alone.token_ids[: len(tokens)]
        at = first_difference(alone, tokens)
        with self._lock:
            self.n_compared += 1
            self.n_tokens += len(tokens)
            if at is not None:
                self.partings[Parting(known.number, at, tokens[at] if at < len(tokens) else None)] += 1
        return at is None

    def check_result(self, known: Known, result: Result, chunks: Sequence[Chunk], *, read_all: bool) -> None:
        """A result against what was streamed of it, and against what the request had alone."""
        name = f"request {known.number}"
        streamed = tuple(token for chunk in chunks for token in chunk.tokens)
        text = "".join(chunk.text for chunk in chunks)
        if read_all and (streamed, text) != (result.token_ids, result.text):
            self.violated(f"{name}: streamed {streamed} {text!r}, result {result.token_ids} {result.text!r}")
        if not read_all and result.token_ids[: len(streamed)] != streamed:
            self.violated(f"{name}: streamed {streamed}, which result {result.token_ids} does not begin with")
        whole = result.finish_reason in ("stop", "length")
        same = self.compare(known, result.token_ids, whole=whole)
        ends = [(r.text, r.finish_reason, r.stop) for r in (result, known.alone)]
        if whole and same and ends[0] != ends[1]:
            self.violated(f"{name}: the same tokens and another end: {ends[0]}, alone {ends[1]}")

    def overdue(self) -> list[str]:
        """Requests that should have been over long ago."""
        now = time.monotonic()
        with self._lock:
            return [f"{what}: {now - t:.0f} s" for t, what in self._open.values() if now - t > PATIENCE_S]

    def close(self, stats: EngineStats) -> None:
        """The end: nothing is open, and the engine has counted the same."""
        with self._lock:
            for dropped in self._dropped:
                self._add(dropped)
            self._dropped.clear()
            self.violations += [f"never ended: {what}" for _, what in self._open.values()]
            if stats.n_waiting or any(slot.state != "idle" for slot in stats.slots):
                self.violations.append(f"the engine has nothing to do, and yet: {stats.n_waiting=}, {stats.slots=}")
            for name in ("requests", *SUMMED):
                theirs, ours = getattr(stats, name), self._sums[name]
                if theirs != ours:
                    self.violations.append(f"the engine has counted {theirs} {name}, its callers {ours}")

    def _add(self, stats: Stats) -> None:
        self._sums["requests"] += 1
        for name in SUMMED:
            self._sums[name] += getattr(stats, name)
