"""Sampler plans: the chain that llama.cpp would build, and shortcuts that give what the whole chain gives."""

from __future__ import annotations

import math

import numpy as np
import pytest
from vocab_files import spm_tokens, write_vocab

from pyspec._llama import Context, Model
from pyspec.errors import GrammarError, InvalidRequest
from pyspec.sampling import DryCache, SamplerPlan, SamplingParams, build_chain

N = 2000
N_CTX = 256


@pytest.fixture(scope="module")
def vocab(tmp_path_factory):
    with Model(
        str(write_vocab(tmp_path_factory.mktemp("vocab") / "v.gguf", spm_tokens(N))), vocab_only=True
    ) as model:
        yield model.vocab


@pytest.fixture(scope="module")
def suppressing_vocab(tmp_path_factory):
    path = write_vocab(tmp_path_factory.mktemp("vocab") / "s.gguf", spm_tokens(N), suppress=[70, 71])
    with Model(str(path), vocab_only=True) as model:
        yield model.vocab


def plan_of(vocab, n_ctx=N_CTX, **values) -> SamplerPlan:
    return build_chain(SamplingParams(**{"seed": 1, **values}), vocab, n_ctx=n_ctx)


def names(plan: SamplerPlan) -> list[str]:
    return [plan.chain.get(i) for i in range(len(plan.chain))]


def pick(plan: SamplerPlan, ids, logits) -> int | None:
    kept, _, _, picked = plan.chain.apply(ids, logits)
    return None if picked is None else int(kept[picked])


def whole_row(plan: SamplerPlan, row: np.ndarray) -> int | None:
    return pick(plan, np.arange(len(row), dtype=np.int32), row)


def by_shortcut(plan: SamplerPlan, row: np.ndarray, accepted: list[int]) -> int | None:
    """What the decoder does, as the plan allows it; None in place of a token where no shortcut holds."""
    altered = {*plan.biased_ids, *(accepted[-plan.history :] if plan.history else ())}
    best = int(row.argmax())
    if plan.argmax:
        return best
    if plan.argmax_unless_altered and best not in altered:
        return best
    if plan.preselect:
        ids = {*np.argsort(-row)[: plan.preselect].tolist(), *altered}
        ids_array = np.array(sorted(ids), dtype=np.int32)
        return pick(plan, ids_array, row[ids_array])
    return None


# --- the chain --------------------------------------------------------------------------------------


def test_the_default_chain_is_llama_cpps(vocab):
    plan = plan_of(vocab)
    assert " ".join(names(plan)) == (
        "?penalties ?dry ?top-n-sigma top-k ?typical top-p min-p ?xtc temp-ext dist"
    )
    assert plan.grammar is None
    assert plan.seed == 1


@pytest.mark.parametrize(
    ("values", "chain"),
    [
        ({"samplers": "kt"}, ["top-k", "temp-ext", "dist"]),
        ({"samplers": "tk"}, ["temp-ext", "top-k", "dist"]),
        ({"samplers": ()}, ["dist"]),
        ({"samplers": "kat"}, ["top-k", "temp-ext", "adaptive-p"]),
        ({"samplers": "kit"}, ["top-k", "infill", "temp-ext", "dist"]),
        ({"mirostat": 1}, ["temp", "mirostat"]),
        ({"mirostat": 2, "samplers": "k"}, ["temp", "mirostat-v2"]),
        ({"logit_bias": {3: 1.0}, "samplers": "k"}, ["logit-bias", "top-k", "dist"]),
        ({"logit_bias": {3: 1.0}, "mirostat": 2}, ["logit-bias", "temp", "mirostat-v2"]),
        ({"samplers": "edsyxpmt", "penalty_repeat": 1.1, "dry_multiplier": 0.8, "top_n_sigma": 1.0,
          "typ_p": 0.9, "xtc_probability": 0.5},
         ["penalties", "dry", "top-n-sigma", "typical", "xtc", "top-p", "min-p", "temp-ext", "dist"]),
        ({"samplers": "t", "temperature": 1.0}, ["?temp-ext", "dist"]),
    ],
)  # fmt: skip
def test_chains(vocab, values, chain):
    assert names(plan_of(vocab, **values)) == chain


@pytest.mark.parametrize(
    "values",
    [
        {}, {"top_k": 0}, {"top_p": 1.0}, {"min_p": 0.0}, {"temperature": 1.0}, {"temperature": 0.0},
        {"penalty_freq": 0.1}, {"penalty_freq": 0.1, "penalty_last_n": 0}, {"dry_multiplier": 0.5},
        {"dry_multiplier": 0.5, "dry_base": 0.9}, {"typ_p": 0.5}, {"top_n_sigma": 0.0}, {"top_n_sigma": 1.0},
        {"xtc_probability": 0.1}, {"xtc_probability": 0.1, "xtc_threshold": 0.50001},
        {"penalty_repeat": 1 + 1e-12},
        {"top_p": 1 - 1e-12}, {"min_p": 1e-50}, {"temperature": 1 + 1e-12}, {"penalty_present": 1e-60},
        {"dynatemp_range": 0.1, "temperature": 1.0}, {"dynatemp_range": -1.0, "temperature": 1.0},
        {"typ_p": 1 - 1e-12}, {"xtc_probability": 1e-50},
    ],
)  # fmt: skip
def test_active_samplers_are_those_libllama_runs(vocab, values):
    params = SamplingParams(**values)
    plan = build_chain(params, vocab, n_ctx=N_CTX)
    for name, libllama_name in zip(params.samplers, names(plan), strict=False):
        assert libllama_name.startswith("?") != (name in params.active_samplers), (name, libllama_name)


def test_a_random_seed_is_told(vocab):
    plans = [plan_of(vocab, seed=None) for _ in range(3)]
    assert len({p.seed for p in plans}) == 3
    row = np.zeros(N, np.float32)
    again = plan_of(vocab, seed=plans[0].seed)
    assert [whole_row(plans[0], row) for _ in range(20)] == [whole_row(again, row) for _ in range(20)]


def test_the_chain_uses_the_seed(vocab):
    row = np.zeros(N, np.float32)
    streams = {
        tuple(whole_row(plan, row) for _ in range(10)) for plan in (plan_of(vocab, seed=s) for s in range(10))
    }
    assert len(streams) == 10


# --- biases -----------------------------------------------------------------------------------------


def test_biases_and_what_must_not_be_chosen(suppressing_vocab):
    eog = suppressing_vocab.eog_tokens
    assert eog
    plan = plan_of(suppressing_vocab, logit_bias={70: 50.0, 5: 2.0}, ignore_eos=True)
    assert plan.biased_ids == tuple(sorted({5, 70, 71, *eog}))
    row = np.zeros(N, np.float32)
    _, logits, _, _ = plan_of(
        suppressing_vocab, logit_bias={70: 50.0, 5: 2.0}, ignore_eos=True, samplers=(), temperature=1.0
    ).chain.apply(np.arange(N), row)
    assert logits[5] == 2.0
    assert all(logits[t] == -math.inf for t in (70, 71, *eog))
    assert plan_of(suppressing_vocab).biased_ids == (70, 71)


def test_no_biases(vocab):
    assert plan_of(vocab).biased_ids == ()


# --- checks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"logit_bias": {N: 1.0}}, "logit_bias"),
        ({"stop_token_ids": [N]}, "stop_token_ids"),
        ({"logprobs": N + 1}, "logprobs"),
        ({"samplers": "ik"}, "samplers"),
        ({"samplers": "i"}, "samplers"),
        ({"samplers": "ki", "top_k": 0}, "samplers"),
    ],
)
def test_what_does_not_go_with_the_vocabulary(vocab, values, name):
    with pytest.raises(InvalidRequest) as caught:
        plan_of(vocab, **values)
    assert caught.value.name == name


def test_the_largest_ids_are_fine(vocab):
    plan_of(vocab, logit_bias={N - 1: -math.inf}, stop_token_ids=[N - 1], logprobs=N)


def test_values_beyond_every_limit_mean_all(vocab):
    plan_of(vocab, min_keep=2**31 - 1, xtc_probability=0.5, typ_p=0.5)
    plan_of(vocab, dry_multiplier=0.8, dry_allowed_length=2**31 - 1)


@pytest.mark.parametrize("values", [{"penalty_last_n": 2**31 - 1, "penalty_repeat": 1.1},
                                    {"dry_penalty_last_n": 2**31 - 1, "dry_multiplier": 0.8}])  # fmt: skip
def test_windows_are_cut_to_the_context(vocab, values):
    plan = plan_of(vocab, n_ctx=100, **values)
    assert plan.history == 100


def test_grammars(vocab):
    assert plan_of(vocab, grammar='root ::= "a"').grammar is not None
    assert plan_of(vocab, grammar='start ::= "a"', grammar_root="start").grammar is not None
    for broken in ("root ::= (", "start ::= x", 'start ::= "a"', "%llguidance {}"):
        with pytest.raises(GrammarError):
            plan_of(vocab, grammar=broken)
    with pytest.raises(GrammarError):
        plan_of(vocab, grammar='root ::= "a"', grammar_root="start")


@pytest.mark.parametrize("breaker", ["\u6b6a", "\U0001f600\U0001f600", "x" * 100, "\u6b6a" * 30, " "])
def test_dry_breakers_that_cut_characters(vocab, breaker):
    plan = plan_of(vocab, dry_multiplier=0.8, dry_sequence_breakers=[breaker])
    assert "dry" in names(plan)


def test_cached_dry_samplers_are_like_new_ones_and_independent(vocab):
    cache = DryCache(size=2)

    def make(dry_cache, multiplier):
        params = SamplingParams(seed=1, dry_multiplier=multiplier, samplers="d")
        return build_chain(params, vocab, n_ctx=N_CTX, dry_cache=dry_cache)

    row = np.zeros(N, np.float32)
    history = [300, 301, 302, 303, 300, 301, 302]
    for multiplier in (0.8, 1.6, 0.8, 2.4, 1.6):
        fresh, cached, untouched = make(None, multiplier), make(cache, multiplier), make(cache, multiplier)
        for plan in (fresh, cached):
            for token in history:
                plan.chain.accept(token)
        ids = np.arange(N, dtype=np.int32)
        penalised = cached.chain.apply(ids, row)[1]
        assert np.array_equal(penalised, fresh.chain.apply(ids, row)[1])
        assert penalised[303] < 0
        assert not untouched.chain.apply(ids, row)[1].any()


# --- shortcuts: which ones --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "argmax", "unless_altered", "preselect"),
    [
        ({}, False, False, 40),
        ({"temperature": 0}, True, True, 40),
        ({"temperature": -1, "samplers": "t"}, True, True, 0),
        ({"top_k": 1}, True, True, 1),
        ({"top_p": 0.0}, True, True, 40),
        ({"top_p": 0.0, "min_keep": 2}, False, False, 40),
        ({"temperature": 0, "samplers": "k"}, False, False, 40),
        ({"temperature": 0, "dynatemp_range": 0.5}, False, False, 40),
        ({"temperature": 0, "typ_p": 0.9}, False, False, 40),
        ({"temperature": 0, "xtc_probability": 0.5}, False, False, 40),
        ({"temperature": 0, "top_n_sigma": 1.0}, True, True, 0),
        ({"temperature": 0, "samplers": "ta"}, False, False, 0),
        ({"temperature": 0, "samplers": "kit"}, False, False, 40),
        ({"temperature": 0, "mirostat": 2}, False, False, 0),
        ({"temperature": 0, "penalty_repeat": 1.3}, False, True, 40 + 64),
        ({"temperature": 0, "penalty_repeat": 0.9}, False, False, 40 + 64),
        ({"temperature": 0, "penalty_present": -0.5}, False, False, 40 + 64),
        ({"temperature": 0, "penalty_freq": -0.5}, False, False, 40 + 64),
        ({"temperature": 0, "dry_multiplier": 0.8, "dry_penalty_last_n": 100}, False, True, 40 + 100),
        ({"temperature": 0, "logit_bias": {7: -1.0, 8: -math.inf}}, False, True, 42),
        ({"temperature": 0, "logit_bias": {7: 1.0}}, False, False, 41),
        ({"samplers": "tk"}, False, False, 40),
        ({"samplers": "tk", "top_k": 1}, False, False, 1),
        ({"samplers": "tk", "dynatemp_range": 0.5}, False, False, 0),
        ({"samplers": "pk"}, False, False, 0),
        ({"samplers": "mk"}, False, False, 0),
        ({"samplers": "yk", "typ_p": 0.9}, False, False, 0),
        ({"samplers": "xk", "xtc_probability": 0.5}, False, False, 0),
        ({"top_k": 0}, False, False, 0),
        ({"top_k": N}, False, False, 0),
    ],
)
def test_which_shortcuts_hold(vocab, values, argmax, unless_altered, preselect):
    plan = plan_of(vocab, **values)
    assert (plan.argmax, plan.argmax_unless_altered, plan.preselect) == (argmax, unless_altered, preselect)


@pytest.mark.parametrize(
    ("values", "history", "needs_accept"),
    [
        ({}, 0, False),
        ({"penalty_repeat": 1.1}, 64, True),
        ({"penalty_repeat": 1.1, "samplers": "kt"}, 0, False),
        ({"dry_multiplier": 0.8, "dry_penalty_last_n": 30}, 30, True),
        (
            {"penalty_freq": 0.1, "penalty_last_n": 8, "dry_multiplier": 0.8, "dry_penalty_last_n": 30},
            30,
            True,
        ),
        ({"samplers": "ka"}, 0, True),
        ({"mirostat": 1}, 0, False),
        ({"mirostat": 1, "penalty_repeat": 1.1}, 0, False),
    ],
)
def test_what_depends_on_the_history(vocab, values, history, needs_accept):
    plan = plan_of(vocab, **values)
    assert (plan.history, plan.needs_accept) == (history, needs_accept)


# --- shortcuts: they give what the whole chain gives ------------------------------------------------


CHOICES = {
    "temperature": (0.0, 0.0, 0.7, 1.5), "top_k": (0, 1, 5, 40, 40), "top_p": (0.0, 0.5, 0.95, 1.0),
    "min_p": (0.0, 0.05, 0.5), "typ_p": (1.0, 1.0, 1.0, 0.5), "xtc_probability": (0.0, 0.0, 0.0, 0.8),
    "top_n_sigma": (-1.0, -1.0, -1.0, 1.0), "dynatemp_range": (0.0, 0.0, 0.0, 0.5), "min_keep": (0, 0, 3),
    "penalty_repeat": (1.0, 1.3, 0.8), "penalty_freq": (0.0, 0.0, 0.5, -0.5), "penalty_last_n": (8, 64),
    "dry_multiplier": (0.0, 0.0, 0.8), "dry_penalty_last_n": (8, 64), "ignore_eos": (False, True),
    "logit_bias": ({}, {}, {5: -2.0, 30: -math.inf}, {5: 2.0, 45: 5.0}),
}  # fmt: skip


def test_shortcuts_on_random_rows(vocab):
    """Random parameters and rows; the two chains also stay in step, random numbers and history included."""
    rng = np.random.default_rng(1)
    n_used = {"argmax": 0, "altered": 0, "preselect": 0}
    for case in range(3000):
        values = {name: options[rng.integers(len(options))] for name, options in CHOICES.items()}
        if case % 2:
            values["samplers"] = "".join(rng.permutation(list("edskypmxt")))
        whole, short = (plan_of(vocab, seed=case, **values) for _ in range(2))
        if not (short.argmax_unless_altered or short.preselect):
            continue
        n_used["argmax" if short.argmax else "altered" if short.argmax_unless_altered else "preselect"] += 1
        # A few tokens again and again, so that penalties and DRY have something to do.
        accepted = rng.integers(0, 12, 80).tolist()
        for plan in (whole, short):
            for token in accepted:
                plan.chain.accept(token)
        for _ in range(3):
            row = (rng.permutation(np.linspace(-3, 3, N)) ** 3 * rng.choice([0.1, 0.5])).astype(np.float32)
            row[rng.integers(0, 60, 20)] += rng.normal(8, 2, 20).astype(np.float32)
            right = whole_row(whole, row)
            chosen = by_shortcut(short, row, accepted)
            if chosen is None:  # an altered token is in front: the decoder runs the whole chain
                break
            assert chosen == right, values
            for plan in (whole, short):
                plan.chain.accept(right)
            accepted.append(right)
    assert min(n_used.values()) > 20, n_used


REAL_SETTINGS = [
    {}, {"temperature": 0}, {"temperature": 1.5}, {"top_k": 1}, {"top_k": 5, "temperature": 0.7},
    {"top_p": 0.5},
    {"temperature": 0, "top_n_sigma": 1.0}, {"temperature": 0, "ignore_eos": True}, {"typ_p": 0.7},
    {"xtc_probability": 0.5}, {"dynatemp_range": 0.5}, {"penalty_repeat": 1.3}, {"dry_multiplier": 0.8},
    {"temperature": 0, "penalty_repeat": 1.3},
    {"temperature": 0, "dry_multiplier": 0.8, "penalty_freq": 0.2},
    {"penalty_repeat": 1.1, "dry_multiplier": 0.8, "logit_bias": {30: 3.0, 31: -math.inf}},
    {"samplers": "tk"}, {"samplers": "kat", "adaptive_target": 0.3}, {"min_keep": 3, "min_p": 0.5},
]  # fmt: skip


@pytest.fixture(scope="module")
def real_rows(smollm2):
    """Logits of a real model over a text, its tokens, and its vocabulary."""
    text = (
        "The history of the city begins with a small port at the mouth of the river. The port grew, and with "
        "the port grew the city: first the market, then the walls, then the church. def f(x):\n"
        "    return x + 1\n1, 2, 3, 4, 5, 6. Once upon a time there was a girl who lived in a house by the "
        "sea, in a house by the sea."
    )
    with Model(str(smollm2)) as model:
        tokens = model.vocab.tokenize(text)
        with Context(
            model, n_ctx=512, n_batch=512, n_outputs_max=len(tokens), n_outputs_max_per_seq=512
        ) as context:
            context.decode(tokens, outputs=True)
            rows = np.stack([np.array(context.logits(i)) for i in range(len(tokens))])
        yield rows, tokens, model.vocab


@pytest.mark.parametrize("values", REAL_SETTINGS, ids=str)
def test_shortcuts_on_real_rows(real_rows, values):
    rows, tokens, vocab = real_rows
    whole, short = (build_chain(SamplingParams(seed=5, **values), vocab, n_ctx=512) for _ in range(2))
    assert short.argmax_unless_altered or short.preselect
    accepted: list[int] = []
    for row, token in zip(rows, tokens, strict=True):
        assert by_shortcut(short, row, accepted) == whole_row(whole, row)
        for plan in (whole, short):
            plan.chain.accept(token)
        accepted.append(token)
