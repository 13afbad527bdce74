"""Saved sequences as files: what a prompt left in the memories, to go on from in another process.

    magic "PSPX"  u32 version  u32 length of the header  header (JSON)  tokens (i32)  states  CRC-32 of all before it

Integers are little endian. The header says which model the states belong to, and how long each part is.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from array import array
from typing import TYPE_CHECKING, Any

from pyspec.engine.prefixes import Saved
from pyspec.errors import StateError
from pyspec.whole_file import whole_file

if TYPE_CHECKING:
    from pyspec._llama import Model

MAGIC = b"PSPX"
VERSION = 1
_START = struct.Struct("<4sII")
_CRC = struct.Struct("<I")


def identity(model: Model, type_k: str, type_v: str) -> dict[str, Any]:
    """What has to be the same for a state to be of use."""
    vocab = model.vocab
    texts = zlib.crc32("\0".join(vocab.text(token) for token in range(0, vocab.n_tokens, 97)).encode())
    return {
        "arch": model.arch,
        "n_params": model.n_params,
        "size": model.size,
        "n_vocab": vocab.n_tokens,
        "vocab": texts,
        "type_k": type_k,
        "type_v": type_v,
    }


def write(path: str | os.PathLike[str], saved: Saved, model: dict[str, Any]) -> int:
    """Writes a file, whole or not at all. Returns its size in bytes.

    Raises:
        OSError: it can't be written.
    """
    parts = [saved.target, *[state or b"" for state in saved.speculators]]
    header = json.dumps(
        {
            "model": model,
            "n_tokens": len(saved.tokens),
            "furthest": saved.furthest,
            "sizes": [len(part) for part in parts],
        }
    ).encode()
    data = b"".join(
        (_START.pack(MAGIC, VERSION, len(header)), header, array("i", saved.tokens).tobytes(), *parts)
    )
    with whole_file(path) as file:
        file.write(data)
        file.write(_CRC.pack(zlib.crc32(data)))
    return len(data) + _CRC.size


def read(path: str | os.PathLike[str], model: dict[str, Any]) -> Saved:
    """What `write` wrote.

    Raises:
        StateError: it is damaged, no such file of pyspec's, of another version, or of another model; the message says
            which, and for a model what differs.
        OSError: it can't be read.
    """
    with open(path, "rb") as file:
        data = file.read()
    name = os.fspath(path)
    if len(data) < _START.size + _CRC.size or data[:4] != MAGIC:
        raise StateError(f"{name} is no saved prefix")
    _, version, n_header = _START.unpack_from(data)
    if version != VERSION:
        raise StateError(f"{name} has version {version}; this pyspec reads version {VERSION}")
    body = data[: -_CRC.size]
    if zlib.crc32(body) != _CRC.unpack(data[-_CRC.size :])[0]:
        raise StateError(f"{name} is damaged: its checksum does not match")
    try:
        at = _START.size + n_header
        header = json.loads(body[_START.size : at])
        n_tokens, furthest, sizes = header["n_tokens"], header["furthest"], header["sizes"]
        its_model = header["model"]
        if len(body) != at + 4 * n_tokens + sum(sizes) or n_tokens < 1:
            raise ValueError("lengths do not add up")
    except (ValueError, KeyError, TypeError) as error:
        raise StateError(f"{name} is damaged: {error}") from None
    for key, value in model.items():
        if its_model.get(key) != value:
            raise StateError(f"{name} belongs to another model: its {key} is {its_model.get(key)!r}, not {value!r}")
    tokens = array("i")
    tokens.frombytes(body[at : at + 4 * n_tokens])
    at += 4 * n_tokens
    parts = []
    for size in sizes:
        parts.append(body[at : at + size])
        at += size
    if any(not 0 <= token < model["n_vocab"] for token in tokens):
        raise StateError(f"{name} is damaged: a token is outside the vocabulary")
    return Saved(tuple(tokens), furthest, parts[0], tuple(part or None for part in parts[1:]))
