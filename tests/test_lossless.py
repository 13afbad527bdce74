"""The promise: the text is what the target alone would have written, whoever drafts and however well.

SmolLM2's Q4_1 file computes a row the same bit for bit whether it is alone in a batch or not, so here nothing may
ever differ, near tie or not.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import drafters
import pytest
from drafters import Stage

from pyspec import Engine, SamplingParams
from pyspec.bench.prompts import prompts_for

PROMPTS = prompts_for(chat=True)
GREEDY: dict[str, Any] = {"temperature": 0.0}


@pytest.fixture(scope="module")
def stage(smollm2: Path) -> Iterator[Stage]:
    puppet = drafters.Puppet()
    with Engine(smollm2, speculation=puppet, n_ctx=1024) as engine:
        yield Stage(engine, puppet)


SAMPLING = {
    "greedy": GREEDY,
    "seeded": {"temperature": 0.8, "seed": 7},
    "hot": {"temperature": 1.5, "seed": 1, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    "repeat penalty": {**GREEDY, "penalty_repeat": 1.3, "penalty_last_n": 64},
    "short repeat penalty": {**GREEDY, "penalty_repeat": 1.3, "penalty_last_n": 8},
    "presence and frequency": {"temperature": 0.7, "seed": 3, "penalty_present": 0.5, "penalty_freq": 0.3},
    "dry": {**GREEDY, "dry_multiplier": 0.8, "dry_base": 1.75, "dry_allowed_length": 2},
    "typical": {"temperature": 0.9, "seed": 5, "typ_p": 0.7},
    "xtc": {"temperature": 0.9, "seed": 5, "xtc_probability": 0.5, "xtc_threshold": 0.1},
    "top n sigma": {"temperature": 1.2, "seed": 9, "top_n_sigma": 1.0},
    "dynamic temperature": {"temperature": 0.9, "seed": 2, "dynatemp_range": 0.5},
    "mirostat 1": {"mirostat": 1, "seed": 4},
    "mirostat 2": {"mirostat": 2, "seed": 4},
    "adaptive p": {"seed": 6, "adaptive_target": 0.5, "samplers": ("top_k", "adaptive_p")},
    "bias": {**GREEDY, "logit_bias": {260: -5.0, 28: 2.0}},
    "no end": {**GREEDY, "ignore_eos": True},
    "penalty with temperature": {"temperature": 0.8, "seed": 11, "penalty_repeat": 1.2, "dry_multiplier": 0.5},
    "coupled": {"temperature": 0.8, "seed": 7, "coupled": True},
    "coupled, hot": {"temperature": 1.5, "seed": 1, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "coupled": True},
    "coupled, penalty": {"temperature": 0.8, "seed": 11, "penalty_repeat": 1.2, "coupled": True},
    "coupled, grammar": {"temperature": 0.8, "seed": 8, "grammar": "root ::= [a-z \\n]+", "coupled": True},
    "grammar": {**GREEDY, "grammar": 'root ::= "Once" [a-z A-Z,.\'\\n]+'},
    "grammar, seeded": {"temperature": 0.8, "seed": 8, "grammar": "root ::= [a-z \\n]+"},
}


@pytest.mark.parametrize("name", SAMPLING)
def test_every_drafter_leaves_the_text_alone(stage: Stage, name: str) -> None:
    params = SamplingParams(max_tokens=32, **SAMPLING[name])
    prompt = stage.engine.tokenize(PROMPTS[0])
    plain = stage.engine.generate(prompt, params, n_draft_max=0)
    assert plain.stats.drafted == 0 and len(plain.token_ids) > 1
    for kind, script in stage.scripts(prompt, plain.token_ids).items():
        stage.puppet.script = script
        result = stage.engine.generate(prompt, params)
        assert result.token_ids == plain.token_ids, kind
        assert (result.text, result.finish_reason, result.stop) == (plain.text, plain.finish_reason, plain.stop), kind
        if kind == "right":
            assert result.stats.accepted == result.stats.drafted > 0
        elif kind == "noise":
            assert result.stats.accepted == 0 < result.stats.drafted


@pytest.mark.parametrize("at", range(len(PROMPTS)))
def test_greedy_on_all_prompts(stage: Stage, at: int) -> None:
    params = SamplingParams(max_tokens=40, **GREEDY)
    prompt = stage.engine.tokenize(PROMPTS[at])
    plain = stage.engine.generate(prompt, params, n_draft_max=0)
    stage.puppet.script = drafters.mix(3, prompt, plain.token_ids, stage.n_vocab)
    for n_draft_max in ((1, 16), (2, 8), (3, 4))[at % 3]:
        result = stage.engine.generate(prompt, params, n_draft_max=n_draft_max)
        assert result.token_ids == plain.token_ids


def test_settings_that_differ_give_texts_that_differ(stage: Stage) -> None:
    """No sampling parameter is silently dropped on the way."""
    prompt = PROMPTS[0]
    texts = {}
    for name, settings in SAMPLING.items():
        if name not in ("no end", "dry"):  # these change nothing in so short and varied a text
            texts[name] = stage.engine.generate(prompt, SamplingParams(max_tokens=24, **settings), n_draft_max=0).text
    assert len(set(texts.values())) == len(texts)


def test_dry_changes_a_repetitive_text(stage: Stage) -> None:
    prompt = "one two three one two three one two three one two three one"
    texts = {
        multiplier: stage.engine.generate(
            prompt, SamplingParams(max_tokens=24, dry_multiplier=multiplier, **GREEDY), n_draft_max=0
        ).text
        for multiplier in (0.0, 0.8)
    }
    assert texts[0.0] != texts[0.8]


def test_seeds(stage: Stage) -> None:
    def text(seed: int | None) -> str:
        params = SamplingParams(temperature=1.0, max_tokens=16, seed=seed)
        return stage.engine.generate(PROMPTS[0], params, n_draft_max=0).text

    assert len({text(seed) for seed in range(10)}) >= 2
    assert text(3) == text(3)
    assert len({text(None) for _ in range(4)}) >= 2


def test_a_random_seed_is_reported_and_repeats_the_text(stage: Stage) -> None:
    first = stage.engine.generate(PROMPTS[0], SamplingParams(temperature=1.0, max_tokens=24), n_draft_max=0)
    again = stage.engine.generate(
        PROMPTS[0], SamplingParams(temperature=1.0, max_tokens=24, seed=first.seed), n_draft_max=0
    )
    assert again.token_ids == first.token_ids


def test_a_repeated_run_is_the_same_to_the_bit(stage: Stage) -> None:
    params = SamplingParams(max_tokens=32, logprobs=5, **GREEDY)
    prompt = stage.engine.tokenize(PROMPTS[1])
    plain = stage.engine.generate(prompt, params, n_draft_max=0)
    stage.puppet.script = drafters.mix(2, prompt, plain.token_ids, stage.n_vocab)
    runs = [stage.engine.generate(prompt, params) for _ in range(2)]
    assert runs[0].logprobs == runs[1].logprobs == plain.logprobs
    assert runs[0].token_ids == runs[1].token_ids == plain.token_ids


def test_no_token_outside_the_targets_top_k(stage: Stage) -> None:
    params = SamplingParams(temperature=0.7, top_k=5, seed=21, max_tokens=48, logprobs=5)
    prompt = stage.engine.tokenize(PROMPTS[2])
    plain = stage.engine.generate(prompt, params, n_draft_max=0)
    stage.puppet.script = drafters.mix(2, prompt, plain.token_ids, stage.n_vocab)
    result = stage.engine.generate(prompt, params)
    assert result.logprobs is not None
    for entry in result.logprobs:
        assert entry.token in {token for token, _ in entry.top}


def test_the_draft_model_changes_nothing(smollm2: Path) -> None:
    """SELF: target and draft are the same file; the hardest case for stops and limits, all drafts are right."""
    from pyspec import DraftModel

    with Engine(smollm2, speculation=DraftModel(smollm2, n_max=8), n_ctx=1024) as engine:
        for settings in (GREEDY, {"temperature": 0.8, "seed": 7}, {**GREEDY, "penalty_repeat": 1.2}):
            params = SamplingParams(max_tokens=64, **settings)
            plain = engine.generate(PROMPTS[3], params, n_draft_max=0)
            fast = engine.generate(PROMPTS[3], params)
            assert fast.token_ids == plain.token_ids
        greedy = engine.generate(PROMPTS[3], SamplingParams(max_tokens=96, **GREEDY))
        assert greedy.stats.acceptance > 0.97
        assert greedy.stats.draft_rows <= greedy.stats.prompt_tokens + 9 * greedy.stats.rounds
