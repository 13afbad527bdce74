"""What a list is worth: its size, and which share of texts could be drafted with it."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from pyspec._llama import Vocab
from pyspec.gguf_header import GGUFHeader
from pyspec.vocab_lists.build import ranked
from pyspec.vocab_lists.count import Counts, Numbers

# First words of Unicode's names of letters, and what they are called here.
_SCRIPTS = {"CJK": "Han", "HIRAGANA": "Kana", "KATAKANA": "Kana", "IDEOGRAPHIC": "Han", "FULLWIDTH": "Latin"}
N_MISSING = 20


@dataclass(frozen=True)
class Inspection:
    """A list beside a vocabulary, and beside texts if there are any.

    Attributes:
        n_ids: tokens of the list.
        n_vocab: tokens of the vocabulary.
        head_bytes: memory of an output head with these rows; None: the file has no output head.
        coverage: share of all texts' tokens in the list; None: there were no texts.
        by_source: (tokens, coverage) of each file.
        by_script: (tokens, coverage) of each kind of token, the most frequent kind first.
        missing: the most frequent tokens that are not in the list, and how often they occur.
    """

    n_ids: int
    n_vocab: int
    head_bytes: int | None
    coverage: float | None = None
    by_source: dict[str, tuple[int, float]] = field(default_factory=dict)
    by_script: dict[str, tuple[int, float]] = field(default_factory=dict)
    missing: tuple[tuple[int, int], ...] = ()

    @property
    def share(self) -> float:
        """Of the vocabulary."""
        return self.n_ids / self.n_vocab


def inspect(ids: Iterable[int], vocab: Vocab, header: GGUFHeader, counts: Counts | None = None) -> Inspection:
    """Looks at a list.

    Args:
        ids: its tokens.
        vocab: the model's vocabulary.
        header: the model's file.
        counts: of the texts to compare it with, by source as well.
    """
    listed = np.zeros(vocab.n_tokens, bool)
    listed[list(ids)] = True
    n_ids = int(listed.sum())
    n_bytes = head_bytes(header, n_ids)
    if counts is None or not counts.total:
        return Inspection(n_ids, vocab.n_tokens, n_bytes)
    by_token = counts.by_token
    scripts: dict[str, list[int]] = {}
    for token in np.flatnonzero(by_token):
        scripts.setdefault(script(vocab.piece(int(token))), []).append(int(token))
    by_script = {name: _covered(by_token[tokens], listed[tokens]) for name, tokens in scripts.items()}
    missing = [token for token in ranked(np.where(listed, 0, by_token))[:N_MISSING] if by_token[token]]
    return Inspection(
        n_ids,
        vocab.n_tokens,
        n_bytes,
        coverage=_covered(by_token, listed)[1],
        by_source={path: _covered(its, listed) for path, its in counts.by_source.items()},
        by_script=dict(sorted(by_script.items(), key=lambda item: -item[1][0])),
        missing=tuple((token, int(by_token[token])) for token in missing if not listed[token]),
    )


def head_bytes(header: GGUFHeader, n_rows: int) -> int | None:
    """Memory of an output head with so many rows; None: the file has no output head."""
    head = header.tensors.get("output.weight") or header.tensors.get("token_embd.weight")
    return None if head is None else head.n_bytes // head.shape[-1] * n_rows


def _covered(counts: Numbers, listed: np.ndarray) -> tuple[int, float]:
    total = int(counts.sum())
    return total, float(counts[listed].sum() / total) if total else 1.0


def script(piece: bytes) -> str:
    """The kind of characters a token has: the script of its first letter, else digits, symbols, space or bytes."""
    try:
        text = piece.decode()
    except UnicodeDecodeError:
        return "parts of characters"
    for char in text:
        if char.isalpha():
            word = unicodedata.name(char, "OTHER").split()[0]
            return _SCRIPTS.get(word, word.capitalize())
    if any(char.isdigit() for char in text):
        return "digits"
    return "symbols" if text.strip() else "space"
