"""Checking of parameter values: each returns the plain Python value, or raises InvalidRequest.

libllama keeps numbers as 32-bit floats and integers, so a value has to be finite and in range as one of
those: 1e300 would reach it as infinity.
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Iterable, Mapping
from typing import Any

from pyspec.errors import InvalidRequest

INT32_MIN = -(2**31)
INT32_MAX = 2**31 - 1
FLOAT32_MAX = 3.4028234663852886e38


def as_float32(value: float) -> float:
    """The value libllama computes with."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


def shown(value: Any) -> str:
    """A value as it stands in an error message: short, and whatever it is."""
    try:
        result = repr(value)
    except Exception:  # Python refuses to print integers of thousands of digits, for one
        return f"an unprintable {type(value).__name__}"
    return result if len(result) <= 200 else f"{result[:160]}... ({len(result)} characters)"


def wrong(name: str, value: Any, allowed: str) -> InvalidRequest:
    """The error for a parameter that is not what ``allowed`` says."""
    return InvalidRequest(f"{name} must be {allowed}, not {shown(value)}", name=name, value=value)


def boolean(name: str, value: Any) -> bool:
    """True or False, nothing that merely counts as one of them."""
    if not isinstance(value, bool):
        raise wrong(name, value, "True or False")
    return value


def integer(name: str, value: Any, low: int, high: int) -> int:
    """An integer (of any integer type but bool) from low to high."""
    allowed = f"an integer from {low} to {high}"
    if isinstance(value, bool):
        raise wrong(name, value, allowed)
    try:
        result = operator.index(value)
    except TypeError:
        raise wrong(name, value, allowed) from None
    if not low <= result <= high:
        raise wrong(name, value, allowed)
    return result


def number(name: str, value: Any, low: float = -FLOAT32_MAX, high: float = FLOAT32_MAX) -> float:
    """A finite number (of any real type but bool) from low to high."""
    if high != FLOAT32_MAX and low != -FLOAT32_MAX:
        allowed = f"a number from {low:g} to {high:g}"
    elif high != FLOAT32_MAX:
        allowed = f"a finite number, at most {high:g}"
    elif low != -FLOAT32_MAX:
        allowed = f"a finite number, at least {low:g}"
    else:
        allowed = "a finite number"
    if isinstance(value, bool | str | bytes):
        raise wrong(name, value, allowed)
    try:
        result = float(value)
    except (TypeError, ValueError, OverflowError):
        raise wrong(name, value, allowed) from None
    if not (math.isfinite(result) and abs(result) <= FLOAT32_MAX and low <= result <= high):
        raise wrong(name, value, allowed)
    return result


def text(name: str, value: Any) -> str:
    """A string that can be handed to C: not empty, no NUL, no lone surrogates."""
    if not isinstance(value, str):
        raise wrong(name, value, "a string")
    if not value:
        raise InvalidRequest(
            f"{name} holds an empty string, which can't mean anything", name=name, value=value
        )
    if "\0" in value:
        raise InvalidRequest(
            f"{name} holds a string with a NUL character: {shown(value)}", name=name, value=value
        )
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidRequest(
            f"{name} holds a string that is not Unicode text (a lone surrogate): {shown(value)}",
            name=name,
            value=value,
        ) from None
    return value


def texts(name: str, value: Any) -> tuple[str, ...]:
    """One string, or several; None counts as none."""
    if value is None:
        return ()
    if isinstance(value, str):
        return (text(name, value),)
    if isinstance(value, bytes) or not isinstance(value, Iterable):
        raise wrong(name, value, "a string or a sequence of strings")
    return tuple(text(name, entry) for entry in value)


def token_ids(name: str, value: Any) -> tuple[int, ...]:
    """Several token ids; whether a vocabulary has them is not known here."""
    if value is None:
        return ()
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise wrong(name, value, "a sequence of token ids")
    return tuple(integer(name, entry, 0, INT32_MAX) for entry in value)


def biases(name: str, value: Any) -> dict[int, float]:
    """Token id -> what is added to its logit, a finite number or -inf.

    Also taken: pairs in a sequence, ids as decimal strings (what JSON makes of them), ``False`` for -inf.
    """
    if value is None:
        return {}
    allowed = "a mapping of token id to bias, or (id, bias) pairs"
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise wrong(name, value, allowed)
    pairs = value.items() if isinstance(value, Mapping) else value
    result: dict[int, float] = {}
    for pair in pairs:
        try:
            key, bias = pair
        except (TypeError, ValueError):
            raise wrong(name, pair, allowed) from None
        token = integer(name, int(key) if isinstance(key, str) and key.isdecimal() else key, 0, INT32_MAX)
        if token in result:
            raise InvalidRequest(f"{name} names token {token} twice", name=name, value=value)
        forbids = bias is False or (not isinstance(bias, str | bytes) and bias == -math.inf)
        result[token] = -math.inf if forbids else number(f"{name}[{token}]", bias)
    return result
