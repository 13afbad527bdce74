"""``pyspec exactness``: in how wide a batch a model's rows are, to the bit, what they are alone, and why not wider."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from pyspec import models
from pyspec._llama import Model
from pyspec.buildinfo import build_info
from pyspec.cli.console import Bars, FetchDisplay, error_console, output_console, show_log
from pyspec.cli.parser import Parser, count
from pyspec.exactness.causes import Variant, compare_causes, conclusions
from pyspec.exactness.invariance import RowInvariance

_DESCRIPTION = """\
Decodes a text one row at a time and 2, 3, ... rows at a time, and compares the logits bit for bit; again with flash
attention, the type of the V cache and the repacking of weights switched. What was measured once is remembered.
"""

# Row counts whose cost is shown.
_SHOWN_ROWS = (1, 2, 3, 4, 5, 8, 12, 16, 24, 32)


def add_parser(commands: argparse._SubParsersAction[Parser]) -> None:
    """Adds ``pyspec exactness``."""
    parser = commands.add_parser(
        "exactness",
        help="measure in how wide a batch a model is exact to the bit",
        description=_DESCRIPTION,
    )
    # fmt: off
    parser.add_argument("model", metavar="MODEL", help="GGUF file or registered name")
    parser.add_argument("-fa", "--flash-attn", choices=("on", "off", "auto"), default="auto",
                        help="use Flash Attention (default: auto)")
    parser.add_argument("-ctk", "--cache-type-k", dest="type_k", default="f16", metavar="TYPE",
                        help="data type of the cache's keys (default: f16)")
    parser.add_argument("-ctv", "--cache-type-v", dest="type_v", default="f16", metavar="TYPE",
                        help="data type of the cache's values (default: f16)")
    parser.add_argument("--kv-type", metavar="TYPE", help="both of them")
    parser.add_argument("-nr", "--no-repack", dest="use_extra_bufts", action="store_false",
                        help="do not rearrange weights for the CPU while loading")
    parser.add_argument("-t", "--threads", dest="n_threads", type=int, default=0, metavar="N",
                        help="threads for one row (default: 0, as many as there are cores)")
    parser.add_argument("-tb", "--threads-batch", dest="n_threads_batch", type=int, default=0, metavar="N",
                        help="threads for several rows (default: 0, as --threads)")
    parser.add_argument("-ub", "--ubatch-size", dest="n_ubatch", type=int, default=512, metavar="N",
                        help="most tokens the backend computes at once (default: 512)")
    parser.add_argument("-ngl", "--gpu-layers", dest="n_gpu_layers", type=int, default=-1, metavar="N",
                        help="layers kept in GPU memory (default: -1, all)")
    parser.add_argument("-c", "--ctx-size", dest="n_ctx", type=count, default=1024, metavar="N",
                        help="look no deeper into a text than this (default: 1024)")
    parser.add_argument("--rows", type=count, default=33, metavar="N", help="widest decode to try (default: 33)")
    parser.add_argument("--slots", type=count, default=2, metavar="N",
                        help="also with rows of so many sequences in a decode (default: 2)")
    parser.add_argument("--prompt-rows", type=int, default=128, metavar="N",
                        help="also whether so many prompt tokens may be read at once (default: 128; 0: not asked)")
    parser.add_argument("--again", action="store_true", help="measure again what was measured before")
    parser.add_argument("--json", type=Path, metavar="FNAME", help="write all of it to a file; - for the terminal")
    # fmt: on
    parser.set_defaults(run=_run, parser=parser)


def _run(args: argparse.Namespace) -> int:
    console = error_console()
    show_log(console)
    with FetchDisplay(console) as display:
        path = str(models.resolve(args.model, display))
    settings: dict[str, Any] = {
        name: getattr(args, name)
        for name in ("flash_attn", "type_k", "type_v", "use_extra_bufts", "n_threads", "n_threads_batch", "n_ubatch")
    }
    if args.kv_type is not None:
        settings |= {"type_k": args.kv_type, "type_v": args.kv_type}
    found = _measure(console, path, args, settings)
    document = {
        "model": Path(path).name,
        "settings": settings,
        "llamafile": build_info()["llamafile"],
        "variants": [{**asdict(v), "found": v.found.to_dict()} for v in found],
        "conclusions": conclusions(found),
    }
    if args.json is not None and str(args.json) != "-":
        args.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    if str(args.json) == "-":
        print(json.dumps(document, indent=2))
    else:
        output_console().print(tables(Path(path).name, found))
    return 0


def _measure(console: Console, path: str, args: argparse.Namespace, settings: dict[str, Any]) -> list[Variant]:
    def load(repacked: bool) -> Model:
        return Model(path, n_gpu_layers=args.n_gpu_layers, use_extra_bufts=repacked)

    with Bars(console) as bars:
        return compare_causes(
            load,
            settings,
            progress=lambda what, done: bars.update(what, done, 1.0),
            remeasure=args.again,
            n_rows=max(args.rows, 2),
            n_slots=args.slots,
            n_ctx=args.n_ctx,
            prompt_rows=args.prompt_rows,
        )


def tables(name: str, found: list[Variant]) -> RenderableType:
    """What was found, for people: a row a variant, what wider decodes cost, and what follows."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim")
    table.add_column(name, no_wrap=True)
    for header in ("exact rows", "of 2 or more", "prompt", "beside a prompt", "largest difference", "flips"):
        table.add_column(header, justify="right")
    for variant in found:
        its = variant.found
        wrong = [c for c in its.comparisons if c.reference == 1 and not c.exact]
        table.add_row(
            variant.name,
            _width(its.width, its.limit),
            _width(its.paired_width, its.limit),
            str(its.prompt_width) if its.prompt_width > 1 else "no",
            {None: "", True: "yes", False: "no"}[its.with_prompt],
            f"{max(c.largest for c in wrong):.3g}" if wrong else "0",
            f"{sum(c.flips for c in wrong)} of {sum(c.compared for c in wrong)}" if wrong else "",
        )
    costs = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim")
    costs.add_column("ms per decode of rows", no_wrap=True)
    shown = [rows for rows in _SHOWN_ROWS if any(rows in v.found.ms for v in found)]
    for rows in shown:
        costs.add_column(str(rows), justify="right")
    for variant in found:
        costs.add_row(variant.name, *(_ms(variant.found, rows) for rows in shown))
    backend = f"CPU backend {'with' if build_info()['llamafile'] else 'without'} llamafile's matrix product."
    return Group(table, costs, Text("\n".join([*conclusions(found), backend])))


def _width(width: int, limit: int) -> str:
    return "none" if width < 2 else f"{width}, all tried" if width == limit else str(width)


def _ms(found: RowInvariance, rows: int) -> str:
    return f"{found.ms[rows]:.1f}" if rows in found.ms else ""
