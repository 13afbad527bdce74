"""Whether a draft model speaks the target's tokens.

A draft proposes token ids, and the target only ever emits its own choices: with two different vocabularies
the text would still be right, but hardly a proposal would be accepted. So a pair has to agree before it runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import compress
from operator import ne
from typing import TYPE_CHECKING, Any

from pyspec.errors import VocabMismatch

if TYPE_CHECKING:
    from pyspec._llama import Vocab

# Models of one family pad their vocabularies differently; llama.cpp's limit for the difference.
MAX_SIZE_DIFFERENCE = 128

# llama.cpp doesn't compare the ids below this: families give their special tokens other names.
FIRST_TEXT_TOKEN = 5

_ATTR_UNKNOWN, _ATTR_UNUSED, _ATTR_CONTROL = 1, 2, 8  # bits of LLAMA_TOKEN_ATTR_*


def check_vocabulary(target: Vocab, draft: Vocab) -> None:
    """Raises if two models don't share a vocabulary, naming the first property that differs.

    Compared, in this order, are llama.cpp's own conditions: the type; whether BOS is added and, if so, its
    id; the same for EOS; the sizes, which may differ by up to 128 (padding); and the text of every id that
    both have. Below id 5 texts may differ where both tokens are special ones (control, unknown, unused),
    which stand for no text. llama.cpp doesn't look at those five at all.

    Ids that only the draft has are no reason to refuse a pair; they must never be proposed.

    Raises:
        VocabMismatch: with the property, both values and, for a text, the token id.
    """
    if target.type != draft.type:
        raise _mismatch("type", target.type, draft.type, "Such tokenizers cut text differently.")
    for name in ("bos", "eos"):
        adds, draft_adds = getattr(target, f"add_{name}"), getattr(draft, f"add_{name}")
        if adds != draft_adds:
            raise _mismatch(
                f"add_{name}", adds, draft_adds, f"One model expects {name.upper()} around its prompt."
            )
        token, draft_token = getattr(target, name), getattr(draft, name)
        if adds and token != draft_token:
            raise _mismatch(f"{name} token", token, draft_token)
    n_target, n_draft = target.n_tokens, draft.n_tokens
    if abs(n_target - n_draft) > MAX_SIZE_DIFFERENCE:
        raise _mismatch(
            "size", n_target, n_draft, f"Up to {MAX_SIZE_DIFFERENCE} tokens of padding are accepted."
        )
    for token_id in _different_texts(target, draft):
        if token_id >= FIRST_TEXT_TOKEN or not (
            _is_special(target, token_id) and _is_special(draft, token_id)
        ):
            texts = target.text(token_id), draft.text(token_id)
            raise _mismatch("token text", *texts, token_id=token_id)


def _different_texts(target: Vocab, draft: Vocab) -> Iterator[int]:
    common = range(min(target.n_tokens, draft.n_tokens))
    return compress(common, map(ne, map(target.text, common), map(draft.text, common)))


def _is_special(vocab: Vocab, token_id: int) -> bool:
    return bool(vocab.attr(token_id) & (_ATTR_UNKNOWN | _ATTR_UNUSED | _ATTR_CONTROL))


def _mismatch(
    name: str, target: Any, draft: Any, remark: str = "", token_id: int | None = None
) -> VocabMismatch:
    where = name if token_id is None else f"{name} of token {token_id}"
    values = f"{where} is {target!r} in the target, {draft!r} in the draft."
    parts = ("Target and draft have different vocabularies:", values, remark)
    message = " ".join((*filter(None, parts), "Take a draft that was made with the target's tokenizer."))
    return VocabMismatch(message, property=name, target=target, draft=draft, token_id=token_id)
