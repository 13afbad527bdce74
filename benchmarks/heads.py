#!/usr/bin/env python3
"""Drafts that read hidden states against llama.cpp's server: same files, libraries, draft lengths, machine and run.

    make example && python benchmarks/heads.py         # draft-mtp, with the small model that comes with the package
    python benchmarks/heads.py --target smollm2-f32 --draft smollm2-eagle3 --threads 2 --ctx 1024

For each draft length both programs are open at once, one slot and so many threads each, and write the same greedy texts
in turn, one request after the other, through their own streaming interfaces (see `serving.py`). What is accepted per
round follows for both from what they say themselves: every round gives one token and what was accepted.

Prints medians over the repetitions and writes every measurement as JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import statistics
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from serving import ROOT, SERVER, Load, Report, engine_process, server_process

import pyspec
from pyspec import models
from pyspec.bench.kinds import KINDS, prompts_for
from pyspec.bench.prompts import chatml
from pyspec.speculation.detection import detect_draft

# Beginnings of what the model of the package was trained on: Python's documentation.
PROMPTS = (
    "Return the number of elements in", "This module provides a class that", "The following example shows how to",
    "A list of the names that are", "If the argument is not a string, a", "Read up to n bytes from the",
    'The "import" statement', "Create a new thread and", "When the file is closed,", "Raise an exception if the",
    "Convert a string or a number to", "Split the path into",
)  # fmt: skip

SETTINGS = ("target", "draft", "lengths", "repetitions", "tokens", "threads")


@contextlib.contextmanager
def pair(args: argparse.Namespace, report: Report, n_max: int) -> Any:
    """Both programs, with drafts of n_max tokens; 0: without."""
    target = str(models.resolve(args.target))
    server = ["-m", target, "-np", "1", "-c", str(args.ctx), "-t", str(args.threads)]
    draft: list[dict[str, Any]] | None = None
    if n_max:
        draft = [{"type": args.kind, "n_max": n_max}]
        server += ["--spec-type", args.kind, "--spec-draft-n-max", str(n_max)]
        if args.draft is not None:
            path = str(models.resolve(args.draft))
            draft[0]["path"] = path
            server += ["-md", path, "-td", str(args.threads)]
    engine: dict[str, Any] = {"target": target, "n_ctx": args.ctx, "n_threads": args.threads, "speculation": draft}
    with (
        engine_process(report, f"pyspec {n_max}", **engine) as ours,
        server_process(report, f"llama-server {n_max}", server) as theirs,
    ):
        yield {"pyspec": ours, "llama-server": theirs}


def measure(load: Load, args: argparse.Namespace) -> dict[str, Any]:
    """All prompts, one after the other."""
    records = load(args.prompts, args.tokens, 1)
    n_tokens = sum(record.n_tokens for record in records)
    accepted = sum(record.accepted for record in records)
    rounds = n_tokens - len(records) - accepted
    return {
        "tokens_per_second": sum(r.n_tokens - 1 for r in records) / sum(r.times[-1] - r.times[0] for r in records),
        "accepted_per_round": accepted / rounds,
        "drafted": sum(record.drafted for record in records),
        "texts": [record.text for record in records],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", default="tiny-mtp")
    parser.add_argument("--draft", help="its file, for a target that chats (default: NextN layers)")
    parser.add_argument("--lengths", type=lambda text: [int(part) for part in text.split(",")], default=[0, 1, 2, 3])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--ctx", type=int, default=512)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, help="(default: in benchmarks/results, by the kind of draft)")
    args = parser.parse_args()
    args.kind, args.prompts = "draft-mtp", list(PROMPTS)
    if args.draft is not None:
        args.kind = detect_draft(models.resolve(args.draft))
        args.prompts = [chatml(prompt.request) for kind in KINDS for prompt in prompts_for([kind], 2)]
    if not SERVER.exists():
        sys.exit(f"{SERVER.relative_to(ROOT)} is missing; build it with `make example`")
    report = Report(
        machine={"platform": platform.platform(), "processor": platform.processor(), **pyspec.build_info()},
        settings={name: getattr(args, name) for name in SETTINGS},
    )
    for n_max in args.lengths:
        with pair(args, report, n_max) as programs:
            rows: dict[str, list[dict[str, Any]]] = {name: [] for name in programs}
            for load in programs.values():
                measure(load, args)  # to warm up
            for _ in range(args.repetitions):
                for name, load in programs.items():
                    rows[name].append(measure(load, args))
        same = sum(a == b for a, b in zip(rows["pyspec"][0]["texts"], rows["llama-server"][0]["texts"], strict=True))
        entry: dict[str, Any] = {"same_texts": same, "prompts": len(args.prompts)}
        for name, found in rows.items():
            entry[name] = {
                key: round(statistics.median(row[key] for row in found), 3)
                for key in ("tokens_per_second", "accepted_per_round", "drafted")
            }
            entry[name]["each_tokens_per_second"] = [round(row["tokens_per_second"], 1) for row in found]
        ratios = [
            ours["tokens_per_second"] / other["tokens_per_second"]
            for ours, other in zip(rows["pyspec"], rows["llama-server"], strict=True)
        ]
        entry["ratio"] = round(statistics.median(ratios), 3)
        entry["ratios"] = [round(ratio, 3) for ratio in ratios]
        report.summary[str(n_max)] = entry
        print(
            f"n_max {n_max}: "
            + ", ".join(
                f"{name} {entry[name]['tokens_per_second']:.0f} tokens/s, {entry[name]['accepted_per_round']:.3f} "
                "accepted per round"
                for name in rows
            )
            + f"; ratio {entry['ratio']:.2f}; same texts {same} of {len(args.prompts)}",
            flush=True,
        )
    content = asdict(report)
    del content["measurements"]
    output = args.output or ROOT / "benchmarks" / "results" / f"{args.kind.removeprefix('draft-')}.json"
    output.write_text(json.dumps(content, indent=1, default=str) + "\n", encoding="utf-8")
    print(f"written: {output}")


if __name__ == "__main__":
    main()
