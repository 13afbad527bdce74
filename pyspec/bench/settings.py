"""What is compared: settings of an engine by name, ``plain``, ``ngram-mod``, ``draft-simple:8``, ``auto``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from pyspec._llama import Model
from pyspec.engine import Engine
from pyspec.errors import InvalidRequest
from pyspec.speculation import (
    DraftDFlash,
    DraftDSpark,
    DraftEagle3,
    DraftModel,
    DraftMTP,
    NGramCache,
    NGramMapK,
    NGramMapK4V,
    NGramMod,
    NGramSimple,
    Synthetic,
)
from pyspec.speculation.hidden_config import HiddenStateDraft
from pyspec.speculation.specs import draft_kind

PLAIN = "plain"
AUTO = "auto"
DRAFT_SIMPLE = "draft-simple"

Speculator = DraftModel | HiddenStateDraft | NGramSimple | NGramMapK | NGramMapK4V | NGramMod | NGramCache

# Kinds that draft with a model.
MODEL_KINDS: dict[str, type[DraftModel] | type[HiddenStateDraft]] = {
    DRAFT_SIMPLE: DraftModel,
    **{config.kind: config for config in (DraftMTP, DraftEagle3, DraftDFlash, DraftDSpark)},
}

# kind -> what makes it, and the parameter that is the length of its drafts.
TYPES: dict[str, tuple[Callable[..., Speculator], str]] = {
    **{kind: (config, "n_max") for kind, config in MODEL_KINDS.items()},
    "ngram-simple": (NGramSimple, "size_m"),
    "ngram-map-k": (NGramMapK, "size_m"),
    "ngram-map-k4v": (NGramMapK4V, "size_m"),
    "ngram-mod": (NGramMod, "n_max"),
    "ngram-cache": (NGramCache, "n_draft"),
}

DEFAULT_LENGTHS = (2, 4, 8)


@dataclass(frozen=True)
class Setting:
    """A way to run the target.

    Attributes:
        name: as it was written.
        speculators: who drafts, in order; empty for plain decoding and where the engine chooses ("auto").
        draft_length: "fixed", or "auto": as long as pays.
        draft_model: for "auto": the draft model, or None.
    """

    name: str
    speculators: tuple[Speculator, ...] = ()
    draft_length: Literal["fixed", "auto"] = "fixed"
    draft_model: str | None = None

    @property
    def is_plain(self) -> bool:
        """Whether this is the target alone."""
        return self.name == PLAIN

    @property
    def learns(self) -> bool:
        """Whether the engine learns from one request to the next, so that later ones may be faster."""
        shared = any(isinstance(spec, NGramMod) and spec.shared for spec in self.speculators)
        return self.draft_length == "auto" or shared

    @property
    def kind(self) -> str:
        """The name without its draft lengths."""
        return "+".join(part.partition(":")[0] for part in self.name.split("+"))

    @property
    def n_max(self) -> int | None:
        """Longest draft of a single speculator with a fixed length; None for others."""
        if self.draft_length == "auto" or len(self.speculators) != 1:
            return None
        return self.speculators[0].n_max

    @property
    def shared_engine(self) -> tuple[Any, ...]:
        """Settings for which this is equal can use one engine, with a draft length for each request."""
        if self.draft_length == "fixed" and len(self.speculators) == 1:
            (spec,) = self.speculators
            if isinstance(spec, DraftModel | HiddenStateDraft):
                return (replace(spec, n_max=1, n_min=0), spec.n_min)
        return (self.name,)

    def open(
        self,
        model: Model,
        *,
        n_draft_max: int | None = None,
        synthetic: Synthetic | None = None,
        load_progress: Callable[[str, float], None] | None = None,
        **options: Any,
    ) -> Engine:
        """An engine with this setting.

        Args:
            model: the target; it stays open when the engine is closed.
            n_draft_max: with a draft model alone: longest draft of all settings that share the engine.
            synthetic: acceptance drawn at random; not for plain decoding.
            load_progress: as `Engine`'s.
            **options: further parameters of `Engine`.
        """
        options["load_progress"] = load_progress
        options["prefix_reuse"] = False  # every run reads its prompt
        if self.is_plain:
            return Engine(model, speculation=None, **options)
        options["synthetic"] = synthetic
        if self.name == AUTO:
            if synthetic is not None and synthetic.rates is not None:
                options["n_draft_max"] = len(synthetic.rates)
            return Engine(model, draft_model=self.draft_model, speculation="auto", **options)
        speculators = self.speculators
        if n_draft_max is not None and isinstance(speculators[0], DraftModel | HiddenStateDraft):
            speculators = (replace(speculators[0], n_max=n_draft_max), *speculators[1:])
        return Engine(model, speculation=list(speculators), draft_length=self.draft_length, **options)


@dataclass(frozen=True)
class Defaults:
    """What names of settings leave open.

    Attributes:
        draft_model: GGUF file of the draft model, or None.
        parameters: by kind of speculator, parameters that differ from its own defaults; what is said of draft-simple
            is said of every kind with a model that has such a parameter.
    """

    draft_model: str | None = None
    parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def draft_kind(self) -> str:
        """What the draft model is made for; one that has to be fetched is a plain one."""
        return DRAFT_SIMPLE if self.draft_model is None else draft_kind(self.draft_model)

    def of(self, kind: str) -> dict[str, Any]:
        """The parameters of a kind."""
        if kind not in MODEL_KINDS:
            return dict(self.parameters.get(kind, {}))
        known = {field.name for field in fields(MODEL_KINDS[kind])}
        given = self.parameters.get(DRAFT_SIMPLE, {})
        return {name: value for name, value in given.items() if name in known}


def read_settings(names: Sequence[str], defaults: Defaults = Defaults()) -> list[Setting]:
    """The settings with these names; plain decoding, without which there is nothing to compare with, comes first.

    A name is ``plain``, ``auto`` (what an engine does that is told nothing but the models) or speculators joined by
    ``+`` in the order they are asked. A speculator is its kind, with its longest draft behind a colon, or ``auto``
    for drafts as long as pays: ``draft-simple:8``, ``ngram-mod+draft-simple:auto``.

    Raises:
        InvalidRequest: an unknown kind, a draft length that is no number or out of range, no draft model for
            draft-simple.
    """
    settings = [Setting(PLAIN)]
    for name in dict.fromkeys(names):
        if name == AUTO:
            settings.append(Setting(AUTO, (), "auto", defaults.draft_model))
        elif name != PLAIN:
            settings.append(_read_setting(name, defaults))
    return settings


def default_names(defaults: Defaults, synthetic: Synthetic | None = None) -> list[str]:
    """What is compared unless told otherwise: every kind of speculator there is a model for, and auto."""
    if synthetic is None:
        lengths: Iterable[int] = DEFAULT_LENGTHS
    elif synthetic.rates is not None:
        lengths = [len(synthetic.rates)]
    else:
        assert synthetic.length is not None
        shortest = max(1, math.ceil(synthetic.length - 1.0))
        lengths = [n for n in DEFAULT_LENGTHS if n >= shortest] or [shortest]
    drafts = [f"{defaults.draft_kind}:{n}" for n in lengths] if defaults.draft_model is not None else []
    if synthetic is not None:  # n-grams find little in a text that is drawn at random
        return drafts
    return [*drafts, *(kind for kind in TYPES if kind not in MODEL_KINDS), AUTO]


def _read_setting(name: str, defaults: Defaults) -> Setting:
    speculators: list[Speculator] = []
    draft_length: Literal["fixed", "auto"] = "fixed"
    for part in name.split("+"):
        kind, colon, length = part.partition(":")
        if kind not in TYPES:
            raise InvalidRequest(
                f"there is no speculator {kind!r}; there are {PLAIN}, {', '.join(TYPES)} and {AUTO}",
                name="speculators",
                value=name,
            )
        make, length_name = TYPES[kind]
        parameters = defaults.of(kind)
        if length == AUTO:
            draft_length = "auto"
        elif colon:
            parameters[length_name] = _length(length, name)
            if kind == "ngram-mod" and "n_min" not in parameters:
                standard = NGramMod()  # as in its defaults, three quarters of the longest draft
                parameters["n_min"] = parameters[length_name] * standard.n_min // standard.n_max
        if kind in MODEL_KINDS:
            if defaults.draft_model is None and kind != DraftMTP.kind:
                raise InvalidRequest(f"{name} needs a draft model", name="speculators", value=name)
            parameters["path"] = defaults.draft_model
        speculators.append(make(**parameters))
        if isinstance(speculators[-1], NGramCache) and speculators[-1].save_dynamic:
            raise InvalidRequest(
                "a benchmark that saves its lookup cache makes the next one faster; leave that out",
                name="save_dynamic",
                value=True,
            )
    if len({type(spec) for spec in speculators}) < len(speculators):
        raise InvalidRequest(f"{name} has a speculator twice", name="speculators", value=name)
    return Setting(name, tuple(speculators), draft_length)


def _length(text: str, name: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise InvalidRequest(
            f"{name}: the draft length must be a number or {AUTO}, not {text!r}", name="speculators", value=name
        )
    return int(text)
