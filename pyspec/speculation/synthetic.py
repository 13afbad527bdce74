"""Synthetic acceptance: how fast would it be if so many drafted tokens were accepted?

Verification goes on as ever, every row is sampled, but whether a drafted token counts as accepted is drawn from a
seeded generator. What comes out is not the model's text, and results say so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pyspec.errors import InvalidRequest
from pyspec.speculation.config import check_integer


@dataclass(frozen=True)
class Synthetic:
    """How many drafted tokens count as accepted; names and meaning are llama.cpp's ``--spec-synth-*``.

    Attributes:
        rates: for each position of a draft the chance that it and all before it are accepted: from 0 to 1, never
            rising, as many as the longest draft has tokens.
        length: instead of rates: mean tokens per round, the target's own included, from 1 to the longest draft + 1.
            The rates are then p, p^2, p^3, ... with the p that gives this mean.
        seed: of the generator.

    Raises:
        InvalidRequest: both or neither are given, or a number is out of range.
    """

    rates: Sequence[float] | None = None
    length: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_integer(self.seed, "seed", 0, 2**32 - 1)
        if (self.rates is None) == (self.length is None):
            raise InvalidRequest("give either rates or a length", name="rates", value=self.rates)
        if self.rates is not None:
            rates = tuple(self.rates)
            object.__setattr__(self, "rates", rates)
            if not rates:
                raise InvalidRequest("rates is empty", name="rates", value=rates)
            for i, rate in enumerate(rates):
                if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0.0 <= rate <= 1.0:
                    raise InvalidRequest(
                        f"rates[{i}] must be a number from 0 to 1, not {rate!r}", name="rates", value=rate
                    )
                if i and rate > rates[i - 1]:
                    raise InvalidRequest(
                        f"rates[{i}] is {rate}, above rates[{i - 1}], {rates[i - 1]}: a token counts only if those "
                        "before it are",
                        name="rates",
                        value=rates,
                    )
        elif (
            isinstance(self.length, bool) or not isinstance(self.length, int | float) or not math.isfinite(self.length)
        ):
            raise InvalidRequest(f"length must be a number, not {self.length!r}", name="length", value=self.length)

    def for_drafts_of(self, n_max: int) -> tuple[float, ...]:
        """The rates for drafts of up to n_max tokens.

        Raises:
            InvalidRequest: there are no drafts, not as many rates as tokens, or a length that can't be reached.
        """
        if n_max < 1:
            raise InvalidRequest("synthetic acceptance needs a speculator", name="synthetic", value=self)
        if self.rates is not None:
            if len(self.rates) != n_max:
                raise InvalidRequest(
                    f"{len(self.rates)} rates are given, the longest draft has {n_max} tokens",
                    name="rates",
                    value=self.rates,
                )
            return tuple(float(rate) for rate in self.rates)
        assert self.length is not None
        if not 1.0 <= self.length <= n_max + 1:
            raise InvalidRequest(
                f"length must be from 1 to {n_max + 1} with drafts of up to {n_max} tokens, not {self.length}",
                name="length",
                value=self.length,
            )
        p = _solve(self.length - 1.0, n_max)
        return tuple(p**i for i in range(1, n_max + 1))


def _solve(total: float, n: int) -> float:
    """The p from 0 to 1 with p + p^2 + ... + p^n == total, by bisection."""
    if total >= n:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(60):
        p = 0.5 * (low + high)
        if sum(p**i for i in range(1, n + 1)) < total:
            low = p
        else:
            high = p
    return 0.5 * (low + high)


def conditional(rates: Sequence[float]) -> list[float]:
    """Chance of each position, given that the ones before it were accepted; 0 behind a 0."""
    return [rate / before if before > 0.0 else 0.0 for before, rate in zip((1.0, *rates), rates, strict=False)]
