#!/usr/bin/env python3
"""What a proposal of each n-gram speculator costs, by length of the history. One thread, no model, half a minute.

    python benchmarks/ngram_cost.py
    python benchmarks/ngram_cost.py --lengths 1024,8192 --json cost.json --plot cost.png

The history is made of new tokens and of stretches copied from earlier on, as in a text that is being edited, and goes
on with such a stretch, so that there is something to propose. Two times, in microseconds, both inside the speculator:

    propose   finding and writing one draft: median over batches of rounds, and the worst batch
    follow    taking in one token of a round, and, as "prompt", one of a long prompt

Medians of batches, as single rounds are shorter than the clock is exact. Other work on the machine makes the worst
batch worse.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
from pathlib import Path
from typing import Any

from pyspec._ngram import Rehearsal
from pyspec.speculation import NGramCache, NGramMapK, NGramMapK4V, NGramMod, NGramSimple

SPECS = (NGramSimple(), NGramMapK(), NGramMapK4V(), NGramMod(), NGramCache())
LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
BATCH = 50
# The promise: up to this length a proposal takes less than this.
LIMIT_AT, LIMIT_US = 8192, 20.0


def text(length: int, seed: int) -> list[int]:
    """New tokens, frequent ones more often, and copies of earlier stretches, about half and half."""
    rng = random.Random(seed)
    tokens: list[int] = []
    while len(tokens) < length:
        n = rng.randrange(20, 200)
        if len(tokens) > 400 and rng.random() < 0.5:
            start = rng.randrange(len(tokens) - n)
            tokens += tokens[start : start + n]
        else:
            tokens += [int(50_000 * rng.random() ** 4) for _ in range(n)]
    return tokens[:length]


def measure(spec: Any, length: int, n_batches: int, seed: int) -> dict[str, Any]:
    """A prompt of `length` tokens, then rounds of one token each, all of them with a draft."""
    history = text(length, seed)
    copied = history[length // 3 : length // 3 + 40]
    follows = history[length // 3 + 40 :][: BATCH * n_batches]
    runner = spec.build(1)
    stage = Rehearsal(runner)

    def us(name: str) -> float:
        return float(runner.counts()[f"{runner.name}.{name}"])

    stage.feed([*history, *copied])
    prompt = us("index_us") / (length + len(copied))
    proposing, following = [], []
    n_drafted = 0
    for start in range(0, len(follows) - BATCH + 1, BATCH):
        before = us("propose_us"), us("index_us")
        for token in follows[start : start + BATCH]:
            n_drafted += len(stage.propose(1024))
            stage.verify([token])
        proposing.append((us("propose_us") - before[0]) / BATCH)
        following.append((us("index_us") - before[1]) / BATCH)
    return {
        "speculator": spec.kind,
        "length": length,
        "propose_us": statistics.median(proposing),
        "propose_worst_us": max(proposing),
        "follow_us": statistics.median(following),
        "prompt_us": prompt,
        "draft_length": n_drafted / (len(proposing) * BATCH),
    }


def table(rows: list[dict[str, Any]]) -> str:
    lengths = sorted({row["length"] for row in rows})
    lines = []
    for title, key in (
        ("propose, median", "propose_us"),
        ("propose, worst batch", "propose_worst_us"),
        ("follow a round's token", "follow_us"),
        ("follow a prompt's token", "prompt_us"),
        ("(tokens in a draft)", "draft_length"),
    ):
        lines.append(f"{title:<26}" + "".join(f"{length:>10,}" for length in lengths))
        for kind in dict.fromkeys(row["speculator"] for row in rows):
            values = {row["length"]: row[key] for row in rows if row["speculator"] == kind}
            lines.append(f"  {kind:<24}" + "".join(f"{values[length]:>10.2f}" for length in lengths))
        lines.append("")
    return "\n".join(lines)


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for kind in dict.fromkeys(row["speculator"] for row in rows):
        own = [row for row in rows if row["speculator"] == kind]
        axes.plot([row["length"] for row in own], [row["propose_us"] for row in own], marker="o", label=kind)
    axes.axhline(LIMIT_US, color="grey", linestyle=":")
    axes.set(xscale="log", yscale="log", xlabel="tokens of history", ylabel="microseconds per proposal")
    axes.set_xscale("log", base=2)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=lambda s: [int(n) for n in s.split(",")], default=list(LENGTHS))
    parser.add_argument("--batches", type=int, default=12, help=f"batches of {BATCH} rounds for each length")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write everything measured here")
    parser.add_argument("--plot", type=Path, help="draw proposals by length (PNG or SVG; needs matplotlib)")
    args = parser.parse_args()
    rows = [measure(spec, length, args.batches, args.seed) for length in args.lengths for spec in SPECS]
    print("microseconds by tokens of history\n")
    print(table(rows))
    if args.json:
        machine = {"machine": platform.machine(), "system": platform.platform(), "python": platform.python_version()}
        settings = {"lengths": args.lengths, "batches": args.batches, "batch": BATCH, "seed": args.seed}
        args.json.write_text(json.dumps({**machine, "settings": settings, "measurements": rows}, indent=2))
    if args.plot:
        plot(rows, args.plot)
    slow = [row for row in rows if row["length"] <= LIMIT_AT and row["propose_us"] >= LIMIT_US]
    for row in slow:
        print(f"{row['speculator']} takes {row['propose_us']:.1f} us at {row['length']:,} tokens: over {LIMIT_US} us")
    return 1 if slow else 0


if __name__ == "__main__":
    raise SystemExit(main())
