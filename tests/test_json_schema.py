"""Structured output: JSON by a schema, and Lark grammars, with the same text whoever drafts."""

from __future__ import annotations

import gc
import json
import math
import random
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import drafters
import jsonschema
import numpy as np
import pytest
from drafters import Stage
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_models import EOS, FIRST_BYTE, llama

from pyspec import (
    Engine,
    GrammarError,
    InvalidRequest,
    NGramSimple,
    Result,
    SamplingParams,
    UnsupportedModel,
)
from pyspec._llama import Model
from pyspec.bench.prompts import chatml
from pyspec.sampling.guidance import Grammars, GuidedConstraint, Tokenizer

Tiny = Callable[[str], Path]

PERSON: dict[str, Any] = json.loads(Path(__file__).with_name("person.schema.json").read_text())
CALL: dict[str, Any] = {
    "type": "object",
    "properties": {
        "tool": {"enum": ["get_weather", "get_time", "search"]},
        "arguments": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}, "days": {"type": "integer", "maximum": 14}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
    "required": ["tool", "arguments"],
    "additionalProperties": False,
}
COMPACT = {**PERSON, "x-guidance": {"whitespace_flexible": False}}
ASK = chatml("Make up a person, and write name, age, occupation and friends down as JSON.")
GREEDY: dict[str, Any] = {"temperature": 0.0}
SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": GREEDY,
    "seeded": {"temperature": 0.8, "seed": 7},
    "hot": {"temperature": 1.5, "seed": 1, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    "penalties": {**GREEDY, "penalty_repeat": 1.3},
    "dry with temperature": {"temperature": 0.8, "seed": 3, "dry_multiplier": 0.8},
    "typical": {"temperature": 0.9, "seed": 5, "typ_p": 0.7},
    "xtc": {"temperature": 0.9, "seed": 5, "xtc_probability": 0.5, "xtc_threshold": 0.1},
    "top n sigma": {"temperature": 1.2, "seed": 9, "top_n_sigma": 1.0},
    "mirostat 1": {"mirostat": 1, "seed": 4},
    "mirostat 2": {"mirostat": 2, "seed": 4},
    "adaptive p": {"seed": 6, "adaptive_target": 0.5, "samplers": ("top_k", "adaptive_p")},
    "bias": {**GREEDY, "logit_bias": {260: -5.0, 28: 2.0}},
}


@pytest.fixture(scope="module")
def stage(smollm2: Path) -> Iterator[Stage]:
    puppet = drafters.Puppet()
    with Engine(smollm2, speculation=puppet, n_ctx=1024) as engine:
        yield Stage(engine, puppet)


@pytest.fixture(scope="module")
def spm(tiny: Tiny) -> Iterator[Stage]:
    """Random weights with a SentencePiece vocabulary: whatever the grammar allows may come."""
    puppet = drafters.Puppet()
    with Engine(tiny("llama-spm"), speculation=puppet, n_ctx=256, n_threads=1) as engine:
        yield Stage(engine, puppet)


def follows(result: Result, schema: dict[str, Any]) -> bool:
    """Whether the text is what the schema describes, or the beginning of something that was cut off."""
    if result.finish_reason != "stop":
        return result.finish_reason == "length"
    jsonschema.validate(json.loads(result.text), {k: v for k, v in schema.items() if k != "x-guidance"})
    return True


# -- the text --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SAMPLING)
def test_every_drafter_leaves_the_text_alone(stage: Stage, name: str) -> None:
    params = SamplingParams(max_tokens=64, json_schema=PERSON, logprobs=2, **SAMPLING[name])
    prompt = stage.engine.tokenize(ASK)
    plain = stage.plain(prompt, params)
    assert follows(plain, PERSON)
    for kind, script in stage.scripts(prompt, plain.token_ids).items():
        stage.puppet.script = script
        result = stage.engine.generate(prompt, params)
        assert result.token_ids == plain.token_ids, kind
        assert (result.text, result.finish_reason, result.stop) == (plain.text, plain.finish_reason, plain.stop), kind
        assert result.logprobs == plain.logprobs, kind
        if kind == "right":
            assert result.stats.accepted == result.stats.drafted > 0
        elif kind == "noise":
            assert result.stats.accepted == 0


def test_texts_end_and_are_valid(stage: Stage) -> None:
    """Not only as long as nothing goes wrong: six different ones."""
    texts = set()
    for seed in range(6):
        params = SamplingParams(max_tokens=160, json_schema=PERSON, temperature=0.9, seed=seed)
        result = stage.plain(ASK, params)
        assert result.finish_reason == "stop"
        assert follows(result, PERSON)
        texts.add(result.text)
    assert len(texts) > 3


def test_ngrams_of_the_schema_in_the_prompt(smollm2: Path) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 30}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    prompt = chatml(f'Answer with JSON by this schema: {json.dumps(schema)}. Example: {{"name": "Ann", "age": 3}}')
    with Engine(smollm2, speculation=NGramSimple(size_n=2, size_m=8), n_ctx=1024) as engine:
        params = SamplingParams(max_tokens=60, json_schema=schema, **GREEDY)
        plain, fast = engine.generate(prompt, params, n_draft_max=0), engine.generate(prompt, params)
        assert fast.token_ids == plain.token_ids and follows(fast, schema)
        assert fast.finish_reason == "stop"
        assert fast.stats.accepted > 0


def test_tool_calls_with_short_ngrams(smollm2: Path) -> None:
    cities = ("Oslo", "Lima", "Cairo", "Perth")
    with Engine(smollm2, speculation=NGramSimple(size_n=2, size_m=8), n_ctx=512, n_slots=2) as engine:
        for i in range(8):
            ask = f"Call get_weather for {cities[i % 4]}, {i % 5 + 1} days ahead. Tools: get_weather, get_time."
            prompt = chatml(ask)
            params = SamplingParams(max_tokens=60, json_schema=CALL, temperature=0.5, seed=i)
            fast = engine.generate(prompt, params)
            assert fast.finish_reason == "stop" and follows(fast, CALL)
            if i % 4 == 0:
                assert engine.generate(prompt, params, n_draft_max=0).token_ids == fast.token_ids
        assert engine.stats().drafted > 0


def test_many_requests_at_once(smollm2: Path) -> None:
    """Schemas, grammars and free texts share rounds; each gets what it would get alone."""
    rng = random.Random(3)
    puppet = drafters.Puppet()
    with Engine(smollm2, speculation=puppet, n_ctx=512, n_slots=3) as engine:
        kinds: list[dict[str, Any]] = [
            {"json_schema": PERSON},
            {"json_schema": CALL},
            {"json_schema": "json_object"},
            {},
            {"grammar": "root ::= [a-z ]+"},
            {"grammar": '%llguidance {}\nstart: /[A-Z][a-z]+/ (" " /[a-z]+/){2,8} "."'},
        ]
        jobs = []
        for i in range(12):
            how = GREEDY if rng.random() < 0.5 else {"temperature": 0.8, "seed": i}
            prompt = engine.tokenize(chatml(f"Tell me about number {i} and a friend of it."))
            jobs.append((prompt, SamplingParams(max_tokens=rng.choice((20, 60)), **kinds[i % len(kinds)], **how)))
        expected = [engine.generate(prompt, params, n_draft_max=0) for prompt, params in jobs]
        known = [[*prompt, *result.token_ids] for (prompt, _), result in zip(jobs, expected, strict=True)]

        def script(tokens: list[int], n_max: int) -> list[int]:
            text = next((text for text in known if text[: len(tokens)] == tokens), [])
            draft = text[len(tokens) : len(tokens) + rng.randrange(9)]
            at = rng.randrange(12)
            return [token if i < at else (token + 1) % engine.model.vocab.n_tokens for i, token in enumerate(draft)]

        puppet.script = script
        running = [engine.submit(prompt, params) for prompt, params in jobs]
        for generation, alone, (_, params) in zip(running, expected, jobs, strict=True):
            result = generation.result(120)
            assert (result.token_ids, result.finish_reason) == (alone.token_ids, alone.finish_reason), params
        assert engine.stats().accepted > 0


def test_models_whose_memory_can_not_be_cut(tiny: Tiny) -> None:
    """What is rolled back on the model is rolled back in the grammar. The tokens of this vocabulary are numbers."""
    exact: dict[str, Any] = {"type_k": "f32", "type_v": "f32", "flash_attn": "off", "n_ctx": 192, "n_threads": 1}
    schema = {"type": "array", "items": {"type": "integer"}, "x-guidance": {"item_separator": "0+"}}
    lark = '%llguidance {}\nstart: ("1" | "2" /[0-9]/ | "3" /[5-9]/){,60} "9"'
    for name in ("mamba", "qwen35", "gemma3"):
        puppet = drafters.Puppet()
        with Engine(tiny(name), speculation=puppet, **exact) as engine:
            with pytest.raises(GrammarError, match="no token"):  # it has no brackets
                engine.generate([5, 6, 7], SamplingParams(json_schema=schema, max_tokens=30, **GREEDY))
            for how in (GREEDY, {"temperature": 0.9, "seed": 5}):
                params = SamplingParams(grammar=lark, max_tokens=40, **how)
                plain = engine.generate([5, 6, 7], params, n_draft_max=0)
                for k in (0, 1, 2, 8):
                    puppet.script = drafters.mix(k, [5, 6, 7], plain.token_ids, 256)
                    assert engine.generate([5, 6, 7], params).token_ids == plain.token_ids


# -- drafts ----------------------------------------------------------------------------------------------------------


def test_what_the_grammar_refuses_costs_no_row(stage: Stage) -> None:
    """The drafter always proposes a control token, which is never JSON."""
    (control,) = stage.engine.model.vocab.tokenize("<|im_start|>", add_special=False, parse_special=True)
    params = SamplingParams(max_tokens=60, json_schema=PERSON, **GREEDY)
    plain = stage.plain(ASK, params)
    stage.puppet.script = lambda tokens, n_max: [control] * 8
    result = stage.engine.generate(ASK, params)
    assert result.token_ids == plain.token_ids
    assert result.stats.drafted == 0 and result.stats.acceptance == 0.0
    assert result.stats.target_rows == plain.stats.target_rows
    entry = result.stats.speculators["Puppet"]
    assert entry.refused == sum(min(8, 60 - i - 1) for i in range(1, len(result.token_ids)))
    assert result.stats.rounds_without_draft == result.stats.rounds


def test_a_draft_ends_where_the_grammar_does(stage: Stage) -> None:
    prompt = stage.engine.tokenize(ASK)
    params = SamplingParams(max_tokens=60, json_schema=PERSON, **GREEDY)
    plain = stage.plain(prompt, params)
    (control,) = stage.engine.model.vocab.tokenize("<|im_start|>", add_special=False, parse_special=True)
    stage.puppet.script = lambda tokens, n_max: [
        *list(plain.token_ids[len(tokens) - len(prompt) :])[:2], control, control,
    ]  # fmt: skip
    result = stage.engine.generate(prompt, params)
    assert result.token_ids == plain.token_ids
    assert result.stats.accepted == result.stats.drafted > 0
    assert max(len(result.stats.drafted_per_position), 0) <= 2
    assert result.stats.refused > 0


def test_a_refused_draft_lets_the_next_speculator_try(smollm2: Path) -> None:
    wrong, right = drafters.Puppet(), drafters.Puppet()
    right.name = "right"  # type: ignore[attr-defined]
    with Engine(smollm2, speculation=[wrong, right], n_ctx=512) as engine:
        prompt = engine.tokenize(ASK)
        params = SamplingParams(max_tokens=40, json_schema=PERSON, **GREEDY)
        plain = engine.generate(prompt, params, n_draft_max=0)
        wrong.script = lambda tokens, n_max: engine.model.vocab.tokenize("xyz", add_special=False) * 3
        right.script = drafters.right(prompt, plain.token_ids)
        result = engine.generate(prompt, params)
        assert result.token_ids == plain.token_ids
        assert set(result.drafted_by) >= {"right"}
        assert result.stats.speculators["right"].accepted > 0


@pytest.mark.parametrize("seed", range(6))
def test_masks_and_state_are_a_fresh_parsers(stage: Stage, seed: int) -> None:
    """After drafts that went wrong anywhere the next masks are those of a parser that only saw what was emitted."""
    rng = random.Random(seed)
    vocab = stage.engine.model.vocab
    grammars = Grammars(vocab)
    schema = json.dumps(rng.choice((PERSON, CALL, COMPACT)))
    text = grammars.for_schema(schema)
    emitted: list[int] = []

    def fresh(tokens: list[int]) -> GuidedConstraint:
        constraint = grammars.for_schema(schema)
        for token in tokens:
            constraint.accept([token])
        return constraint

    for _ in range(25):
        draft: list[int] = []
        path = fresh(emitted)
        rows = []
        for _ in range(rng.randrange(6)):
            ((row, _),) = grammars.fill([(path, [])])
            rows.append(row[0])
            allowed = np.flatnonzero(np.unpackbits(row[0].view(np.uint8), bitorder="little"))
            token = int(rng.choice(list(allowed[:200])))
            draft.append(token if rng.random() < 0.8 else rng.randrange(vocab.n_tokens))
            if draft[-1] not in allowed or draft[-1] in grammars.eog:
                break
            path.accept([draft[-1]])
        ((masks, n_fitting),) = grammars.fill([(text, draft)])
        assert masks.shape[0] == len(draft) + 1
        for i in range(min(n_fitting + 1, len(rows))):
            assert np.array_equal(masks[i], rows[i]), (emitted, draft, i)
        # Some of the draft is accepted, then the target says something else that fits.
        n = rng.randrange(n_fitting + 1)
        allowed = np.flatnonzero(np.unpackbits(masks[n].view(np.uint8), bitorder="little"))
        if not len(allowed):
            break
        own = int(rng.choice(list(allowed[:200])))
        step = [*draft[:n], own]
        text.accept(step)
        emitted += step
        if set(step) & grammars.eog:
            break
    assert text.error is None


def test_a_dead_end_in_a_draft_is_none_in_the_text(tiny: Tiny) -> None:
    """Behind "6" comes what this vocabulary of numbers can't write. The draft goes there, the text must not fail."""
    puppet = drafters.Puppet()
    with Engine(tiny("llama"), speculation=puppet, n_ctx=192, n_threads=1) as engine:
        pieces = {engine.model.vocab.piece(token).decode(): token for token in range(256)}
        four, five, six = (pieces[digit] for digit in "456")
        without_sixes = {token: -1000.0 for piece, token in pieces.items() if "6" in piece}
        grammar = '%llguidance {}\nstart: "4" ("6" "x" | "5"){12} "4"'
        params = SamplingParams(grammar=grammar, max_tokens=30, logit_bias=without_sixes, **GREEDY)
        plain = engine.generate([5, 6], params, n_draft_max=0)
        assert plain.finish_reason == "stop" and plain.text == "4" + 12 * "5" + "4"
        for draft in ([six], [five, six], [five, six, four], [six, six, five]):
            puppet.script = lambda tokens, n_max, draft=draft: draft  # type: ignore[misc]
            result = engine.generate([5, 6], params)
            assert result.token_ids == plain.token_ids
        others = {token: -1000.0 for piece, token in pieces.items() if piece not in ("4", "6")}
        doomed = SamplingParams(grammar=grammar, max_tokens=30, logit_bias=others, **GREEDY)
        messages = []
        for n_draft_max in (0, None):
            with pytest.raises(GrammarError, match="after 2 tokens: no token of the vocabulary fits") as caught:
                engine.generate([5, 6], doomed, n_draft_max=n_draft_max)
            messages.append(str(caught.value))
        assert messages[0] == messages[1]
        assert engine.generate([5, 6], params).token_ids == plain.token_ids


# -- anything goes ---------------------------------------------------------------------------------------------------

leaves = st.one_of(
    st.just({"type": "integer"}),
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.builds(lambda n: {"type": "string", "maxLength": n}, st.integers(0, 6)),
    st.builds(lambda a: {"type": "integer", "minimum": a, "maximum": a + 40}, st.integers(-99, 99)),
    st.builds(lambda words: {"enum": words}, st.lists(st.text("abé你\"\\ ", max_size=5), min_size=1, max_size=3)),
    st.builds(lambda value: {"const": value}, st.sampled_from([1, -2.5, "x", None, True, [1, "a"], {"k": 0}])),
)
schemas = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(lambda items, n: {"type": "array", "items": items, "maxItems": n}, inner, st.integers(0, 2)),
        st.builds(
            lambda properties: {
                "type": "object", "properties": properties, "required": list(properties),
                "additionalProperties": False,
            },
            st.dictionaries(st.text("abyé ", min_size=1, max_size=4), inner, max_size=3),
        ),
        st.builds(lambda some: {"anyOf": some}, st.lists(inner, min_size=1, max_size=2)),
    ),
    max_leaves=5,
)  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schema=schemas, seed=st.integers(0, 999), k=st.integers(0, 3), compact=st.booleans())
def test_random_schemas(spm: Stage, schema: dict[str, Any], seed: int, k: int, compact: bool) -> None:
    given_schema = {**schema, "x-guidance": {"whitespace_flexible": False}} if compact else schema
    prompt = spm.engine.tokenize("hello world")
    params = SamplingParams(json_schema=given_schema, temperature=1.0, seed=seed, max_tokens=70)
    plain = spm.plain(prompt, params)
    assert follows(plain, schema)
    spm.puppet.script = drafters.mix(k, prompt, plain.token_ids, spm.n_vocab)
    result = spm.engine.generate(prompt, params)
    assert (result.token_ids, result.text, result.finish_reason) == (plain.token_ids, plain.text, plain.finish_reason)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["type", "properties", "items", "enum", "$ref", "anyOf", "pattern", "format", "maxLength",
                         "required", "minimum", "x-guidance", "not", "allOf", "$defs", "additionalProperties"]),
        inner, max_size=4,
    ),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schema=st.dictionaries(st.sampled_from(["type", "properties", "items", "enum", "$ref", "pattern", "format"]),
                              json_values, max_size=4) | json_values)  # fmt: skip
def test_what_is_no_schema_is_a_typed_error(spm: Stage, schema: Any) -> None:
    """Or a schema after all, with a text that follows it; the engine goes on."""
    caught = None
    try:
        result = spm.engine.generate("he", SamplingParams(json_schema=schema, max_tokens=4, **GREEDY))
        assert result.finish_reason in ("stop", "length")
    except InvalidRequest as error:
        caught = error
    assert caught is None or (caught.name == "json_schema" and len(str(caught)) < 800)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("{", "is no JSON"),
        ("[]", "is no schema"),
        ("3", "is no schema"),
        ("false", "allows nothing"),
        ('{"type": "nothing"}', "can't be used: Invalid type: nothing"),
        ({"not": {}}, "Unimplemented keys"),
        ({"$ref": "#/missing"}, "does not exist"),
        ({"type": "string", "pattern": "("}, "unclosed group"),
        ({"minimum": 5, "maximum": 3, "type": "integer"}, "Unsatisfiable"),
        ({"x-guidance": {"spaces": 1}}, "spaces"),
        ({"enum": [math.nan]}, "can't be written as JSON"),
        ({"enum": [object()]}, "can't be written as JSON"),
    ],
)
def test_schemas_that_do_not_compile(spm: Stage, schema: Any, message: str) -> None:
    with pytest.raises(GrammarError, match=message) as caught:
        spm.engine.generate("he", SamplingParams(json_schema=schema, max_tokens=4, **GREEDY))
    assert caught.value.name == "json_schema"
    assert "\n" not in str(caught.value)
    assert spm.engine.generate("he", SamplingParams(max_tokens=2, **GREEDY)).stats.completion_tokens == 2


@pytest.mark.parametrize("value", [5, 1.5, ["type"], b"{}", {1, 2}])
def test_what_can_not_be_a_schema(value: Any) -> None:
    with pytest.raises(InvalidRequest, match="json_schema must be a JSON Schema") as caught:
        SamplingParams(json_schema=value)
    assert caught.value.name == "json_schema"


def test_a_schema_that_contains_itself() -> None:
    schema: dict[str, Any] = {}
    schema["properties"] = {"a": schema}
    with pytest.raises(GrammarError, match="can't be written as JSON"):
        SamplingParams(json_schema=schema)


def test_contradictions() -> None:
    with pytest.raises(GrammarError, match="a text can follow one of them only"):
        SamplingParams(json_schema={}, grammar='root ::= "a"')
    with pytest.raises(GrammarError, match="begins with its rule start"):
        SamplingParams(grammar='%llguidance {}\nstart: "a"', grammar_root="other")
    assert SamplingParams(grammar='root ::= "a"', grammar_root="other").grammar_root == "other"


def test_the_schema_as_a_parameter() -> None:
    params = SamplingParams(json_schema={"type": "object", "properties": {"b": {}, "a": {}}})
    assert params.json_schema == '{"type":"object","properties":{"b":{},"a":{}}}'  # the order is kept
    assert params == SamplingParams(json_schema=str(params.json_schema))
    assert hash(params) == hash(SamplingParams.from_dict(params.to_dict()))
    assert SamplingParams(json_schema=True) == SamplingParams(json_schema={})
    assert SamplingParams(json_schema="json_object") == SamplingParams(json_schema={"type": "object"})
    assert eval(repr(params)) == params


# -- what else a text does -------------------------------------------------------------------------------------------


def test_any_json_and_any_object(stage: Stage) -> None:
    any_object = stage.plain(ASK, SamplingParams(json_schema="json_object", max_tokens=200, **GREEDY))
    assert isinstance(json.loads(any_object.text), dict)
    anything = stage.plain(chatml("Say true or false."), SamplingParams(json_schema={}, max_tokens=40, **GREEDY))
    assert anything.finish_reason == "length" or json.loads(anything.text) is not None


def test_space_is_limited(stage: Stage) -> None:
    """A model that would rather write spaces than JSON: the text comes to an end all the same."""
    vocab = stage.engine.model.vocab
    blank = [t for t in range(vocab.n_tokens) if vocab.piece(t) and not vocab.piece(t).strip(b" \n\t\r")]
    schema = {"type": "array", "items": {"const": 1}, "minItems": 3, "maxItems": 3}
    params = SamplingParams(json_schema=schema, logit_bias=dict.fromkeys(blank, 50.0), max_tokens=300, **GREEDY)
    result = stage.plain(ASK, params)
    assert result.finish_reason == "stop" and json.loads(result.text) == [1, 1, 1]
    assert any(char.isspace() for char in result.text) and len(result.text) < 200


def test_a_users_own_rules_for_space(stage: Stage) -> None:
    result = stage.plain(ASK, SamplingParams(json_schema=COMPACT, max_tokens=120, **GREEDY))
    assert result.text == json.dumps(json.loads(result.text), separators=(",", ":"), ensure_ascii=False)


def test_limits_and_stops_end_it_as_any_text(stage: Stage) -> None:
    prompt = stage.engine.tokenize(ASK)
    whole = stage.plain(prompt, SamplingParams(json_schema=PERSON, max_tokens=100, **GREEDY))
    for script in stage.scripts(prompt, whole.token_ids).values():
        stage.puppet.script = script
        short = stage.engine.generate(prompt, SamplingParams(json_schema=PERSON, max_tokens=7, **GREEDY))
        assert (short.token_ids, short.finish_reason) == (whole.token_ids[:7], "length")
        stopped = stage.engine.generate(prompt, SamplingParams(json_schema=PERSON, stop=['"age"'], **GREEDY))
        assert stopped.text == whole.text[: whole.text.index('"age"')] and stopped.stop == '"age"'


def test_a_text_that_may_not_end_is_a_dead_end(stage: Stage) -> None:
    params = SamplingParams(json_schema={"type": "boolean"}, ignore_eos=True, max_tokens=20, **GREEDY)
    with pytest.raises(GrammarError, match="no token of the vocabulary fits") as caught:
        stage.engine.generate(ASK, params)
    assert caught.value.name == "json_schema"


def test_any_end_token_may_end_it(stage: Stage) -> None:
    """As in free text, where the model chooses among its end-of-generation tokens."""
    vocab = stage.engine.model.vocab
    for token in vocab.eog_tokens:
        bias = {other: -100.0 for other in vocab.eog_tokens if other != token}
        result = stage.plain(ASK, SamplingParams(json_schema={"type": "boolean"}, logit_bias=bias, **GREEDY))
        assert result.token_ids[-1] == token and result.text in ("true", "false")


# -- Lark ------------------------------------------------------------------------------------------------------------


def test_lark_grammars(stage: Stage) -> None:
    grammar = '%llguidance {}\nstart: "I say " word (" and " word){2} "!"\nword: /[a-z]{3,9}/'
    prompt = stage.engine.tokenize(ASK)
    params = SamplingParams(grammar=grammar, max_tokens=40, temperature=0.9, seed=2)
    plain = stage.plain(prompt, params)
    assert plain.text.startswith("I say ") and plain.text.endswith("!") and plain.text.count(" and ") == 2
    for script in stage.scripts(prompt, plain.token_ids).values():
        stage.puppet.script = script
        assert stage.engine.generate(prompt, params).token_ids == plain.token_ids


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ("%llguidance {}\nstart: other", "unknown name"),
        ("%llguidance {}\nstart: (", "can't be used"),
        ("%llguidance {", "can't be used"),
        ('%llguidance {}\nbegin: "a"', "can't be used"),
    ],
)
def test_lark_grammars_that_do_not_compile(spm: Stage, grammar: str, message: str) -> None:
    with pytest.raises(GrammarError, match=message) as caught:
        spm.engine.generate("he", SamplingParams(grammar=grammar, max_tokens=4))
    assert caught.value.name == "grammar"


# -- the vocabulary --------------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=12) | st.text("{}[]\":, \n\thelowrd", max_size=20))
def test_tokens_of_a_piece_of_text_are_that_text(stage: Stage, spm: Stage, text: str) -> None:
    """Without a space in front, which SentencePiece would put there, and whatever the text is.

    A vocabulary may lack a byte that no text it was made from had (SmolLM2's: 0xf1); there is a token for that.
    """
    for its in (stage, spm):
        vocab = its.engine.model.vocab
        tokenizer = _tokenizers.setdefault(vocab.n_tokens, Tokenizer(vocab))
        assert tokenizer.tokens[: vocab.n_tokens] == [vocab.piece(token) for token in range(vocab.n_tokens)]
        tokens = tokenizer(text.encode())
        assert b"".join(tokenizer.tokens[token] for token in tokens) == text.encode()


_tokenizers: dict[int, Tokenizer] = {}


def test_a_sentencepiece_vocabulary(spm: Stage) -> None:
    prompt = spm.engine.tokenize("hello")
    schema = {"const": {"hello": "world", "é": "你好 🙂"}, "x-guidance": {"whitespace_flexible": False}}
    result = spm.plain(prompt, SamplingParams(json_schema=schema, temperature=1.0, seed=3, max_tokens=80))
    assert json.loads(result.text) == schema["const"] and result.token_ids[-1] >= EOS
    assert not result.text.startswith(" ")
    assert any(FIRST_BYTE <= token < FIRST_BYTE + 256 for token in result.token_ids)


def test_a_vocabulary_without_an_end(tmp_path: Path) -> None:
    llama(tmp_path / "endless.gguf", vocab={"eos": None})
    with Engine(tmp_path / "endless.gguf", n_ctx=64, speculation=None) as engine:
        if engine.model.vocab.eog_tokens:
            pytest.skip("libllama found an end token by its text")
        with pytest.raises(UnsupportedModel, match="no token that ends a text"):
            engine.generate([1, 2], SamplingParams(json_schema={}))
        assert engine.generate([1, 2], SamplingParams(max_tokens=2)).stats.completion_tokens == 2


def test_without_the_package(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with Engine(tiny("llama-spm"), n_ctx=64) as engine:
        for params in (SamplingParams(json_schema={}), SamplingParams(grammar='%llguidance {}\nstart: "a"')):
            with pytest.raises(GrammarError, match=r"needs the package llguidance: pip install 'pyspec\[json\]'"):
                engine.generate("he", params)
        assert engine.generate("he", SamplingParams(grammar='root ::= "he"', max_tokens=5)).text == "he"


def test_a_closed_engine_keeps_nothing(tiny: Tiny) -> None:
    engine = Engine(tiny("llama-spm"), n_ctx=64)
    engine.generate("he", SamplingParams(json_schema={"type": "integer"}, max_tokens=5, seed=1))
    grammars = weakref.ref(engine._grammars)
    assert grammars() is not None
    engine.close()
    gc.collect()
    assert grammars() is None


def test_grammars_are_compiled_once(smollm2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grammars = Grammars(Model(str(smollm2), vocab_only=True).vocab, size=2)
    compiled: list[str] = []
    compile_one = grammars.compile
    monkeypatch.setattr(grammars, "compile", lambda grammar: compiled.append(grammar) or compile_one(grammar))
    for schema in ("{}", '{"type":"null"}', "{}", "{}", '{"type":"boolean"}', "{}", '{"type":"null"}'):
        first, second = grammars.for_schema(schema), grammars.for_schema(schema)
        first.accept(grammars.tokenizer(b"n" if "null" in schema else b"t"))
        assert second.forced(3) != first.forced(3) or schema == "{}"  # each its own place
    assert len(compiled) == 4  # the last one had to leave for another
