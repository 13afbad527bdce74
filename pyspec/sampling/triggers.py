"""Triggers of lazy grammars: what they are, and when one appears in a text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspec.errors import GrammarError
from pyspec.sampling.checks import INT32_MAX, integer, text, wrong

if TYPE_CHECKING:
    from pyspec._llama import Vocab

Trigger = tuple[str, "str | int"]

# llama.cpp's kinds, in the order of its numbers for them.
KINDS = ("token", "word", "pattern", "pattern_full")

_ALLOWED = (
    "words, token ids, or (kind, value) pairs with the kinds token, word, pattern and pattern_full (a regular "
    "expression that the whole text has to match)"
)


def trigger_list(name: str, value: Any) -> tuple[Trigger, ...]:
    """Triggers as (kind, value) pairs, from all the ways to write them.

    Raises:
        InvalidRequest: something that is no trigger.
        GrammarError: a regular expression that is none.
    """
    if value is None:
        return ()
    if isinstance(value, str | int) and not isinstance(value, bool):
        value = [value]
    if isinstance(value, bytes | bool | Mapping) or not isinstance(value, Iterable):
        raise wrong(name, value, _ALLOWED)
    return tuple(_trigger(name, entry) for entry in value)


def _trigger(name: str, entry: Any) -> Trigger:
    if isinstance(entry, str):
        return "word", text(name, entry)
    if isinstance(entry, Mapping):
        return _from_llama_cpp(name, entry)
    if isinstance(entry, Sequence) and not isinstance(entry, bytes):
        if len(entry) != 2 or entry[0] not in KINDS:
            raise wrong(name, entry, _ALLOWED)
        kind, what = entry
        if kind == "token":
            return "token", integer(name, what, 0, INT32_MAX)
        checked = text(name, what)
        if kind != "word":
            _compile(checked, name)
        return kind, checked
    return "token", integer(name, entry, 0, INT32_MAX)


def _from_llama_cpp(name: str, entry: Mapping[Any, Any]) -> Trigger:
    """``{"type": 1, "value": "<tool_call>"}``, ``{"type": 0, "token": 5, ...}``; types by number or by name."""
    kind = entry.get("type")
    if isinstance(kind, int) and not isinstance(kind, bool) and 0 <= kind < len(KINDS):
        kind = KINDS[kind]
    if kind not in KINDS or not set(entry) <= {"type", "value", "token"}:
        raise wrong(name, entry, _ALLOWED)
    return _trigger(name, (kind, entry.get("token" if kind == "token" else "value")))


def _compile(pattern: str, name: str) -> re.Pattern[bytes]:
    try:
        return re.compile(pattern.encode())
    except (re.error, RecursionError, OverflowError) as error:
        raise GrammarError(f"{name}: {pattern!r} is no regular expression: {error}", name=name, value=pattern) from None


@dataclass(frozen=True)
class Fired:
    """A trigger that appeared in a text.

    Attributes:
        tokens: the tokens from the one on in which the grammar's part begins, so far.
        offset: bytes of the first of them that come before it.
        begin: what the grammar's part begins with, as bytes: from the trigger's first byte on, or from its first group.
        behind: the same without the trigger; where a pattern has a group, from the group on.
    """

    tokens: tuple[int, ...]
    offset: int
    begin: bytes
    behind: bytes


class Watch:
    """Looks for triggers in a text that arrives token by token, as libllama's lazy grammars do.

    A trigger has appeared when the text so far holds a word, or somewhere matches a pattern (``re``, on bytes), or when
    a token is drawn. Not done by libllama itself: its regular expressions go as deep into the stack as the text is
    long, and end the process.
    """

    def __init__(self, triggers: Sequence[Trigger], vocab: Vocab) -> None:
        self._vocab = vocab
        self._ids = frozenset(what for kind, what in triggers if kind == "token")
        self._words = [str(what).encode() for kind, what in triggers if kind == "word"]
        self._reach = max(map(len, self._words), default=1) - 1
        self._patterns = [
            (kind, _compile(str(what), "grammar_triggers")) for kind, what in triggers if kind.startswith("pattern")
        ]
        self._text = bytearray()
        self._tokens: list[int] = []
        self._starts: list[int] = []  # of the tokens in the text

    def quiet(self, draft: Sequence[int]) -> int:
        """How many of the first tokens of a draft complete no trigger."""
        ahead = bytearray(self._text if self._patterns else self._text[-self._reach - 1 :])
        for i, token in enumerate(draft):
            if self._found(ahead, token) is not None:
                return i
        return len(draft)

    def read(self, tokens: Sequence[int]) -> Fired | None:
        """Takes in more of the text; what has fired, if something has."""
        for i, token in enumerate(tokens):
            self._starts.append(len(self._text))
            self._tokens.append(token)
            found = self._found(self._text, token)
            if found is not None:
                for later in tokens[i + 1 :]:
                    self._starts.append(len(self._text))
                    self._tokens.append(later)
                    self._text += self._vocab.piece(later)
                return self._fired(*found)
        return None

    def _fired(self, start: int, end: int) -> Fired:
        first = max(i for i, at in enumerate(self._starts) if at <= start)
        return Fired(
            tokens=tuple(self._tokens[first:]),
            offset=start - self._starts[first],
            begin=bytes(self._text[start:]),
            behind=bytes(self._text[end:]),
        )

    def _found(self, text: bytearray, token: int) -> tuple[int, int] | None:
        """Adds the token to the text. Where the trigger that it completes begins, and where it ends."""
        before = len(text)
        text += self._vocab.piece(token)
        if token in self._ids:
            return before, len(text)
        for word in self._words:
            at = text.find(word, max(0, before - len(word) + 1))
            if at >= 0:
                return at, at + len(word)
        for kind, pattern in self._patterns:
            match = _match(kind, pattern, text)
            if match is not None:
                for group in range(1, len(match.groups()) + 1):
                    if match.group(group):
                        return match.start(group), match.start(group)
                return match.start(), match.end()
        return None


def _match(kind: str, pattern: re.Pattern[bytes], text: bytearray) -> re.Match[bytes] | None:
    if kind == "pattern_full":
        return pattern.fullmatch(text)
    if pattern.pattern.startswith(rb"[\s\S]*"):  # what matches anywhere matches at the beginning: no need to look on
        return pattern.match(text)
    return pattern.search(text)
