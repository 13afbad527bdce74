"""Whether a target has what a draft reads of it. libllama would end the process for most of what is refused here.

A draft that reads hidden states has to fit its target in four ways: the architecture hands out the states it reads,
they are as wide as it expects, both have one vocabulary, and what its file leaves out (embeddings, an output head) the
target has in the right size.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

from pyspec._llama import Model
from pyspec.errors import ModelLoadError, UnsupportedModel, VocabMismatch
from pyspec.gguf_header import GGUFHeader, read_gguf
from pyspec.speculation.vocab_gate import check_vocabulary

# llama.cpp's, where a DFlash file does not say; and more than any file has good reason to.
DEFAULT_BLOCK_SIZE = 16
MAX_BLOCK_SIZE = 1024


def check_mtp(target: Model, draft: Model | None = None) -> int:
    """Checks NextN layers against the target they draft for.

    Args:
        target: the target.
        draft: a model with the NextN layers; None: the target's own.

    Returns:
        How many of the layers draft, one after the other.

    Raises:
        UnsupportedModel: there are none, or libllama can't run them, or the target has no hidden state for them.
        VocabMismatch: two files with different vocabularies.
    """
    model = target if draft is None else draft
    if model.n_layer_nextn == 0:
        raise UnsupportedModel(f"{model.path} ({model.arch}) has no NextN layers to draft with")
    if model.n_mtp_heads == 0:
        raise UnsupportedModel(
            f"{model.path} ({model.arch}) has {model.n_layer_nextn} NextN layers, which this llama.cpp can't run"
        )
    if not model.has_mtp:
        raise UnsupportedModel(
            f"the NextN layers of {model.path} were not loaded: open it with Model(path, load_mtp=True)"
        )
    if not target.has_nextn_state:
        raise UnsupportedModel(f"{target.path} ({target.arch}) does not hand out a hidden state for NextN layers")
    if draft is not None:
        _require_width(target, draft, target.n_embd_out, draft.n_embd_out)
        _require_same_vocabulary(target, draft)
    return model.n_mtp_heads


def check_eagle3(target: Model, draft: Model) -> None:
    """Checks an EAGLE-3 draft against its target.

    Raises:
        UnsupportedModel: it is none, or can't read this target; the message names the layer or the width.
        VocabMismatch: they have different vocabularies.
        ModelLoadError: its file contradicts itself; the message names the tensor.
    """
    if draft.arch != "eagle3":
        raise UnsupportedModel(f"{draft.path} ({draft.arch}) is no EAGLE-3 draft")
    if draft.n_layer != 1:
        raise UnsupportedModel(f"{draft.path}: an EAGLE-3 draft has 1 layer, eagle3.block_count is {draft.n_layer}")
    _require_layers(target, draft, last_from_nextn=True)
    _require_width(target, draft, 3 * target.n_embd, draft.n_embd_inp_enc)
    _require_same_vocabulary(target, draft)
    _check_borrowed(target, draft)


@dataclass(frozen=True)
class BlockShape:
    """What a block-diffusion draft's file says of its blocks.

    Attributes:
        block_size: tokens of a block.
        mask: the token that stands for one to be filled in.
        causal: whether a block's tokens see only those before them.
        from_anchor: whether the row of a block's first token is a proposal.
        markov: it has a Markov head (DSpark).
        confidence: it has a confidence head.
    """

    block_size: int
    mask: int
    causal: bool
    from_anchor: bool
    markov: bool
    confidence: bool

    @property
    def longest(self) -> int:
        """The longest draft a block has room for."""
        return self.block_size - (not self.from_anchor)


def check_dflash(target: Model, draft: Model) -> BlockShape:
    """Checks a block-diffusion draft (DFlash, DSpark) against its target.

    Raises:
        UnsupportedModel: it is none, or can't read this target; the message names the layer or the width.
        VocabMismatch: they have different vocabularies.
        ModelLoadError: its file lacks something or contradicts itself; the message names the key or the tensor.
    """
    if draft.arch != "dflash":
        raise UnsupportedModel(f"{draft.path} ({draft.arch}) is no block-diffusion draft")
    header = read_gguf(draft.path)
    if "selector_hidden.weight" in header.tensors:
        raise UnsupportedModel(f"{draft.path} has a selector (DFlash2), which this version does not draft with")
    shape = _block_shape(header, draft.vocab.n_tokens)
    _require_layers(target, draft, last_from_nextn=False)
    _require_width(target, draft, len(draft.target_layer_ids) * target.n_embd, draft.n_embd_inp_enc)
    _require_same_vocabulary(target, draft)
    _check_borrowed(target, draft)
    return shape


def _block_shape(header: GGUFHeader, n_vocab: int) -> BlockShape:
    markov = "markov_w1.weight" in header.tensors
    block_size = header.key("block_size", None if markov else DEFAULT_BLOCK_SIZE)
    from_anchor = markov and header.key("sample_from_anchor", True) is True
    least = 1 if from_anchor else 2
    if not isinstance(block_size, int) or not least <= block_size <= MAX_BLOCK_SIZE:
        raise ModelLoadError(
            f"{header.path}: dflash.block_size is {block_size}, outside {least} to {MAX_BLOCK_SIZE}", path=header.path
        )
    mask = header.metadata.get("tokenizer.ggml.mask_token_id")
    if not isinstance(mask, int) or not 0 <= mask < n_vocab:
        raise ModelLoadError(
            f"{header.path}: tokenizer.ggml.mask_token_id is {mask}, there are {n_vocab} tokens", path=header.path
        )
    return BlockShape(
        block_size=block_size,
        mask=mask,
        causal=header.key("attention.causal", False) is True,
        from_anchor=from_anchor,
        markov=markov,
        confidence=markov and "conf_proj.weight" in header.tensors,
    )


def borrows(header: GGUFHeader) -> bool:
    """Whether a draft file leaves out its embeddings or its output head, which are then the target's."""
    embeddings, head = (name in header.tensors for name in ("token_embd.weight", "output.weight"))
    return not embeddings or not (head or header.arch == "dflash")  # which can use its embeddings as its head


# What checks a pair, by the kind of the draft's file.
CHECKS: dict[str, Callable[[Model, Model], object]] = {
    "draft-mtp": check_mtp,
    "draft-eagle3": check_eagle3,
    "draft-dflash": check_dflash,
    "draft-dspark": check_dflash,
}


def _require_layers(target: Model, draft: Model, *, last_from_nextn: bool) -> None:
    for layer in draft.target_layer_ids:
        if last_from_nextn and layer == target.n_layer and target.has_nextn_state:
            continue
        if not target.has_layer_input(layer):
            if not 0 <= layer <= target.n_layer:
                why = f"which has {target.n_layer} layers"
            else:
                why = f"whose architecture ({target.arch}) does not hand that out"
            raise UnsupportedModel(
                f"{draft.path} ({draft.arch}.target_layers) reads the input of layer {layer} of {target.path}, {why}"
            )


def _require_width(target: Model, draft: Model, has: int, reads: int) -> None:
    if has != reads:
        raise UnsupportedModel(
            f"{draft.path} ({draft.arch}) reads hidden states that are {reads} wide; those of {target.path} are {has} "
            "wide: it was made for another target"
        )


def _require_same_vocabulary(target: Model, draft: Model) -> None:
    check_vocabulary(target.vocab, draft.vocab)
    n_target, n_draft = target.vocab.n_tokens, draft.vocab.n_tokens
    if n_target != n_draft:
        raise VocabMismatch(
            f"target and draft have different vocabularies: size is {n_target} in the target, {n_draft} in the draft. "
            "A draft that reads the target's hidden states has to have just its tokens",
            property="size",
            target=n_target,
            draft=n_draft,
        )


def _check_borrowed(target: Model, draft: Model) -> None:
    """What the draft's file has in the place of the target's embeddings and head, or leaves to them, is of one size."""
    header = read_gguf(draft.path)
    n_vocab = draft.vocab.n_tokens
    embeddings, head, d2t = (header.tensors.get(name) for name in ("token_embd.weight", "output.weight", "d2t"))
    if embeddings is not None and embeddings.shape[1] < n_vocab:
        raise ModelLoadError(
            f"{draft.path}: token_embd.weight has {embeddings.shape[1]} rows for {n_vocab} tokens", path=draft.path
        )
    if borrows(header) and draft.n_embd != target.n_embd:
        raise UnsupportedModel(
            f"{draft.path} has no token_embd.weight or no output.weight of its own; those of {target.path} are "
            f"{target.n_embd} wide, it is {draft.n_embd} wide"
        )
    if d2t is None:
        return
    if head is None:
        raise ModelLoadError(f"{draft.path}: d2t is there without an output.weight that it is for", path=draft.path)
    if d2t.type != "i64":
        raise ModelLoadError(f"{draft.path}: d2t is of type {d2t.type}, not i64", path=draft.path)
    with open(d2t.file, "rb") as file:
        file.seek(d2t.offset)
        ids = struct.unpack(f"<{d2t.n_elements}q", file.read(d2t.n_bytes))
    wrong = next((token for token in ids if not 0 <= token < n_vocab), None)
    if wrong is not None:
        raise ModelLoadError(f"{draft.path}: d2t names token {wrong}, there are {n_vocab}", path=draft.path)
