"""``pyspec draft-vocab``: lists of the tokens worth drafting: making, looking at and joining them."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.table import Table

from pyspec._llama import Model
from pyspec.bench.kinds import prompts_for
from pyspec.cli.console import Bars, FetchDisplay, error_console, output_console
from pyspec.cli.parser import Parser, UsageError
from pyspec.cli.parser import count as positive
from pyspec.engine import Engine
from pyspec.errors import InvalidRequest
from pyspec.gguf_header import read_gguf
from pyspec.models import resolve
from pyspec.sampling import SamplingParams
from pyspec.speculation.vocab_list import VocabList, read_list, write_list
from pyspec.vocab_lists.build import build, header, merge
from pyspec.vocab_lists.corpus import find
from pyspec.vocab_lists.count import Counts, Numbers, count
from pyspec.vocab_lists.inspection import Inspection, inspect

_DESCRIPTION = """\
Lists of the tokens a draft model may draft. With one, a draft step computes only these rows of the output head; the
target still judges every draft over its whole vocabulary, so the text stays the same.

  pyspec draft-vocab build -m smollm2 -o words.txt notes/ 'src/**/*.py' talks.jsonl.gz
  pyspec draft-vocab build -m gemma3 --from-model --size 16384 -o words.txt
  pyspec draft-vocab inspect words.txt -m smollm2 other-texts/
  pyspec draft-vocab merge english.txt code.txt -o both.txt
  pyspec generate -m smollm2-f32 -md smollm2 --spec-draft-vocab words.txt -p "Once upon a time"
"""


# fmt: off
def add_parser(commands: argparse._SubParsersAction[Parser]) -> None:
    """Adds ``pyspec draft-vocab`` and its three commands."""
    parser = commands.add_parser(
        "draft-vocab", help="make and inspect lists of the tokens worth drafting", description=_DESCRIPTION)
    actions = parser.add_subparsers(title="commands", dest="action", required=True, metavar="COMMAND")

    making = actions.add_parser("build", help="count the tokens of texts and list the most frequent")
    _add_model(making)
    _add_corpus(making, "*")
    making.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="the list")
    making.add_argument(
        "--coverage", type=float, default=0.998, metavar="P",
        help="share of the texts' tokens that shall be in the list (default: %(default)s)")
    making.add_argument("--size", type=int, metavar="N", help="list so many tokens, whatever they cover")
    making.add_argument("--all-control", action="store_true", help="list placeholders like <unused17> too")
    making.add_argument(
        "--from-model", action="store_true",
        help="count what the model itself writes: its answers to the prompts of 'pyspec bench', or to each line of the "
        "corpus")
    making.add_argument(
        "-n", "--tokens", type=positive, default=256, metavar="N",
        help="with --from-model: tokens of each answer (default: %(default)s)")
    making.add_argument(
        "--temp", "--temperature", dest="temperature", type=float, default=0.8, metavar="N",
        help="with --from-model: its temperature (default: %(default)s)")
    making.set_defaults(run=_build, parser=making)

    looking = actions.add_parser("inspect", help="show what a list covers")
    looking.add_argument("list", metavar="FILE")
    _add_model(looking)
    _add_corpus(looking, "*")
    looking.add_argument("--json", action="store_true", help="print JSON")
    looking.set_defaults(run=_inspect, parser=looking)

    joining = actions.add_parser("merge", help="join lists")
    joining.add_argument("lists", nargs="+", metavar="FILE")
    _add_model(joining)
    joining.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="the joined list")
    joining.set_defaults(run=_merge, parser=joining)


def _add_model(parser: Parser) -> None:
    parser.add_argument(
        "-m", "--model", required=True, metavar="FNAME", help="model whose tokens they are: GGUF file or name")


def _add_corpus(parser: Parser, nargs: str) -> None:
    parser.add_argument(
        "corpus", nargs=nargs, metavar="TEXT",
        help="files, folders and patterns: text, lines of JSON (.jsonl), either packed with gzip (.gz)")
    parser.add_argument(
        "--field", dest="fields", action="append", metavar="NAME",
        help="field of a line of JSON that holds text, 'a.b' for one inside another; may be repeated (default: text)")
    parser.add_argument(
        "-t", "--threads", type=positive, metavar="N", help="processes that count (default: one per core)")
# fmt: on


def _build(args: argparse.Namespace) -> int:
    if not args.output.absolute().parent.is_dir():
        raise UsageError(f"-o: there is no folder {str(args.output.absolute().parent)!r}")
    if not args.corpus and not args.from_model:
        raise UsageError("texts to count are missing: files, folders or patterns, or --from-model")
    path = _model(args.model)
    with Bars(error_console()) as bars:
        counts = _written(args, path, bars) if args.from_model else _counted(args, path, bars)
    with Model(path, vocab_only=True) as model:
        try:
            built = build(
                counts.by_token, model.vocab, coverage=args.coverage, size=args.size, all_control=args.all_control
            )
        except InvalidRequest as error:
            raise UsageError(f"--{error.name}: {error}" if error.name != "corpus" else str(error)) from error
        corpus = [os.path.basename(name.rstrip(os.sep)) for name in args.corpus] or ["the model's own answers"]
        name = model.metadata.get("general.name") or model.arch
        write_list(
            args.output,
            built.ids,
            header(model.vocab, name, corpus=corpus, n_tokens=counts.total, built=built),
        )
        n_vocab = model.vocab.n_tokens
    output_console().print(
        f"{len(built.ids):,} of {n_vocab:,} tokens ({len(built.ids) / n_vocab:.1%}, {built.n_special:,} of them always "
        f"there) cover {built.coverage:.3%} of {counts.total:,}: {args.output}",
        soft_wrap=True,
        highlight=False,
    )
    return 0


def _counted(args: argparse.Namespace, path: str, bars: Bars, *, by_source: bool = False) -> Counts:
    sources = find(args.corpus, fields=args.fields or ("text",))
    size = sum(os.path.getsize(source.path) for source in sources)
    packed = any(source.path.endswith(".gz") for source in sources)
    return count(
        path,
        sources,
        n_processes=args.threads,
        by_source=by_source,
        progress=lambda n: bars.update("counting", n, None if packed else max(size, n + 1), f"{n:,} characters"),
    )


def _written(args: argparse.Namespace, path: str, bars: Bars) -> Counts:
    """Counts of what the model writes."""
    asked = [line for source in find(args.corpus) for line in _lines(source.path)] if args.corpus else None
    params = SamplingParams(temperature=args.temperature, max_tokens=args.tokens)
    with Engine(path, n_slots=4, n_ctx=2048, prefix_reuse=False) as engine:
        as_chat = engine.model.chat_template() is not None
        prompts = (
            [prompt.text(engine.model, as_chat=as_chat) for prompt in prompts_for()] if asked is None else list(asked)
        )
        by_token: Numbers = np.zeros(engine.model.vocab.n_tokens, np.int64)
        running = [engine.submit(prompt, params.replace(seed=i)) for i, prompt in enumerate(prompts)]
        n_characters = 0
        for done, generation in enumerate(running, 1):
            result = generation.result()
            np.add.at(by_token, list(result.token_ids), 1)
            n_characters += len(result.text)
            bars.update("writing", done, len(running), f"{n_characters:,} characters")
        return Counts(by_token, n_characters=n_characters)


def _lines(path: str) -> list[str]:
    return [line.strip() for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]


def _inspect(args: argparse.Namespace) -> int:
    path = _model(args.model)
    with Model(path, vocab_only=True) as model:
        listed = read_list(args.list, model.vocab)
        with Bars(error_console()) as bars:
            counts = _counted(args, path, bars, by_source=True) if args.corpus else None
        found = inspect(listed.ids, model.vocab, read_gguf(path), counts)
        texts = {token: model.vocab.piece(token).decode("utf-8", "replace") for token, _ in found.missing}
    if args.json:
        document = {**dataclasses.asdict(found), "share": found.share, "header": listed.header}
        print(json.dumps(document, indent=1, ensure_ascii=False))
        return 0
    _show(found, listed, texts)
    return 0


def _show(found: Inspection, listed: VocabList, texts: dict[int, str]) -> None:
    console = output_console()
    facts: dict[str, Any] = {
        **listed.header,
        "tokens": f"{found.n_ids:,} of {found.n_vocab:,} ({found.share:.1%})",
        "output head": "none in the file" if found.head_bytes is None else f"{found.head_bytes / 1e6:,.1f} MB",
    }
    if found.coverage is not None:
        facts["of these texts"] = f"{found.coverage:.3%}"
    for name, value in facts.items():
        console.print(f"{name:15} {value}", highlight=False, soft_wrap=True)
    for title, entries in (("text", found.by_source), ("kind of token", found.by_script)):
        if entries:
            table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
            table.add_column(title)
            table.add_column("tokens", justify="right")
            table.add_column("covered", justify="right")
            for name, (n_tokens, covered) in entries.items():
                table.add_row(name, f"{n_tokens:,}", f"{covered:.2%}")
            console.print(table)
    if found.missing:
        shown = ", ".join(f"{texts[token]!r} ({n:,})" for token, n in found.missing)
        console.print(f"not listed, most frequent first: {shown}", highlight=False, soft_wrap=True, markup=False)


def _merge(args: argparse.Namespace) -> int:
    with Model(_model(args.model), vocab_only=True) as model:
        lists = [read_list(name, model.vocab) for name in args.lists]
        ids = merge(lists, model.vocab)
        facts: dict[str, str] = {
            name: lists[0].header[name] for name in ("model", "vocabulary", "tokenizer") if name in lists[0].header
        }
        facts["corpus"] = " + ".join(its.header.get("corpus", os.path.basename(str(its.path))) for its in lists)
        facts["size"] = str(len(ids))
        write_list(args.output, ids, facts)
    print(f"{len(ids):,} tokens: {args.output}", file=sys.stdout)
    return 0


def _model(name: str) -> str:
    with FetchDisplay(error_console()) as display:
        return str(resolve(name, display))
