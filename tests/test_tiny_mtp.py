"""The small trained model that comes with the package: what its layers draft is accepted, and the text is the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from shipped_models import accepted_per_round, checked_header, written

from pyspec import DraftMTP, Engine, Result, SamplingParams, models

PROMPTS = (
    "Return the number of",
    "This module provides",
    "The following example shows how to",
    "A list of the names that",
    "If the argument is not a string, a",
    "Read up to n bytes from the",
    'The "import" statement',
    "Create a new thread and",
)
GREEDY = SamplingParams(temperature=0.0, max_tokens=96, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.7, seed=11, max_tokens=96, ignore_eos=True)


@pytest.fixture(scope="module")
def path() -> Path:
    return models.resolve("tiny-mtp")


@pytest.fixture(scope="module")
def plain(path: Path) -> dict[SamplingParams, list[list[int]]]:
    with Engine(path, speculation=None, n_threads=1) as engine:
        return {params: [engine.generate(p, params).token_ids for p in PROMPTS] for params in (GREEDY, SAMPLED)}


def results(path: Path, params: SamplingParams, n_slots: int = 1, **draft: object) -> list[Result]:
    spec = DraftMTP(**draft)  # type: ignore[arg-type]
    return written(path, PROMPTS, params, speculation=spec, n_slots=n_slots, n_threads=1)


def test_the_file_is_the_one_the_figures_are_of() -> None:
    header = checked_header("tiny-mtp")
    assert (header.arch, header.key("nextn_predict_layers", 0)) == ("step35", 3)


@pytest.mark.parametrize("n_max", [1, 2, 3])
@pytest.mark.parametrize("n_slots", [1, 4])
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_the_text_is_that_of_plain_decoding(
    path: Path, plain: dict[SamplingParams, list[list[int]]], n_max: int, n_slots: int, params: SamplingParams
) -> None:
    found = results(path, params, n_slots, n_max=n_max)
    assert [result.token_ids for result in found] == plain[params]
    assert all(result.stats.draft_failures == 0 for result in found)


def test_each_layer_adds_tokens(path: Path) -> None:
    """One drafted token, made by the first layer, is accepted more often than not; the layers behind it add to that."""
    one, two, three = (accepted_per_round(results(path, GREEDY, n_max=n)) for n in (1, 2, 3))
    assert one >= 0.6
    assert one + 0.1 < two < three
    assert accepted_per_round(results(path, SAMPLED, n_max=1)) >= 0.3


def test_a_part_of_the_vocabulary(path: Path, plain: dict[SamplingParams, list[list[int]]]) -> None:
    """Fewer rows of the output head, little less accepted, also with four sequences in one decode."""
    listed = {"vocab": tuple(range(1216)), "vocab_slots": 64}
    whole = results(path, GREEDY, 4, n_max=3)
    part = results(path, GREEDY, 4, n_max=3, **listed)
    assert [result.token_ids for result in part] == plain[GREEDY]
    assert 0.9 * accepted_per_round(whole) < accepted_per_round(part)
    with Engine(path, speculation=DraftMTP(**listed), n_threads=1) as engine:  # type: ignore[arg-type]
        vocab = engine.config.draft_vocab
        assert vocab is not None and vocab.unused_because is None and vocab.n_rows == 1280
        assert engine.memory()["draft.head"] == vocab.n_bytes


def test_it_is_found_by_itself(path: Path) -> None:
    """Nobody has to say that the file has something to draft with."""
    with Engine("tiny-mtp", n_threads=1) as engine:
        assert engine.config.speculators[-1] == "draft-mtp"
        result = engine.generate(PROMPTS[0], GREEDY)
        assert result.token_ids == engine.generate(PROMPTS[0], GREEDY, n_draft_max=0).token_ids


def test_the_memory_of_all_layers_is_counted(path: Path) -> None:
    """Each layer that drafts has a context of its own; the weights are there once, in the target's file."""
    reports = []
    for n_max in (1, 3):
        with Engine(path, speculation=DraftMTP(n_max=n_max), n_ctx=256, n_threads=1) as engine:
            reports.append(engine.memory())
    one, three = reports
    assert "draft.model" not in one and one["target.model"] == three["target.model"] > 2_000_000
    assert three["draft.logits"] == 3 * one["draft.logits"] > 0
    assert three["draft.context"] == 3 * one["draft.context"] > 0
