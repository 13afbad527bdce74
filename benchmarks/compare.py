#!/usr/bin/env python3
"""pyspec against llama.cpp's own speculative decoding: same models, same libraries, same machine, same run.

    make bench                                   # builds llama.cpp's example too, then runs this
    python benchmarks/compare.py --pairs smollm2 --lengths 4,8 --repetitions 5

For each pair of target and draft and each draft length, in turn and again for every repetition: plain decoding and
speculation here, and `llama-speculative-simple` from the same tree with the same flags and thread count. Greedy,
the same prompts. Prints medians and ratios, writes everything it measured as JSON.

Two speeds are compared. *Generation* is the tokens after the prompt over the time after both models have read the
prompt, as llama.cpp's example reports it. *Whole* is the time of prompt and generation together, per token.

With --draft-vocab everything of pyspec is measured twice, without and with that draft vocabulary.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyspec
from pyspec import DraftModel, Engine, SamplingParams, models
from pyspec.bench.prompts import prompts_for

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "build" / "llama-speculative-simple"

# name -> (target, draft, whether it is instruction-tuned)
PAIRS = {
    "smollm2": ("smollm2-f32", "smollm2", True),
    "gemma3": ("gemma3-f32", "gemma3", False),
}

WITH_VOCAB = "pyspec, draft vocabulary"
SETTINGS = ("lengths", "repetitions", "prompts", "tokens", "threads", "draft_vocab", "draft_vocab_slots")


@dataclass
class Measurement:
    """One program on one prompt at one draft length."""

    program: str
    pair: str
    n_max: int
    prompt: int
    repetition: int
    n_tokens: int
    prompt_s: float
    generation_s: float
    rounds: int
    drafted: int
    accepted: int
    draft_rows: int | None = None  # behind the prompt
    overhead: float | None = None

    @property
    def tokens_per_second(self) -> float:
        return self.n_tokens / self.generation_s

    @property
    def whole_s(self) -> float:
        """Seconds for prompt and generation, per token."""
        return (self.prompt_s + self.generation_s) / self.n_tokens


@dataclass
class Report:
    machine: dict[str, Any]
    settings: dict[str, Any]
    measurements: list[Measurement] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)


def run_pyspec(engine: Engine, prompt: str, n_tokens: int, n_max: int, key: dict[str, Any]) -> Measurement:
    params = SamplingParams(temperature=0.0, max_tokens=n_tokens, ignore_eos=True)
    stats = engine.generate(prompt, params, n_draft_max=n_max).stats
    return Measurement(
        **key,
        n_max=n_max,
        n_tokens=stats.completion_tokens - 1,  # the first one comes with the prompt
        prompt_s=(stats.prefill_ms + stats.draft_read_ms) / 1000,  # by both models, as there
        generation_s=(stats.decode_ms - stats.draft_read_ms) / 1000,
        rounds=stats.rounds,
        drafted=stats.drafted,
        accepted=stats.accepted,
        draft_rows=stats.draft_rows - stats.prompt_tokens,  # both read the prompt whole
        overhead=stats.overhead,
    )


def run_llama_cpp(
    target: Path, draft: Path, prompt_file: Path, n_tokens: int, n_max: int, n_threads: int, key: dict[str, Any]
) -> Measurement:
    command = [
        str(EXAMPLE), "-m", str(target), "-md", str(draft), "-f", str(prompt_file), "-n", str(n_tokens),
        "-c", "1024", "--temp", "0", "--ignore-eos", "-t", str(n_threads), "-td", str(n_threads),
        "--spec-type", "draft-simple", "--spec-draft-n-max", str(n_max),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)
    output = done.stdout + done.stderr
    if done.returncode != 0:
        sys.exit(f"llama.cpp's example failed ({done.returncode}):\n{output[-2000:]}")

    def number(pattern: str, group: int = 1) -> float:
        found = re.search(pattern, output)
        if found is None:
            sys.exit(f"no {pattern!r} in the output of llama.cpp's example:\n{output[-2000:]}")
        return float(found.group(group))

    decoded = r"decoded\s+(\d+) tokens in\s+([\d.]+) seconds"
    n_decoded = int(number(decoded))
    accepted = int(number(r"n_accept\s+= (\d+)"))
    return Measurement(
        **key,
        n_max=n_max,
        n_tokens=n_decoded,
        prompt_s=number(r"encoded\s+\d+ tokens in\s+([\d.]+) seconds"),
        generation_s=number(decoded, 2),
        rounds=n_decoded - accepted,
        drafted=int(number(r"n_drafted\s+= (\d+)")),
        accepted=accepted,
    )


def programs(args: argparse.Namespace) -> list[str]:
    """The names under which pyspec's measurements appear."""
    return ["pyspec", WITH_VOCAB] if args.draft_vocab else ["pyspec"]


def open_engine(args: argparse.Namespace, pair: str, program: str, report: Report) -> Engine:
    target, draft, _ = PAIRS[pair]
    vocab = args.draft_vocab if program == WITH_VOCAB else None
    speculation = DraftModel(
        models.resolve(draft), n_max=max(args.lengths), vocab=vocab, vocab_slots=args.draft_vocab_slots
    )
    engine = Engine(
        models.resolve(target), speculation=speculation, n_ctx=1024, n_threads=args.threads, prefix_reuse=False
    )
    settings = engine.config.to_dict()
    for part in (settings["target"], settings["draft"], settings["draft_options"]):
        part["path"] = Path(part["path"]).name  # the report is about the model, not about this machine
    report.settings.setdefault(pair, {})[program] = settings
    return engine


def measure(args: argparse.Namespace, report: Report) -> Iterator[Measurement]:
    for pair in args.pairs:
        target, draft, chat = PAIRS[pair]
        paths = models.resolve(target), models.resolve(draft)
        prompts = prompts_for(chat)[: args.prompts]
        with tempfile.TemporaryDirectory() as folder:
            for repetition in range(args.repetitions):
                for i, prompt in enumerate(prompts):
                    file = Path(folder) / f"{i}.txt"
                    file.write_text(prompt + "\n", encoding="utf-8")  # it drops one line end
                    key: dict[str, Any] = {"pair": pair, "prompt": i, "repetition": repetition}
                    for program in programs(args):  # one engine at a time: two would share the processors
                        with open_engine(args, pair, program, report) as engine:
                            run_pyspec(engine, prompt, 8, 2, {"program": "warm-up", **key})
                            if program == "pyspec":
                                yield run_pyspec(engine, prompt, args.tokens, 0, {"program": "plain", **key})
                            for n_max in args.lengths:
                                yield run_pyspec(engine, prompt, args.tokens, n_max, {"program": program, **key})
                                if program == "pyspec" and not args.no_llama_cpp:
                                    yield run_llama_cpp(
                                        *paths, file, args.tokens, n_max, args.threads,
                                        {"program": "llama.cpp", **key},
                                    )  # fmt: skip


def summarise(args: argparse.Namespace, report: Report) -> None:
    """Medians over repetitions and prompts, per pair, program and draft length."""
    for pair in args.pairs:
        table: dict[str, dict[int, dict[str, float]]] = {}
        others = [] if args.no_llama_cpp else ["llama.cpp"]
        for program in ["plain", *programs(args), *others]:
            lengths = [0] if program == "plain" else args.lengths
            for n_max in lengths:
                rows = [
                    m for m in report.measurements
                    if m.pair == pair and m.program == program and m.n_max == n_max
                ]  # fmt: skip
                entry = {
                    "tokens_per_second": statistics.median(m.tokens_per_second for m in rows),
                    "whole_ms_per_token": 1000 * statistics.median(m.whole_s for m in rows),
                    "tokens_per_round": sum(m.n_tokens for m in rows) / sum(m.rounds for m in rows),
                    "acceptance": sum(m.accepted for m in rows) / max(1, sum(m.drafted for m in rows)),
                }
                if program in programs(args):
                    entry["draft_rows_per_round"] = sum(m.draft_rows or 0 for m in rows) / sum(m.rounds for m in rows)
                    entry["overhead"] = statistics.median(m.overhead or 0.0 for m in rows)
                table.setdefault(program, {})[n_max] = entry
        best = {
            program: max(table[program], key=lambda n: table[program][n]["tokens_per_second"]) for program in table
        }
        report.summary[pair] = {"table": table, "best_n_max": best}
        for program in programs(args):
            ours = table[program][best[program]]
            report.summary[pair][program] = {}
            for other in ["plain", *programs(args), *others]:
                if other != program:
                    theirs = table[other][best[other]]
                    report.summary[pair][program][other] = {
                        "generation": ours["tokens_per_second"] / theirs["tokens_per_second"],
                        "whole": theirs["whole_ms_per_token"] / ours["whole_ms_per_token"],
                    }


def show(report: Report) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for pair, summary in report.summary.items():
        table = Table(title=f"{pair}: medians, greedy")
        for column in ("", "draft length", "tokens/s", "ms/token, prompt included", "tokens/round", "acceptance",
                       "draft rows/round", "outside libllama"):  # fmt: skip
            table.add_column(column, justify="left" if not column else "right")
        for program, lengths in summary["table"].items():
            for n_max, e in lengths.items():
                best = n_max == summary["best_n_max"][program]
                table.add_row(
                    program, str(n_max), f"{e['tokens_per_second']:.1f}", f"{e['whole_ms_per_token']:.1f}",
                    f"{e['tokens_per_round']:.2f}", f"{e['acceptance']:.2f}" if n_max else "",
                    f"{e['draft_rows_per_round']:.2f}" if "draft_rows_per_round" in e else "",
                    f"{e['overhead']:.1%}" if "overhead" in e else "", style="bold" if best else None,
                )  # fmt: skip
        console.print(table)
        for program in (name for name in ("pyspec", WITH_VOCAB) if name in summary):
            for other, ratio in summary[program].items():
                console.print(
                    f"At its best length each, {program} generates [bold]{ratio['generation']:.2f}[/] times as fast as "
                    f"{other} (prompt included: {ratio['whole']:.2f})."
                )
        console.print()


def main() -> None:
    def integers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    def pair_names(text: str) -> list[str]:
        names = text.split(",")
        for name in names:
            if name not in PAIRS:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(PAIRS)}")
        return names

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=pair_names, default=list(PAIRS), help="of: " + ", ".join(PAIRS))
    parser.add_argument("--lengths", type=integers, default=[2, 4, 6, 8], help="draft lengths (default: 2,4,6,8)")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=3, help="how many of the ten prompts (default: 3)")
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--draft-vocab", metavar="FILE|auto", default="auto",
        help="measure pyspec with this draft vocabulary, too (default: auto)",
    )  # fmt: skip
    parser.add_argument("--draft-vocab-slots", type=int, default=1024, metavar="N")
    parser.add_argument("--no-llama-cpp", action="store_true", help="measure pyspec alone")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "compare.json")
    args = parser.parse_args()
    if not EXAMPLE.exists() and not args.no_llama_cpp:
        sys.exit(f"{EXAMPLE.relative_to(ROOT)} is missing; build it with `make example`")

    report = Report(
        machine={"platform": platform.platform(), "processor": platform.processor(), **pyspec.build_info()},
        settings={name: getattr(args, name) for name in SETTINGS},
    )
    from rich.progress import track

    n_programs = len(programs(args)) + (not args.no_llama_cpp)
    n_runs = len(args.pairs) * args.repetitions * args.prompts * (1 + n_programs * len(args.lengths))
    for measurement in track(measure(args, report), total=n_runs, description="measuring"):
        report.measurements.append(measurement)
    summarise(args, report)
    show(report)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(asdict(report), indent=1, default=str) + "\n", encoding="utf-8")
    print(f"written: {args.output}")


if __name__ == "__main__":
    main()
