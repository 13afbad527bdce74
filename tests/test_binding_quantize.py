"""Writing model files in other formats, or with fewer layers."""

from __future__ import annotations

import numpy as np
import pytest
import tiny_models

from pyspec._llama import Context, Model, quantize
from pyspec.errors import InvalidRequest, ModelLoadError, PyspecError
from pyspec.gguf_header import read_gguf


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out.gguf"


def last_row(path) -> np.ndarray:
    with Model(path) as model, Context(model, n_ctx=256, n_threads=1) as context:
        context.decode([3, 1, 4, 1, 5])
        return context.logits().copy()


@pytest.mark.parametrize(
    ("ftype", "tensor_type"),
    [("f16", "f16"), ("bf16", "bf16"), ("q8_0", "q8_0"), ("Q4_0", "q4_0"), ("q5_1", "q5_1"), ("iq4_nl", "iq4_nl")],
)
def test_formats(tiny, out, ftype, tensor_type):
    quantize(tiny("llama"), out, ftype)
    header = read_gguf(out)
    assert header.tensors["blk.0.ffn_up.weight"].type == tensor_type
    assert header.tensors["blk.0.attn_norm.weight"].type == "f32"
    assert out.stat().st_size < tiny("llama").stat().st_size
    assert np.corrcoef(last_row(out), last_row(tiny("llama")))[0, 1] > 0.9


def test_mixtures_and_exceptions(tiny, out):
    quantize(tiny("llama"), out, "q4_0", output_tensor_type="q8_0", token_embedding_type="f16",
             tensor_types={r"blk\.1\.ffn_down": "q8_0"}, n_threads=1)  # fmt: skip
    types = {name: tensor.type for name, tensor in read_gguf(out).tensors.items()}
    assert (types["output.weight"], types["token_embd.weight"]) == ("q8_0", "f16")
    assert (types["blk.1.ffn_down.weight"], types["blk.2.ffn_down.weight"]) == ("q8_0", "q4_0")
    quantize(tiny("llama"), out, "q4_0", pure=True)
    assert {t.type for t in read_gguf(out).tensors.values() if len(t.shape) > 1} == {"q4_0"}
    quantize(tiny("llama"), out, "q8_0", quantize_output_tensor=False)
    assert read_gguf(out).tensors["output.weight"].type == "f32"


def test_copying(tiny, out):
    quantize(tiny("llama"), out, "q4_0", only_copy=True)
    assert (last_row(out) == last_row(tiny("llama"))).all()


def test_again(tiny, out, tmp_path):
    quantize(tiny("llama"), out, "q8_0")
    again = tmp_path / "again.gguf"
    with pytest.raises(PyspecError, match="requantizing from type q8_0 is disabled"):
        quantize(out, again, "q4_0")
    assert not again.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.gguf"]
    quantize(out, again, "q4_0", allow_requantize=True)
    assert read_gguf(again).tensors["blk.0.ffn_up.weight"].type == "q4_0"


def test_metadata(tiny, out):
    quantize(tiny("llama"), out, "f16", kv_overrides={"llama.context_length": 99, "general.name": "renamed"})
    with Model(out) as model:
        assert model.n_ctx_train == 99
        assert model.metadata["general.name"] == "renamed"


def test_dry_run(tiny, out):
    quantize(tiny("llama"), out, "q4_0", dry_run=True)
    assert not out.exists()


@pytest.mark.parametrize("layers", [[0], [3], [1, 2], [3, 0], (2, 2), range(3)])
def test_pruning(tiny, out, layers):
    """What is left is the same layers, renumbered."""
    quantize(tiny("llama"), out, "f32", prune_layers=layers)
    header, whole = read_gguf(out), read_gguf(tiny("llama"))
    kept = [layer for layer in range(4) if layer not in set(layers)]
    assert header.metadata["llama.block_count"] == len(kept)
    for new, old in enumerate(kept):
        for part in ("attn_q.weight", "ffn_norm.weight"):
            assert data_of(header, f"blk.{new}.{part}") == data_of(whole, f"blk.{old}.{part}")
    with Model(out) as model:
        assert model.n_layer == len(kept)
    assert np.isfinite(last_row(out)).all()


def data_of(header, name: str) -> bytes:
    tensor = header.tensors[name]
    with open(header.path, "rb") as file:
        file.seek(tensor.offset)
        return file.read(tensor.n_bytes)


def test_pruning_many_layers(tmp_path, out):
    """Layer 10 comes after layer 9, not after layer 1."""
    path = tmp_path / "deep.gguf"
    tiny_models.llama(path, n_layer=13)
    quantize(path, out, "f32", prune_layers=[2, 11])
    header, whole = read_gguf(out), read_gguf(path)
    kept = [layer for layer in range(13) if layer not in (2, 11)]
    for new, old in enumerate(kept):
        assert data_of(header, f"blk.{new}.attn_k.weight") == data_of(whole, f"blk.{old}.attn_k.weight")


def test_no_pruning(tiny, out):
    quantize(tiny("llama"), out, "f16", prune_layers=[])
    assert read_gguf(out).metadata["llama.block_count"] == 4


@pytest.mark.parametrize(
    ("name", "layers", "message"),
    [
        ("llama", [4], "between 0 and 3"), ("llama", [-1], "between 0 and 3"), ("llama", ["a"], "integer"),
        ("llama", [0, 1, 2, 3], "leaves none"), ("qwen35-mtp", [0], "NextN"), ("step35", [0], "NextN"),
    ],
)  # fmt: skip
def test_layers_that_cannot_be_left_out(tiny, out, name, layers, message):
    with pytest.raises(InvalidRequest, match=message) as caught:
        quantize(tiny(name), out, "f16", prune_layers=layers)
    assert caught.value.name is not None
    assert not out.exists()


def test_layers_with_values_of_their_own(tmp_path, out):
    path = tmp_path / "arrays.gguf"
    w = tiny_models.Writer(path, "llama", 1)
    w.u32(context_length=64, embedding_length=64, block_count=3, attention__head_count=4)
    w.array("feed_forward_length", [96, 96, 96])
    w.f32(attention__layer_norm_rms_epsilon=1e-5)
    w.test_vocab()
    w.ends()
    for i in range(3):
        w.dense_layer(i, n_head_kv=4)
    w.close()
    quantize(path, out, "f16")
    with pytest.raises(InvalidRequest, match=r"llama\.feed_forward_length has a value for each layer"):
        quantize(path, out, "f16", prune_layers=[1])


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("ftype", "q9_9"), ("ftype", None), ("n_threads", -1), ("output_tensor_type", "q9"),
        ("token_embedding_type", 3),
        ("tensor_types", {"x": "q9"}), ("tensor_types", {3: "f16"}), ("kv_overrides", {"": 1}),
    ],
)  # fmt: skip
def test_parameters_out_of_range(tiny, out, parameter, value):
    arguments = {"src": tiny("llama"), "dst": out, "ftype": "f16", parameter: value}
    with pytest.raises(InvalidRequest):
        quantize(**arguments)


def test_a_pattern_that_is_no_regular_expression(tiny, out):
    with pytest.raises(PyspecError, match="cannot quantize"):
        quantize(tiny("llama"), out, "q8_0", tensor_types={"(": "f16"})
    assert not out.exists()


def test_files(tiny, tmp_path, out):
    source = tiny("llama")
    with pytest.raises(InvalidRequest, match="same file"):
        quantize(source, source, "f16")
    (tmp_path / "link.gguf").symlink_to(source)
    with pytest.raises(InvalidRequest, match="same file"):
        quantize(source, tmp_path / "link.gguf", "f16")
    with pytest.raises(InvalidRequest, match="folder of dst does not exist"):
        quantize(source, tmp_path / "none" / "out.gguf", "f16")
    with pytest.raises(ModelLoadError, match="no such file"):
        quantize(tmp_path / "none.gguf", out, "f16")
    with pytest.raises(ModelLoadError, match="only a vocabulary"):
        quantize(tiny("vocab-only"), out, "f16")
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(source.read_bytes()[:-100])
    with pytest.raises(ModelLoadError, match="truncated"):
        quantize(cut, out, "f16")
    assert read_gguf(source).tensors["output.weight"].type == "f32"
    assert not out.exists()
