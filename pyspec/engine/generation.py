"""What a caller holds of a request: the stream of chunks while it runs, and the result when it is over."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from types import TracebackType
from typing import Any, Literal, NoReturn

from pyspec.engine.pacing import Pacer
from pyspec.engine.tokens import Token, completed_texts
from pyspec.errors import Busy, PyspecError
from pyspec.sampling import SamplerPlan, SamplingParams
from pyspec.speculation.stats import Stats

FinishReason = Literal["stop", "length", "cancelled", "timeout"]


@dataclass(frozen=True)
class TokenLogprob:
    """Log-probabilities at one emitted token: from the softmax over the target's raw logits, before any sampler; or,
    where ``SamplingParams.logprobs_mode`` is "sampled", in the distribution that it was drawn from, after all of them.

    Attributes:
        token: the emitted token.
        logprob: its log-probability.
        top: the best tokens of the row and theirs, best first; as many as ``SamplingParams.logprobs`` asks for, or as
            could have been drawn.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Chunk:
    """What one round added.

    Attributes:
        text: text that became final; complete UTF-8, nothing that may yet turn out to begin a stop string.
        tokens: tokens of the result emitted in the round. A character or a stop string can stretch over several
            rounds, so text and tokens of one chunk need not belong together; those of all chunks do.
        drafted_by: for each token the name of the speculator that had drafted it, or None.
        logprobs: for each token, where the request asked for them.
    """

    text: str
    tokens: tuple[int, ...]
    drafted_by: tuple[str | None, ...]
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class Result:
    """A finished request. The same fields with and without speculation.

    Attributes:
        text: the generated text, without the stop string that ended it.
        token_ids: the generated tokens, up to and including the one that ended the text (an end-of-generation or
            stop token, or the token that completed the stop string). Logprobs and counts end there too.
        finish_reason: "stop": the model ended the text, or a stop token or stop string did. "length": max_tokens,
            or the context is full. "cancelled": `Generation.cancel` or Ctrl-C; "timeout": the request's time was up;
            text and tokens are what there was.
        stop: for "stop", the stop string (str) or the token (int) that ended it; else None.
        logprobs: one entry per token if ``SamplingParams.logprobs`` asked for them, else None.
        drafted_by: for each token the name of the speculator that had drafted it, or None.
        stats: what it took.
        times: for each token, seconds from the submission of the request to the round that emitted it.
        seed: what random numbers were drawn from: the same seed gives the same text.
        prompt_token_ids: the prompt as the model saw it.
        synthetic: acceptance was drawn at random, for a benchmark; this is not the model's text.
        pieces: for each token the bytes it stands for in the text; of one that ended it nothing.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop: str | int | None
    logprobs: tuple[TokenLogprob, ...] | None
    drafted_by: tuple[str | None, ...]
    stats: Stats
    seed: int
    prompt_token_ids: tuple[int, ...]
    times: tuple[float, ...] = ()
    synthetic: bool = False
    pieces: tuple[bytes, ...] = field(default=(), repr=False)

    @cached_property
    def tokens(self) -> tuple[Token, ...]:
        """All that is known of each token, one by one: id, bytes, text, log-probabilities, who drafted it, when."""
        logprobs = self.logprobs or ()
        return tuple(
            Token(
                id=token,
                bytes=piece,
                text=text,
                logprob=logprobs[i].logprob if logprobs else None,
                top=logprobs[i].top if logprobs else (),
                drafted_by=self.drafted_by[i],
                time=self.times[i],
            )
            for i, (token, piece, text) in enumerate(
                zip(self.token_ids, self.pieces, completed_texts(self.pieces), strict=True)
            )
        )

    def to_dict(self) -> dict[str, Any]:
        """The result as plain lists, numbers and strings, for JSON. (Without the pieces, which need not be text.)"""
        values = asdict(self)
        del values["pieces"]
        return {**values, "stats": self.stats.to_dict()}


class Job:
    """A request between the caller's threads and the engine's: input, and what has come out so far.

    The engine's thread writes, any thread reads; `changed` guards the fields that both touch.
    """

    def __init__(
        self,
        prompt: list[int],
        params: SamplingParams,
        plan: SamplerPlan,
        *,
        n_draft_max: int | None = None,
        n_keep: int | None = None,
        prompt_progress: Callable[[int, int], None] | None = None,
        timeout: float | None = None,
        priority: int = 0,
        n_ahead: int = 512,
        steady: bool = False,
        before_leaving: Callable[[int], None] | None = None,
    ) -> None:
        self.prompt = prompt
        self.params = params
        self.plan = plan
        self.n_draft_max = n_draft_max
        self.n_keep = n_keep
        self.prompt_progress = prompt_progress
        self.priority = priority
        self.n_ahead = n_ahead  # chunks it may be ahead of its reader
        self.pacer = Pacer() if steady else None  # its chunks are single tokens, handed out in time
        self.before_leaving = before_leaving  # called with the slot when the request has ended well
        self.t_submitted = time.monotonic()
        self.deadline = None if timeout is None else self.t_submitted + timeout
        self.stats = Stats(prompt_tokens=len(prompt))
        lock = threading.RLock()
        self.changed = threading.Condition(lock)
        self.ended = threading.Condition(lock)  # apart: who waits for the end need not wake up in every round
        self.cancelled = False
        self.collected = False  # somebody waits for the result: there is nothing to be ahead of
        self.thread: threading.Thread | None = None  # the engine's, once it is queued
        self.wake: Callable[[], None] = lambda: None  # tells the engine that there is room again
        self.chunks: deque[Chunk] = deque()
        self.result: Result | None = None
        self.error: BaseException | None = None
        self._listeners: list[Callable[[], None]] = []
        self._end_listeners: list[Callable[[], None]] = []

    @property
    def done(self) -> bool:
        return self.result is not None or self.error is not None

    @property
    def full(self) -> bool:
        """The reader is so far behind that the request has to wait for it."""
        return len(self.chunks) >= self.n_ahead and not self.collected

    def over(self, now: float) -> bool:
        """Whether it is to be ended, at this time of `time.monotonic`."""
        return self.cancelled or (self.deadline is not None and now >= self.deadline)

    def add(self, *chunks: Chunk) -> None:
        """Adds what a round brought."""
        with self.changed:
            self.chunks.extend(chunks)
            if self.pacer is not None:
                self.pacer.arrived(len(self.chunks), time.monotonic())
            self._tell()

    def delay(self) -> float | None:
        """Seconds until the next chunk may be handed out; None: there is none."""
        if not self.chunks:
            return None
        if self.pacer is None or self.done or self.full:
            return 0.0
        return max(0.0, self.pacer.due - time.monotonic())

    def take(self) -> Chunk | None:
        """The next chunk; None: there is none yet, or none any more. Call it with `changed` held."""
        if self.delay() != 0.0:
            return None
        was_full = self.full
        chunk = self.chunks.popleft()
        if self.pacer is not None:
            self.pacer.taken(time.monotonic())
        if was_full:
            self.wake()
        return chunk

    def collect(self) -> None:
        """From now on nobody need read the chunks for the request to go on."""
        if not self.collected:
            self.collected = True
            self.wake()

    def finish(self, outcome: Result | BaseException) -> None:
        with self.changed:
            if isinstance(outcome, Result):
                self.result = outcome
            else:
                self.error = outcome
            self.ended.notify_all()
            self._tell()
            for listener in self._end_listeners:
                listener()

    def finish_unstarted(self) -> None:
        """It was cancelled, or ran out of time, before it had a slot."""
        self.stats.queue_ms = 1000.0 * (time.monotonic() - self.t_submitted)
        self.finish(
            Result(
                text="",
                token_ids=(),
                finish_reason="cancelled" if self.cancelled else "timeout",
                stop=None,
                logprobs=None if self.params.logprobs is None else (),
                drafted_by=(),
                stats=self.stats,
                seed=self.plan.seed,
                prompt_token_ids=tuple(self.prompt),
            )
        )

    @contextlib.contextmanager
    def told(self, listener: Callable[[], None], *, at_end: bool = False) -> Iterator[None]:
        """Meanwhile `listener` is called, in the engine's thread, whenever something has changed, or, at_end, when the
        request is done. It must not raise or wait.
        """
        listeners = self._end_listeners if at_end else self._listeners
        with self.changed:
            listeners.append(listener)
        try:
            yield
        finally:
            with self.changed:
                listeners.remove(listener)

    def _tell(self) -> None:
        self.changed.notify_all()
        for listener in self._listeners:
            listener()


class Generation:
    """A running request: iterate it for chunks, or wait for `result`. Dropping it cancels the request.

    >>> for chunk in engine.stream("Once upon a time"):
    ...     print(chunk.text, end="", flush=True)

    In a coroutine the same with ``async for`` and ``await``, without a thread of its own; leaving the loop or
    cancelling the task cancels the request.

    A reader that falls behind makes its request wait, not the others; one that has not read anything for as long as
    the engine's ``stall_timeout`` loses it (ConsumerStalled).
    """

    def __init__(self, job: Job, cancel: Callable[[Job], None]) -> None:
        self._job = job
        self._cancel = cancel

    @property
    def stats(self) -> Stats:
        """Counts and times so far; complete once the request is done."""
        return self._job.stats

    @property
    def done(self) -> bool:
        """Whether the request has ended, one way or another."""
        return self._job.done

    def __iter__(self) -> Iterator[Chunk]:
        return self

    def __next__(self) -> Chunk:
        job = self._job
        try:
            with job.changed:
                if not job.chunks:
                    self._refuse_own_thread()
                while (chunk := job.take()) is None and not job.done:
                    job.changed.wait(job.delay())
                if chunk is not None:
                    return chunk
        except BaseException:  # Ctrl-C while waiting: the request ends, the engine stays usable
            self.cancel()
            raise
        if job.error is not None:
            raise job.error
        raise StopIteration

    def result(self, timeout: float | None = None) -> Result:
        """Waits until the request is done.

        Args:
            timeout: seconds to wait; None: as long as it takes.

        Raises:
            TimeoutError: it is not done by then. The request goes on; `cancel` ends it.
            PyspecError: the request failed.
            Busy: called by the engine's own thread (a speculator, or a progress callback), which would wait for itself.
        """
        job = self._job
        deadline = None if timeout is None else time.monotonic() + timeout
        job.collect()
        with job.ended:
            self._refuse_own_thread()
            while not job.done:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError(f"the request is not done after {timeout} s; it goes on")
                job.ended.wait(None if left is None else min(left, threading.TIMEOUT_MAX))
        if job.error is not None:
            raise job.error
        assert job.result is not None
        return job.result

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        job, bell = self._job, Bell()
        try:
            with job.told(bell.ring):
                while True:
                    with job.changed:
                        done, chunk, delay = job.done, job.take(), job.delay()
                    if chunk is not None:
                        yield chunk
                    elif done:
                        break
                    else:
                        await bell.wait(delay)
        finally:
            if not job.done:
                self.cancel()
        if job.error is not None:
            raise job.error

    def __await__(self) -> Generator[Any, None, Result]:
        return self._aresult().__await__()

    async def _aresult(self) -> Result:
        job, bell = self._job, Bell()
        job.collect()
        try:
            with job.told(bell.ring, at_end=True):
                while not job.done:
                    await bell.wait()
        finally:
            if not job.done:
                self.cancel()
        if job.error is not None:
            raise job.error
        assert job.result is not None
        return job.result

    def cancel(self) -> None:
        """Ends the request, within one decode or sooner; `result` then has what there was. Safe in any thread."""
        self._cancel(self._job)

    close = cancel

    def __enter__(self) -> Generation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    def __del__(self) -> None:
        job = getattr(self, "_job", None)
        if job is not None and not job.done:
            self._cancel(job)

    def _refuse_own_thread(self) -> None:
        job = self._job
        if not job.done and threading.current_thread() is job.thread:
            raise Busy(
                "a speculator or progress callback waits for a request to the engine that waits for it; give it an "
                "engine of its own"
            )

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Generation can't be copied or pickled; its result() can")

    def __repr__(self) -> str:
        state = "done" if self.done else "running"
        return f"<Generation {state}, {self.stats.completion_tokens} tokens>"


class Bell:
    """Rung by the engine's thread, heard by a coroutine of the event loop in which it was made.

    Only a coroutine that waits is woken: while it is busy, or waits for something else, ringing leaves its loop alone.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._rung = False
        self._waiting = False

    def ring(self) -> None:
        """In any thread: ends the wait, or the next one."""
        self._rung = True  # before it looks who waits, as who waits says so before it looks
        if self._waiting:
            self._waiting = False
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self, at_most: float | None = None) -> None:
        """Until it has been rung since the last wait was over, or so many seconds."""
        self._event.clear()
        self._waiting = True
        if not self._rung:
            timer = None if at_most is None else self._loop.call_later(at_most, self._event.set)
            try:
                await self._event.wait()
            finally:
                if timer is not None:
                    timer.cancel()
        self._waiting = self._rung = False


class CallbackError(Exception):
    """Carries what a callback of the caller's raised through the engine; the caller gets to see `error` itself."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


def outcome_error(error: BaseException) -> BaseException:
    """The error as the caller should see it: pyspec's own and the caller's as they are, others with a word on where
    they come from.
    """
    if isinstance(error, CallbackError):
        return error.error
    if isinstance(error, PyspecError | MemoryError):
        return error
    wrapped = PyspecError(f"the engine failed: {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped
