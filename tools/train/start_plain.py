"""Where the plain draft starts: at what least squares finds, layer by layer.

The first two layers' heads look at the tokens one, two and three places back: queries and keys are made of a number
that is the same in all embeddings, and turned by the distance. The others' queries and keys are random. So are
feed-forward units, but for some that are linear, because the same number opens their gates. The outputs of both are
then fitted to the state from which the embeddings give the target's logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tools.train.fit import Fit
from tools.train.states import States

if TYPE_CHECKING:
    from tools.train.plain import Layer, Plain

BACK = ((1, 2, 1, 3), (1, 2, 1, 3))  # places, by layer and head
PAIRS = 12  # of the rotation, which tell places apart
AMPLITUDE = 40.0  # of queries times keys


@torch.no_grad()
def start_plain(model: Plain, texts: Sequence[States]) -> None:
    """Gives a model its first weights.

    Args:
        model: the model, its embeddings made; the last number of each is the same.
        texts: to fit its outputs to.
    """
    constant = float(model.start[0, -1])
    for i, layer in enumerate(model.layers):
        a, f = layer.attention, layer.ffn
        for part in (a.q, a.k, a.v, f.gate, f.up):
            torch.nn.init.normal_(part.weight, std=part.in_features**-0.5)
        for part in (a.o, f.down):
            torch.nn.init.zeros_(part.weight)
        if i < len(BACK):
            look_back(layer, BACK[i], constant)
        if i == 0:
            n = model.shape.width
            f.gate.weight[:n] = 0
            f.gate.weight[:n, -1] = 2 / constant
            f.up.weight[:n] = torch.eye(n)
    for layer in model.layers:
        for part in (layer.attention.o, layer.ffn.down):
            fit, read = Fit(part.in_features, part.out_features), []
            hook = part.register_forward_pre_hook(lambda module, inputs, read=read: read.append(inputs[0][0]))
            for text in texts:
                read.clear()
                made = model.trunk(torch.from_numpy(text.tokens)[None], until=layer)[0]
                rows = slice(max(1, text.n_prompt - 1), None)
                fit.add(read[0][rows], (goal(model, text) - made)[rows])
            hook.remove()
            part.weight.copy_(fit.solve())
    sizes = torch.cat([reduced(model, text).square().mean(-1).sqrt() for text in texts])
    model.output_norm.weight.fill_(float(sizes.mean()))


def look_back(layer: Layer, places: Sequence[int], constant: float) -> None:
    """Heads that see the token so many places back, each."""
    a = layer.attention
    size = (AMPLITUDE**0.5) / constant
    for part in (a.q, a.k):
        part.weight.zero_()
    turns = a.frequencies[:PAIRS]
    for head, place in enumerate(places):
        at = head * a.head + torch.arange(PAIRS) * 2
        a.q.weight[at, -1] = size * (place * turns).cos()
        a.q.weight[at + 1, -1] = -size * (place * turns).sin()
    for head in range(a.n_head_kv):
        a.k.weight[head * a.head + torch.arange(PAIRS) * 2, -1] = size
        a.v.weight[head * a.head : (head + 1) * a.head] = 0
        n = torch.arange(a.head)
        a.v.weight[head * a.head + n, -2 - head * a.head - n] = 1  # the directions that tell tokens apart best


def reduced(model: Plain, text: States) -> Tensor:
    """The state from which the embeddings give the target's logits, nearly."""
    return torch.from_numpy(text.final).float() @ model.directions * model.scale


def goal(model: Plain, text: States) -> Tensor:
    state = reduced(model, text)
    return state * torch.rsqrt(state.square().mean(-1, keepdim=True))
