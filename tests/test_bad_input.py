"""Input that can't work: an exception that names what is wrong, and the engine goes on as if nothing had been.

Everything here runs on tiny models. An engine stays open through each group of tests and after every one of them has
to write the text it wrote before.
"""

from __future__ import annotations

import array
import math
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runs import run

from pyspec import (
    ContextError,
    ContextFull,
    DraftModel,
    Engine,
    GrammarError,
    InvalidRequest,
    Model,
    ModelLoadError,
    PyspecError,
    SamplingParams,
    UnsupportedModel,
    VocabMismatch,
)

Tiny = Callable[[str], Path]

N_VOCAB = 256
N_CTX = 64
# With these a row of logits does not depend on the batch it is computed in by more than its last bits.
EXACT: dict[str, Any] = {"flash_attn": "off", "type_k": "f32", "type_v": "f32"}
GREEDY = SamplingParams(temperature=0.0, max_tokens=6)
PROMPT = [5, 6, 7]


@pytest.fixture(scope="module")
def engine(tiny: Tiny) -> Iterator[Engine]:
    draft = DraftModel(tiny("llama-draft"), n_max=4)
    with Engine(tiny("llama"), speculation=draft, n_ctx=N_CTX, **EXACT) as engine:
        yield engine


@pytest.fixture(scope="module")
def expected(engine: Engine) -> tuple[int, ...]:
    return engine.generate(PROMPT, GREEDY, n_draft_max=0).token_ids


@pytest.fixture(autouse=True)
def still_right(engine: Engine, expected: tuple[int, ...]) -> Iterator[None]:
    yield
    assert engine.generate(PROMPT, GREEDY).token_ids == expected


# -- files -----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["target", "draft"])
def role(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def open_as(role: str, path: Any, tiny: Tiny) -> None:
    """Opens a file in a role; whatever happens, nothing stays open."""
    with Engine(path) if role == "target" else Engine(tiny("llama"), draft_model=path):
        pass


def test_a_missing_file(tiny: Tiny, role: str, tmp_path: Path) -> None:
    path = tmp_path / "nothing.gguf"
    with pytest.raises(ModelLoadError, match="no such model") as caught:
        open_as(role, path, tiny)
    assert str(path) in str(caught.value)


def test_a_name_nobody_registered(tiny: Tiny, role: str) -> None:
    with pytest.raises(ModelLoadError, match=r"'smolm2' is not a file.*smollm2"):
        open_as(role, "smolm2", tiny)


def test_a_directory(tiny: Tiny, role: str, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="it is a directory"):
        open_as(role, tmp_path, tiny)


@pytest.mark.parametrize("path", [None, 7, b"model.gguf", "", ["model.gguf"]])
def test_what_is_no_path(tiny: Tiny, path: object) -> None:
    with pytest.raises(InvalidRequest, match="target must be a GGUF file") as caught:
        Engine(path)  # type: ignore[arg-type]
    assert caught.value.name == "target" and caught.value.value == path


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"G", "not a GGUF"),
        (b"once upon a time " * 100, "not a GGUF"),
        (b"GGUF", "truncated"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 5), "claims"),
        (b"GGUF" + struct.pack("<IQQ", 3, 5, 2**60), "claims"),
        (b"GGUF" + b"\xff" * 4096, "version"),
    ],
)
def test_what_is_no_gguf(tiny: Tiny, role: str, tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelLoadError, match=message) as caught:
        open_as(role, path, tiny)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("share", [0.001, 0.005, 0.01, 0.02, 0.1, 0.5, 0.9, 0.9999])
def test_a_truncated_file(tiny: Tiny, role: str, tmp_path: Path, share: float) -> None:
    whole = tiny("llama").read_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(ModelLoadError, match=r"truncated|damaged"):
        open_as(role, path, tiny)


def test_a_file_that_shrinks_by_one_byte(tiny: Tiny, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(tiny("llama").read_bytes()[:-1])
    with pytest.raises(ModelLoadError, match=r"truncated: the tensor blk\.3\.ffn_down\.weight"):
        open_as("target", path, tiny)


def test_weights_that_are_no_numbers(tiny: Tiny, tmp_path: Path) -> None:
    """A file that loads, and whose every logit is NaN: the request fails, whoever drafts."""
    path = tmp_path / "nan.gguf"
    path.write_bytes(tiny("llama").read_bytes()[:-24576] + b"\xff" * 24576)
    for speculation in ("none", lambda tokens: [1, 2, 3], DraftModel(path)):
        for params in (GREEDY, SamplingParams(seed=1), SamplingParams(seed=1, logprobs=3)):
            with (
                Engine(path, speculation=speculation, n_ctx=N_CTX) as engine,
                pytest.raises(PyspecError, match="no token can be chosen after 0 tokens"),
            ):
                engine.generate(PROMPT, params)


def test_a_draft_whose_weights_are_no_numbers(tiny: Tiny, tmp_path: Path, expected: tuple[int, ...]) -> None:
    path = tmp_path / "nan.gguf"
    data = bytearray(tiny("llama-draft").read_bytes())
    data[-24576:] = b"\xff" * 24576
    path.write_bytes(data)
    for p_min in (0.0, 0.5):
        with Engine(tiny("llama"), speculation=DraftModel(path, p_min=p_min), n_ctx=N_CTX, **EXACT) as engine:
            assert engine.generate(PROMPT, GREEDY).token_ids == expected


# -- models of the wrong kind ----------------------------------------------------------------------------------------


def test_a_vocabulary_alone(tiny: Tiny, role: str) -> None:
    with pytest.raises(ModelLoadError, match="no weights, only a vocabulary"):
        open_as(role, tiny("vocab-only"), tiny)
    with Model(str(tiny("llama")), vocab_only=True) as model, pytest.raises(InvalidRequest, match="vocab_only"):
        Engine(model)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bert", "encoder"),
        ("t5encoder", "encoder"),
        ("t5", "encoder"),
        ("eagle3", "draft-eagle3"),
        ("dflash", "draft-dflash"),
        ("dspark", "draft-dspark"),
    ],
)
def test_models_that_do_not_write(tiny: Tiny, role: str, name: str, message: str) -> None:
    if role == "draft" and message != "encoder":
        # They draft from the hidden states of a target: a file is used as what it is, for a target that it fits.
        with Engine(tiny("llama"), draft_model=tiny(name), n_ctx=512) as engine:
            assert message in engine.config.speculators
        return
    with pytest.raises(UnsupportedModel, match=message) as caught:
        open_as(role, tiny(name), tiny)
    assert str(tiny(name)) in str(caught.value) and role in str(caught.value)


# -- vocabularies ----------------------------------------------------------------------------------------------------


def changed_value(path: Path, key: str, old: bytes, new: bytes, folder: Path) -> Path:
    """A copy of a GGUF file with another value of a metadata key."""
    data = path.read_bytes()
    at = data.index(key.encode()) + len(key) + 4  # behind the key stands its type
    assert data[at : at + len(old)] == old
    copy = folder / f"{key}.gguf"
    copy.write_bytes(data[:at] + new + data[at + len(new) :])
    return copy


def test_a_draft_with_another_number_of_tokens(tiny: Tiny) -> None:
    with pytest.raises(VocabMismatch, match="size is 256 in the target, 768 in the draft") as caught:
        Engine(tiny("llama"), draft_model=tiny("draft-other-size"))
    assert (caught.value.property, caught.value.target, caught.value.draft) == ("size", 256, 768)


def test_a_draft_with_other_texts(tiny: Tiny) -> None:
    with pytest.raises(VocabMismatch, match="token 100 is 'tok_100' in the target, 'other_100' in the draft") as caught:
        Engine(tiny("llama"), draft_model=tiny("draft-other-texts"))
    assert caught.value.token_id == 100


def test_a_draft_with_another_kind_of_vocabulary(tiny: Tiny) -> None:
    with pytest.raises(VocabMismatch, match=r"type is .* in the target, 'spm' in the draft"):
        Engine(tiny("llama"), draft_model=tiny("llama-spm"))


def test_a_draft_with_another_bos(tiny: Tiny, tmp_path: Path) -> None:
    spm = tiny("llama-spm")
    other = changed_value(spm, "tokenizer.ggml.bos_token_id", struct.pack("<I", 1), struct.pack("<I", 2), tmp_path)
    with pytest.raises(VocabMismatch, match="bos token is 1 in the target, 2 in the draft"):
        Engine(spm, draft_model=other)
    without = changed_value(spm, "tokenizer.ggml.add_bos_token", b"\1", b"\0", tmp_path)
    with pytest.raises(VocabMismatch, match="add_bos is True in the target, False in the draft"):
        Engine(spm, draft_model=without)
    with Engine(spm, draft_model=shutil.copy(spm, tmp_path / "same.gguf"), draft_length="fixed", n_ctx=N_CTX) as engine:
        assert engine.generate("hello", GREEDY).stats.drafted > 0


# -- sizes -----------------------------------------------------------------------------------------------------------

BAD_INTEGERS = [-1, -(2**40), 2**31, 2**70, 1.5, True, "8", math.nan, [8]]


@pytest.mark.parametrize("name", ["n_ctx", "n_batch", "n_ubatch"])
@pytest.mark.parametrize("value", [0, *BAD_INTEGERS])
def test_sizes_of_the_engine(tiny: Tiny, name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Engine(tiny("llama"), **{name: value})
    assert caught.value.name == name and name in str(caught.value) and str(value) in str(caught.value)


@pytest.mark.parametrize("name", ["n_threads", "n_threads_batch", "n_draft_max"])
@pytest.mark.parametrize("value", BAD_INTEGERS)
def test_counts_of_the_engine(tiny: Tiny, name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Engine(tiny("llama"), **{name: value})
    assert caught.value.name == name and str(value) in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"n_threads": 100_000}, "n_threads"),
        ({"n_gpu_layers": -2}, "n_gpu_layers"),
        ({"flash_attn": "maybe"}, "flash_attn"),
        ({"type_k": "q9_0"}, "type_k"),
        ({"type_v": 16}, "type_v"),
        ({"type_k": "q8_0"}, "type_k"),  # heads of 16 values
        ({"draft_length": "long"}, "draft_length"),
        ({"speculation": "fast"}, "speculation"),
        ({"speculation": 5}, "speculation"),
        ({"speculation": [None]}, "speculation"),
        ({"speculation": b"none"}, "speculation"),
        ({"load_progress": 3}, "load_progress"),
    ],
)
def test_settings_of_the_engine(tiny: Tiny, settings: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Engine(tiny("llama"), **settings)
    assert caught.value.name == name and name in str(caught.value).replace("speculator", "speculation")


@pytest.mark.parametrize("n_ctx", [10**9, 2**31 - 512])
def test_a_context_larger_than_any_memory(tiny: Tiny, n_ctx: int) -> None:
    with pytest.raises(ContextError, match=r"n_ctx|memory|alloc"):
        Engine(tiny("llama"), n_ctx=n_ctx)


@pytest.mark.parametrize("sizes", [{"n_batch": 1}, {"n_ubatch": 1}, {"n_batch": 3, "n_ubatch": 1}, {"n_batch": 10**6}])
def test_sizes_that_are_odd_but_work(tiny: Tiny, expected: tuple[int, ...], sizes: dict[str, int]) -> None:
    draft = DraftModel(tiny("llama-draft"), n_max=4, n_batch=sizes.get("n_batch", 512))
    with Engine(tiny("llama"), speculation=draft, n_ctx=N_CTX, **EXACT, **sizes) as engine:
        assert engine.generate(PROMPT, GREEDY).token_ids == expected


# -- prompts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", ["", b"", bytearray(), [], (), range(0), np.array([], np.int32)])
def test_an_empty_prompt(engine: Engine, prompt: Any) -> None:
    for use in (engine.generate, engine.stream, engine.tokenize):
        with pytest.raises(InvalidRequest, match="prompt is empty") as caught:
            use(prompt)
        assert caught.value.name == "prompt"


@pytest.mark.parametrize("over", [0, 1, 2, 1000])
def test_a_prompt_longer_than_the_context(engine: Engine, over: int) -> None:
    with pytest.raises(ContextFull, match=f"{N_CTX + over} tokens and the context holds {N_CTX}") as caught:
        engine.generate([5] * (N_CTX + over), GREEDY)
    assert (caught.value.n_tokens, caught.value.n_ctx) == (N_CTX + over, N_CTX)


@pytest.mark.parametrize("left", [1, 2, 3, 4])
def test_a_prompt_that_just_fits(engine: Engine, tiny: Tiny, left: int) -> None:
    """The context holds the prompt and the text but for its last token, which nobody reads any more."""
    prompt = [(7 * i) % N_VOCAB for i in range(N_CTX - left)]
    params = SamplingParams(temperature=0.0, ignore_eos=True)
    with Engine(tiny("llama"), n_ctx=2 * N_CTX, speculation="none", **EXACT) as roomy:
        whole = roomy.generate(prompt, params).token_ids
    for n_draft_max in (0, None):
        result = engine.generate(prompt, params, n_draft_max=n_draft_max)
        assert result.finish_reason == "length" and result.stop is None
        assert result.token_ids == whole[: left + 1]


def test_a_long_text(engine: Engine) -> None:
    with pytest.raises(ContextFull, match="shorten the prompt or open the engine with a larger n_ctx"):
        engine.generate("once upon a time " * 5000, GREEDY)


@pytest.mark.parametrize(
    "prompt",
    [b"\xff\xfe", b"\xe6\xad", b"ok\x80", b"\xc0\x80", b"\xed\xa0\x80", bytearray(b"\xf0\x9f"), "a\ud800b", "\udc80"],
)
def test_a_prompt_that_is_no_unicode_text(engine: Engine, prompt: Any) -> None:
    for use in (engine.generate, engine.tokenize):
        with pytest.raises(InvalidRequest, match="not Unicode text") as caught:
            use(prompt)
        assert caught.value.name == "prompt"


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (None, "not NoneType"),
        (5, "not int"),
        ({1, 2}, "not set"),
        ({1: 2}, "not dict"),
        ((i for i in [1, 2]), "not generator"),
        (memoryview(b"text"), "not memoryview"),
        (np.array(3), "not ndarray"),
        (np.array([[1, 2]]), "not ndarray"),
        (np.array([1.0]), r"prompt\[0\] is no token id: .*1\.0"),
        ([1, 2.0], r"prompt\[1\] is no token id: 2\.0"),
        ([1, "2"], r"prompt\[1\] is no token id: '2'"),
        ([1, None], r"prompt\[1\] is no token id"),
        ([True], r"prompt\[0\] is no token id"),
        ([[1, 2]], r"prompt\[0\] is no token id"),
        ([-1], r"prompt\[0\] is -1; the vocabulary has the ids 0\.\.255"),
        ([1, N_VOCAB], r"prompt\[1\] is 256"),
        ([2**70], r"prompt\[0\] is 1180591620717411303424"),
    ],
)
def test_what_is_no_prompt(engine: Engine, prompt: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        engine.generate(prompt, GREEDY)
    assert caught.value.name == "prompt"


@pytest.mark.parametrize(
    "prompt",
    [
        (5, 6, 7),
        range(5, 8),
        np.array([5, 6, 7]),
        np.array([5, 6, 7], np.uint8),
        array.array("i", PROMPT),
        [np.int64(5), 6, 7],
    ],
)
def test_token_ids_of_every_kind(engine: Engine, expected: tuple[int, ...], prompt: Any) -> None:
    result = engine.generate(prompt, GREEDY)
    assert result.token_ids == expected and result.prompt_token_ids == (5, 6, 7)


def test_text_of_every_kind(engine: Engine) -> None:
    text = "hello \u4f60\u597d"
    ids = engine.tokenize(text)
    assert engine.tokenize(text.encode()) == engine.tokenize(bytearray(text.encode())) == ids
    assert engine.tokenize(np.str_(text)) == ids
    engine.generate("a\0b", GREEDY)


# -- parameters of a request -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": math.inf}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": math.nan}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"min_p": -0.1}, "min_p"),
        ({"top_k": 2.5}, "top_k"),
        ({"penalty_repeat": 0.0}, "penalty_repeat"),
        ({"mirostat": 3}, "mirostat"),
        ({"seed": -2}, "seed"),
        ({"seed": 2**32}, "seed"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 2**40}, "max_tokens"),
        ({"logprobs": -1}, "logprobs"),
        ({"stop": ["x", ""]}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": [b"x"]}, "stop"),
        ({"stop": ["a\ud800"]}, "stop"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias"),
        ({"logit_bias": {1: math.nan}}, "logit_bias"),
        ({"samplers": ["top_q"]}, "samplers"),
    ],
)
def test_parameters_out_of_range(engine: Engine, values: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        engine.generate(PROMPT, SamplingParams(**values))
    assert str(caught.value.name).startswith(name) and name in str(caught.value)


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"stop_token_ids": [N_VOCAB]}, "stop_token_ids"),
        ({"logit_bias": {N_VOCAB: 1.0}}, "logit_bias"),
        ({"logit_bias": {2**31 - 1: 1.0}}, "logit_bias"),
        ({"logprobs": N_VOCAB + 1}, "logprobs"),
        ({"logprobs": 10**9}, "logprobs"),
        ({"samplers": ["infill"]}, "samplers"),
    ],
)
def test_parameters_this_vocabulary_can_not_have(engine: Engine, values: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        engine.generate(PROMPT, SamplingParams(**values))
    assert caught.value.name == name and name in str(caught.value)


@pytest.mark.parametrize("params", [5, "greedy", {"temperature": 0.0}, SamplingParams])
def test_what_are_no_parameters(engine: Engine, params: Any) -> None:
    with pytest.raises(InvalidRequest, match="params must be a SamplingParams"):
        engine.generate(PROMPT, params)


@pytest.mark.parametrize("value", BAD_INTEGERS)
def test_longest_draft_of_a_request(engine: Engine, value: Any) -> None:
    with pytest.raises(InvalidRequest, match="n_draft_max must be"):
        engine.generate(PROMPT, GREEDY, n_draft_max=value)


@pytest.mark.parametrize(
    "values",
    [
        {"logprobs": N_VOCAB},
        {"logprobs": 0},
        {"seed": 0, "temperature": 1.0},
        {"seed": 2**32 - 2, "temperature": 1.0},
        {"max_tokens": 1},
        {"max_tokens": 2**31 - 1, "ignore_eos": True},
        {"stop": ["x" * 100_000]},
        {"stop": [f"no such text {i}" for i in range(10_000)]},
        {"stop_token_ids": range(N_VOCAB)},
        {"temperature": 1e30, "seed": 1},
        {"temperature": 1e-30},
        {"top_k": 2**31 - 1, "seed": 1},
        {"penalty_repeat": 1e38, "penalty_last_n": 2**31 - 1},
        {"penalty_freq": -1e38},
        {"dry_multiplier": 1e38, "dry_base": 1e38, "dry_penalty_last_n": 2**31 - 1},
        {"mirostat": 2, "mirostat_tau": 0.0, "seed": 1},
        {"samplers": ["xtc"] * 50, "xtc_probability": 1.0, "xtc_threshold": 0.0, "seed": 1},
        {"samplers": []},
    ],
)
def test_extremes_are_the_same_with_and_without_drafts(engine: Engine, values: dict[str, Any]) -> None:
    params = SamplingParams(**{"temperature": 0.0, "max_tokens": 12, "seed": 5, **values})
    plain = engine.generate(PROMPT, params, n_draft_max=0)
    fast = engine.generate(PROMPT, params)
    assert plain.token_ids == fast.token_ids and len(plain.token_ids) >= 1
    assert (plain.text, plain.finish_reason, plain.stop) == (fast.text, fast.finish_reason, fast.stop)


# -- grammars --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ("garbage", "expecting ::="),
        ("root ::= (", "expecting '\\)'"),
        ('x ::= "a"', "'root' symbol"),
        ('root ::= "a" other', "Undefined rule identifier 'other'"),
        ("root ::= root", "left recursion"),
        ('root ::= "a"{1000000}', "repetitions"),
        ("root ::= " + "(" * 5000 + '"a"' + ")" * 5000, "nests"),
        ('root ::= "a', "grammar"),
    ],
)
def test_grammars_that_can_not_be_parsed(engine: Engine, grammar: str, message: str) -> None:
    with pytest.raises(GrammarError, match=message):
        engine.generate(PROMPT, SamplingParams(temperature=0.0, max_tokens=4, grammar=grammar))
    with pytest.raises(GrammarError, match="nonsense"):
        engine.generate(PROMPT, SamplingParams(max_tokens=4, grammar='root ::= "1"', grammar_root="nonsense"))


def test_a_grammar_nothing_fits(engine: Engine) -> None:
    """The tokens of this vocabulary are numbers."""
    with pytest.raises(GrammarError, match="no token can be chosen after 0 tokens: no token of the vocabulary fits"):
        engine.generate(PROMPT, SamplingParams(temperature=0.0, max_tokens=4, grammar='root ::= "x"'))


def test_a_grammar_that_leads_to_a_dead_end(engine: Engine) -> None:
    """What was written before it has been delivered, and drafts make no difference."""
    params = SamplingParams(temperature=0.0, max_tokens=9, grammar='root ::= "1" "1" "1" "x"')
    texts = []
    for n_draft_max in (0, None):
        chunks: list[str] = []
        with pytest.raises(GrammarError, match=r"can be chosen after [123] tokens: no token .* fits") as caught:
            chunks.extend(chunk.text for chunk in engine.stream(PROMPT, params, n_draft_max=n_draft_max))
        texts.append(("".join(chunks), str(caught.value)))
    assert texts[0] == texts[1] and texts[0][0] == "111"


def test_biases_that_forbid_everything(engine: Engine) -> None:
    params = SamplingParams(max_tokens=4, logit_bias=dict.fromkeys(range(N_VOCAB), -math.inf))
    with pytest.raises(PyspecError, match="no token can be chosen after 0 tokens"):
        engine.generate(PROMPT, params)


# -- the command line ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["-m", "", "-p", "x"], 1, "no such model: '' is not a file"),
        (["-c", "64", "-p", "once upon a time " * 100], 1, "the context holds 64"),
        (["-md", "draft-other-size", "-p", "x"], 1, "size is 256 in the target, 768 in the draft"),
        (["-md", "draft-other-texts", "-p", "x"], 1, "token 100"),
        (["-md", "vocab-only", "-p", "x"], 1, "only a vocabulary"),
        (["-md", "bert", "-p", "x"], 1, "encoder"),
        (["-c", "1000000000", "-p", "x"], 1, "n_ctx=1000000000"),
        (["-ub", "0", "-p", "x"], 2, "n_ubatch must be at least 1"),
        (["-n", "4", "-p", "x", "--grammar", 'root ::= "x"'], 2, "--grammar: no token can be chosen"),
    ],
)
def test_the_command_line_says_it_in_one_line(
    tiny: Tiny, capfd: pytest.CaptureFixture[str], options: list[str], code: int, message: str
) -> None:
    names = ("draft-other-size", "draft-other-texts", "vocab-only", "bert")
    options = [str(tiny(option)) if option in names else option for option in options]
    _, err = run(capfd, "generate", "-m", str(tiny("llama")), *options, code=code)
    line = err.strip().splitlines()[-1]
    assert line.startswith("error: ") and "Traceback" not in err
    assert message in line
