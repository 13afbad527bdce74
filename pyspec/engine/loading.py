"""From file names and parameters to loaded models and contexts that fit together, or an error that says why not."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspec._draft_head import DraftHead
from pyspec._llama import Context, Model
from pyspec.engine.config import DraftVocabConfig, ExactConfig, ModelConfig
from pyspec.errors import InvalidRequest, UnsupportedModel
from pyspec.models import resolve
from pyspec.speculation.config import DraftModel
from pyspec.speculation.detection import DRAFT_SIMPLE, detect_draft
from pyspec.speculation.draft_vocab import head_rows
from pyspec.speculation.hidden_config import HiddenStateDraft
from pyspec.speculation.vocab_gate import check_vocabulary

LoadProgress = Callable[[str, float], None]

# Settings that are the model's, not the context's.
MODEL_SETTINGS = ("n_gpu_layers", "use_extra_bufts")

# Architectures that read a target's hidden states, and can't write by themselves.
HIDDEN_STATE_DRAFTS = {"eagle3": "draft-eagle3", "dflash": "draft-dflash or draft-dspark"}


_log = logging.getLogger("pyspec.engine")


@dataclass(frozen=True)
class Loaded:
    """A model with its context.

    Attributes:
        head: the draft's reduced output head, or None.
        vocab: what became of the draft vocabulary that was asked for; None: none was.
    """

    model: Model
    context: Context
    config: ModelConfig
    head: DraftHead | None = None
    vocab: DraftVocabConfig | None = None


def load_model(path: str | os.PathLike[str], role: str, progress: LoadProgress | None, **options: Any) -> Model:
    """Opens a GGUF file, or a registered model by name; `role` ("target", "draft") is what progress is told."""
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise InvalidRequest(
            f"the {role} must be a GGUF file or a name that `pyspec models list` knows, not {path!r}",
            name=role,
            value=path,
        )
    callback = None if progress is None else (lambda done: progress(role, done))
    return Model(str(resolve(path)), progress=callback, **options)


def require_text_model(model: Model, role: str) -> None:
    """Raises UnsupportedModel unless the model continues text one token at a time."""
    reason = None
    if model.arch in HIDDEN_STATE_DRAFTS:
        reason = f"it drafts from a target's hidden states ({HIDDEN_STATE_DRAFTS[model.arch]}) and can't run alone"
    elif not model.has_decoder or model.has_encoder:
        reason = "it has an encoder; pyspec runs decoder-only models"
    elif model.metadata.get(f"{model.arch}.attention.causal") == "false":
        reason = "every token sees those behind it (an encoder, for embeddings); pyspec runs models that write"
    elif model.is_diffusion:
        reason = "it is a diffusion model, which does not write from left to right"
    elif model.vocab.type == "none":
        reason = "it has no vocabulary"
    if reason is not None:
        raise UnsupportedModel(f"{model.path} ({model.arch}) can't be the {role}: {reason}")


def open_target(
    model: Model,
    *,
    n_ctx: int,
    n_slots: int,
    n_cells: int | None,
    n_draft_max: int,
    n_batch: int,
    config: dict[str, Any],
    exact: ExactConfig | None = None,
) -> Loaded:
    """The target's context: room for n_ctx tokens a slot, and for the rows a round verifies, not for n_batch rows.

    Each slot has a pool of cells of its own, so that its text begins at the first cell as it does alone: attention adds
    up by cells, and in another order it rounds differently. With n_cells they share one pool. Where exact mode
    throws rows away there are cells for them.
    """
    if n_batch < n_slots:
        raise InvalidRequest(
            f"n_batch is {n_batch}: a round needs a row for each of {n_slots} slots", name="n_batch", value=n_batch
        )
    least_rows = 1 if exact is None else exact.least_rows
    n_each = max(least_rows, 1 + n_draft_max)
    n_outputs = max(1, min(n_batch, n_slots * n_each))
    n_spare = n_each if least_rows > 1 else 0
    context = Context(
        model,
        n_ctx=(n_ctx + n_spare) * n_slots if n_cells is None else n_cells,
        n_seq_max=n_slots,
        n_batch=n_batch,
        n_outputs_max=n_outputs,
        # See Decoder's "snapshots". Keeping them may be another graph.
        n_rs_seq=max(0, min(n_draft_max, config["n_ubatch"] - 2)) if n_slots == 1 and not exact else 0,
        kv_unified=n_slots > 1 and n_cells is not None,
        **{name: value for name, value in config.items() if name not in MODEL_SETTINGS},
    )
    return Loaded(model, context, describe(model, context, n_ctx, config))


def open_draft(target: Loaded, options: DraftModel, progress: LoadProgress | None) -> Loaded:
    """Loads the draft model and opens its context: as many sequences as the target's, one row of logits each.

    Raises:
        VocabMismatch: target and draft do not share a vocabulary.
        UnsupportedModel: the file is no model that drafts by itself.
        InvalidRequest: sync="replay" with a window shorter than the target's.
    """
    n_slots = target.context.n_seq_max
    n_ctx = target.config.n_ctx if options.n_ctx is None else min(options.n_ctx, target.config.n_ctx)
    if options.sync == "replay" and n_ctx < target.config.n_ctx:
        raise InvalidRequest(
            f"sync='replay' needs a draft context as long as the target's: n_ctx is {n_ctx}, "
            f"the target's {target.config.n_ctx}",
            name="n_ctx",
            value=options.n_ctx,
        )
    path = resolve(options.path)
    kind = detect_draft(path)
    if kind != DRAFT_SIMPLE:
        raise UnsupportedModel(
            f"{path} is a draft for {kind}, which reads the target's hidden states, no DraftModel ({DRAFT_SIMPLE}); "
            "given as draft_model, a file is used as what it is"
        )
    model = load_model(path, "draft", progress, n_gpu_layers=options.n_gpu_layers)
    try:
        require_text_model(model, "draft")
        check_vocabulary(target.model.vocab, model.vocab)
        n_threads = options.n_threads or target.config.n_threads
        config: dict[str, Any] = {
            "n_ubatch": options.n_batch,
            "n_threads": n_threads,
            "n_threads_batch": options.n_threads_batch or options.n_threads or target.config.n_threads_batch,
            "n_gpu_layers": options.n_gpu_layers,
            "flash_attn": options.flash_attn,
            "type_k": options.type_k,
            "type_v": options.type_v,
            "use_extra_bufts": True,
        }
        context = Context(
            model,
            n_ctx=n_ctx * n_slots,
            n_seq_max=n_slots,
            n_batch=max(options.n_batch, n_slots),
            n_outputs_max=n_slots,
            kv_unified=n_slots > 1,  # drafts may be rounded as they like, and sequences read different lengths at once
            **{name: value for name, value in config.items() if name not in MODEL_SETTINGS},
        )
        loaded = Loaded(model, context, describe(model, context, n_ctx, config))
        return open_head(target, [loaded], options)
    except BaseException:
        model.close()
        raise


def open_head(target: Loaded, contexts: Sequence[Loaded], options: DraftModel | HiddenStateDraft) -> Loaded:
    """Gives a draft model's contexts the reduced output head that its options ask for, where they can have one.

    Args:
        target: the target.
        contexts: of one model; several where NextN layers draft one after the other.
        options: what was said about the draft.

    Returns:
        The first context, with the head of all.

    Raises:
        InvalidRequest: the list can't be read, or is for another tokenizer.
    """
    draft, vocab = contexts[0], options.vocab
    if vocab is None:
        return draft
    n_vocab = draft.model.vocab.n_tokens
    assert isinstance(vocab, str | tuple)
    rows = head_rows(vocab, options.vocab_slots, draft.model.vocab, target.model.vocab)
    config = DraftVocabConfig(vocab if isinstance(vocab, str) else "ids", n_vocab)
    if rows is None:
        why = f"with its slots it is the whole vocabulary of {n_vocab} tokens, or nearly"
        return replace(draft, vocab=replace(config, unused_because=why))
    config = replace(config, shipped=rows.shipped)
    try:
        head = DraftHead(
            [loaded.context for loaded in contexts], rows.ids, n_slots=rows.n_slots, max_miss=options.vocab_max_miss
        )
    except UnsupportedModel as error:
        if vocab != "auto":
            _log.warning("the draft vocabulary is not used: %s", error)
        return replace(draft, vocab=replace(config, unused_because=str(error)))
    config = replace(config, n_rows=head.n_rows, n_slots=head.n_slots, n_bytes=head.n_bytes)
    return replace(draft, head=head, vocab=config)


def describe(model: Model, context: Context, n_ctx: int, config: dict[str, Any]) -> ModelConfig:
    """What a model runs with."""
    return ModelConfig(
        path=model.path,
        description=model.desc,
        n_ctx=n_ctx,
        n_batch=context.n_batch,
        n_ubatch=context.n_ubatch,
        n_outputs_max=context.n_outputs_max,
        n_threads=context.n_threads,
        n_threads_batch=context.n_threads_batch,
        n_gpu_layers=config["n_gpu_layers"],
        flash_attn=config["flash_attn"],
        type_k=config["type_k"],
        type_v=config["type_v"],
        use_extra_bufts=config["use_extra_bufts"],
    )
