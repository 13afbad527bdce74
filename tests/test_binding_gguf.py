"""Reading headers of GGUF files, whole and damaged; and that no damage ends the process."""

from __future__ import annotations

import ctypes
import os
import random
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import tiny_models

import pyspec
from pyspec._llama import Model
from pyspec.errors import ModelLoadError
from pyspec.gguf_header import _TENSOR_TYPES, GGUFArray, read_gguf


def header_bytes(path: Path) -> int:
    """Where the data of the first tensor starts."""
    return min(tensor.offset for tensor in read_gguf(path).tensors.values())


# -- what is read ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(tiny_models.WRITERS))
def test_same_as_the_gguf_package(tiny, name):
    header, reader = read_gguf(tiny(name)), gguf.GGUFReader(tiny(name))
    assert header.version == 3
    assert {key for key in reader.fields if not key.startswith("GGUF.")} == set(header.metadata)
    for key, value in header.metadata.items():
        expected = reader.fields[key].contents()
        assert (list(value) if isinstance(value, GGUFArray) else value) == expected, key
    assert [tensor.name for tensor in reader.tensors] == list(header.tensors)
    for tensor in reader.tensors:
        mine = header.tensors[tensor.name]
        assert mine.shape == tuple(tensor.shape)
        assert mine.type == tensor.tensor_type.name.lower()
        assert (mine.offset, mine.n_bytes, mine.n_elements) == (tensor.data_offset, tensor.n_bytes, tensor.n_elements)
    assert header.vocab_only == (not reader.tensors)
    assert header.size == tiny(name).stat().st_size
    header.check(vocab_only=header.vocab_only)


def test_a_real_model(gemma3):
    header = read_gguf(gemma3)
    tokens = header.metadata["tokenizer.ggml.tokens"]
    assert (header.arch, header.key("block_count"), len(tokens)) == ("gemma3", 18, 262_144)
    assert tokens[2:4] == ["<bos>", "<unk>"]
    assert header.n_params == 268_098_176
    assert header.key("no such key", 7) == 7
    header.check()


def test_number_formats():
    """All formats of the ggml that was built, with its names and sizes."""
    (library,) = Path(pyspec.__file__).parent.glob("lib/libggml-base-pyspec.*")
    ggml = ctypes.CDLL(str(library))
    ggml.ggml_type_name.restype = ctypes.c_char_p
    ggml.ggml_type_size.restype = ctypes.c_size_t
    ggml.ggml_blck_size.restype = ctypes.c_int64
    for number, (name, block, size) in _TENSOR_TYPES.items():
        assert (ggml.ggml_type_name(number).decode(), ggml.ggml_blck_size(number), ggml.ggml_type_size(number)) == (
            name, block, size
        )  # fmt: skip
    last = max(_TENSOR_TYPES)
    assert all(ggml.ggml_type_size(number) == 0 for number in set(range(last)) - set(_TENSOR_TYPES))


def test_arrays_of_every_type(tmp_path):
    path = tmp_path / "types.gguf"
    file = gguf.GGUFWriter(path, "llama")
    kinds = gguf.GGUFValueType
    values = {
        kinds.UINT8: [0, 255], kinds.INT8: [-128, 127], kinds.UINT16: [65535], kinds.INT16: [-32768],
        kinds.UINT32: [1 << 31], kinds.INT32: [-1], kinds.FLOAT32: [0.5, -1.25], kinds.BOOL: [True, False],
        kinds.STRING: ["", "a", "ü🙂"], kinds.UINT64: [1 << 63], kinds.INT64: [-1], kinds.FLOAT64: [0.1],
    }  # fmt: skip
    for kind, value in values.items():
        file.add_key_value(f"array.{kind.name}", value, kinds.ARRAY, kind)
        file.add_key_value(f"scalar.{kind.name}", value[0], kind)
    file.add_array("empty.follows", [1])
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
    metadata = read_gguf(path).metadata
    for kind, value in values.items():
        assert list(metadata[f"array.{kind.name}"]) == value
        assert len(metadata[f"array.{kind.name}"]) == len(value)
        assert metadata[f"scalar.{kind.name}"] == value[0]
    assert "3 strings" in repr(metadata["array.STRING"])


def split(folder: Path, n: int) -> list[Path]:
    """A model in `n` parts."""
    file = gguf.GGUFWriter(folder / "model.gguf", "llama", split_max_tensors=-(-39 // n))
    source = tiny_models.write("llama", folder)
    header = read_gguf(source)
    for key, value in header.metadata.items():
        if key != "general.architecture":
            kind = gguf.GGUFValueType(header.types[key])
            if isinstance(value, GGUFArray):
                file.add_array(key, list(value))
            else:
                file.add_key_value(key, value, kind)
    for tensor in gguf.GGUFReader(source).tensors:
        file.add_tensor(tensor.name, np.array(tensor.data))
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
    return sorted(folder.glob("model-*.gguf"))


def test_split_models(tmp_path):
    parts = split(tmp_path, 3)
    assert len(parts) == 3
    whole = read_gguf(tmp_path / "llama.gguf")
    for part in parts:
        header = read_gguf(part)
        assert header.parts == [str(each) for each in parts]
        assert set(header.tensors) == set(whole.tensors)
        assert header.size == sum(each.stat().st_size for each in parts)
        with Model(header.path) as model:
            assert model.n_params == whole.n_params


def test_split_models_with_a_part_missing(tmp_path):
    parts = split(tmp_path, 3)
    parts[1].unlink()
    for read in (read_gguf, Model):
        with pytest.raises(ModelLoadError, match=rf"{parts[1].name}: there is no such file"):
            read(parts[0])


def test_split_models_in_another_order(tmp_path):
    parts = split(tmp_path, 3)
    spare = tmp_path / "spare"
    parts[1].rename(spare)
    parts[2].rename(parts[1])
    spare.rename(parts[2])
    with pytest.raises(ModelLoadError, match=r"it is not part 2 of 3: its split\.no is 2"):
        Model(parts[0])


def test_split_models_under_another_name(tmp_path):
    parts = split(tmp_path, 3)
    parts[0].rename(tmp_path / "other.gguf")
    with pytest.raises(ModelLoadError, match="the first of 3 parts"):
        Model(tmp_path / "other.gguf")


# -- damage ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama-spm", "qwen35-mtp"])
def test_cut_anywhere_in_the_header(tiny, tmp_path, name):
    """At every boundary and between: named as truncated, before libllama sees it."""
    data = tiny(name).read_bytes()
    end = header_bytes(tiny(name))
    path = tmp_path / "cut.gguf"
    for size in [*range(1, 200), *range(200, end, 37), end]:
        path.write_bytes(data[:size])
        with pytest.raises(ModelLoadError, match=r"truncated|claims|not a GGUF|damaged"):
            read_gguf(path).check()


def test_cut_at_every_tensor(tiny, tmp_path):
    header = read_gguf(tiny("llama"))
    data = tiny("llama").read_bytes()
    path = tmp_path / "cut.gguf"
    for name, tensor in header.tensors.items():
        for size in (tensor.offset, tensor.offset + tensor.n_bytes - 1):
            path.write_bytes(data[:size])
            with pytest.raises(ModelLoadError, match=f"truncated: the tensor {name} needs {tensor.n_bytes} bytes"):
                Model(path)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (8, 1 << 40, "claims"), (8, (1 << 64) - 1, "claims"), (16, 1 << 40, "claims"), (16, (1 << 64) - 1, "claims"),
        (24, 1 << 62, "claims a length"), (24, 0, "empty"),
    ],
)  # fmt: skip
def test_absurd_counts(tiny, tmp_path, place, value, message):
    data = bytearray(tiny("llama").read_bytes())
    data[place : place + 8] = value.to_bytes(8, "little")
    path = tmp_path / "absurd.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelLoadError, match=message):
        Model(path)


LOADER = """
import sys
from pyspec._llama import Context, Model
from pyspec.errors import ModelLoadError, PyspecError

for line in sys.stdin:
    try:
        model = Model(line.rstrip("\\n"), load_mtp=True)
    except ModelLoadError:
        print("refused", flush=True)
        continue
    try:
        model.metadata, model.desc, model.vocab.tokenize("hello \\udcff", parse_special=True)
        with Context(model, n_ctx=256, n_threads=1) as context:
            context.decode([1, 2, 3])
    except PyspecError:
        pass
    model.close()
    print("loaded", flush=True)
"""


class Loader:
    """A process that loads models; it must survive all of them."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", LOADER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env={**os.environ, "GGML_NO_BACKTRACE": "1"},
        )  # fmt: skip

    def load(self, path: Path) -> str:
        self.process.stdin.write(f"{path}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().strip()
        if answer not in ("refused", "loaded"):
            self.process.kill()
            pytest.fail(f"loading {path} ended the process: {self.process.stderr.read()[-500:]}")
        return answer

    def close(self) -> None:
        self.process.communicate(timeout=60)
        assert self.process.returncode == 0


@pytest.mark.parametrize("name", ["llama", "llama-spm", "gemma3", "qwen35-mtp", "step35", "mamba"])
def test_changed_bytes(tiny, tmp_path, name):
    """Bytes of the header, a few at a time: every file is loaded or refused."""
    source = random.Random(f"{name} 1")
    data, end = tiny(name).read_bytes(), header_bytes(tiny(name))
    loader = Loader()
    answers = []
    for i in range(250):
        damaged = bytearray(data)
        for _ in range(source.choice([1, 1, 2, 3])):
            damaged[source.randrange(4, end)] = source.choice([0, 1, 255, source.randrange(256)])
        path = tmp_path / f"{i % 2}.gguf"  # not the one that may still be mapped
        path.unlink(missing_ok=True)
        path.write_bytes(damaged)
        answers.append(loader.load(path))
    loader.close()
    assert {"refused", "loaded"} == set(answers)
