"""Speculation on the command line: which types there are, their options, and what they add up to."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal

from pyspec.cli.options import context_size, layers
from pyspec.cli.parser import Option, Removed, UsageError, add_options, given, with_flag
from pyspec.engine import Engine
from pyspec.errors import InvalidRequest, ModelLoadError
from pyspec.speculation import (
    DraftDFlash,
    DraftDSpark,
    DraftEagle3,
    DraftModel,
    DraftMTP,
    GrammarDrafts,
    NGramCache,
    NGramMapK,
    NGramMapK4V,
    NGramMod,
    NGramSimple,
)
from pyspec.speculation.specs import draft_kind

ModelDraft = DraftModel | DraftMTP | DraftEagle3 | DraftDFlash | DraftDSpark
Speculator = ModelDraft | NGramSimple | NGramMapK | NGramMapK4V | NGramMod | NGramCache | GrammarDrafts

# Under which the options of whatever drafts with a model are kept, also where that is another kind.
DRAFT = "draft-simple"

# fmt: off
DRAFT_OPTIONS = (
    Option(("--spec-draft-n-max",), "n_max", int, "N",
           "most tokens drafted in one round (default: {default})"),
    Option(("--spec-draft-n-min",), "n_min", int, "N",
           "drafts shorter than this are thrown away (default: {default})"),
    Option(("--spec-draft-p-min", "--draft-p-min"), "p_min", float, "P",
           "stop drafting below this confidence of the draft model, 0 to 1 (default: {default})"),
    Option(("--draft-sync",), "sync", str, "lazy|replay",
           "keep the draft's cache up by catching up with the next draft, or by replaying every target "
           "batch as llama.cpp does; same text (default: {default})"),
    Option(("-cd", "--ctx-size-draft"), "n_ctx", context_size, "N",
           "tokens the draft's context holds (default: 0, as the target's)"),
    Option(("--spec-draft-threads", "-td", "--threads-draft"), "n_threads", int, "N",
           "threads for drafting (default: {default}, as --threads)"),
    Option(("--spec-draft-threads-batch", "-tbd", "--threads-batch-draft"), "n_threads_batch", int, "N",
           "threads for the draft to read the prompt (default: {default}, as --threads-draft)"),
    Option(("--spec-draft-ngl", "-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft"), "n_gpu_layers",
           layers, "N",
           "layers of the draft kept in GPU memory: a number, 'auto' or 'all' (default: auto)"),
    Option(("--flash-attn-draft",), "flash_attn", str, "on|off|auto",
           "use Flash Attention in the draft (default: {default})"),
    Option(("--batch-size-draft",), "n_batch", int, "N",
           "most tokens of one call for the draft (default: {default})"),
    Option(("--spec-draft-type-k", "-ctkd", "--cache-type-k-draft"), "type_k", str, "TYPE",
           "data type of the draft cache's keys (default: {default})"),
    Option(("--spec-draft-type-v", "-ctvd", "--cache-type-v-draft"), "type_v", str, "TYPE",
           "data type of the draft cache's values (default: {default})"),
    Option(("--spec-draft-vocab",), "vocab", str, "FILE|auto|none",
           "tokens the draft model chooses from: a file that lists them, or the list that comes for its tokenizer "
           "(else the first ones in its order) if that is faster here; the text stays the same (default: none, all of "
           "them)"),
    Option(("--spec-draft-vocab-slots",), "vocab_slots", int, "N",
           "so many of them follow the texts (default: {default})"),
    Option(("--spec-draft-vocab-max-miss",), "vocab_max_miss", float, "P",
           "draft from all tokens while more than this share of the last 64 could not be drafted (default: {default})"),
)


LENGTH_OPTIONS = (
    Option(("--draft-length",), "draft_length", str, "auto|fixed",
           "drafts as long as n_max says, or as long as pays by what is measured on the way (default: fixed)"),
)


def _ngram_options(name: str) -> tuple[Option, ...]:
    return (
        Option((f"--spec-{name}-size-n",), "size_n", int, "N",
               "length of the n-gram that is looked up (default: {default})"),
        Option((f"--spec-{name}-size-m",), "size_m", int, "N",
               "most tokens drafted in one round (default: {default})"),
        Option((f"--spec-{name}-min-hits",), "min_hits", int, "N",
               "how often the n-gram must have occurred (default: {default})"),
    )


NGRAM_MOD_OPTIONS = (
    Option(("--spec-ngram-mod-n-match",), "n_match", int, "N",
           "tokens that have to occur again (default: {default})"),
    Option(("--spec-ngram-mod-n-max",), "n_max", int, "N",
           "most tokens drafted in one round (default: {default})"),
    Option(("--spec-ngram-mod-n-min",), "n_min", int, "N",
           "drafts shorter than this are thrown away (default: {default})"),
)

NGRAM_CACHE_OPTIONS = (
    Option(("-lcs", "--lookup-cache-static"), "lookup_cache_static", str, "FNAME",
           "counts of n-grams from a large corpus"),
    Option(("-lcd", "--lookup-cache-dynamic"), "lookup_cache_dynamic", str, "FNAME",
           "counts of n-grams from earlier texts"),
    Option(("--lookup-cache-save",), "save_dynamic", str, "",
           "add this text's n-grams to the file of --lookup-cache-dynamic", const=True),
    Option(("--spec-ngram-cache-n-draft",), "n_draft", int, "N",
           "most tokens drafted in one round (default: {default})"),
)
GRAMMAR_OPTIONS = (
    Option(("--spec-grammar-n-max",), "n_max", int, "N",
           "most tokens drafted in one round (default: {default})"),
    Option(("--spec-grammar-n-min",), "n_min", int, "N",
           "fewer than this are left to who is asked next (default: {default})"),
)
# fmt: on


@dataclass(frozen=True)
class SpecType:
    """A kind of speculation.

    Attributes:
        name: llama.cpp's name of it.
        make: the configuration it stands for.
        options: flags of that configuration's fields.
        prefix: under which their values are kept; empty: under the name.
    """

    name: str
    make: Callable[..., Speculator]
    options: tuple[Option, ...]
    prefix: str = ""

    def given(self, args: argparse.Namespace) -> dict[str, Any]:
        """The values of its options that were given."""
        return given(args, self.prefix or self.name)


def _model_type(config: type[ModelDraft], name: str) -> SpecType:
    """A kind that drafts with a model, with those of the draft's options that it has."""
    names = {field.name for field in fields(config)}
    return SpecType(name, config, tuple(option for option in DRAFT_OPTIONS if option.field in names), DRAFT)


DRAFT_SIMPLE = _model_type(DraftModel, "draft-simple")
DRAFT_MTP = _model_type(DraftMTP, DraftMTP.kind)
MODEL_TYPES = (
    DRAFT_SIMPLE,
    DRAFT_MTP,
    *(_model_type(config, config.kind) for config in (DraftEagle3, DraftDFlash, DraftDSpark)),
)
NGRAM_TYPES = (
    SpecType("ngram-simple", NGramSimple, _ngram_options("ngram-simple")),
    SpecType("ngram-map-k", NGramMapK, _ngram_options("ngram-map-k")),
    SpecType("ngram-map-k4v", NGramMapK4V, _ngram_options("ngram-map-k4v")),
    SpecType("ngram-mod", NGramMod, NGRAM_MOD_OPTIONS),
    SpecType("ngram-cache", NGramCache, NGRAM_CACHE_OPTIONS),
)
GRAMMAR = SpecType(GrammarDrafts.kind, GrammarDrafts, GRAMMAR_OPTIONS)
SPEC_TYPES = {spec.name: spec for spec in (*MODEL_TYPES, *NGRAM_TYPES, GRAMMAR)}

_REMOVED = {
    ("--draft", "--draft-n", "--draft-max"): "--spec-draft-n-max or --spec-ngram-mod-n-max",
    ("--draft-min", "--draft-n-min"): "--spec-draft-n-min or --spec-ngram-mod-n-min",
    ("--spec-ngram-size-n",): "--spec-ngram-simple-size-n, or that of the type you mean",
    ("--spec-ngram-size-m",): "--spec-ngram-simple-size-m, or that of the type you mean",
    ("--spec-ngram-min-hits",): "--spec-ngram-simple-min-hits, or that of the type you mean",
}


def add_speculation_options(parser: argparse.ArgumentParser) -> None:
    """What drafts, and how."""
    group = parser.add_argument_group("speculation")
    group.add_argument(
        "-md",
        "--spec-draft-model",
        "--model-draft",
        dest="draft_model",
        metavar="FNAME",
        help="draft model: GGUF file or name. Without --spec-type it is used as what it is made for",
    )
    group.add_argument(
        "--spec-type",
        action="append",
        metavar="TYPE,...",
        help=f"who drafts: none, {', '.join(SPEC_TYPES)}; of several grammar is asked first and the draft "
        "model last; draft-mtp without a draft model uses the target's own NextN layers (default: what the draft "
        "model is made for where one is given, else none)",
    )
    group.add_argument(
        "--spec-default",
        action="append_const",
        dest="spec_type",
        const="ngram-mod",
        help="the same as --spec-type ngram-mod",
    )
    add_options(group, "engine", LENGTH_OPTIONS, Engine)
    add_options(group, DRAFT, DRAFT_OPTIONS, DraftModel)
    for spec in (*NGRAM_TYPES, GRAMMAR):
        add_options(parser.add_argument_group(spec.name), spec.name, spec.options, spec.make)
    for flags, new in _REMOVED.items():
        group.add_argument(*flags, action=Removed, use=new)


def read_speculation(args: argparse.Namespace) -> Literal["none", "auto"] | tuple[Speculator, ...]:
    """What the arguments say about speculation: nothing ("auto"), none, or who drafts, in order.

    Raises:
        UsageError: for arguments that contradict each other, or a value the library refuses.
    """
    names = [name.strip() for part in args.spec_type or () for name in part.split(",")]
    for name in names:
        if name != "none" and name not in SPEC_TYPES:
            raise UsageError(f"--spec-type: there is no type {name!r}; known are none, {', '.join(SPEC_TYPES)}")
    if "none" in names:
        _require_none_alone(args, names)
        return "none"
    if not names and args.draft_model is not None:
        names = [_kind_of(args.draft_model)]
    models = [spec for spec in MODEL_TYPES if spec.name in names]
    if len(models) > 1:
        raise UsageError(f"--spec-type {','.join(names)}: one of these can draft with a model, not both")
    for spec in (*NGRAM_TYPES, GRAMMAR):
        if spec.name not in names and (flag := _flag_given(args, spec)):
            raise UsageError(f"{flag} needs {_needed(spec)}")
    if not models and (flag := _flag_given(args, DRAFT_SIMPLE)):
        raise UsageError(f"{flag} needs {_needed(DRAFT_SIMPLE)}")
    if models:
        known = {option.field for option in models[0].options}
        for option in DRAFT_OPTIONS:
            if option.field in given(args, DRAFT) and option.field not in known:
                raise UsageError(f"{option.long_flag} is of no use to {models[0].name}: leave it out")
        if args.draft_model is None and models[0] is not DRAFT_MTP:
            raise UsageError(f"--spec-type {models[0].name} needs {_needed(models[0])}")
    elif args.draft_model is not None:
        raise UsageError(
            f"--spec-type {','.join(names)} makes no use of the draft model: add {_kind_of(args.draft_model)}, or "
            "leave -md out"
        )
    if not names and "draft_length" in given(args, "engine"):
        raise UsageError(f"{LENGTH_OPTIONS[0].long_flag} needs somebody who drafts: -md FNAME, or --spec-type TYPE")
    chosen = [SPEC_TYPES[name] for name in dict.fromkeys(names)]
    chosen.sort(key=lambda spec: (spec in models, spec is not GRAMMAR))  # what costs nothing is asked first
    return tuple(_make(args, spec) for spec in chosen) or "auto"


def _kind_of(draft_model: str) -> str:
    """What a draft is made for. One that has to be fetched is a plain one; what can't be read is reported later."""
    try:
        return draft_kind(draft_model)
    except ModelLoadError:
        return DRAFT_SIMPLE.name


def _make(args: argparse.Namespace, spec: SpecType) -> Speculator:
    values: dict[str, Any] = spec.given(args)
    if spec in MODEL_TYPES:
        values["path"] = args.draft_model
    try:
        return spec.make(**values)
    except InvalidRequest as error:
        raise UsageError(with_flag(error, spec.options)) from error


def _require_none_alone(args: argparse.Namespace, names: list[str]) -> None:
    if set(names) != {"none"}:
        raise UsageError(f"--spec-type {','.join(names)} contradicts itself: none means that nothing speculates")
    flags = [_flag_given(args, spec) for spec in SPEC_TYPES.values()]
    if "draft_length" in given(args, "engine"):
        flags.append(LENGTH_OPTIONS[0].long_flag)
    flag = "-md" if args.draft_model is not None else next(filter(None, flags), None)
    if flag is not None:
        raise UsageError(f"--spec-type none and {flag} contradict each other: leave one of them out")


def _flag_given(args: argparse.Namespace, spec: SpecType) -> str | None:
    """One of the type's flags that was given, or None."""
    values = spec.given(args)
    return next((option.long_flag for option in spec.options if option.field in values), None)


def _needed(spec: SpecType) -> str:
    return "a draft model: -md FNAME" if spec in MODEL_TYPES else f"--spec-type {spec.name}"
