"""``pyspec models``: the registered models: what there is, getting them, where they are."""

from __future__ import annotations

import argparse
import json
import sys

from rich import box
from rich.table import Table

from pyspec import models
from pyspec.cli.console import FetchDisplay, error_console, output_console
from pyspec.cli.parser import Parser, UsageError
from pyspec.errors import FetchError


def add_parser(commands: argparse._SubParsersAction[Parser]) -> None:
    """Adds ``pyspec models`` and its three commands."""
    parser = commands.add_parser(
        "models",
        help="list and fetch the registered models",
        description="The models that have a name: two are fetched, one comes with the package, the others are made "
        "from the two by quantizing.",
    )
    actions = parser.add_subparsers(title="commands", dest="action", required=True, metavar="COMMAND")
    listing = actions.add_parser("list", help="show all registered models and which are there")
    listing.add_argument("--json", action="store_true", help="print JSON")
    listing.set_defaults(run=_list)
    fetch = actions.add_parser("fetch", help="fetch or make models, and print their paths")
    fetch.add_argument("names", nargs="+", metavar="NAME")
    fetch.set_defaults(run=_fetch)
    path = actions.add_parser("path", help="print the path of a model that is there; fetches nothing")
    path.add_argument("name", metavar="NAME")
    path.set_defaults(run=_path)


def _list(args: argparse.Namespace) -> int:
    listed = models.list_models()
    if args.json:
        print(json.dumps([{**vars(info), "path": str(info.path)} for info in listed], indent=2))
        return 0
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("name", style="bold", no_wrap=True)
    table.add_column("weights", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("from", no_wrap=True)
    table.add_column("licence", no_wrap=True)
    style = {"ready": "green", "unchecked": "yellow", "to fetch": "dim", "to make": "dim"}
    for info in listed:
        state = f"[{style[info.state]}]{info.state}[/]"
        size = f"{info.size / 1e6:,.0f} MB"
        number = len(info.packages)
        origin = f"{number} package{'s'[: number > 1]}" if number else info.base if info.base != info.name else "pyspec"
        table.add_row(info.name, info.file_type, size, state, origin, info.licence)
    console = output_console()
    console.print(table)
    console.print(f"in {models.cache_dir()}", style="dim", soft_wrap=True)
    return 0


def _fetch(args: argparse.Namespace) -> int:
    for name in args.names:
        _known(name)
    with FetchDisplay(error_console()) as display:
        for name in args.names:
            path = models.fetch(name, display)
            display.clear()
            print(path, flush=True)
    return 0


def _path(args: argparse.Namespace) -> int:
    _known(args.name)
    path = models.find(args.name)
    if path is None:
        raise FetchError(f"{args.name} is not there (or not complete); get it with 'pyspec models fetch {args.name}'")
    sys.stdout.write(f"{path}\n")
    return 0


def _known(name: str) -> None:
    if name not in models.names():
        raise UsageError(f"no registered model is called {name!r}; there are {', '.join(models.names())}")
