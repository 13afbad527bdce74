"""The trained EAGLE-3 head that comes with the package: what it drafts is accepted, and the text is the target's.

The target is SmolLM2's Q4_1 file, which computes a row the same whether it is alone in a batch or not.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from shipped_models import accepted_per_round, checked_header, written

from pyspec import DraftEagle3, Engine, SamplingParams, models
from pyspec.bench.kinds import prompts_for
from pyspec.bench.prompts import chatml

KINDS = ("chat", "prose", "code", "translation")
PROMPTS = [chatml(prompt.request) for kind in KINDS for prompt in prompts_for([kind], 1)]
GREEDY = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.7, seed=11, max_tokens=64, ignore_eos=True)


@pytest.fixture(scope="module")
def path() -> Path:
    return models.resolve("smollm2-eagle3")


@pytest.fixture(scope="module")
def plain(smollm2: Path) -> dict[SamplingParams, list[tuple[int, ...]]]:
    with Engine(smollm2, speculation=None, n_ctx=1024) as engine:
        return {params: [engine.generate(p, params).token_ids for p in PROMPTS] for params in (GREEDY, SAMPLED)}


def test_the_file_is_the_one_the_figures_are_of() -> None:
    assert checked_header("smollm2-eagle3").arch == "eagle3"


@pytest.mark.parametrize(("n_max", "n_slots"), [(1, 1), (3, 1), (3, 4), (8, 2)])
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_the_text_is_that_of_plain_decoding(
    smollm2: Path, path: Path, plain: dict[SamplingParams, list[tuple[int, ...]]], n_max: int, n_slots: int,
    params: SamplingParams,
) -> None:  # fmt: skip
    found = written(
        smollm2, PROMPTS, params, speculation=DraftEagle3(path, n_max=n_max), n_slots=n_slots, n_ctx=1024
    )
    assert [result.token_ids for result in found] == plain[params]
    assert all(result.stats.draft_failures == 0 for result in found)
    # One drafted token adds less than three do; what is drawn at random is harder to foresee.
    least = {GREEDY: 0.3 if n_max == 1 else 0.5, SAMPLED: 0.2}[params]
    assert accepted_per_round(found) > least


def test_a_draft_file_of_this_kind_needs_no_more_than_its_name(
    plain: dict[SamplingParams, list[tuple[int, ...]]]
) -> None:
    with Engine("smollm2", draft_model="smollm2-eagle3", n_ctx=1024) as engine:
        assert "draft-eagle3" in engine.config.speculators
        found = [engine.generate(prompt, GREEDY) for prompt in PROMPTS[:2]]
    assert [result.token_ids for result in found] == plain[GREEDY][:2]
