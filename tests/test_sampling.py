"""SamplingParams: values, names, round trips."""

from __future__ import annotations

import copy
import json
import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspec.errors import InvalidRequest
from pyspec.sampling import SamplingParams
from pyspec.sampling.names import DEFAULT_SAMPLERS, PARAM_ALIASES, SAMPLER_CODES

INF, NAN = math.inf, math.nan
FLOAT_FIELDS = [
    "top_p", "min_p", "xtc_probability", "xtc_threshold", "typ_p", "temperature", "dynatemp_range",
    "dynatemp_exponent", "penalty_repeat", "penalty_freq", "penalty_present", "dry_multiplier", "dry_base",
    "adaptive_target", "adaptive_decay", "top_n_sigma", "mirostat_tau", "mirostat_eta",
]  # fmt: skip
INT_FIELDS = ["min_keep", "top_k", "penalty_last_n", "dry_allowed_length", "dry_penalty_last_n", "mirostat"]


def test_defaults_are_llama_cpps():
    assert ";".join(DEFAULT_SAMPLERS) == "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature"
    assert SamplingParams().to_dict() == {
        "seed": None, "coupled": False, "min_keep": 0, "top_k": 40, "top_p": 0.95, "min_p": 0.05,
        "xtc_probability": 0.0,
        "xtc_threshold": 0.1, "typ_p": 1.0, "temperature": 0.8, "dynatemp_range": 0.0,
        "dynatemp_exponent": 1.0, "penalty_last_n": 64, "penalty_repeat": 1.0, "penalty_freq": 0.0,
        "penalty_present": 0.0, "dry_multiplier": 0.0, "dry_base": 1.75, "dry_allowed_length": 2,
        "dry_penalty_last_n": 64, "dry_sequence_breakers": ["\n", ":", '"', "*"], "adaptive_target": -1.0,
        "adaptive_decay": 0.9, "mirostat": 0, "top_n_sigma": -1.0, "mirostat_tau": 5.0,
        "mirostat_eta": 0.1, "ignore_eos": False, "samplers": list(DEFAULT_SAMPLERS),
        "grammar": None, "grammar_root": "root", "grammar_triggers": [], "json_schema": None, "logit_bias": {},
        "max_tokens": None, "stop": [], "stop_token_ids": [], "logprobs": None, "logprobs_mode": "raw",
    }  # fmt: skip


# --- values -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FLOAT_FIELDS)
@pytest.mark.parametrize(
    "value", [NAN, INF, -INF, 1e300, -1e300, 10**400, "0.5", b"1", True, None, [1.0], 1j]
)
def test_numbers_have_to_be_finite_numbers(name, value):
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(**{name: value})
    assert caught.value.name == name
    assert name in str(caught.value)


@pytest.mark.parametrize("name", INT_FIELDS)
@pytest.mark.parametrize("value", [1.0, NAN, "1", True, None, 2**31, -(2**31) - 1, 10**30])
def test_integers_have_to_be_integers_that_fit(name, value):
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(**{name: value})
    assert caught.value.name == name
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("top_p", 1.5, "from 0 to 1"), ("top_p", -0.1, "from 0 to 1"), ("min_p", 1.01, "from 0 to 1"),
        ("typ_p", 2, "from 0 to 1"), ("xtc_probability", -1, "from 0 to 1"),
        ("xtc_threshold", 1.1, "from 0 to 1"),
        ("temperature", 1e-40, "0 or less"), ("dynatemp_exponent", -1, "at least 0"),
        ("penalty_repeat", 0, "above 0"), ("penalty_repeat", -1.1, "above 0"),
        ("penalty_repeat", 1e-42, "reciprocal"),
        ("penalty_last_n", -1, "0 to 2147483647"), ("dry_penalty_last_n", -1, "0 to 2147483647"),
        ("dry_allowed_length", -1, "0 to"), ("dry_base", -1, "at least 0"),
        ("dry_multiplier", -1, "at least 0"),
        ("adaptive_target", 1.5, "at most 1"), ("adaptive_decay", 1.0, "from 0 to 0.99"),
        ("adaptive_decay", -0.1, "from 0 to 0.99"), ("mirostat", 3, "0 to 2"), ("mirostat", -1, "0 to 2"),
        ("mirostat_tau", -1, "at least 0"), ("mirostat_eta", -1, "at least 0"), ("min_keep", -1, "0 to"),
        ("seed", -2, "-1 to 4294967295"), ("seed", 2**32, "-1 to 4294967295"), ("seed", 1.5, "integer"),
        ("seed", True, "integer"), ("max_tokens", 0, "1 or more"), ("max_tokens", -1, "1 to"),
        ("max_tokens", 1.5, "1 to"), ("max_tokens", True, "1 to"), ("logprobs", -1, "0 to"),
        ("coupled", 1, "True or False"), ("ignore_eos", 1, "True or False"), ("ignore_eos", None, "True or False"),
        ("stop", "", "empty string"), ("stop", [""], "empty string"), ("stop", ["a", ""], "empty string"),
        ("stop", b"x", "sequence of strings"), ("stop", 3, "sequence of strings"),
        ("stop", [3], "a string"),
        ("stop", ["a\0b"], "NUL"), ("stop", ["\ud800"], "surrogate"),
        ("dry_sequence_breakers", [""], "empty string"), ("dry_sequence_breakers", ["\0"], "NUL"),
        ("stop_token_ids", [-1], "0 to"), ("stop_token_ids", ["1"], "integer"),
        ("stop_token_ids", 5, "token ids"),
        ("stop_token_ids", "12", "token ids"), ("stop_token_ids", [True], "integer"),
        ("logit_bias", {-1: 1.0}, "0 to"), ("logit_bias", {1: NAN}, "finite"),
        ("logit_bias", {1: INF}, "finite"),
        ("logit_bias", {1: True}, "finite"), ("logit_bias", {1: "x"}, "finite"),
        ("logit_bias", {1: 1e300}, "finite"),
        ("logit_bias", {"x": 1.0}, "integer"), ("logit_bias", {1.5: 1.0}, "integer"),
        ("logit_bias", [1, 2], "pairs"),
        ("logit_bias", [(1, 2.0), (1, 3.0)], "twice"), ("logit_bias", 7, "mapping"),
        ("logit_bias", "12", "mapping"),
        ("samplers", ["top_k", "magic"], "'magic'"), ("samplers", "top_k;magic", "'magic'"),
        ("samplers", "kz", "'kz'"),
        ("samplers", [3], "3"), ("samplers", None, "names of samplers"),
        ("samplers", b"k", "names of samplers"),
        ("grammar", 3, "a string"), ("grammar", "root ::= \"\0\"", "NUL"),
        ("grammar_root", "", "empty string"),
        ("grammar_root", None, "a string"),
    ],
)  # fmt: skip
def test_values_out_of_range(name, value, allowed):
    with pytest.raises(InvalidRequest, match=allowed) as caught:
        SamplingParams(**{name: value})
    assert caught.value.name.startswith(name)


def test_an_invalid_value_is_a_value_error_that_carries_it():
    with pytest.raises(ValueError, match=r"top_p must be a number from 0 to 1, not 1\.5") as caught:
        SamplingParams(top_p=1.5)
    assert (caught.value.name, caught.value.value) == ("top_p", 1.5)


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": 0}, {"temperature": -1.0}, {"temperature": 1e-30}, {"temperature": 100.0},
        {"top_k": 0},
        {"top_k": -1}, {"top_k": 2**31 - 1}, {"top_p": 0.0}, {"top_p": 1}, {"min_p": 0}, {"min_p": 1.0},
        {"typ_p": 0.0}, {"xtc_threshold": 0.6}, {"dynatemp_range": -1.0}, {"penalty_last_n": 0},
        {"penalty_last_n": 2**31 - 1}, {"penalty_repeat": 0.5}, {"penalty_freq": -2.0},
        {"penalty_present": -2.0},
        {"dry_base": 0.0}, {"dry_sequence_breakers": ()}, {"adaptive_target": -1},
        {"adaptive_target": 1.0}, {"adaptive_decay": 0.99}, {"top_n_sigma": -1}, {"mirostat": 2},
        {"samplers": ()}, {"samplers": ["top_k", "top_k"]}, {"max_tokens": 1}, {"logprobs": 0},
        {"stop": ()},
        {"logit_bias": {0: -INF}}, {"seed": 0}, {"seed": 2**32 - 2},
    ],
)  # fmt: skip
def test_what_llama_cpp_takes_is_taken(values):
    params = SamplingParams(**values)
    for name, value in values.items():
        assert getattr(params, name) == (tuple(value) if isinstance(value, list) else value)


def test_values_are_stored_as_plain_python():
    params = SamplingParams(
        top_k=np.int64(5), temperature=np.float32(0.5), top_p=1, seed=np.uint32(7), stop=["a", "b"],
        stop_token_ids=np.array([1, 2]), logit_bias={np.int32(3): np.float32(-np.inf), 4: 2},
    )  # fmt: skip
    stored = (params.top_k, params.temperature, params.top_p, params.seed, *params.logit_bias.values())
    assert [type(v) for v in stored] == [int, float, float, int, float, float]
    assert params.stop == ("a", "b")
    assert params.stop_token_ids == (1, 2)
    assert params.logit_bias == {3: -INF, 4: 2.0}
    assert [type(k) for k in params.logit_bias] == [int, int]


def test_biases_in_every_form():
    want = {5: -INF, 7: 1.5}
    for form in ({5: -INF, 7: 1.5}, {"5": False, "7": 1.5}, [(5, False), (7, 1.5)], [[5, -INF], ["7", 1.5]]):
        assert SamplingParams(logit_bias=form).logit_bias == want
    assert SamplingParams(logit_bias=None).logit_bias == {}


def test_biases_are_copied():
    mine = {5: 1.0}
    params = SamplingParams(logit_bias=mine)
    mine[6] = 2.0
    assert params.logit_bias == {5: 1.0}


def test_one_stop_string_or_several():
    assert SamplingParams(stop="END").stop == ("END",)
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")
    assert SamplingParams(stop=None).stop == ()


@pytest.mark.parametrize("seed", [None, -1, 0xFFFFFFFF])
def test_a_random_seed_is_drawn_for_each_request(seed):
    params = SamplingParams(seed=seed)
    assert params.seed is None
    drawn = {params.resolve_seed() for _ in range(50)}
    assert len(drawn) > 40
    assert all(0 <= s < 0xFFFFFFFF for s in drawn)


@pytest.mark.parametrize("value", [10**5000, -(10**5000)], ids=["huge", "-huge"])
@pytest.mark.parametrize("name", ["top_k", "top_p", "seed", "max_tokens", "logit_bias"])
def test_values_that_can_not_even_be_printed_are_refused(name, value):
    with pytest.raises(InvalidRequest, match=name):
        SamplingParams(**{name: {1: value} if name == "logit_bias" else value})


def test_a_given_seed_is_kept():
    assert SamplingParams(seed=42).resolve_seed() == 42
    assert SamplingParams(seed=0).resolve_seed() == 0


def test_an_empty_grammar_is_none():
    assert SamplingParams(grammar="").grammar is None


# --- samplers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_as", "names"),
    [
        ("edskypmxt", DEFAULT_SAMPLERS),
        ("kt", ("top_k", "temperature")),
        ("k", ("top_k",)),
        ("temp", ("temperature",)),
        ("top_k;temperature", ("top_k", "temperature")),
        ("Top-K; TEMP ;", ("top_k", "temperature")),
        (["topk", "nucleus", "typ", "min-p", "x"], ("top_k", "top_p", "typ_p", "min_p", "xtc")),
        ("", ()),
    ],
)
def test_sampler_orders_in_every_spelling(given_as, names):
    assert SamplingParams(samplers=given_as).samplers == names


def test_every_sampler_has_its_names():
    for name, code in SAMPLER_CODES.items():
        for spelling in (name, name.replace("_", "-"), name.replace("_", ""), name.upper(), code):
            assert SamplingParams(samplers=[spelling]).samplers == (name,)


@pytest.mark.parametrize(
    ("values", "active"),
    [
        ({}, ("top_k", "top_p", "min_p", "temperature")),
        ({"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}, ()),
        ({"temperature": 1.0, "dynatemp_range": 0.5, "samplers": "t"}, ("temperature",)),
        ({"penalty_repeat": 1.1, "samplers": "e"}, ("penalties",)),
        ({"penalty_repeat": 1.1, "penalty_last_n": 0, "samplers": "e"}, ()),
        ({"dry_multiplier": 0.8, "samplers": "d"}, ("dry",)),
        ({"dry_multiplier": 0.8, "dry_base": 0.5, "samplers": "d"}, ()),
        ({"xtc_probability": 0.5, "samplers": "x"}, ("xtc",)),
        ({"xtc_probability": 0.5, "xtc_threshold": 0.51, "samplers": "x"}, ()),
        ({"top_n_sigma": 1.0, "typ_p": 0.9, "samplers": "sy"}, ("top_n_sigma", "typ_p")),
        ({"mirostat": 1}, ("temperature", "mirostat")),
        ({"mirostat": 2}, ("temperature", "mirostat_v2")),
        ({"samplers": ["infill", "adaptive_p"]}, ("infill", "adaptive_p")),
    ],
)
def test_active_samplers(values, active):
    assert SamplingParams(**values).active_samplers == active


@pytest.mark.parametrize(
    ("values", "greedy"),
    [
        ({"temperature": 0}, True), ({"temperature": -1}, True), ({}, False), ({"top_k": 1}, True),
        ({"temperature": 0, "dynatemp_range": 0.5}, False), ({"temperature": 0, "samplers": "k"}, False),
        ({"temperature": 0, "xtc_probability": 0.5}, False), ({"temperature": 0, "mirostat": 2}, False),
        ({"temperature": 0, "samplers": "ta"}, False), ({"temperature": 0, "penalty_repeat": 1.3}, True),
    ],
)  # fmt: skip
def test_is_greedy(values, greedy):
    assert SamplingParams(**values).is_greedy is greedy


# --- equality, copies, round trips ------------------------------------------------------------------

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
unit = st.floats(0, 1)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=5)
params_values = st.fixed_dictionaries(
    {},
    optional={
        "seed": st.none() | st.integers(0, 2**32 - 2),
        "min_keep": st.integers(0, 100), "top_k": st.integers(-5, 10**6), "top_p": unit, "min_p": unit,
        "xtc_probability": unit, "xtc_threshold": unit, "typ_p": unit,
        "temperature": st.floats(-5, 0) | st.floats(1e-20, 100), "dynatemp_range": finite,
        "dynatemp_exponent": st.floats(0, 10), "penalty_last_n": st.integers(0, 2**31 - 1),
        "penalty_repeat": st.floats(0.01, 100), "penalty_freq": finite, "penalty_present": finite,
        "dry_multiplier": st.floats(0, 10), "dry_base": st.floats(0, 10),
        "dry_allowed_length": st.integers(0, 100),
        "dry_penalty_last_n": st.integers(0, 1000), "dry_sequence_breakers": st.lists(texts, max_size=3),
        "adaptive_target": st.floats(-1, 1), "adaptive_decay": st.floats(0, 0.99),
        "mirostat": st.integers(0, 2),
        "top_n_sigma": finite, "mirostat_tau": st.floats(0, 20), "mirostat_eta": st.floats(0, 1),
        "ignore_eos": st.booleans(),
        "samplers": st.lists(st.sampled_from(sorted(SAMPLER_CODES)), max_size=5),
        "grammar": st.none() | texts, "grammar_root": texts,
        "logit_bias": st.dictionaries(st.integers(0, 10**6), finite | st.just(-INF), max_size=4),
        "max_tokens": st.none() | st.integers(1, 10**6), "stop": st.lists(texts, max_size=3),
        "stop_token_ids": st.lists(st.integers(0, 10**6), max_size=3),
        "logprobs": st.none() | st.integers(0, 100),
    },
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(params_values)
def test_round_trips_lose_nothing(values):
    params = SamplingParams(**values)
    assert set(params.to_dict()) >= set(values)
    for copied in (
        SamplingParams.from_dict(params.to_dict()),
        SamplingParams.from_dict(json.loads(json.dumps(params.to_dict()))),
        pickle.loads(pickle.dumps(params)),
        copy.deepcopy(params),
        params.replace(),
        eval(repr(params), {"SamplingParams": SamplingParams, "inf": INF}),
    ):
        assert copied == params
        assert hash(copied) == hash(params)
        assert copied.to_dict() == params.to_dict()


def test_to_dict_is_a_copy():
    params = SamplingParams(logit_bias={1: 2.0}, stop=["x"])
    plain = params.to_dict()
    plain["logit_bias"][5] = 1.0
    plain["stop"].append("y")
    assert params == SamplingParams(logit_bias={1: 2.0}, stop=["x"])


def test_replace():
    params = SamplingParams(seed=1, stop="x")
    assert params.replace(temperature=0.0) == SamplingParams(seed=1, stop="x", temperature=0.0)
    assert params.temperature == 0.8
    with pytest.raises(InvalidRequest, match="top_p"):
        params.replace(top_p=3)
    with pytest.raises(InvalidRequest, match="'temprature'"):
        params.replace(temprature=1)


def test_parameters_can_not_be_changed():
    with pytest.raises(AttributeError):
        SamplingParams().top_k = 3


def test_repr_shows_what_differs_from_the_defaults():
    assert repr(SamplingParams()) == "SamplingParams()"
    assert repr(SamplingParams(seed=7, stop="a")) == "SamplingParams(seed=7, stop=('a',))"


# --- other people's names ---------------------------------------------------------------------------


def test_names_of_llama_cpp_and_others():
    given_values = {
        "temp": 0.5, "repeat-last-n": 32, "repeat_penalty": 1.3, "frequency_penalty": 0.1,
        "presence_penalty": 0.2,
        "typical_p": 0.9, "mirostat-lr": 0.2, "mirostat-ent": 4.0, "n_predict": 50, "n_probs": 3,
        "top-nsigma": 2.0,
        "dynatemp-exp": 1.5, "sampling-seq": "kt", "dry_sequence_breaker": ["x"], "top-k": 3,
    }  # fmt: skip
    assert SamplingParams.from_dict(given_values) == SamplingParams(
        temperature=0.5, penalty_last_n=32, penalty_repeat=1.3, penalty_freq=0.1, penalty_present=0.2,
        typ_p=0.9,
        mirostat_eta=0.2, mirostat_tau=4.0, max_tokens=50, logprobs=3, top_n_sigma=2.0,
        dynatemp_exponent=1.5,
        samplers="kt", dry_sequence_breakers=["x"], top_k=3,
    )  # fmt: skip


def test_llama_cpps_words_for_none():
    assert SamplingParams.from_dict({"n_predict": -1}).max_tokens is None
    assert SamplingParams.from_dict({"n_probs": 0}).logprobs is None
    assert SamplingParams.from_dict({"logprobs": 0}).logprobs == 0
    with pytest.raises(InvalidRequest, match="max_tokens"):
        SamplingParams.from_dict({"max_tokens": -1})


def test_every_alias_leads_to_a_parameter():
    assert set(PARAM_ALIASES.values()) <= set(SamplingParams().to_dict())
    assert not set(PARAM_ALIASES) & set(SamplingParams().to_dict())


def test_unknown_and_doubled_names_are_refused():
    with pytest.raises(InvalidRequest, match="no sampling parameter 'temprature'") as caught:
        SamplingParams.from_dict({"temprature": 1.0})
    assert caught.value.name == "temprature"
    with pytest.raises(InvalidRequest, match="given twice"):
        SamplingParams.from_dict({"temp": 1.0, "temperature": 1.0})
