"""What was found out about a model: in how wide a batch its rows are, to the bit, what they are alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Comparison:
    """Rows of logits that were computed twice, in batches of two widths.

    Attributes:
        depth: tokens before the first of them.
        rows: rows of each sequence in a decode.
        reference: rows of the decodes they are compared with.
        compared, equal: rows compared, and those of them that are the same to the bit.
        largest: the largest difference of a logit.
        flips: rows whose best token is another one.
    """

    depth: int
    rows: tuple[int, ...]
    reference: int
    compared: int
    equal: int
    largest: float
    flips: int

    @property
    def exact(self) -> bool:
        """All of them are the same to the bit."""
        return self.equal == self.compared


@dataclass(frozen=True)
class RowInvariance:
    """In how wide a batch a model's rows are what they are in a narrow one, under one set of settings.

    Attributes:
        width: the widest decode up to which every row is, to the bit, the row decoded alone; 1: none is.
        paired_width: the widest decode up to which every row is what it is in a decode of two rows; 1: unknown, or
            none is. Above `width` it is of use to who never decodes a single row.
        limit: the widest decode that was tried; a width as large as this may be larger in truth.
        n_slots: sequences that were decoded together.
        prompt_width: tokens of a prompt that may be read at once so that the memory holds, to the bit, what it holds
            when they are read one by one; 1: none.
        with_prompt: a row is still the row alone beside a prompt that another sequence reads; None: not tried.
        comparisons: all that was compared.
        ms: milliseconds of a decode of one sequence by its rows, the fastest seen.
        settings: of model and context.
    """

    width: int
    paired_width: int
    limit: int
    n_slots: int
    prompt_width: int
    with_prompt: bool | None
    comparisons: tuple[Comparison, ...]
    ms: dict[int, float]
    settings: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values, for JSON."""
        return {**asdict(self), "ms": {str(rows): ms for rows, ms in self.ms.items()}}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> RowInvariance:
        """What `to_dict` gave.

        Raises:
            KeyError, TypeError, ValueError: it is something else.
        """
        comparisons = tuple(Comparison(**{**entry, "rows": tuple(entry["rows"])}) for entry in values["comparisons"])
        ms = {int(rows): float(each) for rows, each in values["ms"].items()}
        return cls(**{**values, "comparisons": comparisons, "ms": ms})

    def first_difference(self) -> Comparison | None:
        """The narrowest decode of one sequence with a row that is not what it is alone."""
        found = [c for c in self.comparisons if c.reference == 1 and len(c.rows) == 1 and not c.exact]
        return min(found, key=lambda c: c.rows, default=None)


def proven_width(comparisons: Sequence[Comparison], reference: int, limit: int) -> int:
    """The widest decode up to which nothing differed.

    Args:
        comparisons: what was compared, with any reference.
        reference: rows of the decodes to compare with; decodes with fewer rows of a sequence don't count.
        limit: the widest decode that was tried.
    """
    wrong = [
        sum(c.rows)
        for c in comparisons
        if c.reference == reference and not c.exact and sum(c.rows) <= limit and min(c.rows) >= reference
    ]
    tried = [sum(c.rows) for c in comparisons if c.reference == reference and sum(c.rows) <= limit]
    if not tried:
        return 1
    return min(wrong) - 1 if wrong else max(tried)
