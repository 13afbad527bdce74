"""A small llama with the target's vocabulary, which learns the target's distributions (distillation).

Its embeddings, which are its output head too, start as the target's in the directions in which those differ most. Only
the rows of tokens that the target often writes are trained; of the others some are drawn for each step, so that the
model learns not to say them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tools.train.batches import Batch
from tools.train.eagle3 import accepted
from tools.train.layers import FeedForward, Norm, Projections, masked_cross_entropy
from tools.train.target import Target

N_OTHERS = 1024  # tokens beside the trained ones in a step
CONSTANT = 3.0  # a number that is the same in all embeddings, where others are about 1


@dataclass(frozen=True)
class Shape:
    width: int = 256
    n_layer: int = 4
    n_head: int = 4
    n_head_kv: int = 2
    head: int = 64
    inner: int = 704
    base: float = 10_000.0


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        s = shape
        self.attn_norm, self.ffn_norm = Norm(s.width), Norm(s.width)
        self.attention = Projections(s.width, s.width, s.n_head, s.n_head_kv, s.head, s.base)
        self.ffn = FeedForward(s.width, s.inner)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.attention(self.attn_norm(x))
        x = x + self.attention.back(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))
        return x + self.ffn(self.ffn_norm(x))


class Plain(nn.Module):
    """The model.

    Args:
        shape: its sizes.
        target: weights of the target.
        counts: how often each token was written; the embeddings' directions are chosen for those that were.
        trained: ids whose embeddings are trained.
    """

    def __init__(self, shape: Shape, target: Target, counts: Tensor, trained: list[int]) -> None:
        super().__init__()
        self.shape = shape
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.n_layer))
        self.output_norm = Norm(shape.width)
        directions = principal(target.embeddings, counts.sqrt() + 0.1, shape.width - 1)
        small = target.embeddings @ directions
        scale = small.square().mean().sqrt()
        small = torch.cat((small / scale, torch.full((len(small), 1), CONSTANT)), -1)
        ids = torch.tensor(trained)
        self.rows = nn.Parameter(small[ids])
        self.register_buffer("start", small, persistent=False)
        self.register_buffer("directions", nn.functional.pad(directions, (0, 1)), persistent=False)
        self.scale = float(scale)
        self.register_buffer("trained", ids)
        places = torch.full((len(small),), -1)
        places[ids] = torch.arange(len(ids))
        self.register_buffer("places", places, persistent=False)
        self.register_buffer("others", (places < 0).nonzero()[:, 0], persistent=False)
        self.register_buffer("target_head", target.embeddings, persistent=False)

    def embeddings(self) -> Tensor:
        """Of all tokens: (vocabulary, width)."""
        return self.start.index_put((self.trained,), self.rows)

    def states(self, tokens: Tensor) -> Tensor:
        """What the output head reads, for tokens (texts, n)."""
        return self.output_norm(self.trunk(tokens))

    def trunk(self, tokens: Tensor, until: Layer | None = None) -> Tensor:
        """What leaves a layer, or the last one."""
        places = self.places[tokens]
        x = torch.where((places >= 0)[..., None], self.rows[places.clamp(min=0)], self.start[tokens])
        for layer in self.layers:
            x = layer(x)
            if layer is until:
                break
        return x

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        """The cross entropy to the target's distribution, and what would be accepted."""
        others = self.others[torch.randint(len(self.others), (N_OTHERS,))]
        states = self.states(batch.tokens)[batch.wanted]
        head = torch.cat((self.rows, self.start[others]))
        logits = states @ head.T
        with torch.no_grad():
            goal = batch.final[batch.wanted] @ self.target_head[torch.cat((self.trained, others))].T
        hit = torch.zeros(batch.wanted.shape, dtype=torch.bool)
        hit[batch.wanted] = logits.argmax(-1) == self.places[batch.best[batch.wanted]]
        return masked_cross_entropy(logits, goal), accepted([hit] * 3, batch.wanted)


def principal(rows: Tensor, weights: Tensor, n: int) -> Tensor:
    """The n directions that keep most of the weighted rows' squares: (width, n), orthonormal."""
    weighted = rows * weights[:, None]
    _, vectors = torch.linalg.eigh(weighted.T @ weighted)
    return vectors[:, -n:]
