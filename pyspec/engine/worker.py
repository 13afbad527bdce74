"""The engine's own thread: it alone touches the contexts. Others hand it requests and questions."""

from __future__ import annotations

import heapq
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from pyspec._llama import Context, release_threads
from pyspec.engine.generation import Job
from pyspec.engine.scheduler import Scheduler
from pyspec.errors import Closed, QueueFull

T = TypeVar("T")

# Seconds without a request after which the helpers of the last computation are let go, for the sake of other engines.
IDLE_S = 0.02

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
    """Runs requests: as many at once as there are slots, the others wait in the order of their priority, then of time.

    Args:
        scheduler: who shares the rounds out.
        contexts: the contexts whose decodes a cancellation stops.
        release: called by the thread when it ends: frees what the engine owns.
        n_queue_max: most requests that may wait for a slot.
    """

    def __init__(
        self, scheduler: Scheduler, contexts: list[Context], release: Callable[[], None], *, n_queue_max: int
    ) -> None:
        self._scheduler = scheduler
        self._contexts = contexts
        self._release = release
        self._n_queue_max = n_queue_max
        # Re-entrant, as dropping a Generation cancels its request, and the garbage collector may do that anywhere.
        self._lock = threading.RLock()
        self._wake = threading.Condition(self._lock)
        self._queue: list[tuple[int, int, Job]] = []  # a heap: the most urgent first, among them the oldest
        self._n_submitted = 0
        self._questions: deque[Question] = deque()
        self._stopping = False  # decodes were told to stop, for a request that is over
        self._closing = False
        self._draining = False
        self._failure: BaseException | None = None
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._loop, name="pyspec-engine", daemon=True)
        self._thread.start()

    @property
    def closed(self) -> bool:
        return self._closing

    @property
    def n_waiting(self) -> int:
        """Requests that wait for a slot."""
        return len(self._queue)

    def submit(self, job: Job) -> None:
        """Queues a request.

        Raises:
            QueueFull: too many wait already.
            Closed: the engine is closed, or was opened before this process was forked.
        """
        self._require_process()
        with self._wake:
            self._require_open()
            if len(self._queue) >= self._n_queue_max:
                raise QueueFull(
                    f"{len(self._queue)} requests wait already, and n_queue_max is {self._n_queue_max}; try later",
                    n_waiting=len(self._queue),
                )
            job.thread = self._thread
            job.wake = self.wake
            self._n_submitted += 1
            heapq.heappush(self._queue, (-job.priority, self._n_submitted, job))
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

    def wake(self) -> None:
        """Something has changed that the thread may wait for."""
        if os.getpid() == self._process:
            with self._wake:
                self._wake.notify()

    def cancel(self, job: Job) -> None:
        """Ends a request, whether it waits or runs. A decode that serves it alone, or reads its prompt, is stopped."""
        job.cancelled = True
        if os.getpid() != self._process:
            return
        with self._wake:
            if self._scheduler.reads_for(job):
                self._stopping = True
                for context in self._contexts:
                    context.abort()
            self._wake.notify()

    def close(self, *, drain: bool = False) -> None:
        """Cancels everything, or with `drain` finishes it, and waits for the thread to end. Safe to call twice."""
        if os.getpid() != self._process:  # the thread, and whatever it holds, is the parent's
            self._closing = True
            return
        with self._wake:
            self._closing = True
            self._draining = drain
            if not drain:
                for job in [job for _, _, job in self._queue] + [run.job for run in self._scheduler.runs]:
                    self.cancel(job)
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
            while self._next():
                self._may_go_on()
                if not self._scheduler.round():
                    self._rest()
                if not self._scheduler.runs:
                    self._may_go_on()
        except BaseException as error:
            _log.exception("the engine's thread failed; the engine is closed")
            self._failure = error
        finally:
            self._leave()
            self._release()

    def _next(self) -> bool:
        """Answers questions, fills free slots, and waits until there is a round to do. False: it is over."""
        while True:
            self._answer()
            self._admit()
            with self._wake:
                if self._scheduler.runs:
                    return True
                if self._closing and not self._queue:
                    return False
                if not self._queue and not self._questions and not self._wake.wait(IDLE_S):
                    release_threads()
                    if not self._queue and not self._questions and not self._closing:
                        self._wake.wait()

    def _admit(self) -> None:
        self._drop_from_queue()
        while not self._scheduler.full:
            with self._lock:
                if not self._queue:
                    return
                job = heapq.heappop(self._queue)[2]
            self._scheduler.admit(job)

    def _drop_from_queue(self) -> None:
        """Requests that were cancelled, or ran out of time, while they waited."""
        if not self._queue:
            return
        now = time.monotonic()
        with self._lock:
            over = [entry for entry in self._queue if entry[2].over(now)]
            if over:
                self._queue = [entry for entry in self._queue if entry not in over]
                heapq.heapify(self._queue)
        for _, _, job in over:
            self._scheduler.totals.add_unstarted(job)
            job.finish_unstarted()

    def _may_go_on(self) -> None:
        """Whoever had decodes stopped has left by the next round, or when nobody is left."""
        with self._lock:
            if self._stopping or not self._scheduler.runs:
                self._stopping = False
                for context in self._contexts:
                    context.clear_abort()

    def _rest(self) -> None:
        """Every running request waits for its reader: so does the thread."""
        deadline = self._scheduler.next_deadline()
        with self._wake:
            runs = self._scheduler.runs
            nothing_new = bool(runs) and not self._questions and all(run.waits for run in runs)
            if nothing_new and (self._scheduler.full or not self._queue):
                self._wake.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))

    def _answer(self) -> None:
        while self._questions:
            self._questions.popleft().answer()

    def _leave(self) -> None:
        """Nobody is left waiting for this thread."""
        with self._wake:
            self._closing = True
            jobs = [job for _, _, job in self._queue] + [run.job for run in self._scheduler.runs]
            questions = list(self._questions)
            self._queue.clear()
            self._questions.clear()
        closed = Closed("the engine is closed; open a new one")
        closed.__cause__ = self._failure
        for job in jobs:
            if not job.done:
                job.finish(closed)
        for question in questions:
            question.refuse(closed)
