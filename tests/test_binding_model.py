"""Loading models: what a file says, what goes wrong, and who keeps the memory."""

from __future__ import annotations

import gc
import logging
import os
import time
from pathlib import Path

import pytest
from interrupting import interrupt_after
from tiny_models import N_EMBD, N_VOCAB, Writer, llama

from pyspec._llama import Context, Model, devices
from pyspec.errors import Cancelled, Closed, InvalidRequest, ModelLoadError, UnsupportedModel


def test_what_a_model_says(tiny):
    with Model(tiny("llama")) as model:
        assert model.path == str(tiny("llama"))
        assert (model.arch, model.n_layer, model.n_layer_nextn) == ("llama", 4, 0)
        assert (model.n_embd, model.n_embd_inp, model.n_embd_out) == (N_EMBD, N_EMBD, N_EMBD)
        assert (model.n_head, model.n_head_kv, model.n_swa, model.n_expert) == (4, 2, 0, 0)
        assert model.n_ctx_train == 512
        assert (model.rope_type, model.rope_freq_scale_train) == ("norm", 1.0)
        assert (model.has_decoder, model.has_encoder, model.decoder_start_token) == (True, False, None)
        assert not (model.is_recurrent or model.is_hybrid or model.is_diffusion or model.has_mtp or model.vocab_only)
        assert model.size == 4 * model.n_params
        assert "F32" in model.ftype
        assert model.metadata["llama.block_count"] == "4"
        assert model.chat_template() is None
        assert model.target_layer_ids == ()
        assert model.path in repr(model)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gemma3", {"n_swa": 32, "rope_type": "neox"}),
        ("mamba", {"is_recurrent": True, "n_head": 0, "rope_type": "none"}),
        ("qwen35", {"is_hybrid": True, "rope_type": "imrope", "n_layer_nextn": 0}),
        ("step35", {"n_layer": 2, "n_layer_nextn": 2}),
        ("eagle3", {"has_encoder": True, "target_layer_ids": (0, 1, 3)}),
        ("dflash", {"has_encoder": True, "target_layer_ids": (1, 3)}),
        ("bert", {"has_encoder": False, "has_decoder": True}),
        ("t5", {"has_encoder": True, "has_decoder": True, "decoder_start_token": 0}),
        ("t5encoder", {"has_encoder": True, "has_decoder": False}),
    ],
)
def test_properties_by_architecture(tiny, name, expected):
    with Model(tiny(name)) as model:
        assert {key: getattr(model, key) for key in expected} == expected


def test_nextn_layers_are_loaded_on_request(tiny):
    with Model(tiny("qwen35-mtp")) as without, Model(tiny("qwen35-mtp"), load_mtp=True) as model:
        assert (without.n_layer_nextn, without.has_mtp) == (1, False)
        assert (model.n_layer_nextn, model.has_mtp) == (1, True)
    with Model(tiny("llama"), load_mtp=True) as model:
        assert not model.has_mtp


def test_vocabulary_only(tiny):
    with Model(tiny("vocab-only"), vocab_only=True) as model:
        assert model.vocab_only
        assert (model.n_head, model.n_head_kv) == (0, 0)
        assert model.vocab.detokenize(model.vocab.tokenize("hello world", add_special=False)) == b"hello world"
        with pytest.raises(InvalidRequest, match="vocab_only=True"):
            Context(model)


def test_paths_of_every_kind(tiny, tmp_path):
    path = tiny("llama")
    odd = tmp_path / "mödel ✓.gguf"
    odd.symlink_to(path)
    for given in (str(path), path, os.fsencode(path), odd):
        with Model(given) as model:
            assert model.n_layer == 4


@pytest.mark.parametrize("path", [None, 3, "", "a\0b", b"", object()])
def test_what_is_no_path(path):
    with pytest.raises(InvalidRequest):
        Model(path)


def test_missing_file(tmp_path):
    missing = tmp_path / "missing.gguf"
    with pytest.raises(ModelLoadError, match="no such file") as caught:
        Model(missing)
    assert caught.value.path == str(missing)
    assert isinstance(caught.value, OSError)


def test_directory_names_a_model_in_it(tiny):
    with pytest.raises(ModelLoadError, match=r"is a directory; there is .*\.gguf in it"):
        Model(tiny("llama").parent)


@pytest.mark.parametrize("content", [b"", b"GG", b"not a model at all", b"GGUF", bytes(1000)])
def test_not_a_gguf(tmp_path, content):
    path = tmp_path / "file.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelLoadError, match=r"not a GGUF|empty|truncated"):
        Model(path)


@pytest.mark.parametrize(("version", "message"), [(1, "version is 1"), (4, "version is 4"), (0x03000000, "big-endian")])
def test_other_versions(tiny, tmp_path, version, message):
    data = bytearray(tiny("llama").read_bytes())
    data[4:8] = version.to_bytes(4, "little")
    path = tmp_path / "file.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelLoadError, match=message):
        Model(path)


def test_truncated_data_names_the_tensor(tiny, tmp_path):
    path = tmp_path / "cut.gguf"
    path.write_bytes(tiny("llama").read_bytes()[:-1000])
    with pytest.raises(ModelLoadError, match=r"truncated: the tensor blk\.3\.ffn_down\.weight needs \d+ bytes"):
        Model(path)


def test_vocabulary_file_as_a_model(tiny):
    with pytest.raises(ModelLoadError, match="no weights, only a vocabulary"):
        Model(tiny("vocab-only"))


def test_unknown_architecture(tmp_path):
    path = tmp_path / "new.gguf"
    w = Writer(path, "brandnew", 1)
    w.sizes(1)
    w.test_vocab()
    w.ends()
    w.close()
    with pytest.raises(ModelLoadError, match="unknown model architecture: 'brandnew'"):
        Model(path)


def test_missing_tensor_is_named_by_libllama(tmp_path):
    path = tmp_path / "hole.gguf"
    w = Writer(path, "llama", 1)
    w.sizes(1)
    w.test_vocab()
    w.ends()
    w.close()
    with pytest.raises(ModelLoadError, match=r"'blk\.0\.attn_norm\.weight' not found"):
        Model(path)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ({"llama.block_count": 0}, "block_count"),
        ({"llama.block_count": 100000}, "block_count"),
        ({"llama.nextn_predict_layers": 9}, "nextn_predict_layers"),
        ({"llama.expert_count": 100000}, "expert_count"),
        ({"llama.expert_used_count": 3}, "expert_used_count"),
        ({"llama.rope.scaling.type": "sideways"}, "rope.scaling.type"),
        ({"llama.rope.dimension_count": 4096}, "rope.dimension_count"),
    ],
)
def test_numbers_libllama_asserts(tiny, override, message):
    """Each of them ends the process if it gets that far."""
    with pytest.raises(ModelLoadError, match=message):
        Model(tiny("llama"), kv_overrides=override)


@pytest.mark.parametrize(("key", "value"), [("llama.block_count", 0), ("llama.rope.dimension_count", 4096)])
def test_numbers_libllama_asserts_in_the_file(tiny, tmp_path, key, value):
    data = bytearray(tiny("llama").read_bytes())
    place = data.index(key.encode()) + len(key) + 4
    data[place : place + 4] = value.to_bytes(4, "little")
    path = tmp_path / "odd.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelLoadError, match=key):
        Model(path)


def test_two_tokens_with_one_text(tmp_path):
    path = tmp_path / "twice.gguf"
    llama(path, n_layer=1, vocab={"texts": lambda i: f"tok_{i % 200}"})
    with pytest.raises(ModelLoadError, match="tokens 0 and 200 have the same text b'tok_0'"):
        Model(path)


def test_overrides(tiny):
    values = {
        "llama.context_length": 128, "general.name": "renamed", "llama.rope.freq_base": 5000.0,
        "tokenizer.ggml.add_bos_token": False,
    }  # fmt: skip
    with Model(tiny("llama"), kv_overrides=values) as model:
        assert model.n_ctx_train == 128


@pytest.mark.parametrize(
    "overrides",
    [{"": 1}, {"k" * 128: 1}, {"key": "v" * 128}, {"key": None}, {"a\0b": 1}, {"key": 1 << 80}, {"key": float("nan")},
     {3: 1}, "key=1"],
)  # fmt: skip
def test_overrides_that_cannot_be(tiny, overrides):
    with pytest.raises(InvalidRequest):
        Model(tiny("llama"), kv_overrides=overrides)


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("n_gpu_layers", -2), ("n_gpu_layers", 1.5), ("split_mode", "sideways"), ("split_mode", None),
        ("main_gpu", 1000), ("tensor_split", [float("nan")]), ("tensor_split", [-1.0]), ("tensor_split", [1.0] * 99),
        ("devices", ["no such device"]), ("devices", ["CPU"]), ("devices", "CUDA0"), ("load_mode", "slowly"),
        ("progress", 3),
    ],
)  # fmt: skip
def test_parameters_out_of_range(tiny, parameter, value):
    with pytest.raises(InvalidRequest) as caught:
        Model(tiny("llama"), **{parameter: value})
    assert caught.value.name == parameter


@pytest.mark.parametrize("load_mode", ["auto", "none", "mmap", "direct_io"])
def test_load_modes(tiny, load_mode):
    with Model(tiny("llama"), load_mode=load_mode, check_tensors=True, use_extra_bufts=False) as model:
        assert model.n_layer == 4


def test_no_device_means_the_cpu(tiny):
    with Model(tiny("llama"), devices=[]) as model:
        assert model.n_layer == 4
    assert any(device["type"] == "cpu" for device in devices())


# -- progress ----------------------------------------------------------------------------------------------


def test_progress_is_told(tiny):
    seen: list[float] = []
    with Model(tiny("llama"), progress=seen.append) as model:
        assert model.n_layer == 4
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


@pytest.mark.parametrize("when", [0.0, 1.0])
def test_progress_can_cancel(tiny, when):
    with pytest.raises(Cancelled):
        Model(tiny("llama"), progress=lambda done: done < when)
    Model(tiny("llama")).close()


class Oops(BaseException):
    pass


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), Oops()])
def test_what_progress_raises_comes_out(tiny, error):
    def progress(done: float) -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        Model(tiny("llama"), progress=progress)
    assert caught.value is error
    Model(tiny("llama")).close()


def test_interrupt_during_a_load(smollm2_f32, caplog):
    """Ctrl-C ends a load that has no progress callback as well; the next load works."""
    caplog.set_level(logging.INFO, "pyspec.llama")
    for attempt in range(50):  # it may come before or after the part that takes time
        with pytest.raises(KeyboardInterrupt), interrupt_after(0.02 * attempt):
            load_forever(smollm2_f32)
        if "cancelled model load" in caplog.text:
            break
    else:
        pytest.fail("no load was cancelled")
    Model(smollm2_f32).close()


def load_forever(path: Path) -> None:
    """Until an interrupt, which should not be long in coming."""
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline:
        Model(path, load_mode="none").close()
    pytest.fail("the interrupt was lost")


# -- saving ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "llama-tied", "llama-spm", "gemma3", "mamba", "qwen35"])
def test_save_and_load_again(tiny, tmp_path, name):
    path = tmp_path / "saved.gguf"
    with Model(tiny(name), use_extra_bufts=False) as model:
        model.save(path)
        with Model(path) as again:
            assert (again.arch, again.n_params, again.size) == (model.arch, model.n_params, model.size)
            assert again.vocab.n_tokens == model.vocab.n_tokens
            rows = []
            for each in (model, again):
                with Context(each, n_ctx=64, n_threads=1) as context:
                    context.decode([5, 6, 7])
                    rows.append(context.logits().copy())
    assert (rows[0] == rows[1]).all()


def test_what_cannot_be_saved(tiny, tmp_path):
    with Model(tiny("llama")) as model, pytest.raises(UnsupportedModel, match="use_extra_bufts=False"):
        model.save(tmp_path / "x.gguf")
    with (
        Model(tiny("step35"), use_extra_bufts=False) as model,
        pytest.raises(UnsupportedModel, match="step35"),
    ):
        model.save(tmp_path / "x.gguf")
    with (
        Model(tiny("vocab-only"), vocab_only=True) as model,
        pytest.raises(UnsupportedModel, match="no weights"),
    ):
        model.save(tmp_path / "x.gguf")
    with Model(tiny("llama"), use_extra_bufts=False) as model, pytest.raises(OSError, match=r"x\.gguf"):
        model.save(tmp_path / "no such folder" / "x.gguf")
    assert not list(tmp_path.iterdir())


# -- life --------------------------------------------------------------------------------------------------


def test_closed_model(tiny):
    model = Model(tiny("llama"))
    vocab = model.vocab
    model.close()
    model.close()
    assert model.closed
    assert "closed" in repr(model)
    for use in (
        lambda: model.arch,
        lambda: model.vocab,
        lambda: Context(model),
        model.__enter__,
        lambda: model.n_head,
    ):
        with pytest.raises(Closed):
            use()
    assert vocab.n_tokens == N_VOCAB
    assert vocab.text(5) == "tok_5"


def test_init_twice(tiny):
    model = Model(tiny("llama"))
    with pytest.raises(RuntimeError, match="twice"):
        model.__init__(tiny("llama"))


def test_failed_loads_leave_nothing(tiny, tmp_path):
    """No file stays open, and the next load works."""
    folder = Path("/proc/self/fd")
    if not folder.is_dir():
        pytest.skip("needs /proc")
    path = tmp_path / "cut.gguf"
    path.write_bytes(tiny("llama").read_bytes()[:5000])
    before = len(list(folder.iterdir()))
    for _ in range(5):
        with pytest.raises(ModelLoadError):
            Model(path)
    gc.collect()
    assert len(list(folder.iterdir())) == before
    Model(tiny("llama")).close()
