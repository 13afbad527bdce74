"""What a GGUF file says about itself, read without libllama.

A model file is untrusted input: :func:`read_gguf` trusts no count and no offset, so that a damaged file is
named as such, with the place, before libllama sees it. It needs nothing but the standard library, and reads a
large vocabulary's arrays only when they are looked at.

    header = read_gguf("model.gguf")
    header.arch, header.metadata["llama.block_count"], header.tensors["token_embd.weight"].shape
"""

from __future__ import annotations

import math
import mmap
import os
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, overload

from pyspec.errors import ModelLoadError

__all__ = ["GGUFArray", "GGUFHeader", "GGUFTensor", "Scalar", "read_gguf"]

Scalar = int | float | bool | str

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMS = 4
MAX_NAME = 64  # a tensor's name with its terminating NUL
MAX_STRING = 1 << 30

# What libllama asserts about a model's numbers instead of reporting it (llama-hparams.h).
MAX_LAYERS = 512
MAX_EXPERTS = 512

_STRING, _ARRAY = 8, 9
_SCALARS = {  # GGUF value type: struct format
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
_U16, _U32 = 2, 4

# ggml type: name, numbers in a block, bytes of a block
_TENSOR_TYPES = {
    0: ("f32", 1, 4), 1: ("f16", 1, 2), 2: ("q4_0", 32, 18), 3: ("q4_1", 32, 20), 6: ("q5_0", 32, 22),
    7: ("q5_1", 32, 24), 8: ("q8_0", 32, 34), 9: ("q8_1", 32, 36), 10: ("q2_K", 256, 84),
    11: ("q3_K", 256, 110), 12: ("q4_K", 256, 144), 13: ("q5_K", 256, 176), 14: ("q6_K", 256, 210),
    15: ("q8_K", 256, 292),
    16: ("iq2_xxs", 256, 66), 17: ("iq2_xs", 256, 74), 18: ("iq3_xxs", 256, 98), 19: ("iq1_s", 256, 50),
    20: ("iq4_nl", 32, 18), 21: ("iq3_s", 256, 110), 22: ("iq2_s", 256, 82), 23: ("iq4_xs", 256, 136),
    24: ("i8", 1, 1), 25: ("i16", 1, 2), 26: ("i32", 1, 4), 27: ("i64", 1, 8), 28: ("f64", 1, 8),
    29: ("iq1_m", 256, 56), 30: ("bf16", 1, 2), 34: ("tq1_0", 256, 54), 35: ("tq2_0", 256, 66),
    39: ("mxfp4", 32, 17), 40: ("nvfp4", 64, 36), 41: ("q1_0", 128, 18), 42: ("q2_0", 64, 18),
}  # fmt: skip

_PART = re.compile(r"(?P<prefix>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


@dataclass(frozen=True)
class GGUFTensor:
    """One tensor of the file.

    Attributes:
        name: e.g. ``"blk.0.attn_q.weight"``.
        shape: in ggml's order, the contiguous dimension first.
        type: ggml's name of the number format, e.g. ``"q4_K"``.
        offset: first byte, counted from the start of the file it is in.
        n_bytes: size of the data.
        file: the file it is in, of a split model one of the parts.
    """

    name: str
    shape: tuple[int, ...]
    type: str
    offset: int
    n_bytes: int
    file: str

    @property
    def n_elements(self) -> int:
        """How many numbers the tensor has."""
        count = 1
        for n in self.shape:
            count *= n
        return count


class GGUFArray(Sequence[Scalar]):
    """An array of the metadata; its elements are read from the file when asked for."""

    def __init__(self, path: str, value_type: int, count: int, offset: int, n_bytes: int) -> None:
        self._path = path
        self._type = value_type
        self._count = count
        self._offset = offset
        self._n_bytes = n_bytes

    def __len__(self) -> int:
        return self._count

    @property
    def of_strings(self) -> bool:
        """Whether the elements are strings."""
        return self._type == _STRING

    def strings(self) -> list[bytes]:
        """The elements of an array of strings, undecoded."""
        data, position = self._read(), 0
        result: list[bytes] = []
        unpack, append = struct.Struct("<Q").unpack_from, result.append
        for _ in range(self._count):
            start = position + 8
            position = start + unpack(data, position)[0]
            append(data[start:position])
        return result

    def _read(self) -> bytes:
        with open(self._path, "rb") as file:
            file.seek(self._offset)
            return file.read(self._n_bytes)

    @cached_property
    def _values(self) -> list[Scalar]:
        if self.of_strings:
            return [text.decode("utf-8", "replace") for text in self.strings()]
        return list(struct.unpack(f"<{self._count}{_SCALARS[self._type][1]}", self._read()))

    @overload
    def __getitem__(self, index: int) -> Scalar: ...
    @overload
    def __getitem__(self, index: slice) -> list[Scalar]: ...
    def __getitem__(self, index: int | slice) -> Scalar | list[Scalar]:
        return self._values[index]

    def __iter__(self) -> Iterator[Scalar]:
        return iter(self._values)

    def __repr__(self) -> str:
        return f"<GGUFArray of {self._count} {'strings' if self.of_strings else 'values'}>"


@dataclass
class GGUFHeader:
    """What a model file says about itself.

    Attributes:
        path: the file; of a split model the first part.
        version: of the format, 2 or 3.
        alignment: tensors start at multiples of this many bytes.
        metadata: scalars as Python values, arrays as :class:`GGUFArray`.
        tensors: by name; of a split model those of all parts.
        parts: the files of the model, in order.
        size: bytes of all parts together.
    """

    path: str
    version: int
    alignment: int
    metadata: dict[str, Any]
    tensors: dict[str, GGUFTensor] = field(default_factory=dict)
    parts: list[str] = field(default_factory=list)
    size: int = 0
    types: dict[str, int] = field(default_factory=dict, repr=False)

    @property
    def arch(self) -> str:
        """The architecture, e.g. ``"llama"``; empty when the file does not say."""
        value = self.metadata.get("general.architecture", "")
        return value if isinstance(value, str) else ""

    @property
    def n_params(self) -> int:
        """Number of parameters."""
        return sum(tensor.n_elements for tensor in self.tensors.values())

    @property
    def vocab_only(self) -> bool:
        """Whether the file has no weights, only metadata and perhaps a vocabulary."""
        return not self.tensors

    def key(self, name: str, default: Any = None) -> Any:
        """The architecture's own metadata value, e.g. ``key("block_count")`` for ``"llama.block_count"``."""
        return self.metadata.get(f"{self.arch}.{name}", default)

    def check(self, *, vocab_only: bool = False) -> None:
        """Refuse what libllama would end the process for, or report without naming the file's fault.

        Args:
            vocab_only: only the vocabulary is wanted: a file without weights will do.

        Raises:
            ModelLoadError: with the key or tensor that is wrong.
        """
        if not self.arch:
            raise self._error("it has no general.architecture")
        self._check_tokens()
        if vocab_only:
            return
        if self.vocab_only:
            raise self._error("it has no weights, only a vocabulary; load it with vocab_only=True")
        if self.arch == "clip":
            raise self._error("it is a vision encoder (an mmproj file), not a language model")
        layers = self._count("block_count", 1, MAX_LAYERS)
        self._count("nextn_predict_layers", 0, layers)
        self._check_experts(layers)
        self._check_heads()
        self._check_rope()
        self._check_state_size()
        scaling = self.key("rope.scaling.type", "linear")
        if scaling not in ("none", "linear", "yarn", "longrope"):
            raise self._error(f"{self.arch}.rope.scaling.type is {scaling!r}, which libllama does not know")

    def _check_tokens(self) -> None:
        """No two tokens may have the same text, up to a NUL as libllama reads it; empty ones get another."""
        tokens = self.metadata.get("tokenizer.ggml.tokens")
        if not isinstance(tokens, GGUFArray) or not tokens.of_strings:
            return
        texts = tokens.strings()
        if b"\0" in b"".join(texts):
            texts = [text.partition(b"\0")[0] for text in texts]
        if len(set(texts)) == len(texts):
            return
        first: dict[bytes, int] = {}
        for token, text in enumerate(texts):
            if text and first.setdefault(text, token) != token:
                raise self._error(f"the tokens {first[text]} and {token} have the same text {text!r}")

    def _check_heads(self) -> None:
        """Numbers of heads that the tensors cannot have; libllama multiplies them in 32 bits."""
        for name in ("layer_norm_rms_epsilon", "layer_norm_epsilon", "group_norm_epsilon"):
            epsilon = self.key(f"attention.{name}", 0.0)
            if not isinstance(epsilon, int | float) or not 0 <= epsilon < math.inf:
                raise self._error(f"{self.arch}.attention.{name} is {epsilon!r}")
        heads, kv_heads = self.key("attention.head_count", 0), self.key("attention.head_count_kv", 0)
        if not isinstance(heads, int) or heads <= 0:
            return  # one value a layer, or no attention
        if isinstance(kv_heads, int) and not 0 <= kv_heads <= heads:
            raise self._error(f"{self.arch}.attention.head_count_kv is {kv_heads}, head_count only {heads}")
        for name, tensor in self.tensors.items():
            if name.endswith(".attn_q.weight") and len(tensor.shape) == 2 and tensor.shape[1] % heads:
                raise self._error(
                    f"{self.arch}.attention.head_count is {heads}, which does not divide the shape {tensor.shape} of "
                    f"{name}"
                )

    def _check_state_size(self) -> None:
        """The width of a recurrent state, which the tensors have as well."""
        width = self.key("ssm.inner_size")
        for name, tensor in self.tensors.items():
            if width is not None and name.endswith(".ssm_out.weight") and tensor.shape[0] != width:
                raise self._error(f"{self.arch}.ssm.inner_size is {width!r}, but {name} has the shape {tensor.shape}")

    def _check_rope(self) -> None:
        """Positions are rotated in pairs inside a head, in sections that fit into it."""
        heads, width = self.key("attention.head_count", 0), self.key("embedding_length", 0)
        if not isinstance(heads, int) or not isinstance(width, int) or heads <= 0:
            return
        head = self.key("attention.key_length", width // heads)
        rotated = self.key("rope.dimension_count", head)
        if isinstance(head, int) and isinstance(rotated, int) and not 0 <= rotated <= head:
            raise self._error(f"{self.arch}.rope.dimension_count is {rotated}, more than a head has ({head})")
        sections = self.key("rope.dimension_sections")
        if isinstance(sections, GGUFArray) and isinstance(rotated, int) and not sections.of_strings:
            sizes = [int(n) for n in sections]
            if min(sizes, default=0) < 0 or sum(sizes) > rotated:
                raise self._error(f"{self.arch}.rope.dimension_sections {sizes} do not fit into {rotated}")

    def _check_experts(self, layers: int) -> None:
        experts = self._count("expert_count", 0, MAX_EXPERTS)
        used = self.key("expert_used_count", 0)
        if isinstance(used, int):
            self._count("expert_used_count", 1 if experts else 0, experts)
        groups = self._count("expert_group_count", 0, max(0, experts - 1))
        if groups > 1:
            if experts % groups:
                raise self._error(
                    f"{self.arch}.expert_count ({experts}) is no multiple of expert_group_count ({groups})"
                )
            self._count("expert_group_used_count", 1, groups - 1)

    def _count(self, name: str, low: int, high: int) -> int:
        value = self.key(name, low if name == "block_count" else 0)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._error(f"{self.arch}.{name} is {value!r}, not a number")
        if not low <= value <= high:
            raise self._error(f"{self.arch}.{name} is {value}, outside {low} to {high}")
        return value

    def _error(self, what: str) -> ModelLoadError:
        return ModelLoadError(f"cannot load {self.path}: {what}", path=self.path)


def read_gguf(path: str | os.PathLike[str]) -> GGUFHeader:
    """Read the header of a GGUF file, and of the other parts when the model is split.

    Args:
        path: the file; of a split model any part.

    Returns:
        The header. All tensors were found to lie inside their files.

    Raises:
        ModelLoadError: the file is missing, no GGUF, of another version, or damaged; the message says where.
    """
    name = os.fspath(path)
    if match := _PART.fullmatch(name):
        name = _part_name(match["prefix"], 1, int(match["count"]))
    header = _read_file(name)
    count = header.metadata.get("split.count", 0)
    if isinstance(count, int) and count > 1:
        _read_parts(header, count)
    return header


def _part_name(prefix: str, number: int, count: int) -> str:
    return f"{prefix}-{number:05d}-of-{count:05d}.gguf"


def _read_parts(header: GGUFHeader, count: int) -> None:
    match = _PART.fullmatch(header.path)
    if match is None or int(match["count"]) != count:
        raise header._error(
            f"it is the first of {count} parts, which must be named like {_part_name('model', 1, count)}"
        )
    if header.types.get("split.no") != _U16 or header.metadata["split.no"] != 0:
        raise header._error("its split.no does not say that it is the first part")
    for number in range(2, count + 1):
        part = _read_file(_part_name(match["prefix"], number, count))
        if part.types.get("split.no") != _U16 or part.metadata["split.no"] != number - 1:
            raise part._error(f"it is not part {number} of {count}: its split.no is {part.metadata.get('split.no')!r}")
        if twice := header.tensors.keys() & part.tensors.keys():
            raise part._error(f"the tensor {min(twice)!r} is in another part as well")
        header.tensors |= part.tensors
        header.parts += part.parts
        header.size += part.size
    expected = header.metadata.get("split.tensors.count")
    if expected != len(header.tensors):
        raise header._error(f"its parts have {len(header.tensors)} tensors together, not {expected!r}")


def _read_file(path: str) -> GGUFHeader:
    try:
        with open(path, "rb") as file:
            reader = _Reader(path, file)
            try:
                return reader.header()
            finally:
                reader.close()
    except IsADirectoryError:
        inside = sorted(Path(path).glob("*.gguf"))
        hint = f"; there is {inside[0].name} in it" if inside else ""
        raise ModelLoadError(f"cannot load {path}: it is a directory{hint}", path=path) from None
    except FileNotFoundError:
        raise ModelLoadError(f"cannot load {path}: there is no such file", path=path) from None
    except OSError as error:
        if isinstance(error, ModelLoadError):
            raise
        raise ModelLoadError(f"cannot load {path}: {error.strerror or error}", path=path) from error


class _Reader:
    """Walks through a file that may end, or lie, anywhere."""

    def __init__(self, path: str, file: Any) -> None:
        self.path = path
        self.size = os.fstat(file.fileno()).st_size
        self.position = 0
        if self.size == 0:
            raise self.error("the file is empty")
        self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def close(self) -> None:
        self.data.close()

    def error(self, what: str) -> ModelLoadError:
        return ModelLoadError(f"cannot load {self.path}: {what}", path=self.path)

    def need(self, n_bytes: int, what: str) -> int:
        """Move past `n_bytes`, and say where they start."""
        start = self.position
        if n_bytes > self.size - start:
            raise self.error(
                f"the file is truncated: {what} needs {n_bytes} bytes at offset {start}, the file ends at {self.size}"
            )
        self.position = start + n_bytes
        return start

    def scalar(self, form: str, what: str) -> Any:
        return struct.unpack_from(form, self.data, self.need(struct.calcsize(form), what))[0]

    def string(self, what: str) -> str:
        length = self.scalar("<Q", what)
        if length > MAX_STRING:
            raise self.error(f"damaged: {what} claims a length of {length} bytes")
        start = self.need(length, what)
        return self.data[start : start + length].decode("utf-8", "replace")

    def header(self) -> GGUFHeader:
        if self.data[:4] != MAGIC:
            raise self.error(f"it is not a GGUF file (it starts with {self.data[:4]!r})")
        self.position = 4
        version = self.scalar("<I", "the version")
        if version not in VERSIONS:
            if version & 0xFFFF == 0:
                raise self.error("it was written for a big-endian machine")
            raise self.error(f"its GGUF version is {version}; versions 2 and 3 can be read")
        n_tensors = self.scalar("<Q", "the number of tensors")
        n_keys = self.scalar("<Q", "the number of metadata keys")
        # The smallest key takes 13 bytes and the smallest tensor 24: no need to loop over absurd counts.
        if n_keys * 13 + n_tensors * 24 > self.size:
            raise self.error(f"damaged: it claims {n_keys} metadata keys and {n_tensors} tensors in {self.size} bytes")
        header = GGUFHeader(self.path, version, DEFAULT_ALIGNMENT, {}, parts=[self.path], size=self.size)
        for i in range(n_keys):
            key = self.string(f"the name of metadata key {i + 1}")
            if not key or key in header.metadata:
                raise self.error(f"damaged: metadata key {i + 1} is {'there twice' if key else 'empty'}: {key!r}")
            header.types[key], header.metadata[key] = self.value(key)
        header.alignment = self.alignment(header)
        self.tensor_list(header, n_tensors)
        return header

    def value(self, key: str) -> tuple[int, Any]:
        """The type and value of a metadata key."""
        value_type = self.scalar("<I", f"the type of {key}")
        if value_type == _ARRAY:
            return value_type, self.array(key)
        if value_type == _STRING:
            return value_type, self.string(key)
        if value_type not in _SCALARS:
            raise self.error(f"damaged: {key} has the unknown type {value_type}")
        return value_type, self.scalar(_SCALARS[value_type], key)

    def array(self, key: str) -> GGUFArray:
        value_type = self.scalar("<I", f"the type of {key}")
        count = self.scalar("<Q", f"the length of {key}")
        start = self.position
        if value_type == _STRING:
            self.skip_strings(count, key)
        elif value_type in _SCALARS:
            self.need(count * struct.calcsize(_SCALARS[value_type]), key)
        else:
            raise self.error(f"damaged: the array {key} has elements of the unknown type {value_type}")
        return GGUFArray(self.path, value_type, count, start, self.position - start)

    def skip_strings(self, count: int, key: str) -> None:
        if count * 8 > self.size - self.position:
            raise self.error(f"the file is truncated: {key} claims {count} strings, the file ends at {self.size}")
        unpack, data, position, last = (
            struct.Struct("<Q").unpack_from,
            self.data,
            self.position,
            self.size - 8,
        )
        for _ in range(count):
            if position > last:
                break
            position += 8 + unpack(data, position)[0]
        if position > self.size or position > last + 8:
            raise self.error(f"the file is truncated or damaged inside {key}: the file ends at {self.size}")
        self.position = position

    def alignment(self, header: GGUFHeader) -> int:
        alignment = header.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if header.types.get("general.alignment", _U32) != _U32 or alignment <= 0 or alignment & (alignment - 1):
            raise self.error(f"damaged: general.alignment is {alignment!r}, not a power of two")
        return int(alignment)

    def tensor_list(self, header: GGUFHeader, count: int) -> None:
        """Read the list of tensors, and see that each lies inside the file, behind the one before."""
        relative = 0
        entries: list[tuple[str, tuple[int, ...], str, int]] = []
        for i in range(count):
            name = self.string(f"the name of tensor {i + 1}")
            if len(name.encode()) >= MAX_NAME:
                raise self.error(f"damaged: the name of tensor {i + 1} is longer than {MAX_NAME - 1} bytes")
            n_dims = self.scalar("<I", f"the shape of {name}")
            if n_dims > MAX_DIMS:
                raise self.error(f"damaged: the tensor {name} has {n_dims} dimensions")
            shape = tuple(self.scalar("<Q", f"the shape of {name}") for _ in range(n_dims))
            type_number = self.scalar("<I", f"the type of {name}")
            offset = self.scalar("<Q", f"the offset of {name}")
            if type_number not in _TENSOR_TYPES:
                raise self.error(f"the tensor {name} has the unknown type {type_number}")
            type_name, block, block_bytes = _TENSOR_TYPES[type_number]
            n_elements = 1
            for n in shape:
                n_elements *= n
            if n_elements >= 1 << 63 or (shape and shape[0] % block):
                raise self.error(f"damaged: the tensor {name} of type {type_name} has the shape {shape}")
            if offset != relative:
                raise self.error(f"damaged: the tensor {name} is said to be at {offset}, it should be at {relative}")
            n_bytes = n_elements // block * block_bytes
            relative += -(-n_bytes // header.alignment) * header.alignment
            entries.append((name, shape, type_name, n_bytes))
        start = -(-self.position // header.alignment) * header.alignment
        for name, shape, type_name, n_bytes in entries:
            if name in header.tensors:
                raise self.error(f"damaged: the tensor {name} is listed twice")
            if start + n_bytes > self.size:
                raise self.error(
                    f"the file is truncated: the tensor {name} needs {n_bytes} bytes at offset {start}, "
                    f"the file ends at {self.size}"
                )
            header.tensors[name] = GGUFTensor(name, shape, type_name, start, n_bytes, self.path)
            start += -(-n_bytes // header.alignment) * header.alignment
