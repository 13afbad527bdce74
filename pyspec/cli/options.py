"""The options of ``pyspec generate``, under llama.cpp's names, as tables: flag, field, meaning.

Each option sets one field of :class:`~pyspec.Engine` or :class:`~pyspec.SamplingParams`; the defaults are theirs.
Speculation's are in :mod:`pyspec.cli.spec_options`, what belongs to the command alone (the prompt, how the output
looks) in :mod:`pyspec.cli.generate`.
"""

from __future__ import annotations

import argparse
import re

from pyspec.cli.parser import Option, add_options
from pyspec.engine import Engine
from pyspec.exactness import Exact
from pyspec.sampling import SamplingParams
from pyspec.sampling.triggers import KINDS


def unescape(text: str) -> str:
    r"""Replaces ``\n``, ``\r``, ``\t``, ``\'``, ``\"``, ``\\`` and ``\xHH`` as llama.cpp does; leaves others.

    ``\xHH`` is a byte. Bytes that are not UTF-8 become lone surrogates, as in ``sys.argv``.
    """
    plain = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"'": b"'", b'"': b'"', b"\\": b"\\"}

    def replace(match: re.Match[bytes]) -> bytes:
        escape = match[1]
        return bytes([int(escape[1:], 16)]) if escape.startswith(b"x") else plain[escape]

    raw = text.encode("utf-8", "surrogateescape")
    replaced = re.sub(rb"""\\(x[0-9a-fA-F]{2}|[nrt'"\\])""", replace, raw)
    return replaced.decode("utf-8", "surrogateescape")


def layers(text: str) -> int:
    """``auto``, ``all`` (which mean the same) or a number of layers."""
    return -1 if text in ("auto", "all") else int(text)


def context_size(text: str) -> int | None:
    """A number of tokens; 0 leaves it to the model."""
    return int(text) or None


def n_predict(text: str) -> int | None:
    """A number of tokens; llama.cpp's -1 and -2 both mean until the model or the context ends it."""
    value = int(text)
    return None if value in (-1, -2) else value


def logit_bias(text: str) -> tuple[int, float]:
    """``15043+1``, ``15043-0.5``, ``15043-inf``."""
    found = re.fullmatch(r"\s*(\d+)\s*([+-])\s*(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+|inf)\s*", text)
    if found is None:
        raise ValueError(text)
    return int(found[1]), float(found[2] + found[3])


def grammar_trigger(text: str) -> str | tuple[str, str | int]:
    """``word``, ``token:15043``, ``pattern:REGEX``, ``pattern_full:REGEX``."""
    kind, colon, value = text.partition(":")
    if not colon or kind not in KINDS:
        return text
    return (kind, int(value)) if kind == "token" else (kind, value)


# fmt: off
ENGINE_OPTIONS = (
    Option(("-c", "--ctx-size"), "n_ctx", context_size, "N",
           "tokens the context holds, prompt included; 0: as many as in training (default: {default})"),
    Option(("-b", "--batch-size"), "n_batch", int, "N",
           "most tokens of one call to libllama (default: {default})"),
    Option(("-ub", "--ubatch-size"), "n_ubatch", int, "N",
           "most tokens the backend computes at once (default: {default})"),
    Option(("-t", "--threads"), "n_threads", int, "N",
           "threads for generating (default: {default}, as many as there are cores)"),
    Option(("-tb", "--threads-batch"), "n_threads_batch", int, "N",
           "threads for reading the prompt (default: {default}, as --threads)"),
    Option(("-ngl", "--gpu-layers", "--n-gpu-layers"), "n_gpu_layers", layers, "N",
           "layers kept in GPU memory: a number, 'auto' or 'all' (default: auto)"),
    Option(("-fa", "--flash-attn"), "flash_attn", str, "on|off|auto",
           "use Flash Attention (default: {default})"),
    Option(("-ctk", "--cache-type-k"), "type_k", str, "TYPE",
           "data type of the cache's keys: f32, f16, bf16, q8_0, q4_0, q4_1, iq4_nl, q5_0, q5_1 (default:"
           " {default})"),
    Option(("-ctv", "--cache-type-v"), "type_v", str, "TYPE",
           "data type of the cache's values, likewise (default: {default})"),
    Option(("-nr", "--no-repack"), "use_extra_bufts", str, "",
           "do not rearrange weights for the CPU while loading", const=False),
    Option(("--exact",), "exact", str, "",
           "the text is, to the bit, plain decoding's: decodes no wider than was measured to be exact", const=True),
    Option(("--exact-strict",), "exact", str, "",
           "the same, but where nothing is exact end with an error instead of doing without speculation",
           const=Exact(fallback="raise")),
)

SAMPLING_OPTIONS = (
    Option(("-n", "--predict", "--n-predict"), "max_tokens", n_predict, "N",
           "tokens to generate at most (default: -1, until the model ends the text or the context is "
           "full)"),
    Option(("-s", "--seed"), "seed", int, "SEED",
           "start of the random numbers (default: -1, drawn and reported)"),
    Option(("--coupled",), "coupled", str, "",
           "make random choices that a draft model can make as well: more of its tokens are accepted, the"
           " distribution is the same", const=True),
    Option(("--temp", "--temperature"), "temperature", float, "N",
           "temperature; 0 takes the likeliest token each time (default: {default})"),
    Option(("--top-k",), "top_k", int, "N",
           "keep the k likeliest tokens, 0 for all (default: {default})"),
    Option(("--top-p",), "top_p", float, "N",
           "keep the likeliest tokens up to this probability (default: {default})"),
    Option(("--min-p",), "min_p", float, "N",
           "drop tokens less likely than this fraction of the likeliest (default: {default})"),
    Option(("--typical", "--typical-p"), "typ_p", float, "N",
           "locally typical sampling, 1 for off (default: {default})"),
    Option(("--top-nsigma", "--top-n-sigma"), "top_n_sigma", float, "N",
           "keep tokens within so many standard deviations of the best, -1 for off (default: {default})"),
    Option(("--xtc-probability",), "xtc_probability", float, "N",
           "chance that XTC removes the likeliest tokens, 0 for off (default: {default})"),
    Option(("--xtc-threshold",), "xtc_threshold", float, "N",
           "XTC removes tokens of at least this probability (default: {default})"),
    Option(("--repeat-last-n",), "penalty_last_n", int, "N",
           "the penalties look at so many last tokens, 0 for off (default: {default})"),
    Option(("--repeat-penalty",), "penalty_repeat", float, "N",
           "penalty for tokens seen there, 1 for off (default: {default})"),
    Option(("--presence-penalty",), "penalty_present", float, "N",
           "subtracted once from tokens seen there, 0 for off (default: {default})"),
    Option(("--frequency-penalty",), "penalty_freq", float, "N",
           "subtracted for each time a token was seen there, 0 for off (default: {default})"),
    Option(("--dry-multiplier",), "dry_multiplier", float, "N",
           "strength of DRY, 0 for off (default: {default})"),
    Option(("--dry-base",), "dry_base", float, "N",
           "base of DRY's penalty (default: {default})"),
    Option(("--dry-allowed-length",), "dry_allowed_length", int, "N",
           "passages up to so many tokens may repeat freely (default: {default})"),
    Option(("--dry-penalty-last-n",), "dry_penalty_last_n", int, "N",
           "DRY looks at so many last tokens, 0 for off (default: {default})"),
    Option(("--dry-sequence-breaker",), "dry_sequence_breakers", str, "STRING",
           "a string that ends a repeated passage, instead of the default ones; 'none' for "
           "none at all; repeatable", repeat=True),
    Option(("--dynatemp-range",), "dynatemp_range", float, "N",
           "the temperature moves by so much, 0 for off (default: {default})"),
    Option(("--dynatemp-exp",), "dynatemp_exponent", float, "N",
           "exponent of the moving temperature (default: {default})"),
    Option(("--adaptive-target",), "adaptive_target", float, "N",
           "with adaptive_p among the samplers: the probability to choose near, -1 for off (default: "
           "{default})"),
    Option(("--adaptive-decay",), "adaptive_decay", float, "N",
           "how slowly adaptive_p forgets (default: {default})"),
    Option(("--mirostat",), "mirostat", int, "N",
           "1 or 2: use that Mirostat instead of the samplers (default: 0)"),
    Option(("--mirostat-lr",), "mirostat_eta", float, "N",
           "Mirostat's learning rate (default: {default})"),
    Option(("--mirostat-ent",), "mirostat_tau", float, "N",
           "Mirostat's target entropy (default: {default})"),
    Option(("--samplers",), "samplers", str, "NAMES",
           "samplers in order, separated by ';' (default: "
           "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature)"),
    Option(("--sampler-seq", "--sampling-seq"), "samplers", str, "LETTERS",
           "the same by letters (default: edskypmxt)"),
    Option(("-l", "--logit-bias"), "logit_bias", logit_bias, "ID+BIAS",
           "change a token's likelihood: 15043+1, 15043-1, 15043-inf to forbid it; "
           "repeatable", repeat=True),
    Option(("--ignore-eos",), "ignore_eos", str, "",
           "never choose a token that ends the text", const=True),
    Option(("--grammar",), "grammar", str, "GRAMMAR",
           "GBNF grammar the text has to follow"),
    Option(("--grammar-file",), "grammar_file", str, "FNAME",
           "file with that grammar"),
    Option(("--grammar-trigger",), "grammar_triggers", grammar_trigger, "TRIGGER",
           "the grammar or schema applies only from where this word appears in the text, or token:ID, or "
           "pattern:REGEX; repeatable", repeat=True),
    Option(("-j", "--json-schema"), "json_schema", str, "SCHEMA",
           "JSON Schema the text has to follow; {{}} for any JSON, json_object for any object"),
    Option(("-jf", "--json-schema-file"), "json_schema_file", str, "FNAME",
           "file with that schema"),
    Option(("-r", "--reverse-prompt", "--stop"), "stop", str, "STRING",
           "end where this string appears; it is not part of the text; repeatable", repeat=True),
    Option(("--stop-token",), "stop_token_ids", int, "ID",
           "end at this token; repeatable", repeat=True),
    Option(("--logprobs",), "logprobs", int, "N",
           "with --json: each token's log-probability, and those of the N likeliest"),
    Option(("--logprobs-mode",), "logprobs_mode", str, "raw|sampled",
           "log-probabilities before all samplers, or after them (default: {default})"),
)
# fmt: on


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Model, context, threads and devices of the target."""
    group = parser.add_argument_group("target model")
    group.add_argument(
        "-m", "--model", metavar="FNAME", required=True, help="GGUF file, or a name from 'pyspec models list'"
    )
    add_options(group, "engine", ENGINE_OPTIONS, Engine)


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """How tokens are chosen, and when the text ends."""
    add_options(parser.add_argument_group("sampling"), "sampling", SAMPLING_OPTIONS, SamplingParams)
