"""Where the EAGLE-3 head starts: at what least squares finds, which takes seconds where steps take minutes.

The states it hands on are in the space of what the target's head reads, before the last norm's weights. `fc` brings the
features there; then a map of that state and of the token's embedding foresees the next one. That map is put into the
attention: heads that see nothing but their own pair, because queries and keys are made of the embedding, and whose
values are a factor of the map. The other heads are those of the target's last layer. What the heads and the
feed-forward units, which are the target's too, give is then turned into the next state by least squares again: the
attention's output, and the units', the latter over all steps of a draft. At last what the outputs read is brought to
one size. (Some of the target's units give a thousand times as much as others; steps of one length for all weights then
do more harm than good.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from tools.train.fit import Fit
from tools.train.states import States
from tools.train.target import Target

if TYPE_CHECKING:
    from tools.train.eagle3 import Eagle3

N_OWN = 6  # heads that see their own pair
LEAST_SIZE = 0.01  # of independent mixtures of features, whose mean is 1, so much is added to each
SHARPNESS = 8.0  # of those: by how much their own pair outweighs others, as a logit


@torch.no_grad()
def start(head: Eagle3, target: Target, texts: Sequence[States]) -> None:
    """Gives a head its first weights.

    Args:
        head: the head.
        target: the target's weights.
        texts: to fit the maps to.
    """
    s, w, last = head.shape, head.shape.width, target.last_layer
    for norm in (head.token_norm, head.state_norm):
        norm.weight.fill_(1.0)
    head.ffn_norm.weight.copy_(last["ffn_norm"] / last["ffn_norm"].square().mean().sqrt())
    head.output_norm.weight.copy_(target.output_norm)

    features, goals = Fit(3 * w, w), Fit(2 * w, w)
    for text in texts:
        features.add(head.whitened(torch.from_numpy(text.features))[1:], goal(text, target)[1:])
    head.fc.weight.copy_(features.solve())
    for text in texts:
        state = head.fc(head.whitened(torch.from_numpy(text.features[:-1])))
        token = head.token_norm(head.embeddings[torch.from_numpy(text.tokens)[1:]])
        rows = slice(first_row(text), None)
        goals.add(torch.cat((token, head.state_norm(state)), -1)[rows], (goal(text, target)[1:] - state)[rows])
    _, sizes, right = torch.linalg.svd(goals.solve())
    n = N_OWN * s.head
    own, others = slice(0, n), slice(n, None)
    a = head.attention
    for part in (a.q, a.k, a.v):
        part.weight.normal_(std=0.01)
    same = torch.randn(n, w) * (SHARPNESS / w) ** 0.5 * s.head**-0.25
    for part in (a.q, a.k):
        part.weight[own, :w] += same
    a.v.weight[own] = sizes[:n].sqrt()[:, None] * right[:n]
    for name, part in (("attn_q", a.q), ("attn_k", a.k), ("attn_v", a.v)):
        rows = last[name].unflatten(0, (-1, s.head))
        rows = rows.repeat_interleave(s.n_head // len(rows), 0)[-(s.n_head - N_OWN) :].flatten(0, 1)
        part.weight[others, w:] += rows * last["attn_norm"] / last["attn_norm"].square().mean().sqrt()
    for name, part in (("ffn_gate", head.ffn.gate), ("ffn_up", head.ffn.up)):
        part.weight.copy_(last[name])
    head.ffn.down.weight.zero_()
    a.o.weight.zero_()
    for part, n_steps in ((a.o, 1), (head.ffn.down, 1), (head.ffn.down, 3)):
        refit(head, part, target, texts, n_steps)
    for part, source in ((a.o, a.v), (head.ffn.down, head.ffn.up)):
        balance(head, part, source, texts)


def refit(head: Eagle3, part: nn.Linear, target: Target, texts: Sequence[States], n_steps: int) -> None:
    """Gives one of the layer's outputs the weights with which the layer comes closest to the next states."""
    fit = Fit(part.in_features, part.out_features)
    for text, steps in runs(head, part, texts, n_steps):
        for k, (read, made) in enumerate(steps):
            rows = slice(first_row(text) + k, None)
            others = made - read @ part.weight.T
            fit.add(read[rows], (goal(text, target)[1:] - others)[rows])
    part.weight.copy_(fit.solve())


def balance(head: Eagle3, part: nn.Linear, source: nn.Linear, texts: Sequence[States]) -> None:
    """Makes each number that an output reads 1 in the root mean square. `source` makes them, in proportion."""
    squares, n = torch.zeros(part.in_features), 0
    for text, steps in runs(head, part, texts, 1):
        read = steps[0][0][first_row(text) :]
        squares += read.square().sum(0)
        n += len(read)
    sizes = (squares / n).sqrt().clamp(min=1e-4)
    source.weight /= sizes[:, None]
    part.weight *= sizes


def runs(
    head: Eagle3, part: nn.Linear, texts: Sequence[States], n_steps: int
) -> Iterator[tuple[States, list[tuple[Tensor, Tensor]]]]:
    """Lets the head draft along texts: of each what an output reads in each step, and what the layer makes of it."""
    read: list[Tensor] = []
    hook = part.register_forward_pre_hook(lambda module, inputs: read.append(inputs[0][0]))
    for text in texts:
        read.clear()
        made = head.states(torch.from_numpy(text.tokens)[None], torch.from_numpy(text.features)[None], n_steps)
        yield text, [(its, states[0]) for its, states in zip(read, made, strict=True)]
    hook.remove()


def whitening(texts: Sequence[States]) -> Tensor:
    """A matrix that makes features uncorrelated and of one size, but for what is nearly a mixture of others.

    The first token's are left out: some of them are out of all proportion.
    """
    products, n = torch.zeros(2 * [texts[0].features.shape[1]]), 0
    for text in texts:
        read = torch.from_numpy(text.features[1:]).float()
        products += read.T @ read
        n += len(read)
    scales = (products.diagonal() / n).sqrt()
    sizes, axes = torch.linalg.eigh(products / n / torch.outer(scales, scales))
    return (axes * (sizes.clamp(min=0.0) + LEAST_SIZE).rsqrt()) @ axes.T / scales[:, None]


def goal(text: States, target: Target) -> Tensor:
    """The states that the target's head reads, before the last norm's weights."""
    return torch.from_numpy(text.final).float() / target.output_norm


def first_row(text: States) -> int:
    """The first pair of a text that is learned from."""
    return max(1, text.n_prompt - 2)
