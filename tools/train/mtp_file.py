"""tiny-mtp as a GGUF file, see mtp_train.py."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np

from tools.train import mtp_text
from tools.train.mtp_model import Shape, TinyMTP


def write_vocabulary(path: Path, pieces: Sequence[str]) -> None:
    """A file to tokenize with."""
    file = gguf.GGUFWriter(path, "llama")
    mtp_text.add_vocabulary(file, pieces)
    _finish(file)


def write_model(path: Path, model: TinyMTP, pieces: Sequence[str]) -> None:
    """All weights in F32."""
    shape = model.shape
    n_layer = shape.n_layer + shape.n_nextn
    file = gguf.GGUFWriter(path, "step35")
    file.add_name("tiny-mtp")
    file.add_license("MIT")
    file.add_description("Trained from scratch on Python's documentation, for pyspec; see docs/trained-mtp.md there.")
    file.add_context_length(shape.n_ctx)
    file.add_embedding_length(shape.n_embd)
    file.add_block_count(n_layer)
    file.add_feed_forward_length(shape.n_ff)
    file.add_expert_feed_forward_length(shape.n_ff)  # asked for, though there are no experts
    file.add_head_count(shape.n_head)
    file.add_head_count_kv(shape.n_head_kv)
    file.add_key_length(shape.n_head_dim)
    file.add_value_length(shape.n_head_dim)
    file.add_rope_dimension_count(shape.n_head_dim)
    file.add_rope_freq_base(shape.freq_base)
    file.add_layer_norm_rms_eps(shape.eps)
    file.add_sliding_window(shape.n_ctx)
    file.add_array("step35.attention.sliding_window_pattern", [shape.windowed(i) for i in range(n_layer)])
    file.add_uint32("step35.nextn_predict_layers", shape.n_nextn)
    mtp_text.add_vocabulary(file, pieces)
    for name, weight in model.state_dict().items():
        file.add_tensor(tensor_name(name, shape), weight.detach().numpy().astype(np.float32))
    _finish(file)


def tensor_name(name: str, shape: Shape) -> str:
    """What GGUF calls a parameter of the model."""
    parts = name.split(".")
    if parts[0] == "layers":
        return f"blk.{parts[1]}.{'.'.join(parts[2:])}"
    if parts[0] == "nextn":
        block = f"blk.{shape.n_layer + int(parts[1])}"
        return f"{block}.{'.'.join(parts[3:])}" if parts[2] == "layer" else f"{block}.nextn.{'.'.join(parts[2:])}"
    return name


def _finish(file: gguf.GGUFWriter) -> None:
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
