"""A load on something that streams text: so many requests at once, and when each of them received what.

Shared by the two sides of `serving.py`, so that they are driven and timed alike.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

Event = TypeVar("Event")

# What arrives so soon after something else has come out of the same round of decoding: llama.cpp's server sends the
# tokens of a round one by one.
SAME_ROUND_S = 0.002


@dataclass
class Record:
    """One request as its reader saw it.

    Attributes:
        start: seconds from the beginning of the load to its submission.
        times: seconds to each event that was streamed.
        n_tokens: tokens received.
        drafted, accepted: drafted tokens that were verified, and those of them that were accepted.
        text: what was received.
    """

    start: float
    times: list[float]
    n_tokens: int
    drafted: int
    accepted: int
    text: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def first_s(self) -> float:
        """Seconds from its submission to its first event."""
        return self.times[0] - self.start

    @property
    def per_token_s(self) -> float:
        """Seconds per token behind the first one."""
        return (self.times[-1] - self.times[0]) / (self.n_tokens - 1)

    @property
    def gaps_s(self) -> list[float]:
        """Seconds between arrivals; events of the same round are one arrival, at the time of the first."""
        arrivals: list[float] = []
        last = float("-inf")
        for t in self.times:
            if t - last > SAME_ROUND_S:
                arrivals.append(t)
            last = t
        return [b - a for a, b in itertools.pairwise(arrivals)]


async def drive(
    stream: Callable[[str], AsyncIterator[Event]],
    finish: Callable[[list[Event]], dict[str, Any]],
    prompts: Sequence[str],
    n_at_once: int,
) -> list[Record]:
    """Sends all prompts, so many at a time, each as soon as an earlier one is done.

    Args:
        stream: sends a prompt and yields events as they arrive.
        finish: what a request's events amount to: n_tokens, drafted, accepted and text. Called when all is over, so
            that nothing but reading happens while the clock runs.
        prompts: one for each request.
        n_at_once: requests under way at any time.
    """
    waiting = deque(enumerate(prompts))
    starts = [0.0] * len(prompts)
    received: list[list[tuple[float, Event]]] = [[] for _ in prompts]
    t0 = time.perf_counter()

    async def client() -> None:
        while waiting:
            i, prompt = waiting.popleft()
            starts[i] = time.perf_counter() - t0
            async for event in stream(prompt):
                received[i].append((time.perf_counter() - t0, event))

    await asyncio.gather(*(client() for _ in range(n_at_once)))
    return [
        Record(start, [t for t, _ in events], **finish([event for _, event in events]))
        for start, events in zip(starts, received, strict=True)
    ]


def figures(records: Sequence[Record]) -> dict[str, float]:
    """What a load amounts to. Times in milliseconds."""
    gaps = [1000 * gap for record in records for gap in record.gaps_s]
    per_token = [1000 * record.per_token_s for record in records]
    n_tokens = sum(record.n_tokens for record in records)
    window = max(record.times[-1] for record in records)
    drafted = sum(record.drafted for record in records)
    return {
        "tokens_per_second": n_tokens / window,
        "window_s": window,
        "n_tokens": n_tokens,
        "first_ms": statistics.median(1000 * record.first_s for record in records),
        "gap_ms": statistics.median(gaps),
        "gap_p95_ms": percentile(gaps, 0.95),
        "per_token_ms": statistics.median(per_token),
        "per_token_p95_ms": percentile(per_token, 0.95),
        "tokens_per_arrival": n_tokens / (len(gaps) + len(records)),
        "drafted_per_token": drafted / n_tokens,
        "acceptance": sum(record.accepted for record in records) / drafted if drafted else 0.0,
    }


def percentile(values: Sequence[float], share: float) -> float:
    """The value that so large a share of them does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
