"""A result token by token: all that is known of each."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Token:
    """One token of a result.

    Attributes:
        id: the token.
        bytes: what it stands for in the text; of a token that ends the text nothing.
        text: the characters that it completed. A character may stretch over several tokens: it counts as the last
            one's, and what stays incomplete at the end is one U+FFFD of the last token. All texts together are the text
            of the result, and the stop string that was cut off from it.
        logprob: its log-probability, if the request asked for them.
        top: the best tokens in its place and theirs, best first.
        drafted_by: name of the speculator that had drafted it, or None.
        time: seconds from the submission of the request to the round that emitted it.
    """

    id: int
    bytes: bytes
    text: str
    logprob: float | None
    top: tuple[tuple[int, float], ...]
    drafted_by: str | None
    time: float


def completed_texts(pieces: Sequence[bytes]) -> list[str]:
    """For each piece the characters that it completes; the last one has what is left incomplete, as U+FFFD."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    texts = [decoder.decode(piece) for piece in pieces]
    rest = decoder.decode(b"", final=True)
    if rest:
        texts[-1] += rest
    return texts
