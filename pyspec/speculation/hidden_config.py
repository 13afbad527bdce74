"""What a user says about a draft that reads the target's hidden states: one frozen dataclass per kind."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from typing import Any, ClassVar

from pyspec.errors import InvalidRequest
from pyspec.speculation.config import check_drafting


@dataclass(frozen=True)
class HiddenStateDraft:
    """What all of these have in common. Use one of its subclasses.

    Names and defaults are llama.cpp's ``--spec-draft-*`` where they mean the same.

    Attributes:
        path: a GGUF file, or a name that ``pyspec models list`` knows.
        n_max: longest draft, 1 or more. A model that makes one draft in one piece, or has a layer for each token of it,
            makes none longer than that.
        n_min: shortest draft worth verifying, 0..n_max. Shorter ones (see p_min) are discarded.
        p_min: 0..1. Drafting stops before a token the draft gives a lower probability, among its ten best. 0 never
            stops early.
        n_batch: most rows of one draft decode: how a long prompt is cut when the draft reads it.
        n_gpu_layers: layers kept on the GPU; -1: all.
        n_threads: threads for decodes of one row; 0: as the target.
        n_threads_batch: threads for larger decodes; 0: as n_threads.
        type_k: type of the K cache ("f16", "q8_0", ...). f16 unless said, whatever the target's is.
        type_v: type of the V cache; quantized ones need flash attention.
        flash_attn: "auto", "on" or "off".
        vocab, vocab_slots, vocab_max_miss: tokens the draft chooses from, as of a `DraftModel`. A head can be reduced
            where it is the model's only one and its own: not where NextN layers have heads of their own, an EAGLE-3
            draft borrows its target's or is reduced already (d2t), or a block is drafted at once. Then the whole one
            drafts, and a warning says why.

    Raises:
        InvalidRequest: for a value outside its range, or n_min above n_max.
    """

    kind: ClassVar[str]
    own_file: ClassVar[bool] = True  # it needs one

    path: str | os.PathLike[str] | None = None
    _: KW_ONLY
    n_max: int = 3
    n_min: int = 0
    p_min: float = 0.0
    n_batch: int = 512
    n_gpu_layers: int = -1
    n_threads: int = 0
    n_threads_batch: int = 0
    type_k: str = "f16"
    type_v: str = "f16"
    flash_attn: str = "auto"
    vocab: str | os.PathLike[str] | Sequence[int] | None = None
    vocab_slots: int = 1024
    vocab_max_miss: float = 0.1

    def __post_init__(self) -> None:
        if self.path is not None or self.own_file:
            if not isinstance(self.path, str | os.PathLike) or not os.fspath(self.path):
                raise InvalidRequest(f"path must be a file name, not {self.path!r}", name="path", value=self.path)
            object.__setattr__(self, "path", os.fspath(self.path))
        check_drafting(self)

    def to_dict(self) -> dict[str, Any]:
        """All parameters by name; the class called with them makes an equal one."""
        return asdict(self)


@dataclass(frozen=True)
class DraftMTP(HiddenStateDraft):
    """draft-mtp: NextN layers (multi-token prediction) draft from the target's last hidden state.

    They are in the target's own file, or in a file of their own. Several of them draft one token each; a single one
    drafts on from its own hidden state.

    Attributes:
        path: a GGUF file with NextN layers for this target; None: the target's own.

    The other attributes are those of `HiddenStateDraft`.
    """

    kind: ClassVar[str] = "draft-mtp"
    own_file: ClassVar[bool] = False


@dataclass(frozen=True)
class DraftEagle3(HiddenStateDraft):
    """draft-eagle3: a layer that drafts from the inputs of three layers of the target, and then from its own output
    (Li et al., "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test", 2025).

    Embeddings and output head are its own, or the target's where its file has none. The attributes are those of
    `HiddenStateDraft`.
    """

    kind: ClassVar[str] = "draft-eagle3"


@dataclass(frozen=True)
class DraftDFlash(HiddenStateDraft):
    """draft-dflash: a model that fills in a block of masked tokens behind the text at once, reading the inputs of some
    layers of the target.

    n_max is at most the model's block size less one. The attributes are those of `HiddenStateDraft`.
    """

    kind: ClassVar[str] = "draft-dflash"


@dataclass(frozen=True)
class DraftDSpark(HiddenStateDraft):
    """draft-dspark: draft-dflash with a head that lets each token of a block follow from the one before it.

    Where the model has a head that says how likely each token is to be accepted, p_min is compared with that. The other
    attributes are those of `HiddenStateDraft`.
    """

    kind: ClassVar[str] = "draft-dspark"
