"""The proof of `soak.py` that where a text parts from the one the request had alone, it was a near tie.

A row of logits is not the same to the last bit whoever shares its decode: kernels differ by the number of rows. How
much that changes a logit of this model is measured (`row_difference`). A choice that turns out differently after no
larger a change is a near tie, as in `pyspec.bench.lossless`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from soak_ledger import Parting
from soak_requests import Known

from pyspec._llama import Model
from pyspec.bench.lossless import can_flip, row_after


def near_ties(model: Model, known: Sequence[Known], partings: Iterable[Parting], by: float) -> Iterator[bool]:
    """For each place where texts parted whether a change of the logits by so much is enough to explain it."""
    for parting in partings:
        request = known[parting.request]
        before = request.alone.token_ids[: parting.at]
        yield (
            parting.token is not None
            and parting.at < len(request.alone.token_ids)
            and can_flip(
                model,
                request.params.replace(seed=request.alone.seed),
                request.prompt,
                before,
                row_after(model, (*request.prompt, *before)),
                parting.token,
                by,
            )
        )
