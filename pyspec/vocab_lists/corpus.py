"""Texts to count tokens of: which files, and their contents in pieces that fit into memory."""

from __future__ import annotations

import codecs
import glob
import gzip
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from pyspec.errors import InvalidRequest

# Characters of a piece, more or less.
PIECE = 1 << 20

# What a folder is searched for; a file that is named itself may be called anything.
SUFFIXES = frozenset(
    [
        ".txt",
        ".text",
        ".md",
        ".rst",
        ".jsonl",
        ".ndjson",
        ".csv",
        ".tsv",
        ".html",
        ".xml",
        ".tex",
        ".srt",
        ".py",
        ".pyx",
        ".pyi",
        ".c",
        ".h",
        ".cc",
        ".cpp",
        ".hpp",
        ".cu",
        ".java",
        ".js",
        ".ts",
        ".tsx",
        ".jsx",
        ".go",
        ".rs",
        ".rb",
        ".php",
        ".cs",
        ".swift",
        ".kt",
        ".scala",
        ".sh",
        ".sql",
        ".lua",
        ".pl",
        ".r",
        ".jl",
        ".hs",
        ".ml",
        ".css",
        ".toml",
        ".yaml",
        ".yml",
    ]
)
_LINES_OF_JSON = (".jsonl", ".ndjson")


@dataclass(frozen=True)
class Source:
    """A file of a corpus.

    Attributes:
        path: where it is; ``.gz`` files are unpacked on the way.
        fields: in a file of JSON lines: names of the fields that hold texts, ``"a.b"`` for a field in a field.
    """

    path: str
    fields: tuple[str, ...] = ("text",)

    @property
    def has_json_lines(self) -> bool:
        """Whether each line is a JSON document."""
        return Path(self.path.removesuffix(".gz")).suffix.lower() in _LINES_OF_JSON


def find(names: Iterable[str | os.PathLike[str]], *, fields: Iterable[str] = ("text",)) -> list[Source]:
    """The files that names stand for, each once: files, folders (with everything in them that looks like text, by its
    suffix) and patterns, those of a name in alphabetical order.

    Raises:
        InvalidRequest: a name stands for nothing.
    """
    found: dict[str, None] = {}
    for name in (os.fspath(given) for given in names):
        if os.path.isdir(name):
            files = sorted(str(path) for path in Path(name).rglob("*") if path.is_file() and _looks_like_text(path))
        elif os.path.exists(name):
            files = [name]
        else:
            files = sorted(path for path in glob.glob(name, recursive=True) if os.path.isfile(path))
        if not files:
            what = "holds no texts" if os.path.isdir(name) else "is no file, folder or pattern that fits one"
            raise InvalidRequest(f"{name} {what}", name="corpus", value=name)
        found.update(dict.fromkeys(files))
    return [Source(path, tuple(fields)) for path in found]


def _looks_like_text(path: Path) -> bool:
    return Path(path.name.removesuffix(".gz")).suffix.lower() in SUFFIXES


def pieces(source: Source) -> Iterator[str]:
    """A file's text, piece by piece; pieces end with a line where lines are not too long.

    Raises:
        InvalidRequest: it can't be read, is binary or no UTF-8, or a line of JSON has no such field. The message names
            file and line.
    """
    try:
        with _opened(source.path) as file:
            yield from _texts(source, file) if source.has_json_lines else _pieces(source.path, file)
    except (OSError, EOFError, zlib.error) as error:
        raise _error(source.path, None, f"can't be read: {getattr(error, 'strerror', None) or error}") from error


def _opened(path: str) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path, "rb")) if path.endswith(".gz") else open(path, "rb")


def _pieces(path: str, file: IO[bytes]) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    line, rest = 1, ""
    while True:
        data = file.read(PIECE)
        text = rest + _decoded(decoder, data, path, line + rest.count("\n"))
        if not data:
            if text:
                yield text
            return
        end = text.rfind("\n") + 1 or (text.rfind(" ") if len(text) > PIECE else 0)
        if not end and len(text) > 2 * PIECE:
            end = len(text)
        if end:
            yield text[:end]
        line += text.count("\n", 0, end)
        rest = text[end:]


def _decoded(decoder: codecs.IncrementalDecoder, data: bytes, path: str, line: int) -> str:
    if b"\0" in data:
        raise _error(path, line + data[: data.index(b"\0")].count(b"\n"), "is binary, not text")
    try:
        return decoder.decode(data, final=not data)
    except UnicodeDecodeError as error:
        raise _error(path, line + error.object[: error.start].count(b"\n"), "is no UTF-8 text") from None


def _texts(source: Source, file: IO[bytes]) -> Iterator[str]:
    """The texts of a file of JSON lines, joined into pieces."""
    gathered: list[str] = []
    size = 0
    for number, data in enumerate(file, 1):
        if not data.strip():
            continue
        try:
            document = json.loads(data)
        except ValueError:
            raise _error(source.path, number, "is no JSON") from None
        for field in source.fields:
            text = _field(document, field)
            if not isinstance(text, str):
                raise _error(source.path, number, f"has no text called {field!r}; name the field with texts")
            gathered.append(text + "\n")
            size += len(text)
        if size >= PIECE:
            yield "".join(gathered)
            gathered, size = [], 0
    if gathered:
        yield "".join(gathered)


def _field(document: object, name: str) -> object:
    for part in name.split("."):
        document = document.get(part) if isinstance(document, dict) else None
    return document


def _error(path: str, line: int | None, what: str) -> InvalidRequest:
    where = path if line is None else f"{path}, line {line},"
    return InvalidRequest(f"{where} {what}", name="corpus", value=path)
