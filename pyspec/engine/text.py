"""Token pieces to text: complete characters, and stop strings across token and round borders.

The text is a function of the bytes alone, never of how tokens or rounds cut them:

- It is what ``bytes.decode("utf-8", errors="replace")`` makes of the whole stream. A character that is
  split over tokens is held back until it is complete; invalid bytes become U+FFFD.
- It ends before the first stop string that completes, reading character by character. Of several that
  complete at the same character the longest counts. So decoding token by token, in rounds of accepted
  drafts or in one go gives the same text.
- The token in which the stop string completed is the last one of the result, however many tokens of the
  string came before it; whatever follows it is dropped.
- Held back is only what may still change: the bytes of an unfinished character, and the longest end of
  the text that is the beginning of a stop string. :meth:`TextAssembler.finish` releases both. Bytes of a
  character that never got complete (the token limit fell inside it) become U+FFFD as everywhere else, and
  are reported, so that a caller can drop them or go on from the tokens.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from pyspec.errors import InvalidRequest


class Fed(NamedTuple):
    """What one call released.

    Attributes:
        text: text that is final; the texts of all calls together are the text of the request.
        n_used: how many of the given pieces belong to the result: all of them, or up to and including the
            one in which the stop string completed.
        stop: the stop string that ended the text, or None.
        parts: the text by the piece that released it, for each that was used.
    """

    text: str
    n_used: int
    stop: str | None = None
    parts: tuple[str, ...] = ()


class StopMatcher:
    """Finds the first of several strings to complete in a text that arrives in parts.

    An automaton after Aho and Corasick: a state is the longest end of the text that begins one of the
    strings, and its depth is how much of the text may still become part of a match. Each character costs
    amortised constant time, however many strings there are.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._fail = [0]
        self._match: list[str | None] = [None]
        for string in strings:
            self._add(string)
        self._link()
        self._first = frozenset(self._next[0])
        self._state = 0

    def _add(self, string: str) -> None:
        state = 0
        for char in string:
            known = self._next[state].get(char)
            if known is None:
                known = len(self._next)
                self._next[state][char] = known
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._fail.append(0)
                self._match.append(None)
            state = known
        self._match[state] = string

    def _link(self) -> None:
        # Breadth first, so that the state a link points to (a shorter one) is already complete.
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            if self._match[state] is None:
                self._match[state] = self._match[self._fail[state]]
            for char, child in self._next[state].items():
                self._fail[child] = self._step(self._fail[state], char)
                queue.append(child)

    def _step(self, state: int, char: str) -> int:
        while state and char not in self._next[state]:
            state = self._fail[state]
        return self._next[state].get(char, 0)

    @property
    def held(self) -> int:
        """How many of the last characters may still become part of a stop string."""
        return self._depth[self._state]

    def feed(self, text: str) -> tuple[int, str] | None:
        """Reads more text.

        Returns:
            None, or the number of characters of ``text`` up to the end of the first match, and the string.
        """
        state = self._state
        if not state and self._first.isdisjoint(text):
            return None
        for at, char in enumerate(text):
            state = self._step(state, char)
            match = self._match[state]
            if match is not None:
                return at + 1, match
        self._state = state
        return None


class TextAssembler:
    """The text of one request.

    Args:
        stop: strings that end the text, none of them empty.

    Raises:
        InvalidRequest: for an empty stop string.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        strings = (stop,) if isinstance(stop, str) else tuple(stop)
        if "" in strings:
            raise InvalidRequest("stop holds an empty string, which every text contains", name="stop", value=stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._matcher = StopMatcher(strings) if strings else None
        self._held: deque[str] = deque()
        self._n_held = 0
        self._stop: str | None = None

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the text, or None as long as none has."""
        return self._stop

    @property
    def incomplete(self) -> bytes:
        """The bytes of a character at the end that is not complete (yet)."""
        return b"" if self._stop is not None else self._decoder.getstate()[0]

    def feed(self, pieces: Sequence[bytes]) -> Fed:
        """Takes the pieces of a run of tokens, one per token, in order.

        After a stop string nothing is taken any more (``n_used`` is 0).
        """
        parts: list[str] = []
        for n_before, piece in enumerate(pieces):
            if self._stop is not None:
                return Fed("".join(parts), n_before, self._stop, tuple(parts))
            parts.append(self._release(self._decoder.decode(piece)))
        return Fed("".join(parts), len(pieces), self._stop, tuple(parts))

    def finish(self) -> Fed:
        """Releases what was held back; call it once, when no token follows.

        An unfinished character becomes U+FFFD; look at ``incomplete`` before to know its bytes.
        """
        if self._stop is not None:
            return Fed("", 0, self._stop)
        text = self._release(self._decoder.decode(b"", final=True))
        if self._stop is None:
            text += self._take(self._n_held)
        return Fed(text, 0, self._stop)

    def _release(self, text: str) -> str:
        """Adds decoded text, returns what can no longer be part of a stop string."""
        if self._matcher is None or not text:
            return text
        found = self._matcher.feed(text)
        if found is not None:
            n_read, self._stop = found
            n_final = self._n_held + n_read - len(self._stop)
        else:
            n_final = self._n_held + len(text) - self._matcher.held
        self._held.append(text)
        self._n_held += len(text)
        return self._take(n_final)

    def _take(self, n: int) -> str:
        """Removes the first n held characters."""
        self._n_held -= n
        parts: list[str] = []
        while n:
            part = self._held.popleft()
            if len(part) > n:
                self._held.appendleft(part[n:])
                part = part[:n]
            parts.append(part)
            n -= len(part)
        return "".join(parts)
