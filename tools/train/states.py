"""What a draft learns from: the target's hidden states along its own texts, read through the package's getters.

Of every token: the inputs of the layers an EAGLE-3 head reads, the state that the output head reads (from which the
target's distribution follows), and the token the target likes best. In float16, a file per block of texts, made once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pyspec import Model, models
from pyspec._llama import Batch, Context
from tools.train.collect import Text
from tools.train.progress import Bar

BLOCK = 20  # texts a file
ARRAYS = ("features", "final", "best")


@dataclass(frozen=True)
class States:
    """A text and what the target makes of it, a row a token.

    Attributes:
        tokens: ids, int64 (n).
        n_prompt: how many of them are the prompt.
        features: inputs of the layers, side by side: float16 (n, 3 * width).
        final: what the output head reads: float16 (n, width).
        best: the id with the largest logit behind each token: int64 (n).
    """

    tokens: npt.NDArray[np.int64]
    n_prompt: int
    features: npt.NDArray[np.float16]
    final: npt.NDArray[np.float16]
    best: npt.NDArray[np.int64]


def states(
    folder: Path, texts: Sequence[Text], *, target: str, layers: Sequence[int], n_threads: int
) -> list[States]:
    """The states of all texts, those that an earlier run has written to the folder read from there."""
    folder.mkdir(parents=True, exist_ok=True)
    found: list[States] = []
    reader: Reader | None = None
    with Bar("hidden states", len(texts)) as bar:
        for start in range(0, len(texts), BLOCK):
            block = texts[start : start + BLOCK]
            path = folder / f"{start:06}-{len(block)}.npz"
            if path.exists():
                read = _load(path, block)
            else:
                reader = reader or Reader(target, layers, n_threads)
                read = [reader.read(text) for text in block]
                _save(path, read)
            found += read
            bar.advance(len(block))
    if reader is not None:
        reader.close()
    return found


class Reader:
    """A target whose hidden states are kept, and one sequence of it.

    Args:
        target: a registered model or a file.
        layers: whose inputs are read.
        n_threads: of its decodes.
    """

    LONGEST = 1024

    def __init__(self, target: str, layers: Sequence[int], n_threads: int) -> None:
        self.layers = tuple(layers)
        self.model = Model(models.resolve(target))
        n = self.LONGEST
        self.context = Context(
            self.model, n_ctx=n, n_batch=n, n_ubatch=512, n_threads=n_threads, embeddings=True, pooling_type="none"
        )
        for layer in self.layers:
            self.context.set_embeddings_layer_inp(layer, True)

    def read(self, text: Text) -> States:
        context, tokens = self.context, text.tokens[: self.LONGEST]
        n = len(tokens)
        context.memory.seq_rm(0)
        batch = Batch(context)
        for i, token in enumerate(tokens):
            batch.add(token, i, 0, True)
        context.process(batch)
        features = [np.array(context.embeddings_layer_inp(layer)[:n], np.float16) for layer in self.layers]
        return States(
            tokens=np.array(tokens, np.int64),
            n_prompt=len(text.prompt),
            features=np.concatenate(features, axis=1),
            final=np.array([context.embeddings(i) for i in range(n)], np.float16),
            best=np.array([context.logits(i).argmax() for i in range(n)], np.int64),
        )

    def close(self) -> None:
        self.context.close()
        self.model.close()


def _save(path: Path, block: Sequence[States]) -> None:
    temporary = path.with_suffix(".part")
    with temporary.open("wb") as file:
        np.savez(file, **{name: np.concatenate([getattr(s, name) for s in block]) for name in ARRAYS})
    temporary.replace(path)


def _load(path: Path, texts: Sequence[Text]) -> list[States]:
    with np.load(path) as data:
        arrays = {name: data[name] for name in ARRAYS}
    ends = np.cumsum([len(text.tokens[: Reader.LONGEST]) for text in texts])
    return [
        States(np.array(text.tokens[: Reader.LONGEST], np.int64), len(text.prompt),
               **{name: array[end - len(text.tokens[: Reader.LONGEST]) : end] for name, array in arrays.items()})
        for text, end in zip(texts, ends, strict=True)
    ]  # fmt: skip
