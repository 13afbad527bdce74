"""tiny-mtp in PyTorch: what libllama computes for a dense step35 with NextN layers, see mtp_train.py.

The trunk reads tokens. NextN layer k (from 0) reads, at position p, token p and a hidden state of position p - 1, and
says token p + 1, like the trunk, but without having read token p: that is what makes it a draft. Layer 0's hidden state
is the trunk's. When k tokens have been drafted since the trunk last read, layer k's is that of layer k - 1, and so are
those of the drafted positions before it; further back it is the trunk's, whatever the layer. So a layer's keys and
values at distance d < k from its position are those of drafted states, and all others those of the trunk's. It is
trained on just that (after Zhang et al., "HASS", 2024, and Li et al., "EAGLE-3", 2025).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Shape:
    """Sizes of the model, under the names of GGUF's keys where it has them."""

    n_vocab: int = 1536
    n_embd: int = 160
    n_layer: int = 4
    n_nextn: int = 3
    n_head: int = 5
    n_head_kv: int = 1
    n_head_dim: int = 32
    n_ff: int = 448
    n_ctx: int = 512
    eps: float = 1e-5
    freq_base: float = 10000.0

    def windowed(self, layer: int) -> bool:
        """Whether a layer is one with a sliding window; that is as long as the context, but turns all dimensions."""
        return layer % 2 == 1


class Layer(nn.Module):
    """Attention and a feed-forward network."""

    def __init__(self, shape: Shape, index: int) -> None:
        super().__init__()
        self.shape = shape
        n, head = shape.n_embd, shape.n_head_dim
        self.attn_norm = nn.RMSNorm(n, shape.eps)
        self.attn_q = nn.Linear(n, shape.n_head * head, bias=False)
        self.attn_k = nn.Linear(n, shape.n_head_kv * head, bias=False)
        self.attn_v = nn.Linear(n, shape.n_head_kv * head, bias=False)
        self.attn_q_norm = nn.RMSNorm(head, shape.eps)
        self.attn_k_norm = nn.RMSNorm(head, shape.eps)
        self.attn_output = nn.Linear(shape.n_head * head, n, bias=False)
        self.ffn_norm = nn.RMSNorm(n, shape.eps)
        self.ffn_gate = nn.Linear(n, shape.n_ff, bias=False)
        self.ffn_up = nn.Linear(n, shape.n_ff, bias=False)
        self.ffn_down = nn.Linear(shape.n_ff, n, bias=False)
        n_rot = head if shape.windowed(index) else head // 2
        turns = shape.freq_base ** (-torch.arange(0, n_rot, 2) / n_rot)
        angles = torch.outer(torch.arange(shape.n_ctx), turns)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def rotate(self, x: Tensor) -> Tensor:
        """Rotary embeddings of (batch, heads, position, number), the first dimensions only, halves paired."""
        n = x.shape[2]
        half = self.cos.shape[1]
        cos, sin = self.cos[:n], self.sin[:n]
        a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        return torch.cat((a * cos - b * sin, a * sin + b * cos, rest), -1)

    def keys_and_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Of every position, for all heads."""
        batch, n, _ = x.shape
        x = self.attn_norm(x)
        k = self.attn_k(x).view(batch, n, self.shape.n_head_kv, -1).transpose(1, 2)
        v = self.attn_v(x).view(batch, n, self.shape.n_head_kv, -1).transpose(1, 2)
        repeats = self.shape.n_head // self.shape.n_head_kv
        return self.rotate(self.attn_k_norm(k)).repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)

    def queries(self, x: Tensor) -> Tensor:
        batch, n, _ = x.shape
        q = self.attn_q(self.attn_norm(x)).view(batch, n, self.shape.n_head, -1).transpose(1, 2)
        return self.rotate(self.attn_q_norm(q))

    def onwards(self, x: Tensor, attended: Tensor) -> Tensor:
        """From what attention has found to the layer's output."""
        x = x + self.attn_output(attended.transpose(1, 2).flatten(2))
        y = self.ffn_norm(x)
        return x + self.ffn_down(functional.silu(self.ffn_gate(y)) * self.ffn_up(y))

    def forward(self, x: Tensor) -> Tensor:
        k, v = self.keys_and_values(x)
        return self.onwards(x, functional.scaled_dot_product_attention(self.queries(x), k, v, is_causal=True))


class NextN(nn.Module):
    """A NextN layer: joins a token and the hidden state before it."""

    def __init__(self, shape: Shape, index: int) -> None:
        super().__init__()
        self.enorm = nn.RMSNorm(shape.n_embd, shape.eps)
        self.hnorm = nn.RMSNorm(shape.n_embd, shape.eps)
        self.eh_proj = nn.Linear(2 * shape.n_embd, shape.n_embd, bias=False)
        self.layer = Layer(shape, index)

    def join(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        """(batch, position, number): the tokens, and the states of the same positions, which are moved on by one."""
        before = functional.pad(hidden, (0, 0, 1, 0))[:, :-1]
        return self.eh_proj(torch.cat((self.enorm(embedded), self.hnorm(before)), -1))

    def forward(self, embedded: Tensor, states: list[Tensor]) -> Tensor:
        """The hidden states of this layer.

        Args:
            embedded: the tokens.
            states: the trunk's hidden states, then those of the NextN layers before this one.
        """
        inputs = [self.join(embedded, state) for state in states]
        k, v = self.layer.keys_and_values(inputs[0])
        x = inputs[-1]
        if len(inputs) == 1:
            attended = functional.scaled_dot_product_attention(self.layer.queries(x), k, v, is_causal=True)
            return self.layer.onwards(x, attended)
        # Position p sees the trunk's states up to p - k, and at p - k + i the state that layer i - 1 has drafted.
        n, depth = x.shape[1], len(inputs) - 1
        q = self.layer.queries(x) / self.layer.shape.n_head_dim**0.5
        scores = q @ k.transpose(-1, -2)
        seen = torch.ones(n, n, dtype=torch.bool, device=x.device).tril(-depth)
        near = [self.layer.keys_and_values(inputs[i]) for i in range(1, depth + 1)]
        near = [(_delayed(a, depth - i), _delayed(b, depth - i)) for i, (a, b) in enumerate(near, 1)]
        columns = []
        for i, (a, _) in enumerate(near, 1):
            column = (q * a).sum(-1, keepdim=True)
            column[:, :, : depth - i] = float("-inf")  # before the text
            columns.append(column)
        weights = torch.cat((scores.masked_fill(~seen, float("-inf")), *columns), -1).softmax(-1)
        attended = weights[..., :n] @ v
        for i, (_, b) in enumerate(near):
            attended = attended + weights[..., n + i, None] * b
        return self.layer.onwards(x, attended)


def _delayed(x: Tensor, by: int) -> Tensor:
    """(batch, heads, position, number): at each position what was `by` positions before."""
    return functional.pad(x, (0, 0, by, 0))[:, :, : x.shape[2]]


class TinyMTP(nn.Module):
    """The trunk, the NextN layers, and the embeddings, norm and output head they share."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(shape.n_vocab, shape.n_embd)
        self.layers = nn.ModuleList(Layer(shape, i) for i in range(shape.n_layer))
        self.nextn = nn.ModuleList(NextN(shape, shape.n_layer + i) for i in range(shape.n_nextn))
        self.output_norm = nn.RMSNorm(shape.n_embd, shape.eps)
        self.output = nn.Linear(shape.n_embd, shape.n_vocab, bias=False)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                deep = name.endswith(("attn_output.weight", "ffn_down.weight"))
                nn.init.normal_(weight, std=0.5 if "token_embd" in name else 0.02 if deep else weight.shape[1] ** -0.5)

    def states(self, tokens: Tensor) -> list[Tensor]:
        """The hidden states of the trunk and of each NextN layer, as the output head gets them before its norm.

        Args:
            tokens: (batch, position).
        """
        embedded = self.token_embd(tokens)
        x = embedded
        for layer in self.layers:
            x = layer(x)
        states = [x]
        for nextn in self.nextn:
            states.append(nextn(embedded, states))
        return states

    def logits(self, state: Tensor) -> Tensor:
        return self.output(self.output_norm(state))
