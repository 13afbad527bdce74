"""The names of samplers and parameters, in every spelling llama.cpp knows them by.

One canonical name each; the other spellings are accepted on the way in and never come out again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pyspec.errors import InvalidRequest
from pyspec.sampling.checks import shown

# Canonical sampler name -> letter code, in llama.cpp's order of declaration (common/sampling.cpp).
SAMPLER_CODES: Mapping[str, str] = {
    "dry": "d",
    "top_k": "k",
    "top_p": "p",
    "top_n_sigma": "s",
    "typ_p": "y",
    "min_p": "m",
    "temperature": "t",
    "xtc": "x",
    "infill": "i",
    "penalties": "e",
    "adaptive_p": "a",
}

DEFAULT_SAMPLERS = (
    "penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature",
)  # fmt: skip


def _spellings() -> dict[str, str]:
    known = {"nucleus": "top_p", "temp": "temperature", "typ": "typ_p"}
    for name in SAMPLER_CODES:
        known[name] = known[name.replace("_", "-")] = known[name.replace("_", "")] = name
    return known


_SPELLINGS = _spellings()
_BY_CODE = {code: name for name, code in SAMPLER_CODES.items()}


def sampler_names(given: str | Iterable[str]) -> tuple[str, ...]:
    """Canonical names of a sampler order.

    Args:
        given: names or letter codes in order; or one string, read as names separated by ``;`` if its
            first part is a name, else as letter codes (``"edskypmxt"`` is the default order).

    Raises:
        InvalidRequest: for a name that no sampler has.
    """
    if isinstance(given, str):
        parts = [part.strip() for part in given.split(";") if part.strip()]
        is_codes = len(parts) == 1 and parts[0].lower() not in _SPELLINGS and set(parts[0]) <= set(_BY_CODE)
        entries: list[str] = list(parts[0]) if is_codes else parts
    else:
        entries = list(given)
    names = []
    for entry in entries:
        name = None
        if isinstance(entry, str):
            name = _SPELLINGS.get(entry.lower()) or _BY_CODE.get(entry)
        if name is None:
            known = ", ".join(f"{name} ({code})" for name, code in SAMPLER_CODES.items())
            raise InvalidRequest(f"samplers: there is no sampler {shown(entry)}; known are {known}",
                                 name="samplers", value=given)  # fmt: skip
        names.append(name)
    return tuple(names)


# Other names of parameters: llama.cpp's command line and server, and the usual completion APIs.
PARAM_ALIASES: Mapping[str, str] = {
    "temp": "temperature",
    "typical": "typ_p",
    "typical_p": "typ_p",
    "top_nsigma": "top_n_sigma",
    "dynatemp_exp": "dynatemp_exponent",
    "repeat_last_n": "penalty_last_n",
    "repeat_penalty": "penalty_repeat",
    "repetition_penalty": "penalty_repeat",
    "frequency_penalty": "penalty_freq",
    "presence_penalty": "penalty_present",
    "dry_sequence_breaker": "dry_sequence_breakers",
    "mirostat_lr": "mirostat_eta",
    "mirostat_ent": "mirostat_tau",
    "sampler_seq": "samplers",
    "sampling_seq": "samplers",
    "n_probs": "logprobs",
    "post_sampling_probs": "logprobs_mode",
    "n_predict": "max_tokens",
    "max_completion_tokens": "max_tokens",
}


def param_names(given: Mapping[str, Any]) -> dict[str, Any]:
    """The same parameters under their canonical names.

    Dashes count as underscores. Two llama.cpp values that mean "none" there are turned into ``None``:
    ``n_predict`` below 0 (no limit) and ``n_probs`` 0 (no probabilities). Its ``post_sampling_probs`` becomes a
    ``logprobs_mode``; triggers without its ``grammar_lazy`` are none.

    Raises:
        InvalidRequest: if one parameter is given under two names.
    """
    result: dict[str, Any] = {}
    given = dict(given)
    if given.pop("grammar_lazy", True) is False:
        given.pop("grammar_triggers", None)
    for key, value in given.items():
        plain = key.replace("-", "_")
        name = PARAM_ALIASES.get(plain, plain)
        if name in result:
            raise InvalidRequest(f"{name} is given twice, once as {key!r}", name=key, value=value)
        if (plain == "n_predict" and value in (-1, -2)) or (plain == "n_probs" and value == 0):
            value = None
        if plain == "post_sampling_probs" and isinstance(value, bool):
            value = "sampled" if value else "raw"
        result[name] = value
    return result
