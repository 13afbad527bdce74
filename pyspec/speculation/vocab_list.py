"""Files that list the tokens worth drafting.

A text file: token ids, one or several a line, ``#`` starts a comment. Lines of the form ``# name: value`` at the top
say what it is; ``tokenizer`` is compared with the model's when the file is read. ``pyspec draft-vocab build`` writes
such files, most frequent tokens first.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

from pyspec.errors import InvalidRequest
from pyspec.whole_file import whole_file

if TYPE_CHECKING:
    from pyspec._llama import Vocab

_HEADER = re.compile(r"#\s*([a-z][a-z ]*?)\s*:\s*(.*)")
_PIECE = 1 << 16  # characters that are looked at together, however long a line is
_LONGEST_WORD = 40  # a longer one is no number, and is not shown whole


@dataclass(frozen=True)
class VocabList:
    """A list of token ids.

    Attributes:
        ids: each once, in the order of the file.
        header: what the comments at its top say, by name.
        path: the file it came from, or None.
    """

    ids: tuple[int, ...]
    header: dict[str, str] = field(default_factory=dict)
    path: str | None = None


def tokenizer_hash(vocab: Vocab) -> str:
    """Identifies a tokenizer: models with the same one give the same text to every id."""
    digest = hashlib.sha256(f"{vocab.type} {vocab.n_tokens}".encode())
    for token in range(vocab.n_tokens):
        digest.update(b"\0" + vocab.text(token).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:32]


def read_list(path: str | os.PathLike[str], *vocabs: Vocab) -> VocabList:
    """Reads a list. Ids that stand there twice count once.

    Args:
        path: the file.
        vocabs: of the models it is for. Ids have to be in all of them; where the file names a tokenizer, it has to be
            that of one of them.

    Raises:
        InvalidRequest: the file can't be read, has no ids or something else than ids, ids that no token has, or is for
            another tokenizer. The message names the line.
    """
    name = os.fspath(path)
    n_vocab = min(vocab.n_tokens for vocab in vocabs)
    ids: dict[int, None] = {}
    header: dict[str, str] = {}
    try:
        with open(name, encoding="utf-8", errors="replace") as file:
            for number, word in _words(file, header):
                if not (word.isascii() and word.isdecimal()) or len(word) > _LONGEST_WORD:
                    raise _error(name, number, f"{_shown(word)} is no token id")
                if int(word) >= n_vocab:
                    raise _error(name, number, f"token {int(word)} is outside 0..{n_vocab - 1}")
                ids[int(word)] = None
    except OSError as error:
        raise InvalidRequest(
            f"the draft vocabulary {name} can't be read: {error.strerror or error}", name="vocab", value=name
        ) from error
    if not ids:
        raise InvalidRequest(f"the draft vocabulary {name} lists no tokens", name="vocab", value=name)
    wanted = header.get("tokenizer")
    if wanted is not None and wanted not in map(tokenizer_hash, vocabs):
        made_for = f" (made for {header['model']})" if "model" in header else ""
        raise InvalidRequest(
            f"the draft vocabulary {name} is for another tokenizer{made_for}: its ids stand for other texts. Build one "
            f"for this model: pyspec draft-vocab build",
            name="vocab",
            value=name,
        )
    return VocabList(tuple(ids), header, name)


def read_header(path: str | os.PathLike[str]) -> dict[str, str]:
    """What the comments at the top of a list say, by name.

    Raises:
        OSError: it can't be read.
    """
    header: dict[str, str] = {}
    with open(path, encoding="utf-8", errors="replace") as file:
        next(_words(file, header), None)
    return header


def write_list(path: str | os.PathLike[str], ids: Iterable[int], header: Mapping[str, str]) -> None:
    """Writes a list, whole or not at all: what was there stays where the disk is full.

    Args:
        path: the file, which is replaced.
        ids: one a line, in this order.
        header: comments at the top, by name.

    Raises:
        OSError: it can't be written.
    """
    with whole_file(path) as file:
        file.writelines(f"# {key}: {' '.join(value.split())}\n".encode() for key, value in header.items())
        file.writelines(f"{token}\n".encode() for token in ids)


def _words(file: IO[str], header: dict[str, str]) -> Iterator[tuple[int, str]]:
    """Line number and word of all words outside comments; fills `header` from the comments before the first one."""
    number, rest, comment, at_top = 1, "", "", True
    while True:
        piece = file.readline(_PIECE)
        ends = piece.endswith("\n") or not piece
        text = rest + piece
        rest = ""
        if comment:
            comment += text if len(comment) < _PIECE else ""
        else:
            text, mark, remark = text.partition("#")
            comment = mark + remark
            if not ends and not mark and text and not text[-1].isspace():
                *_, rest = text.rsplit(maxsplit=1)
                text = text[: -len(rest)]
                if len(rest) > _PIECE:
                    yield number, rest
            for word in text.split():
                at_top = False
                yield number, word
        if ends:
            if at_top and (found := _HEADER.fullmatch(comment.strip())):
                header[found[1]] = found[2]
            comment = ""
            number += 1
        if not piece:
            return


def _shown(word: str) -> str:
    return repr(word if len(word) <= _LONGEST_WORD else word[:_LONGEST_WORD] + "...")


def _error(name: str, number: int, what: str) -> InvalidRequest:
    value: Any = name
    return InvalidRequest(f"{name}, line {number}: {what}", name="vocab", value=value)
