"""The options of ``pyspec generate``: each one arrives, and contradictions are refused."""

from __future__ import annotations

import argparse
import io
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspec.cli.commands import parse
from pyspec.cli.config import Generate, read_config
from pyspec.cli.options import unescape
from pyspec.cli.parser import Removed, UsageError
from pyspec.cli.spec_options import SPEC_TYPES
from pyspec.sampling import SamplingParams
from pyspec.speculation import (
    DraftDFlash,
    DraftDSpark,
    DraftEagle3,
    DraftModel,
    DraftMTP,
    GrammarDrafts,
    NGramCache,
    NGramMod,
    NGramSimple,
)

TARGET = ["generate", "-m", "target.gguf"]
PLAIN = [*TARGET, "-p", "hello"]
DRAFTED = [*PLAIN, "-md", "draft.gguf"]


def config(*args: str, base: list[str] = PLAIN) -> Generate:
    return read_config(parse([*base, *args]))


# A value for every option, by where it goes: none of them is the default. None: the option is a switch.
SAMPLES: dict[str, str | None] = {
    "model": "other.gguf",
    "engine.n_ctx": "512",
    "engine.n_batch": "256",
    "engine.n_ubatch": "128",
    "engine.n_threads": "1",
    "engine.n_threads_batch": "3",
    "engine.n_gpu_layers": "7",
    "engine.flash_attn": "off",
    "engine.type_k": "q8_0",
    "engine.type_v": "q8_0",
    "engine.use_extra_bufts": None,
    "engine.exact": None,
    "prompt": "other",
    "file": __file__,
    "chat": None,
    "system_prompt": "be brief",
    "system_prompt_file": __file__,
    "escape": None,
    "draft_model": "other-draft.gguf",
    "spec_type": "none",
    "engine.draft_length": "auto",
    "synth_rates": "0.8,0.6,0.4",
    "synth_len": "2.5",
    "draft-simple.n_max": "8",
    "draft-simple.n_min": "2",
    "draft-simple.p_min": "0.5",
    "draft-simple.sync": "replay",
    "draft-simple.n_ctx": "512",
    "draft-simple.n_batch": "64",
    "draft-simple.n_threads": "1",
    "draft-simple.n_threads_batch": "3",
    "draft-simple.n_gpu_layers": "7",
    "draft-simple.flash_attn": "off",
    "draft-simple.type_k": "q8_0",
    "draft-simple.type_v": "q8_0",
    "draft-simple.vocab": "auto",
    "draft-simple.vocab_slots": "256",
    "draft-simple.vocab_max_miss": "0.25",
    "ngram-simple.size_n": "8",
    "ngram-simple.size_m": "8",
    "ngram-simple.min_hits": "2",
    "ngram-map-k.size_n": "8",
    "ngram-map-k.size_m": "8",
    "ngram-map-k.min_hits": "2",
    "ngram-map-k4v.size_n": "8",
    "ngram-map-k4v.size_m": "8",
    "ngram-map-k4v.min_hits": "2",
    "ngram-mod.n_match": "16",
    "ngram-mod.n_max": "50",
    "ngram-mod.n_min": "8",
    "ngram-cache.lookup_cache_static": "counts.bin",
    "ngram-cache.lookup_cache_dynamic": "counts.bin",
    "ngram-cache.save_dynamic": None,
    "ngram-cache.n_draft": "4",
    "grammar.n_max": "5",
    "grammar.n_min": "2",
    "sampling.max_tokens": "12",
    "sampling.seed": "42",
    "sampling.coupled": None,
    "sampling.temperature": "0",
    "sampling.top_k": "7",
    "sampling.top_p": "0.5",
    "sampling.min_p": "0.1",
    "sampling.typ_p": "0.5",
    "sampling.top_n_sigma": "1.5",
    "sampling.xtc_probability": "0.5",
    "sampling.xtc_threshold": "0.2",
    "sampling.penalty_last_n": "10",
    "sampling.penalty_repeat": "1.1",
    "sampling.penalty_present": "0.5",
    "sampling.penalty_freq": "0.5",
    "sampling.dry_multiplier": "0.8",
    "sampling.dry_base": "2",
    "sampling.dry_allowed_length": "4",
    "sampling.dry_penalty_last_n": "10",
    "sampling.dry_sequence_breakers": ".",
    "sampling.dynatemp_range": "0.2",
    "sampling.dynatemp_exponent": "2",
    "sampling.adaptive_target": "0.5",
    "sampling.adaptive_decay": "0.5",
    "sampling.mirostat": "2",
    "sampling.mirostat_eta": "0.2",
    "sampling.mirostat_tau": "4",
    "sampling.samplers": "kt",
    "sampling.logit_bias": "17-1",
    "sampling.ignore_eos": None,
    "sampling.grammar": 'root ::= "a"',
    "sampling.grammar_file": __file__,
    "sampling.grammar_triggers": "</think>",
    "sampling.json_schema": '{"type": "integer"}',
    "sampling.json_schema_file": str(Path(__file__).with_name("person.schema.json")),
    "sampling.stop": "END",
    "sampling.stop_token_ids": "7",
    "sampling.logprobs": "2",
    "sampling.logprobs_mode": "sampled",
    "compare": None,
    "color": "on",
    "display_prompt": None,
    "show_timings": None,
    "json": None,
    "verbosity": "3",
}

# What an option needs beside it to make sense.
COMPANIONS = {
    "system_prompt": ["--chat"],
    "system_prompt_file": ["--chat"],
    "sampling.logprobs": ["--json"],
    "sampling.grammar_triggers": ["--grammar", 'root ::= "a"'],
    "compare": ["-md", "draft.gguf"],
    "escape": ["--stop", r"\n"],
    "engine.draft_length": ["-md", "draft.gguf"],
    "synth_rates": ["-md", "draft.gguf"],
    "synth_len": ["-md", "draft.gguf"],
    "ngram-cache.save_dynamic": ["-lcd", "counts.bin"],
}
ALREADY = {"--display-prompt", "--escape", "-e", "--show-timings"}  # says what is the default


def _options() -> list[tuple[str, str]]:
    actions = parse(PLAIN).parser._actions
    return [
        (flag, action.dest)
        for action in actions
        for flag in action.option_strings
        if not isinstance(action, Removed | argparse._HelpAction)
    ]


@pytest.mark.parametrize(("flag", "dest"), _options())
def test_every_option_changes_the_configuration(flag: str, dest: str) -> None:
    if flag in ALREADY:
        assert config(flag) == config()
        return
    sample = SAMPLES[dest]
    given = [flag] if sample is None or flag in ("-v", "--verbose", "--log-verbose") else [flag, sample]
    base = TARGET if dest in ("prompt", "file") else DRAFTED if dest.startswith("draft") else PLAIN
    if flag == "--spec-type":
        assert config(*given).speculation == "none" != config().speculation
        return
    if flag == "--spec-default":
        assert config(flag).speculation == (NGramMod(),)
        return
    companions = COMPANIONS.get(dest, [])
    if dest.startswith(("ngram", "grammar")):
        companions = [*companions, "--spec-type", dest.split(".")[0]]
    reference = ["-p", "hello"] if base is TARGET else []
    before, after = config(*companions, *reference, base=base), config(*companions, *given, base=base)
    assert before != after
    area, _, field = dest.rpartition(".")
    if area == "engine":
        assert after.engine.keys() == {field}
    elif area in SPEC_TYPES:
        (old,), (new,) = before.speculation, after.speculation
        assert old.to_dict() | {field: getattr(new, field)} == new.to_dict() != old.to_dict()


def test_every_sample_is_used() -> None:
    assert {dest for _, dest in _options()} == set(SAMPLES)


def test_every_parameter_of_a_request_has_an_option() -> None:
    without = {"min_keep", "grammar_root"}  # llama.cpp has no flags for them either
    settable = {dest.removeprefix("sampling.") for _, dest in _options() if dest.startswith("sampling.")}
    assert settable - {"grammar_file", "json_schema_file"} == set(SamplingParams().to_dict()) - without


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("-ngl", "auto"), {"n_gpu_layers": -1}),
        (("-ngl", "all"), {"n_gpu_layers": -1}),
        (("-c", "0"), {"n_ctx": None}),
        (("--no-repack",), {"use_extra_bufts": False}),
    ],
)
def test_engine_values_have_llama_cpps_meaning(flags: tuple[str, ...], expected: dict[str, Any]) -> None:
    assert config(*flags).engine == expected


@pytest.mark.parametrize(
    ("flags", "field", "expected"),
    [
        (("-n", "-1"), "max_tokens", None),
        (("-n", "-2"), "max_tokens", None),
        (("-s", "-1"), "seed", None),
        (("-s", "4294967295"), "seed", None),
        (("--samplers", "top_k;temp"), "samplers", ("top_k", "temperature")),
        (("--sampling-seq", "kt"), "samplers", ("top_k", "temperature")),
        (("-l", "5+1.5", "-l", "7-inf"), "logit_bias", {5: 1.5, 7: -math.inf}),
        (("-r", "a", "--stop", r"b\n"), "stop", ("a", "b\n")),
        (("--no-escape", "--stop", r"b\n"), "stop", (r"b\n",)),
        (("--stop-token", "3", "--stop-token", "4"), "stop_token_ids", (3, 4)),
        (
            ("--dry-sequence-breaker", r"\n", "--dry-sequence-breaker", ":"),
            "dry_sequence_breakers",
            ("\n", ":"),
        ),
        (("--dry-sequence-breaker", "none"), "dry_sequence_breakers", ()),
    ],
)
def test_sampling_values_have_llama_cpps_meaning(flags: tuple[str, ...], field: str, expected: Any) -> None:
    assert getattr(config(*flags).sampling, field) == expected


def test_without_options_the_defaults_are_the_librarys() -> None:
    plain = config()
    assert plain.engine == {}
    assert plain.sampling == SamplingParams()
    assert plain.speculation == "auto"
    assert config(base=DRAFTED).speculation == (DraftModel("draft.gguf"),)


def test_the_help_shows_the_librarys_defaults() -> None:
    text = " ".join(parse(PLAIN).parser.format_help().split())
    assert "keep the k likeliest tokens, 0 for all (default: 40)" in text
    assert "most tokens drafted in one round (default: 3)" in text
    assert "included; 0: as many as in training (default: 4096)" in text
    assert "{default}" not in text
    assert "(default: None" not in text


def test_several_types_add_up_and_the_draft_model_is_asked_last() -> None:
    assert config("--spec-type", "ngram-mod,grammar").speculation == (GrammarDrafts(), NGramMod())
    both = (NGramMod(), NGramSimple(), DraftModel("draft.gguf"))
    assert config("--spec-type", "draft-simple,ngram-mod,ngram-simple", base=DRAFTED).speculation == both
    flags = [flag for name in ("draft-simple", "ngram-mod", "ngram-simple") for flag in ("--spec-type", name)]
    assert config(*flags, base=DRAFTED).speculation == both
    assert config("--spec-type", "ngram-cache").speculation == (NGramCache(),)


def test_a_draft_model_alone_switches_speculation_on() -> None:
    assert config("--spec-type", "draft-simple", base=DRAFTED) == config(base=DRAFTED)


def test_drafts_that_read_the_target(tiny: Callable[[str], Path]) -> None:
    """The target's own NextN layers, or a file that is used as what it is; options are those of any draft."""
    flags = ("--spec-draft-n-max", "2", "--spec-draft-p-min", "0.5")
    assert config("--spec-type", "draft-mtp", *flags).speculation == (DraftMTP(n_max=2, p_min=0.5),)
    both = config("--spec-type", "draft-mtp,ngram-mod", base=DRAFTED).speculation
    assert both == (NGramMod(), DraftMTP("draft.gguf"))
    for name, kind in (("eagle3", DraftEagle3), ("dflash", DraftDFlash), ("dspark", DraftDSpark)):
        path = str(tiny(name))
        assert config("-md", path, *flags).speculation == (kind(path, n_max=2, p_min=0.5),)
        assert config("-md", path, "--spec-type", kind.kind).speculation == (kind(path),)
    assert config("-md", "smollm2-eagle3", *flags).speculation == (DraftEagle3("smollm2-eagle3", n_max=2, p_min=0.5),)
    assert config("-md", "smollm2-q8_0", *flags).speculation == (DraftModel("smollm2-q8_0", n_max=2, p_min=0.5),)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["-md", "d.gguf", "--spec-type", "none"], "none and -md contradict"),
        (["--spec-type", "none", "--spec-type", "draft-simple"], "none,draft-simple contradicts itself"),
        (["--spec-type", "none,draft-simple"], "contradicts itself"),
        (["--spec-type", "none", "--spec-draft-n-max", "4"], "none and --spec-draft-n-max contradict"),
        (["--spec-type", "draft-simple"], "draft-simple needs a draft model: -md"),
        (["--spec-type", "draft-magic"], "no type 'draft-magic'; known are none, draft-simple, draft-mtp"),
        (["--spec-draft-p-min", "0.5"], "--spec-draft-p-min needs a draft model"),
        (["--spec-type", "draft-dflash"], "draft-dflash needs a draft model: -md"),
        (["--spec-type", "draft-mtp", "--draft-sync", "lazy"], "--draft-sync is of no use to draft-mtp"),
        (["-md", "d.gguf", "--spec-type", "draft-mtp,draft-simple"], "one of these can draft with a model"),
        (["-md", "d.gguf", "--spec-type", "ngram-mod"], "ngram-mod makes no use of the draft model: add draft-simple"),
        (["--spec-ngram-mod-n-max", "4"], "--spec-ngram-mod-n-max needs --spec-type ngram-mod"),
        (["-lcs", "x", "--spec-type", "ngram-mod"], "--lookup-cache-static needs --spec-type ngram-cache"),
        (["--draft-length", "auto"], "--draft-length needs somebody who drafts"),
        (["--draft-length", "auto", "--spec-type", "none"], "none and --draft-length contradict"),
        (["--compare"], "--compare compares with speculation"),
        (["--logprobs", "3"], "--logprobs needs --json"),
        (["-sys", "be brief"], "system message needs --chat"),
        (["--grammar", "a", "--grammar-file", "b"], "--grammar and --grammar-file contradict"),
        (["--json-schema", "{}", "--json-schema-file", "b"], "--json-schema and --json-schema-file contradict"),
        (["--grammar", "a", "--json-schema", "{}"], "--json-schema: grammar and json_schema are given"),
        (["--json-schema", "{"], "--json-schema: json_schema is no JSON"),
        (["--grammar-trigger", "x"], "--grammar-trigger: grammar_triggers need a grammar"),
        (["--grammar", "a", "--grammar-trigger", "pattern:("], "--grammar-trigger: .*no regular expression"),
        (["--logprobs-mode", "best"], "--logprobs-mode: logprobs_mode must be 'raw' or 'sampled'"),
        (["--dry-sequence-breaker", "none", "--dry-sequence-breaker", "a"], "none contradicts the others"),
        (["-f", "missing.txt", "-p", "x"], "not allowed with argument"),
        (["--grammar-file", "missing.gbnf"], "--grammar-file: cannot read 'missing.gbnf': No such file"),
        (["--draft-max", "8"], "--draft-max is no longer an option of llama.cpp: use --spec-draft-n-max or"),
        (["--spec-ngram-size-n", "8"], "use --spec-ngram-simple-size-n"),
        (["--draft", "8"], "use --spec-draft-n-max"),
        (["--draft-min", "8"], "use --spec-draft-n-min"),
        (["--temp", "warm"], "--temp.*invalid float value: 'warm'"),
        (["-l", "17"], "--logit-bias: invalid logit_bias value: '17'"),
        (
            ["--spec-draft-nmax", "8"],
            "unknown argument '--spec-draft-nmax', did you mean --spec-draft-n-max?",
        ),
        (["--color", "pink"], "invalid choice: 'pink'"),
        (["extra"], "unknown argument 'extra'"),
    ],
)
def test_what_cannot_work_is_refused_with_a_reason(args: list[str], message: str) -> None:
    base = TARGET if "-f" in args else PLAIN
    with pytest.raises(UsageError, match=message):
        config(*args, base=base)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--top-p", "1.5"], "--top-p: top_p must be a number from 0 to 1, not 1.5"),
        (["--temp", "nan"], "--temp: temperature must be a finite number"),
        (["-n", "0"], "--predict: max_tokens must be"),
        (["--repeat-penalty", "0"], "--repeat-penalty: penalty_repeat must be above 0"),
        (["--samplers", "magic"], "--samplers: .*there is no sampler 'magic'"),
        (["--stop", ""], "--reverse-prompt: stop holds an empty string"),
        (["-l", "5+1", "-l", "5+2"], "--logit-bias: logit_bias names token 5 twice"),
        (["-md", "d.gguf", "--spec-draft-n-min", "9"], r"--spec-draft-n-min: n_min \(9\) is above n_max"),
        (["-md", "d.gguf", "--spec-draft-p-min", "2"], "--spec-draft-p-min: p_min must be"),
        (
            ["--spec-type", "ngram-mod", "--spec-ngram-mod-n-min", "99"],
            r"--spec-ngram-mod-n-min: n_min \(99\) is above",
        ),
        (["--spec-type", "ngram-map-k", "--spec-ngram-map-k-size-m", "0"], "--spec-ngram-map-k-size-m: size_m must be"),
        (["-md", "d.gguf", "-cd", "1"], "--ctx-size-draft: n_ctx must be at least 16, not 1"),
        (["-md", "d.gguf", "--draft-sync", "eager"], "--draft-sync: sync must be 'lazy' or 'replay'"),
    ],
)
def test_values_out_of_range_are_traced_to_their_flag(args: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        config(*args)


def test_removed_flags_stay_out_of_the_help() -> None:
    assert "--draft-max" not in parse(PLAIN).parser.format_help()


# The prompt


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"a\nb\tc\r", "a\nb\tc\r"),
        (r"\"quoted\" and \'quoted\'", "\"quoted\" and 'quoted'"),
        (r"back\\slash \\n", "back\\slash \\n"),
        (r"\x41\x20\xc3\xa9", "A é"),
        (r"\q \x4 \xzz", r"\q \x4 \xzz"),  # no escapes: kept as they are
        ("ends with \\", "ends with \\"),
        ("häßlich 🦙", "häßlich 🦙"),
    ],
)
def test_escapes_are_llama_cpps(text: str, expected: str) -> None:
    assert unescape(text) == expected
    assert config(base=[*TARGET, "-p", text]).prompt == expected
    assert config("--no-escape", base=[*TARGET, "-p", text]).prompt == text


def test_a_prompt_file_is_taken_as_it_is_less_one_newline(tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_bytes(b'printf("a\\n");\n\n')
    assert config(base=[*TARGET, "-f", str(file)]).prompt == 'printf("a\\n");\n'


def test_bytes_that_are_not_utf8_reach_the_library_as_bytes(tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_bytes(b"caf\xe9")
    assert config(base=[*TARGET, "-f", str(file)]).prompt == b"caf\xe9"
    assert config(base=[*TARGET, "-p", r"caf\xe9"]).prompt == b"caf\xe9"


def test_the_prompt_can_be_piped_in(monkeypatch: pytest.MonkeyPatch) -> None:
    for args in ([], ["-f", "-"]):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"from a pipe\n")))
        assert config(*args, base=TARGET).prompt == "from a pipe"


def test_without_any_prompt_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal())
    with pytest.raises(UsageError, match="there is no prompt"):
        config(base=TARGET)


def test_a_chat_shows_no_template_unless_asked_to() -> None:
    assert config().display_prompt
    assert not config("--chat").display_prompt
    assert config("--chat", "--display-prompt").display_prompt
    assert not config("--no-display-prompt").display_prompt
