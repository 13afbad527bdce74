"""The target's weights that a draft starts from, as tensors: embeddings, the last norm, the last layer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gguf
import torch
from torch import Tensor

LAYER = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")


@dataclass(frozen=True)
class Target:
    """Weights of a llama model whose output head is its embeddings.

    Attributes:
        embeddings: (vocabulary, width).
        output_norm: (width).
        last_layer: by name, shapes as torch has them: (out, in).
    """

    embeddings: Tensor
    output_norm: Tensor
    last_layer: dict[str, Tensor]


def read_target(path: Path) -> Target:
    """Reads a GGUF file, whatever its number format."""
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    if "output.weight" in tensors:
        raise ValueError(f"{path} has an output head of its own (output.weight), which these drafts don't start from")
    last = max(int(name.split(".")[1]) for name in tensors if name.startswith("blk."))

    def read(name: str) -> Tensor:
        return torch.from_numpy(gguf.dequantize(tensors[name].data, tensors[name].tensor_type).copy())

    return Target(
        embeddings=read("token_embd.weight"),
        output_norm=read("output_norm.weight"),
        last_layer={name: read(f"blk.{last}.{name}.weight") for name in LAYER},
    )
