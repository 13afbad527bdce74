"""What a caller holds of a request: the stream of chunks while it runs, and the result when it is over."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Literal, NoReturn

from pyspec.errors import Busy, PyspecError
from pyspec.sampling import SamplerPlan, SamplingParams
from pyspec.speculation.stats import Stats

FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True)
class TokenLogprob:
    """Log-probabilities at one emitted token, from the softmax over the target's raw logits, before any sampler.

    Attributes:
        token: the emitted token.
        logprob: its log-probability.
        top: the best tokens of the row and theirs, best first; as many as ``SamplingParams.logprobs`` asks for.
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
            or the context is full. "cancelled": `Generation.cancel` or Ctrl-C; text and tokens are what there was.
        stop: for "stop", the stop string (str) or the token (int) that ended it; else None.
        logprobs: one entry per token if ``SamplingParams.logprobs`` asked for them, else None.
        drafted_by: for each token the name of the speculator that had drafted it, or None.
        stats: what it took.
        seed: what random numbers were drawn from: the same seed gives the same text.
        prompt_token_ids: the prompt as the model saw it.
        synthetic: acceptance was drawn at random, for a benchmark; this is not the model's text.
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
    synthetic: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The result as plain lists, numbers and strings, for JSON."""
        return {**asdict(self), "stats": self.stats.to_dict()}


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
        n_draft_max: int | None,
        prompt_progress: Callable[[int, int], None] | None,
    ) -> None:
        self.prompt = prompt
        self.params = params
        self.plan = plan
        self.n_draft_max = n_draft_max
        self.prompt_progress = prompt_progress
        self.stats = Stats(prompt_tokens=len(prompt))
        self.changed = threading.Condition()
        self.cancelled = False
        self.thread: threading.Thread | None = None  # the engine's, once it is queued
        self.chunks: deque[Chunk] = deque()
        self.result: Result | None = None
        self.error: BaseException | None = None

    @property
    def done(self) -> bool:
        return self.result is not None or self.error is not None

    def add(self, chunk: Chunk) -> None:
        with self.changed:
            self.chunks.append(chunk)
            self.changed.notify_all()

    def finish(self, outcome: Result | BaseException) -> None:
        with self.changed:
            if isinstance(outcome, Result):
                self.result = outcome
            else:
                self.error = outcome
            self.changed.notify_all()


class Generation:
    """A running request: iterate it for chunks, or wait for `result`. Dropping it cancels the request.

    >>> for chunk in engine.stream("Once upon a time"):
    ...     print(chunk.text, end="", flush=True)
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
                while not job.chunks and not job.done:
                    job.changed.wait()
                if job.chunks:
                    return job.chunks.popleft()
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
        with job.changed:
            self._refuse_own_thread()
            while not job.done:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError(f"the request is not done after {timeout} s; it goes on")
                job.changed.wait(None if left is None else min(left, threading.TIMEOUT_MAX))
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
