"""Files of llama.cpp's lookup caches: which token followed which n-gram how often.

``llama-lookup-create``, ``llama-lookup-merge`` and llama.cpp's lookup examples read and write the same. A
static cache from a corpus of one's own::

    cache = LookupCache()
    for text in corpus:
        cache.update(engine.tokenize(text), low=2, high=2)
    lookup_file.save("static.bin", cache)
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from pyspec._ngram import LookupCache
from pyspec.errors import InvalidRequest, StateError


def load(path: str | os.PathLike[str], n_vocab: int | None = None) -> LookupCache:
    """Reads a file.

    Args:
        path: of the file.
        n_vocab: size of the vocabulary its tokens must be in; None: not checked.

    Raises:
        InvalidRequest: the file is missing or can't be read.
        StateError: it is damaged or of another vocabulary. The message says what is wrong, at which byte.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InvalidRequest(
            f"the lookup cache {os.fspath(path)} can't be read: {error.strerror or error}",
            name="path",
            value=path,
        ) from error
    try:
        return LookupCache.from_bytes(data, n_vocab)
    except StateError as error:
        raise StateError(f"the lookup cache {os.fspath(path)} is damaged or not one: {error}") from None


def save(path: str | os.PathLike[str], cache: LookupCache) -> None:
    """Writes a file. What stood there before stays whole until the new content is all written.

    Raises:
        OSError: the file can't be written.
    """
    path = Path(path)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_bytes(cache.to_bytes())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def merge(paths: Iterable[str | os.PathLike[str]], n_vocab: int | None = None) -> LookupCache:
    """The counts of several files together. Errors as `load`."""
    merged = LookupCache()
    for path in paths:
        merged.merge(load(path, n_vocab))
    return merged
