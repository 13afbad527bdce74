"""``pyspec generate``: text as it comes, then what speculation did for it."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace

from pyspec import chat
from pyspec.cli import options, report
from pyspec.cli.config import Generate, read_config
from pyspec.cli.console import Bars, FetchDisplay, error_console, load_progress, prompt_progress, show_log
from pyspec.cli.output import ColorWriter, CountingWriter, TextWriter, Writer
from pyspec.cli.parser import Parser, terminal_has_color
from pyspec.cli.spec_options import add_speculation_options
from pyspec.cli.synthetic import add_synthetic_options
from pyspec.engine import Engine, Result
from pyspec.models import resolve
from pyspec.sampling import SamplingParams
from pyspec.speculation import DraftModel
from pyspec.speculation.hidden_config import HiddenStateDraft

INTERRUPTED = 130

_DESCRIPTION = """\
Writes text, and reports what speculation did for it. Options have llama.cpp's names and defaults.

  pyspec generate -m smollm2-f32 -md smollm2 -p "Once upon a time" -n 100 --compare
"""


def add_parser(commands: argparse._SubParsersAction[Parser]) -> None:
    """Adds ``pyspec generate``."""
    parser = commands.add_parser(
        "generate",
        help="write text, with speculative decoding",
        usage="pyspec generate -m FNAME [-md FNAME] [-p TEXT | -f FNAME] [options]",
        description=_DESCRIPTION,
    )
    options.add_engine_options(parser)
    _add_prompt_options(parser)
    add_speculation_options(parser)
    add_synthetic_options(parser.add_argument_group("synthetic acceptance"))
    options.add_sampling_options(parser)
    _add_output_options(parser)
    parser.set_defaults(run=_run, parser=parser, escape=True, show_timings=True)


# fmt: off
def _add_prompt_options(parser: Parser) -> None:
    group = parser.add_argument_group("prompt")
    source = group.add_mutually_exclusive_group()
    source.add_argument("-p", "--prompt", metavar="TEXT", help="the prompt")
    source.add_argument(
        "-f", "--file", metavar="FNAME",
        help="file with the prompt, '-' for standard input (taken as it is, less one newline at its end)")
    group.add_argument(
        "--chat", action="store_true", help="the prompt is a message: put it into the model's chat template")
    system = group.add_mutually_exclusive_group()
    system.add_argument("-sys", "--system-prompt", metavar="TEXT", help="system message, with --chat")
    system.add_argument("-sysf", "--system-prompt-file", metavar="FNAME", help="file with the system message")
    group.add_argument(
        "-e", "--escape", action=argparse.BooleanOptionalAction,
        help=r"replace \n, \t, \", \\, \xHH in texts given as arguments (default: yes)")


def _add_output_options(parser: Parser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument(
        "--compare", action="store_true",
        help="decode plainly first, with the same settings, and show both and the ratio")
    group.add_argument(
        "-co", "--color", nargs="?", choices=("on", "off", "auto"), const="on", default="off",
        help="show which tokens were drafted (default: off; --color alone: on)")
    group.add_argument(
        "--display-prompt", action=argparse.BooleanOptionalAction, default=None,
        help="print the prompt before the text (default: yes, but not with --chat)")
    group.add_argument(
        "--show-timings", action=argparse.BooleanOptionalAction,
        help="show the tables at the end (default: yes)")
    group.add_argument(
        "--json", action="store_true", help="print one JSON document at the end, and nothing else")
    group.add_argument(
        "-lv", "--verbosity", "--log-verbosity", type=int, default=0, metavar="N",
        help="show libllama's log: 0 nothing, 1 errors, 2 warnings, 3 information, 4 all (default: 0)")
    group.add_argument(
        "-v", "--verbose", "--log-verbose", dest="verbosity", action="store_const", const=4,
        help="show all of libllama's log")
# fmt: on


def _run(args: argparse.Namespace) -> int:
    config = read_config(args)
    console = error_console()
    show_log(console, config.verbosity)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a terminal that knows no emoji must not end the text
    with FetchDisplay(console) as display:
        config = _with_files(config, display)
    with Bars(console) as bars, _open(config, bars) as engine:
        bars.clear()
        prompt = _prompt(config, engine)
        sampling, plain = config.sampling, None
        if config.compare:
            plain = _generate(engine, prompt, sampling, bars, _counter(bars, sampling, "plain decoding"), plain=True)
            if plain.finish_reason == "cancelled":
                return INTERRUPTED
            sampling = sampling.replace(seed=plain.seed)  # the same random numbers for both
        result = _generate(engine, prompt, sampling, bars, _writer(config, engine, bars))
    if config.json:
        document = report.as_json(result, sampling, engine.config, plain)
        print(json.dumps(document, indent=2, ensure_ascii=False))
    elif config.show_timings:
        console.print(report.tables(result, engine.config, sampling, plain))
    return INTERRUPTED if result.finish_reason == "cancelled" else 0


def _with_files(config: Generate, display: FetchDisplay) -> Generate:
    """The configuration with files in the place of registered names."""
    config = replace(config, model=str(resolve(config.model, display)))
    if isinstance(config.speculation, tuple):
        speculators = tuple(
            replace(spec, path=str(resolve(spec.path, display)))
            if isinstance(spec, DraftModel | HiddenStateDraft) and spec.path is not None
            else spec
            for spec in config.speculation
        )
        config = replace(config, speculation=speculators)
    return config


def _open(config: Generate, bars: Bars) -> Engine:
    return Engine(
        config.model,
        speculation=config.speculation,
        load_progress=load_progress(bars),
        prefix_reuse=False,  # where two runs are compared, both read the prompt
        **config.engine,
    )


def _generate(
    engine: Engine,
    prompt: str | bytes,
    sampling: SamplingParams,
    bars: Bars,
    writer: Writer,
    plain: bool = False,
) -> Result:
    """Runs the request; Ctrl-C ends the text (as cancelled), not the program."""
    text = prompt if isinstance(prompt, str) else prompt.decode("utf-8", "replace")
    generation = engine.stream(
        prompt, sampling, n_draft_max=0 if plain else None, prompt_progress=prompt_progress(bars)
    )
    try:
        writer.start(text)
        try:
            for chunk in generation:
                writer.write(chunk)
        except KeyboardInterrupt:
            generation.cancel()
            for chunk in generation:
                writer.write(chunk)
    finally:
        writer.end()
    return generation.result()


def _counter(bars: Bars, sampling: SamplingParams, name: str) -> Writer:
    return CountingWriter(bars, name, sampling.max_tokens)


def _writer(config: Generate, engine: Engine, bars: Bars) -> Writer:
    if config.json:
        return _counter(bars, config.sampling, "decoding")
    if config.color == "on" or (config.color == "auto" and terminal_has_color()):
        vocab = engine.model.vocab
        return ColorWriter(
            bars,
            display_prompt=config.display_prompt,
            piece=lambda token: vocab.piece(token, special=False),
            speculators=engine.config.speculators,
        )
    return TextWriter(bars, display_prompt=config.display_prompt)


def _prompt(config: Generate, engine: Engine) -> str | bytes:
    """The prompt as the model gets it: in the chat template, where that was asked for."""
    if not config.chat:
        return config.prompt
    text = config.prompt if isinstance(config.prompt, str) else config.prompt.decode("utf-8", "replace")
    messages = [{"role": "user", "content": text}]
    if config.system is not None:
        messages.insert(0, {"role": "system", "content": config.system})
    return chat.render(engine.model, messages)
