"""Whether libllama computes from a written file what the training code does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pyspec import Model
from pyspec._llama import Batch, Context
from tools.train.batches import batch_of
from tools.train.eagle3 import Eagle3
from tools.train.plain import Plain
from tools.train.states import Reader, States

# A memory in 32-bit floats.
EXACT: dict[str, Any] = {
    "n_ctx": 1024, "n_batch": 1024, "n_threads": 1, "flash_attn": "off", "type_k": "f32", "type_v": "f32",
}  # fmt: skip


def eagle3_difference(path: Path, head: Eagle3, text: States, reader: Reader) -> float:
    """The largest difference of a logit, in units of the logits' spread, along one text in the first step.

    Args:
        path: the file, in 32-bit floats for a difference that is nothing but rounding.
        head: the trained one.
        text: what it reads.
        reader: the target whose embeddings the file borrows.
    """
    n = len(text.tokens) - 1
    with torch.no_grad():
        batch = batch_of([text])
        made = head.states(batch.tokens, batch.features, 1)[0][0]
        expected = (head.output_norm(made) @ head.head.T).numpy()
    with Model(str(path)) as model, Context(model, ctx_other=reader.context, **EXACT) as context:
        context.set_embeddings_nextn(True)
        rows = Batch(context)
        for i in range(n):
            rows.add_embd(text.features[i].astype(np.float32), i, 0)
        context.encode(rows)
        states = [np.array(context.embeddings_nextn(i)) for i in range(n)]
        rows.clear()
        for i in range(n):
            rows.add(int(text.tokens[i + 1]), i, 0, True)
            rows.set_embd_token(i, states[i])
        context.process(rows)
        found = np.array([context.logits(i)[head.drafted.numpy()] for i in range(n)])
    return _difference(found, expected)


def plain_difference(path: Path, trained: Plain, text: States) -> float:
    """The same of a plain model."""
    n = len(text.tokens)
    with torch.no_grad():
        expected = (trained.states(torch.from_numpy(text.tokens)[None])[0] @ trained.embeddings().T).numpy()
    with Model(str(path)) as model, Context(model, **EXACT) as context:
        rows = Batch(context)
        for i, token in enumerate(text.tokens):
            rows.add(int(token), i, 0, True)
        context.process(rows)
        found = np.array([context.logits(i) for i in range(n)])
    return _difference(found, expected)


def _difference(found: npt.NDArray[np.float32], expected: npt.NDArray[np.float32]) -> float:
    return float(np.abs(found - expected).max() / expected.std())
