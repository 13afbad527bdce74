"""Coupled sampling: exact draws, the same whoever drafts, and drafts that are drawn alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chi_square import p_value
from decoder_stage import N_SEQ, N_VOCAB, PROMPTS, Stage, room
from decoder_stage import dense as dense
from decoder_stage import stage as stage
from decoder_stage import window as window
from vocab_files import spm_tokens, write_vocab

from pyspec import DraftModel, Engine, GrammarDrafts
from pyspec._decoder import Decoder, choose
from pyspec._drafting import DraftRunner
from pyspec._llama import Model
from pyspec.errors import InvalidRequest
from pyspec.sampling import SamplerPlan, SamplingParams, build_chain

N_DRAWS = 4000
WHOLE: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
CHAINS: dict[str, dict[str, Any]] = {
    "softmax": WHOLE,
    "defaults": {},
    "hot": {"temperature": 1.7, "top_k": 12},
    "typical": {**WHOLE, "typ_p": 0.6},
    "dynamic temperature": {**WHOLE, "dynatemp_range": 0.5},
    "bias": {**WHOLE, "logit_bias": {3: 1.5, 4: -float("inf")}},
}


@pytest.fixture(scope="module")
def vocab(tmp_path_factory):
    path = write_vocab(tmp_path_factory.mktemp("vocab") / "v.gguf", spm_tokens(N_VOCAB))
    with Model(str(path), vocab_only=True) as model:
        yield model.vocab


@pytest.fixture(scope="module")
def row() -> np.ndarray:
    return (2.0 * np.random.default_rng(3).standard_normal(N_VOCAB)).astype(np.float32)


def plan_of(vocab, **values: Any) -> SamplerPlan:
    return build_chain(SamplingParams(**{"seed": 1, "coupled": True, **values}), vocab, n_ctx=256)


def softmax(plan: SamplerPlan, row: np.ndarray, allowed: np.ndarray | None = None) -> np.ndarray:
    """Over what the chain leaves of a row."""
    ids = np.arange(len(row), dtype=np.int32) if allowed is None else allowed
    kept, logits, _, picked = plan.chain.apply(ids, row[ids])
    assert picked is None
    weights = np.exp(logits.astype(np.float64) - logits.max())
    probabilities = np.zeros(len(row))
    probabilities[kept] = weights / weights.sum()
    return probabilities


# --- the distribution -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CHAINS)
def test_seeds_draw_from_what_the_chain_leaves(vocab, row: np.ndarray, name: str) -> None:
    values = CHAINS[name]
    drawn = Counter(choose(plan_of(vocab, seed=seed, **values), row[None])[0] for seed in range(N_DRAWS))
    assert len(drawn) > 3
    assert p_value(drawn, softmax(plan_of(vocab, **values), row)) > 0.001


@pytest.mark.parametrize("name", CHAINS)
def test_positions_of_a_text_draw_from_it_as_well(vocab, row: np.ndarray, name: str) -> None:
    plan = plan_of(vocab, **CHAINS[name])
    drawn = Counter(choose(plan, np.tile(row, (N_DRAWS, 1))))
    assert p_value(drawn, softmax(plan_of(vocab, **CHAINS[name]), row)) > 0.001


def test_neighbours_have_nothing_to_do_with_each_other(vocab) -> None:
    """Pairs of draws at consecutive positions, and with consecutive seeds, are as likely as their parts say."""
    flat = np.full(N_VOCAB, -np.inf, np.float32)
    flat[:5] = [0.0, 0.5, 1.0, -0.5, 0.2]
    one = softmax(plan_of(vocab, **WHOLE), flat)[:5]
    both = np.outer(one, one).ravel()
    rows = np.tile(flat, (N_DRAWS, 1))
    texts = [np.array(choose(plan_of(vocab, seed=seed, **WHOLE), rows)) for seed in (5, 6)]
    assert p_value(Counter((5 * texts[0][::2] + texts[0][1::2]).tolist()), both) > 0.001
    assert p_value(Counter((5 * texts[0] + texts[1]).tolist()), both) > 0.001


def test_a_grammar_sampler_draws_as_it_does_without(vocab, row: np.ndarray) -> None:
    """The chain picks first; where that does not fit it is asked again, about what fits."""
    values = {"temperature": 1.0, "top_k": 6, "top_p": 1.0, "min_p": 0.0, "grammar": "root ::= [a-m]+"}
    pieces = {token: vocab.piece(token) for token in range(N_VOCAB)}
    fitting = [token for token, piece in pieces.items() if piece and not piece.strip(b"abcdefghijklm")]
    lifted = row.copy()
    lifted[fitting[:3]] = np.sort(row)[-3:]  # some of the six best fit
    drawn = Counter(choose(plan_of(vocab, seed=seed, **values), lifted[None])[0] for seed in range(N_DRAWS))
    first = softmax(plan_of(vocab, **values), lifted)
    second = softmax(plan_of(vocab, **values), lifted, np.array(fitting, np.int32))
    fits = np.isin(np.arange(N_VOCAB), fitting)
    assert 0.1 < first[fits].sum() < 0.9
    assert p_value(drawn, np.where(fits, first, 0.0) + first[~fits].sum() * second) > 0.001


@pytest.mark.parametrize("values", [{"temperature": 0.0}, {"top_k": 1}, {"temperature": -1.0, "typ_p": 0.5}])
def test_greedy_stays_greedy(vocab, row: np.ndarray, values: dict[str, Any]) -> None:
    plan = plan_of(vocab, **values)
    assert not plan.coupled
    assert choose(plan, np.tile(row, (20, 1))) == choose(plan_of(vocab, coupled=False, **values), np.tile(row, (20, 1)))


# --- seed, position, token ------------------------------------------------------------------------------------


def test_a_seed_repeats_and_another_one_differs(vocab, row: np.ndarray) -> None:
    rows = np.tile(row, (50, 1))
    texts = [choose(plan_of(vocab, seed=seed, **WHOLE), rows) for seed in (1, 1, 2, 2**32 - 2)]
    assert texts[0] == texts[1]
    assert len(set(map(tuple, texts))) == 3


def test_a_choice_depends_on_position_alone(vocab, row: np.ndarray) -> None:
    """Not on how many were made before: the prompt counts as they do, whatever is in it."""
    rows = np.tile(row, (40, 1))
    text = choose(plan_of(vocab, **WHOLE), rows, prompt=(1, 2, 3))
    assert choose(plan_of(vocab, **WHOLE), rows[:30], prompt=(9,) * 13) == text[10:]
    assert choose(plan_of(vocab, **WHOLE), rows[:30], prompt=(9,) * 12) != text[10:]


def test_nearly_equal_rows_draw_alike(vocab, row: np.ndarray) -> None:
    """Far more often than two independent draws would."""
    rows = np.tile(row, (1000, 1))
    other = rows + np.random.default_rng(4).normal(0.0, 0.1, rows.shape).astype(np.float32)
    same = np.mean(np.array(choose(plan_of(vocab, **WHOLE), rows)) == choose(plan_of(vocab, **WHOLE), other))
    probabilities = softmax(plan_of(vocab, **WHOLE), row)
    assert same > 0.85 > 2 * (probabilities**2).sum()


# --- rounds ---------------------------------------------------------------------------------------------------

SAMPLING: dict[str, dict[str, Any]] = {
    "defaults": {"temperature": 0.9, "seed": 11},
    "whole": {**WHOLE, "temperature": 1.3, "seed": 12},
    "penalised": {"temperature": 0.9, "seed": 5, "penalty_repeat": 1.3, "dry_multiplier": 0.5},
}


def written(decoder: Decoder, stage: Stage, n: int, drafts: Callable[[Decoder, int, list[list[int]]], None],
            **values: Any) -> tuple[list[list[int]], int, int]:  # fmt: skip
    """What all sequences write together, and of the drafted tokens how many there were and were accepted."""
    texts: list[list[int]] = [[] for _ in range(N_SEQ)]
    drafted = accepted = round_ = 0
    for seq in range(N_SEQ):
        plan = plan_of(stage.target.vocab, **{**values, "seed": values["seed"] + seq})
        decoder.begin(seq, PROMPTS[seq], plan)
    while any(len(text) < n for text in texts):
        for seq, text in enumerate(texts):
            if len(text) < n:
                decoder.plan(seq, budget=room(decoder, seq, text, n), prompt_rows=64)
        drafts(decoder, round_, texts)
        decoder.verify()
        for seq, text in enumerate(texts):
            if len(text) < n:
                emitted, n_drafted, n_accepted, _, error = decoder.result(seq)
                assert error is None
                text += emitted
                drafted, accepted = drafted + n_drafted, accepted + n_accepted
        round_ += 1
    return texts, drafted, accepted


def nobody(decoder: Decoder, round_: int, texts: list[list[int]]) -> None:
    pass


def model(decoder: Decoder, round_: int, texts: list[list[int]]) -> None:
    decoder.propose(0)


def model_and_wrong(decoder: Decoder, round_: int, texts: list[list[int]]) -> None:
    """Every other round the draft comes from elsewhere, and is wrong."""
    if round_ % 2:
        for seq, text in enumerate(texts):
            decoder.offer(seq, [(text[-1] + 1) % N_VOCAB] * 3 if text else [])
    decoder.propose(0)


@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("drafts", [model, model_and_wrong])
def test_drafts_change_nothing(stage: Stage, sampling: str, drafts: Any) -> None:
    values = SAMPLING[sampling]
    with stage.context() as context:
        plain, _, _ = written(Decoder(context), stage, 40, nobody, **values)
    with stage.context() as context:
        fast, drafted, accepted = written(Decoder(context, [stage.runner()]), stage, 40, drafts, **values)
    assert fast == plain
    assert 0 < accepted < drafted
    assert len(set(map(tuple, plain))) == N_SEQ


@pytest.mark.parametrize("sampling", ["defaults", "whole"])
def test_a_model_that_drafts_for_itself_is_always_right(dense: Stage, sampling: str) -> None:
    """The same logits, seed, positions and filters: also behind a rejection, and with several at once."""
    for drafts in (model, model_and_wrong):
        with dense.context() as context, dense.context() as own:
            decoder = Decoder(context, [DraftRunner(own, N_VOCAB, n_max=4)])
            _, drafted, accepted = written(decoder, dense, 40, drafts, **SAMPLING[sampling])
            if drafts is model:
                assert accepted == drafted > 80
            else:
                assert decoder.counts()["draft_calls"] > 0 < accepted < drafted


def test_without_coupling_it_is_not(dense: Stage) -> None:
    with dense.context() as context, dense.context() as own:
        decoder = Decoder(context, [DraftRunner(own, N_VOCAB, n_max=4)])
        _, drafted, accepted = written(decoder, dense, 40, model, coupled=False, **SAMPLING["whole"])
        assert accepted < 0.5 * drafted


def test_least_confidence_still_ends_drafts(dense: Stage) -> None:
    """p_min looks at how sure the model is of its best token, whichever is drawn."""
    with dense.context() as context:
        runner = dense.runner(p_min=0.999)
        _, drafted, _ = written(Decoder(context, [runner]), dense, 20, model, **SAMPLING["defaults"])
    assert drafted == 0


# --- engines --------------------------------------------------------------------------------------------------

KINDS = {"llama": "cut", "gemma3": "cut", "mamba": "checkpoint", "qwen35": "checkpoint"}
EXACT: dict[str, Any] = {"n_ctx": 256, "type_k": "f32", "type_v": "f32", "flash_attn": "off", "n_threads": 1}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", ["auto", "fixed"])
def test_several_requests_on_every_kind_of_memory(tiny: Callable[[str], Path], kind: str, length: Any) -> None:
    jobs = [(list(prompt), SamplingParams(seed=i, coupled=True, max_tokens=24, temperature=1.1, ignore_eos=True))
            for i, prompt in enumerate(PROMPTS)]  # fmt: skip
    with Engine(tiny(kind), speculation=None, **EXACT) as engine:
        alone = [engine.generate(prompt, params).token_ids for prompt, params in jobs]
    draft = DraftModel(tiny("llama-draft"), n_max=4)
    with Engine(tiny(kind), speculation=draft, n_slots=3, draft_length=length, **EXACT) as engine:
        assert engine.config.rollback == KINDS[kind]
        together = [engine.submit(prompt, params) for prompt, params in jobs]
        assert [generation.result(60).token_ids for generation in together] == alone


def test_a_draft_vocabulary(smollm2: Path) -> None:
    """The ten best of a reduced head are drawn from as all are."""
    params = SamplingParams(seed=3, coupled=True, max_tokens=48, temperature=0.8, ignore_eos=True)
    prompt = "Once upon a time there was"
    accepted = {}
    with Engine(smollm2, speculation=None, n_ctx=512) as engine:
        plain = engine.generate(prompt, params)
        one_by_one = engine.generate(prompt, params.replace(coupled=False))
    for coupled, expected in ((True, plain), (False, one_by_one)):
        draft = DraftModel(smollm2, n_max=4, vocab=list(range(12000)), vocab_slots=64)
        with Engine(smollm2, speculation=draft, n_ctx=512, draft_length="fixed") as engine:
            result = engine.generate(prompt, params.replace(coupled=coupled))
            assert result.token_ids == expected.token_ids
            accepted[coupled] = result.stats.accepted / result.stats.drafted
    assert accepted[True] > accepted[False]


def test_constraints_come_first(tiny: Callable[[str], Path]) -> None:
    pytest.importorskip("llguidance")
    params = SamplingParams(seed=3, coupled=True, temperature=1.5, max_tokens=40, json_schema='{"type": "integer"}')
    with Engine(tiny("llama"), speculation=None, **EXACT) as engine:
        texts = [engine.generate("5", params.replace(seed=seed)) for seed in range(6)]
    drafters = [GrammarDrafts(), DraftModel(tiny("llama"), n_max=4)]
    with Engine(tiny("llama"), speculation=drafters, **EXACT) as engine:
        for seed, plain in enumerate(texts):
            assert engine.generate("5", params.replace(seed=seed)).token_ids == plain.token_ids
    assert len({text.text for text in texts}) > 1


def test_log_probabilities_of_what_was_drawn_from(tiny: Callable[[str], Path]) -> None:
    params = SamplingParams(seed=3, coupled=True, temperature=1.5, max_tokens=20, logprobs=256, logprobs_mode="sampled")
    with Engine(tiny("llama"), speculation=None, **EXACT) as engine:
        entries = engine.generate([5, 6, 7], params).logprobs
    assert entries is not None
    for entry in entries:
        probabilities = np.exp([p for _, p in entry.top])
        assert 1 < len(entry.top) <= 40 and probabilities.sum() == pytest.approx(1.0, abs=1e-5)
        assert dict(entry.top)[entry.token] == entry.logprob


# --- what it can't be combined with ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"mirostat": 1}, "mirostat"), ({"mirostat": 2}, "mirostat_v2"), ({"xtc_probability": 0.5}, "xtc"),
        ({"samplers": ("top_k", "adaptive_p")}, "adaptive_p"),
    ],
)  # fmt: skip
def test_samplers_with_random_numbers_of_their_own(values: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequest, match=f"coupled.*{named}") as caught:
        SamplingParams(coupled=True, **values)
    assert caught.value.name == "coupled"
    SamplingParams(coupled=False, **values)


def test_samplers_that_do_nothing_are_no_obstacle() -> None:
    SamplingParams(coupled=True, samplers=("xtc", "top_k"), xtc_probability=0.0)
