"""The EAGLE-3 head: one layer that reads a token and the hidden state before it, as libllama's graph has it.

Li et al., "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test" (2025): in
training, too, the head is fed its own hidden states, as many steps as it will draft.

Pair i of a text is token i + 1 with the state of token i, at position i; from it the head says what comes behind token
i + 1. In step k the state is what the head itself made k times on from the target's state of token i - k.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tools.train.batches import Batch
from tools.train.layers import FeedForward, Norm, Projections
from tools.train.target import Target

WEIGHTS = (1.0, 0.8, 0.6)  # of the steps, in the loss


@dataclass(frozen=True)
class Shape:
    width: int = 576
    n_head: int = 9
    n_head_kv: int = 9
    head: int = 64
    inner: int = 1536
    base: float = 100_000.0


class Eagle3(nn.Module):
    """The head's trained parts; the target's embeddings, and the rows of its output head, stay as they are.

    Args:
        shape: its sizes.
        target: weights of the target.
        drafted: ids of the tokens it can propose.
        whitening: what the features are multiplied by first (3 * width, 3 * width), so that they are of one size and
            hardly tell of each other. Some are hundreds of times as large as others, and many go together: a step that
            is right for one weight would be far too large for all of them. In the file it is a part of `fc`.
    """

    def __init__(self, shape: Shape, target: Target, drafted: list[int], whitening: Tensor) -> None:
        super().__init__()
        self.shape = shape
        w = shape.width
        self.fc = nn.Linear(3 * w, w, bias=False)
        self.token_norm, self.state_norm, self.ffn_norm, self.output_norm = (Norm(w) for _ in range(4))
        self.attention = Projections(2 * w, w, shape.n_head, shape.n_head_kv, shape.head, shape.base)
        self.ffn = FeedForward(w, shape.inner)
        ids = torch.tensor(drafted)
        self.register_buffer("drafted", ids)
        self.register_buffer("whitening", whitening)
        self.register_buffer("embeddings", target.embeddings, persistent=False)
        self.register_buffer("head", target.embeddings[ids].clone(), persistent=False)
        places = torch.full((len(target.embeddings),), -1)
        places[ids] = torch.arange(len(ids))
        self.register_buffer("places", places, persistent=False)

    def whitened(self, features: Tensor) -> Tensor:
        """Features as `fc` reads them."""
        return features.float() @ self.whitening

    def states(self, tokens: Tensor, features: Tensor, n_steps: int) -> list[Tensor]:
        """What the layer makes of each pair in each step: (texts, n - 1, width), before the last norm.

        Args:
            tokens: ids (texts, n).
            features: of the target (texts, n, 3 * width).
            n_steps: of drafting; in step k the rows before the k-th mean nothing.
        """
        embedded = self.token_norm(self.embeddings[tokens[:, 1:]])
        state = self.fc(self.whitened(features[:, :-1]))
        n = state.shape[1]
        at = torch.arange(n)
        keys: list[Tensor] = []
        values: list[Tensor] = []
        made = []
        for k in range(n_steps):
            if k > 0:
                state = later(made[-1], 1)
            q, key, value = self.attention(torch.cat((embedded, self.state_norm(state)), -1))
            keys.append(key)
            values.append(value)
            seen = at[None, :] <= at[:, None] - k
            scores = (q @ keys[0].transpose(-1, -2)).float().masked_fill(~seen, -1e30)
            # Of later steps each pair sees one key a step: that of its own draft.
            own = [(q * later(keys[s], k - s, 2)).float().sum(-1, keepdim=True) for s in range(1, k + 1)]
            weights = (torch.cat((scores, *own), -1) * self.shape.head**-0.5).softmax(-1).to(value.dtype)
            read = weights[..., :n] @ values[0]
            for s in range(1, k + 1):
                read = read + weights[..., n + s - 1, None] * later(values[s], k - s, 2)
            state = state + self.attention.back(read)
            made.append(state + self.ffn(self.ffn_norm(state)))
        return made

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        """The cross entropy to the target's distribution in each step, and what would be accepted."""
        wanted = batch.wanted[:, 1:]
        rows = torch.arange(wanted.shape[1])
        with torch.no_grad():
            goals = (batch.final[:, 1:][wanted].to(self.head.dtype) @ self.head.T).float().softmax(-1)
        total = torch.zeros(())
        hits = []
        for k, made in enumerate(self.states(batch.tokens, batch.features, len(WEIGHTS))):
            counts = wanted & (rows >= k)
            logits = self.output_norm(made[counts]).to(self.head.dtype) @ self.head.T
            goal = goals if k == 0 else goals[counts[wanted]]
            total = total + WEIGHTS[k] * nn.functional.cross_entropy(logits.float(), goal)
            hit = torch.zeros(counts.shape, dtype=torch.bool)
            hit[counts] = logits.argmax(-1) == self.places[batch.best[:, 1:][counts]]
            hits.append(hit)
        return total / sum(WEIGHTS), accepted(hits, wanted)


def later(x: Tensor, steps: int, dim: int = 1) -> Tensor:
    """x with its rows moved towards the end; zeros come in at the beginning."""
    if steps == 0:
        return x
    kept = x.narrow(dim, 0, x.shape[dim] - steps)
    return torch.cat((torch.zeros_like(x.narrow(dim, 0, steps)), kept), dim)


def accepted(hits: list[Tensor], wanted: Tensor) -> dict[str, float]:
    """The share of first proposals that are right, and how many of a draft would be accepted on average.

    As if a draft started behind each token: where drafts really start, behind one that was not foreseen, it is less.
    """
    n_steps, n = len(hits), hits[0].shape[1]
    starts = wanted[:, : n - n_steps + 1] & wanted[:, n_steps - 1 :]
    run = torch.ones_like(starts)
    total = 0.0
    for k, hit in enumerate(hits):
        run = run & hit[:, k : n - n_steps + 1 + k]
        total += float(run[starts].float().mean())
    return {"right": float(hits[0][wanted].float().mean()), "accepted": total}
