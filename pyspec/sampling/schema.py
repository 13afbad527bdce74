"""JSON Schemas as parameters: from all the ways to give one to its JSON text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyspec.errors import GrammarError
from pyspec.sampling.checks import shown, wrong

# Words for "an object, whatever is in it".
_ANY_OBJECT = ("json_object", "json object")


def schema_text(name: str, value: Any) -> str | None:
    """A schema's JSON text, its keys in the order they were given in; None for None.

    Raises:
        InvalidRequest: it is neither a mapping nor a string.
        GrammarError: it is no JSON, or no schema.
    """
    if value is None:
        return None
    if isinstance(value, str):
        schema = {"type": "object"} if value in _ANY_OBJECT else _parsed(name, value)
    else:
        schema = value
    if schema is True:  # allows what {} allows
        schema = {}
    if schema is False:
        raise GrammarError(f"{name} is false, which allows nothing", name=name, value=value)
    if not isinstance(schema, Mapping):
        if not isinstance(value, str):
            raise wrong(name, value, "a JSON Schema: a mapping, or its JSON text")
        raise GrammarError(f"{name} is no schema, which is an object, but {shown(value)}", name=name, value=value)
    try:
        return json.dumps(dict(schema), allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise GrammarError(f"{name} can't be written as JSON: {error}", name=name, value=value) from None


def _parsed(name: str, value: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"{name} is no JSON: {error}: {shown(value)}", name=name, value=value) from None
