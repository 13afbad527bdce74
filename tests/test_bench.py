"""The benchmark command, and the program that looks for differences, on tiny models."""

from __future__ import annotations

import builtins
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runs import run

from pyspec import DraftEagle3, DraftMTP, Engine, InvalidRequest, NGramMod, SamplingParams
from pyspec._llama import Model
from pyspec.bench import lossless
from pyspec.bench.kinds import KINDS, prompts_for, prompts_of
from pyspec.bench.runs import Bench, Plan, numbered
from pyspec.bench.settings import TYPES, Defaults, default_names, read_settings
from pyspec.bench.summary import best_fixed, figures, verdicts

Tiny = Callable[[str], Path]
Bencher = Callable[..., tuple[dict[str, Any], str]]


@pytest.fixture
def bench(tiny: Tiny, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Bencher:
    """Runs the command on the tiny pair; gives the JSON it wrote, and its output."""

    def command(*args: str) -> tuple[dict[str, Any], str]:
        file = tmp_path / "report.json"
        pair = ["-m", str(tiny("llama")), "-md", str(tiny("llama-draft")), "-t", "1"]
        out, _ = run(capfd, "bench", *pair, "-n", "16", "--prompts", "1", "--json", str(file), *args)
        return json.loads(file.read_text(encoding="utf-8")), out

    return command


# -- prompts -----------------------------------------------------------------------------------------------------


def test_there_are_three_prompts_of_every_kind() -> None:
    assert set(KINDS) == {"repetition", "code-edit", "code", "prose", "chat", "translation"}
    for kind in KINDS:
        prompts = prompts_of(kind)
        assert len(prompts) == 3
        assert len({p.request for p in prompts} | {p.opening for p in prompts}) == 6
        for prompt in prompts:
            assert prompt.kind == kind
            assert min(len(prompt.request), len(prompt.opening)) > 40
            assert prompt.opening == prompt.opening.rstrip()  # a token seldom ends in a space


def test_what_is_to_be_copied_is_in_the_prompt() -> None:
    for prompt in prompts_for(["code-edit"]):
        assert len(prompt.request) > 400
        assert prompt.request.count("\n") > 15
    for prompt in prompts_for(["repetition"]):
        line = max(prompt.opening.splitlines(), key=len)
        assert prompt.opening.count(line) >= 2


def test_a_model_with_a_chat_template_gets_messages(smollm2: Path) -> None:
    with Model(str(smollm2), vocab_only=True) as model:
        (prompt,) = prompts_for(["chat"], 1)
        assert prompt.text(model, as_chat=False) == prompt.opening
        text = prompt.text(model, as_chat=True)
    assert prompt.request in text
    assert text.endswith("<|im_start|>assistant\n")


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="'poetry'; there are repetition"):
        prompts_for(["poetry"])


# -- settings ----------------------------------------------------------------------------------------------------

DRAFT = Defaults("draft.gguf")


def test_names_stand_for_speculators() -> None:
    plain, simple, mod, chain, auto = read_settings(
        ["draft-simple:8", "ngram-mod:16", "ngram-simple+draft-simple:auto", "auto"], DRAFT
    )
    assert plain.is_plain
    assert (simple.n_max, simple.draft_length, simple.kind) == (8, "fixed", "draft-simple")
    assert mod.speculators == (NGramMod(n_max=16, n_min=12),)
    assert [type(spec).__name__ for spec in chain.speculators] == ["NGramSimple", "DraftModel"]
    assert (chain.draft_length, chain.n_max, chain.learns) == ("auto", None, True)
    assert (auto.draft_model, auto.learns) == ("draft.gguf", True)


def test_plain_decoding_is_always_there_and_once() -> None:
    assert [s.name for s in read_settings(["auto", "plain", "auto"])] == ["plain", "auto"]


def test_draft_lengths_share_an_engine() -> None:
    two, eight, chain = read_settings(["draft-simple:2", "draft-simple:8", "ngram-mod+draft-simple:8"], DRAFT)[1:]
    assert two.shared_engine == eight.shared_engine != chain.shared_engine


@pytest.mark.parametrize("kind", TYPES)
def test_every_type_has_a_length(kind: str) -> None:
    (setting,) = read_settings([f"{kind}:5"], DRAFT)[1:]
    assert setting.n_max == 5


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("ngram", "there is no speculator 'ngram'"),
        ("ngram-mod:", "must be a number or auto"),
        ("ngram-mod:-1", "must be a number or auto"),
        ("ngram-mod:0", "at least 1"),
        ("ngram-mod+ngram-mod:4", "twice"),
        ("", "there is no speculator ''"),
    ],
)
def test_names_that_mean_nothing_are_refused(name: str, pattern: str) -> None:
    with pytest.raises(InvalidRequest, match=pattern):
        read_settings([name], DRAFT)


def test_a_draft_model_is_needed_where_one_is_named() -> None:
    with pytest.raises(InvalidRequest, match="needs a draft model"):
        read_settings(["draft-simple:4"])
    assert not any("draft-simple" in name for name in default_names(Defaults()))
    assert "draft-simple:4" in default_names(DRAFT)


def test_drafts_that_read_the_target(tiny: Callable[[str], Path]) -> None:
    """By their kind, with what is said of every draft model; a file stands for what it is made for."""
    parameters = {"draft-simple": {"p_min": 0.5, "sync": "lazy"}}
    (own,) = read_settings(["draft-mtp:2"], Defaults(None, parameters))[1:]
    assert own.speculators == (DraftMTP(n_max=2, p_min=0.5),) and own.kind == "draft-mtp"
    defaults = Defaults(str(tiny("eagle3")))
    assert default_names(defaults)[:3] == ["draft-eagle3:2", "draft-eagle3:4", "draft-eagle3:8"]
    assert read_settings(["draft-eagle3"], defaults)[1].speculators == (DraftEagle3(str(tiny("eagle3"))),)
    assert not any(name.startswith("draft-") for name in default_names(Defaults()))


def test_what_would_make_the_next_run_faster_is_refused() -> None:
    parameters = {"ngram-cache": {"lookup_cache_dynamic": "x.bin", "save_dynamic": True}}
    with pytest.raises(InvalidRequest, match="makes the next one faster"):
        read_settings(["ngram-cache"], Defaults(None, parameters))


# -- runs --------------------------------------------------------------------------------------------------------


def test_every_setting_runs_on_every_prompt_in_turn(tiny: Tiny) -> None:
    settings = read_settings(["draft-simple:2", "draft-simple:5", "ngram-cache"], Defaults(str(tiny("llama-draft"))))
    with Model(str(tiny("llama"))) as model:
        prompts = numbered(prompts_for(["prose", "code"], 2), model, as_chat=False)
        plan = Plan(settings, prompts, SamplingParams(temperature=0.0, max_tokens=12), 2, engine={"n_threads": 1})
        with Bench(model, plan) as bench:
            assert bench.engine(settings[1]) is bench.engine(settings[2])
            runs = list(bench.run())
            configs = [bench.engine(setting).config for setting in settings]
    assert len(runs) == plan.n_runs == 4 * 4 * 2
    assert [config.speculators for config in configs] == [(), ("draft-simple",), ("draft-simple",), ("ngram-cache",)]
    for start in range(0, len(runs), 4):
        group = runs[start : start + 4]
        assert group[0].setting == "plain"
        assert {run.setting for run in group} == {setting.name for setting in settings}
        assert len({(run.kind, run.prompt, run.repetition) for run in group}) == 1
    firsts = [runs[start + 1].setting for start in range(0, len(runs), 4)]
    assert len(set(firsts)) == 3  # nobody is always the one right behind plain decoding
    plain = {(r.kind, r.prompt, r.repetition): r.tokens_per_second for r in runs if r.setting == "plain"}
    for one in runs:
        assert one.ratio == pytest.approx(one.tokens_per_second / plain[one.kind, one.prompt, one.repetition])
        limit = {"draft-simple:2": 2, "draft-simple:5": 5, "ngram-cache": 8, "plain": 0}[one.setting]
        assert len(one.drafted_per_position) <= limit
        assert one.tokens == 1 + one.rounds + one.accepted
        assert one.differs_at is None
    # nothing is carried from one repetition to the next
    counts = [[(r.setting, r.kind, r.prompt, r.rounds, r.drafted, r.accepted) for r in runs if r.repetition == n]
              for n in (0, 1)]  # fmt: skip
    assert sorted(counts[0]) == sorted(counts[1])


def test_figures_are_medians_and_sums(tiny: Tiny) -> None:
    settings = read_settings(["ngram-cache"])
    with Model(str(tiny("llama"))) as model:
        prompts = numbered(prompts_for(["prose", "code"], 1), model, as_chat=False)
        plan = Plan(settings, prompts, SamplingParams(temperature=0.0, max_tokens=8), 3, engine={"n_threads": 1})
        with Bench(model, plan) as bench:
            runs = list(bench.run())
    table = figures(runs, settings)
    assert [(e.kind, e.setting) for e in table] == [
        (kind, name) for kind in ("prose", "code", "all") for name in ("plain", "ngram-cache")
    ]
    prose = next(e for e in table if (e.kind, e.setting) == ("prose", "ngram-cache"))
    mine = [r for r in runs if (r.kind, r.setting) == ("prose", "ngram-cache")]
    assert prose.tokens_per_second == pytest.approx(sorted(r.tokens_per_second for r in mine)[1])
    assert prose.ratio == pytest.approx(sorted(r.ratio or 0 for r in mine)[1])
    assert prose.drafted == sum(r.drafted for r in mine)
    assert (prose.runs, prose.same) == (3, 3)
    code, both = table[3], table[5]
    assert both.ratio == pytest.approx(((prose.ratio or 0) * (code.ratio or 0)) ** 0.5)
    (verdict,) = verdicts(table, settings)
    assert verdict.ratio == pytest.approx(both.ratio)
    assert verdict.worst_ratio == min(prose.ratio or 0, code.ratio or 0)
    assert best_fixed([verdict], settings) == verdict


def test_a_plan_without_plain_decoding_is_refused(tiny: Tiny) -> None:
    settings = read_settings(["ngram-cache"])[1:]
    with Model(str(tiny("llama"))) as model, pytest.raises(InvalidRequest, match="plain decoding is missing"):
        Bench(model, Plan(settings, [("prose", 0, "hello")], SamplingParams(max_tokens=4)))


# -- the command -------------------------------------------------------------------------------------------------


def test_the_report_has_everything(bench: Bencher, tmp_path: Path) -> None:
    plots = [tmp_path / "a.png", tmp_path / "a.svg"]
    document, out = bench("--kinds", "prose,repetition", "--repetitions", "2", "--plot", str(plots[0]))
    ngrams = [name for name in TYPES if name.startswith("ngram")]
    names = ["plain", "draft-simple:2", "draft-simple:4", "draft-simple:8", *ngrams, "auto"]
    assert document["settings"] == names
    assert document["learning"] == ["auto"]
    assert len(document["runs"]) == len(names) * 2 * 2
    assert {run["kind"] for run in document["runs"]} == {"prose", "repetition"}
    assert {entry["kind"] for entry in document["figures"]} == {"prose", "repetition", "all"}
    for entry in document["figures"]:
        assert len(entry["acceptance_per_position"]) == len(entry["drafted_per_position"])
        assert entry["same"] == entry["runs"]
        assert entry["tokens_per_second"] > 0
        assert 0 <= entry["overhead"] <= 1
        assert (entry["setting"] == "plain") <= (entry["drafted"] == 0)
    assert document["learned"]["auto"]["rounds"] > 0
    assert document["machine"]["llama_version"]
    assert document["engines"]["draft-simple:2"]["speculators"] == ["draft-simple"]
    assert document["synthetic"] is None
    assert plots[0].read_bytes().startswith(b"\x89PNG")
    # a ratio never stands alone
    for name in names:
        rows = [line.split() for line in out.splitlines() if line.startswith(f"{name} ") and " learns " not in line]
        assert len(rows) == 3
        for row in rows:
            assert float(row[1]) > 0
            assert float(row[2]) > 0
    assert "auto learns from one request to the next" in out
    assert "best fixed setting:" in out
    bench("--kinds", "prose", "--speculators", "ngram-cache", "--repetitions", "1", "--plot", str(plots[1]))
    assert b"<svg" in plots[1].read_bytes()


def test_a_second_run_starts_from_nothing(bench: Bencher) -> None:
    def counts(document: dict[str, Any]) -> list[tuple[Any, ...]]:
        return [(r["setting"], r["tokens"], r["rounds"], r["drafted"], r["accepted"]) for r in document["runs"]]

    speculators = "draft-simple:3,ngram-mod:4,ngram-cache,ngram-map-k+draft-simple:2"
    args = ["--kinds", "repetition", "--speculators", speculators, "--repetitions", "2"]
    assert counts(bench(*args)[0]) == counts(bench(*args)[0])


def test_the_types_options_arrive(bench: Bencher) -> None:
    args = ["--kinds", "prose", "--speculators", "draft-simple:5", "--spec-draft-p-min", "0.25", "-c", "300"]
    engine = bench(*args, "--repetitions", "1")[0]["engines"]["draft-simple:5"]
    assert engine["draft_options"]["p_min"] == 0.25
    assert engine["target"]["n_ctx"] == 300
    assert engine["target"]["n_threads"] == 1


def test_synthetic_acceptance_says_so(bench: Bencher) -> None:
    args = ["--kinds", "prose", "--repetitions", "2", "-n", "80", "--ignore-eos", "--synth-rates", "1,1,0"]
    document, out = bench(*args)
    assert document["settings"] == ["plain", "draft-simple:3"]
    (entry,) = (e for e in document["figures"] if e["setting"] == "draft-simple:3")
    assert entry["acceptance_per_position"] == [1, 1, 0]
    assert document["synthetic"]["rates"] == [1, 1, 0]
    assert "the texts are not the model's" in out
    assert document["partings"] == []
    document, _ = bench("--kinds", "prose", "--repetitions", "1", "--ignore-eos", "--spec-synth-len", "2.5")
    assert document["settings"] == ["plain", "draft-simple:2", "draft-simple:4", "draft-simple:8"]


def test_sampled_texts_are_compared_too(bench: Bencher) -> None:
    args = ["--kinds", "prose", "--repetitions", "2", "--speculators", "ngram-cache", "--temp", "1.0", "-s", "3"]
    document, _ = bench(*args)
    assert {entry["same"] for entry in document["figures"]} == {2}


@pytest.mark.parametrize(
    ("args", "pattern"),
    [
        (["--kinds", "poetry"], "--kinds: there is no kind of prompt 'poetry'"),
        (["--speculators", "ngram"], "--speculators: there is no speculator 'ngram'"),
        (["--plot", "x.pdf"], r"--plot: a plot is a .png or .svg file"),
        (["--plot", "nowhere/x.png"], "--plot: there is no directory 'nowhere'"),
        (["--json", "nowhere/x.json"], "--json: there is no directory 'nowhere'"),
        (["--repetitions", "0"], "must be at least 1, not 0"),
        (["--spec-ngram-mod-n-min", "99"], "--spec-ngram-mod-n-min: n_min"),
        (["--synth-rates", "0.5,0.6"], "--spec-synth-rates: .*above"),
        (["--synth-len", "nan"], "--spec-synth-len: length must be a number"),
        (["--synth-len", "2"], "needs somebody who drafts"),
        (["--synth-len", "2", "--synth-rates", "0.5"], "not allowed with"),
        (["--temp", "nan"], "--temp"),
    ],
)
def test_what_cannot_work_is_refused_before_a_model_is_loaded(
    args: list[str], pattern: str, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _, err = run(capfd, "bench", "-m", "there-is-none.gguf", *args, code=2)
    assert re.search(pattern, err), err


def test_a_plot_without_matplotlib_says_what_is_missing(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == "matplotlib":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    _, err = run(capfd, "bench", "-m", "there-is-none.gguf", "--plot", str(tmp_path / "x.png"), code=2)
    assert "pip install 'pyspec[bench]'" in err


# -- looking for differences -------------------------------------------------------------------------------------

PROMPTS = ["the first prompt of two", "and the second"]


def test_the_same_token_ids_are_reported_as_such(
    tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "reports" / "lossless.json"
    pair = ["-m", str(tiny("llama")), "-md", str(tiny("llama-draft"))]
    code = lossless.main([*pair, "--base", "--prompts", "2", "--tokens", "24", "--lengths", "1,4", "--json", str(file)])
    assert code == 0
    assert "same token ids: 4, near ties: 0, faults: 0" in capsys.readouterr().out
    report = json.loads(file.read_text(encoding="utf-8"))
    assert (report["n_compared"], report["divergences"]) == (4, [])


def test_another_text_without_a_near_tie_is_a_fault(tiny: Tiny) -> None:
    """Forced: without a seed, plain and speculative decoding draw different tokens."""
    report = lossless.compare(
        tiny("llama"),
        tiny("llama-draft"),
        n_max=[2],
        n_tokens=24,
        prompts=PROMPTS,
        params=SamplingParams(temperature=3.0, top_k=0, top_p=1.0, min_p=0.0, seed=-1),
        n_threads=1,
    )
    assert len(report.divergences) == 2
    assert report.faults


def test_what_rounding_can_turn_around_is_a_near_tie(tiny: Tiny) -> None:
    params = SamplingParams(temperature=0.0)
    prompt, before = [10, 20, 30], [40, 50]
    with Model(str(tiny("llama"))) as model:
        row = lossless.row_after(model, [*prompt, *before])
        second, first = (int(i) for i in np.argsort(row)[-2:])
        gap = float(row[first] - row[second])
        assert lossless.can_flip(model, params, prompt, before, row, to=second, by=0.51 * gap)
        assert not lossless.can_flip(model, params, prompt, before, row, to=second, by=0.49 * gap)
        assert not lossless.can_flip(model, params, prompt, before, row, to=int(np.argmin(row)), by=gap)


def test_the_gap_is_that_of_the_two_best_logits(tiny: Tiny) -> None:
    with Model(str(tiny("llama"))) as model, Engine(model, speculation=None, n_threads=1) as engine:
        result = engine.generate([10, 20, 30], SamplingParams(temperature=0.0, max_tokens=1, logprobs=2))
        assert result.logprobs is not None
        (first, second) = result.logprobs[0].top
        assert lossless.gap_after(model, [10, 20, 30]) == pytest.approx(first[1] - second[1], abs=1e-4)
        assert lossless.row_difference(model, list(range(40))) < 0.01


def test_where_two_texts_part() -> None:
    assert lossless.first_difference([1, 2, 3], [1, 2, 3]) is None
    assert lossless.first_difference([1, 2, 3], [1, 5, 3]) == 1
    assert lossless.first_difference([1, 2, 3], [1, 2]) == 2


def test_a_difference_shows_in_the_benchmark(tiny: Tiny) -> None:
    """Forced: each engine draws other tokens."""
    settings = read_settings(["ngram-cache"])
    sampling = SamplingParams(temperature=2.0, max_tokens=12, seed=-1)
    with Model(str(tiny("llama"))) as model:
        plan = Plan(settings, [("prose", 0, "some text")], sampling, 2, engine={"n_threads": 1})
        with Bench(model, plan) as bench:
            runs = list(bench.run())
            partings = bench.partings
    assert partings
    assert {parting.setting for parting in partings} == {"ngram-cache"}
    assert not all(parting.near_tie for parting in partings)
    table = figures(runs, settings)
    assert table[1].same < table[1].runs
