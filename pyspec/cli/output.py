"""The text of a run as it comes: plain, with the drafted tokens coloured, or only counted."""

from __future__ import annotations

import codecs
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Protocol

from pyspec.cli.console import Bars
from pyspec.engine import Chunk

_DRAFTED = ("\x1b[32m", "\x1b[36m", "\x1b[35m", "\x1b[33m", "\x1b[34m")  # green, cyan, magenta, yellow, blue
_PROMPT = "\x1b[2m"  # dim
_RESET = "\x1b[0m"


class Writer(Protocol):
    """Takes the chunks of a run."""

    def start(self, prompt: str) -> None:
        """Before the prompt is read."""

    def write(self, chunk: Chunk) -> None:
        """For each chunk."""

    def end(self) -> None:
        """After the last one, also when there was an error."""


class TextWriter:
    """Writes the text to standard output, with the prompt before it once that has been read."""

    def __init__(self, bars: Bars, *, display_prompt: bool) -> None:
        self._bars = bars
        self._display_prompt = display_prompt
        self._waiting_prompt = ""
        self._last = ""

    def start(self, prompt: str) -> None:
        # A terminal cannot show a bar behind half a line of text.
        if self._display_prompt:
            self._waiting_prompt = self._prompt(prompt)

    def write(self, chunk: Chunk) -> None:
        self._bars.clear()
        self._put(self._waiting_prompt + self._chunk(chunk))
        self._waiting_prompt = ""

    def end(self) -> None:
        self._bars.clear()
        if self._last not in ("", "\n"):
            self._put("\n")

    def _put(self, text: str) -> None:
        if text:
            sys.stdout.write(text)
            sys.stdout.flush()
            self._last = text[-1]

    def _prompt(self, prompt: str) -> str:
        return prompt

    def _chunk(self, chunk: Chunk) -> str:
        return chunk.text


class ColorWriter(TextWriter):
    """Writes the text with the characters coloured whose token had been drafted: a colour for each speculator.

    Args:
        piece: the bytes a token stands for in the text.
        speculators: their names.
    """

    def __init__(
        self, bars: Bars, *, display_prompt: bool, piece: Callable[[int], bytes], speculators: Sequence[str]
    ) -> None:
        super().__init__(bars, display_prompt=display_prompt)
        self._piece = piece
        self._colors = dict(zip(speculators, cycle(_DRAFTED), strict=False))
        # Text comes later than its tokens where characters are split or may begin a stop string. So each
        # token leaves here how many characters it completes, and the text takes its colours from there.
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._waiting: deque[tuple[int, str]] = deque()

    def end(self) -> None:
        super().end()
        if self._last:
            drafted = "".join(f"{color}■ drafted by {name}{_RESET}   " for name, color in self._colors.items())
            self._put(f"{drafted}■ the target's own choice\n")

    def _prompt(self, prompt: str) -> str:
        return f"{_PROMPT}{prompt}{_RESET}"

    def _chunk(self, chunk: Chunk) -> str:
        for token, drafted_by in zip(chunk.tokens, chunk.drafted_by, strict=True):
            completed = len(self._decoder.decode(self._piece(token)))
            if completed:
                self._waiting.append(
                    (completed, "" if drafted_by is None else self._colors.get(drafted_by, _DRAFTED[0]))
                )
        return self._colored(chunk.text)

    def _colored(self, text: str) -> str:
        parts = []
        while text:
            # What no token accounts for is the end of an incomplete character.
            n, color = self._waiting.popleft() if self._waiting else (len(text), "")
            if n > len(text):
                self._waiting.appendleft((n - len(text), color))
            part, text = text[:n], text[n:]
            parts.append(f"{color}{part}{_RESET}" if color else part)
        return "".join(parts)


class CountingWriter:
    """Shows how many tokens there are so far, on a bar.

    Args:
        limit: the most there can be, or None.
    """

    def __init__(self, bars: Bars, name: str, limit: int | None) -> None:
        self._bars = bars
        self._name = name
        self._limit = limit
        self._count = 0
        self._began = 0.0

    def start(self, prompt: str) -> None:
        pass

    def write(self, chunk: Chunk) -> None:
        if not self._count:
            self._bars.clear()
            self._began = time.monotonic()
        self._count += len(chunk.tokens)
        seconds = time.monotonic() - self._began
        speed = f"{self._count / seconds:.0f} tokens/s" if seconds > 0.5 else ""
        self._bars.update(self._name, self._count, self._limit, note=speed)

    def end(self) -> None:
        self._bars.clear()
