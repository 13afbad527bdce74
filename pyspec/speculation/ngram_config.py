"""Speculators that need no model, as a user asks for them: one frozen dataclass per kind, checked when made.

Names and defaults are llama.cpp's ``--spec-ngram-*``. Each method is described where it is built:
`pyspec._ngram`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from pyspec._ngram import (
    LookupCache,
    NGramCacheRunner,
    NGramMapK4VRunner,
    NGramMapKRunner,
    NGramModRunner,
    NGramRunner,
    NGramSimpleRunner,
)
from pyspec.errors import InvalidRequest
from pyspec.speculation import lookup_file
from pyspec.speculation.config import check_integer, check_n_min

_log = logging.getLogger("pyspec.speculation")

# Longest n-grams and drafts, as in llama.cpp.
SIZE_MAX = 1024


@dataclass(frozen=True, kw_only=True)
class _SizedNGram:
    """The parameters three of the kinds have in common."""

    kind: ClassVar[str]
    _runner: ClassVar[Callable[..., NGramRunner]]

    size_n: int = 12
    size_m: int = 48
    min_hits: int = 1

    def __post_init__(self) -> None:
        check_integer(self.size_n, "size_n", 1, SIZE_MAX)
        check_integer(self.size_m, "size_m", 1, SIZE_MAX)
        check_integer(self.min_hits, "min_hits", 1)

    @property
    def n_max(self) -> int:
        """Longest draft."""
        return self.size_m

    @property
    def n_min(self) -> int:
        """Shortest draft that is submitted."""
        return 0

    def to_dict(self) -> dict[str, Any]:
        """All parameters by name; ``type(config)(**d)`` makes an equal one."""
        return asdict(self)

    def build(self, n_seq: int, n_vocab: int | None = None) -> NGramRunner:
        """The speculator for so many sequences. n_vocab has no effect: what it drafts is from the text."""
        return type(self)._runner(n_seq, **asdict(self))


@dataclass(frozen=True, kw_only=True)
class NGramSimple(_SizedNGram):
    """ngram-simple: the last size_n tokens have occurred before; proposes the size_m tokens that followed.

    Attributes:
        size_n: 1..1024. Short n-grams are found often and mislead often; long ones are found only where text
            is being repeated or copied, and there nearly all is accepted.
        size_m: 1..1024, longest draft. What is rejected costs rows of the target's batch; what a long copy
            saves grows with it.
        min_hits: how often the n-gram must have occurred before, 1 or more. 2 waits for a habit.

    Raises:
        InvalidRequest: for a value outside its range.
    """

    kind: ClassVar[str] = "ngram-simple"
    _runner = NGramSimpleRunner


@dataclass(frozen=True, kw_only=True)
class NGramMapK(_SizedNGram):
    """ngram-map-k: as ngram-simple, with a draft length learned for each n-gram from how its drafts went.

    Attributes:
        size_n: 1..1024, as in `NGramSimple`. Shorter n-grams do less harm here, as their drafts soon become
            short.
        size_m: 1..1024, longest draft, and the first one's length.
        min_hits: how often the n-gram must have occurred before, 1 or more.

    Raises:
        InvalidRequest: for a value outside its range.
    """

    kind: ClassVar[str] = "ngram-map-k"
    _runner = NGramMapKRunner


@dataclass(frozen=True, kw_only=True)
class NGramMapK4V(_SizedNGram):
    """ngram-map-k4v: counts up to four continuations of each n-gram, proposes what most have in common.

    For text in which the same words go on in different ways: a draft ends where the counts no longer say how.

    Attributes:
        size_n: 1..1024, as in `NGramSimple`. Short n-grams (3 to 6) are where the counts have something to
            say.
        size_m: 1..1024, length of the continuations that are told apart, and longest draft.
        min_hits: how often the n-gram must have occurred before, 1 or more.

    Raises:
        InvalidRequest: for a value outside its range.
    """

    kind: ClassVar[str] = "ngram-map-k4v"
    _runner = NGramMapK4VRunner


@dataclass(frozen=True, kw_only=True)
class NGramMod:
    """ngram-mod: long drafts where a long stretch of text is being repeated, pieced together token by token.

    Attributes:
        n_match: 1..1024, tokens that have to occur again. Below 16 the drafts are often wrong.
        n_max: 1..1024, longest draft.
        n_min: 0..n_max, shortest draft that is submitted. A high value drafts only where the repetition is
            long; it also means no drafts in the last n_min tokens before max_tokens or the end of the
            context.
        shared: let all requests of the engine draw on one table, so that the second request profits from the
            first. Off: nothing of one request reaches another.

    Raises:
        InvalidRequest: for a value outside its range, or n_min above n_max.
    """

    kind: ClassVar[str] = "ngram-mod"

    n_match: int = 24
    n_max: int = 64
    n_min: int = 48
    shared: bool = False

    def __post_init__(self) -> None:
        check_integer(self.n_match, "n_match", 1, SIZE_MAX)
        check_integer(self.n_max, "n_max", 1, SIZE_MAX)
        check_integer(self.n_min, "n_min", 0, SIZE_MAX)
        check_n_min(self.n_min, self.n_max)
        _check_flag(self.shared, "shared")

    def to_dict(self) -> dict[str, Any]:
        """All parameters by name; ``NGramMod(**d)`` makes an equal one."""
        return asdict(self)

    def build(self, n_seq: int, n_vocab: int | None = None) -> NGramModRunner:
        """The speculator for so many sequences. n_vocab has no effect: what it drafts is from texts."""
        return NGramModRunner(n_seq, **asdict(self))


@dataclass(frozen=True, kw_only=True)
class NGramCache:
    """ngram-cache: the likeliest next token after the last one to four, by counts of this text and of files.

    Attributes:
        n_draft: 1..1024, longest draft. Its drafts rest on short n-grams: beyond 8 they are seldom right,
            unless the text repeats itself.
        lookup_cache_static: a file of counts from a large corpus (``llama-lookup-create`` writes one, or
            `pyspec.speculation.lookup_file`). Helps most at the beginning of a text; None: none.
        lookup_cache_dynamic: a file of counts from earlier requests; None: none.
        save_dynamic: count what is written, prompts left out, and save it to lookup_cache_dynamic when the
            engine is closed; the file need not exist yet. Later requests of the same engine profit at once.
            Off: the file is only read, and nothing of one request reaches another.

    Raises:
        InvalidRequest: for a value outside its range, or save_dynamic without a file.
    """

    kind: ClassVar[str] = "ngram-cache"

    n_draft: int = 8
    lookup_cache_static: str | os.PathLike[str] | None = None
    lookup_cache_dynamic: str | os.PathLike[str] | None = None
    save_dynamic: bool = False

    def __post_init__(self) -> None:
        check_integer(self.n_draft, "n_draft", 1, SIZE_MAX)
        for name in ("lookup_cache_static", "lookup_cache_dynamic"):
            value = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, str | os.PathLike):
                raise InvalidRequest(f"{name} must be a file name, not {value!r}", name=name, value=value)
            object.__setattr__(self, name, os.fspath(value))
        _check_flag(self.save_dynamic, "save_dynamic")
        if self.save_dynamic and self.lookup_cache_dynamic is None:
            raise InvalidRequest(
                "save_dynamic needs to know where: give lookup_cache_dynamic", name="save_dynamic", value=True
            )

    @property
    def n_max(self) -> int:
        """Longest draft."""
        return self.n_draft

    @property
    def n_min(self) -> int:
        """Shortest draft that is submitted."""
        return 0

    def to_dict(self) -> dict[str, Any]:
        """All parameters by name; ``NGramCache(**d)`` makes an equal one."""
        return asdict(self)

    def build(self, n_seq: int, n_vocab: int | None = None) -> NGramCacheRunner:
        """The speculator, for so many sequences; reads the files.

        Args:
            n_seq: sequences it drafts for.
            n_vocab: size of the target's vocabulary, which the files' tokens must be in; None: not checked.

        Raises:
            InvalidRequest: a file is missing.
            StateError: a file is damaged, or has tokens outside the vocabulary.
        """
        corpus = learned = None
        if self.lookup_cache_static is not None:
            corpus = lookup_file.load(self.lookup_cache_static, n_vocab)
        if self.lookup_cache_dynamic is not None:
            path = Path(self.lookup_cache_dynamic)
            if self.save_dynamic and not path.exists():
                if not path.parent.is_dir():
                    raise InvalidRequest(
                        f"lookup_cache_dynamic can't be saved to {path}: there is no such directory",
                        name="lookup_cache_dynamic",
                        value=self.lookup_cache_dynamic,
                    )
                learned = LookupCache()
            else:
                learned = lookup_file.load(self.lookup_cache_dynamic, n_vocab)
        return NGramCacheRunner(
            n_seq, n_draft=self.n_draft, lookup_static=corpus, lookup_dynamic=learned, teach=self.save_dynamic
        )


NGramSpec = NGramSimple | NGramMapK | NGramMapK4V | NGramMod | NGramCache


def save_learned(spec: object, speculator: object) -> None:
    """Writes what an ngram-cache learned to its file, if it was to be saved. What goes wrong is logged."""
    if not isinstance(spec, NGramCache) or not isinstance(speculator, NGramCacheRunner):
        return
    if not spec.save_dynamic or spec.lookup_cache_dynamic is None or speculator.lookup_dynamic is None:
        return
    try:
        lookup_file.save(spec.lookup_cache_dynamic, speculator.lookup_dynamic)
    except OSError:
        _log.exception("the lookup cache %s could not be saved", spec.lookup_cache_dynamic)


def _check_flag(value: object, name: str) -> None:
    if not isinstance(value, bool):
        raise InvalidRequest(f"{name} must be True or False, not {value!r}", name=name, value=value)
