"""N-gram speculators in the engine: the target's own text, faster where it repeats itself, and no leaks.

Drafts here are short, but for one test: SmolLM2's Q4_1 file computes a row the same bit for bit in batches of up to
64 rows, so that nothing may ever differ. Beyond that ggml's attention takes another path.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspec import (
    DraftModel,
    Engine,
    InvalidRequest,
    NGramCache,
    NGramMapK,
    NGramMapK4V,
    NGramMod,
    NGramSimple,
    SamplingParams,
)
from pyspec.bench.lossless import gap_after, row_difference
from pyspec.bench.prompts import chatml
from pyspec.errors import StateError
from pyspec.speculation import lookup_file

PROMPTS = (
    chatml("Repeat this sentence ten times: The quick brown fox jumps over the lazy dog."),
    chatml("Copy this list, and make every word upper case: apple, pear, plum, cherry, apple, pear, plum, cherry."),
    "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n\ndef mul(a, b):\n",
)

SPECS: dict[str, Any] = {
    "ngram-simple": NGramSimple(size_n=2, size_m=16),
    "ngram-map-k": NGramMapK(size_n=2, size_m=16),
    "ngram-map-k4v": NGramMapK4V(size_n=2, size_m=16),
    "ngram-mod": NGramMod(n_match=3, n_max=16, n_min=2),
    "ngram-cache": NGramCache(n_draft=12),
}
CHAINS: dict[str, Callable[[Path], Any]] = {
    **{name: lambda path, spec=spec: spec for name, spec in SPECS.items()},
    "all of them": lambda path: list(SPECS.values()),
    "n-grams, then a draft model": lambda path: [NGramMod(n_match=4, n_max=16, n_min=4), DraftModel(path, n_max=4)],
    "a draft model, then n-grams": lambda path: [DraftModel(path, n_max=4, p_min=0.9), NGramSimple(size_n=2)],
}

GREEDY: dict[str, Any] = {"temperature": 0.0}
SEEDED: dict[str, Any] = {"temperature": 0.7, "seed": 3}


@pytest.mark.parametrize("chain", CHAINS)
def test_the_text_is_the_targets_own(smollm2: Path, smollm2_q4_0: Path, chain: str) -> None:
    drafted = 0
    with Engine(smollm2, speculation=CHAINS[chain](smollm2_q4_0), n_ctx=1024, n_draft_max=24) as engine:
        for at, settings in ((0, GREEDY), (0, SEEDED), (1, GREEDY), (2, GREEDY)):
            prompt = PROMPTS[at]
            params = SamplingParams(max_tokens=48, **settings)
            plain = engine.generate(prompt, params, n_draft_max=0)
            fast = engine.generate(prompt, params)
            assert plain.stats.drafted == 0
            assert fast.token_ids == plain.token_ids
            drafted += fast.stats.emitted_from_draft
    assert drafted > 0


def test_long_drafts_differ_at_near_ties_only(smollm2: Path) -> None:
    """Batches of 65 rows and more: where texts part, the two best logits were closer than kernels are exact."""
    params = SamplingParams(max_tokens=80, temperature=0.0)
    with Engine(smollm2, speculation=NGramMod(n_match=2, n_min=0), n_ctx=1024) as engine:
        plain = engine.generate(PROMPTS[2], params, n_draft_max=0)
        fast = engine.generate(PROMPTS[2], params)
        assert max(len(s.drafted_per_position) for s in fast.stats.speculators.values()) == 64
        if fast.token_ids == plain.token_ids:
            return
        at = next(i for i, pair in enumerate(zip(fast.token_ids, plain.token_ids, strict=False)) if pair[0] != pair[1])
        tokens = [*plain.prompt_token_ids, *plain.token_ids]
        allowed = 2 * row_difference(engine.model, tokens, widths=(65,))
        assert gap_after(engine.model, [*plain.prompt_token_ids, *plain.token_ids[:at]]) <= allowed


def test_a_text_that_repeats_itself_takes_few_rounds(smollm2: Path) -> None:
    params = SamplingParams(max_tokens=96, temperature=0.0)
    prompt = "one two three four five six seven eight nine ten " * 4
    for spec in SPECS.values():
        with Engine(smollm2, speculation=spec, n_ctx=512) as engine:
            result = engine.generate(prompt, params)
        assert result.stats.tokens_per_round > 4, spec.kind
        assert set(result.drafted_by) == {None, spec.kind}
        assert list(result.stats.speculators) == [spec.kind]


@pytest.mark.parametrize("name", SPECS)
def test_nothing_of_a_request_reaches_the_next(smollm2: Path, name: str) -> None:
    params = SamplingParams(max_tokens=32, temperature=0.0)
    with Engine(smollm2, speculation=SPECS[name], n_ctx=512) as engine:
        first, other, again = (engine.generate(PROMPTS[i], params) for i in (0, 1, 0))
    assert first.token_ids == again.token_ids
    assert (first.stats.rounds, first.stats.drafted) == (again.stats.rounds, again.stats.drafted)
    assert other.token_ids != first.token_ids


def test_a_shared_table_makes_the_second_request_faster(smollm2: Path) -> None:
    params = SamplingParams(max_tokens=48, temperature=0.0)
    prompt = chatml("Write a short story about a lighthouse keeper who finds a message in a bottle.")
    spec = NGramMod(n_match=6, n_max=16, n_min=1, shared=True)
    with Engine(smollm2, speculation=spec, n_ctx=512) as engine:
        first, second = engine.generate(prompt, params), engine.generate(prompt, params)
    assert first.token_ids == second.token_ids
    assert second.stats.rounds < 0.3 * first.stats.rounds


def test_discarded_drafts_are_counted_for_whose_they_are(smollm2: Path, smollm2_q4_0: Path) -> None:
    """The second request finds drafts in the shared table, some too short as they end with the first text."""
    params = SamplingParams(max_tokens=12, temperature=0.0)
    spec = [NGramMod(n_match=2, n_max=11, n_min=11, shared=True), DraftModel(smollm2_q4_0, n_max=3, n_min=3, p_min=0.6)]
    prompt = chatml("Describe the water cycle in simple words.")
    with Engine(smollm2, speculation=spec, n_ctx=512) as engine:
        engine.generate(prompt, params)
        stats = engine.generate(prompt, SamplingParams(max_tokens=40, temperature=0.0)).stats
    assert stats.speculators["ngram-mod"].discarded > 0
    assert stats.speculators["draft-simple"].discarded > 0


def test_what_was_written_is_learned_and_saved(smollm2: Path, tmp_path: Path) -> None:
    params = SamplingParams(max_tokens=32, temperature=0.0)
    prompt = chatml("Describe the water cycle in simple words.")
    file = tmp_path / "learned.bin"
    spec = NGramCache(lookup_cache_dynamic=file, save_dynamic=True)
    with Engine(smollm2, speculation=spec, n_ctx=512) as engine:
        results = [engine.generate(prompt, params) for _ in range(3)]
        n_vocab = engine.model.vocab.n_tokens
        assert not file.exists()
    assert len({result.token_ids for result in results}) == 1
    assert results[2].stats.rounds < 0.6 * results[0].stats.rounds
    text = results[0].token_ids
    assert lookup_file.load(file, n_vocab)[text[8:12]] == {text[12]: 3}
    # and the next engine starts with it
    with Engine(smollm2, speculation=NGramCache(lookup_cache_dynamic=file), n_ctx=512) as engine:
        assert engine.generate(prompt, params).stats.rounds == results[2].stats.rounds


def test_a_lookup_cache_that_does_not_fit_is_refused(smollm2: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.bin"
    file.write_bytes(b"abc")
    with pytest.raises(StateError, match="byte 0"):
        Engine(smollm2, speculation=NGramCache(lookup_cache_static=file))
    with pytest.raises(InvalidRequest, match="can't be read"):
        Engine(smollm2, speculation=NGramCache(lookup_cache_static=tmp_path / "none"))
