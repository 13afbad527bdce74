#!/usr/bin/env python3
"""What coupled sampling wins: drafted tokens that are accepted, with it and without, at temperatures above 0.

    python benchmarks/coupled.py
    python benchmarks/coupled.py --target smollm2-f32 --drafts smollm2 --prompts 10 --tokens 100

Each prompt of the benchmark set is answered with a seed of its own and a fixed draft length, with the default filters
(top-k 40, top-p 0.95, min-p 0.05) and with none. Counts are printed and written as JSON; nothing is timed. What is in
the output file is not done again.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from pyspec import DraftModel, Engine, SamplingParams, models
from pyspec.bench.prompts import prompts_for

ROOT = Path(__file__).resolve().parent.parent

FILTERS: dict[str, dict[str, Any]] = {
    "default": {},
    "none": {"top_k": 0, "top_p": 1.0, "min_p": 0.0},
}


def count(engine: Engine, prompts: list[str], params: SamplingParams) -> dict[str, Any]:
    """Over all prompts: tokens, rounds with a draft, drafted and accepted ones."""
    sums = {"tokens": 0, "drafted": 0, "accepted": 0, "rounds": 0}
    for i, prompt in enumerate(prompts):
        result = engine.generate(prompt, params.replace(seed=i))
        sums["tokens"] += len(result.token_ids)
        for name in ("drafted", "accepted", "rounds"):
            sums[name] += getattr(result.stats, name)
    rates = {"acceptance": sums["accepted"] / sums["drafted"], "tokens_per_round": sums["tokens"] / sums["rounds"]}
    return {**sums, **{name: round(rate, 4) for name, rate in rates.items()}}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", default="smollm2-f32")
    parser.add_argument("--drafts", default="smollm2,smollm2-q4_0")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.8, 1.0])
    parser.add_argument("--n-max", type=int, default=4)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "coupled.json")
    args = parser.parse_args()

    found: list[dict[str, Any]] = []
    if args.output.exists():
        found = json.loads(args.output.read_text(encoding="utf-8"))
    for draft in args.drafts.split(","):
        todo = [
            {
                "target": args.target, "draft": draft, "n_max": args.n_max, "filters": filters,
                "temperature": temperature, "coupled": coupled, "prompts": args.prompts, "max_tokens": args.tokens,
            }
            for filters in FILTERS for temperature in args.temperatures for coupled in (False, True)
        ]  # fmt: skip
        todo = [each for each in todo if not any(each.items() <= done.items() for done in found)]
        if not todo:
            continue
        speculation = DraftModel(models.resolve(draft), n_max=args.n_max)
        with Engine(models.resolve(args.target), speculation=speculation, n_ctx=1024, draft_length="fixed") as engine:
            prompts = prompts_for(chat=engine.model.chat_template() is not None)[: args.prompts]
            for each in todo:
                params = SamplingParams(
                    temperature=each["temperature"], coupled=each["coupled"], max_tokens=args.tokens, ignore_eos=True,
                    **FILTERS[each["filters"]],
                )  # fmt: skip
                found.append({**each, **count(engine, prompts, params)})
                args.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
                print(line(found[-1]), flush=True)
    return 0


def line(entry: dict[str, Any]) -> str:
    return (
        f"{entry['draft']:14}temperature {entry['temperature']:<5}filters {entry['filters']:9}"
        f"{'coupled' if entry['coupled'] else '':8}{entry['accepted']:6} of {entry['drafted']:6} accepted "
        f"({entry['acceptance']:.3f}), {entry['tokens_per_round']:.2f} tokens a round"
    )


if __name__ == "__main__":
    sys.exit(main())
