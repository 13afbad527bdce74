"""Trained weights as GGUF files: sizes, the target's tokenizer, tensors, quantized where that is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from torch import Tensor

from tools.train.eagle3 import Eagle3
from tools.train.plain import Plain

# Of the target's metadata: the tokenizer, but for what only chats need.
TOKENIZER = "tokenizer.ggml."
CONTEXT = 8192
Q8 = gguf.GGMLQuantizationType.Q8_0
Q4 = gguf.GGMLQuantizationType.Q4_0


class DraftFile:
    """A GGUF file under construction, with the tokenizer of its target.

    Args:
        path: the file to write.
        arch: libllama's name of the architecture.
        name: of the model.
        target: a GGUF file of the target.
    """

    def __init__(self, path: Path, arch: str, name: str, target: Path) -> None:
        self.arch = arch
        self.file = gguf.GGUFWriter(path, arch)
        self.file.add_name(name)
        self.file.add_license("apache-2.0")
        for key, field in gguf.GGUFReader(target).fields.items():
            if key.startswith(TOKENIZER):
                nested = field.types[1] if len(field.types) > 1 else None
                self.file.add_key_value(key, field.contents(), field.types[0], nested)

    def sizes(
        self, *, width: int, n_layer: int, inner: int, n_head: int, n_head_kv: int, head: int, base: float
    ) -> None:
        f = self.file
        f.add_context_length(CONTEXT)
        f.add_embedding_length(width)
        f.add_block_count(n_layer)
        f.add_feed_forward_length(inner)
        f.add_head_count(n_head)
        f.add_head_count_kv(n_head_kv)
        f.add_key_length(head)
        f.add_value_length(head)
        f.add_rope_dimension_count(head)
        f.add_rope_freq_base(base)
        f.add_layer_norm_rms_eps(1e-5)

    def key(self, name: str, value: Any) -> None:
        """A key of the architecture: a number, or a list of numbers."""
        add = self.file.add_array if isinstance(value, list) else self.file.add_uint32
        add(f"{self.arch}.{name}", value)

    def tensors(self, tensors: Mapping[str, Tensor], types: Mapping[str, gguf.GGMLQuantizationType]) -> None:
        """Tensors by name, in 32-bit floats, or in the type that `types` has for the end of the name."""
        for name, tensor in tensors.items():
            data = np.ascontiguousarray(tensor.detach().numpy())
            kind = next((kind for end, kind in types.items() if name.endswith(end)), None)
            if kind is None:
                self.file.add_tensor(name, data)
            else:
                self.file.add_tensor(name, gguf.quantize(data.astype(np.float32), kind), raw_dtype=kind)

    def close(self) -> None:
        self.file.write_header_to_file()
        self.file.write_kv_data_to_file()
        self.file.write_tensors_to_file()
        self.file.close()


def write_eagle3(path: Path, head: Eagle3, *, layers: list[int], target: Path, quantized: bool) -> None:
    """The head as a file that borrows the target's embeddings.

    Args:
        path: the file to write.
        head: what was trained.
        layers: of the target whose inputs it reads.
        target: a GGUF file of the target.
        quantized: matrices in Q8_0 instead of 32-bit floats.
    """
    s, a = head.shape, head.attention
    file = DraftFile(path, "eagle3", "SmolLM2-135M-Instruct EAGLE-3", target)
    file.sizes(width=s.width, n_layer=1, inner=s.inner, n_head=s.n_head, n_head_kv=s.n_head_kv, head=s.head,
               base=s.base)  # fmt: skip
    file.key("target_layers", layers)
    file.key("target_hidden_size", s.width)
    matrices = {
        "fc.weight": head.fc.weight @ head.whitening.T,
        "blk.0.attn_q.weight": a.q.weight,
        "blk.0.attn_k.weight": a.k.weight,
        "blk.0.attn_v.weight": a.v.weight,
        "blk.0.attn_output.weight": a.o.weight,
        "blk.0.ffn_gate.weight": head.ffn.gate.weight,
        "blk.0.ffn_up.weight": head.ffn.up.weight,
        "blk.0.ffn_down.weight": head.ffn.down.weight,
        "output.weight": head.head,
    }
    file.tensors(matrices, dict.fromkeys(matrices, Q8) if quantized else {})
    norms = {
        "blk.0.attn_norm.weight": head.token_norm.weight,
        "blk.0.attn_norm_2.weight": head.state_norm.weight,
        "blk.0.ffn_norm.weight": head.ffn_norm.weight,
        "output_norm.weight": head.output_norm.weight,
        "d2t": head.drafted,
    }
    file.tensors(norms, {})
    file.close()


def write_plain(path: Path, model: Plain, *, target: Path, quantized: bool) -> None:
    """The model as a llama file, its embeddings its head.

    Args:
        path: the file to write.
        model: what was trained.
        target: a GGUF file of the target.
        quantized: embeddings in Q4_0 and other matrices in Q8_0, instead of 32-bit floats.
    """
    s = model.shape
    file = DraftFile(path, "llama", "SmolLM2-135M-Instruct draft", target)
    file.sizes(width=s.width, n_layer=s.n_layer, inner=s.inner, n_head=s.n_head, n_head_kv=s.n_head_kv, head=s.head,
               base=s.base)  # fmt: skip
    file.tensors({"token_embd.weight": model.embeddings()}, {"token_embd.weight": Q4} if quantized else {})
    file.tensors({"output_norm.weight": model.output_norm.weight}, {})
    for i, layer in enumerate(model.layers):
        a, f = layer.attention, layer.ffn
        norms = {"attn_norm": layer.attn_norm.weight, "ffn_norm": layer.ffn_norm.weight}
        matrices = {
            "attn_q": a.q.weight, "attn_k": a.k.weight, "attn_v": a.v.weight, "attn_output": a.o.weight,
            "ffn_gate": f.gate.weight, "ffn_up": f.up.weight, "ffn_down": f.down.weight,
        }  # fmt: skip
        file.tensors({f"blk.{i}.{name}.weight": weight for name, weight in norms.items()}, {})
        file.tensors({f"blk.{i}.{name}.weight": weight for name, weight in matrices.items()},
                     {".weight": Q8} if quantized else {})  # fmt: skip
    file.close()
