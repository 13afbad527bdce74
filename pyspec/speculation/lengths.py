"""Draft lengths that pay: the lengths with the most expected tokens per second."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Candidate:
    """One sequence that could draft this round.

    Attributes:
        rates: chance that its i-th drafted token is accepted, given that those before it were; as many as it may
            draft at most.
        free: its draft exists already (an n-gram's), so only verification costs.
    """

    rates: Sequence[float]
    free: bool = False


@dataclass(frozen=True)
class Choice:
    """Draft lengths for the candidates, in their order, and what is expected of them.

    Attributes:
        lengths: 0: do not draft.
        tokens: expected tokens of the round.
        ms: expected duration of the round.
    """

    lengths: tuple[int, ...]
    tokens: float
    ms: float

    @property
    def rate(self) -> float:
        """Expected tokens per millisecond."""
        return self.tokens / self.ms if self.ms > 0 else 0.0


def best_lengths(
    candidates: Sequence[Candidate],
    *,
    n_plain: int = 0,
    prompt_rows: int = 0,
    n_rows_max: int,
    verify_ms: Callable[[int], float],
    draft_ms: Callable[[int], float],
    overhead_ms: float = 0.0,
) -> Choice:
    """The lengths with the most expected tokens per second, drafting nothing included.

    A token's chance to be emitted is the product of the rates up to it. Tokens are added in the order of that chance,
    whichever sequence they belong to, and after each the quotient of expected tokens and expected time is looked at;
    the best prefix wins. That is exact for drafts that cost nothing to make, and near enough for those of a model.

    Args:
        n_plain: sequences that generate without a draft in the same batch.
        prompt_rows: prompt rows riding along.
        n_rows_max: rows the batch can have.
        verify_ms: duration of a target decode by its rows.
        draft_ms: duration of a step of the draft model by the sequences that take part.
        overhead_ms: what a round costs besides.
    """
    rows = prompt_rows + n_plain + len(candidates)
    tokens = float(n_plain + len(candidates))
    lengths = [0] * len(candidates)
    n_drafting = [0] * max((len(c.rates) for c in candidates), default=0)
    drafting_ms = 0.0
    best = Choice(tuple(lengths), tokens, verify_ms(rows) + overhead_ms)

    chances: list[tuple[float, int, int]] = []
    for which, candidate in enumerate(candidates):
        chance = 1.0
        for position, rate in enumerate(candidate.rates):
            chance *= rate
            chances.append((-chance, position, which))
    chances.sort()
    for negative, position, which in chances:
        if rows >= n_rows_max:
            break
        rows += 1
        tokens -= negative
        lengths[which] = position + 1
        if not candidates[which].free:
            n_drafting[position] += 1
            n = n_drafting[position]
            drafting_ms += draft_ms(n) - (draft_ms(n - 1) if n > 1 else 0.0)
        ms = verify_ms(rows) + drafting_ms + overhead_ms
        if tokens * best.ms > best.tokens * ms:
            best = Choice(tuple(lengths), tokens, ms)
    return best


def best_common_length(
    rates: Sequence[Sequence[float]],
    *,
    n_plain: int = 0,
    n_rows_max: int,
    decode_ms: Callable[[int], float],
    draft_ms: Callable[[int], float],
    overhead_ms: float = 0.0,
) -> Choice:
    """The one length for all sequences with the most expected tokens per second, 0 included.

    For where rows are computed together only as far as all sequences have as many.

    Args:
        rates: for each sequence the chance of each position, given those before it.
        n_plain: sequences that generate without a draft in the same batch.
        n_rows_max: rows these sequences can have together.
        decode_ms: duration of the target's decode by the drafted rows of all.
        draft_ms: duration of a step of the draft model by the sequences that take part.
        overhead_ms: what a round costs besides.
    """
    n = len(rates)
    tokens = float(n_plain + n)
    chances = [1.0] * n
    best = Choice((0,) * n, tokens, decode_ms(0) + overhead_ms)
    for length in range(1, 1 + min(map(len, rates), default=0)):
        if n * (1 + length) > n_rows_max:
            break
        chances = [chance * its[length - 1] for chance, its in zip(chances, rates, strict=True)]
        tokens += sum(chances)
        ms = decode_ms(n * length) + length * draft_ms(n) + overhead_ms
        if tokens * best.ms > best.tokens * ms:
            best = Choice((length,) * n, tokens, ms)
    return best


def worthwhile_chances(
    row_ms: Sequence[float], *, rate: float, step_ms: float, accepted: float
) -> tuple[list[float], list[float]]:
    """The least chance of each position, all before it included, with which a draft's token is worth its cost.

    Args:
        row_ms: duration of the target's decode with 0, 1, 2, ... drafted tokens; one more entry than positions.
        rate: tokens per millisecond that are made anyway.
        step_ms: duration of a step of the draft model.
        accepted: chance that a further token is accepted, given those before it.

    Returns:
        For each position: the chance with which the token, now that it is drafted, is worth a row of the target; and
        the chance with which another step behind it is worth taking.
    """
    n_max = len(row_ms) - 1

    def least(first: int, drafted: int, chance: float) -> float:
        """Of all ways to verify the tokens from `first` on, the cheapest per expected token; so many are drafted."""
        gain, found = 0.0, math.inf
        for end in range(first, n_max + 1):
            gain += chance
            chance *= accepted
            ms = row_ms[end] - row_ms[first - 1] + (end - drafted) * step_ms
            found = min(found, rate * ms / gain)
        return max(0.0, found)

    positions = range(1, n_max + 1)
    return [least(i, i, 1.0) for i in positions], [least(i + 1, i, accepted) for i in positions]
