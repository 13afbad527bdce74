"""From the arguments of ``pyspec generate`` to what the library is called with, contradictions refused."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pyspec.cli.options import SAMPLING_OPTIONS, unescape
from pyspec.cli.parser import UsageError, given, with_flag
from pyspec.cli.spec_options import Speculator, read_speculation
from pyspec.cli.synthetic import read_synthetic
from pyspec.errors import InvalidRequest
from pyspec.sampling import SamplingParams


@dataclass(frozen=True)
class Generate:
    """Everything ``pyspec generate`` was asked for.

    Attributes:
        model: the target, a path or a registered name.
        engine: parameters of the engine that were given; the others keep their defaults.
        speculation: ``"none"``; ``"auto"``: nothing was said; or who drafts.
        prompt: text, or bytes where it is not UTF-8.
        system: the system message of a chat.
        chat: the prompt is a message, to be put into the model's chat template.
    """

    model: str
    engine: dict[str, Any]
    speculation: Literal["none", "auto"] | tuple[Speculator, ...]
    sampling: SamplingParams
    prompt: str | bytes
    system: str | None
    chat: bool
    display_prompt: bool
    show_timings: bool
    color: str
    compare: bool
    json: bool
    verbosity: int


def read_config(args: argparse.Namespace) -> Generate:
    """The configuration the arguments stand for.

    Raises:
        UsageError: for arguments that contradict each other, a value the library refuses, or a file that
            cannot be read.
    """
    sampling = _sampling(args)
    if sampling.logprobs is not None and not args.json:
        raise UsageError("--logprobs needs --json, which shows them")
    speculation = read_speculation(args)
    if args.compare and not isinstance(speculation, tuple):
        raise UsageError("--compare compares with speculation: give a draft model with -md FNAME, or --spec-type TYPE")
    engine = given(args, "engine")
    if (synthetic := read_synthetic(args)) is not None:
        if not isinstance(speculation, tuple):
            raise UsageError("synthetic acceptance needs somebody who drafts: -md FNAME, or --spec-type TYPE")
        engine["synthetic"] = synthetic
    chat, system = args.chat, _system(args)
    if system is not None and not chat:
        raise UsageError("a system message needs --chat")
    return Generate(
        model=args.model,
        engine=engine,
        speculation=speculation,
        sampling=sampling,
        prompt=_as_text_or_bytes(_prompt(args)),
        system=system,
        chat=chat,
        # A chat template's markers are no pleasure to read.
        display_prompt=(not chat) if args.display_prompt is None else args.display_prompt,
        show_timings=args.show_timings,
        color=args.color,
        compare=args.compare,
        json=args.json,
        verbosity=args.verbosity,
    )


def _sampling(args: argparse.Namespace) -> SamplingParams:
    values = given(args, "sampling")
    for name, flag in (("grammar", "--grammar"), ("json_schema", "--json-schema")):
        if (path := values.pop(f"{name}_file", None)) is not None:
            if name in values:
                raise UsageError(f"{flag} and {flag}-file contradict each other: leave one of them out")
            values[name] = _read_text(path, f"{flag}-file")
    if breakers := values.get("dry_sequence_breakers"):
        if "none" in breakers:
            if set(breakers) != {"none"}:
                raise UsageError("--dry-sequence-breaker none contradicts the others: none means that there are none")
            breakers = []
        values["dry_sequence_breakers"] = [_escapes(args, text) for text in breakers]
    if "stop" in values:
        values["stop"] = [_escapes(args, text) for text in values["stop"]]
    try:
        return SamplingParams(**values)
    except InvalidRequest as error:
        raise UsageError(with_flag(error, SAMPLING_OPTIONS)) from error


def _prompt(args: argparse.Namespace) -> str:
    if args.prompt is not None:
        return _escapes(args, args.prompt)
    if args.file is None and sys.stdin.isatty():
        raise UsageError("there is no prompt: give one with -p TEXT or -f FNAME, or pipe it in")
    return _read_text(args.file or "-", "--file").removesuffix("\n")


def _system(args: argparse.Namespace) -> str | None:
    if args.system_prompt_file is not None:
        return _read_text(args.system_prompt_file, "--system-prompt-file").removesuffix("\n")
    return None if args.system_prompt is None else _escapes(args, args.system_prompt)


def _escapes(args: argparse.Namespace, text: str) -> str:
    return unescape(text) if args.escape else text


def _read_text(path: str, flag: str) -> str:
    """A file, or standard input for ``-``. Bytes that are not UTF-8 are kept as lone surrogates."""
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"{flag}: cannot read {path!r}: {error.strerror}") from error
    return data.decode("utf-8", "surrogateescape")


def _as_text_or_bytes(text: str) -> str | bytes:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogateescape")
    return text
