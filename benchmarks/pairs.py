#!/usr/bin/env python3
"""What `auto` is worth on many pairs: beside plain decoding and beside every fixed setting, on all kinds of prompts.

    python benchmarks/pairs.py
    python benchmarks/pairs.py --pairs smollm2-f32+smollm2,gemma3-f32+gemma3 --repetitions 3

For each pair of a target and a draft model (or none): plain decoding, fixed draft lengths or every n-gram type, and
auto, in turn on each prompt (`pyspec bench` does the measuring). Greedy, all texts of one length. Prints for each pair
auto's ratio to plain decoding by kind of prompt, its worst kind, and how it compares with the best fixed setting over
all kinds; writes everything as JSON, into what is there already of other pairs.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from pyspec import Model, SamplingParams, models
from pyspec.bench.kinds import KINDS, prompts_for
from pyspec.bench.report import Report
from pyspec.bench.runs import Bench, Plan, numbered
from pyspec.bench.settings import Defaults, read_settings

ROOT = Path(__file__).resolve().parent.parent
TARGETS = ("smollm2-f32", "smollm2-q4_0", "smollm2")
PAIRS = ",".join([*(f"{t}+{d}" for t in TARGETS for d in ("smollm2", "smollm2-q4_0", "none")), "gemma3-f32+gemma3"])
FIXED = {
    True: ["draft-simple:2", "draft-simple:4", "draft-simple:8"],
    False: ["ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache"],
}

# Of a report: all but the runs one by one, and what is about files of this machine.
REPORTED = ("settings", "repetitions", "more", "verdicts", "best_fixed", "figures", "learned")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", default=PAIRS, help=f"target+draft, ... (default: {PAIRS})")
    parser.add_argument("--also", default="", help="further settings, as `pyspec bench --speculators` takes them")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--prompts", type=int, default=3, help="of each kind (default: 3, all)")
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--more", type=int, default=0, help="then plain decoding and auto alone, so often (default: 0)")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "pairs.json")
    args = parser.parse_args()

    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    pairs = [tuple(pair.split("+")) for pair in args.pairs.split(",")]
    results: dict[str, Any] = json.loads(args.output.read_text(encoding="utf-8")) if args.output.exists() else {}
    table = Table(title="auto, times plain decoding", caption="best fixed: over all kinds; auto/best: of the two")
    for name in ("pair", *args.kinds.split(","), "all kinds", "best fixed", "", "auto/best"):
        table.add_column(name, justify="left" if name in ("pair", "best fixed") else "right")
    with Progress(transient=True) as progress:
        for target, draft in pairs:
            report = measure(args, target, None if draft == "none" else draft, progress)
            found = report.to_dict()
            results[f"{target}+{draft}"] = {name: found[name] for name in REPORTED}
            args.output.parent.mkdir(parents=True, exist_ok=True)
            args.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
            auto, best = report.auto, report.best_fixed
            assert auto is not None
            assert best is not None
            by_kind = {entry.kind: entry.ratio for entry in report.figures if entry.setting == "auto"}
            cells = [f"{by_kind[kind]:.2f}" for kind in args.kinds.split(",")]
            cells += [f"{auto.ratio:.2f}", best.setting, f"{best.ratio:.2f}", f"{auto.ratio / best.ratio:.2f}"]
            table.add_row(f"{target} + {draft}", *cells)
            for verdict in report.verdicts:
                progress.console.print(
                    f"{target} + {draft}: {verdict.setting:24} {verdict.ratio:.3f}, "
                    f"worst on {verdict.worst_kind}: {verdict.worst_ratio:.3f}"
                )
    Console(width=150).print(table)


def measure(args: argparse.Namespace, target: str, draft: str | None, progress: Any) -> Report:
    """One pair, all settings in turn."""
    path = None if draft is None else str(models.resolve(draft))
    names = [*FIXED[draft is not None], *filter(None, args.also.split(",")), "auto"]
    with Model(str(models.resolve(target))) as model:
        plan = Plan(
            settings=read_settings(names, Defaults(path, {})),
            prompts=numbered(prompts_for(args.kinds.split(","), args.prompts), model, as_chat="smollm2" in target),
            sampling=SamplingParams(temperature=0.0, max_tokens=args.tokens, ignore_eos=True),
            repetitions=args.repetitions,
            more=args.more,
            engine={"n_ctx": 2048},
        )
        task = progress.add_task(f"{target} + {draft}", total=plan.n_runs)
        with Bench(model, plan) as bench:
            runs = []
            for run in bench.run():
                runs.append(run)
                progress.advance(task)
            progress.remove_task(task)
            return Report.of(bench, runs)


if __name__ == "__main__":
    main()
