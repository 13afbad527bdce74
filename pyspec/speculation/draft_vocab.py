"""Which tokens a draft model drafts: from what its `DraftModel` says to the rows of a reduced output head."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspec.errors import InvalidRequest
from pyspec.speculation.shipped_lists import shipped_list
from pyspec.speculation.vocab_list import read_list

if TYPE_CHECKING:
    from pyspec._llama import Vocab

# Rows of a head made without a list, slots included.
AUTO_ROWS = 32768

# A head has a multiple of so many rows: kernels take rows in groups.
ROUND_TO = 64

# Single characters that a head made without a list always has, in the tokenizer's order.
AUTO_CHARACTERS = 1024

# Control tokens alike but for a number in them are placeholders if they are more than so many.
MAX_NUMBERED = 8

_UNKNOWN, _UNUSED, _NORMAL, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 4, 8, 16, 32  # bits of LLAMA_TOKEN_ATTR_*


@dataclass(frozen=True)
class HeadRows:
    """What the rows of a reduced head stand for.

    Attributes:
        ids: each once; the last n_slots may give way to tokens that turn up in a text.
        n_slots: how many those are.
        shipped: name of the list that "auto" has found for the model, if one comes with the package.
    """

    ids: tuple[int, ...]
    n_slots: int
    shipped: str | None = None


def head_rows(vocab: str | tuple[int, ...], n_slots: int, draft: Vocab, target: Vocab) -> HeadRows | None:
    """The rows of a draft model's head.

    Args:
        vocab: "auto" (the list that comes with the package for this tokenizer, else the first tokens in its order), a
            file, or token ids.
        n_slots: rows that change with the texts: beside a list that was given, and the last ones of "auto"'s.
        draft: the draft model's vocabulary.
        target: the target's.

    Returns:
        None where that would be the whole vocabulary, or nearly.

    Raises:
        InvalidRequest: the file can't be read or is for another tokenizer, or an id no token has.
    """
    shipped = shipped_list(draft, target) if vocab == "auto" else None
    more: Iterable[int] = ()
    if shipped is not None:
        kept: Iterable[int] = special_tokens(draft)
        more = shipped.tokens.ids
    elif vocab == "auto":
        kept = (*special_tokens(draft), *first_characters(draft))
    elif isinstance(vocab, str):
        kept = read_list(vocab, draft, target).ids
    else:
        for token in vocab:
            if token >= min(draft.n_tokens, target.n_tokens):
                raise InvalidRequest(f"vocab has token {token}, which the models don't have", name="vocab", value=token)
        kept = vocab
    ids = dict.fromkeys(kept)
    n_kept = len(ids)
    ids.update(dict.fromkeys(more))
    n_rows = max(len(ids), n_kept + n_slots)
    if vocab == "auto" and shipped is None:
        n_rows = max(n_rows, AUTO_ROWS)
    n_rows += -n_rows % ROUND_TO
    if n_rows >= draft.n_tokens:
        return None
    for token in by_rank(draft):
        if len(ids) == n_rows:
            break
        ids[token] = None
    if len(ids) < n_rows:
        return None
    return HeadRows(
        tuple(ids),
        n_slots if vocab == "auto" else n_rows - n_kept,
        shipped=None if shipped is None else shipped.name,
    )


def special_tokens(vocab: Vocab, *, placeholders: bool = False) -> list[int]:
    """Tokens that every draft vocabulary has, whatever a corpus says: those that end a text, user-defined ones, bytes,
    and control tokens.

    Args:
        vocab: the vocabulary.
        placeholders: also the control tokens that stand for nothing yet (``<unused17>`` and the like).
    """
    attrs = [vocab.attr(token) for token in range(vocab.n_tokens)]
    control = [token for token, attr in enumerate(attrs) if attr & (_CONTROL | _UNUSED)]
    forms = {token: re.sub(r"\d+", "0", vocab.text(token)) for token in control}
    count = Counter(forms.values())
    chosen = set(vocab.eog_tokens)
    chosen.update(token for token, attr in enumerate(attrs) if attr & (_USER_DEFINED | _BYTE))
    for token in control:
        numbered = forms[token] != vocab.text(token) and count[forms[token]] > MAX_NUMBERED
        if placeholders or not (numbered or attrs[token] & _UNUSED):
            chosen.add(token)
    return sorted(chosen)


def first_characters(vocab: Vocab, n: int = AUTO_CHARACTERS) -> list[int]:
    """The first tokens that stand for a single character.

    Tokenizers that join pieces list them behind everything that was joined, the frequent ones first.
    """
    found = []
    for token in range(vocab.n_tokens):
        if len(vocab.text(token)) == 1 and vocab.attr(token) & _NORMAL:
            found.append(token)
            if len(found) == n:
                break
    return found


def by_rank(vocab: Vocab) -> Iterator[int]:
    """Ordinary tokens, those first that a tokenizer's training found to be frequent.

    Pieces are joined in the order of how often they stand together, and get their ids in that order. Where a tokenizer
    knows probabilities instead, those decide.
    """
    tokens: Iterable[int] = range(vocab.n_tokens)
    if vocab.type == "ugm":
        tokens = sorted(tokens, key=lambda token: -vocab.score(token))
    for token in tokens:
        attr = vocab.attr(token)
        if attr & _NORMAL and not attr & (_UNUSED | _CONTROL):
            yield token
