#!/usr/bin/env python3
"""In how wide a decode rows are exact, by type of the weights and settings of the context: the table of the docs.

    python benchmarks/exactness.py
    python benchmarks/exactness.py --models smollm2 --types q4_1,q8_0 --rows 12

The registered models are quantized to each type in a temporary folder (from their F32 form, unless they are that type
already), and `pyspec.exactness.row_invariance` looks at each under several settings. What is in the output file is not
measured again, so a run that was stopped goes on where it was. Prints the table as Markdown.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from pyspec import Model, build_info, models
from pyspec._llama import quantize
from pyspec.exactness import RowInvariance, row_invariance

ROOT = Path(__file__).resolve().parent.parent
TYPES = "f32,f16,bf16,q8_0,q6_k,q5_0,q4_k,q4_1,q4_0,iq4_nl"
# ggml's names of these types are not names of files' types.
FILE_TYPES = {"q4_k": "q4_k_s"}

# What is looked at: (name, settings of the context, whether weights are repacked).
SETTINGS: tuple[tuple[str, dict[str, Any], bool], ...] = (
    ("K, V f16", {}, True),
    ("K f16, V bf16", {"type_v": "bf16"}, True),
    ("K, V bf16", {"type_k": "bf16", "type_v": "bf16"}, True),
    ("K, V q8_0", {"type_k": "q8_0", "type_v": "q8_0"}, True),
    ("no flash attention", {"flash_attn": "off"}, True),
    ("V bf16, not repacked", {"type_v": "bf16"}, False),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default="smollm2,gemma3")
    parser.add_argument("--types", default=TYPES)
    parser.add_argument("--rows", type=int, default=20, help="widest decode (default: 20)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after so long; the next run goes on")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "exactness.json")
    args = parser.parse_args()

    found: dict[str, Any] = json.loads(args.output.read_text(encoding="utf-8")) if args.output.exists() else {}
    build = "with llamafile" if build_info()["llamafile"] else "without llamafile"
    deadline = time.monotonic() + 60.0 * args.minutes
    for name in args.models.split(","):
        for kind in args.types.split(","):
            todo = [s for s in SETTINGS if "|".join((name, kind, build, s[0])) not in found]
            if not todo or time.monotonic() > deadline:
                continue
            with tempfile.TemporaryDirectory() as folder:
                path = as_type(name, kind, Path(folder))
                for repacked in (True, False):
                    settings = [s for s in todo if s[2] == repacked]
                    if not settings:
                        continue
                    with Model(str(path), use_extra_bufts=repacked) as model:
                        for label, options, _ in settings:
                            if time.monotonic() > deadline:
                                break
                            its = row_invariance(model, n_rows=args.rows, n_threads=args.threads, **options)
                            found["|".join((name, kind, build, label))] = summary(its)
                            args.output.parent.mkdir(parents=True, exist_ok=True)
                            args.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
                            print(f"{name} {kind} {label}: {its.width}, {its.paired_width}", flush=True)
    print(table(found))


def as_type(name: str, kind: str, folder: Path) -> Path:
    """The model with its weights in one type."""
    own = {"smollm2": "q4_1"}.get(name)
    if kind == own:
        return models.resolve(name)
    source = models.resolve(f"{name}-f32")
    if kind == "f32":
        return source
    path = folder / f"{name}-{kind}.gguf"
    quantize(str(source), str(path), FILE_TYPES.get(kind, kind), allow_requantize=True, pure=True)
    return path


def summary(found: RowInvariance) -> dict[str, Any]:
    """What the table needs, and what a reader may ask next."""
    alone = [c for c in found.comparisons if c.reference == 1]
    wrong = [c for c in alone if not c.exact]
    shallow = [c for c in alone if c.depth < 255]
    return {
        "width": found.width,
        "paired_width": found.paired_width,
        "limit": found.limit,
        "width_at_the_beginning": min([min(c.rows) - 1 for c in shallow if not c.exact], default=found.limit),
        "largest_difference": max((c.largest for c in wrong), default=0.0),
        "flips": sum(c.flips for c in wrong),
        "rows_that_may_differ": sum(c.compared for c in wrong),
        "ms": {str(rows): round(ms, 2) for rows, ms in found.ms.items()},
    }


def table(found: dict[str, Any]) -> str:
    """Markdown: a line for each model, type and build; a column for each setting."""
    labels = [name for name, _, _ in SETTINGS]
    lines = ["| weights | " + " | ".join(labels) + " |", "|---" * (1 + len(labels)) + "|"]
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    for key, entry in found.items():
        name, kind, build, label = key.split("|")
        rows.setdefault((name, kind, build), {})[label] = entry
    for (name, kind, build), entries in rows.items():
        cells = [cell(entries[label]) if label in entries else "" for label in labels]
        lines.append(f"| {name} {kind.upper()}, {build} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def cell(entry: dict[str, Any]) -> str:
    """``all 20``; or ``3; pairs 20; 0.12``: exact up to 3 rows, from 2 rows on up to 20, else off by up to 0.12."""
    if entry["width"] == entry["limit"]:
        return f"all {entry['limit']}"
    parts = [str(entry["width"]) if entry["width"] > 1 else "none"]
    if entry["width_at_the_beginning"] > entry["width"]:
        parts.append(f"{entry['width_at_the_beginning']} at first")
    if entry["width"] == 1 and entry["paired_width"] > 2:
        parts.append(f"pairs {entry['paired_width']}")
    parts.append(f"{entry['largest_difference']:.2g}")
    return "; ".join(parts)


if __name__ == "__main__":
    main()
