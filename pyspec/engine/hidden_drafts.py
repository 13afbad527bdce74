"""Drafts that read the target's hidden states: from what was asked for to contexts that fit the target's, or an error.

Whether a pair can work is looked at before the target has a context.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspec._block_drafting import BlockRunner
from pyspec._llama import Context, Model
from pyspec._pair_drafting import PairRunner
from pyspec.engine.loading import MODEL_SETTINGS, Loaded, LoadProgress, describe, load_model, open_head
from pyspec.errors import UnsupportedModel
from pyspec.gguf_header import read_gguf
from pyspec.models import resolve
from pyspec.speculation.detection import detect_draft
from pyspec.speculation.hidden_config import DraftEagle3, DraftMTP, HiddenStateDraft
from pyspec.speculation.pairing import BlockShape, borrows, check_dflash, check_eagle3, check_mtp

_log = logging.getLogger("pyspec.engine")


@dataclass(frozen=True)
class HiddenDraft:
    """A draft that fits its target.

    Attributes:
        spec: what was asked for.
        model: with the draft's weights; the target itself where its own NextN layers draft.
        n_heads: contexts it takes: one for each layer that drafts a token of its own.
        own_file: the model is not the target.
        borrows: it computes with the target's embeddings or output head.
        blocks: what its blocks are like, where it drafts by blocks.
    """

    spec: HiddenStateDraft
    model: Model
    n_heads: int
    own_file: bool
    borrows: bool
    blocks: BlockShape | None = None


def load_hidden_draft(target: Model, spec: HiddenStateDraft, progress: LoadProgress | None) -> HiddenDraft:
    """Loads a draft's file, where it has one, and checks that the pair can work.

    Raises:
        ModelLoadError: the file is missing, damaged or contradicts itself.
        UnsupportedModel: it is another kind of draft, or the target has not what it reads.
        VocabMismatch: target and draft have different vocabularies.
    """
    if spec.path is None:
        return _with_heads(spec, target, check_mtp(target), own_file=False)
    path = resolve(spec.path)
    kind = detect_draft(path)
    if kind != spec.kind:
        raise UnsupportedModel(f"{path} is a draft for {kind}, not for {spec.kind}")
    model = load_model(path, "draft", progress, n_gpu_layers=spec.n_gpu_layers, load_mtp=isinstance(spec, DraftMTP))
    try:
        if isinstance(spec, DraftMTP):
            return _with_heads(spec, model, check_mtp(target, model), own_file=True)
        blocks = None
        if isinstance(spec, DraftEagle3):
            check_eagle3(target, model)
        else:
            blocks = check_dflash(target, model)
        return HiddenDraft(spec, model, n_heads=1, own_file=True, borrows=borrows(read_gguf(path)), blocks=blocks)
    except BaseException:
        model.close()
        raise


def _with_heads(spec: HiddenStateDraft, model: Model, n_heads: int, *, own_file: bool) -> HiddenDraft:
    if n_heads < model.n_layer_nextn:
        _log.warning(
            "of the %d NextN layers of %s (%s) only the first drafts: between them libllama hands on a wrong state",
            model.n_layer_nextn,
            model.path,
            model.arch,
        )
    return HiddenDraft(spec, model, min(n_heads, spec.n_max), own_file, borrows=False)


def open_hidden_draft(draft: HiddenDraft, target: Loaded) -> list[Loaded]:
    """The draft's contexts, one a head: as many sequences as the target's, as long as those are.

    Raises:
        InvalidRequest: the list of a draft vocabulary can't be read, or is for another tokenizer.
    """
    spec, n_slots = draft.spec, target.context.n_seq_max
    n_ctx = target.config.n_ctx
    n_block = 0 if draft.blocks is None else 1 + min(spec.n_max, draft.blocks.longest)
    n_batch = max(spec.n_batch, n_slots, n_block)
    n_threads = spec.n_threads or target.config.n_threads
    config: dict[str, Any] = {
        "n_ubatch": n_batch,
        "n_threads": n_threads,
        "n_threads_batch": spec.n_threads_batch or spec.n_threads or target.config.n_threads_batch,
        "n_gpu_layers": spec.n_gpu_layers,
        "flash_attn": spec.flash_attn,
        "type_k": spec.type_k,
        "type_v": spec.type_v,
        "use_extra_bufts": True,
    }
    special: dict[str, Any] = {"ctx_other": target.context} if draft.borrows else {}
    if isinstance(spec, DraftMTP):
        special["ctx_type"] = "mtp"
    if isinstance(spec, DraftEagle3) and spec.vocab is not None:
        special["n_outputs_max_per_seq"] = spec.n_max + 2  # all rows of a step are outputs
    opened: list[Loaded] = []
    try:
        for _ in range(draft.n_heads):
            context = Context(
                draft.model,
                n_ctx=(n_ctx + n_block) * n_slots,
                n_seq_max=n_slots,
                n_batch=n_batch,
                n_outputs_max=n_slots,
                kv_unified=n_slots > 1,  # drafts may be rounded as they like
                **special,
                **{name: value for name, value in config.items() if name not in MODEL_SETTINGS},
            )
            opened.append(Loaded(draft.model, context, describe(draft.model, context, n_ctx, config)))
        opened[0] = open_head(target, opened, spec)
    except BaseException:
        for loaded in opened:
            loaded.context.close()
        raise
    return opened


def hidden_runner(draft: HiddenDraft, opened: Sequence[Loaded], target: Loaded) -> PairRunner | BlockRunner:
    """The speculator of a draft and its contexts."""
    spec, blocks, n_vocab = draft.spec, draft.blocks, target.context.n_vocab
    contexts = [loaded.context for loaded in opened]
    if blocks is None:
        return PairRunner(
            contexts, n_vocab, n_max=spec.n_max, n_min=spec.n_min, p_min=spec.p_min, head=opened[0].head
        )
    return BlockRunner(
        contexts[0],
        n_vocab,
        mask=blocks.mask,
        block_size=blocks.block_size,
        causal=blocks.causal,
        from_anchor=blocks.from_anchor,
        markov=blocks.markov,
        confidence=blocks.confidence,
        n_max=spec.n_max,
        n_min=spec.n_min,
        p_min=spec.p_min,
    )
