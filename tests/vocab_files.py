"""GGUF files that hold a vocabulary and nothing else, for tests that need no weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def spm_tokens(n: int) -> list[tuple[str, int]]:
    """Tokens of a SentencePiece vocabulary, (text, type) each: five special ones, the 256 bytes, words."""
    special = [
        ("<unk>", UNKNOWN),
        ("<s>", CONTROL),
        ("</s>", CONTROL),
        ("<pad>", UNUSED),
        ("<mask>", CONTROL),
    ]
    tokens = special + [(f"<0x{b:02X}>", BYTE) for b in range(256)]
    return [*tokens, *((f"\u2581w{i}", NORMAL) for i in range(n - len(tokens)))]


def write_vocab(
    path: Path,
    tokens: Sequence[tuple[str, int]],
    *,
    model: str = "llama",
    bos: int | None = 1,
    eos: int | None = 2,
    add_bos: bool = True,
    add_eos: bool = False,
    chat_template: str | None = None,
    suppress: Sequence[int] = (),
) -> Path:
    """Writes a vocabulary-only GGUF.

    Args:
        tokens: (text, type) of each token.
        model: ``"llama"`` (SentencePiece, type "spm") or ``"gpt2"`` (byte-level BPE, type "bpe").
        suppress: tokens that the model asks never to choose.
    """
    writer = gguf.GGUFWriter(str(path), "llama")
    for key, value in (("context_length", 512), ("embedding_length", 64), ("block_count", 1)):
        writer.add_uint32(f"llama.{key}", value)
    writer.add_uint32("llama.attention.head_count", 4)
    writer.add_uint32("llama.feed_forward_length", 64)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_tokenizer_model(model)
    writer.add_token_list([text for text, _ in tokens])
    writer.add_token_types([kind for _, kind in tokens])
    if model == "gpt2":
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_merges(["a b"])
    else:
        writer.add_token_scores([float(-i) for i in range(len(tokens))])
    optional: tuple[tuple[Any, Any], ...] = ((writer.add_bos_token_id, bos), (writer.add_eos_token_id, eos))
    for add, token in optional:
        if token is not None:
            add(token)
    writer.add_add_bos_token(add_bos)
    writer.add_add_eos_token(add_eos)
    if chat_template is not None:
        writer.add_chat_template(chat_template)
    if suppress:
        writer.add_array("tokenizer.ggml.suppress_tokens", list(suppress))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
