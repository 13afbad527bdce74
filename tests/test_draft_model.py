"""A draft model: what it is asked for, what it costs in rows, and that nothing it does can hurt."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspec import DraftModel, Engine, InvalidRequest, Result, SamplingParams, UnsupportedModel
from pyspec.bench.prompts import chatml, prompts_for

GREEDY = SamplingParams(temperature=0.0, max_tokens=64)
STORY = prompts_for(chat=True)[0]
REPEAT = chatml("Repeat this sentence ten times: The quick brown fox jumps over the lazy dog.")


@pytest.fixture(scope="module")
def self_engine(smollm2: Path) -> Iterator[Engine]:
    with Engine(smollm2, draft_model=smollm2, draft_length="fixed", n_ctx=1024) as engine:
        yield engine


@pytest.fixture(scope="module")
def plain(self_engine: Engine) -> Result:
    return self_engine.generate(STORY, GREEDY, n_draft_max=0)


def with_draft(target: Path, draft: DraftModel, prompt: str = STORY, params: SamplingParams = GREEDY) -> Result:
    with Engine(target, speculation=draft, n_ctx=1024) as engine:
        return engine.generate(prompt, params)


# -- it is used ------------------------------------------------------------------------------------------------------


def test_a_given_draft_model_drafts(self_engine: Engine, plain: Result) -> None:
    result = self_engine.generate(STORY, GREEDY)
    assert self_engine.config.speculators == ("grammar", "draft-simple")
    assert result.token_ids == plain.token_ids
    assert result.stats.accepted > 0 and "draft-simple" in result.drafted_by


def test_a_draft_model_and_no_speculation_contradict_each_other(smollm2: Path) -> None:
    with pytest.raises(InvalidRequest, match="switched off"):
        Engine(smollm2, draft_model=smollm2, speculation="none")


def test_two_draft_models_are_one_too_many(smollm2: Path) -> None:
    with pytest.raises(InvalidRequest, match="one draft model"):
        Engine(smollm2, speculation=[DraftModel(smollm2), DraftModel(smollm2)])


def test_the_resolved_settings_are_readable(smollm2: Path) -> None:
    draft = DraftModel(smollm2, n_max=5, n_ctx=256, type_k="q8_0", type_v="q8_0", flash_attn="on", n_threads=1)
    with Engine(smollm2, speculation=draft, n_ctx=1000, type_k="f32") as engine:
        config = engine.config
        assert config.target.n_ctx == 1000 and config.target.n_outputs_max == 6
        assert (config.target.type_k, config.target.type_v) == ("f32", "f16")
        assert config.draft is not None and config.draft.n_ctx == 256 and config.draft.n_outputs_max == 1
        assert (config.draft.type_k, config.draft.type_v, config.draft.n_threads) == ("q8_0", "q8_0", 1)
        assert config.draft_options == draft.to_dict() and config.n_draft_max == 5


# -- what it costs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_max", [1, 2, 3, 4, 8])
def test_no_token_is_evaluated_twice(smollm2_f32: Path, smollm2: Path, n_max: int) -> None:
    """Rows the draft evaluates: the prompt once, then at most one more than it proposes each round."""
    stats = with_draft(smollm2_f32, DraftModel(smollm2, n_max=n_max)).stats
    drafted_rounds = stats.rounds - stats.rounds_without_draft
    assert stats.accepted < stats.drafted  # both kinds of round occur
    assert stats.draft_rows <= stats.prompt_tokens + stats.drafted + drafted_rounds
    # Exactly: a round feeds the seed and all proposals but the last; after full acceptance that one too.
    n_read = stats.prompt_tokens + stats.completion_tokens  # every committed token once ...
    n_wrong = stats.drafted - stats.accepted - drafted_rounds  # ... and rejected ones, but for unread last ones
    assert stats.draft_rows <= n_read + max(0, n_wrong) + drafted_rounds


@pytest.mark.parametrize("n_max", [2, 4, 8])
def test_replay_writes_the_same_text_with_more_rows(smollm2: Path, n_max: int) -> None:
    lazy = with_draft(smollm2, DraftModel(smollm2, n_max=n_max))
    replay = with_draft(smollm2, DraftModel(smollm2, n_max=n_max, sync="replay"))
    assert replay.token_ids == lazy.token_ids
    assert (replay.stats.drafted, replay.stats.accepted) == (lazy.stats.drafted, lazy.stats.accepted)
    # Each round's target batch once more; what lazy synchronisation feeds after full acceptance is in there.
    assert replay.stats.draft_rows > 1.3 * lazy.stats.draft_rows


def test_p_min_stops_drafting_where_the_draft_is_unsure(smollm2_f32: Path, smollm2_q4_0: Path) -> None:
    sure, unsure = (with_draft(smollm2_f32, DraftModel(smollm2_q4_0, n_max=8, p_min=p)).stats for p in (0.9, 0.0))
    drafts = sure.speculators["draft-simple"].drafts
    assert sure.acceptance > unsure.acceptance
    assert sure.drafted / max(1, drafts) < 8 and sure.rounds_without_draft > unsure.rounds_without_draft


def test_short_drafts_are_discarded_and_counted(smollm2_f32: Path, smollm2_q4_0: Path) -> None:
    loose = with_draft(smollm2_f32, DraftModel(smollm2_q4_0, n_max=8, p_min=0.7))
    strict = with_draft(smollm2_f32, DraftModel(smollm2_q4_0, n_max=8, p_min=0.7, n_min=2))
    entry = strict.stats.speculators["draft-simple"]
    assert strict.stats.discarded > 0 and loose.stats.discarded == 0
    assert entry.drafted == sum(entry.drafted_per_position) and entry.drafted_per_position[1] == entry.drafts
    assert strict.stats.rounds_without_draft > loose.stats.rounds_without_draft


def test_prompts_longer_than_the_drafts_batch(smollm2: Path, self_engine: Engine) -> None:
    prompt = chatml("Summarise: " + "The water cycle moves water around the planet. " * 30)
    plain = self_engine.generate(prompt, GREEDY, n_draft_max=0)
    assert plain.stats.prompt_tokens > 256
    with Engine(smollm2, speculation=DraftModel(smollm2, n_max=4, n_batch=64), n_ctx=1024, n_ubatch=128) as engine:
        result = engine.generate(prompt, GREEDY)
    assert result.token_ids == plain.token_ids and result.stats.accepted > 0
    assert result.stats.draft_calls >= plain.stats.prompt_tokens // 64


# -- a short window --------------------------------------------------------------------------------------------------


def test_a_short_draft_window_moves_on(smollm2: Path, self_engine: Engine) -> None:
    """256 tokens of draft context in a text of 500: drafting goes on, at the same number of decodes a round."""
    params = SamplingParams(temperature=0.0, max_tokens=400, ignore_eos=True)
    plain = self_engine.generate(REPEAT, params, n_draft_max=0)
    with Engine(smollm2, speculation=DraftModel(smollm2, n_max=4, n_ctx=256), n_ctx=1024) as engine:
        short = engine.generate(REPEAT, dataclasses.replace(params, max_tokens=100))
        long = engine.generate(REPEAT, params)
    assert long.token_ids == plain.token_ids
    assert long.stats.draft_failures == 0 and long.stats.acceptance > 0.5
    before = short.stats.draft_calls / short.stats.rounds
    assert long.stats.draft_calls / long.stats.rounds <= 2 * before
    assert "draft-simple" in long.drafted_by[-50:]


def test_a_prompt_longer_than_the_draft_window(smollm2: Path, self_engine: Engine) -> None:
    prompt = chatml("Continue: " + "one two three four five six seven eight nine ten " * 40)
    plain = self_engine.generate(prompt, GREEDY, n_draft_max=0)
    result = with_draft(smollm2, DraftModel(smollm2, n_max=4, n_ctx=256), prompt)
    assert plain.stats.prompt_tokens > 256
    assert result.token_ids == plain.token_ids and result.stats.accepted > 0


# -- pairs -----------------------------------------------------------------------------------------------------------


def test_a_draft_with_its_own_cache_type(smollm2: Path, plain: Result) -> None:
    draft = DraftModel(smollm2, n_max=4, type_k="q8_0", type_v="q8_0", flash_attn="on")
    assert with_draft(smollm2, draft).token_ids == plain.token_ids


def test_the_same_cache_type_on_both_sides_of_the_comparison(smollm2: Path) -> None:
    with Engine(
        smollm2, draft_model=smollm2, draft_length="fixed", n_ctx=1024, type_k="q8_0", type_v="q8_0", flash_attn="on"
    ) as engine:
        assert engine.generate(STORY, GREEDY).token_ids == engine.generate(STORY, GREEDY, n_draft_max=0).token_ids


def test_you_are(smollm2: Path) -> None:
    """The same file as its own draft, temperature 0, four tokens: four tokens, all drafts accepted."""
    params = SamplingParams(temperature=0.0, max_tokens=4)
    with Engine(smollm2, speculation=DraftModel(smollm2), n_ctx=256) as engine:
        result = engine.generate("You are", params)
        assert result.token_ids == engine.generate("You are", params, n_draft_max=0).token_ids
    assert len(result.token_ids) == 4 and result.stats.accepted == result.stats.drafted == 2


def test_many_requests_on_one_engine(self_engine: Engine) -> None:
    """The draft's cells of a finished request are gone: the tenth still drafts, and nothing leaks between them."""
    prompts = prompts_for(chat=True)
    params = SamplingParams(temperature=0.0, max_tokens=12)
    expected = [self_engine.generate(prompt, params, n_draft_max=0).token_ids for prompt in prompts]
    for _ in range(2):
        for prompt, tokens in zip(prompts, expected, strict=True):
            result = self_engine.generate(prompt, params)
            assert result.token_ids == tokens and result.stats.accepted > 0


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"n_max": 0}, "n_max"),
        ({"n_max": -1}, "n_max"),
        ({"n_max": 2.5}, "n_max"),
        ({"n_min": 4, "n_max": 3}, "n_min"),
        ({"n_min": -1}, "n_min"),
        ({"p_min": 1.5}, "p_min"),
        ({"p_min": float("nan")}, "p_min"),
        ({"n_ctx": 0}, "n_ctx"),
        ({"n_batch": 0}, "n_batch"),
        ({"n_threads": -2}, "n_threads"),
        ({"sync": "sometimes"}, "sync"),
        ({"path": 7}, "path"),
    ],
)
def test_impossible_options(options: dict[str, object], name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        DraftModel(**{"path": "draft.gguf", **options})  # type: ignore[arg-type]
    assert caught.value.name == name and name in str(caught.value)


def test_options_survive_a_round_trip() -> None:
    draft = DraftModel("draft.gguf", n_max=7, n_min=2, p_min=0.25, n_ctx=512, sync="replay", type_k="q8_0")
    assert DraftModel(**draft.to_dict()) == draft


def test_replay_needs_the_whole_context(smollm2: Path) -> None:
    with pytest.raises(InvalidRequest, match="replay"):
        Engine(smollm2, speculation=DraftModel(smollm2, sync="replay", n_ctx=128), n_ctx=512)


def test_drafts_of_another_target_are_refused(tiny: object, smollm2: Path) -> None:
    for name in ("eagle3", "dflash"):
        with pytest.raises(UnsupportedModel, match=name):
            Engine(smollm2, draft_model=tiny(name))  # type: ignore[operator]
