"""What a user says about a speculator: one frozen dataclass per kind, validated when it is made."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from typing import Any, Literal

from pyspec.errors import InvalidRequest

DraftSync = Literal["lazy", "replay"]


@dataclass(frozen=True)
class DraftModel:
    """draft-simple: a small model with the target's vocabulary proposes its best tokens.

    Names and defaults are llama.cpp's ``--spec-draft-*`` where they mean the same.

    Attributes:
        path: a GGUF file, or a name that ``pyspec models list`` knows.
        n_max: longest draft, 1 or more. Longer drafts win more when most of them is accepted and waste more when
            it is not: about 8 where nine of ten tokens are accepted, 2 to 4 where half of them are.
        n_min: shortest draft worth verifying, 0..n_max. Shorter ones (see p_min) are discarded.
        p_min: 0..1. Drafting stops before a token the draft model gives a lower probability, among its ten best.
            0 never stops early.
        n_ctx: tokens of context the draft model keeps, at least 16; None: as many as the target. A shorter window
            makes its decodes cheaper in long texts; when it is full it moves on, keeping the newer half.
        n_batch: most rows of one draft decode: how a long prompt is cut when the draft model reads it.
        n_gpu_layers: layers kept on the GPU; -1: all.
        n_threads: threads for decodes of one row; 0: as the target.
        n_threads_batch: threads for larger decodes; 0: as n_threads.
        type_k: type of the K cache ("f16", "q8_0", ...). f16 unless said, whatever the target's is.
        type_v: type of the V cache; quantized ones need flash attention.
        flash_attn: "auto", "on" or "off".
        sync: "lazy" evaluates every token once on the draft model. "replay" evaluates every target batch on it
            again, as llama.cpp does: same text, more work. For comparison.
        vocab: tokens the draft model chooses from, so that its output head is smaller and a draft costs less; the text
            is the target's as ever. A file that lists them (see ``pyspec draft-vocab``), token ids, or "auto": the
            list that comes with the package for this tokenizer, else the tokens that come first in its own order, if
            that makes the head cheaper on this machine. None: all. Where a model's head can't be reduced the whole one
            drafts, and a warning says why.
        vocab_slots: so many tokens change with the texts: what they contain and the list lacks is drafted as well,
            until others have displaced it. Beside a list that is given; with "auto" in the place of its rarest ones.
        vocab_max_miss: 0..1. While more than this share of the last 64 tokens could not be drafted, for most of the
            drafting sequences, the draft model uses its whole vocabulary; it returns below half of that.

    Raises:
        InvalidRequest: for a value outside its range, or n_min above n_max.
    """

    path: str | os.PathLike[str]
    _: KW_ONLY
    n_max: int = 3
    n_min: int = 0
    p_min: float = 0.0
    n_ctx: int | None = None
    n_batch: int = 512
    n_gpu_layers: int = -1
    n_threads: int = 0
    n_threads_batch: int = 0
    type_k: str = "f16"
    type_v: str = "f16"
    flash_attn: str = "auto"
    sync: DraftSync = "lazy"
    vocab: str | os.PathLike[str] | Sequence[int] | None = None
    vocab_slots: int = 1024
    vocab_max_miss: float = 0.1

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | os.PathLike):
            raise InvalidRequest(f"path must be a file name, not {self.path!r}", name="path", value=self.path)
        object.__setattr__(self, "path", os.fspath(self.path))
        check_drafting(self)
        if self.n_ctx is not None:
            check_integer(self.n_ctx, "n_ctx", 16)
        if self.sync not in ("lazy", "replay"):
            raise InvalidRequest(f"sync must be 'lazy' or 'replay', not {self.sync!r}", name="sync", value=self.sync)

    def to_dict(self) -> dict[str, Any]:
        """All parameters by name; ``DraftModel(**d)`` makes an equal one."""
        return asdict(self)


def check_drafting(draft: Any) -> None:
    """Checks what every draft that a model makes has in common: how long it may be, how the model computes, and which
    tokens it chooses from.

    Args:
        draft: has n_max, n_min, p_min, n_batch, n_gpu_layers, n_threads, n_threads_batch, vocab, vocab_slots and
            vocab_max_miss.

    Raises:
        InvalidRequest: a value is outside its range, or n_min above n_max.
    """
    for name, least in _LEAST.items():
        check_integer(getattr(draft, name), name, least)
    check_n_min(draft.n_min, draft.n_max)
    check_share(draft.p_min, "p_min")
    check_integer(draft.vocab_slots, "vocab_slots", 0)
    check_share(draft.vocab_max_miss, "vocab_max_miss")
    object.__setattr__(draft, "vocab", _vocab(draft.vocab))


_LEAST = {"n_max": 1, "n_min": 0, "n_batch": 1, "n_gpu_layers": -1, "n_threads": 0, "n_threads_batch": 0}


def _vocab(value: Any) -> str | tuple[int, ...] | None:
    """A file name, "auto", token ids or None."""
    if value is None or value == "none":
        return None
    if isinstance(value, str | os.PathLike) and os.fspath(value):
        return str(os.fspath(value))
    if not isinstance(value, Sequence) or isinstance(value, str | bytes) or not value:
        raise InvalidRequest(
            f"vocab must be 'auto', a file name, token ids or None, not {value!r}", name="vocab", value=value
        )
    return tuple(check_integer(token, "a token of vocab", 0) for token in value)


def check_share(value: object, name: str) -> float:
    """The value, if it is a number from 0 to 1; InvalidRequest otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InvalidRequest(f"{name} must be a number from 0 to 1, not {value!r}", name=name, value=value)
    return float(value)


def check_callback(value: object, name: str) -> None:
    """Raises InvalidRequest unless the value is None or can be called."""
    if value is not None and not callable(value):
        raise InvalidRequest(f"{name} must be a function or None, not {value!r}", name=name, value=value)


def check_seconds(value: object, name: str) -> float:
    """The value, if it is a number above 0; InvalidRequest otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise InvalidRequest(f"{name} must be seconds, more than 0, not {value!r}", name=name, value=value)
    return float(value)


def check_n_min(n_min: int, n_max: int) -> None:
    """Raises InvalidRequest where the shortest draft is longer than the longest."""
    if n_min > n_max:
        raise InvalidRequest(
            f"n_min ({n_min}) is above n_max ({n_max}): no draft could ever be submitted", name="n_min", value=n_min
        )


def check_integer(value: object, name: str, low: int, high: int = 2**31 - 1) -> int:
    """The value, if it is an integer from low to high; InvalidRequest otherwise."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(f"{name} must be an integer, not {value!r}", name=name, value=value)
    if not low <= value <= high:
        limit = f"at least {low}" if value < low else f"at most {high}"
        raise InvalidRequest(f"{name} must be {limit}, not {value}", name=name, value=value)
    return value
