"""``--spec-synth-rates`` and ``--spec-synth-len``: acceptance drawn at random, to measure what it would be worth."""

from __future__ import annotations

import argparse

from pyspec.cli.parser import UsageError
from pyspec.errors import InvalidRequest
from pyspec.speculation import Synthetic

RATES = "--spec-synth-rates"
LENGTH = "--spec-synth-len"


def add_synthetic_options(parser: argparse._ActionsContainer, *, short: bool = False) -> None:
    """Adds both options; only one of them can be used.

    Args:
        short: also as ``--synth-rates`` and ``--synth-len``.
    """
    either = parser.add_mutually_exclusive_group()
    either.add_argument(
        RATES,
        *(["--synth-rates"] if short else []),
        dest="synth_rates",
        type=_rates,
        metavar="P,P,...",
        help="accept drafted tokens at random: for each position the chance that it and all before it are accepted, "
        "never rising, as many as the longest draft has tokens. The text is not the model's",
    )
    either.add_argument(
        LENGTH,
        *(["--synth-len"] if short else []),
        dest="synth_len",
        type=float,
        metavar="L",
        help="the same, so that a round gives L tokens on average, from 1 to the longest draft and 1",
    )


def read_synthetic(args: argparse.Namespace) -> Synthetic | None:
    """What the arguments ask for; None: acceptance as it comes.

    Raises:
        UsageError: for numbers that are refused.
    """
    if args.synth_rates is None and args.synth_len is None:
        return None
    try:
        return Synthetic(rates=args.synth_rates, length=args.synth_len)
    except InvalidRequest as error:
        raise UsageError(f"{LENGTH if args.synth_rates is None else RATES}: {error}") from error


def _rates(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))
