"""Ctrl-C at a given moment."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interrupt_after(seconds: float) -> Iterator[None]:
    """Send SIGINT to this process so long after the block was entered; the block has to last until then."""
    entered = threading.Event()

    def send() -> None:
        entered.wait()
        time.sleep(seconds)
        signal.raise_signal(signal.SIGINT)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        entered.set()
        yield
    finally:
        thread.join()
