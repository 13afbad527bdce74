"""A bar for work that takes minutes: how far it is, how long it will take, and some numbers."""

from __future__ import annotations

import sys
from types import TracebackType

from tqdm import tqdm


class Bar:
    """A progress bar on a terminal; elsewhere a line every half minute.

    Args:
        title: what is being done.
        total: steps.
        done: steps that were done by an earlier run.
    """

    def __init__(self, title: str, total: int, done: int = 0) -> None:
        interval = 0.2 if sys.stderr.isatty() else 30.0
        self.bar = tqdm(total=total, initial=done, desc=title, mininterval=interval, dynamic_ncols=True)

    def advance(self, steps: int = 1, **numbers: float) -> None:
        """So many steps further; the numbers stand behind the bar."""
        self.bar.set_postfix(numbers, refresh=False)
        self.bar.update(steps)

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.close()
