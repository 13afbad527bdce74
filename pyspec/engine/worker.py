"""The engine's own thread: it alone touches the contexts, and takes one request after the other."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from pyspec._llama import Context
from pyspec.engine.generation import Job, outcome_error
from pyspec.engine.rounds import Run, Setup
from pyspec.errors import Closed


class Worker:
    """Runs requests in the order they came.

    Args:
        setup: what the requests share.
        contexts: the contexts whose decodes a cancellation stops.
        release: called by the thread when it ends: frees what the engine owns.
    """

    def __init__(self, setup: Setup, contexts: list[Context], release: Callable[[], None]) -> None:
        self._setup = setup
        self._contexts = contexts
        self._release = release
        # Re-entrant, as dropping a Generation cancels its request, and the garbage collector may do that anywhere.
        self._lock = threading.RLock()
        self._wake = threading.Condition(self._lock)
        self._queue: deque[Job] = deque()
        self._active: Job | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._loop, name="pyspec-engine", daemon=True)
        self._thread.start()

    @property
    def closed(self) -> bool:
        return self._closing

    def submit(self, job: Job) -> None:
        """Queues a request.

        Raises:
            Closed: the engine is closed.
        """
        with self._wake:
            if self._closing:
                raise Closed("the engine is closed; open a new one")
            self._queue.append(job)
            self._wake.notify()

    def cancel(self, job: Job) -> None:
        """Ends a request, whether it waits or runs; a decode that is under way is stopped."""
        with self._wake:
            job.cancelled = True
            if self._active is job:
                for context in self._contexts:
                    context.abort()
            self._wake.notify()

    def close(self) -> None:
        """Cancels everything and waits for the thread to end. Safe to call twice, and from any thread."""
        with self._wake:
            self._closing = True
            for job in self._queue:
                job.cancelled = True
            if self._active is not None:
                self.cancel(self._active)
            self._wake.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    # -- the thread ----------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        try:
            while (job := self._next()) is not None:
                self._serve(job)
                del job  # while waiting, hold nobody's request
        finally:
            self._release()

    def _next(self) -> Job | None:
        with self._wake:
            while not self._queue:
                if self._closing:
                    return None
                self._wake.wait()
            self._active = self._queue.popleft()
            return self._active

    def _serve(self, job: Job) -> None:
        try:
            run = Run(job, self._setup)
            while run.outcome is None:
                run.step()
            outcome = run.outcome
        except BaseException as error:
            self._end(job)
            job.finish(outcome_error(error))
        else:
            self._end(job)
            job.finish(outcome)

    def _end(self, job: Job) -> None:
        """From here on nothing that concerns this request can stop a decode; then the sequence is cleared."""
        with self._lock:
            self._active = None
            for context in self._contexts:
                context.clear_abort()
        self._setup.chain.end(0)
        self._setup.decoder.end(0)
