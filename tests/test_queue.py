"""Requests that wait, are cancelled, run out of time, or are not read: none of it harms the others."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspec import (
    AsyncEngine,
    Closed,
    ConsumerStalled,
    ContextFull,
    Engine,
    InvalidRequest,
    NGramSimple,
    QueueFull,
    Result,
    SamplingParams,
)

N_CHUNKS_AHEAD = 64
OPTIONS: dict[str, Any] = {
    "type_k": "f32", "type_v": "f32", "flash_attn": "off", "n_ctx": 512, "n_threads": 1,
    "stream_buffer": N_CHUNKS_AHEAD,
}  # fmt: skip
SHORT = SamplingParams(temperature=0.0, max_tokens=8)
LONG = SamplingParams(temperature=0.0, max_tokens=480)
PROMPT = [5, 6, 7, 8]


@pytest.fixture
def opened(tiny: Callable[[str], Path]) -> Iterator[Callable[..., Engine]]:
    engines: list[Engine] = []

    def open_engine(**options: Any) -> Engine:
        engines.append(Engine(tiny("llama"), **{"speculation": None, **OPTIONS, **options}))
        return engines[-1]

    yield open_engine
    for engine in engines:
        engine.close()


@pytest.fixture(scope="module")
def expected(tiny: Callable[[str], Path]) -> Iterator[dict[str, Result]]:
    with Engine(tiny("llama"), speculation=None, **OPTIONS) as engine:
        yield {"short": engine.generate(PROMPT, SHORT), "long": engine.generate(PROMPT, LONG)}


class Gate:
    """A speculator that holds the engine's thread until it is let go."""

    n_max = 1

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()

    def propose(self, requests: Any) -> list[list[int]]:
        self.reached.set()
        assert self.open.wait(60)
        return [[] for _ in requests]


def test_the_queue_is_bounded(opened: Callable[..., Engine], expected: dict[str, Result]) -> None:
    gate = Gate()
    engine = opened(speculation=gate, n_queue_max=2)
    running = engine.submit(PROMPT, SHORT)
    assert gate.reached.wait(60)
    waiting = [engine.submit(PROMPT, SHORT) for _ in range(2)]
    with pytest.raises(QueueFull, match="n_queue_max is 2") as caught:
        engine.submit(PROMPT, SHORT)
    assert caught.value.n_waiting == 2
    gate.open.set()
    for generation in (running, *waiting):
        assert generation.result(60).token_ids == expected["short"].token_ids


def test_priorities(opened: Callable[..., Engine]) -> None:
    gate = Gate()
    engine = opened(speculation=gate)
    order: list[int] = []
    running = engine.submit(PROMPT, SHORT)
    assert gate.reached.wait(60)
    waiting = [
        engine.submit(PROMPT, SHORT, priority=p, prompt_progress=lambda d, t, p=p, i=i: order.append(10 * p + i))
        for i, p in enumerate((0, 1, 0, 2, 1))
    ]
    gate.open.set()
    for generation in (running, *waiting):
        generation.result(60)
    assert order == [23, 11, 14, 0, 2]


def test_timeouts(opened: Callable[..., Engine], expected: dict[str, Result]) -> None:
    gate = Gate()
    engine = opened(speculation=gate)
    running = engine.submit(PROMPT, SHORT, timeout=0.2)
    assert gate.reached.wait(60)
    waiting = engine.submit(PROMPT, SHORT, timeout=0.1)
    time.sleep(0.3)
    gate.open.set()
    result = running.result(60)
    assert result.finish_reason == "timeout"
    assert 1 <= len(result.token_ids) < 8
    assert result.token_ids == expected["short"].token_ids[: len(result.token_ids)]
    unstarted = waiting.result(60)
    assert (unstarted.finish_reason, unstarted.token_ids, unstarted.text) == ("timeout", (), "")
    for timeout in (0, -1, float("nan"), "1", True):
        with pytest.raises(InvalidRequest, match="timeout"):
            engine.submit(PROMPT, SHORT, timeout=timeout)  # type: ignore[arg-type]
    assert engine.generate(PROMPT, SHORT, timeout=60).token_ids == expected["short"].token_ids


def test_cancelled_while_waiting(opened: Callable[..., Engine], expected: dict[str, Result]) -> None:
    gate = Gate()
    engine = opened(speculation=gate)
    running = engine.submit(PROMPT, SHORT)
    assert gate.reached.wait(60)
    waiting = [engine.submit(PROMPT, SHORT) for _ in range(3)]
    waiting[1].cancel()
    gate.open.set()
    assert waiting[1].result(60).finish_reason == "cancelled"
    for generation in (running, waiting[0], waiting[2]):
        assert generation.result(60).token_ids == expected["short"].token_ids


def test_a_reader_that_falls_behind_waits_alone(opened: Callable[..., Engine], expected: dict[str, Result]) -> None:
    engine = opened(n_slots=2)
    slow = engine.stream(PROMPT, LONG)
    fast = engine.generate(PROMPT, LONG)
    assert fast.token_ids == expected["long"].token_ids
    assert engine.stats().slots[0].state == "waiting"
    assert len(slow._job.chunks) == N_CHUNKS_AHEAD
    tokens = [token for chunk in slow for token in chunk.tokens]
    assert tuple(tokens) == slow.result(60).token_ids == expected["long"].token_ids


def test_all_readers_fall_behind(opened: Callable[..., Engine], expected: dict[str, Result]) -> None:
    engine = opened(n_slots=2)
    slow = [engine.stream(PROMPT, LONG) for _ in range(3)]
    deadline = time.monotonic() + 30
    while [slot.state for slot in engine.stats().slots] != ["waiting", "waiting"] and time.monotonic() < deadline:
        time.sleep(0.01)
    rounds = engine.stats().rounds
    time.sleep(0.1)
    assert engine.stats().rounds == rounds  # nothing spins
    for generation in slow:
        assert sum((chunk.tokens for chunk in generation), ()) == expected["long"].token_ids


def test_a_reader_that_never_reads(opened: Callable[..., Engine], expected: dict[str, Result]) -> None:
    engine = opened(stall_timeout=0.2)
    stalled = engine.stream(PROMPT, LONG)
    assert engine.generate(PROMPT, SHORT, timeout=30).token_ids == expected["short"].token_ids
    assert len([next(stalled) for _ in range(N_CHUNKS_AHEAD)]) == N_CHUNKS_AHEAD
    with pytest.raises(ConsumerStalled, match=r"0\.2 s"):
        next(stalled)
    with pytest.raises(ConsumerStalled):
        stalled.result(60)


def test_cancelled_at_any_moment(opened: Callable[..., Engine], expected: dict[str, Result]) -> None:
    """The neighbours' text does not change, and every slot is free again."""
    rng = random.Random(3)
    engine = opened(n_slots=3, speculation=NGramSimple(size_n=1), n_prompt_rows=8)
    neighbour = engine.submit(PROMPT, LONG)
    neighbour._job.collect()
    n_cancelled = 0
    for _ in range(200):
        if neighbour.done:
            assert neighbour.result().token_ids == expected["long"].token_ids
            neighbour = engine.submit(PROMPT, LONG)
            neighbour._job.collect()
        other = engine.submit([rng.randrange(256) for _ in range(rng.choice((1, 60, 200)))], LONG)
        time.sleep(rng.random() * 0.01)
        other.cancel()
        n_cancelled += other.result(60).finish_reason == "cancelled"
    assert n_cancelled > 150
    assert neighbour.result(60).token_ids == expected["long"].token_ids
    stats = engine.stats()
    assert stats.cancelled == n_cancelled and {slot.state for slot in stats.slots} == {"idle"}


def test_one_fails_the_others_do_not(opened: Callable[..., Engine], expected: dict[str, Result]) -> None:
    engine = opened(n_slots=4)

    def fail(done: int, total: int) -> None:
        raise RuntimeError("no more")

    good = [engine.submit(PROMPT, SHORT) for _ in range(2)]
    bad = engine.submit(list(range(100)), SHORT, prompt_progress=fail)
    dead_end = engine.submit(PROMPT, SamplingParams(grammar='root ::= "\u4f60"', logit_bias={0: 1.0}))
    good += [engine.submit(PROMPT, SHORT) for _ in range(2)]
    with pytest.raises(RuntimeError, match="no more"):
        bad.result(60)
    dead_end.cancel()
    for generation in good:
        assert generation.result(60).token_ids == expected["short"].token_ids


def test_fewer_cells_than_slots_could_need(opened: Callable[..., Engine], expected: dict[str, Result]) -> None:
    """The oldest goes on, the youngest gives way, and says why."""
    engine = opened(n_slots=3, n_cells=600, speculation=NGramSimple(size_n=1))
    generations = [engine.submit(PROMPT, LONG) for _ in range(3)]
    outcomes: list[Result | ContextFull] = []
    for generation in generations:
        try:
            outcomes.append(generation.result(60))
        except ContextFull as error:
            outcomes.append(error)
    assert isinstance(outcomes[0], Result) and outcomes[0].token_ids == expected["long"].token_ids
    assert isinstance(outcomes[2], ContextFull)
    assert engine.generate(PROMPT, LONG).token_ids == expected["long"].token_ids


def test_close_drains(opened: Callable[..., Engine], expected: dict[str, Result]) -> None:
    engine = opened(n_slots=2)
    generations = [engine.submit(PROMPT, SHORT) for _ in range(5)]
    for generation in generations:
        generation._job.collect()
    engine.close(drain=True)
    for generation in generations:
        assert generation.result(60).token_ids == expected["short"].token_ids
    with pytest.raises(Closed):
        engine.submit(PROMPT, SHORT)


def test_close_cancels(opened: Callable[..., Engine]) -> None:
    engine = opened(n_slots=2)
    generations = [engine.submit(PROMPT, LONG) for _ in range(5)]
    engine.close()
    for generation in generations:
        assert generation.result(60).finish_reason in ("cancelled", "length")


# -- coroutines ------------------------------------------------------------------------------------------------------


def test_coroutines(opened: Callable[..., Engine], expected: dict[str, Result]) -> None:
    engine = opened(n_slots=3)

    async def stream() -> tuple[int, ...]:
        tokens: tuple[int, ...] = ()
        async for chunk in engine.astream(PROMPT, SHORT):
            tokens += chunk.tokens
        return tokens

    async def main() -> None:
        n_threads = threading.active_count()
        streams = [asyncio.create_task(stream()) for _ in range(20)]
        results = [asyncio.create_task(engine.agenerate(PROMPT, SHORT)) for _ in range(20)]
        await asyncio.sleep(0.01)
        assert threading.active_count() == n_threads
        assert set(await asyncio.gather(*streams)) == {expected["short"].token_ids}
        assert {result.token_ids for result in await asyncio.gather(*results)} == {expected["short"].token_ids}
        assert (await engine.submit(PROMPT, SHORT)).token_ids == expected["short"].token_ids

    asyncio.run(main())


def test_a_coroutine_that_leaves_cancels(opened: Callable[..., Engine], expected: dict[str, Result]) -> None:
    engine = opened(n_slots=2)

    async def main() -> None:
        left = engine.astream(PROMPT, LONG)
        async for _ in left:
            break
        await asyncio.sleep(0)
        waiting = engine.submit(PROMPT, LONG)
        task = asyncio.ensure_future(waiting._aresult())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert waiting.result(60).finish_reason in ("cancelled", "length")
        assert left.result(60).finish_reason == "cancelled"
        assert (await engine.agenerate(PROMPT, SHORT)).token_ids == expected["short"].token_ids

    asyncio.run(main())


def test_slow_coroutines(opened: Callable[..., Engine], expected: dict[str, Result]) -> None:
    engine = opened(n_slots=2)

    async def main() -> None:
        tokens: list[int] = []
        async for chunk in engine.astream(PROMPT, LONG):
            tokens += chunk.tokens
            if len(tokens) % 50 == 0:
                await asyncio.sleep(0.02)
        assert tuple(tokens) == expected["long"].token_ids

    asyncio.run(main())


class CountingLoop(asyncio.SelectorEventLoop):
    """Counts how often another thread wakes it."""

    n_woken = 0

    def call_soon_threadsafe(self, *args: Any, **kwargs: Any) -> asyncio.Handle:
        self.n_woken += 1
        return super().call_soon_threadsafe(*args, **kwargs)


def test_a_busy_loop_is_not_woken_for_every_round(opened: Callable[..., Engine], expected: dict[str, Result]) -> None:
    """While a loop does not run, one call is as good as hundreds; and who awaits a result is woken for the end only."""
    engine = opened(stream_buffer=1024)
    loop = CountingLoop()

    async def stream() -> None:
        generation = engine.stream(PROMPT, LONG)
        tokens: list[int] = []
        async for chunk in generation:
            tokens += chunk.tokens
            while not generation.done and len(tokens) > 3:
                time.sleep(0.002)  # the loop is busy until the text is complete
        assert tuple(tokens) == expected["long"].token_ids

    async def absent() -> None:
        generation = engine.stream(PROMPT, LONG)
        tokens: list[int] = []
        async for chunk in generation:
            tokens += chunk.tokens
            while not generation.done:
                await asyncio.sleep(0.002)  # the reader waits for something else
        assert tuple(tokens) == expected["long"].token_ids

    async def result() -> None:
        assert (await engine.stream(PROMPT, LONG)).token_ids == expected["long"].token_ids

    try:
        for coroutine, most in ((stream(), 8), (absent(), 2), (result(), 1)):
            loop.n_woken = 0
            loop.run_until_complete(coroutine)
            assert 1 <= loop.n_woken <= most
    finally:
        loop.close()


def test_a_loop_that_was_closed_does_the_engine_no_harm(
    opened: Callable[..., Engine], expected: dict[str, Result]
) -> None:
    engine = opened()
    loop = asyncio.new_event_loop()
    generation = engine.stream(PROMPT, LONG)
    iterator = aiter(generation)
    first = loop.run_until_complete(anext(iterator))
    loop.close()
    rest = [token for chunk in generation for token in chunk.tokens]
    assert (*first.tokens, *rest) == expected["long"].token_ids
    assert engine.generate(PROMPT, SHORT).token_ids == expected["short"].token_ids


def test_errors_reach_coroutines(opened: Callable[..., Engine]) -> None:
    engine = opened()

    def fail(done: int, total: int) -> None:
        raise RuntimeError("no more")

    async def main() -> None:
        with pytest.raises(RuntimeError, match="no more"):
            await engine.agenerate(PROMPT, SHORT, prompt_progress=fail)
        with pytest.raises(RuntimeError, match="no more"):
            async for _ in engine.astream(PROMPT, SHORT, prompt_progress=fail):
                pass
        with pytest.raises(InvalidRequest):
            await engine.agenerate([], SHORT)

    asyncio.run(main())


def test_the_async_engine(tiny: Callable[[str], Path], expected: dict[str, Result]) -> None:
    async def main() -> None:
        async with await AsyncEngine.open(tiny("llama"), speculation=None, n_slots=2, **OPTIONS) as engine:
            result = await engine.generate(PROMPT, SHORT)
            assert result.token_ids == expected["short"].token_ids
            tokens = [token async for chunk in engine.stream(PROMPT, SHORT) for token in chunk.tokens]
            assert tuple(tokens) == expected["short"].token_ids
            assert engine.stats().requests == 2
        with pytest.raises(Closed):
            engine.stream(PROMPT, SHORT)

    asyncio.run(main())


def test_times(opened: Callable[..., Engine]) -> None:
    result = opened().generate(PROMPT, SHORT)
    assert len(result.times) == len(result.token_ids)
    assert list(result.times) == sorted(result.times) and result.times[0] > 0
