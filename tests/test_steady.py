"""Steady streams: the same tokens one by one, spread over the time between two rounds."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import drafters
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspec import AsyncEngine, Chunk, Engine, InvalidRequest, Result, SamplingParams
from pyspec.bench.prompts import prompts_for
from pyspec.engine.pacing import Pacer

PROMPT = prompts_for(chat=True)[1]
GREEDY = SamplingParams(temperature=0.0, max_tokens=48, ignore_eos=True)


# -- the pacer -------------------------------------------------------------------------------------------------------


def read(bursts: list[tuple[float, int]]) -> list[float]:
    """When a reader who always waits gets each token of bursts that come at these times."""
    pacer, times, waiting, now = Pacer(), [], 0, 0.0
    arrivals = list(bursts)
    while arrivals or waiting:
        due = max(now, pacer.due)
        if waiting and (not arrivals or due <= arrivals[0][0]):
            now, waiting = due, waiting - 1
            pacer.taken(now)
            times.append(now)
        else:
            now, n = arrivals.pop(0)
            waiting += n
            pacer.arrived(waiting, now)
    return times


def test_even_bursts_become_an_even_stream() -> None:
    times = read([(0.1 * i, 4) for i in range(30)])
    gaps = [b - a for a, b in itertools.pairwise(times[40:])]
    assert max(gaps) < 0.035  # in bursts every fourth would be 0.1, the others 0
    assert min(gaps) > 0.015  # and so on: 0.025 on the mean


def test_uneven_rounds_become_a_stream_without_long_gaps() -> None:
    """Rounds of 0.1 s that bring one to five tokens: what waits bridges those that bring one."""
    rng = random.Random(1)
    times = read([(0.1 * i, rng.choice([1, 2, 3, 5, 5])) for i in range(400)])
    gaps = sorted(b - a for a, b in itertools.pairwise(times[40:]))
    mean = sum(gaps) / len(gaps)
    assert gaps[int(0.95 * len(gaps))] < 1.7 * mean  # 3.2 times as they come: 0.1 s for every round
    assert gaps[int(0.5 * len(gaps))] > 0.8 * mean


def test_single_tokens_are_not_held_back() -> None:
    """Plain decoding: nothing to even out, so every token comes when it is there, however long each takes."""
    rng = random.Random(1)
    arrivals = list(itertools.accumulate(rng.uniform(0.05, 0.15) for _ in range(60)))
    assert read([(t, 1) for t in arrivals]) == arrivals


@given(st.lists(st.tuples(st.floats(0.001, 0.5), st.integers(1, 16)), min_size=1, max_size=40))
def test_every_token_comes_in_time(steps: list[tuple[float, int]]) -> None:
    """Whatever bursts come: none before it is there, none twice, none much later than the longest round."""
    now, bursts = 0.0, []
    for interval, n in steps:
        now += interval
        bursts.append((now, n))
    arrived = [t for t, n in bursts for _ in range(n)]
    times = read(bursts)
    assert len(times) == len(arrived)
    assert all(t >= a for t, a in zip(times, arrived, strict=True))
    assert times == sorted(times)
    longest = max(interval for interval, _ in steps)
    assert all(t - a <= 4.0 * longest for t, a in zip(times, arrived, strict=True))


# -- streams ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def puppet() -> drafters.Puppet:
    return drafters.Puppet()


@pytest.fixture(scope="module")
def engine(smollm2: Path, puppet: drafters.Puppet) -> Iterator[Engine]:
    with Engine(smollm2, speculation=puppet, n_ctx=512, n_slots=2) as engine:
        yield engine


@pytest.fixture(scope="module")
def plain(engine: Engine) -> Result:
    return engine.generate(PROMPT, GREEDY, n_draft_max=0)


@pytest.fixture(autouse=True)
def _bursts(plain: Result, puppet: drafters.Puppet) -> None:
    """Every round brings several tokens."""
    puppet.script = drafters.right(plain.prompt_token_ids, plain.token_ids, length=5)


def joined(chunks: list[Chunk]) -> tuple[str, tuple[int, ...], tuple[str | None, ...]]:
    text = "".join(chunk.text for chunk in chunks)
    return text, sum((c.tokens for c in chunks), ()), sum((c.drafted_by for c in chunks), ())


def test_a_steady_stream_brings_the_same_one_by_one(engine: Engine, plain: Result) -> None:
    params = dataclasses.replace(GREEDY, logprobs=2)
    in_bursts = list(engine.stream(PROMPT, params))
    assert max(len(chunk.tokens) for chunk in in_bursts) > 3
    chunks = list(engine.stream(PROMPT, params, steady=True))
    assert joined(chunks) == joined(in_bursts)
    assert joined(chunks)[:2] == (plain.text, plain.token_ids)
    assert {len(chunk.tokens) for chunk in chunks} == {1}
    assert sum((c.logprobs for c in chunks), ()) == sum((c.logprobs for c in in_bursts), ())
    # Each with its own text: what the token stands for.
    assert [c.text for c in chunks] == [token.text for token in engine.generate(PROMPT, GREEDY).tokens]


def test_a_stop_string_ends_a_steady_stream_where_it_ends_any(engine: Engine, plain: Result) -> None:
    params = dataclasses.replace(GREEDY, stop=(plain.text[70:78],))
    whole = engine.generate(PROMPT, params)
    assert whole.finish_reason == "stop"
    chunks = list(engine.stream(PROMPT, params, steady=True))
    assert joined(chunks) == (whole.text, whole.token_ids, whole.drafted_by)


def test_a_round_is_spread_over_the_time_until_the_next(engine: Engine, puppet: drafters.Puppet) -> None:
    """The engine waits in each round; the reader gets most tokens while it does."""
    script, round_s = puppet.script, 0.05

    def slow(tokens: list[int], n_max: int) -> list[int]:
        time.sleep(round_s)
        return list(script(tokens, n_max))

    puppet.script = slow
    times = {}
    for steady in (False, True):
        times[steady] = []
        for _ in engine.stream(PROMPT, GREEDY, steady=steady):
            times[steady].append(time.monotonic())
    spread = [b - a for a, b in itertools.pairwise(times[True])]
    assert sum(gap > 0.002 for gap in spread) > 2 * len(times[False])  # arrivals that the reader can tell apart


def test_a_text_that_is_complete_is_not_held_back(engine: Engine) -> None:
    generation = engine.stream(PROMPT, GREEDY, steady=True)
    next(generation)
    generation.result()
    t0 = time.monotonic()
    rest = list(generation)
    assert len(rest) == GREEDY.max_tokens - 1 and time.monotonic() - t0 < 1.0


@pytest.mark.parametrize("size", [1, 2])
def test_a_small_buffer_does_not_wait_for_the_pacer(
    smollm2: Path, puppet: drafters.Puppet, plain: Result, size: int
) -> None:
    with Engine(smollm2, speculation=puppet, n_ctx=512, stream_buffer=size) as engine:
        assert joined(list(engine.stream(PROMPT, GREEDY, steady=True)))[:2] == (plain.text, plain.token_ids)


def test_coroutines_get_a_steady_stream_too(smollm2: Path, puppet: drafters.Puppet, plain: Result) -> None:
    async def run() -> list[list[Chunk]]:
        async with await AsyncEngine.open(smollm2, speculation=puppet, n_ctx=512, n_slots=2) as engine:

            async def one() -> list[Chunk]:
                return [chunk async for chunk in engine.stream(PROMPT, GREEDY, steady=True)]

            return list(await asyncio.gather(one(), one()))

    for chunks in asyncio.run(run()):
        assert joined(chunks)[:2] == (plain.text, plain.token_ids)
        assert {len(chunk.tokens) for chunk in chunks} == {1}


def test_cancelling_ends_a_steady_stream(engine: Engine, plain: Result) -> None:
    generation = engine.stream(PROMPT, GREEDY, steady=True)
    next(generation)
    threading.Timer(0.02, generation.cancel).start()
    chunks = list(generation)
    assert generation.result().finish_reason in ("cancelled", "length")
    assert joined(chunks)[1] == generation.result().token_ids[1:]
    assert engine.generate(PROMPT, GREEDY).token_ids == plain.token_ids


def test_steady_is_yes_or_no(engine: Engine) -> None:
    with pytest.raises(InvalidRequest, match="steady"):
        engine.stream(PROMPT, GREEDY, steady=1)  # type: ignore[arg-type]
