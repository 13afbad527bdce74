"""From what a caller gives as a prompt to token ids."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspec.errors import InvalidRequest

if TYPE_CHECKING:
    from pyspec._llama import Vocab


def prompt_tokens(prompt: str | bytes | Sequence[int], vocab: Vocab) -> list[int]:
    """The prompt's tokens.

    Args:
        prompt: text or UTF-8 bytes: special tokens written out in it are recognised, and a BOS (or EOS) token is
            added where the vocabulary asks for one. Token ids are taken as they are.

    Raises:
        InvalidRequest: nothing in it, not UTF-8, not a token id of this vocabulary, or not a prompt at all.
    """
    if isinstance(prompt, bytearray):
        prompt = bytes(prompt)
    if isinstance(prompt, str | bytes):
        tokens = vocab.tokenize(_text(prompt), add_special=True, parse_special=True) if prompt else []
    elif not isinstance(prompt, memoryview) and (isinstance(prompt, Sequence) or getattr(prompt, "ndim", 0) == 1):
        tokens = [_token(token, vocab.n_tokens, at) for at, token in enumerate(prompt)]
    else:
        raise InvalidRequest(f"a prompt is text or token ids, not {type(prompt).__name__}", name="prompt", value=prompt)
    if not tokens:
        raise InvalidRequest(
            "the prompt is empty; to write from nothing, give the BOS token: [engine.model.vocab.bos]",
            name="prompt",
            value=prompt,
        )
    return tokens


def _text(prompt: str | bytes) -> str:
    try:
        if isinstance(prompt, bytes):
            return prompt.decode("utf-8")
        prompt.encode("utf-8")
        return prompt
    except UnicodeError as error:
        raise InvalidRequest(f"the prompt is not Unicode text: {error}", name="prompt", value=prompt) from None


def _token(token: object, n_tokens: int, at: int) -> int:
    try:
        if isinstance(token, bool):
            raise TypeError
        value = operator.index(token)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidRequest(f"prompt[{at}] is no token id: {token!r}", name="prompt", value=token) from None
    if not 0 <= value < n_tokens:
        raise InvalidRequest(
            f"prompt[{at}] is {value}; the vocabulary has the ids 0..{n_tokens - 1}", name="prompt", value=value
        )
    return value
