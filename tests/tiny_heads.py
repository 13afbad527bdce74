"""Tiny GGUF files of models with NextN layers, and of drafts that read a target's hidden states.

Random ones, like those of tiny_models; and *exact* ones, whose target goes from each token to a known next one, and
whose draft, reading nothing but the hidden state, proposes the token behind that, or a wrong one where it is told to.
With those a draft is accepted just where it should be, and no further, if and only if it gets the right hidden states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import tiny_models
from tiny_models import N_EMBD, N_VOCAB, Writer

MakeWriter = Callable[[Path, str, int], Writer]


def qwen35(path: Path, *, mtp: bool, writer: MakeWriter = Writer, n_vocab: int = N_VOCAB) -> None:
    """Recurrent and attention layers in turn; with `mtp` one NextN layer behind them."""
    n_layer, n_state, n_group, dt_rank, attention = 4, 32, 1, 2, {"n_head": 2, "n_head_kv": 1, "head": 32}
    key_dim, value_dim = n_state * n_group, n_state * dt_rank
    w = writer(path, "qwen35", 3)
    w.sizes(n_layer + mtp, **attention)
    w.array("rope.dimension_sections", [8, 8, 8, 8])
    w.u32(ssm__conv_kernel=4, ssm__state_size=n_state, ssm__group_count=n_group, ssm__time_step_rank=dt_rank)
    w.u32(ssm__inner_size=value_dim, full_attention_interval=2)
    if mtp:
        w.u32(nextn_predict_layers=1)
    w.test_vocab(n_vocab)
    w.ends(n_vocab, head=mtp)
    for i in range(n_layer + mtp):
        w.norm(f"blk.{i}.attn_norm.weight", f"blk.{i}.post_attention_norm.weight")
        if i < n_layer and i % 2 == 0:
            conv_dim = 2 * key_dim + value_dim
            w.tensor(f"blk.{i}.attn_qkv.weight", N_EMBD, conv_dim)
            w.tensor(f"blk.{i}.attn_gate.weight", N_EMBD, value_dim)
            w.tensor(f"blk.{i}.ssm_conv1d.weight", 4, conv_dim)
            w.tensor(f"blk.{i}.ssm_dt.bias", dt_rank)
            w.tensor(f"blk.{i}.ssm_a", dt_rank, like="decay")
            w.tensor(f"blk.{i}.ssm_beta.weight", N_EMBD, dt_rank)
            w.tensor(f"blk.{i}.ssm_alpha.weight", N_EMBD, dt_rank)
            w.norm(f"blk.{i}.ssm_norm.weight", n=n_state)
            w.tensor(f"blk.{i}.ssm_out.weight", value_dim, N_EMBD)
        else:
            w.attention(i, **attention, gated=True, norms=True)
        w.feed_forward(i)
        if i >= n_layer:
            w.nextn(i)
    w.close()


def step35(
    path: Path,
    *,
    n_nextn: int = 2,
    trunk: bool = True,
    window: int = 32,
    own_heads: bool = False,
    writer: MakeWriter = Writer,
    n_vocab: int = N_VOCAB,
) -> None:
    """Two layers and some NextN layers, every second with a sliding window.

    Without `trunk` there are the NextN layers alone; with `own_heads` they have output heads of their own.
    """
    n_layer, attention = 2, {"n_head": 2, "n_head_kv": 1, "head": 32}
    w = writer(path, "step35", 4)
    w.sizes(n_layer + n_nextn, **attention)
    w.u32(expert_feed_forward_length=96, nextn_predict_layers=n_nextn, attention__sliding_window=window)
    w.array("attention.sliding_window_pattern", [i % 2 for i in range(n_layer + n_nextn)])
    w.test_vocab(n_vocab)
    w.ends(n_vocab)
    for i in range(0 if trunk else n_layer, n_layer + n_nextn):
        w.dense_layer(i, **attention)
        if i >= n_layer:
            w.nextn(i)
        if i >= n_layer and own_heads:
            w.tensor(f"blk.{i}.nextn.shared_head_head.weight", N_EMBD, n_vocab)
    w.close()


def hy_v3(path: Path) -> None:
    """Two layers and two NextN layers, of which libllama can only use the first for drafting."""
    n_layer, n_nextn, attention = 2, 2, {"n_head": 2, "n_head_kv": 1, "head": 32}
    w = Writer(path, "hy_v3", 14)
    w.sizes(n_layer + n_nextn, **attention)
    w.u32(expert_feed_forward_length=96, nextn_predict_layers=n_nextn)
    w.test_vocab()
    w.ends()
    for i in range(n_layer + n_nextn):
        w.dense_layer(i, norms=True, **attention)
        if i >= n_layer:
            w.nextn(i)
    w.close()


def llama(path: Path, *, writer: MakeWriter = Writer, n_vocab: int = N_VOCAB) -> None:
    """A target of four layers."""
    w = writer(path, "llama", 1)
    w.sizes(4)
    w.test_vocab(n_vocab)
    w.ends(n_vocab)
    for i in range(4):
        w.dense_layer(i)
    w.close()


def eagle3(
    path: Path,
    *,
    layers: Sequence[int] = (0, 1, 3),
    n_target: int = N_EMBD,
    ends: bool = False,
    drafted: Sequence[int] | None = None,
    norm_before_residual: bool = False,
    norm_before_fc: bool = False,
    n_head: int = 4,
    n_layer: int = 1,
    writer: MakeWriter = Writer,
    n_vocab: int = N_VOCAB,
) -> None:
    """A draft for `llama`.

    Args:
        path: the file to write.
        layers: of the target whose inputs it reads.
        n_target: how wide it takes them to be.
        ends: whether it has embeddings and a head of its own; else the target's are borrowed.
        drafted: with a head of its own, the only tokens that has (d2t).
        norm_before_residual, norm_before_fc: the variants there are.
        n_head: of its attention.
        n_layer: what it says of its layers.
        writer: makes the tensors.
        n_vocab: tokens, as many as the target has.
    """
    w = writer(path, "eagle3", 5)
    head = N_EMBD // n_head
    n_head_kv = max(1, n_head // 2)
    w.sizes(n_layer, n_head=n_head, n_head_kv=n_head_kv, head=head)
    w.array("target_layers", list(layers))
    w.u32(target_hidden_size=n_target)
    if norm_before_residual:
        w.file.add_bool("eagle3.norm_before_residual", True)
    if norm_before_fc:
        w.file.add_bool("eagle3.norm_before_fc", True)
        w.norm("enc.output_norm.weight", n=3 * n_target)
    w.test_vocab(n_vocab)
    w.tensor("fc.weight", 3 * n_target, N_EMBD)
    w.norm("output_norm.weight")
    if ends:
        w.tensor("token_embd.weight", N_EMBD, n_vocab)
        w.tensor("output.weight", N_EMBD, n_vocab if drafted is None else len(drafted))
        if drafted is not None:
            w.data("d2t", np.array(drafted, np.int64))
    for i in range(n_layer):
        w.norm(f"blk.{i}.attn_norm.weight", f"blk.{i}.attn_norm_2.weight", f"blk.{i}.ffn_norm.weight")
        w.attention(i, n_head, n_head_kv, head, n_in=2 * N_EMBD)
        w.feed_forward(i)
    w.close()


def dflash(
    path: Path,
    *,
    markov: bool = False,
    confidence: bool = True,
    layers: Sequence[int] = (1, 3),
    block_size: int | None = 4,
    mask: int | None = N_VOCAB - 1,
    causal: bool = False,
    from_anchor: bool | None = None,
    drafted: Sequence[int] | None = None,
    writer: MakeWriter = Writer,
    n_vocab: int = N_VOCAB,
) -> None:
    """A block-diffusion draft for `llama`; with `markov` what llama.cpp calls DSpark.

    Args:
        path: the file to write.
        markov: whether it has a Markov head.
        confidence: and a confidence head.
        layers: of the target whose inputs it reads.
        block_size: what it says of its blocks; None: nothing.
        mask: the mask token; None: none.
        causal: whether a block's tokens see only those before them.
        from_anchor: whether the first row of a block is a proposal; None: not said.
        drafted: with a head of its own, the only tokens that has (d2t).
        writer: makes the tensors.
        n_vocab: tokens, as many as the target has.
    """
    w = writer(path, "dflash", 6)
    w.sizes(2)
    w.array("target_layers", list(layers))
    if block_size is not None:
        w.u32(block_size=block_size)
    if causal:
        w.file.add_bool("dflash.attention.causal", True)
    if from_anchor is not None:
        w.file.add_bool("dflash.sample_from_anchor", from_anchor)
    w.test_vocab(n_vocab, mask=mask)
    w.tensor("fc.weight", len(layers) * N_EMBD, N_EMBD)
    w.norm("enc.output_norm.weight", "output_norm.weight")
    if drafted is not None:
        w.tensor("token_embd.weight", N_EMBD, n_vocab)
        w.tensor("output.weight", N_EMBD, len(drafted))
        w.data("d2t", np.array(drafted, np.int64))
    for i in range(2):
        w.dense_layer(i, norms=True)
    if markov:
        w.tensor("markov_w1.weight", N_EMBD, n_vocab)
        w.tensor("markov_w2.weight", N_EMBD, n_vocab if drafted is None else len(drafted))
        w.file.add_bool("dflash.has_confidence_head", confidence)
        if confidence:
            w.tensor("conf_proj.weight", 2 * N_EMBD, 1)
            w.tensor("conf_proj.bias", 1)
    w.close()


# -- exact ones ------------------------------------------------------------------------------------------------------

N_EXACT = 64  # tokens; as many as numbers in a hidden state, so that each has a direction of its own
DIRECTIONS = np.linalg.qr(np.random.default_rng(30).standard_normal((N_EXACT, N_EMBD)))[0].astype(np.float32)


def next_token(token: int) -> int:
    """What an exact target says after a token."""
    return (5 * token + 7) % N_EXACT


def with_errors(wrong: Sequence[int]) -> list[int]:
    """What an exact draft takes to follow each token: what the target will say, but not after some tokens."""
    return [(next_token(t) + (t in wrong)) % N_EXACT for t in range(N_EXACT)]


def chain(token: int, n: int) -> list[int]:
    """The n tokens an exact target says after one."""
    said = []
    for _ in range(n):
        token = next_token(token)
        said.append(token)
    return said


class ExactWriter(Writer):
    """Weights with which a layer changes nothing, and the head says what a hidden state points at.

    A token is embedded as the direction of what follows it. What a draft does with a hidden state that points at a
    token is to turn it towards what follows that one.

    Args:
        follows: for each draft layer, what it takes to follow each token; one list for all, or one a layer.
        at: the first draft layer, among the file's layers.
    """

    def __init__(self, path: Path, arch: str, seed: int, *, follows: Sequence[Sequence[int]] = (), at: int = 0) -> None:
        super().__init__(path, arch, seed)
        self.follows = follows
        self.at = at

    def turn(self, layer: int) -> np.ndarray:
        """The matrix that turns each token's direction to that of what follows it."""
        follows = self.follows[min(layer - self.at, len(self.follows) - 1)]
        return DIRECTIONS[list(follows)].T @ DIRECTIONS

    def tensor(self, name: str, *ne: int, like: str = "weight") -> None:
        shape = tuple(reversed(ne))
        layer = int(name.split(".")[1]) if name.startswith("blk.") else -1
        same, zero = np.eye(N_EMBD), np.zeros((N_EMBD, N_EMBD))
        data: np.ndarray
        if like == "norm":
            data = np.ones(shape)
        elif name == "token_embd.weight":
            data = DIRECTIONS[[next_token(t) for t in range(N_EXACT)]]
        elif name == "output.weight":
            data = 4 * DIRECTIONS
        elif name.endswith("nextn.eh_proj.weight"):
            data = np.hstack((zero, self.turn(layer)))
        elif name == "fc.weight":
            data = np.hstack([same, *[zero] * (ne[0] // N_EMBD - 1)])
        elif self.arch == "eagle3" and name.endswith(("attn_q.weight", "attn_k.weight")):
            data = np.hstack((2 * same, zero))  # attends to the same token: itself
        elif self.arch == "eagle3" and name.endswith("attn_v.weight"):
            data = np.hstack((zero, 10 * self.turn(layer)))
        elif self.arch == "eagle3" and name.endswith("attn_output.weight"):
            data = same
        elif name == "markov_w1.weight":
            data = DIRECTIONS
        elif name == "markov_w2.weight":
            data = np.zeros((N_EXACT, N_EMBD))
            for token, follows in enumerate(self.follows[0]):
                data[follows] += 300 * DIRECTIONS[token]
        elif name.endswith(("attn_output.weight", "ffn_down.weight", "ssm_out.weight")):
            data = np.zeros(shape)
        else:
            super().tensor(name, *ne, like=like)
            return
        self.data(name, data.reshape(shape).astype(np.float32))

    def test_vocab(self, *args: object, **values: object) -> None:
        super().test_vocab(N_EXACT, eos=None, mask=N_EXACT - 1 if self.arch == "dflash" else None)


def exact(make: Callable[..., None], *follows: Sequence[int], at: int = 0, **options: object) -> Callable[[Path], None]:
    """The writer of an exact file; `follows` as for ExactWriter."""
    writer = partial(ExactWriter, follows=follows, at=at)
    return partial(make, writer=writer, n_vocab=N_EXACT, **options)


RIGHT = with_errors(())
WRONG_AFTER = tuple(range(0, N_EXACT, 5))
SOMETIMES = with_errors(WRONG_AFTER)
NEVER = with_errors(range(N_EXACT))

WRITERS: dict[str, Callable[[Path], None]] = {
    "qwen35": partial(qwen35, mtp=False),
    "qwen35-mtp": partial(qwen35, mtp=True),
    "step35": step35,
    "step35-one": partial(step35, n_nextn=1),
    "step35-nextn": partial(step35, n_nextn=2, trunk=False),
    "step35-wide": partial(step35, window=512),
    "step35-own-heads": partial(step35, own_heads=True),
    "hy-v3": hy_v3,
    "eagle3": eagle3,
    "eagle3-ends": partial(eagle3, ends=True),
    "eagle3-d2t": partial(eagle3, ends=True, drafted=range(3, 203, 2)),
    "eagle3-norms": partial(eagle3, norm_before_residual=True, norm_before_fc=True),
    "eagle3-last": partial(eagle3, layers=(0, 1, 2)),
    "dflash": dflash,
    "dflash-causal": partial(dflash, causal=True),
    "dflash-d2t": partial(dflash, drafted=range(3, 203, 2)),
    "dspark": partial(dflash, markov=True),
    "dspark-bonus": partial(dflash, markov=True, confidence=False, from_anchor=False),
    "exact-llama": exact(llama),
    "exact-step35": exact(step35, RIGHT, at=2, n_nextn=1, window=512),
    "exact-step35-errors": exact(step35, SOMETIMES, at=2, n_nextn=1, window=512),
    "exact-step35-never": exact(step35, NEVER, at=2, n_nextn=1, window=512),
    "exact-step35-heads": exact(step35, RIGHT, SOMETIMES, RIGHT, at=2, n_nextn=3, window=512),
    "exact-step35-nextn": exact(step35, RIGHT, at=2, n_nextn=1, trunk=False, window=512),
    "exact-qwen35": exact(qwen35, RIGHT, at=4, mtp=True),
    "exact-qwen35-errors": exact(qwen35, SOMETIMES, at=4, mtp=True),
    "exact-eagle3": exact(eagle3, RIGHT, n_head=1, norm_before_residual=True),
    "exact-eagle3-errors": exact(eagle3, SOMETIMES, n_head=1, norm_before_residual=True),
    "exact-dspark": exact(dflash, RIGHT, markov=True, confidence=False),
    "exact-dspark-errors": exact(dflash, SOMETIMES, markov=True, confidence=False),
}
tiny_models.WRITERS.update(WRITERS)
