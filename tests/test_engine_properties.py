"""Any parameters, any drafts, any ends: what a request returns is what it returns without drafts.

The target's weights are Q4_1, so that a row of logits is the same to the bit in whatever batch it is computed: with
sampling in the order of typicality, for one, a difference in the last bit would sooner or later be seen.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import drafters
import pytest
import tiny_models
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyspec import DraftModel, Engine, NGramMapK, NGramSimple, PyspecError, Result, SamplingParams
from pyspec._llama import quantize

N_CTX = 64

probability = st.floats(0.0, 1.0, width=32)
SHAPES = st.fixed_dictionaries(
    {"seed": st.integers(0, 2**32 - 2), "max_tokens": st.one_of(st.integers(1, 40), st.none())},
    optional={
        "temperature": st.one_of(st.just(0.0), st.floats(0.25, 2.0, width=32)),
        "dynatemp_range": st.floats(0.0, 1.0, width=32),
        "top_k": st.integers(0, 60),
        "top_p": probability,
        "min_p": probability,
        "typ_p": probability,
        "top_n_sigma": st.floats(0.5, 3.0, width=32),
        "min_keep": st.integers(0, 5),
        "xtc_probability": probability,
        "xtc_threshold": st.floats(0.0, 0.5, width=32),
        "penalty_repeat": st.floats(0.5, 2.0, width=32),
        "penalty_freq": st.floats(-1.0, 1.0, width=32),
        "penalty_present": st.floats(-1.0, 1.0, width=32),
        "penalty_last_n": st.integers(0, 80),
        "dry_multiplier": st.floats(0.0, 2.0, width=32),
        "dry_allowed_length": st.integers(0, 4),
        "mirostat": st.sampled_from([0, 0, 1, 2]),
        "samplers": st.permutations(["penalties", "dry", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]),
        "logit_bias": st.dictionaries(st.integers(0, 300), st.floats(-5.0, 5.0, width=32), max_size=4),
        "ignore_eos": st.booleans(),
        "logprobs": st.integers(0, 5),
        "grammar": st.sampled_from(["root ::= [a-z ]+", 'root ::= ("he" | "w" | " ")* "."', "root ::= [^a-m]+"]),
        "stop": st.lists(st.text("aehotw ,", min_size=1, max_size=3), max_size=3),
        "stop_token_ids": st.lists(st.integers(0, 300), max_size=5),
    },
)
PROMPTS = st.sampled_from(["hello world", "the", "\U0001f642 \u4f60\u597d", "a he lo " * 3, "o" * 40])


@dataclasses.dataclass
class Stage:
    scripted: Engine
    puppet: drafters.Puppet
    others: tuple[Engine, ...]


@pytest.fixture(scope="module")
def stage(tiny: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    draft = tmp_path_factory.mktemp("draft") / "draft.gguf"
    tiny_models.llama_spm(draft, seed=12)
    puppet = drafters.Puppet()
    target = draft.with_name("target.gguf")
    quantize(tiny("llama-spm"), target, "q4_1")
    with (
        Engine(target, speculation=puppet, n_ctx=N_CTX) as scripted,
        Engine(target, speculation=DraftModel(draft, n_max=5, p_min=0.02), n_ctx=N_CTX) as modelled,
        Engine(target, draft_model=draft, n_ctx=N_CTX) as automatic,
        Engine(target, speculation=[NGramMapK(size_n=1), NGramSimple(size_n=2)], n_ctx=N_CTX) as ngrams,
    ):
        yield Stage(scripted, puppet, (modelled, automatic, ngrams))


def outcome(engine: Engine, prompt: str, params: SamplingParams, **options: Any) -> tuple[Result | None, str, str]:
    """The result or None, the text of all chunks, and the error's message."""
    chunks = []
    generation = engine.stream(prompt, params, **options)
    try:
        for chunk in generation:
            assert len(chunk.tokens) == len(chunk.drafted_by)
            chunks.append(chunk)
    except PyspecError as error:
        return None, "".join(chunk.text for chunk in chunks), str(error)
    result = generation.result()
    assert sum((chunk.tokens for chunk in chunks), ()) == result.token_ids
    assert sum((chunk.logprobs for chunk in chunks), ()) == (result.logprobs or ())
    assert "".join(chunk.text for chunk in chunks) == result.text
    return result, result.text, ""


def check(result: Result, params: SamplingParams) -> None:
    """What holds for every result by itself."""
    n = len(result.token_ids)
    stats = result.stats
    assert n >= 1 and n == stats.completion_tokens == len(result.drafted_by)
    assert n <= (params.max_tokens or N_CTX)
    # Behind an end or stop token that had been drafted a round has no token of its own.
    without = 1 + stats.rounds + stats.accepted - (n + stats.discarded_tokens)
    assert without == 0 or (without == 1 and result.finish_reason == "stop" and stats.accepted > 0)
    n_drafted = sum(by is not None for by in result.drafted_by)
    assert n_drafted == stats.emitted_from_draft <= stats.accepted <= stats.drafted
    if stats.rounds:
        assert stats.tokens_per_round == pytest.approx((n + stats.discarded_tokens - 1) / stats.rounds)
    assert stats.target_rows == stats.prompt_tokens + stats.rounds + stats.drafted
    assert (result.logprobs is None) == (params.logprobs is None)
    assert (result.stop is None) == (result.finish_reason == "length")
    if isinstance(result.stop, str):
        assert result.stop in params.stop
    assert all(stop not in result.text for stop in params.stop)
    if isinstance(result.stop, int):
        assert result.stop == result.token_ids[-1]


def same(result: Result, plain: Result) -> None:
    for name in ("text", "token_ids", "finish_reason", "stop", "logprobs", "seed", "prompt_token_ids"):
        assert getattr(result, name) == getattr(plain, name), name


def test_any_request_returns_what_it_returns_without_drafts(stage: Stage) -> None:
    @settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(prompt=PROMPTS, shape=SHAPES, luck=st.integers(0, 10**6), n_draft_max=st.sampled_from([1, 2, 5, 16]))
    def requests(prompt: str, shape: dict[str, Any], luck: int, n_draft_max: int) -> None:
        params = SamplingParams(**shape)
        plain, text, error = outcome(stage.scripted, prompt, params, n_draft_max=0)
        chance = random.Random(luck)
        known = plain.token_ids if plain is not None else ()
        ids = stage.scripted.tokenize(prompt)

        def script(tokens: list[int], n_max: int) -> list[int]:
            """Right for a while, then anything; often nothing at all."""
            if chance.random() < 0.2:
                return []
            ahead = list(known[len(tokens) - len(ids) :][: chance.randint(0, 6)])
            return ahead + [chance.randrange(300) for _ in range(chance.randint(0, 3))]

        stage.puppet.script = script
        for engine in (stage.scripted, *stage.others):
            result, other_text, other_error = outcome(engine, prompt, params, n_draft_max=n_draft_max)
            assert (other_text, other_error) == (text, error)
            assert (result is None) == (plain is None)
            if result is not None and plain is not None:
                same(result, plain)
                check(result, params)
        if plain is not None:
            check(plain, params)
            assert plain.stats.drafted == 0

    requests()
