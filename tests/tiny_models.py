"""Tiny GGUF files with random weights, one for every architecture and property a test needs (up to 900 KB).

    tiny("llama")                                   the fixture: path of a file, written once a session
    write_scripted(path, ["▁Hello", "<0xC3>", ...])  a model that writes just these tokens

Shapes and keys follow what libllama's loaders ask for; a file has exactly these tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

N_VOCAB = 256
N_EMBD = 64
N_CTX = 512

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
UNK, BOS, EOS, FIRST_BYTE, FIRST_PIECE = 0, 1, 2, 3, 259


class Writer:
    """A GGUF file under construction: metadata, vocabulary, random tensors."""

    def __init__(self, path: Path, arch: str, seed: int) -> None:
        self.arch = arch
        self.random = np.random.default_rng(seed)
        self.file = gguf.GGUFWriter(path, arch)

    def u32(self, **values: int) -> None:
        for key, value in values.items():
            self.file.add_uint32(f"{self.arch}.{key.replace('__', '.')}", value)

    def f32(self, **values: float) -> None:
        for key, value in values.items():
            self.file.add_float32(f"{self.arch}.{key.replace('__', '.')}", value)

    def array(self, key: str, values: Sequence[Any]) -> None:
        self.file.add_array(f"{self.arch}.{key}", values)

    def sizes(
        self,
        n_layer: int,
        n_head: int = 4,
        n_head_kv: int = 2,
        head: int = 16,
        n_ff: int = 96,
        n_embd: int = N_EMBD,
    ) -> None:
        """The keys every architecture has."""
        self.u32(context_length=N_CTX, embedding_length=n_embd, block_count=n_layer, feed_forward_length=n_ff)
        self.u32(attention__head_count=n_head)
        if n_head:
            self.u32(attention__head_count_kv=n_head_kv, attention__key_length=head, attention__value_length=head)
            self.u32(rope__dimension_count=head)
        self.f32(attention__layer_norm_rms_epsilon=1e-5)

    def test_vocab(
        self,
        n: int = N_VOCAB,
        bos: int | None = None,
        eos: int | None = 2,
        mask: int | None = None,
        texts: Callable[[int], str] = "tok_{}".format,
    ) -> None:
        """llama.cpp's vocabulary for tests: five bytes of text hash to a token, tokens print as numbers."""
        self.file.add_tokenizer_model("test")
        self.file.add_token_list([texts(i) for i in range(n)])
        self.file.add_token_scores([0.0] * n)
        if bos is not None:
            self.file.add_bos_token_id(bos)
        if eos is not None:
            self.file.add_eos_token_id(eos)
        if mask is not None:
            self.file.add_mask_token_id(mask)

    def spm_vocab(self, pieces: Sequence[str], controls: Sequence[str] = ()) -> int:
        """A SentencePiece vocabulary: <unk> <s> </s>, 256 byte tokens, `pieces`, then control tokens."""
        tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces, *controls]
        types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(pieces) + [CONTROL] * len(controls)
        self.file.add_tokenizer_model("llama")
        self.file.add_token_list(tokens)
        self.file.add_token_scores([-float(i) for i in range(len(tokens))])
        self.file.add_token_types(types)
        self.file.add_unk_token_id(UNK)
        self.file.add_bos_token_id(BOS)
        self.file.add_eos_token_id(EOS)
        self.file.add_add_bos_token(True)
        return len(tokens)

    def tensor(self, name: str, *ne: int, like: str = "weight") -> None:
        """A random tensor, its shape in ggml's order; `like` is weight, norm (about 1), decay (< 0) or zero."""
        shape = tuple(reversed(ne))
        noise = self.random.standard_normal(shape)
        data = {
            "weight": lambda: 0.1 * noise, "norm": lambda: 1 + 0.05 * noise,
            "decay": lambda: -np.abs(0.5 + 0.1 * noise), "zero": lambda: 0 * noise,
        }[like]()  # fmt: skip
        self.data(name, data.astype(np.float32))

    def data(self, name: str, data: np.ndarray) -> None:
        self.file.add_tensor(name, np.ascontiguousarray(data))

    def norm(self, *names: str, n: int = N_EMBD) -> None:
        for name in names:
            self.tensor(name, n, like="norm")

    def ends(self, n_vocab: int = N_VOCAB, head: bool = True, n_embd: int = N_EMBD) -> None:
        """Embeddings, the last norm and, unless it is tied, the output head."""
        self.tensor("token_embd.weight", n_embd, n_vocab)
        self.norm("output_norm.weight", n=n_embd)
        if head:
            self.tensor("output.weight", n_embd, n_vocab)

    def attention(self, i: int, n_head: int = 4, n_head_kv: int = 2, head: int = 16, *, n_in: int = N_EMBD,
                  gated: bool = False, norms: bool = False) -> None:  # fmt: skip
        self.tensor(f"blk.{i}.attn_q.weight", n_in, n_head * head * (2 if gated else 1))
        self.tensor(f"blk.{i}.attn_k.weight", n_in, n_head_kv * head)
        self.tensor(f"blk.{i}.attn_v.weight", n_in, n_head_kv * head)
        self.tensor(f"blk.{i}.attn_output.weight", n_head * head, N_EMBD)
        if norms:
            self.norm(f"blk.{i}.attn_q_norm.weight", f"blk.{i}.attn_k_norm.weight", n=head)

    def feed_forward(self, i: int, n_ff: int = 96) -> None:
        self.tensor(f"blk.{i}.ffn_gate.weight", N_EMBD, n_ff)
        self.tensor(f"blk.{i}.ffn_up.weight", N_EMBD, n_ff)
        self.tensor(f"blk.{i}.ffn_down.weight", n_ff, N_EMBD)

    def dense_layer(self, i: int, **attention: Any) -> None:
        """A layer of llama and of what looks like it."""
        self.norm(f"blk.{i}.attn_norm.weight", f"blk.{i}.ffn_norm.weight")
        self.attention(i, **attention)
        self.feed_forward(i)

    def nextn(self, i: int) -> None:
        """What turns layer `i` into a NextN layer."""
        self.tensor(f"blk.{i}.nextn.eh_proj.weight", 2 * N_EMBD, N_EMBD)
        self.norm(f"blk.{i}.nextn.enorm.weight", f"blk.{i}.nextn.hnorm.weight")

    def close(self) -> None:
        self.file.write_header_to_file()
        self.file.write_kv_data_to_file()
        self.file.write_tensors_to_file()
        self.file.close()


def llama(path: Path, *, seed: int = 1, n_layer: int = 4, head: bool = True, n_vocab: int = N_VOCAB,
          vocab: dict[str, Any] | None = None, head_size: int = 16) -> None:  # fmt: skip
    w = Writer(path, "llama", seed)
    sizes = {"n_head": N_EMBD // head_size, "n_head_kv": max(1, N_EMBD // head_size // 2), "head": head_size}
    w.sizes(n_layer, **sizes)
    w.test_vocab(n_vocab, **(vocab or {}))
    w.ends(n_vocab, head)
    for i in range(n_layer):
        w.dense_layer(i, **sizes)
    w.close()


def llama_wide(path: Path, *, head: bool) -> None:
    """Rows of 256 weights, as K-quants need them."""
    n = 256
    w = Writer(path, "llama", 22)
    w.sizes(1, n_ff=n, n_embd=n)
    w.test_vocab()
    w.ends(head=head, n_embd=n)
    w.norm("blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", n=n)
    for name, n_in, n_out in (("attn_q", n, 64), ("attn_k", n, 32), ("attn_v", n, 32), ("attn_output", 64, n)):
        w.tensor(f"blk.0.{name}.weight", n_in, n_out)
    for name in ("ffn_gate", "ffn_up", "ffn_down"):
        w.tensor(f"blk.0.{name}.weight", n, n)
    w.close()


def qwen2_biased(path: Path) -> None:
    """Its output head has a bias."""
    w = Writer(path, "qwen2", 23)
    w.sizes(2)
    w.test_vocab()
    w.ends()
    w.tensor("output.bias", N_VOCAB)
    for i in range(2):
        w.dense_layer(i)
    w.close()


WORDS = """
▁ e t a o n i s h r d l u w , . ! ? - ' ▁the ▁a ▁of ▁and ▁to he in er on an re ▁he ▁hello ▁world hello world
▁be ▁that ▁it ▁is ▁was ▁for ▁not ▁on ▁with th ▁th ▁w ▁h el lo or ld wor hel ▁o é ü ▁你 好 你 🙂
""".split()  # noqa: SIM905


def llama_spm(path: Path, *, seed: int = 11) -> None:
    """llama with a real vocabulary; <|im_end|> is one of its control tokens, and ends generation too."""
    w = Writer(path, "llama", seed)
    w.sizes(2)
    n_vocab = w.spm_vocab(WORDS, ["<|im_start|>", "<|im_end|>"])
    w.ends(n_vocab)
    for i in range(2):
        w.dense_layer(i)
    w.close()


def vocab_file(path: Path) -> None:
    """The vocabulary of `llama_spm` without weights."""
    w = Writer(path, "llama", 0)
    w.sizes(2)
    w.spm_vocab(WORDS, ["<|im_start|>", "<|im_end|>"])
    w.close()


def gemma3(path: Path) -> None:
    """Every second layer sees 32 positions only; the head is tied."""
    w = Writer(path, "gemma3", 8)
    w.sizes(4)
    w.u32(attention__sliding_window=32, attention__sliding_window_pattern=2)
    w.test_vocab()
    w.ends(head=False)
    for i in range(4):
        w.dense_layer(i, norms=True)
        w.norm(f"blk.{i}.post_attention_norm.weight", f"blk.{i}.post_ffw_norm.weight")
    w.close()


def mamba(path: Path) -> None:
    n_inner, n_state, dt_rank = 2 * N_EMBD, 16, 4
    w = Writer(path, "mamba", 7)
    w.sizes(2, n_head=0, n_ff=0)
    w.u32(ssm__conv_kernel=4, ssm__inner_size=n_inner, ssm__state_size=n_state, ssm__time_step_rank=dt_rank)
    w.test_vocab()
    w.ends()
    for i in range(2):
        w.norm(f"blk.{i}.attn_norm.weight")
        w.tensor(f"blk.{i}.ssm_in.weight", N_EMBD, 2 * n_inner)
        w.tensor(f"blk.{i}.ssm_conv1d.weight", 4, n_inner)
        w.tensor(f"blk.{i}.ssm_conv1d.bias", n_inner)
        w.tensor(f"blk.{i}.ssm_x.weight", n_inner, dt_rank + 2 * n_state)
        w.tensor(f"blk.{i}.ssm_dt.weight", dt_rank, n_inner)
        w.tensor(f"blk.{i}.ssm_dt.bias", n_inner)
        w.tensor(f"blk.{i}.ssm_a", n_state, n_inner, like="decay")
        w.tensor(f"blk.{i}.ssm_d", n_inner)
        w.tensor(f"blk.{i}.ssm_out.weight", n_inner, N_EMBD)
    w.close()


def bert(path: Path) -> None:
    """An encoder: no memory, every token sees every other, mean pooling."""
    w = Writer(path, "bert", 9)
    w.sizes(2, n_head=4, n_head_kv=4)
    w.f32(attention__layer_norm_epsilon=1e-5)
    w.file.add_bool("bert.attention.causal", False)
    w.u32(pooling_type=1)
    w.test_vocab(bos=1)
    w.file.add_token_type_count(2)
    w.tensor("token_embd.weight", N_EMBD, N_VOCAB)
    w.tensor("position_embd.weight", N_EMBD, N_CTX)
    w.tensor("token_types.weight", N_EMBD, 2)
    w.norm("token_embd_norm.weight")
    w.tensor("token_embd_norm.bias", N_EMBD)
    for i in range(2):
        w.attention(i, 4, 4)
        for name, n in (("attn_q", N_EMBD), ("attn_k", N_EMBD), ("attn_v", N_EMBD), ("attn_output", N_EMBD)):
            w.tensor(f"blk.{i}.{name}.bias", n)
        w.norm(f"blk.{i}.attn_output_norm.weight", f"blk.{i}.layer_output_norm.weight")
        w.tensor(f"blk.{i}.attn_output_norm.bias", N_EMBD)
        w.tensor(f"blk.{i}.layer_output_norm.bias", N_EMBD)
        w.tensor(f"blk.{i}.ffn_up.weight", N_EMBD, 96)
        w.tensor(f"blk.{i}.ffn_up.bias", 96)
        w.tensor(f"blk.{i}.ffn_down.weight", 96, N_EMBD)
        w.tensor(f"blk.{i}.ffn_down.bias", N_EMBD)
    w.close()


def t5(path: Path, *, encoder_only: bool = False) -> None:
    w = Writer(path, "t5encoder" if encoder_only else "t5", 10)
    w.sizes(1, n_head_kv=4)
    w.u32(attention__relative_buckets_count=32)
    if not encoder_only:
        w.u32(decoder_start_token_id=0)
    w.test_vocab()
    w.tensor("token_embd.weight", N_EMBD, N_VOCAB)
    for side in ("enc",) if encoder_only else ("enc", "dec"):
        w.norm(f"{side}.output_norm.weight", f"{side}.blk.0.attn_norm.weight", f"{side}.blk.0.ffn_norm.weight")
        w.tensor(f"{side}.blk.0.attn_rel_b.weight", 4, 32)
        for name in ("attn_q", "attn_k", "attn_v"):
            w.tensor(f"{side}.blk.0.{name}.weight", N_EMBD, N_EMBD)
        w.tensor(f"{side}.blk.0.attn_o.weight", N_EMBD, N_EMBD)
        if side == "dec":
            w.norm("dec.blk.0.cross_attn_norm.weight")
            for name in ("cross_attn_q", "cross_attn_k", "cross_attn_v", "cross_attn_o"):
                w.tensor(f"dec.blk.0.{name}.weight", N_EMBD, N_EMBD)
        w.tensor(f"{side}.blk.0.ffn_gate.weight", N_EMBD, 96)
        w.tensor(f"{side}.blk.0.ffn_up.weight", N_EMBD, 96)
        w.tensor(f"{side}.blk.0.ffn_down.weight", 96, N_EMBD)
    w.close()


def write_successor(path: Path, tokens: dict[str, Any], next_token: dict[int, int], *, n_embd: int = 128) -> None:
    """A llama whose most probable next token depends on the last one alone, by a wide margin.

    Args:
        path: the file to write.
        tokens: keyword arguments of ``Writer.spm_vocab``.
        next_token: what follows a token; ``t + 1`` where it does not say.
    """
    w = Writer(path, "llama", 12)
    w.sizes(1, n_head=4, n_head_kv=4, head=32, n_ff=32, n_embd=n_embd)
    n_vocab = w.spm_vocab(**tokens)
    # A token is embedded as what the head looks for in its successor's row.
    rows = w.random.standard_normal((n_vocab, n_embd)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    w.data("token_embd.weight", rows[[next_token.get(t, (t + 1) % n_vocab) for t in range(n_vocab)]])
    w.data("output_norm.weight", np.ones(n_embd, np.float32))
    w.data("output.weight", 3 * rows)
    w.tensor("blk.0.attn_norm.weight", n_embd, like="norm")
    w.tensor("blk.0.ffn_norm.weight", n_embd, like="norm")
    for name in ("attn_q", "attn_k", "attn_v"):
        w.tensor(f"blk.0.{name}.weight", n_embd, n_embd)
    w.tensor("blk.0.attn_output.weight", n_embd, n_embd, like="zero")
    w.tensor("blk.0.ffn_gate.weight", n_embd, 32)
    w.tensor("blk.0.ffn_up.weight", n_embd, 32)
    w.tensor("blk.0.ffn_down.weight", 32, n_embd, like="zero")
    w.close()


def write_scripted(path: Path, script: Sequence[str], *, ends: bool = True) -> list[int]:
    """A model that writes `script`, token by token, after any prompt that does not end in one of its tokens.

    Args:
        path: the file to write.
        script: pieces in SentencePiece's spelling ("▁word", "<0xE2>" for a byte); none twice.
        ends: whether the end-of-sequence token follows; otherwise the script starts again.

    Returns:
        The token ids of the script.
    """
    if len(set(script)) != len(script):
        raise ValueError("a piece can only appear once: what follows it depends on it alone")
    pieces = [piece for piece in script if not piece.startswith("<0x")]
    ids = {piece: FIRST_PIECE + i for i, piece in enumerate(pieces)}
    ids |= {f"<0x{byte:02X}>": FIRST_BYTE + byte for byte in range(256)}
    written = [ids[piece] for piece in script]
    next_token = dict.fromkeys(range(FIRST_PIECE + len(pieces)), written[0])
    next_token |= zip(written, [*written[1:], EOS if ends else written[0]], strict=True)
    write_successor(path, {"pieces": pieces}, next_token)
    return written


def _other_texts(i: int) -> str:
    return f"other_{i}" if i == 100 else f"tok_{i}"


WRITERS: dict[str, Callable[[Path], None]] = {
    "llama": llama,
    "llama-tied": lambda path: llama(path, seed=20, head=False),
    "llama-draft": lambda path: llama(path, seed=2, n_layer=2, head=False),
    "llama-head32": lambda path: llama(path, seed=21, head_size=32),
    "qwen2-biased": qwen2_biased,
    "llama-wide": lambda path: llama_wide(path, head=True),
    "llama-wide-tied": lambda path: llama_wide(path, head=False),
    "draft-other-size": lambda path: llama(path, seed=2, n_layer=2, n_vocab=N_VOCAB * 3),
    "draft-other-texts": lambda path: llama(path, seed=2, n_layer=2, vocab={"texts": _other_texts}),
    "draft-other-bos": lambda path: llama(path, seed=2, n_layer=2, vocab={"bos": 7}),
    "llama-spm": llama_spm,  # as a draft of the others: another type of vocabulary
    "vocab-only": vocab_file,
    "gemma3": gemma3,
    "mamba": mamba,
    "bert": bert,
    "t5": t5,
    "t5encoder": lambda path: t5(path, encoder_only=True),
    "successor": lambda path: write_successor(path, {"pieces": WORDS}, {}),
}


def write(name: str, folder: Path) -> Path:
    """The path of the tiny model `name` in `folder`, written unless it is there."""
    path = folder / f"{name}.gguf"
    if not path.exists():
        part = folder / f"{name}.part"
        WRITERS[name](part)
        part.rename(path)
    return path
