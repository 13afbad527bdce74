#!/usr/bin/env python3
"""pyspec against llama.cpp's server, several requests at once: same models, same libraries, same machine, same run.

    make serving                                  # builds llama.cpp's server too, then runs this
    python benchmarks/serving.py --loads 1,4 --lengths 3 --repetitions 5

Each program has four slots and two threads and is read through its own streaming interface: an `Engine` by coroutines
with ``async for``, `llama-server` over HTTP by coroutines as well. For every repetition and load, in turn: pyspec with
its draft model (its streams as they come, and steady ones) and without, the server with its draft model (at each draft
length given) and without. A load of n keeps n requests under way until all prompts are done; with more than there are
slots, some wait.

Greedy, the same number of tokens for every request, the same prompts for every program. They begin with a number that
is used once, so that nobody has read one before.

Tokens per second are those of all requests, from the first submission to the last token. The wait for the *first* token
counts from the submission, time in the queue included. A *gap* is the time between two arrivals at the reader: a round
of speculation brings several tokens at once, so the time *per token* of a request (behind its first one) is shown too.
Prints medians over the repetitions and writes them and every measurement as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from llama_server import LlamaServer
from load import Record, drive, figures

import pyspec
from pyspec import models
from pyspec.bench.kinds import KINDS, prompts_of
from pyspec.bench.prompts import chatml

ROOT = Path(__file__).resolve().parent.parent
SERVER = ROOT / "build" / "llama-server"
WORKER = Path(__file__).with_name("serving_worker.py")

PYSPEC, PYSPEC_STEADY, PYSPEC_PLAIN = "pyspec auto", "pyspec auto, steady", "pyspec plain"
SERVER_PLAIN = "llama-server plain"

Load = Callable[[list[str], int, int], list[Record]]  # prompts, tokens each, requests at once


@dataclass
class Measurement:
    """One program under one load."""

    program: str
    load: int
    repetition: int
    figures: dict[str, float]
    first_ms: list[float]
    per_token_ms: list[float]
    same_texts: int = 0


@dataclass
class Report:
    machine: dict[str, Any]
    settings: dict[str, Any]
    measurements: list[Measurement] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)


def numbered(n: int, n_prompts: int) -> list[str]:
    """Prompts of all kinds, one of each in turn, in a conversation of this number."""
    mixed = [prompt for row in zip(*map(prompts_of, KINDS), strict=True) for prompt in row]
    if n_prompts > len(mixed):
        sys.exit(f"there are {len(mixed)} prompts; --requests {n_prompts} would need the same one twice")
    return [f"<|im_start|>system\nConversation {n}.<|im_end|>\n{chatml(p.request)}" for p in mixed[:n_prompts]]


@contextlib.contextmanager
def engine_process(report: Report, name: str, *, steady: bool = False, **parameters: Any) -> Iterator[Load]:
    """An engine in a process of its own: its threads and its reader's are all it has."""
    process = subprocess.Popen(
        [sys.executable, str(WORKER), json.dumps(parameters)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None

    def answer() -> Any:
        line = process.stdout.readline()
        if not line:
            sys.exit(f"the process of {name!r} ended with {process.wait()}, see above")
        return json.loads(line)

    def load(prompts: list[str], n_tokens: int, n_at_once: int) -> list[Record]:
        order = {"prompts": prompts, "n_tokens": n_tokens, "n_at_once": n_at_once, "steady": steady}
        process.stdin.write(json.dumps(order) + "\n")
        process.stdin.flush()
        return [Record(**record) for record in answer()]

    try:
        report.settings[name] = answer()
        yield load
    finally:
        process.stdin.close()  # it ends with its input
        process.wait()


@contextlib.contextmanager
def server_process(report: Report, name: str, arguments: list[str]) -> Iterator[Load]:
    """A llama-server with these arguments."""
    server = LlamaServer(SERVER, arguments)
    report.settings[name] = [Path(a).name if a.endswith(".gguf") else a for a in arguments]

    def load(prompts: list[str], n_tokens: int, n_at_once: int) -> list[Record]:
        return asyncio.run(drive(lambda p: server.stream(p, n_tokens), server.finish, prompts, n_at_once))

    try:
        yield load
    finally:
        server.close()


@contextlib.contextmanager
def programs(args: argparse.Namespace, report: Report) -> Iterator[dict[str, Load]]:
    """All programs, open and idle."""
    target, draft = (str(models.resolve(name)) for name in (args.target, args.draft))
    engine = {"target": target, "n_slots": args.slots, "n_ctx": args.ctx, "n_threads": args.threads}
    server = ["-m", target, "-np", str(args.slots), "-c", str(args.slots * args.ctx), "-t", str(args.threads)]
    drafting = ["-md", draft, "-td", str(args.threads), "--spec-type", "draft-simple"]
    with contextlib.ExitStack() as stack:
        opened = {
            PYSPEC: engine_process(report, PYSPEC, **engine, draft_model=draft, speculation="auto"),
            PYSPEC_STEADY: engine_process(
                report, PYSPEC_STEADY, steady=True, **engine, draft_model=draft, speculation="auto"
            ),
            PYSPEC_PLAIN: engine_process(report, PYSPEC_PLAIN, **engine, speculation=None),
        }
        for n_max in args.lengths:
            name = f"llama-server {n_max}"
            opened[name] = server_process(report, name, [*server, *drafting, "--spec-draft-n-max", str(n_max)])
        opened[SERVER_PLAIN] = server_process(report, SERVER_PLAIN, server)
        yield {name: stack.enter_context(program) for name, program in opened.items()}


def measure(args: argparse.Namespace, report: Report) -> Iterator[Measurement]:
    with programs(args, report) as running:
        for load in running.values():
            load(
                numbered(0, args.slots), min(64, args.tokens), args.slots
            )  # to warm up, and to learn what drafts bring
        number = 0
        for repetition in range(args.repetitions):
            for n_at_once in args.loads:
                number += 1
                prompts = numbered(number, args.requests)
                texts: dict[str, list[str]] = {}
                turn = list(running)[number % len(running) :] + list(running)[: number % len(running)]
                row = []
                for name in turn:
                    records = running[name](prompts, args.tokens, n_at_once)
                    texts[name] = [record.text for record in records]
                    row.append(
                        Measurement(
                            name,
                            n_at_once,
                            repetition,
                            figures(records),
                            first_ms=[round(1000 * record.first_s, 2) for record in records],
                            per_token_ms=[round(1000 * record.per_token_s, 3) for record in records],
                        )
                    )
                for measurement in row:
                    pairs = zip(texts[measurement.program], texts[SERVER_PLAIN], strict=True)
                    measurement.same_texts = sum(a == b for a, b in pairs)
                    yield measurement


def summarise(args: argparse.Namespace, report: Report) -> None:
    """Medians over repetitions, per load and program, and pyspec's ratio to the server's better mode."""
    names = list(dict.fromkeys(m.program for m in report.measurements))
    names.sort(key=lambda name: (not name.startswith("pyspec"), name.endswith("plain"), name))
    for n_at_once in args.loads:
        of = {name: [m for m in report.measurements if m.program == name and m.load == n_at_once] for name in names}
        table = {}
        for name, rows in of.items():
            table[name] = {key: statistics.median(m.figures[key] for m in rows) for key in rows[0].figures}
            table[name]["same_texts"] = sum(m.same_texts for m in rows) / (len(rows) * args.requests)
        speed = {name: entry["tokens_per_second"] for name, entry in table.items()}
        theirs = max((name for name in names if name.startswith("llama-server")), key=lambda name: speed[name])
        ours = max((name for name in names if name.startswith("pyspec")), key=lambda name: speed[name])
        ratios = [
            a.figures["tokens_per_second"] / b.figures["tokens_per_second"]
            for a, b in zip(of[PYSPEC], of[theirs], strict=True)
        ]
        entry, steady, other = table[PYSPEC], table[PYSPEC_STEADY], table[theirs]
        report.summary[str(n_at_once)] = {
            "table": table,
            "better_server_mode": theirs,
            "better_pyspec_mode": ours,
            "tokens_per_second_ratio": entry["tokens_per_second"] / other["tokens_per_second"],
            "lowest_ratio": min(ratios),
            "highest_ratio": max(ratios),
            "plain_ratio": speed[PYSPEC_PLAIN] / speed[SERVER_PLAIN],
            "first_ms_ratio": entry["first_ms"] / other["first_ms"],
            "per_token_ms_ratio": entry["per_token_ms"] / other["per_token_ms"],
            "gap_p95_ms_ratio": entry["gap_p95_ms"] / other["gap_p95_ms"],
            "steady_tokens_per_second_ratio": steady["tokens_per_second"] / other["tokens_per_second"],
            "steady_gap_p95_ms_ratio": steady["gap_p95_ms"] / other["gap_p95_ms"],
        }


def show(report: Report) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(title="medians and 95th percentiles, greedy", box=box.SIMPLE)
    for column in ("load", "program", "tokens/s", "first, ms", "gap, ms", "per token, ms"):
        table.add_column(column, justify="left" if column == "program" else "right", no_wrap=True)
    for n_at_once, summary in report.summary.items():
        for i, (name, e) in enumerate(summary["table"].items()):
            best = name in (summary["better_server_mode"], summary["better_pyspec_mode"])
            table.add_row(
                n_at_once if i == 0 else "", name, f"{e['tokens_per_second']:.1f}", f"{e['first_ms']:.0f}",
                f"{e['gap_ms']:.1f}  {e['gap_p95_ms']:5.0f}", f"{e['per_token_ms']:.1f}  {e['per_token_p95_ms']:5.0f}",
                style="bold" if best else None, end_section=i == len(summary["table"]) - 1,
            )  # fmt: skip
    console.print(table)
    for n_at_once, summary in report.summary.items():
        console.print(
            f"{n_at_once} at once: pyspec writes [bold]{summary['tokens_per_second_ratio']:.2f}[/] times as fast as "
            f"{summary['better_server_mode']} ({summary['lowest_ratio']:.2f} to {summary['highest_ratio']:.2f} by "
            f"repetition); plain against plain {summary['plain_ratio']:.2f}; its first token comes after "
            f"{summary['first_ms_ratio']:.2f} of the time; steady streams "
            f"{summary['steady_tokens_per_second_ratio']:.2f} times as fast, the 95th percentile of their gaps "
            f"{summary['steady_gap_p95_ms_ratio']:.2f} of its"
        )
    tables = [summary["table"] for summary in report.summary.values()]
    shares = {
        name: statistics.mean(t[name]["same_texts"] for t in tables) for name in tables[0] if name != SERVER_PLAIN
    }
    console.print(
        "texts that are the same as llama-server's plain ones: "
        + ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    )


def main() -> None:
    def integers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", default="smollm2-f32")
    parser.add_argument("--draft", default="smollm2")
    parser.add_argument("--loads", type=integers, default=[1, 2, 4, 8], help="requests at once (default: 1,2,4,8)")
    parser.add_argument("--lengths", type=integers, default=[3, 8], help="the server's draft lengths; its own is 3")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--requests", type=int, default=8, help="of each load, each with another prompt (default: 8)")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--ctx", type=int, default=1024, help="tokens of context per slot (default: 1024)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "serving.json")
    args = parser.parse_args()
    if not SERVER.exists():
        sys.exit(f"{SERVER.relative_to(ROOT)} is missing; build it with `make example`")

    settings = ("target", "draft", "loads", "lengths", "repetitions", "requests", "tokens", "slots", "ctx", "threads")
    report = Report(
        machine={"platform": platform.platform(), "processor": platform.processor(), **pyspec.build_info()},
        settings={name: getattr(args, name) for name in settings},
    )
    from rich.progress import Progress

    # Drawn between measurements only: its own thread would take time from the reader.
    with Progress(auto_refresh=False) as progress:
        n_runs = args.repetitions * len(args.loads) * (4 + len(args.lengths))
        task = progress.add_task("measuring", total=n_runs)
        progress.refresh()
        for measurement in measure(args, report):
            report.measurements.append(measurement)
            progress.advance(task)
            progress.refresh()
    summarise(args, report)
    show(report)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(asdict(report), indent=1, default=str) + "\n", encoding="utf-8")
    print(f"written: {args.output}")


if __name__ == "__main__":
    main()
