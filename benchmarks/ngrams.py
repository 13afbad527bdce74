#!/usr/bin/env python3
"""N-gram speculation here and in llama.cpp: same types, same settings, same model, same machine, same run.

    make example
    python benchmarks/ngrams.py

For each n-gram type with llama.cpp's defaults, and for what pyspec drafts with if nothing is said, on prompts that are
repeated and edited copies: plain decoding and speculation here, and `llama-speculative-simple` from the same tree with
the same flags and thread count, in turn. Greedy. Prints medians and ratios, writes everything as JSON.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
from pathlib import Path
from typing import Any

from example import ROOT, require_example, run_example

import pyspec
from pyspec import Engine, NGramCache, NGramMapK, NGramMapK4V, NGramMod, NGramSimple, SamplingParams, models
from pyspec.bench.kinds import prompts_of

TYPES: dict[str, Any] = {
    "ngram-simple": NGramSimple(),
    "ngram-map-k": NGramMapK(),
    "ngram-map-k4v": NGramMapK4V(),
    "ngram-mod": NGramMod(),
    "ngram-cache": NGramCache(),
}
AUTO = "auto"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-m", "--model", default="smollm2-f32")
    parser.add_argument("--kinds", default="repetition,code-edit")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=3, help="of each kind (default: 3, all)")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "ngrams.json")
    args = parser.parse_args()
    require_example()
    path = models.resolve(args.model)
    kinds = args.kinds.split(",")
    params = SamplingParams(temperature=0.0, max_tokens=args.tokens, ignore_eos=True)
    rows: list[dict[str, Any]] = []
    options: dict[str, Any] = {"n_ctx": 2048, "n_threads": args.threads, "prefix_reuse": False}

    from rich.console import Console
    from rich.progress import track
    from rich.table import Table

    with tempfile.TemporaryDirectory() as folder, pyspec.Model(str(path)) as model:
        prompts = [
            (kind, i, prompt.text(model, as_chat=True))
            for kind in kinds
            for i, prompt in enumerate(prompts_of(kind)[: args.prompts])
        ]
        engines = {name: Engine(model, speculation=spec, **options) for name, spec in TYPES.items()}
        engines[AUTO] = Engine(model, speculation="auto", **options)
        plain = Engine(model, speculation=None, **options)
        for engine in (plain, *engines.values()):
            engine.generate("a", params.replace(max_tokens=4), n_draft_max=0)
        turns = [(repetition, *prompt) for repetition in range(args.repetitions) for prompt in prompts]
        for repetition, kind, number, text in track(turns, description="measuring"):
            key = {"kind": kind, "prompt": number, "repetition": repetition}
            file = Path(folder) / "prompt.txt"
            file.write_text(text + "\n", encoding="utf-8")  # it drops one line end
            before = plain.generate(text, params).stats.tokens_per_second
            rows.append({**key, "type": "plain", "program": "pyspec", "tokens_per_second": before})
            for name, engine in engines.items():
                stats = engine.generate(text, params).stats
                rows.append({**key, "type": name, "program": "pyspec", "tokens_per_second": stats.tokens_per_second,
                             "ratio": stats.tokens_per_second / before, "rounds": stats.rounds,
                             "drafted": stats.drafted, "accepted": stats.accepted})  # fmt: skip
                if name != AUTO:
                    theirs = run_example(path, file, args.tokens, args.threads, ["--spec-type", name], n_ctx=2048)
                    speed = theirs.n_tokens / theirs.generation_s
                    rows.append({**key, "type": name, "program": "llama.cpp", "tokens_per_second": speed,
                                 "ratio": speed / before, "rounds": theirs.rounds, "drafted": theirs.drafted,
                                 "accepted": theirs.accepted})  # fmt: skip
        for engine in (plain, *engines.values()):
            engine.close()

    def median(kind: str, name: str, program: str, column: str) -> float:
        chosen = [r[column] for r in rows if (r["kind"], r["type"], r["program"]) == (kind, name, program)]
        return statistics.median(chosen)

    console, summary = Console(), {}
    for kind in kinds:
        table = Table(title=f"{kind}: times plain decoding, medians")
        for column in ("", "pyspec", "llama.cpp", "pyspec / llama.cpp"):
            table.add_column(column, justify="left" if not column else "right")
        summary[kind] = {}
        for name in (*TYPES, AUTO):
            ours = median(kind, name, "pyspec", "ratio")
            entry: dict[str, float] = {"pyspec": ours}
            if name != AUTO:
                theirs_ratio = median(kind, name, "llama.cpp", "ratio")
                entry |= {"llama.cpp": theirs_ratio, "pyspec / llama.cpp": ours / theirs_ratio}
            summary[kind][name] = entry
            table.add_row(name, *(f"{entry[c]:.2f}" if c in entry else "" for c in
                                  ("pyspec", "llama.cpp", "pyspec / llama.cpp")))  # fmt: skip
        console.print(table)
    settings = {name: getattr(args, name) for name in ("model", "repetitions", "prompts", "tokens", "threads")}
    machine = {"platform": platform.platform(), **pyspec.build_info()}
    report = {"machine": machine, "settings": settings, "summary": summary, "runs": rows}
    args.output.write_text(json.dumps(report, indent=1, default=str) + "\n", encoding="utf-8")
    console.print(f"written: {args.output.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
