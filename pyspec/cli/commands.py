"""The commands there are, and how their arguments are read."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from pyspec.buildinfo import build_info
from pyspec.cli import bench, draft_vocab, exactness, generate, info, models
from pyspec.cli.parser import Parser, UsageError, unknown_arguments

__all__ = ["UsageError", "parse"]


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments of a command; ``run`` is the function that carries it out.

    Raises:
        UsageError: for what the command does not know or cannot read.
    """
    parser = _parser()
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        raise unknown_arguments(args.parser, unknown)
    return args


class _Version(argparse.Action):
    """Looks the versions up only when they are asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *rest: Any) -> None:
        built = build_info()
        print(f"pyspec {built['version']} (llama.cpp {built['llama_version']}, {built['llama_commit'][:9]})")
        parser.exit()


def _parser() -> Parser:
    parser = Parser(
        prog="pyspec",
        description="Lossless speculative decoding for llama.cpp: the same text, sooner.",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the versions and leave")
    commands = parser.add_subparsers(
        title="commands", dest="command", required=True, metavar="COMMAND", parser_class=Parser
    )
    for command in (generate, bench, info, exactness, models, draft_vocab):
        command.add_parser(commands)
    return parser
