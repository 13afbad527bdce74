"""The engine's own thread: it alone touches the contexts, and takes one request after the other."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from pyspec._llama import Context
from pyspec.engine.generation import Job, outcome_error
from pyspec.engine.rounds import Run, Setup
from pyspec.errors import Closed

T = TypeVar("T")

_log = logging.getLogger("pyspec.engine")


class Question:
    """Something another thread wants to know, which only the engine's thread may look up."""

    def __init__(self, look_up: Callable[[], Any]) -> None:
        self._look_up = look_up
        self._answered = threading.Event()
        self._answer: Any = None
        self._error: BaseException | None = None

    def answer(self) -> None:
        try:
            self._answer = self._look_up()
        except BaseException as error:
            self._error = error
        self._answered.set()

    def refuse(self, error: BaseException) -> None:
        self._error = error
        self._answered.set()

    def wait(self) -> Any:
        self._answered.wait()
        if self._error is not None:
            raise self._error
        return self._answer


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
        self._questions: deque[Question] = deque()
        self._active: Job | None = None
        self._closing = False
        self._failure: BaseException | None = None
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._loop, name="pyspec-engine", daemon=True)
        self._thread.start()

    @property
    def closed(self) -> bool:
        return self._closing

    def submit(self, job: Job) -> None:
        """Queues a request.

        Raises:
            Closed: the engine is closed, or was opened before this process was forked.
        """
        self._require_process()
        with self._wake:
            self._require_open()
            job.thread = self._thread
            self._queue.append(job)
            self._wake.notify()

    def ask(self, look_up: Callable[[], T]) -> T:
        """What `look_up` returns, called in the engine's thread, between two rounds of whatever runs.

        Raises:
            Closed: as `submit`; and what `look_up` raises.
        """
        if threading.current_thread() is self._thread:
            return look_up()
        self._require_process()
        question = Question(look_up)
        with self._wake:
            self._require_open()
            self._questions.append(question)
            self._wake.notify()
        answer: T = question.wait()
        return answer

    def cancel(self, job: Job) -> None:
        """Ends a request, whether it waits or runs; a decode that is under way is stopped."""
        job.cancelled = True
        if os.getpid() != self._process:
            return
        with self._wake:
            if self._active is job:
                for context in self._contexts:
                    context.abort()
            self._wake.notify()

    def close(self) -> None:
        """Cancels everything and waits for the thread to end. Safe to call twice, and from any thread."""
        if os.getpid() != self._process:  # the thread, and whatever it holds, is the parent's
            self._closing = True
            return
        with self._wake:
            self._closing = True
            for job in self._queue:
                job.cancelled = True
            if self._active is not None:
                self.cancel(self._active)
            self._wake.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _require_process(self) -> None:
        if os.getpid() != self._process:
            raise Closed(
                "the engine's thread stayed behind when this process was forked; start processes with "
                "multiprocessing's 'spawn' method and open engines there"
            )

    def _require_open(self) -> None:
        if self._failure is not None:
            raise Closed(f"the engine is closed since it failed: {self._failure}") from self._failure
        if self._closing:
            raise Closed("the engine is closed; open a new one")

    # -- the thread ----------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        try:
            while (job := self._next()) is not None:
                self._serve(job)
                del job  # while waiting, hold nobody's request
        except BaseException as error:
            _log.exception("the engine's thread failed; the engine is closed")
            self._failure = error
        finally:
            self._leave()
            self._release()

    def _next(self) -> Job | None:
        while True:
            self._answer()
            with self._wake:
                if self._queue:
                    self._active = self._queue.popleft()
                    return self._active
                if self._closing:
                    return None
                if not self._questions:
                    self._wake.wait()

    def _answer(self) -> None:
        while self._questions:
            self._questions.popleft().answer()

    def _serve(self, job: Job) -> None:
        outcome: Any = None
        try:
            run = Run(job, self._setup)
            while run.outcome is None:
                self._answer()
                run.step()
            outcome = run.outcome
        except BaseException as error:
            outcome = outcome_error(error)
        try:
            self._end(job)
        except BaseException as error:  # the contexts are of no use any more
            outcome = outcome_error(error)
            raise
        finally:
            job.finish(outcome)

    def _leave(self) -> None:
        """Nobody is left waiting for this thread."""
        with self._wake:
            self._closing = True
            jobs, questions = list(self._queue), list(self._questions)
            self._queue.clear()
            self._questions.clear()
        closed = Closed("the engine is closed; open a new one")
        closed.__cause__ = self._failure
        for job in jobs:
            job.finish(closed)
        for question in questions:
            question.refuse(closed)

    def _end(self, job: Job) -> None:
        """From here on nothing that concerns this request can stop a decode; then the sequence is cleared."""
        with self._lock:
            self._active = None
            for context in self._contexts:
                context.clear_abort()
        self._setup.chain.end(0)
        self._setup.decoder.end(0)
