"""Synthetic acceptance: what was asked for comes back, and nothing pretends to be the model's text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from drafters import Puppet
from tiny_models import EOS

from pyspec import DraftModel, Engine, InvalidRequest, SamplingParams
from pyspec.speculation import Stats, Synthetic
from pyspec.speculation.synthetic import conditional

RATES = (0.8, 0.6, 0.4)
PROMPT = [10, 20, 30]
Tiny = Callable[[str], Path]


class Always(Puppet):
    """Drafts the same tokens every round."""

    def __init__(self, *draft: int) -> None:
        super().__init__()
        self.n_max = len(draft)
        self.script = lambda tokens, n_max: draft


def results(engine: Engine, n_rounds: int) -> Iterator[Stats]:
    """Requests until there were so many rounds."""
    params = SamplingParams(temperature=0.0, max_tokens=300, ignore_eos=True)
    rounds = 0
    while rounds < n_rounds:
        result = engine.generate(PROMPT, params)
        assert result.synthetic
        assert result.finish_reason == "length"
        rounds += result.stats.rounds
        yield result.stats


def shares(collected: list[Stats]) -> list[float]:
    """Per position, the share of the drafts that had it in which it was accepted."""
    n = max(len(stats.drafted_per_position) for stats in collected)
    drafted = [sum(stats.drafted_per_position[i] for stats in collected) for i in range(n)]
    accepted = [sum(stats.accepted_per_position[i] for stats in collected) for i in range(n)]
    return [a / d for a, d in zip(accepted, drafted, strict=True)]


def test_rates_come_back(tiny: Tiny) -> None:
    with Engine(tiny("llama"), speculation=Always(5, 6, 7), n_threads=1, synthetic=Synthetic(RATES)) as engine:
        collected = list(results(engine, 5000))
    assert shares(collected) == pytest.approx(RATES, abs=0.02)
    rounds, tokens = sum(s.rounds for s in collected), sum(s.completion_tokens - 1 for s in collected)
    assert tokens / rounds == pytest.approx(1 + sum(RATES), abs=0.05)
    for stats in collected:
        assert stats.completion_tokens == 1 + stats.rounds + stats.accepted


def test_a_mean_length_comes_back_with_a_draft_model(tiny: Tiny) -> None:
    draft = DraftModel(tiny("llama-draft"), n_max=3)
    with Engine(tiny("llama"), speculation=draft, n_threads=1, synthetic=Synthetic(length=2.5, seed=3)) as engine:
        collected = list(results(engine, 2000))
    rounds, tokens = sum(s.rounds for s in collected), sum(s.completion_tokens - 1 for s in collected)
    assert tokens / rounds == pytest.approx(2.5, abs=0.08)


def test_a_length_becomes_the_rates_of_equally_likely_tokens() -> None:
    first, second, third = Synthetic(length=2.5).for_drafts_of(3)
    assert first + second + third == pytest.approx(1.5)
    assert (second, third) == pytest.approx((first**2, first**3))
    assert Synthetic(length=1.0).for_drafts_of(3) == pytest.approx((0.0, 0.0, 0.0), abs=1e-12)
    assert Synthetic(length=4.0).for_drafts_of(3) == (1.0, 1.0, 1.0)
    assert Synthetic(length=1.3).for_drafts_of(1) == pytest.approx((0.3,))


def test_rates_say_how_likely_a_token_is_after_those_before_it() -> None:
    assert conditional(RATES) == pytest.approx([0.8, 0.75, 2 / 3])
    assert conditional([0.5, 0.0, 0.0]) == [0.5, 0.0, 0.0]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({}, "rates"),
        ({"rates": RATES, "length": 2.0}, "rates"),
        ({"rates": ()}, "rates"),
        ({"rates": (0.5, 0.6)}, "rates"),
        ({"rates": (0.5, math.nan)}, "rates"),
        ({"rates": (1.1,)}, "rates"),
        ({"rates": (0.5, -0.1)}, "rates"),
        ({"rates": ("0.5",)}, "rates"),
        ({"rates": (True,)}, "rates"),
        ({"length": math.nan}, "length"),
        ({"length": math.inf}, "length"),
        ({"length": "2"}, "length"),
        ({"length": 2.0, "seed": -1}, "seed"),
        ({"length": 2.0, "seed": 2**32}, "seed"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Synthetic(**arguments)
    assert caught.value.name == name


@pytest.mark.parametrize(
    ("synthetic", "pattern"),
    [
        (Synthetic(rates=(0.8, 0.6)), "2 rates are given, the longest draft has 3"),
        (Synthetic(rates=(0.8, 0.6, 0.4, 0.2)), "4 rates are given, the longest draft has 3"),
        (Synthetic(length=4.1), "from 1 to 4"),
        (Synthetic(length=0.9), "from 1 to 4"),
    ],
)
def test_what_does_not_fit_the_drafts_is_refused(tiny: Tiny, synthetic: Synthetic, pattern: str) -> None:
    with pytest.raises(InvalidRequest, match=pattern):
        Engine(tiny("llama"), speculation=Always(5, 6, 7), synthetic=synthetic)


def test_it_needs_somebody_who_drafts(tiny: Tiny) -> None:
    with pytest.raises(InvalidRequest, match="needs a speculator"):
        Engine(tiny("llama"), speculation=None, synthetic=Synthetic(RATES))


@pytest.mark.parametrize(("draft", "accepted"), [((EOS, 6, 7), 0), ((5, EOS, 7), 1), ((5, 6, 7), 3)])
def test_a_drafted_end_of_the_text_is_never_accepted(tiny: Tiny, draft: tuple[int, ...], accepted: int) -> None:
    """Else the text would end by chance, and short texts are no benchmark."""
    params = SamplingParams(temperature=0.0, max_tokens=101, ignore_eos=True)
    with Engine(tiny("llama"), speculation=Always(*draft), n_threads=1, synthetic=Synthetic((1, 1, 1))) as engine:
        result = engine.generate(PROMPT, params)
    assert EOS not in result.token_ids
    assert len(result.token_ids) == 101
    assert result.stats.accepted == accepted * 100 // (accepted + 1)


def test_the_same_seed_accepts_the_same(tiny: Tiny) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True)

    def run(seed: int) -> tuple[int, ...]:
        synthetic = Synthetic(RATES, seed=seed)
        with Engine(tiny("llama"), speculation=Always(5, 6, 7), n_threads=1, synthetic=synthetic) as engine:
            return engine.generate(PROMPT, params).token_ids

    assert run(1) == run(1) != run(2)


def test_without_it_a_result_is_the_models(tiny: Tiny) -> None:
    with Engine(tiny("llama"), speculation=Always(5, 6, 7), n_threads=1) as engine:
        assert not engine.generate(PROMPT, SamplingParams(max_tokens=4)).synthetic
