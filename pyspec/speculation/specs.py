"""Who is asked to draft: from all the ways a caller may say it to a list of speculators, in order."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

from pyspec.errors import InvalidRequest
from pyspec.speculation.config import DraftModel, check_integer
from pyspec.speculation.grammar import GrammarDrafts
from pyspec.speculation.ngram_config import NGramMapK4V, NGramSpec
from pyspec.speculation.scripted import FunctionSpeculator, GuardedSpeculator, Speculator

SpeculatorSpec = DraftModel | NGramSpec | GrammarDrafts | Speculator | Callable[[list[int]], Iterable[int]]
Speculation = str | SpeculatorSpec | Sequence[SpeculatorSpec] | None

# What "auto" drafts with: the controller shortens these drafts to what pays.
AUTO_N_MAX = 16
AUTO_NGRAM = NGramMapK4V(size_n=3, size_m=24)
AUTO_GRAMMAR = GrammarDrafts()

# Longest draft of a speculator that does not say how long its drafts may be.
DEFAULT_N_MAX = 16


def speculators_from(
    speculation: Speculation, draft_model: str | os.PathLike[str] | None, *, adaptive: bool = True
) -> list[SpeculatorSpec]:
    """The speculators in order, from all the ways to name them; adaptive: drafts are cut to what pays."""
    automatic = isinstance(speculation, str) and speculation == "auto"
    given: list[SpeculatorSpec] = (
        []
        if draft_model is None
        else [DraftModel(draft_model, n_max=AUTO_N_MAX, vocab="auto") if automatic else DraftModel(draft_model)]
    )
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
        if not (isinstance(spec, DraftModel | NGramSpec | GrammarDrafts) or hasattr(spec, "propose") or callable(spec)):
            raise InvalidRequest(
                f"a speculator is a DraftModel, one of the NGram classes, GrammarDrafts, an object with "
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
    if sum(isinstance(spec, DraftModel) for spec in specs) > 1:
        raise InvalidRequest("there can be one draft model at most", name="speculation", value=speculation)
    return specs


def longest_draft(spec: SpeculatorSpec) -> int:
    """The longest draft of a speculator."""
    if isinstance(spec, DraftModel):
        return spec.n_max
    return check_integer(getattr(spec, "n_max", DEFAULT_N_MAX), "n_max", 1)


def guarded(spec: Any) -> GuardedSpeculator:
    """A Python speculator, or a function, under guard."""
    return GuardedSpeculator(spec if hasattr(spec, "propose") else FunctionSpeculator(spec))
