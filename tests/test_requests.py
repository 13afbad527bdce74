"""What a request does besides its text: stops and limits, log-probabilities, statistics, the same with any drafter."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path

import drafters
import pytest

from pyspec import Engine, Result, SamplingParams
from pyspec.bench.prompts import chatml, prompts_for

GREEDY = SamplingParams(temperature=0.0, max_tokens=48, seed=1)
STORY = prompts_for(chat=True)[0]
REPEAT = chatml("Repeat this sentence ten times: The quick brown fox jumps over the lazy dog.")


@pytest.fixture(scope="module")
def puppet() -> drafters.Puppet:
    return drafters.Puppet()


@pytest.fixture(scope="module")
def engine(smollm2: Path, puppet: drafters.Puppet) -> Iterator[Engine]:
    with Engine(smollm2, speculation=puppet, n_ctx=512) as engine:
        yield engine


@pytest.fixture(scope="module")
def plain(engine: Engine) -> Result:
    return engine.generate(STORY, GREEDY, n_draft_max=0)


@pytest.fixture(params=["none", "right", "noise", "mix2"])
def draft(request: pytest.FixtureRequest, engine: Engine, puppet: drafters.Puppet, plain: Result) -> str:
    """Sets the puppet up to draft for STORY; every test that uses this runs once for each way to draft."""
    prompt, n_vocab = plain.prompt_token_ids, engine.model.vocab.n_tokens
    puppet.script = {
        "none": drafters.nothing,
        "right": drafters.right(prompt, plain.token_ids),
        "noise": drafters.noise(prompt, plain.token_ids, n_vocab),
        "mix2": drafters.mix(2, prompt, plain.token_ids, n_vocab),
    }[request.param]
    return str(request.param)


# -- stop strings ----------------------------------------------------------------------------------------------------


def test_a_stop_string_ends_everything_at_the_same_token(engine: Engine, plain: Result, draft: str) -> None:
    words = plain.text.split()
    stop = f"{words[6]} {words[7]}"
    params = dataclasses.replace(GREEDY, stop=(stop,), logprobs=2)
    result = engine.generate(STORY, params)
    assert result.finish_reason == "stop" and result.stop == stop
    assert result.text == plain.text[: plain.text.index(stop)]
    assert result.token_ids == plain.token_ids[: len(result.token_ids)]
    assert result.logprobs is not None and len(result.logprobs) == len(result.token_ids)
    assert result.stats.completion_tokens == len(result.token_ids) == len(result.drafted_by)
    pieces = b"".join(engine.model.vocab.piece(token, special=False) for token in result.token_ids)
    assert stop in pieces.decode() and stop not in pieces[: -len(pieces) + 1].decode(errors="ignore")
    without_last = b"".join(engine.model.vocab.piece(token, special=False) for token in result.token_ids[:-1])
    assert stop not in without_last.decode(errors="ignore")


def test_streaming_agrees_with_the_whole(engine: Engine, plain: Result, draft: str) -> None:
    stop = plain.text[60:70]
    params = dataclasses.replace(GREEDY, stop=(stop,), logprobs=1)
    whole = engine.generate(STORY, params)
    generation = engine.stream(STORY, params)
    chunks = list(generation)
    assert "".join(chunk.text for chunk in chunks) == whole.text == generation.result().text
    assert sum((chunk.tokens for chunk in chunks), ()) == whole.token_ids
    assert sum((chunk.logprobs for chunk in chunks), ()) == whole.logprobs
    assert sum((chunk.drafted_by for chunk in chunks), ()) == whole.drafted_by
    result = generation.result()
    assert result == dataclasses.replace(whole, stats=result.stats, times=result.times)


def test_of_several_stop_strings_the_one_that_completes_first_wins(engine: Engine, plain: Result, draft: str) -> None:
    early, late = plain.text[40:50], plain.text[41:55]
    assert plain.text.index(early) == 40
    result = engine.generate(STORY, dataclasses.replace(GREEDY, stop=(late, early)))
    assert result.stop == early and result.text == plain.text[:40]


def test_text_held_back_for_a_stop_string_is_not_lost_at_the_limit(engine: Engine, plain: Result, draft: str) -> None:
    stop = plain.text[-12:] + "never said"
    generation = engine.stream(STORY, dataclasses.replace(GREEDY, stop=(stop,)))
    assert "".join(chunk.text for chunk in generation) == plain.text
    assert generation.result().finish_reason == "length"


# -- stop tokens and limits ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", range(1, 10))
def test_exactly_max_tokens(engine: Engine, plain: Result, puppet: drafters.Puppet, draft: str, n: int) -> None:
    puppet.requests.clear()
    result = engine.generate(STORY, dataclasses.replace(GREEDY, max_tokens=n))
    assert result.token_ids == plain.token_ids[:n]
    assert result.finish_reason == "length" and result.stop is None
    assert all(request.n_max <= n - 2 for request in puppet.requests)  # one is out, one the target says itself
    assert result.stats.discarded_tokens == 0


def test_a_stop_token_ends_the_text_in_mid_draft(engine: Engine, plain: Result, draft: str) -> None:
    token = plain.token_ids[5]
    first = plain.token_ids.index(token)
    result = engine.generate(STORY, dataclasses.replace(GREEDY, stop_token_ids=(token,)))
    assert result.finish_reason == "stop" and result.stop == token
    assert result.token_ids == plain.token_ids[: first + 1]
    assert result.stats.discarded_tokens == 0


def test_the_models_own_end(engine: Engine, puppet: drafters.Puppet) -> None:
    prompt = engine.tokenize(chatml("Say hi."))
    params = SamplingParams(temperature=0.0, max_tokens=200)
    plain = engine.generate(prompt, params, n_draft_max=0)
    assert plain.finish_reason == "stop" and plain.stop in engine.model.vocab.eog_tokens
    assert plain.token_ids[-1] == plain.stop and "<|im_end|>" not in plain.text
    beyond = (*plain.token_ids, 5, 6, 7, 8)
    puppet.script = drafters.right(prompt, beyond)
    result = engine.generate(prompt, params)
    assert (result.token_ids, result.stop, result.text) == (plain.token_ids, plain.stop, plain.text)


def test_an_end_the_draft_proposes_and_the_target_does_not(
    engine: Engine, plain: Result, puppet: drafters.Puppet
) -> None:
    eos = engine.model.vocab.eog_tokens[0]
    asked = []

    def script(tokens: list[int], n_max: int) -> list[int]:
        asked.append(n_max)
        return [plain.token_ids[len(tokens) - len(plain.prompt_token_ids)], eos]

    puppet.script = script
    result = engine.generate(STORY, GREEDY)
    assert result.token_ids == plain.token_ids and result.finish_reason == "length"
    assert len(asked) > 10 and result.stats.accepted >= len(asked) - 1


def test_the_context_fills_up(engine: Engine, smollm2: Path) -> None:
    puppet = drafters.Puppet()
    prompt = engine.tokenize("Hello " * 56)
    params = SamplingParams(temperature=0.0, ignore_eos=True)
    with Engine(smollm2, speculation=puppet, n_ctx=64) as small:
        plain = small.generate(prompt, params, n_draft_max=0)
        assert plain.finish_reason == "length" and len(prompt) + len(plain.token_ids) == 64 + 1
        puppet.script = drafters.right(prompt, plain.token_ids)
        assert small.generate(prompt, params).token_ids == plain.token_ids
        puppet.script = drafters.noise(prompt, plain.token_ids, small.model.vocab.n_tokens)
        assert small.generate(prompt, params).token_ids == plain.token_ids


# -- log-probabilities -----------------------------------------------------------------------------------------------


def test_log_probabilities_of_every_token(engine: Engine, puppet: drafters.Puppet) -> None:
    prompt = engine.tokenize("The capital of France is")
    params = SamplingParams(temperature=0.0, max_tokens=10, logprobs=3, penalty_repeat=1.1)
    plain = engine.generate(prompt, params, n_draft_max=0)
    puppet.script = drafters.mix(2, prompt, plain.token_ids, engine.model.vocab.n_tokens)
    result = engine.generate(prompt, params)
    assert result.logprobs == plain.logprobs is not None
    assert len(plain.logprobs) == len(plain.token_ids) == 10
    for token, entry in zip(plain.token_ids, plain.logprobs, strict=True):
        assert entry.token == token and len(entry.top) == 3
        probabilities = [math.exp(logprob) for _, logprob in entry.top]
        assert probabilities == sorted(probabilities, reverse=True) and sum(probabilities) <= 1.0001
        best = dict(entry.top)
        assert entry.logprob == pytest.approx(best.get(token, entry.logprob)) and entry.logprob <= 0


def test_zero_top_log_probabilities_still_give_the_tokens_own(engine: Engine) -> None:
    result = engine.generate(STORY, dataclasses.replace(GREEDY, max_tokens=4, logprobs=0), n_draft_max=0)
    assert result.logprobs is not None and all(e.top == () and e.logprob <= 0 for e in result.logprobs)


def test_the_result_has_the_same_fields_with_and_without_speculation(
    engine: Engine, plain: Result, puppet: drafters.Puppet
) -> None:
    puppet.script = drafters.right(plain.prompt_token_ids, plain.token_ids)
    fast = engine.generate(STORY, GREEDY)

    def schema(value: object) -> object:
        return {k: schema(v) for k, v in value.items() if k != "speculators"} if isinstance(value, dict) else None

    assert schema(fast.to_dict()) == schema(plain.to_dict())


# -- statistics ------------------------------------------------------------------------------------------------------


def test_the_counts_add_up(engine: Engine, plain: Result, draft: str) -> None:
    stats = engine.generate(STORY, GREEDY).stats
    assert stats.completion_tokens == 48 == 1 + stats.rounds + stats.accepted
    assert stats.emitted_from_draft == stats.accepted <= stats.drafted
    assert stats.target_rows == stats.prompt_tokens + stats.rounds + stats.drafted
    assert stats.target_calls == stats.rounds + 1
    assert sum(stats.drafted_per_position) == stats.drafted and sum(stats.accepted_per_position) == stats.accepted
    assert sorted(stats.accepted_per_position, reverse=True) == stats.accepted_per_position
    if draft == "none":
        assert stats.rounds_without_draft == stats.rounds and stats.acceptance == 0.0
    if draft == "mix2":
        assert stats.accepted_per_position[2:] == [0] * (len(stats.accepted_per_position) - 2)
    assert stats.decode_ms >= stats.verify_ms + stats.draft_ms > 0
    assert set(stats.to_dict()) >= {"rounds", "acceptance", "tokens_per_round", "python_ms", "overhead"}


def test_tokens_behind_a_stop_string_are_counted_apart(engine: Engine, plain: Result, puppet: drafters.Puppet) -> None:
    puppet.script = drafters.right(plain.prompt_token_ids, plain.token_ids)
    stop = engine.model.vocab.piece(plain.token_ids[3], special=False).decode().strip()
    stats = engine.generate(STORY, dataclasses.replace(GREEDY, stop=(stop,))).stats
    assert stats.discarded_tokens > 0
    assert stats.emitted_from_draft <= stats.completion_tokens
    assert stats.completion_tokens + stats.discarded_tokens == 1 + stats.rounds + stats.accepted


def test_empty_drafts_then_a_long_one(engine: Engine, plain: Result, puppet: drafters.Puppet) -> None:
    first = len(plain.prompt_token_ids)

    def script(tokens: list[int], n_max: int) -> list[int]:
        at = len(tokens) - first
        return [] if at < 30 else list(plain.token_ids[at : at + 8])

    puppet.script = script
    result = engine.generate(STORY, GREEDY)
    assert result.token_ids == plain.token_ids
    assert result.stats.rounds_without_draft >= 29
    assert result.stats.target_rows == result.stats.prompt_tokens + result.stats.rounds + result.stats.drafted


@pytest.mark.parametrize("bad", [[-1], [49152], [2**31], [-(2**40)], ["x"], [None], [1.5], 7])
def test_a_draft_that_is_none_never_reaches_the_target(
    engine: Engine, plain: Result, puppet: drafters.Puppet, bad: object
) -> None:
    first = len(plain.prompt_token_ids)

    def script(tokens: list[int], n_max: int) -> object:
        return [plain.token_ids[len(tokens) - first], *bad] if isinstance(bad, list) else bad

    puppet.script = script  # type: ignore[assignment]
    result = engine.generate(STORY, GREEDY)
    assert result.token_ids == plain.token_ids
    if isinstance(bad, list) and isinstance(bad[0], int):
        assert result.stats.drafted == result.stats.accepted > 0 and result.stats.draft_failures == 0
    else:
        assert result.stats.draft_failures > 0 or (isinstance(bad, list) and bad == [1.5])


def test_a_drafter_that_raises_fails_no_request(engine: Engine, plain: Result, puppet: drafters.Puppet) -> None:
    def script(tokens: list[int], n_max: int) -> list[int]:
        raise RuntimeError("no idea")

    puppet.script = script
    result = engine.generate(STORY, GREEDY)
    assert result.token_ids == plain.token_ids
    assert result.stats.draft_failures == result.stats.rounds - 1  # the last round has no budget


def test_the_first_speculator_with_a_draft_wins(smollm2: Path, plain: Result) -> None:
    first, second = drafters.Puppet(), drafters.Puppet()
    prompt = plain.prompt_token_ids
    two = drafters.right(prompt, plain.token_ids, 2)
    first.script = lambda tokens, n_max: two(tokens, n_max) if len(tokens) % 3 == 0 else []
    second.script = drafters.right(prompt, plain.token_ids, 3)
    first.name, second.name = "thirds", "rest"  # type: ignore[attr-defined]
    with Engine(smollm2, speculation=[first, second], n_ctx=512) as engine:
        result = engine.generate(STORY, GREEDY)
    assert result.token_ids == plain.token_ids
    assert {"thirds", "rest"} <= set(result.drafted_by)
    stats = result.stats.speculators
    assert stats["thirds"].accepted + stats["rest"].accepted == result.stats.accepted
    assert len(stats["thirds"].drafted_per_position) == 2 and len(stats["rest"].drafted_per_position) == 3
