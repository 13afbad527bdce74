"""Texts of like length side by side, in an order that a seed decides."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tools.train.states import States


@dataclass(frozen=True)
class Batch:
    """Texts side by side, filled up at the end.

    Attributes:
        tokens: ids (texts, n).
        features, final, best: as of States, with one dimension more.
        wanted: whether a token's successor is in the text, and of the target's making (texts, n).
    """

    tokens: Tensor
    features: Tensor
    final: Tensor
    best: Tensor
    wanted: Tensor


def batch_of(texts: Sequence[States]) -> Batch:
    n = max(len(text.tokens) for text in texts)

    def filled(name: str) -> Tensor:
        rows = [torch.from_numpy(getattr(text, name)) for text in texts]
        return torch.stack([torch.cat((row, row.new_zeros(n - len(row), *row.shape[1:]))) for row in rows])

    at = torch.arange(n)
    wanted = torch.stack([(at >= text.n_prompt - 1) & (at < len(text.tokens) - 1) for text in texts])
    return Batch(filled("tokens"), filled("features").float(), filled("final").float(), filled("best"), wanted)


class Batches:
    """All texts once an epoch, in batches of about `rows` tokens.

    Args:
        texts: to learn from.
        rows: tokens of a batch.
        seed: of the order; each epoch has another.
    """

    def __init__(self, texts: Sequence[States], rows: int, seed: int) -> None:
        self.texts, self.seed = texts, seed
        by_length = sorted(range(len(texts)), key=lambda i: len(texts[i].tokens))
        self.groups: list[list[int]] = [[]]
        for i in by_length:
            if (len(self.groups[-1]) + 1) * len(texts[i].tokens) > rows and self.groups[-1]:
                self.groups.append([])
            self.groups[-1].append(i)

    def __len__(self) -> int:
        return len(self.groups)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from the start-th on."""
        order = random.Random(self.seed + number).sample(self.groups, len(self.groups))
        for group in order[start:]:
            yield batch_of([self.texts[i] for i in group])
