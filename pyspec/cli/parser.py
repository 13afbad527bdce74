"""What argparse lacks here: one-line errors, flags that know the field they set, removed flags."""

from __future__ import annotations

import argparse
import difflib
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any, NoReturn

from pyspec.errors import GrammarError, InvalidRequest


class UsageError(Exception):
    """What the user typed cannot work; the text says why. Ends the program with exit code 2."""


class Parser(argparse.ArgumentParser):
    """Raises :class:`UsageError` instead of printing a page of usage and leaving."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"formatter_class": _Help, "allow_abbrev": False, **kwargs})

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see '{self.prog} --help')")

    def flags(self) -> set[str]:
        """All option flags of this parser."""
        return {flag for action in self._actions for flag in action.option_strings}


class _Help(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32)


def count(text: str) -> int:
    """A number of things, for argparse: 1 or more."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number


@dataclass(frozen=True)
class Option:
    """A flag that sets one field of the library's configuration.

    Attributes:
        flags: llama.cpp's spellings of it.
        field: the parameter it sets.
        parse: text to value; raises ValueError.
        metavar: what the help calls the value; empty for a switch, which sets ``const``.
        repeat: the flag may be given several times and collects a list.
    """

    flags: tuple[str, ...]
    field: str
    parse: Callable[[str], Any]
    metavar: str
    help: str
    const: Any = None
    repeat: bool = False

    @property
    def long_flag(self) -> str:
        """The flag to use in messages."""
        return next((flag for flag in self.flags if flag.startswith("--")), self.flags[0])


def add_options(parser: argparse._ActionsContainer, prefix: str, options: Sequence[Option], defaults: Any) -> None:
    """Adds options whose values end up under ``prefix.field``, only if they were given.

    ``defaults`` is the dataclass or the callable the fields belong to; the help shows its defaults.
    """
    known = _defaults_of(defaults)
    for option in options:
        text = option.help.format(default=_plain(known.get(option.field)))
        keywords: dict[str, Any] = {
            "dest": f"{prefix}.{option.field}",
            "default": argparse.SUPPRESS,
            "help": text,
        }
        if not option.metavar:
            keywords |= {"action": "store_const", "const": option.const}
        else:
            keywords |= {"type": option.parse, "metavar": option.metavar}
            if option.repeat:
                keywords["action"] = "append"
        parser.add_argument(*option.flags, **keywords)


def with_flag(error: InvalidRequest, options: Iterable[Option]) -> str:
    """The text of an error about a value, with the flag that value came from in front."""
    name = "grammar" if isinstance(error, GrammarError) and error.name in (None, "text", "root") else error.name
    for option in options:
        if option.field == name:
            return f"{option.long_flag}: {error}"
    return str(error)


def given(args: argparse.Namespace, prefix: str) -> dict[str, Any]:
    """The fields under ``prefix`` that options were given for."""
    start = prefix + "."
    return {name[len(start) :]: value for name, value in vars(args).items() if name.startswith(start)}


class Removed(argparse.Action):
    """A flag that llama.cpp once had; using it names the new one."""

    def __init__(self, option_strings: Sequence[str], dest: str, *, use: str) -> None:
        super().__init__(option_strings, dest, nargs="?", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        self.use = use

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        flag: str | None = None,
    ) -> None:
        raise UsageError(f"{flag} is no longer an option of llama.cpp: use {self.use}")


def unknown_arguments(parser: Parser, unknown: Sequence[str]) -> UsageError:
    """The error for arguments no option took, with the flag that was perhaps meant."""
    flag = unknown[0].split("=")[0]
    close = difflib.get_close_matches(flag, parser.flags(), n=1, cutoff=0.75) if flag.startswith("-") else []
    hint = f", did you mean {close[0]}?" if close else ""
    return UsageError(f"unknown argument {unknown[0]!r}{hint} (see '{parser.prog} --help')")


def _defaults_of(target: Any) -> dict[str, Any]:
    if is_dataclass(target):
        return {f.name: f.default for f in fields(target) if f.default is not MISSING}
    return {
        name: parameter.default
        for name, parameter in inspect.signature(target).parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def terminal_has_color() -> bool:
    """Whether standard output is a terminal that can show colours, and nobody objects to them."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")
