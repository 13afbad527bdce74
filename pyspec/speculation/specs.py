"""Who is asked to draft: from all the ways a caller may say it to a list of speculators, in order."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

from pyspec._llama import Model, n_mtp_heads
from pyspec.errors import InvalidRequest
from pyspec.gguf_header import read_gguf
from pyspec.models import present, resolve
from pyspec.speculation.config import DraftModel, check_integer
from pyspec.speculation.detection import DRAFT_SIMPLE, detect_draft, has_nextn_layer
from pyspec.speculation.grammar import GrammarDrafts
from pyspec.speculation.hidden_config import DraftDFlash, DraftDSpark, DraftEagle3, DraftMTP, HiddenStateDraft
from pyspec.speculation.ngram_config import NGramMapK4V, NGramSpec
from pyspec.speculation.scripted import FunctionSpeculator, GuardedSpeculator, Speculator

ModelSpec = DraftModel | HiddenStateDraft
SpeculatorSpec = ModelSpec | NGramSpec | GrammarDrafts | Speculator | Callable[[list[int]], Iterable[int]]
Speculation = str | SpeculatorSpec | Sequence[SpeculatorSpec] | None

# What "auto" drafts with: the controller shortens these drafts to what pays.
AUTO_N_MAX = 16
AUTO_NGRAM = NGramMapK4V(size_n=3, size_m=24)
AUTO_GRAMMAR = GrammarDrafts()

# Longest draft of a speculator that does not say how long its drafts may be.
DEFAULT_N_MAX = 16


HIDDEN_DRAFTS: dict[str, type[HiddenStateDraft]] = {
    config.kind: config for config in (DraftMTP, DraftEagle3, DraftDFlash, DraftDSpark)
}


def draft_kind(path: str | os.PathLike[str]) -> str:
    """The speculator a draft is made for, as `detect_draft` has it; of what has to be fetched first, a plain one.

    Args:
        path: a GGUF file, or the name of a registered model.
    """
    file = present(path)
    return DRAFT_SIMPLE if file is None else detect_draft(file)


def draft_from_file(path: str | os.PathLike[str], *, automatic: bool = False) -> ModelSpec:
    """The speculator that a draft file is made for.

    Args:
        path: a GGUF file, or the name of a registered model.
        automatic: with the lengths that "auto" has.
    """
    kind = detect_draft(resolve(path))
    if kind in HIDDEN_DRAFTS:
        config = HIDDEN_DRAFTS[kind]
        return config(path, n_max=AUTO_N_MAX, vocab="auto") if automatic else config(path)
    return DraftModel(path, n_max=AUTO_N_MAX, vocab="auto") if automatic else DraftModel(path)


def own_draft(target: Any) -> list[ModelSpec]:
    """What a target's own file has to draft with: NextN layers, or nothing."""
    if isinstance(target, Model):
        found = target.has_mtp and target.n_mtp_heads > 0
    elif isinstance(target, str | os.PathLike) and os.fspath(target):
        header = read_gguf(resolve(target))
        n_nextn = header.key("nextn_predict_layers", 0)
        found = isinstance(n_nextn, int) and n_mtp_heads(header.arch, n_nextn) > 0 and has_nextn_layer(header)
    else:
        found = False
    return [DraftMTP(n_max=AUTO_N_MAX, vocab="auto")] if found else []


def speculators_from(
    speculation: Speculation,
    draft_model: str | os.PathLike[str] | None,
    *,
    adaptive: bool = True,
    target: Any = None,
) -> list[SpeculatorSpec]:
    """The speculators in order, from all the ways to name them.

    Args:
        speculation: what the caller said, or "auto".
        draft_model: a draft's file, or None.
        adaptive: drafts are cut to what pays.
        target: the target's file or model, in which "auto" looks for something to draft with.
    """
    automatic = isinstance(speculation, str) and speculation == "auto"
    given: list[SpeculatorSpec] = [] if draft_model is None else [draft_from_file(draft_model, automatic=automatic)]
    if automatic and not given:
        given += own_draft(target)
    if speculation is None or (isinstance(speculation, str) and speculation == "none"):
        if given:
            raise InvalidRequest(
                "a draft model is given and speculation is switched off; leave one of them out",
                name="speculation",
                value=speculation,
            )
        return []
    if isinstance(speculation, str):
        if speculation != "auto":
            raise InvalidRequest(
                f"speculation must be 'auto', 'none' or speculators, not {speculation!r}",
                name="speculation",
                value=speculation,
            )
        if not given:
            return [AUTO_GRAMMAR, AUTO_NGRAM]
        # N-grams cost nothing and win where a text repeats itself; cut to what pays they do no harm elsewhere.
        return [AUTO_GRAMMAR, replace(AUTO_NGRAM, size_m=AUTO_N_MAX), *given] if adaptive else [AUTO_GRAMMAR, *given]
    several = isinstance(speculation, Sequence)
    specs: list[SpeculatorSpec] = list(cast(Any, speculation)) if several else [cast(Any, speculation)]
    for spec in specs:
        known = isinstance(spec, ModelSpec | NGramSpec | GrammarDrafts)
        if not (known or hasattr(spec, "propose") or callable(spec)):
            raise InvalidRequest(
                f"a speculator is a DraftModel, one of the other Draft or NGram classes, GrammarDrafts, an object with "
                f"propose(requests) or a function of the tokens so far, not {spec!r}",
                name="speculation",
                value=spec,
            )
    specs += given
    kinds = [spec.kind for spec in specs if isinstance(spec, NGramSpec)]
    for kind in kinds:
        if kinds.count(kind) > 1:
            raise InvalidRequest(
                f"{kind} is there twice: the second would propose what the first did, and share its statistics",
                name="speculation",
                value=speculation,
            )
    if sum(isinstance(spec, ModelSpec) for spec in specs) > 1:
        raise InvalidRequest("there can be one draft model at most", name="speculation", value=speculation)
    return specs


def longest_draft(spec: SpeculatorSpec) -> int:
    """The longest draft of a speculator."""
    if isinstance(spec, ModelSpec):
        return spec.n_max
    return check_integer(getattr(spec, "n_max", DEFAULT_N_MAX), "n_max", 1)


def guarded(spec: Any) -> GuardedSpeculator:
    """A Python speculator, or a function, under guard."""
    return GuardedSpeculator(spec if hasattr(spec, "propose") else FunctionSpeculator(spec))
