"""From counts to a list: the most frequent tokens, and those that no list should lack."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from pyspec._llama import Vocab
from pyspec.errors import InvalidRequest
from pyspec.speculation.draft_vocab import ROUND_TO, special_tokens
from pyspec.speculation.vocab_list import VocabList, tokenizer_hash
from pyspec.vocab_lists.count import Numbers


@dataclass(frozen=True)
class Built:
    """A list and what it is worth on the corpus it was made from.

    Attributes:
        ids: the most frequent first.
        coverage: share of the corpus's tokens that are in the list.
        n_special: how many are there whatever the corpus says.
    """

    ids: tuple[int, ...]
    coverage: float
    n_special: int


def build(
    counts: Numbers,
    vocab: Vocab,
    *,
    coverage: float = 0.998,
    size: int | None = None,
    all_control: bool = False,
) -> Built:
    """The tokens worth drafting.

    All tokens that end a text, that a user has defined, that stand for a byte, and control tokens but for mere
    placeholders; then the most frequent, until the list covers enough, and to a multiple of 64.

    Args:
        counts: int64, how often each token of the vocabulary occurs.
        vocab: the vocabulary.
        coverage: 0..1, share of the counted tokens that shall be in the list.
        size: so many tokens instead, up to the next multiple of 64.
        all_control: with the placeholders.

    Raises:
        InvalidRequest: nothing was counted, or a parameter is out of range.
    """
    if not 0.0 <= coverage <= 1.0:
        raise InvalidRequest(f"coverage must be from 0 to 1, not {coverage!r}", name="coverage", value=coverage)
    if size is not None and size < 1:
        raise InvalidRequest(f"size must be at least 1, not {size}", name="size", value=size)
    total = int(counts.sum())
    if total == 0:
        raise InvalidRequest("the corpus has no tokens", name="corpus", value=None)
    special = special_tokens(vocab, placeholders=all_control)
    chosen = dict.fromkeys(special)
    covered = int(counts[special].sum())
    for token in ranked(counts):
        enough = len(chosen) >= size if size is not None else covered >= coverage * total
        if enough and len(chosen) % ROUND_TO == 0:
            break
        if token not in chosen:
            chosen[token] = None
            covered += int(counts[token])
    ids = sorted(chosen, key=lambda token: (-counts[token], token))
    return Built(tuple(ids), covered / total, len(special))


def ranked(counts: Numbers) -> list[int]:
    """All tokens, the most frequent first; of equal ones the first in the vocabulary."""
    return [int(token) for token in np.argsort(-counts, kind="stable")]


def merge(lists: Sequence[VocabList], vocab: Vocab | None = None) -> tuple[int, ...]:
    """The tokens of several lists: the first of each, then the second of each, and so on, each once.

    With a vocabulary, filled up to a multiple of 64 with the first tokens that are missing.

    Raises:
        InvalidRequest: they are for different tokenizers.
    """
    hashes = {its.header["tokenizer"] for its in lists if "tokenizer" in its.header}
    if len(hashes) > 1:
        names = ", ".join(str(its.path) for its in lists)
        raise InvalidRequest(f"these lists are for different tokenizers: {names}", name="lists", value=names)
    chosen: dict[int, None] = {}
    for place in range(max((len(its.ids) for its in lists), default=0)):
        chosen.update(dict.fromkeys(its.ids[place] for its in lists if place < len(its.ids)))
    if vocab is not None:
        for token in range(vocab.n_tokens):
            if len(chosen) % ROUND_TO == 0:
                break
            chosen[token] = None
    return tuple(chosen)


def header(vocab: Vocab, model: str, *, corpus: Iterable[str], n_tokens: int, built: Built) -> dict[str, str]:
    """What the comments at the top of a list say."""
    return {
        "model": model,
        "vocabulary": str(vocab.n_tokens),
        "tokenizer": tokenizer_hash(vocab),
        "corpus": ", ".join(corpus),
        "tokens": str(n_tokens),
        "size": str(len(built.ids)),
        "coverage": f"{built.coverage:.5f}",
    }
