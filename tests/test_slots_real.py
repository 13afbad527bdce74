"""Random schedules on a real model: what a request writes beside others is what it writes alone, to the token.

SmolLM2's Q4_1 weights are multiplied row by row, and within 256 tokens attention has one kernel for all rows, so there
are no near ties to allow for.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import drafters
import pytest

from pyspec import DraftModel, Engine, Generation, NGramMapK4V, Result, SamplingParams
from pyspec.bench.prompts import chatml

ASKED = [
    "Name three rivers of Europe.",
    "Count from one to twenty.",
    "What is a lighthouse for?",
    "Repeat after me: the quick brown fox jumps over the lazy dog.",
    "Write a line of Python that prints the squares below one hundred.",
    "Translate into French: good morning, my friend.",
    "Who wrote Hamlet, and when?",
    "Say ha ten times.",
]
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0.0, "max_tokens": 32},
    {"temperature": 0.8, "seed": 3, "max_tokens": 20, "logprobs": 1},
    {"temperature": 0.8, "seed": 8, "max_tokens": 40, "penalty_repeat": 1.2},
    {"temperature": 0.0, "max_tokens": 12, "stop": [" the", "\n"]},
]
Request = tuple[str, int]


class Expected:
    """What each request writes alone, asked for once."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._known: dict[Request, Result] = {}

    def __call__(self, request: Request) -> Result:
        if request not in self._known:
            asked, how = request
            self._known[request] = self.engine.generate(chatml(asked), SamplingParams(**SETTINGS[how]))
        return self._known[request]


@pytest.fixture(scope="module")
def alone(smollm2: Path) -> Iterator[Expected]:
    with Engine(smollm2, speculation=None, prefix_reuse=False, n_ctx=256) as engine:
        yield Expected(engine)


@pytest.mark.parametrize("who", ["puppet", "model and n-grams"])
@pytest.mark.parametrize("n_slots", [2, 4])
def test_schedules(smollm2: Path, alone: Expected, who: str, n_slots: int) -> None:
    rng = random.Random(f"{who}{n_slots}")
    puppet = drafters.Puppet()
    by_model = [NGramMapK4V(size_n=3, size_m=8), DraftModel(smollm2, n_max=3)]
    with Engine(smollm2, speculation=puppet if who == "puppet" else by_model, n_slots=n_slots, n_ctx=256) as engine:
        for _ in range(5):
            requests = [(rng.choice(ASKED), rng.randrange(len(SETTINGS))) for _ in range(2 * n_slots)]
            texts = [[*its.prompt_token_ids, *its.token_ids] for its in map(alone, requests)]

            def script(tokens: list[int], n_max: int, texts: list[list[int]] = texts) -> list[int]:
                known = next((text for text in texts if text[: len(tokens)] == tokens), [])
                draft = known[len(tokens) : len(tokens) + rng.randrange(7)]
                wrong_from = rng.randrange(9)
                return [token if i < wrong_from else token ^ 1 for i, token in enumerate(draft)]

            puppet.script = script
            running: list[tuple[Request, Generation]] = []
            for asked, how in requests:
                running.append(((asked, how), engine.submit(chatml(asked), SamplingParams(**SETTINGS[how]))))
                if rng.random() < 0.4:
                    engine.submit(chatml(rng.choice(ASKED)), SamplingParams(**SETTINGS[2])).cancel()
                if rng.random() < 0.4:
                    check(*running.pop(rng.randrange(len(running))), alone)
            for request, generation in running:
                check(request, generation, alone)
        assert engine.stats().accepted > 0


def check(request: Request, generation: Generation, alone: Expected) -> None:
    result, expected = generation.result(60), alone(request)
    assert result.token_ids == expected.token_ids, request
    assert (result.text, result.finish_reason, result.stop) == (expected.text, expected.finish_reason, expected.stop)
    if expected.logprobs is not None:
        assert result.logprobs == expected.logprobs


def test_a_long_prompt_beside_running_texts(smollm2: Path) -> None:
    """Prompts are computed apart from the single rows of others, by the kernel that computes them alone: the same
    log-probabilities to the bit, whichever slot the prompt is in."""
    text = "The lighthouse keeper walked down to the shore every morning and looked at the sea. "
    prompts = [chatml(f"Chapter {i}. " + text * 5) for i in range(4)]
    params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True, logprobs=3)
    options: dict[str, Any] = {"speculation": None, "prefix_reuse": False, "n_ctx": 256}
    with Engine(smollm2, **options) as engine:
        expected = [engine.generate(prompt, params) for prompt in prompts]
        assert all(64 < result.stats.prompt_tokens <= 128 for result in expected)
    with Engine(smollm2, n_slots=4, **options) as engine:
        for order in ((0, 1, 2, 3), (3, 1, 0, 2)):
            streams = []
            for which in order:
                streams.append((which, engine.stream(prompts[which], params)))
                next(streams[-1][1])  # it writes, and the next prompt is read beside it
            for which, stream in streams:
                assert stream.result(60).logprobs == expected[which].logprobs


def test_running_requests_sit_in_neighbouring_slots(smollm2: Path) -> None:
    """Rows of neighbours are computed together. Two at a time, in four slots, each leaving when it is done."""
    rng = random.Random(5)
    with Engine(smollm2, speculation=None, n_slots=4, n_ctx=256) as engine:
        running: list[Generation] = []
        for i in range(12):
            asked = chatml(f"{i}: {ASKED[i % len(ASKED)]}")
            running.append(engine.stream(asked, SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True)))
            next(running[-1])
            busy = [slot for slot, its in enumerate(engine.stats().slots) if its.state != "idle"]
            assert busy[-1] - busy[0] == len(busy) - 1, busy
            if len(running) == 2:
                leaving = running.pop(rng.randrange(2))
                leaving.cancel()
                leaving.result(60)
