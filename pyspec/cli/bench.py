"""``pyspec bench``: is it faster? Plain decoding beside speculation, by kind of prompt."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspec._llama import Model
from pyspec.bench.kinds import KINDS, prompts_for
from pyspec.bench.plot import check_plot, plot
from pyspec.bench.report import Report
from pyspec.bench.runs import Bench, Plan, Run, numbered
from pyspec.bench.settings import Defaults, Setting, default_names, read_settings
from pyspec.bench.tables import tables
from pyspec.cli import options
from pyspec.cli.console import Bars, FetchDisplay, error_console, load_progress, output_console, show_log
from pyspec.cli.parser import Option, Parser, UsageError, add_options, count, given, with_flag
from pyspec.cli.spec_options import DRAFT_SIMPLE, NGRAM_TYPES
from pyspec.cli.synthetic import add_synthetic_options, read_synthetic
from pyspec.engine.loading import load_model
from pyspec.errors import InvalidRequest
from pyspec.models import resolve
from pyspec.sampling import SamplingParams
from pyspec.speculation import DraftMTP, Synthetic

_DESCRIPTION = """\
Measures what speculation is worth: for each kind of prompt plain decoding beside every speculator and beside auto,
in turn, in one run. Shows speeds and their ratio to plain decoding, what was drafted and accepted, and whether the
texts are the same.

  pyspec bench -m smollm2-f32 -md smollm2
  pyspec bench -m smollm2 --kinds repetition,code-edit --speculators ngram-mod,ngram-simple:16,auto
  pyspec bench -m smollm2-f32 -md smollm2 --speculators draft-simple:3 --synth-rates 0.8,0.6,0.4

A speculator is a type of --spec-type, with its longest draft behind a colon, or ':auto' for drafts as long as pays;
several, in the order they are asked, are joined by '+': ngram-mod+draft-simple:4. 'auto' is what the engine does if
nothing is said.
"""

_TEMPERATURE = (
    Option(("--temp", "--temperature"), "temperature", float, "N",
           "temperature; 0 takes the likeliest token each time (default: 0)"),
    Option(("-s", "--seed"), "seed", int, "SEED",
           "start of the random numbers, with a temperature (default: 1)"),
    Option(("--ignore-eos",), "ignore_eos", str, "",
           "go on after the end of the text, so that all have --tokens tokens; what follows tends to repeat itself",
           const=True),
)  # fmt: skip


@dataclass(frozen=True)
class Config:
    """Everything ``pyspec bench`` was asked for."""

    model: str
    draft_model: str | None
    engine: dict[str, Any]
    loading: dict[str, Any]
    parameters: dict[str, dict[str, Any]]
    names: list[str] | None
    kinds: list[str]
    n_prompts: int | None
    chat: bool | None
    sampling: SamplingParams
    repetitions: int
    synthetic: Synthetic | None
    json: Path | None
    plot: Path | None
    verbosity: int


def add_parser(commands: argparse._SubParsersAction[Parser]) -> None:
    """Adds ``pyspec bench``."""
    parser = commands.add_parser(
        "bench",
        help="measure what speculation is worth, by kind of prompt",
        usage="pyspec bench -m FNAME [-md FNAME] [--kinds KIND,...] [--speculators NAME,...] [options]",
        description=_DESCRIPTION,
    )
    options.add_engine_options(parser)
    _add_bench_options(parser)
    for spec in (DRAFT_SIMPLE, *NGRAM_TYPES):
        add_options(parser.add_argument_group(spec.name), spec.name, spec.options, spec.make)
    parser.set_defaults(run=_run, parser=parser)


# fmt: off
def _add_bench_options(parser: Parser) -> None:
    group = parser.add_argument_group("benchmark")
    group.add_argument(
        "-md", "--spec-draft-model", "--model-draft", dest="draft_model", metavar="FNAME",
        help="draft model: GGUF file or name")
    group.add_argument(
        "--speculators", type=_names, metavar="NAME,...",
        help="what to compare with plain decoding (default: the draft model's kind, as draft-simple, with lengths 2, 4 "
        "and 8 where there is one, all n-gram types, auto)")
    group.add_argument(
        "--kinds", type=_names, default=list(KINDS), metavar="KIND,...",
        help=f"kinds of prompts (default: {','.join(KINDS)})")
    group.add_argument(
        "--prompts", type=count, metavar="N", help="so many prompts of each kind (default: all three)")
    group.add_argument(
        "-n", "--tokens", type=count, default=128, metavar="N", help="tokens to generate (default: 128)")
    group.add_argument(
        "--repetitions", type=count, default=3, metavar="N", help="run everything so many times (default: 3)")
    group.add_argument(
        "--chat", action=argparse.BooleanOptionalAction,
        help="prompts as messages in the model's chat template, or as beginnings of texts (default: messages if "
        "there is a template)")
    add_options(group, "sampling", _TEMPERATURE, SamplingParams)
    add_synthetic_options(group, short=True)
    output = parser.add_argument_group("output")
    output.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured to this file")
    output.add_argument(
        "--plot", type=Path, metavar="FILE",
        help="draw speed-up by draft length and acceptance by position: .png or .svg; needs matplotlib")
    output.add_argument(
        "-lv", "--verbosity", type=int, default=0, metavar="N",
        help="show libllama's log: 0 nothing, 1 errors, 2 warnings, 3 information, 4 all (default: 0)")
# fmt: on


def read_config(args: argparse.Namespace) -> Config:
    """The configuration the arguments stand for.

    Raises:
        UsageError: for arguments that contradict each other, or a value that is refused.
    """
    engine = given(args, "engine")
    loading = {name: value for name, value in engine.items() if name in ("n_gpu_layers", "use_extra_bufts")}
    try:
        prompts_for(args.kinds)
        if args.plot is not None:
            check_plot(args.plot)
    except InvalidRequest as error:
        raise UsageError(f"--{error.name}: {error}") from error
    if args.json is not None and not args.json.parent.is_dir():
        raise UsageError(f"--json: there is no directory {str(args.json.parent)!r}")
    try:
        sampling = SamplingParams(
            **{"temperature": 0.0, "seed": 1, "max_tokens": args.tokens, **given(args, "sampling")}
        )
    except InvalidRequest as error:
        raise UsageError(with_flag(error, _TEMPERATURE)) from error
    sampling = sampling.replace(seed=sampling.resolve_seed())  # the same random numbers for all
    config = Config(
        model=args.model,
        draft_model=args.draft_model,
        engine=engine,
        loading=loading,
        parameters={spec.name: given(args, spec.name) for spec in (DRAFT_SIMPLE, *NGRAM_TYPES)},
        names=args.speculators,
        kinds=list(dict.fromkeys(args.kinds)),
        n_prompts=args.prompts,
        chat=args.chat,
        sampling=sampling,
        repetitions=args.repetitions,
        synthetic=read_synthetic(args),
        json=args.json,
        plot=args.plot,
        verbosity=args.verbosity,
    )
    _settings(config)
    return config


def _settings(config: Config) -> list[Setting]:
    for spec in (DRAFT_SIMPLE, *NGRAM_TYPES):
        path = {"path": config.draft_model or ""} if spec is DRAFT_SIMPLE else {}
        try:
            spec.make(**path, **config.parameters[spec.name])
        except InvalidRequest as error:
            raise UsageError(with_flag(error, spec.options)) from error
    defaults = Defaults(config.draft_model, config.parameters)
    names = config.names or default_names(defaults, config.synthetic)
    try:
        settings = read_settings(names, defaults)
    except InvalidRequest as error:
        raise UsageError(f"--speculators: {error}") from error
    if len(settings) == 1 and config.synthetic is not None:
        raise UsageError("synthetic acceptance needs somebody who drafts: -md FNAME, or --speculators NAME,...")
    return settings


def _run(args: argparse.Namespace) -> int:
    config = read_config(args)
    errors = error_console()
    show_log(errors, config.verbosity)
    with FetchDisplay(errors) as display:
        draft = None if config.draft_model is None else str(resolve(config.draft_model, display))
        config = replace(config, model=str(resolve(config.model, display)), draft_model=draft)
    with Bars(errors) as bars:
        report = measure(config, bars)
    if config.json is not None:
        config.json.write_text(json.dumps(report.to_dict(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if config.plot is not None:
        plot(report, config.plot)
    output_console().print(tables(report))
    return 0


def measure(config: Config, bars: Bars) -> Report:
    """Runs the benchmark; both models are files already."""
    loading = load_progress(bars)
    drafts = [spec for setting in _settings(config) for spec in setting.speculators if isinstance(spec, DraftMTP)]
    own_nextn = any(draft.path is None for draft in drafts)
    with load_model(config.model, "target", loading, load_mtp=own_nextn, **config.loading) as model:
        plan = _plan(config, model)
        with Bench(model, plan, loading) as bench:
            bars.clear()
            runs: list[Run] = []
            for run in bench.run():
                runs.append(run)
                note = f"{run.kind}, {run.setting}: {run.tokens_per_second:.0f} tokens/s"
                bars.update("measuring", len(runs), plan.n_runs, note)
            return Report.of(bench, runs)


def _plan(config: Config, model: Model) -> Plan:
    as_chat = model.chat_template() is not None if config.chat is None else config.chat
    prompts = prompts_for(config.kinds, config.n_prompts)
    return Plan(
        settings=_settings(config),
        prompts=numbered(prompts, model, as_chat=as_chat),
        sampling=config.sampling,
        repetitions=config.repetitions,
        synthetic=config.synthetic,
        engine=config.engine,
    )


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
