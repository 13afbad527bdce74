"""What an engine is doing and has done, in numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class SlotStats:
    """One slot.

    Attributes:
        state: "idle"; "reading": its prompt; "writing"; "waiting": for a reader that has fallen behind.
        n_tokens: tokens its sequence holds; of an idle slot, what it keeps for a prompt that begins like that.
    """

    state: str
    n_tokens: int


@dataclass(frozen=True)
class EngineStats:
    """A snapshot of an engine, counted since it was opened.

    Attributes:
        n_waiting: requests in the queue.
        slots: what each slot does.
        requests: requests that are over, of those ...
        failed, cancelled: ... those that ended with an error, and those that were cancelled.
        rounds: decodes of the target that all requests together took.
        prompt_tokens, cached_tokens: of requests that are over: tokens of prompts, and those that were not read again.
        completion_tokens: of the same, tokens of results.
        drafted, accepted: of the same, drafted tokens that were verified, and accepted ones.
        busy_ms: time spent in rounds.
        target_rows, draft_rows: rows evaluated by either model.
        verify_ms, draft_ms, sampling_ms, checkpoint_ms: time by what it was spent on.
        checkpoints, restores: states saved before a decode, and put back after it, where a memory can't be cut.
        spot_checks, spot_differences: in exact mode, rows that were computed again alone, and those of them that were
            not the same to the bit, of which there should be none.
        prefix_entries, prefix_bytes: saved sequences in the cache, and what they take.
        prefix_hits: requests that started from one.
    """

    n_waiting: int
    slots: tuple[SlotStats, ...]
    requests: int
    failed: int
    cancelled: int
    rounds: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    drafted: int
    accepted: int
    busy_ms: float
    target_rows: int
    draft_rows: int
    verify_ms: float
    draft_ms: float
    sampling_ms: float
    checkpoint_ms: float
    checkpoints: int
    restores: int
    spot_checks: int
    spot_differences: int
    prefix_entries: int
    prefix_bytes: int
    prefix_hits: int

    @property
    def acceptance(self) -> float:
        """Accepted share of the verified tokens; 0 when there were none."""
        return self.accepted / self.drafted if self.drafted else 0.0

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values, for JSON."""
        return {**asdict(self), "acceptance": self.acceptance}
