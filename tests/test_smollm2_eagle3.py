"""The trained EAGLE-3 head that comes with the package: what it drafts is accepted, and the text is the target's.

The target is SmolLM2's Q4_1 file, which computes a row the same whether it is alone in a batch or not.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspec import DraftEagle3, Engine, Result, SamplingParams, models
from pyspec.bench.kinds import prompts_for
from pyspec.bench.prompts import chatml
from pyspec.gguf_header import read_gguf
from pyspec.models import cache, catalog

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


def results(target: Path, path: Path, params: SamplingParams, n_slots: int, **draft: object) -> list[Result]:
    """What an engine writes to all prompts, as many at once as it has slots."""
    spec = DraftEagle3(path, **draft)  # type: ignore[arg-type]
    with Engine(target, speculation=spec, n_slots=n_slots, n_ctx=1024) as engine:
        return [generation.result(300) for generation in [engine.submit(p, params) for p in PROMPTS]]


def accepted_per_round(found: list[Result]) -> float:
    return sum(result.stats.accepted for result in found) / sum(result.stats.rounds for result in found)


def test_the_file_is_the_one_the_figures_are_of(path: Path) -> None:
    entry = catalog.SHIPPED["smollm2-eagle3"]
    assert (path.stat().st_size, cache.sha256_of(path)) == (entry.size, entry.sha256)
    assert entry.size <= 12_000_000
    assert read_gguf(path).arch == "eagle3"


@pytest.mark.parametrize(("n_max", "n_slots"), [(1, 1), (3, 1), (3, 4), (8, 2)])
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_the_text_is_that_of_plain_decoding(
    smollm2: Path, path: Path, plain: dict[SamplingParams, list[tuple[int, ...]]], n_max: int, n_slots: int,
    params: SamplingParams,
) -> None:  # fmt: skip
    found = results(smollm2, path, params, n_slots, n_max=n_max)
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
