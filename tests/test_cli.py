"""The command line as its users meet it: output, tables, JSON, errors, interruptions."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_runs import run, run_json

from pyspec import Engine, SamplingParams, chat
from pyspec._llama import Model
from pyspec.cli import main
from pyspec.speculation import DraftModel

PROMPT = "The lighthouse keeper found a bottle on the beach. Inside it was"


@pytest.fixture
def pair(smollm2_f32: Path, smollm2: Path) -> list[str]:
    """The reference pair, greedy, 48 tokens."""
    models = ["-m", str(smollm2_f32), "-md", str(smollm2)]
    return ["generate", *models, "--temp", "0", "-n", "48", "--ignore-eos", "-p", PROMPT]


@pytest.fixture
def target(smollm2: Path) -> list[str]:
    """A model alone, greedy, a few tokens."""
    return ["generate", "-m", str(smollm2), "--temp", "0", "-n", "12", "-p", PROMPT]


def start(*args: str, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "pyspec", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options
    )


# generate


def test_the_text_is_the_librarys_and_goes_to_standard_output(
    pair: list[str], smollm2_f32: Path, smollm2: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with Engine(smollm2_f32, speculation=DraftModel(smollm2)) as engine:
        expected = engine.generate(PROMPT, SamplingParams(temperature=0, max_tokens=48, ignore_eos=True)).text
    out, err = run(capfd, *pair)
    assert out == f"{PROMPT}{expected}\n"
    assert expected not in err
    out, _ = run(capfd, *pair, "--no-display-prompt")
    assert out == f"{expected}\n"


def test_the_table_says_what_speculation_did(pair: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    stats = run_json(capfd, *pair)["stats"]
    _, err = run(capfd, *pair)
    cells = [re.split(r"\s{2,}", line.strip()) for line in err.splitlines() if line.strip()]
    rows = {row[0]: row[1:] for row in cells}
    assert float(rows["tokens per second"][0]) > 0
    assert rows["tokens"] == ["48"]
    assert rows["rounds"] == [str(stats["rounds"])]
    assert rows["tokens per round"] == [f"{stats['tokens_per_round']:.2f}"]
    assert rows["token 1"][:2] == [
        str(stats["drafted_per_position"][0]),
        str(stats["accepted_per_position"][0]),
    ]
    for part in ("draft", "verify", "sampling", "Python"):
        assert float(rows[part][0]) >= 0
    assert rows["draft"][-1] == str(stats["draft_rows"])
    assert rows["verify"][-1] == str(stats["target_rows"])
    _, err = run(capfd, *pair, "--no-show-timings")
    assert err == ""


def test_json_is_one_document_with_everything(
    pair: list[str], smollm2_f32: Path, smollm2: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    document = run_json(
        capfd, *pair, "-s", "7", "--spec-draft-n-max", "5", "-l", "17-inf", "-c", "1024", "-ctk", "q8_0"
    )
    stats = document["stats"]
    assert document["finish_reason"] == "length"
    assert document["seed"] == 7
    assert len(document["token_ids"]) == len(document["drafted_by"]) == stats["completion_tokens"] == 48
    assert document["drafted_by"].count("draft-simple") == stats["emitted_from_draft"]
    assert stats["completion_tokens"] == 1 + stats["rounds"] + stats["accepted"] - stats["discarded_tokens"]
    with Model(smollm2, vocab_only=True) as model:
        assert document["prompt_token_ids"] == model.vocab.tokenize(PROMPT, parse_special=True)
        assert document["text"].encode() == model.vocab.detokenize(document["token_ids"])
    config = document["config"]
    assert config["target"]["path"] == str(smollm2_f32)
    assert config["draft"]["path"] == str(smollm2)
    assert (config["target"]["n_ctx"], config["target"]["type_k"]) == (1024, "q8_0")
    assert config["draft"]["type_k"] == "f16"
    assert config["draft_options"]["n_max"] == config["n_draft_max"] == 5
    assert document["sampling"]["temperature"] == 0
    assert SamplingParams.from_dict(document["sampling"]).logit_bias == {17: float("-inf")}


def test_engine_options_arrive_in_libllama(target: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    flags = {"-c": 256, "-b": 128, "-ub": 64, "-t": 1, "-tb": 2}
    given = [str(part) for pair in flags.items() for part in pair]
    config = run_json(capfd, *target, *given, "-fa", "on", "-ctk", "q8_0", "-ctv", "q4_0")["config"]["target"]
    assert [config[name] for name in ("n_ctx", "n_batch", "n_ubatch", "n_threads", "n_threads_batch")] == list(
        flags.values()
    )
    assert (config["flash_attn"], config["type_k"], config["type_v"]) == ("on", "q8_0", "q4_0")


def test_compare_shows_both_runs_and_says_whether_the_text_is_the_same(
    pair: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    document = run_json(capfd, *pair, "--compare")
    plain, comparison = document["plain"], document["comparison"]
    assert plain["token_ids"] == document["token_ids"]
    assert plain["stats"]["drafted"] == 0
    assert document["stats"]["accepted"] > 10
    assert comparison["identical"] is True
    assert comparison["first_difference"] is None
    speeds = [run["stats"]["tokens_per_second"] for run in (document, plain)]
    assert comparison["speedup"] == pytest.approx(speeds[0] / speeds[1])

    out, err = run(capfd, *pair, "--compare")
    assert out == f"{PROMPT}{document['text']}\n"  # once, not twice
    assert re.search(r"plain\s+speculative\s+ratio", err)
    assert re.search(r"tokens per second\s+[\d.]+\s+[\d.]+\s+[\d.]+x", err)
    assert "The texts are identical (48 tokens)." in err


def test_compare_draws_one_seed_for_both(smollm2: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """With weights whose rows are the same to the bit in any batch: an unknown seed may fall on any border."""
    both = ["generate", "-m", str(smollm2), "-md", str(smollm2), "-p", "The capital of France is"]
    documents = [run_json(capfd, *both, "--temp", "0.8", "-n", "24", "--compare") for _ in range(2)]
    for document in documents:
        assert document["seed"] == document["plain"]["seed"]
        assert document["token_ids"] == document["plain"]["token_ids"]
    assert documents[0]["seed"] != documents[1]["seed"]


def test_color_marks_the_drafted_tokens_and_changes_nothing_else(
    pair: list[str], smollm2: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    document = run_json(capfd, *pair)
    with Model(smollm2, vocab_only=True) as model:
        pieces = [model.vocab.piece(token, special=False).decode() for token in document["token_ids"]]
    drafted = [by is not None for by in document["drafted_by"]]
    assert any(drafted)
    assert not all(drafted)

    out, _ = run(capfd, *pair, "--color", "--no-display-prompt")
    text, legend = out.rsplit("\n", 2)[:2]
    assert "drafted" in legend
    green = [False] * len(document["text"])
    position, state = 0, False
    for part in re.split(r"(\x1b\[\d+m)", text):
        if part.startswith("\x1b"):
            state = part == "\x1b[32m"
            continue
        green[position : position + len(part)] = [state] * len(part)
        position += len(part)
    assert re.sub(r"\x1b\[\d+m", "", text) == document["text"]
    assert green == [mark for piece, mark in zip(pieces, drafted, strict=True) for _ in piece]
    assert "\x1b" not in run(capfd, *pair, "--color", "auto")[0]  # no terminal


def test_several_speculators_are_told_apart(smollm2: Path, capfd: pytest.CaptureFixture[str]) -> None:
    prompt = "one two three four five six seven eight nine ten. " * 3 + "one two three"
    args = [
        "generate",
        "-m",
        str(smollm2),
        "-md",
        str(smollm2),
        "--temp",
        "0",
        "-n",
        "40",
        "--ignore-eos",
        "-p",
        prompt,
    ]
    args += ["--spec-type", "ngram-simple,draft-simple", "--spec-ngram-simple-size-n", "4"]
    document = run_json(capfd, *args)
    speculators = document["stats"]["speculators"]
    assert document["config"]["speculators"] == ["ngram-simple", "draft-simple"]
    assert speculators["ngram-simple"]["accepted"] > 0
    out, err = run(capfd, *args, "--color")
    for name, color in (("ngram-simple", "\x1b[32m"), ("draft-simple", "\x1b[36m")):
        assert f"{color}■ drafted by {name}" in out
        used = name in document["drafted_by"]
        assert (color in out.rsplit("\n", 2)[0]) == used
        if name in speculators:
            assert re.search(rf"by {name} +{speculators[name]['drafted']} ", err) or len(speculators) == 1


def test_split_characters_keep_their_color(smollm2: Path, capfd: pytest.CaptureFixture[str]) -> None:
    emoji = "🦙🦙🦙🦙🦙🦙🦙🦙"  # several tokens each
    args = ["generate", "-m", str(smollm2), "-md", str(smollm2), "--temp", "0", "-n", "24", "-p", emoji]
    plain, _ = run(capfd, *args)
    colored, _ = run(capfd, *args, "--color")
    assert "🦙" in plain.removeprefix(emoji)
    assert re.sub(r"\x1b\[\d+m", "", colored).rsplit("\n", 2)[0] == plain.rstrip("\n")


def test_a_chat_uses_the_models_template(smollm2: Path, capfd: pytest.CaptureFixture[str]) -> None:
    args = ["generate", "-m", str(smollm2), "--temp", "0", "-n", "24", "--chat", "-p", "Name a colour."]
    document = run_json(capfd, *args, "-sys", "Answer with one word.")
    messages = [
        {"role": "system", "content": "Answer with one word."},
        {"role": "user", "content": "Name a colour."},
    ]
    with Model(smollm2, vocab_only=True) as model:
        prompt = chat.render(model, messages)
        assert document["prompt_token_ids"] == model.vocab.tokenize(prompt, parse_special=True)
    out, _ = run(capfd, *args)
    assert "<|im_start|>" not in out


def test_the_text_ends_where_it_is_told_to(target: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    whole = run_json(capfd, *target)
    word = whole["text"].split()[3]
    document = run_json(capfd, *target, "-r", word)
    assert (document["finish_reason"], document["stop"]) == ("stop", word)
    assert document["text"] == whole["text"].split(word)[0]
    token = whole["token_ids"][4]
    document = run_json(capfd, *target, "--stop-token", str(token))
    assert (document["finish_reason"], document["stop"]) == ("stop", token)


def test_logprobs_are_in_the_json(target: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    document = run_json(capfd, *target, "--logprobs", "3")
    assert len(document["logprobs"]) == 12
    for token, entry in zip(document["token_ids"], document["logprobs"], strict=True):
        assert entry["token"] == entry["top"][0][0] == token  # greedy
        assert entry["logprob"] == entry["top"][0][1] < 0
        assert len(entry["top"]) == 3


def test_a_registered_name_stands_for_its_file(smollm2: Path, capfd: pytest.CaptureFixture[str]) -> None:
    document = run_json(capfd, "generate", "-m", "smollm2", "-md", "smollm2", "-p", "Hi", "-n", "4")
    assert document["config"]["target"]["path"] == document["config"]["draft"]["path"] == str(smollm2)


def test_the_log_is_quiet_unless_asked_for(target: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert run(capfd, *target, "--no-show-timings")[1] == ""
    _, err = run(capfd, *target, "--no-show-timings", "-lv", "3")
    assert "pyspec.llama: " in err
    assert "n_ctx" in err
    assert len(run(capfd, *target, "--no-show-timings", "-v")[1]) > len(err)


# errors


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["generate", "-p", "x"], 2, "the following arguments are required: -m/--model"),
        (["generate", "-m", "missing.gguf", "-p", "x"], 1, "'missing.gguf' is not a file"),
        (["generate", "-m", "smolm2", "-p", "x"], 1, "Did you mean 'smollm2'"),
        (["generate", "-m", "smollm2", "-p", ""], 2, "the prompt is empty"),
        (["generate", "-m", "smollm2", "-p", r"\xff"], 2, "not Unicode text"),
        (["generate", "-m", "smollm2", "-p", "word " * 100, "-c", "64"], 1, "the prompt has 1[0-9]+ tokens"),
        (["generate", "-m", "smollm2", "-p", "x", "--top-p", "2"], 2, "--top-p: top_p must be"),
        (
            ["generate", "-m", "smollm2", "-p", "x", "-b", "0"],
            2,
            "--batch-size: n_batch must be at least 1, not 0",
        ),
        (["generate", "-m", "smollm2", "-p", "x", "-ctk", "q9"], 2, "--cache-type-k: .*q9"),
        (["generate", "-m", "smollm2", "-p", "x", "-l", "99999999+1"], 2, "--logit-bias: .*99999999"),
        (["generate", "-m", "smollm2", "-p", "x", "--grammar", "root ::= ("], 2, "--grammar: "),
        (["generate", "-m", "smollm2", "-md", "gemma3", "-p", "x"], 1, "draft"),
        (["generate", "-m", __file__, "-p", "x"], 1, "not a GGUF file"),
        (["info", "missing.gguf"], 1, "'missing.gguf' is not a file"),
        (["info", "-md", "smollm2"], 2, "-md needs the target as well"),
        (["models", "fetch", "llama"], 2, "no registered model is called 'llama'"),
        (["models", "path", "llama"], 2, "no registered model is called 'llama'"),
        (["frobnicate"], 2, "invalid choice: 'frobnicate'"),
        ([], 2, "the following arguments are required: COMMAND"),
    ],
)
def test_errors_are_one_line(args: list[str], code: int, message: str, capfd: pytest.CaptureFixture[str]) -> None:
    out, err = run(capfd, *args, code=code)
    assert re.match(f"error: .*{message}", err), err
    assert err.count("\n") == 1
    assert out == ""


def test_the_draft_cannot_be_combined_with_none(target: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    _, err = run(capfd, *target, "-md", "smollm2", "--spec-type", "none", code=2)
    assert err.startswith("error: --spec-type none and -md contradict each other")


def test_a_traceback_is_there_for_whoever_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPEC_DEBUG", "1")
    with pytest.raises(OSError, match=r"missing\.gguf"):
        main(["generate", "-m", "missing.gguf", "-p", "x"])


def test_without_rich_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "rich.py").write_text("raise ImportError('no rich here')\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with start("models", "list", env=environment) as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, b"")
    assert err == b"error: the command line needs the package rich: python -m pip install 'pyspec[cli]'\n"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("vocab-only", "it has no weights, only a vocabulary"),
        ("bert", "encoder"),
        ("t5", "encoder"),
        ("t5encoder", "encoder"),
        ("eagle3", "can't be the target"),
        ("dflash", "can't be the target"),
    ],
)
def test_models_that_cannot_write_are_refused_with_a_reason(
    name: str, message: str, tiny: Callable[[str], Path], capfd: pytest.CaptureFixture[str]
) -> None:
    _, err = run(capfd, "generate", "-m", str(tiny(name)), "-p", "x", code=1)
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1


def test_a_model_that_can_not_be_cut_is_drafted_for_too(
    tiny: Callable[[str], Path], capfd: pytest.CaptureFixture[str]
) -> None:
    mamba, draft = str(tiny("mamba")), str(tiny("llama-draft"))
    request = ("-p", "x", "-n", "5", "--ignore-eos", "--temp", "0")
    plain = run_json(capfd, "generate", "-m", mamba, *request)
    drafted = run_json(capfd, "generate", "-m", mamba, "-md", draft, *request)
    assert len(plain["token_ids"]) == 5 and drafted["token_ids"] == plain["token_ids"]


# interruptions


def test_ctrl_c_keeps_the_text_and_shows_the_table(smollm2_f32: Path, smollm2: Path) -> None:
    args = [
        "generate",
        "-m",
        str(smollm2_f32),
        "-md",
        str(smollm2),
        "--temp",
        "0",
        "--ignore-eos",
        "-p",
        PROMPT,
    ]
    with start(*args) as process:
        assert process.stdout is not None
        first = os.read(process.stdout.fileno(), 10)  # the prompt; the text follows
        while len(first) < len(PROMPT) + 20:
            first += os.read(process.stdout.fileno(), 100)
        process.send_signal(signal.SIGINT)
        asked = time.monotonic()
        out, err = process.communicate(timeout=60)
    assert time.monotonic() - asked < 5
    assert process.returncode == 130
    assert (first + out).startswith(PROMPT.encode())
    assert (first + out).endswith(b"\n")
    assert b"tokens per second" in err
    assert b"Traceback" not in err


def test_ctrl_c_before_there_is_any_text_is_no_traceback(smollm2: Path, tmp_path: Path) -> None:
    with start("generate", "-m", str(smollm2), stdin=subprocess.PIPE) as process:
        time.sleep(1.5)  # it waits for a prompt
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, b"", b"error: interrupted\n")


def test_a_reader_that_leaves_is_no_error(smollm2: Path) -> None:
    args = ["generate", "-m", str(smollm2), "--ignore-eos", "-n", "400", "-p", PROMPT]
    with start(*args) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        os.read(process.stdout.fileno(), 5)
        process.stdout.close()
        err = process.stderr.read()
    assert process.returncode == 141
    assert err == b""


# a terminal


def _on_a_terminal(*args: str) -> tuple[int, str]:
    """Exit code of a command whose standard output and error are a terminal, and what it showed there."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
    environment.pop("NO_COLOR", None)
    with subprocess.Popen(
        [sys.executable, "-m", "pyspec", *args],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env=environment,
    ) as process:
        os.close(follower)
        shown = b""
        while select.select([leader], [], [], 60)[0]:
            try:
                shown += os.read(leader, 65536)
            except OSError:  # the other end is closed
                break
        process.wait(60)
    os.close(leader)
    return process.returncode, shown.decode()


def test_a_terminal_sees_bars_while_it_waits_and_colors_where_it_wants(smollm2: Path, pair: list[str]) -> None:
    long_prompt = "The sea was calm and the light turned. " * 90
    code, shown = _on_a_terminal("generate", "-m", str(smollm2), "-p", long_prompt, "-n", "4", "--color", "auto")
    assert code == 0
    assert "reading the prompt" in shown
    # The bar has gone when the text begins: nothing of the text is overwritten.
    assert shown.rindex("reading the prompt") < shown.index("The sea was calm")
    assert "■" in shown

    code, shown = _on_a_terminal(*pair, "--compare")
    assert code == 0
    assert "plain decoding" in shown
    assert "identical" in shown
