"""Many requests at once: each gets the text it would get alone, whoever shares its rounds, on every kind of memory."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspec import DraftModel, Engine, Generation, NGramMapK4V, NGramSimple, Result, SamplingParams
from pyspec.bench.lossless import can_flip, first_difference, row_after

KINDS = {"llama": "cut", "gemma3": "cut", "mamba": "checkpoint", "qwen35": "snapshots"}

# Results that depend on the size of a batch by 1e-5 at most, and no near tie is in reach.
EXACT: dict[str, Any] = {"type_k": "f32", "type_v": "f32", "flash_attn": "off", "n_ctx": 192, "n_threads": 1}
BORDER = 2e-3  # of a logit; the memory of the row it is tested with is f16

# Random schedules for each memory, number of slots and share accepted; `PYSPEC_SCHEDULES=10`: 200 for each memory.
N_SCHEDULES = int(os.environ.get("PYSPEC_SCHEDULES", "1"))

SAMPLING = [
    SamplingParams(temperature=0.0, max_tokens=24),
    SamplingParams(temperature=0.9, seed=5, max_tokens=40, penalty_repeat=1.2),
    SamplingParams(temperature=0.7, seed=4, max_tokens=9, logprobs=2),
    SamplingParams(temperature=0.0, max_tokens=1),
]


class Oracle:
    """A speculator that knows what plain decoding writes, and proposes some of it, then something wrong."""

    n_max = 6

    def __init__(self) -> None:
        self.texts: dict[tuple[int, ...], list[int]] = {}  # by prompt and what follows it
        self.n_right: Callable[[], int] = lambda: 6

    def propose(self, requests: Any) -> list[list[int]]:
        drafts = []
        for request in requests:
            tokens = tuple(request.tokens)
            known = next((text for text in self.texts.values() if tuple(text[: len(tokens)]) == tokens), [])
            rest = known[len(tokens) : len(tokens) + self.n_max]
            right = self.n_right()
            drafts.append([token if i < right else (token + 1) % 256 for i, token in enumerate(rest)])
        return drafts


def prompts(rng: random.Random, n: int) -> list[list[int]]:
    """Of any length, each with a first token of its own: by that the oracle knows which text it is asked about."""
    firsts = rng.sample(range(256), n)
    return [[first, *(rng.randrange(256) for _ in range(rng.choice((0, 2, 19, 69))))] for first in firsts]


def same(result: Result, alone: Result, engine: Engine, params: SamplingParams) -> bool:
    """The same in every respect; False: a random draw fell on a border, and rounding has moved it to the other side."""
    at = first_difference(result.token_ids, alone.token_ids)
    if at is not None:
        assert params.temperature > 0 and at < min(len(result.token_ids), len(alone.token_ids))
        prompt, before = result.prompt_token_ids, result.token_ids[:at]
        row = row_after(engine.model, [*prompt, *before])
        for to in (result.token_ids[at], alone.token_ids[at]):
            assert can_flip(engine.model, params, prompt, before, row, to, BORDER)
        return False
    assert (result.text, result.finish_reason, result.stop) == (alone.text, alone.finish_reason, alone.stop)
    if alone.logprobs is not None:
        assert result.logprobs is not None
        for ours, theirs in zip(result.logprobs, alone.logprobs, strict=True):
            assert ours.token == theirs.token and ours.logprob == pytest.approx(theirs.logprob, abs=1e-3)
    return True


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def plain(kind: str, tiny: Callable[[str], Path]) -> Iterator[Engine]:
    with Engine(tiny(kind), speculation=None, prefix_reuse=False, **EXACT) as engine:
        yield engine


@pytest.mark.parametrize("n_slots", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("accepted", ["all", "some", "none", "any"])
@pytest.mark.parametrize("schedule", range(N_SCHEDULES))
def test_random_schedules(
    kind: str, plain: Engine, tiny: Callable[[str], Path], n_slots: int, accepted: str, schedule: int
) -> None:
    rng = random.Random(f"{kind}{n_slots}{accepted}{schedule or ''}")
    oracle = Oracle()
    oracle.n_right = {"all": lambda: 6, "some": lambda: 2, "none": lambda: 0, "any": lambda: rng.randrange(7)}[accepted]
    with Engine(
        tiny(kind), speculation=oracle, n_slots=n_slots, n_batch=64, n_prompt_rows=16, prefix_reuse=rng.random() < 0.5,
        **EXACT
    ) as engine:  # fmt: skip
        rollback = KINDS[kind] if n_slots == 1 or kind != "qwen35" else "checkpoint"
        assert engine.config.rollback == rollback
        jobs = [(prompt, rng.choice(SAMPLING)) for prompt in prompts(rng, 10)]
        alone = [plain.generate(prompt, params) for prompt, params in jobs]
        oracle.texts = {
            (*tuple(prompt), i): [*prompt, *result.token_ids]
            for i, ((prompt, _), result) in enumerate(zip(jobs, alone, strict=True))
        }
        running: list[tuple[Generation, Result, SamplingParams]] = []
        all_same = True
        for (prompt, params), expected in zip(jobs, alone, strict=True):
            running.append((engine.submit(prompt, params), expected, params))
            if rng.random() < 0.3:  # somebody else comes and goes
                engine.submit(rng.choice(jobs)[0], SAMPLING[1]).cancel()
            if rng.random() < 0.5:
                generation, its, how = running.pop(rng.randrange(len(running)))
                all_same &= same(generation.result(60), its, plain, how)
        for generation, its, how in running:
            all_same &= same(generation.result(60), its, plain, how)
        stats = engine.stats()
        assert stats.n_waiting == 0 and all(slot.state == "idle" for slot in stats.slots)
        if accepted == "all" and all_same:
            assert stats.accepted == stats.drafted > 0
        if accepted == "some" and rollback == "checkpoint":
            assert stats.restores > 0


@pytest.mark.parametrize("draft", ["llama-draft", "llama", "mamba", "gemma3"])
@pytest.mark.parametrize("n_slots", [1, 3])
def test_draft_models(kind: str, plain: Engine, tiny: Callable[[str], Path], draft: str, n_slots: int) -> None:
    """Any kind of memory drafts for any other."""
    rng = random.Random(f"{kind}{draft}")
    speculation = [NGramSimple(size_n=2), DraftModel(tiny(draft), n_max=4)]
    with Engine(tiny(kind), speculation=speculation, n_slots=n_slots, **EXACT) as engine:
        jobs = [(prompt, rng.choice(SAMPLING)) for prompt in prompts(rng, 6)]
        expected = [plain.generate(prompt, params) for prompt, params in jobs]
        generations = [engine.submit(prompt, params) for prompt, params in jobs]
        for (_, params), generation, alone in zip(jobs, generations, expected, strict=True):
            same(generation.result(60), alone, plain, params)
            by_model = generation.stats.speculators.get("draft-simple")
            if draft == kind and params.temperature == 0.0 and by_model is not None:
                assert by_model.accepted >= 0.9 * by_model.drafted
        assert engine.stats().drafted > 0
        assert engine.stats().failed == 0


@pytest.mark.parametrize("length", ["auto", "fixed"])
def test_lengths_that_pay_with_several(plain: Engine, kind: str, tiny: Callable[[str], Path], length: str) -> None:
    rng = random.Random(7)
    speculation = [NGramMapK4V(size_n=2, size_m=8), DraftModel(tiny(kind), n_max=4)]
    with Engine(tiny(kind), speculation=speculation, draft_length=length, n_slots=3, **EXACT) as engine:  # type: ignore[arg-type]
        jobs = [(prompt, rng.choice(SAMPLING)) for prompt in prompts(rng, 12)]
        generations = [engine.submit(prompt, params) for prompt, params in jobs]
        for (prompt, params), generation in zip(jobs, generations, strict=True):
            same(generation.result(60), plain.generate(prompt, params), plain, params)


def test_threads(kind: str, plain: Engine, tiny: Callable[[str], Path]) -> None:
    """Callers on many threads, each with its own requests."""
    rng = random.Random(5)
    jobs = [(prompt, SAMPLING[0]) for prompt in prompts(rng, 8)]
    expected = [plain.generate(prompt, params) for prompt, params in jobs]
    wrong: list[int] = []
    with Engine(tiny(kind), speculation=NGramSimple(size_n=1), n_slots=3, **EXACT) as engine:

        def call(i: int) -> None:
            for _ in range(3):
                if engine.generate(*jobs[i]).token_ids != expected[i].token_ids:
                    wrong.append(i)

        threads = [threading.Thread(target=call, args=(i,)) for i in range(len(jobs))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong
