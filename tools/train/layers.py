"""Parts of a llama layer, as libllama computes them: RMS norms, rotary positions on neighbours, gated units."""

from __future__ import annotations

import torch
from torch import Tensor, nn

EPSILON = 1e-5


class Norm(nn.Module):
    """Division by the root mean square, then a weight for each number."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        x = x.float()
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON) * self.weight


class FeedForward(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class Projections(nn.Module):
    """Queries, keys and values with their positions, and the way back.

    Args:
        n_in: width of what is read.
        width: of what is written.
        n_head, n_head_kv, head: query heads, key and value heads, numbers of a head.
        base: of the rotation's wavelengths.
    """

    def __init__(self, n_in: int, width: int, n_head: int, n_head_kv: int, head: int, base: float) -> None:
        super().__init__()
        self.n_head, self.n_head_kv, self.head = n_head, n_head_kv, head
        self.q = nn.Linear(n_in, n_head * head, bias=False)
        self.k = nn.Linear(n_in, n_head_kv * head, bias=False)
        self.v = nn.Linear(n_in, n_head_kv * head, bias=False)
        self.o = nn.Linear(n_head * head, width, bias=False)
        self.register_buffer("frequencies", base ** (-torch.arange(0, head, 2) / head), persistent=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of x (texts, n, n_in), at positions 0 to n - 1: queries, keys, values, (texts, n_head, n, head) each."""
        q, k, v = (f(x).unflatten(-1, (-1, self.head)).transpose(1, 2) for f in (self.q, self.k, self.v))
        groups = self.n_head // self.n_head_kv
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        return self.rotated(q), self.rotated(k), v

    def rotated(self, x: Tensor) -> Tensor:
        angles = torch.arange(x.shape[-2]).float()[:, None] * self.frequencies
        cos, sin = angles.cos(), angles.sin()
        even, odd = x[..., ::2].float(), x[..., 1::2].float()
        turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1)
        return turned.flatten(-2).to(x.dtype)

    def back(self, x: Tensor) -> Tensor:
        return self.o(x.transpose(1, 2).flatten(-2))


def masked_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Of a distribution, given by logits, to that of the target's logits, averaged over rows."""
    return -(target.float().softmax(-1) * logits.float().log_softmax(-1)).sum(-1).mean()
