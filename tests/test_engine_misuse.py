"""An engine in the wrong hands: closed, copied, forked, called from inside, with drafters and drafts that fail.

Each time: an exception that says so or a text that is right, never a wait without end, and the next request is served.
"""

from __future__ import annotations

import copy
import itertools
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pyspec import (
    Busy,
    Closed,
    DraftModel,
    Engine,
    Generation,
    InvalidRequest,
    Model,
    PyspecError,
    Result,
    SamplingParams,
)

Tiny = Callable[[str], Path]

# With these a row of logits does not depend on the batch it is computed in by more than its last bits.
EXACT: dict[str, Any] = {"flash_attn": "off", "type_k": "f32", "type_v": "f32"}
N_CTX = 256
GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
LONG = SamplingParams(temperature=0.0, ignore_eos=True)
PROMPT = [5, 6, 7]


@pytest.fixture(scope="module")
def opened(tiny: Tiny) -> Iterator[Callable[..., Engine]]:
    """Opens engines on the tiny target, and closes them at the end."""
    engines: list[Engine] = []

    def open_engine(**settings: Any) -> Engine:
        engines.append(Engine(tiny("llama"), **{"n_ctx": N_CTX, "speculation": "none", **EXACT, **settings}))
        return engines[-1]

    yield open_engine
    for engine in engines:
        engine.close()


@pytest.fixture(scope="module")
def expected(opened: Callable[..., Engine]) -> Result:
    return opened().generate(PROMPT, GREEDY)


@pytest.fixture(scope="module")
def drafting(opened: Callable[..., Engine], tiny: Tiny) -> Engine:
    return opened(speculation=DraftModel(tiny("llama-draft"), n_max=4))


def in_time(work: Callable[[], Any], seconds: float = 60.0) -> Any:
    """What `work` gives or raises, in a thread of its own; a test that would wait for ever fails instead."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        try:
            return future.result(seconds)
        except TimeoutError:
            os._exit(3)  # the thread can't be ended, and would keep the test run from ending


def run_script(script: str, *args: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *args], capture_output=True, text=True, timeout=timeout
    )


# -- drafters that misbehave -----------------------------------------------------------------------------------------


class Speculator:
    def __init__(self, propose: Callable[[list[Any]], Any]) -> None:
        self.propose = propose


def forever(requests: list[Any]) -> Any:
    return [itertools.repeat(1)]


def interrupted(requests: list[Any]) -> Any:
    raise KeyboardInterrupt


def exits(requests: list[Any]) -> Any:
    sys.exit(3)


def recurses(requests: list[Any]) -> Any:
    return recurses(requests)


def forgets(requests: list[Any]) -> Any:
    requests[0].tokens.clear()
    requests.clear()
    return [[1, 2]]


@pytest.mark.parametrize(
    ("propose", "fails"),
    [
        (lambda requests: None, True),
        (lambda requests: [], True),
        (lambda requests: [[1], [2]], True),
        (lambda requests: 5, True),
        (lambda requests: "ab", True),
        (lambda requests: [[[1]]], True),
        (lambda requests: [[float("nan")]], True),
        (lambda requests: [object()], True),
        (lambda requests: bytearray(2**60), True),
        (lambda requests: [[-1, -2]], False),
        (lambda requests: [[2**70]], False),
        (lambda requests: [range(10**7)], False),
        (forever, False),
        (forgets, False),
        (interrupted, True),
        (exits, True),
        (recurses, True),
        (None, True),
    ],
)
def test_drafters_that_return_garbage(
    opened: Callable[..., Engine], expected: Result, propose: Any, fails: bool
) -> None:
    engine = opened(speculation=Speculator(propose))
    for _ in range(2):
        result = in_time(lambda: engine.generate(PROMPT, GREEDY))
        assert result.token_ids == expected.token_ids
        assert result.stats.draft_failures == (result.stats.rounds - 1 if fails else 0)
    engine.close()


@pytest.mark.parametrize("n_max", [0, -1, "8", 2.5, True])
def test_drafters_with_an_impossible_length(opened: Callable[..., Engine], n_max: Any) -> None:
    speculator = Speculator(forever)
    speculator.n_max = n_max  # type: ignore[attr-defined]
    with pytest.raises(InvalidRequest, match="n_max must be"):
        opened(speculation=speculator)


# -- draft models that fail ------------------------------------------------------------------------------------------


def test_a_draft_decode_that_fails(drafting: Engine, expected: Result) -> None:
    """The draft's memory is filled behind its back, so that its next decode is refused; it recovers by itself."""
    draft = drafting._contexts[1]

    def disturb(done: int, total: int) -> None:
        draft.decode([1, 2, 3], pos=40)

    result = drafting.generate(PROMPT, GREEDY, prompt_progress=disturb)
    assert result.token_ids == expected.token_ids
    assert result.stats.draft_failures == 1 and result.stats.drafted > 0
    assert drafting.generate(PROMPT, GREEDY).stats.draft_failures == 0


def test_only_the_draft_is_stopped(drafting: Engine, expected: Result) -> None:
    draft = drafting._contexts[1]
    result = drafting.generate(PROMPT, GREEDY, prompt_progress=lambda done, total: draft.abort())
    assert result.token_ids == expected.token_ids
    assert result.stats.drafted == 0 and result.stats.draft_failures == 0
    assert drafting.generate(PROMPT, GREEDY).stats.drafted > 0


@pytest.mark.parametrize("which", [0, 1])
def test_a_context_closed_under_the_engine(opened: Callable[..., Engine], tiny: Tiny, which: int) -> None:
    """Nothing can be done with it any more; everybody who waits is told so."""
    engine = opened(speculation=DraftModel(tiny("llama-draft"), n_max=4))
    reading, release = threading.Event(), threading.Event()

    def wait(done: int, total: int) -> None:
        reading.set()
        release.wait(60)

    first = engine.stream(PROMPT, LONG, prompt_progress=wait)
    others = [engine.stream(PROMPT, GREEDY) for _ in range(3)]
    assert reading.wait(60)
    engine._contexts[which].close()
    release.set()
    for generation in (first, *others):
        with pytest.raises(Closed):
            generation.result(timeout=60)
    with pytest.raises(Closed, match="closed"):
        in_time(lambda: engine.generate(PROMPT, GREEDY))
    with pytest.raises(Closed):
        in_time(engine.memory)
    engine.close()
    assert engine.closed


# -- calls from inside -----------------------------------------------------------------------------------------------


def test_waiting_for_the_engine_inside_the_engine(drafting: Engine, expected: Result) -> None:
    def progress(done: int, total: int) -> None:
        drafting.generate([1, 2], GREEDY)

    with pytest.raises(Busy, match="an engine of its own"):
        in_time(lambda: drafting.generate(PROMPT, GREEDY, prompt_progress=progress))
    with pytest.raises(Busy):
        in_time(
            lambda: drafting.generate(
                PROMPT, GREEDY, prompt_progress=lambda done, total: next(drafting.stream([1, 2], GREEDY))  # type: ignore[arg-type,return-value]
            )
        )
    assert drafting.generate(PROMPT, GREEDY).token_ids == expected.token_ids


def test_a_drafter_that_asks_the_engine(opened: Callable[..., Engine], expected: Result) -> None:
    engine: Engine

    def script(tokens: list[int]) -> Any:
        return engine.generate([1, 2], GREEDY).token_ids

    engine = opened(speculation=script)
    result = in_time(lambda: engine.generate(PROMPT, GREEDY))
    assert result.token_ids == expected.token_ids and result.stats.draft_failures > 0


def test_what_may_be_done_inside(drafting: Engine, expected: Result) -> None:
    seen: list[Any] = []

    def progress(done: int, total: int) -> None:
        seen.append((drafting.memory(), drafting.tokenize("hello"), drafting.stream([1], GREEDY)))

    result = in_time(lambda: drafting.generate(PROMPT, GREEDY, prompt_progress=progress))
    assert result.token_ids == expected.token_ids
    ((memory, _, generation),) = seen
    assert memory == drafting.memory() and len(generation.result(timeout=60).token_ids) == 40


@pytest.mark.parametrize("where", ["progress", "drafter"])
def test_closing_the_engine_inside_the_engine(opened: Callable[..., Engine], where: str) -> None:
    engine: Engine

    def script(tokens: list[int]) -> list[int]:
        if where == "drafter":
            engine.close()
        return []

    def progress(done: int, total: int) -> None:
        if where == "progress":
            engine.close()

    engine = opened(speculation=script)
    result = in_time(lambda: engine.generate(PROMPT, GREEDY, prompt_progress=progress))
    assert result.finish_reason == "cancelled"
    assert engine.closed
    with pytest.raises(Closed):
        engine.generate(PROMPT, GREEDY)


@pytest.mark.parametrize("error", [RuntimeError("no bar"), KeyboardInterrupt(), SystemExit(3), StopIteration()])
def test_what_the_progress_callback_raises_comes_out_as_it_is(
    drafting: Engine, expected: Result, error: BaseException
) -> None:
    def progress(done: int, total: int) -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        in_time(lambda: drafting.generate(PROMPT, GREEDY, prompt_progress=progress))
    assert caught.value is error
    assert drafting.generate(PROMPT, GREEDY).token_ids == expected.token_ids


def test_callbacks_that_are_none(drafting: Engine) -> None:
    with pytest.raises(InvalidRequest, match="prompt_progress must be a function"):
        drafting.generate(PROMPT, GREEDY, prompt_progress="bar")  # type: ignore[arg-type]


# -- threads ---------------------------------------------------------------------------------------------------------


def test_asking_for_memory_while_others_generate(drafting: Engine, expected: Result) -> None:
    idle = drafting.memory()
    reports: list[dict[str, int]] = []
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            reports.append(drafting.memory())

    with ThreadPoolExecutor(3) as pool:
        askers = [pool.submit(ask) for _ in range(2)]
        results = [in_time(lambda: drafting.generate(PROMPT, GREEDY)) for _ in range(10)]
        over.set()
        for asker in askers:
            asker.result(60)
    assert {result.token_ids for result in results} == {expected.token_ids}
    assert len(reports) > 10 and all(report == idle for report in reports)


def test_closing_while_other_threads_submit(opened: Callable[..., Engine], expected: Result) -> None:
    """Each request is right, cancelled or refused, and none is forgotten."""
    for _ in range(3):
        engine = opened()
        outcomes: list[str] = []

        def hammer(engine: Engine = engine, outcomes: list[str] = outcomes) -> None:
            while True:
                try:
                    result = engine.stream(PROMPT, GREEDY).result(timeout=60)
                except Closed:
                    outcomes.append("closed")
                    return
                assert result.token_ids == expected.token_ids[: len(result.token_ids)]
                outcomes.append(result.finish_reason)

        with ThreadPoolExecutor(4) as pool:
            threads = [pool.submit(hammer) for _ in range(4)]
            time.sleep(0.2)
            in_time(engine.close)
            for thread in threads:
                thread.result(60)
        assert outcomes.count("closed") == 4 and "length" in outcomes


def test_closing_in_many_threads(opened: Callable[..., Engine]) -> None:
    engine = opened()
    generation = engine.stream(PROMPT, LONG)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: engine.close(), range(8)))
    assert generation.result(timeout=60).finish_reason in ("cancelled", "length")


def test_engines_opened_in_threads_share_a_model(tiny: Tiny, expected: Result) -> None:
    with Model(str(tiny("llama"))) as model:

        def work(_: int) -> tuple[int, ...]:
            with Engine(model, n_ctx=N_CTX, speculation="none", **EXACT) as engine:
                return engine.generate(PROMPT, GREEDY).token_ids

        with ThreadPoolExecutor(5) as pool:
            assert set(pool.map(work, range(10))) == {expected.token_ids}
        assert model.vocab.n_tokens == 256  # it was given, so it is still open


def test_one_generation_read_by_two_threads(drafting: Engine, expected: Result) -> None:
    generation = drafting.stream(PROMPT, GREEDY)
    with ThreadPoolExecutor(2) as pool:
        parts = list(pool.map(lambda _: [token for chunk in generation for token in chunk.tokens], range(2)))
    assert sorted(parts[0] + parts[1]) == sorted(expected.token_ids)
    assert generation.result().token_ids == expected.token_ids


# -- closed objects --------------------------------------------------------------------------------------------------


def test_a_generation_outlives_its_engine(opened: Callable[..., Engine], expected: Result) -> None:
    engine = opened()
    generation = engine.stream(PROMPT, GREEDY)
    result = generation.result()
    waiting = engine.stream(PROMPT, LONG)
    engine.close()
    assert result.token_ids == expected.token_ids == generation.result().token_ids
    assert sum((chunk.tokens for chunk in generation), ()) == expected.token_ids
    assert waiting.result(timeout=60).finish_reason in ("cancelled", "length")
    generation.cancel()
    assert "done" in repr(generation) and "closed" in repr(engine)


def test_a_model_closed_while_an_engine_uses_it(tiny: Tiny, expected: Result) -> None:
    model = Model(str(tiny("llama")))
    engine = Engine(model, n_ctx=N_CTX, speculation="none", **EXACT)
    generation = engine.stream(PROMPT, GREEDY)
    model.close()
    assert generation.result(timeout=60).token_ids == expected.token_ids  # what runs is not disturbed
    for use in (lambda: engine.generate(PROMPT, GREEDY), lambda: engine.tokenize("hello"), lambda: engine.model.vocab):
        with pytest.raises(Closed, match="model"):
            use()
    engine.close()
    with pytest.raises(Closed, match="model"):
        Engine(model)


def test_a_model_given_to_two_engines_one_after_the_other(tiny: Tiny, expected: Result) -> None:
    with Model(str(tiny("llama"))) as model:
        for _ in range(2):
            with Engine(model, n_ctx=N_CTX, speculation="none", **EXACT) as engine:
                assert engine.generate(PROMPT, GREEDY).token_ids == expected.token_ids
            with pytest.raises(Closed):
                engine.generate(PROMPT, GREEDY)


def test_engines_that_failed_to_open_leave_nothing(tiny: Tiny) -> None:
    n_threads = threading.active_count()
    for _ in range(5):
        with pytest.raises(PyspecError):
            Engine(tiny("llama"), draft_model=tiny("draft-other-texts"))
        with pytest.raises(InvalidRequest):
            Engine(tiny("llama"), n_ctx=0)
    assert threading.active_count() == n_threads


# -- copies ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy, pickle.dumps])
def test_engines_and_generations_are_not_copied(
    drafting: Engine, expected: Result, make: Callable[[Any], Any]
) -> None:
    generation = drafting.stream(PROMPT, GREEDY)
    for what in (drafting, generation):
        with pytest.raises(TypeError, match="can't be copied or pickled"):
            make(what)
    assert isinstance(generation, Generation) and generation.result().token_ids == expected.token_ids


def test_results_and_parameters_are_copied(expected: Result) -> None:
    for what in (expected, expected.stats, GREEDY, DraftModel("draft.gguf", n_max=3)):
        assert copy.copy(what) == copy.deepcopy(what) == pickle.loads(pickle.dumps(what)) == what


class Loud(Engine):
    """A subclass whose constructor fails half-way."""

    def __init__(self, path: Path, *, fail: bool) -> None:
        if fail:
            raise ValueError("no")
        super().__init__(path, n_ctx=N_CTX, speculation="none", **EXACT)


def test_subclasses(tiny: Tiny, expected: Result) -> None:
    with pytest.raises(ValueError, match="no"):
        Loud(tiny("llama"), fail=True)
    with Loud(tiny("llama"), fail=False) as engine:
        assert engine.generate(PROMPT, GREEDY).token_ids == expected.token_ids
    bare = Engine.__new__(Engine)
    assert bare.closed and "closed" in repr(bare)
    bare.close()
    with pytest.raises(Closed):
        bare.generate(PROMPT)


# -- waiting ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [float("inf"), 1e300, 10**9, None])
def test_long_timeouts(opened: Callable[..., Engine], expected: Result, timeout: Any) -> None:
    engine = opened(speculation=lambda tokens: time.sleep(0.002) or [])
    assert engine.stream(PROMPT, GREEDY).result(timeout).token_ids == expected.token_ids


@pytest.mark.parametrize("timeout", [0, -1, -float("inf")])
def test_no_time_at_all(opened: Callable[..., Engine], timeout: float) -> None:
    engine = opened(speculation=lambda tokens: time.sleep(0.01) or [])
    generation = engine.stream(PROMPT, GREEDY)
    with pytest.raises(TimeoutError, match="it goes on"):
        generation.result(timeout)
    assert len(generation.result().token_ids) == 40


# -- processes -------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_an_engine_after_a_fork(tiny: Tiny) -> None:
    """libllama's threads stay behind, and whoever waited for them would wait for ever."""
    script = """
        import os, sys, warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # Python's own, about forks and threads
        from pyspec import Closed, ContextError, Engine, SamplingParams
        params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
        engine = Engine(sys.argv[1], n_ctx=256, speculation="none")
        before = engine.generate([5, 6, 7], params).token_ids
        generation = engine.stream([5, 6, 7], SamplingParams(ignore_eos=True))
        child = os.fork()
        if child == 0:
            said = []
            for use in (lambda: engine.generate([1], params), engine.memory, lambda: Engine(sys.argv[1])):
                try:
                    use()
                except (Closed, ContextError) as error:
                    said.append("spawn" in str(error))
            generation.cancel()
            del generation
            engine.close()
            sys.exit(7 if said == [True] * 3 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert engine.generate([5, 6, 7], params).token_ids == before
        print("well")
    """
    done = run_script(script, str(tiny("llama")))
    assert (done.returncode, done.stdout.strip()) == (0, "well"), done.stderr


@pytest.mark.parametrize("moment", ["in the callback", "0.05", "0.3"])
def test_ctrl_c_while_models_load(smollm2_f32: Path, smollm2: Path, moment: str) -> None:
    script = """
        import os, signal, sys, threading, time
        from pyspec import Engine, SamplingParams
        target, draft, moment = sys.argv[1:]
        def interrupt(*args):
            os.kill(os.getpid(), signal.SIGINT)
        progress = None
        if moment == "in the callback":
            progress = lambda role, done: interrupt() if done > 0.3 else None
        else:
            threading.Timer(float(moment), interrupt).start()
        try:
            engine = Engine(target, draft_model=draft, n_ctx=256, load_progress=progress)
            time.sleep(5)
        except KeyboardInterrupt:
            assert threading.active_count() <= 2
        engine = Engine(draft, n_ctx=128)
        print(len(engine.generate("Hello", SamplingParams(temperature=0.0, max_tokens=5)).token_ids))
    """
    done = run_script(script, str(smollm2_f32), str(smollm2), moment)
    assert (done.returncode, done.stdout.strip()) == (0, "5"), done.stderr


def test_signals_of_others_are_not_swallowed(tiny: Tiny) -> None:
    """A handler that raises something of its own is heard while a request is waited for."""
    script = """
        import os, signal, sys, threading, time
        from pyspec import Engine, SamplingParams
        class Alarm(Exception): pass
        def handler(*args): raise Alarm
        signal.signal(signal.SIGALRM, handler)
        slow = lambda tokens: time.sleep(0.01) or []
        with Engine(sys.argv[1], n_ctx=4096, speculation=slow) as engine:
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            t0 = time.monotonic()
            try:
                engine.generate([5, 6, 7], SamplingParams(temperature=0.0, ignore_eos=True))
            except Alarm:
                print(time.monotonic() - t0 < 3)
            print(len(engine.generate([5, 6, 7], SamplingParams(max_tokens=3, ignore_eos=True)).token_ids))
    """
    assert hasattr(signal, "SIGALRM")
    done = run_script(script, str(tiny("llama")))
    assert (done.returncode, done.stdout.split()) == (0, ["True", "3"]), done.stderr
