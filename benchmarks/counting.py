#!/usr/bin/env python3
"""Counting the tokens of a large corpus: speed by processes, and memory.

    python benchmarks/counting.py --megabytes 300

The corpus is Python's own library, its lines in random order, again and again. Prints megabytes a second for one
process and for several, and the most memory the counting process and its helpers took, for a tenth of the corpus and
for all of it; writes them as JSON.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import random
import resource
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

import pyspec
from pyspec import models
from pyspec.vocab_lists import Source, count

ROOT = Path(__file__).resolve().parent.parent


def write_corpus(path: Path, n_bytes: int) -> None:
    library = Path(sysconfig.get_path("stdlib"))
    lines: list[bytes] = []
    for file in sorted(library.rglob("*.py")):
        if "site-packages" not in file.parts and "dist-packages" not in file.parts:
            lines += file.read_text(encoding="utf-8", errors="ignore").encode().splitlines(keepends=True)
    rng = random.Random(1)
    with path.open("wb") as out:
        while out.tell() < n_bytes:
            rng.shuffle(lines)
            out.writelines(lines)
        out.truncate(n_bytes)
    with path.open("rb") as written:  # the end alone: a child's peak of memory begins with its parent's
        written.seek(-4, 2)
        last = written.read()
    if last != last.decode("utf-8", "ignore").encode():
        with path.open("rb+") as out:
            out.truncate(n_bytes - 4)


def measured(model: str, path: str, n_processes: int, queue: Any) -> None:
    t0 = time.perf_counter()
    counts = count(model, [Source(path)], n_processes=n_processes)
    seconds = time.perf_counter() - t0
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    queue.put({"processes": n_processes, "seconds": round(seconds, 2), "tokens": counts.total, "peak_mb": peak // 1024})


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-m", "--model", default="smollm2")
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "counting.json")
    args = parser.parse_args()
    model = str(models.resolve(args.model))
    runs = []
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        corpus, part = Path(folder) / "corpus.txt", Path(folder) / "part.txt"
        write_corpus(corpus, args.megabytes * 1_000_000)
        with corpus.open("rb") as whole:
            part.write_bytes(whole.read(args.megabytes * 100_000).rpartition(b"\n")[0])
        for path, n in ((part, 1), (part, args.processes), (corpus, 1), (corpus, args.processes)):
            queue = spawn.Queue()
            process = spawn.Process(target=measured, args=(model, str(path), n, queue))
            process.start()
            run = {"megabytes": round(path.stat().st_size / 1e6), **queue.get()}
            process.join()
            run["mb_per_second"] = round(run["megabytes"] / run["seconds"], 2)
            runs.append(run)
            print(run, flush=True)
    speedup = runs[2]["seconds"] / runs[3]["seconds"]
    print(f"{args.processes} processes: {speedup:.2f} times one's speed")
    report = {"machine": {"platform": platform.platform(), **pyspec.build_info()}, "model": args.model, "runs": runs,
              "speedup": round(speedup, 3)}  # fmt: skip
    args.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
