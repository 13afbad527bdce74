"""Speculators as plain settings: dictionaries, TOML, and back without loss.

::

    [[speculators]]
    type = "ngram-mod"
    n_match = 16

    [[speculators]]
    type = "draft-simple"
    path = "draft.gguf"
    n_max = 8
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from pyspec.errors import InvalidRequest
from pyspec.speculation.config import DraftModel
from pyspec.speculation.grammar import GrammarDrafts
from pyspec.speculation.hidden_config import DraftDFlash, DraftDSpark, DraftEagle3, DraftMTP, HiddenStateDraft
from pyspec.speculation.ngram_config import (
    NGramCache,
    NGramMapK,
    NGramMapK4V,
    NGramMod,
    NGramSimple,
    NGramSpec,
)

Config = DraftModel | HiddenStateDraft | NGramSpec | GrammarDrafts

CONFIGS: dict[str, type[DraftModel] | type[HiddenStateDraft] | type[NGramSpec] | type[GrammarDrafts]] = {
    "draft-simple": DraftModel,
    "draft-mtp": DraftMTP,
    "draft-eagle3": DraftEagle3,
    "draft-dflash": DraftDFlash,
    "draft-dspark": DraftDSpark,
    "ngram-simple": NGramSimple,
    "ngram-map-k": NGramMapK,
    "ngram-map-k4v": NGramMapK4V,
    "ngram-mod": NGramMod,
    "ngram-cache": NGramCache,
    "grammar": GrammarDrafts,
}


def to_settings(specs: Iterable[Config]) -> list[dict[str, Any]]:
    """One dictionary per speculator, its type first; `from_settings` makes equal ones of them."""
    names = {config: name for name, config in CONFIGS.items()}
    return [{"type": names[type(spec)], **spec.to_dict()} for spec in specs]


def from_settings(settings: Iterable[Mapping[str, Any]]) -> list[Config]:
    """The speculators a list of dictionaries describes, in order.

    Args:
        settings: each with a "type" (llama.cpp's name of a speculator) and the parameters that differ from the
            defaults. ``[{"type": "none"}]`` is no speculation.

    Raises:
        InvalidRequest: an unknown type or parameter, "none" next to another type, or a value out of range.
    """
    entries = [dict(entry) for entry in settings]
    types = [entry.pop("type", None) for entry in entries]
    if "none" in types:
        if len(types) > 1 or entries[0]:
            raise InvalidRequest("type 'none' stands next to other settings", name="type", value=types)
        return []
    return [_spec(kind, entry) for kind, entry in zip(types, entries, strict=True)]


def read_toml(path: str | os.PathLike[str]) -> list[Config]:
    """The speculators of a TOML file's ``[[speculators]]`` tables (needs Python 3.11 or newer).

    Raises:
        InvalidRequest: the file is no TOML, has other keys, or settings that can't be.
        OSError: it can't be read.
    """
    try:
        tomllib = importlib.import_module("tomllib")
    except ImportError:
        raise InvalidRequest("reading TOML needs Python 3.11 or newer", name="path", value=path) from None
    with open(path, "rb") as file:
        try:
            content = tomllib.load(file)
        except tomllib.TOMLDecodeError as error:
            raise InvalidRequest(f"{os.fspath(path)} is no TOML: {error}", name="path", value=path) from None
    unknown = sorted(set(content) - {"speculators"})
    if unknown:
        raise InvalidRequest(f"{os.fspath(path)} has unknown keys: {', '.join(unknown)}", name="path", value=unknown)
    return from_settings(content.get("speculators", []))


def _spec(kind: Any, values: dict[str, Any]) -> Config:
    if kind not in CONFIGS:
        known = ", ".join(CONFIGS)
        raise InvalidRequest(f"type must be none or one of {known}, not {kind!r}", name="type", value=kind)
    config = CONFIGS[kind]
    known_names = {field.name for field in fields(config)} - {"_"}
    for name in values:
        if name not in known_names:
            raise InvalidRequest(
                f"{kind} has no parameter {name!r}; it has {', '.join(sorted(known_names))}",
                name=name,
                value=values[name],
            )
    if config is DraftModel and "path" not in values:
        raise InvalidRequest(f"{kind} needs a path", name="path", value=None)
    return config(**values)
