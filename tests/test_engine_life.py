"""An engine's life: threads, cancelling, Ctrl-C, closing, and that it gives everything back."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pyspec import Closed, Engine, Result, SamplingParams
from pyspec.bench.prompts import chatml, prompts_for

PROMPTS = prompts_for(chat=True)
SHORT = SamplingParams(temperature=0.0, max_tokens=16)
LONG = SamplingParams(temperature=0.0, max_tokens=3000, ignore_eos=True)
LONG_PROMPT = chatml("Summarise: " + "The water cycle moves water around the planet. " * 160)


@pytest.fixture(scope="module")
def engine(smollm2: Path) -> Iterator[Engine]:
    with Engine(smollm2, draft_model=smollm2, draft_length="fixed", n_ctx=4096) as engine:
        yield engine


@pytest.fixture(scope="module")
def expected(engine: Engine) -> Result:
    return engine.generate(PROMPTS[0], SHORT, n_draft_max=0)


@pytest.fixture(autouse=True)
def still_right(engine: Engine, expected: Result) -> Iterator[None]:
    """Whatever a test does to the engine, the next request gets the right text."""
    yield
    assert engine.generate(PROMPTS[0], SHORT).token_ids == expected.token_ids


# -- cancelling ------------------------------------------------------------------------------------------------------


def test_cancel_while_the_prompt_is_read(engine: Engine) -> None:
    reading = threading.Event()
    generation = engine.stream(LONG_PROMPT, LONG, prompt_progress=lambda done, total: reading.set())
    assert reading.wait(60)
    t0 = time.monotonic()
    generation.cancel()
    result = generation.result(timeout=10)
    assert time.monotonic() - t0 < 1.0
    assert result.finish_reason == "cancelled" and result.text == "" and result.token_ids == ()


def test_cancel_while_generating(engine: Engine) -> None:
    generation = engine.stream(PROMPTS[0], LONG)
    chunks = [next(generation), next(generation)]
    t0 = time.monotonic()
    generation.cancel()
    result = generation.result(timeout=10)
    assert time.monotonic() - t0 < 1.0
    assert result.finish_reason == "cancelled"
    assert result.text.startswith("".join(chunk.text for chunk in chunks))
    rest = "".join(chunk.text for chunk in generation)
    assert "".join(chunk.text for chunk in chunks) + rest == result.text


@pytest.mark.parametrize("delay_ms", range(0, 60, 4))
def test_cancel_at_any_moment(engine: Engine, delay_ms: int) -> None:
    generation = engine.stream(PROMPTS[0], LONG)
    time.sleep(delay_ms / 1000)
    generation.cancel()
    assert generation.result(timeout=10).finish_reason == "cancelled"


def test_cancelling_a_waiting_request_leaves_the_running_one_alone(engine: Engine) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=64)
    plain = engine.generate(PROMPTS[1], params, n_draft_max=0)
    running = engine.stream(PROMPTS[1], params)
    waiting = engine.stream(PROMPTS[2], params)
    waiting.cancel()
    assert running.result().token_ids == plain.token_ids
    assert waiting.result().finish_reason == "cancelled" and waiting.result().token_ids == ()


def test_a_dropped_stream_is_cancelled(engine: Engine) -> None:
    for chunk in engine.stream(PROMPTS[0], LONG):
        assert chunk.tokens
        break
    gc.collect()
    t0 = time.monotonic()
    engine.generate(PROMPTS[1], SHORT)
    assert time.monotonic() - t0 < 5.0


def test_a_stream_as_a_context_manager(engine: Engine) -> None:
    with engine.stream(PROMPTS[0], LONG) as generation:
        next(generation)
    assert generation.result(timeout=10).finish_reason == "cancelled"


def test_cancelling_twice_or_too_late_does_nothing(engine: Engine) -> None:
    generation = engine.stream(PROMPTS[0], SHORT)
    result = generation.result()
    generation.cancel()
    generation.cancel()
    assert generation.result() is result and result.finish_reason == "length"


def test_waiting_with_a_timeout(engine: Engine) -> None:
    generation = engine.stream(PROMPTS[0], LONG)
    with pytest.raises(TimeoutError):
        generation.result(timeout=0.05)
    assert not generation.done
    generation.cancel()
    assert generation.result(timeout=10).finish_reason == "cancelled"


# -- threads ---------------------------------------------------------------------------------------------------------


def test_many_threads_each_get_their_own_text(engine: Engine) -> None:
    expected = {prompt: engine.generate(prompt, SHORT, n_draft_max=0).token_ids for prompt in PROMPTS[:5]}
    with ThreadPoolExecutor(8) as pool:
        jobs = [(prompt, pool.submit(engine.generate, prompt, SHORT)) for prompt in PROMPTS[:5] * 4]
        for prompt, job in jobs:
            assert job.result().token_ids == expected[prompt]


def test_other_threads_run_while_a_prompt_is_read(engine: Engine) -> None:
    generation = engine.stream(LONG_PROMPT, SHORT)
    ticks = 0
    t0 = time.monotonic()
    while not generation.done:
        time.sleep(0.01)
        ticks += 1
    elapsed = time.monotonic() - t0
    # Were the GIL held, there would be a tick or two per decode; a busy machine may take most of them.
    assert elapsed > 0.2 and ticks > 0.25 * elapsed / 0.01


def test_a_drafter_that_raises_in_the_progress_callback_fails_that_request_only(engine: Engine) -> None:
    def progress(done: int, total: int) -> None:
        raise RuntimeError("no bar")

    with pytest.raises(Exception, match="no bar"):
        engine.generate(PROMPTS[0], SHORT, prompt_progress=progress)


def test_prompt_progress(engine: Engine) -> None:
    seen: list[tuple[int, int]] = []
    result = engine.generate(LONG_PROMPT, SHORT, prompt_progress=lambda done, total: seen.append((done, total)))
    n = result.stats.prompt_tokens
    assert [total for _, total in seen] == [n] * len(seen) and seen[-1] == (n, n)
    assert len(seen) == -(-(n - result.stats.cached_tokens) // 512)


# -- Ctrl-C ----------------------------------------------------------------------------------------------------------


def test_these_tests_are_of_use_in_the_background() -> None:
    """There a shell has whatever it starts ignore the signal."""
    command = f"trap '' INT; exec {sys.executable} -m pytest -q -p no:xdist {__file__} -k 'test_ctrl_c and text'"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "1 passed" in done.stdout


@pytest.mark.parametrize("moment", ["prompt", "text", "stream"])
def test_ctrl_c(smollm2: Path, moment: str) -> None:
    """KeyboardInterrupt within a second, in a process of its own, and the engine stays usable."""
    script = f"""
        import os, signal, sys, threading, time
        from pyspec import Engine, SamplingParams
        from pyspec.bench.prompts import chatml
        moment = {moment!r}
        text = "The water cycle moves water around the planet. " * (380 if moment == "prompt" else 1)
        params = SamplingParams(temperature=0.0, max_tokens=3000, ignore_eos=True)
        short = SamplingParams(temperature=0.0, max_tokens=8)
        with Engine({str(smollm2)!r}, draft_model={str(smollm2)!r}, draft_length="fixed") as engine:
            before = engine.generate("Hello", short).token_ids
            def interrupt():
                time.sleep(0.5)
                global t0
                t0 = time.monotonic()
                os.kill(os.getpid(), signal.SIGINT)
            threading.Thread(target=interrupt).start()
            try:
                if moment == "stream":
                    for chunk in engine.stream(chatml(text), params):
                        pass
                else:
                    engine.generate(chatml(text), params)
            except KeyboardInterrupt:
                assert time.monotonic() - t0 < 1.0, time.monotonic() - t0
                assert engine.generate("Hello", short).token_ids == before
                print("interrupted and well")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "interrupted and well", done.stderr


# -- closing ---------------------------------------------------------------------------------------------------------


def test_a_closed_engine(smollm2: Path) -> None:
    engine = Engine(smollm2, draft_model=smollm2, draft_length="fixed", n_ctx=256)
    generation = engine.stream(PROMPTS[0], LONG)
    next(generation)
    engine.close()
    engine.close()
    assert engine.closed and generation.result(timeout=5).finish_reason == "cancelled"
    for use in (
        lambda: engine.generate("Hello"),
        lambda: engine.stream("Hello"),
        lambda: engine.tokenize("Hello"),
        lambda: engine.model,
        lambda: engine.memory(),
    ):
        with pytest.raises(Closed):
            use()
    assert "closed" in repr(engine)


def test_requests_that_wait_when_the_engine_closes(smollm2: Path) -> None:
    engine = Engine(smollm2, n_ctx=4096)
    generations = [engine.stream(PROMPTS[0], LONG) for _ in range(4)]
    engine.close()
    assert [g.result(timeout=5).finish_reason for g in generations] == ["cancelled"] * 4


def test_an_engine_nobody_holds_any_more_ends(smollm2: Path) -> None:
    n_threads = threading.active_count()
    Engine(smollm2, n_ctx=256)
    engine = Engine(smollm2, n_ctx=256)
    engine.loop = engine  # type: ignore[attr-defined]
    del engine
    gc.collect()
    deadline = time.monotonic() + 5
    while threading.active_count() > n_threads and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == n_threads


def test_the_interpreter_may_end_in_mid_request(smollm2: Path) -> None:
    script = f"""
        from pyspec import Engine, SamplingParams
        engine = Engine({str(smollm2)!r}, draft_model={str(smollm2)!r}, draft_length="fixed")
        generation = engine.stream("Once upon a time", SamplingParams(max_tokens=3000, ignore_eos=True))
        next(generation)
        print("leaving")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "leaving", "")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
def test_opening_and_closing_leaves_nothing_behind(smollm2: Path) -> None:
    """Twenty cycles of open, generate, close, in a process of its own: what is in use stays the same, and the process
    takes no more memory at the end than after the third. (How much of what was freed the C library has given back
    varies by a few megabytes from one to the next: the median of the last three counts.)"""
    script = f"""
        import gc, os
        from pathlib import Path
        from statistics import median
        from heap import in_use
        from pyspec import Engine, SamplingParams
        def rss():
            return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
        sizes, used = [], []
        for _ in range(20):
            with Engine({str(smollm2)!r}, draft_model={str(smollm2)!r}, draft_length="fixed", n_ctx=512) as engine:
                engine.generate("Once upon a time", SamplingParams(max_tokens=8, temperature=0.0))
            gc.collect()
            sizes.append(rss())
            used.append(in_use() / 1e6)
        assert median(sizes[-3:]) < sizes[2] + 5, sizes
        assert used[-1] < used[2] + 0.5, used
        print("flat")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=300,
        cwd=Path(__file__).parent,
    )  # fmt: skip
    assert done.stdout.strip() == "flat", done.stderr


def test_signals_are_left_as_they_were(engine: Engine) -> None:
    before = signal.getsignal(signal.SIGINT)
    engine.generate(PROMPTS[0], SHORT)
    assert signal.getsignal(signal.SIGINT) is before
