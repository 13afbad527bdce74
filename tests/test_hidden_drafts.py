"""Drafts that read hidden states of the target, in an engine: found in files, paired, refused; the text as without."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny_heads
from head_stage import prompt
from tiny_heads import N_EXACT

from pyspec import (
    DraftDFlash,
    DraftDSpark,
    DraftEagle3,
    DraftMTP,
    Engine,
    InvalidRequest,
    Model,
    ModelLoadError,
    NGramMod,
    Result,
    SamplingParams,
    UnsupportedModel,
    VocabMismatch,
)
from pyspec.speculation.hidden_config import HiddenStateDraft

Tiny = Callable[[str], Path]

GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
SEEDED = SamplingParams(temperature=0.8, seed=3, max_tokens=40, ignore_eos=True)
SAMPLING = (GREEDY, SEEDED, SEEDED.replace(coupled=True))

# Target, draft and what it is used as.
PAIRS: dict[str, tuple[str, str | None, type[HiddenStateDraft]]] = {
    "mtp": ("step35-wide", None, DraftMTP),
    "mtp-hybrid": ("qwen35-mtp", None, DraftMTP),
    "mtp-file": ("step35", "step35-nextn", DraftMTP),
    "mtp-first": ("hy-v3", None, DraftMTP),
    "mtp-own-heads": ("step35-own-heads", None, DraftMTP),
    "eagle3": ("llama", "eagle3", DraftEagle3),
    "eagle3-ends": ("llama", "eagle3-ends", DraftEagle3),
    "eagle3-d2t": ("llama", "eagle3-d2t", DraftEagle3),
    "dflash": ("llama", "dflash", DraftDFlash),
    "dflash-causal": ("llama", "dflash-causal", DraftDFlash),
    "dspark": ("llama", "dspark", DraftDSpark),
    "dspark-bonus": ("llama", "dspark-bonus", DraftDSpark),
    "exact-mtp": ("exact-step35-errors", None, DraftMTP),
    "exact-heads": ("exact-step35-heads", None, DraftMTP),
    "exact-hybrid": ("exact-qwen35-errors", None, DraftMTP),
    "exact-eagle3": ("exact-llama", "exact-eagle3-errors", DraftEagle3),
    "exact-right": ("exact-llama", "exact-eagle3", DraftEagle3),
    "exact-dspark": ("exact-llama", "exact-dspark-errors", DraftDSpark),
}


def engine(
    tiny: Tiny, name: str, *, others: Sequence[Any] = (), draft: dict[str, Any] | None = None, **options: Any
) -> Engine:
    """An engine of a pair, in F32 without flash attention."""
    target, file, config = PAIRS[name]
    exact = {"type_k": "f32", "type_v": "f32", "flash_attn": "off"}
    spec = config(None if file is None else tiny(file), **{"n_max": 3, **exact, **(draft or {})})
    return Engine(
        tiny(target), speculation=[*others, spec], **{"n_ctx": 256, "n_ubatch": 32, "n_threads": 1, **exact, **options}
    )


def tokens(n: int, name: str) -> list[int]:
    return list(prompt(n, n_vocab=N_EXACT if name.startswith("exact") else 256))


# -- the text --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("n_slots", [1, 3])
def test_the_text_is_that_of_plain_decoding(tiny: Tiny, name: str, n_slots: int) -> None:
    """Greedy, sampled and coupled, behind prompts of one token and of three batches and one, alone or beside others."""
    prompts = [tokens(n, name) for n in (1, 9, 3 * 32 + 1)]
    with engine(tiny, name, n_slots=n_slots) as both:
        plain = [both.generate(p, params, n_draft_max=0) for p in prompts for params in SAMPLING]
        streams = [both.stream(p, params) for p in prompts for params in SAMPLING]
        drafted: list[Result] = [stream.result() for stream in streams]
        assert [r.token_ids for r in drafted] == [r.token_ids for r in plain]
        assert all(r.stats.drafted > 0 and r.stats.draft_failures == 0 for r in drafted)
        kind = both.config.speculators[-1]
        assert kind == PAIRS[name][2].kind
        assert drafted[0].stats.speculator(kind).drafted == drafted[0].stats.drafted
    if name.startswith("exact") and name != "exact-right":
        assert all(0.3 < r.stats.acceptance < 1 for r in drafted[:: len(SAMPLING)])


@pytest.mark.parametrize("name", ["exact-mtp", "exact-heads", "exact-hybrid", "exact-eagle3", "exact-dspark"])
def test_behind_n_grams(tiny: Tiny, name: str) -> None:
    """N-grams are asked first; the draft goes on behind what they drafted."""
    params = SamplingParams(temperature=0.0, max_tokens=100)
    with engine(tiny, name, others=[NGramMod(n_match=2, n_min=1)]) as both:
        result = both.generate(tokens(9, name), params)
        assert result.token_ids == both.generate(tokens(9, name), params, n_draft_max=0).token_ids
        kinds = {kind for kind in result.drafted_by if kind}
        assert kinds == {"ngram-mod", PAIRS[name][2].kind}


@pytest.mark.parametrize("name", ["exact-mtp", "exact-hybrid", "exact-eagle3", "exact-dspark"])
def test_requests_that_begin_alike(tiny: Tiny, name: str) -> None:
    """Each goes on from what the ones before left, in its slot or the cache, and is accepted as it would be alone."""
    first = tokens(60, name)
    prompts = [first, [*first[:50], 1, 2, 3], [*first, 4, 5], first, [9, 8, 7], [*first[:40], 6]]
    with engine(tiny, name, n_slots=2, prefix_reuse=False) as fresh:
        alone = [fresh.generate(p, GREEDY) for p in prompts]
    with engine(tiny, name, n_slots=2) as reusing:
        for p, expected in zip(prompts, alone, strict=True):
            result = reusing.generate(p, GREEDY)
            assert result.token_ids == expected.token_ids
            assert abs(result.stats.accepted - expected.stats.accepted) <= 3
        assert reusing.stats().cached_tokens > 100 or name == "exact-hybrid"


@pytest.mark.parametrize("name", ["exact-mtp", "exact-eagle3", "exact-dspark"])
def test_a_prefix_in_a_file(tiny: Tiny, name: str, tmp_path: Path) -> None:
    path = tmp_path / "prefix"
    with engine(tiny, name) as saving:
        saving.save_prefix(tokens(40, name), path)
        alone = saving.generate([*tokens(40, name), 5], GREEDY)
    with engine(tiny, name) as loading:
        loading.load_prefix(path)
        result = loading.generate([*tokens(40, name), 5], GREEDY)
    assert result.token_ids == alone.token_ids
    assert result.stats.cached_tokens >= 39 and result.stats.acceptance > 0.3


@pytest.mark.parametrize("name", PAIRS)
def test_up_to_the_end_of_the_context(tiny: Tiny, name: str) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
    with engine(tiny, name, n_ctx=64) as full:
        result = full.generate(tokens(40, name), params)
        assert result.token_ids == full.generate(tokens(40, name), params, n_draft_max=0).token_ids
        assert len(result.token_ids) == 25 and result.stats.draft_failures == 0


def test_a_text_that_goes_on_when_the_context_is_full(tiny: Tiny) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=120)
    for name in ("exact-eagle3", "exact-dspark"):
        with engine(tiny, name, n_ctx=64) as full:
            result = full.generate(tokens(20, name), params, n_keep=4)
            assert result.token_ids == full.generate(tokens(20, name), params, n_draft_max=0, n_keep=4).token_ids
            assert result.stats.context_shifts > 0 and result.stats.acceptance > 0.3


def test_lengths_that_pay(tiny: Tiny) -> None:
    """Adaptive lengths work with every kind."""
    for name in ("exact-mtp", "exact-heads", "exact-eagle3", "exact-dspark"):
        with engine(tiny, name, draft_length="auto") as adaptive:
            result = adaptive.generate(tokens(9, name), GREEDY)
            assert result.token_ids == adaptive.generate(tokens(9, name), GREEDY, n_draft_max=0).token_ids


# -- found in files --------------------------------------------------------------------------------------------------


def test_auto_finds_what_files_offer(tiny: Tiny) -> None:
    for target, draft, kind in (
        ("step35", None, "draft-mtp"),
        ("step35", "step35-nextn", "draft-mtp"),
        ("llama", "eagle3", "draft-eagle3"),
        ("llama", "dflash", "draft-dflash"),
        ("llama", "dspark", "draft-dspark"),
        ("llama", "llama-draft", "draft-simple"),
    ):
        file = None if draft is None else tiny(draft)
        with Engine(tiny(target), draft_model=file, n_ctx=256, n_threads=1) as auto:
            assert auto.config.speculators == ("grammar", "ngram-map-k4v", kind)
    with Model(str(tiny("step35")), load_mtp=True) as model, Engine(model, n_ctx=256, n_threads=1) as auto:
        assert auto.config.speculators[-1] == "draft-mtp"
    with Model(str(tiny("step35"))) as model, Engine(model, n_ctx=256, n_threads=1) as auto:
        assert auto.config.speculators[-1] == "ngram-map-k4v"


def test_layers_that_can_not_draft_in_turn(tiny: Tiny, caplog: pytest.LogCaptureFixture) -> None:
    """The first of them drafts, and a word says so."""
    with engine(tiny, "mtp-first") as first:
        assert "of the 2 NextN layers of" in caplog.text and "only the first drafts" in caplog.text
        result = first.generate(tokens(9, "mtp-first"), GREEDY)
        assert max(map(len, [result.stats.drafted_per_position])) == 3


def test_the_resolved_settings(tiny: Tiny) -> None:
    with engine(tiny, "dspark", draft={"n_max": 9, "type_k": "f16"}) as blocks:
        assert blocks.config.draft is not None and blocks.config.draft.type_k == "f16"
        assert blocks.config.draft_options is not None and blocks.config.draft_options["n_max"] == 9
        result = blocks.generate(tokens(9, "dspark"), GREEDY)
        assert result.stats.drafted <= 4 * result.stats.rounds  # as long as a block


# -- what does not fit -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "spec", "error", "message"),
    [
        ("llama", (DraftMTP, None), UnsupportedModel, "no NextN layers"),
        ("gemma3", (DraftMTP, "step35-nextn"), UnsupportedModel, "does not hand out a hidden state"),
        ("qwen35", (DraftMTP, "llama"), UnsupportedModel, "draft for draft-simple, not for draft-mtp"),
        ("gemma3", (DraftEagle3, "eagle3"), UnsupportedModel, "layer 0 .* does not hand that out"),
        ("llama", (DraftEagle3, "eagle3-far"), UnsupportedModel, "layer 9 .* has 4 layers"),
        ("llama", (DraftEagle3, "eagle3-wide"), UnsupportedModel, "384 wide.*192"),
        ("llama", (DraftEagle3, "eagle3-small"), VocabMismatch, "size is 256 in the target, 200"),
        ("llama", (DraftEagle3, "eagle3-deep"), UnsupportedModel, "eagle3.block_count is 2"),
        ("llama", (DraftEagle3, "eagle3-beyond"), ModelLoadError, "d2t names token 300"),
        ("llama", (DraftEagle3, "dflash"), UnsupportedModel, "draft for draft-dflash"),
        ("llama", (DraftDFlash, "dspark"), UnsupportedModel, "draft for draft-dspark"),
        ("llama", (DraftDFlash, "dflash-last"), UnsupportedModel, "layer 4"),
        ("llama", (DraftDFlash, "dflash-no-mask"), ModelLoadError, "mask_token_id is None"),
        ("llama", (DraftDFlash, "dflash-block-0"), ModelLoadError, "dflash.block_size is 0"),
        ("llama", (DraftDFlash, "dflash-block-1"), ModelLoadError, "dflash.block_size is 1"),
        ("llama", (DraftDSpark, "dspark-no-block"), ModelLoadError, "dflash.block_size is None"),
        ("llama", (DraftDFlash, "dflash-beyond"), ModelLoadError, "d2t names token 256"),
        ("llama", (DraftEagle3, "cut"), ModelLoadError, "cut.gguf"),
    ],
)
def test_pairs_that_can_not_work(
    tiny: Tiny,
    tmp_path: Path,
    target: str,
    spec: tuple[type[HiddenStateDraft], str | None],
    error: type[Exception],
    message: str,
) -> None:
    """A typed error names the key, the layer or the width; the target can be used all the same."""
    config, name = spec
    path = tmp_path / f"{name}.gguf"
    with Model(str(tiny(target))) as model:
        if name in WRONG:
            WRONG[name](path)
        elif name == "cut":
            path.write_bytes(tiny("eagle3").read_bytes()[:-5000])
        elif name is not None:
            path = tiny(name)
        with pytest.raises(error, match=message):
            Engine(model, speculation=config(None if name is None else path), n_ctx=256)
        with Engine(model, speculation="none", n_ctx=256, n_threads=1) as plain:
            assert len(plain.generate([1, 2], SamplingParams(max_tokens=2, ignore_eos=True)).token_ids) == 2


WRONG: dict[str | None, Callable[[Path], None]] = {
    "eagle3-far": lambda path: tiny_heads.eagle3(path, layers=(0, 1, 9)),
    "eagle3-wide": lambda path: tiny_heads.eagle3(path, n_target=128, ends=True),
    "eagle3-small": lambda path: tiny_heads.eagle3(path, n_vocab=200, ends=True),
    "eagle3-deep": lambda path: tiny_heads.eagle3(path, n_layer=2),
    "eagle3-beyond": lambda path: tiny_heads.eagle3(path, ends=True, drafted=[1, 2, 300, 4]),
    "dflash-last": lambda path: tiny_heads.dflash(path, layers=(1, 4)),
    "dflash-no-mask": lambda path: tiny_heads.dflash(path, mask=None),
    "dflash-block-0": lambda path: tiny_heads.dflash(path, block_size=0),
    "dflash-block-1": lambda path: tiny_heads.dflash(path, block_size=1),
    "dspark-no-block": lambda path: tiny_heads.dflash(path, markov=True, block_size=None),
    "dflash-beyond": lambda path: tiny_heads.dflash(path, drafted=[1, 2, 256, 4]),
}


def test_a_model_that_was_opened_without_its_heads(tiny: Tiny) -> None:
    with Model(str(tiny("step35"))) as model, pytest.raises(UnsupportedModel, match="load_mtp=True"):
        Engine(model, speculation=DraftMTP(), n_ctx=256)


def test_two_that_draft_with_a_model(tiny: Tiny) -> None:
    with pytest.raises(InvalidRequest, match="one draft model"):
        Engine(tiny("step35"), speculation=[DraftMTP(), DraftMTP(tiny("step35-nextn"))])


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"path": None}, "path"),
        ({"path": 7}, "path"),
        ({"n_max": 0}, "n_max"),
        ({"n_min": 4}, "n_min"),
        ({"p_min": 1.5}, "p_min"),
        ({"n_batch": 0}, "n_batch"),
    ],
)
@pytest.mark.parametrize("config", [DraftEagle3, DraftDFlash, DraftDSpark])
def test_impossible_options(config: type[HiddenStateDraft], options: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        config(**{"path": "draft.gguf", **options})
    assert caught.value.name == name


def test_options_survive_a_round_trip() -> None:
    for draft in (DraftMTP(n_max=2), DraftEagle3("a.gguf", p_min=0.5), DraftDSpark("b.gguf", n_batch=64)):
        assert type(draft)(**draft.to_dict()) == draft


def test_exact_drafts_are_accepted_whole(tiny: Tiny) -> None:
    """As a check of the checks: a draft that is always right gets every token accepted, in as few rounds as can be."""
    with engine(tiny, "exact-right") as right:
        result = right.generate(tokens(9, "exact"), GREEDY)
        assert result.stats.acceptance == 1
        assert result.stats.rounds <= 11
