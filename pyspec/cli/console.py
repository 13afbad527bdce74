"""What the command line shows beside its output: progress bars, libllama's log, licence notes.

All of it goes to standard error. Bars appear only on a terminal, and are gone when what they announce starts.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from pyspec.models import FetchProgress

# Columns where no terminal says how many there are: nothing is cut off or wrapped in a file.
_NO_TERMINAL = 160

# llama.cpp's --verbosity to Python's levels.
_LEVELS = {0: logging.CRITICAL + 1, 1: logging.ERROR, 2: logging.WARNING, 3: logging.INFO}


def error_console() -> Console:
    """The console of everything that is not the command's output."""
    return Console(stderr=True, highlight=False, width=None if sys.stderr.isatty() else _NO_TERMINAL)


def output_console() -> Console:
    """The console of tables that are the command's output."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else _NO_TERMINAL)


class ConsoleHandler(logging.Handler):
    """Log records as lines above a running progress bar."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        style = "red" if record.levelno >= logging.ERROR else "yellow" if record.levelno >= logging.WARNING else "dim"
        self._console.print(Text(f"{record.name}: {record.getMessage()}".rstrip(), style=style), soft_wrap=True)


def show_log(console: Console, verbosity: int = 0) -> None:
    """Shows pyspec's warnings, and libllama's log up to ``verbosity``: 0 nothing, 1 errors, ... 4 all.

    Nothing of libllama's is the right default: what ends a command is in its error message anyway.
    """
    logger = logging.getLogger("pyspec")
    for handler in [h for h in logger.handlers if isinstance(h, ConsoleHandler)]:
        logger.removeHandler(handler)
    logger.addHandler(ConsoleHandler(console))
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    logging.getLogger("pyspec.llama").setLevel(_LEVELS.get(max(verbosity, 0), logging.DEBUG))


Self = TypeVar("Self", bound="Bars")


class Bars:
    """Progress bars that come when there is something to wait for and vanish when it has arrived.

    A bar shows up once its work has taken a quarter of a second: what is faster than that needs none.
    """

    _PATIENCE = 0.25

    def __init__(self, console: Console, *columns: ProgressColumn) -> None:
        self._progress = Progress(*(columns or _COUNT_COLUMNS), console=console, transient=True)
        self._enabled = console.is_terminal
        self._tasks: dict[str, TaskID] = {}
        self._first_seen: dict[str, float] = {}

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.clear()

    def update(self, name: str, done: float, total: float | None, note: str = "") -> None:
        """Moves the bar called ``name``; a ``total`` of None lets it pulse. ``note`` stands behind it."""
        if not self._enabled:
            return
        if name not in self._tasks:
            now = time.monotonic()
            if now - self._first_seen.setdefault(name, now) < self._PATIENCE:
                return
            self._progress.start()
            self._tasks[name] = self._progress.add_task(name, total=total, note=note)
        self._progress.update(self._tasks[name], completed=done, total=total, note=note)
        if total is not None and done >= total:
            self.remove(name)

    def remove(self, name: str) -> None:
        """Takes a bar away; the display ends with the last one."""
        self._first_seen.pop(name, None)
        if (task := self._tasks.pop(name, None)) is not None:
            self._progress.remove_task(task)
        if not self._tasks:
            self._stop()

    def clear(self) -> None:
        """Takes all bars away."""
        for name in list(self._tasks):
            self.remove(name)
        self._stop()

    def _stop(self) -> None:
        if self._enabled:  # rich ends with an empty line where there is no terminal
            self._progress.stop()


class _Amount(ProgressColumn):
    """Per cent for fractions, ``512/4096`` for counts."""

    def render(self, task: Task) -> Text:
        if task.total is None:
            return Text("")
        if task.total == 1:
            return Text(f"{task.completed:4.0%}")
        return Text(f"{task.completed:.0f}/{task.total:.0f}")


class _Note(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(str(task.fields.get("note", "")), style="dim")


_COUNT_COLUMNS = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(30), _Amount(), _Note())
_BYTE_COLUMNS = (
    SpinnerColumn(),
    TextColumn("{task.description}"),
    BarColumn(30),
    DownloadColumn(),
    TransferSpeedColumn(),
    TimeRemainingColumn(compact=True),
)


class FetchDisplay(Bars):
    """Shows a fetch: the licence, then bars; without a terminal, a line for each step."""

    def __init__(self, console: Console) -> None:
        super().__init__(console, *_BYTE_COLUMNS)
        self._console = console
        self._step = ""

    def __call__(self, event: FetchProgress) -> None:
        """Takes a report; this is the ``progress`` of :func:`pyspec.models.fetch`."""
        if event.stage == "licence":
            self.clear()
            self._console.print(Text(event.model, style="bold"))
            self._console.print(Text(event.detail, style="dim"))
            return
        what = {
            "wait": f"waiting for another process that fetches {event.model}",
            "download": f"fetching {event.model}",
            "join": f"joining {event.model}",
            "quantize": f"making {event.model}",
        }[event.stage]
        if not self._enabled:
            step = f"{what} ({event.detail})" if event.detail else what
            if step != self._step:
                self._console.print(step, markup=False, soft_wrap=True)
            self._step = step
            return
        if what != self._step:
            self.clear()
        self._step = what
        self.update(what, event.done, event.total or None)


def load_progress(bars: Bars) -> Callable[[str, float], None]:
    """The ``load_progress`` of an engine, as bars."""
    return lambda which, fraction: bars.update(f"loading the {which} model", fraction, 1)


def prompt_progress(bars: Bars) -> Callable[[int, int], None]:
    """The ``prompt_progress`` of a request, as a bar."""
    return lambda done, total: bars.update("reading the prompt", done, total)
