"""What all tests share: settings of the environment, and the real models.

A model is fetched or made once and kept in the user's cache, so the first run is longer. Where that fails (no
network and nothing cached) the tests that need it are skipped and say so; everything else runs.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tiny_fixtures import tiny as tiny

# Before anything loads libllama. ggml would start a debugger on its own process to print a backtrace when
# a test makes a child abort.
os.environ["GGML_NO_BACKTRACE"] = "1"
# The decoder then verifies its invariants after every round.
os.environ["PYSPEC_CHECK"] = "1"
# libgomp's threads spin while they wait for each other. On a machine that has other things to do that makes a decode
# ten times as slow; the suite measures nothing, so its threads sleep instead. Not at once, though: most waits inside a
# decode are over in microseconds, and falling asleep for those takes nearly half of it.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("GOMP_SPINCOUNT", "2000")

# What a script starts in the background has to ignore Ctrl-C, and its children with it: tests that interrupt would wait
# for nothing.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Several processes of pytest-xdist share the machine: each gets processors of its own, and with them fewer threads a
# decode, which then hardly wait for each other at all.
if "PYTEST_XDIST_WORKER" in os.environ and hasattr(os, "sched_setaffinity"):
    _cpus = sorted(os.sched_getaffinity(0))
    _which, _n = int(os.environ["PYTEST_XDIST_WORKER"][2:]), int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    os.sched_setaffinity(0, _cpus[_which % _n :: _n] or _cpus)


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Commands run in this process set logging up for a terminal; the next test gets it as it was."""
    loggers = [logging.getLogger(name) for name in ("pyspec", "pyspec.llama")]
    before = [(logger, list(logger.handlers), logger.level, logger.propagate) for logger in loggers]
    yield
    for logger, handlers, level, propagate in before:
        logger.handlers[:] = handlers
        logger.setLevel(level)
        logger.propagate = propagate


def _model(name: str) -> Callable[[], Path]:
    @pytest.fixture(scope="session", name=name.replace("-", "_"))
    def path() -> Path:
        from pyspec import models
        from pyspec.errors import FetchError

        try:
            return models.resolve(name)
        except FetchError as error:
            pytest.skip(f"the model {name} is not cached and could not be fetched: {error}")

    path.__doc__ = f"Path of the registered model {name}."
    return path


# SmolLM2-135M-Instruct (vocabulary 49,152), as published and as the reference target made from it.
smollm2 = _model("smollm2")
smollm2_f32 = _model("smollm2-f32")
smollm2_q4_0 = _model("smollm2-q4_0")

# Gemma-3-270M (vocabulary 262,144; sliding window of 512), likewise.
gemma3 = _model("gemma3")
gemma3_f32 = _model("gemma3-f32")
gemma3_q4_0 = _model("gemma3-q4_0")
