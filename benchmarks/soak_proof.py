"""The proof of `soak.py` that where a text parts from the one the request had alone, it was a near tie.

A row of logits is not the same to the last bit whoever shares its decode: kernels differ by the number of rows, and
sums by where in the common pool of cells the tokens of a sequence lie. How much that changes a logit of this model is
measured. A choice that turns out differently after no larger a change is a near tie, as in `pyspec.bench.lossless`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from soak_ledger import Parting
from soak_requests import Known

from pyspec._llama import Context, Model
from pyspec.bench.lossless import Row, can_flip, row_after, row_difference

N_CELLS = 256
N_PROMPT = 32


def logit_difference(model: Model, tokens: Sequence[int]) -> float:
    """Largest difference of any logit between one-token decoding alone and all that sharing an engine can mean.

    Args:
        tokens: a text of the model's, longer than a hundred tokens.
    """
    alone, shared = _rows(model, tokens[:N_CELLS], 0), _rows(model, tokens[:N_CELLS], N_CELLS - 2 * N_PROMPT)
    moved = max(float(np.abs(a - b).max()) for a, b in zip(alone, shared, strict=True))
    return max(moved, row_difference(model, tokens))


def _rows(model: Model, tokens: Sequence[int], n_others: int) -> list[Row]:
    """The text's logits in a pool of cells the first of which another sequence held, and left while it was written."""
    rows = []
    with Context(model, n_ctx=N_CELLS, n_seq_max=2, n_outputs_max=2, kv_unified=True) as context:
        if n_others:
            context.decode((list(tokens) * n_others)[:n_others], pos=0, seq_ids=1)
        context.decode(list(tokens[:N_PROMPT]), pos=0, seq_ids=0)
        context.memory.seq_rm(1, 0, -1)
        for pos, token in enumerate(tokens[N_PROMPT:], N_PROMPT):  # past the last cell it goes on with the freed ones
            context.decode([token], pos=[pos], seq_ids=0)
            rows.append(np.array(context.logits(0)))
    return rows


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
