"""SamplingParams: how the tokens of one request are chosen, and when it ends."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pyspec.errors import GrammarError, InvalidRequest
from pyspec.sampling.checks import (
    FLOAT32_MAX,
    INT32_MAX,
    INT32_MIN,
    as_float32,
    biases,
    boolean,
    integer,
    number,
    text,
    texts,
    token_ids,
    wrong,
)
from pyspec.sampling.names import DEFAULT_SAMPLERS, param_names, sampler_names
from pyspec.sampling.schema import schema_text
from pyspec.sampling.triggers import trigger_list

LARK = "%llguidance"  # a grammar that begins like this is in llguidance's Lark format

LLAMA_DEFAULT_SEED = 0xFFFFFFFF  # libllama's word for "draw one"

# Below this a temperature lifts logits out of the range of a float, and all of them become infinite.
_SMALLEST_TEMPERATURE = 1e-30

_INTEGERS = {
    "min_keep": (0, INT32_MAX),
    "top_k": (INT32_MIN, INT32_MAX),
    "penalty_last_n": (0, INT32_MAX),
    "dry_allowed_length": (0, INT32_MAX),
    "dry_penalty_last_n": (0, INT32_MAX),
    "mirostat": (0, 2),
}
_NUMBERS = {
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "xtc_probability": (0.0, 1.0),
    "xtc_threshold": (0.0, 1.0),
    "typ_p": (0.0, 1.0),
    "temperature": (-FLOAT32_MAX, FLOAT32_MAX),
    "dynatemp_range": (-FLOAT32_MAX, FLOAT32_MAX),
    "dynatemp_exponent": (0.0, FLOAT32_MAX),
    "penalty_repeat": (-FLOAT32_MAX, FLOAT32_MAX),
    "penalty_freq": (-FLOAT32_MAX, FLOAT32_MAX),
    "penalty_present": (-FLOAT32_MAX, FLOAT32_MAX),
    "dry_multiplier": (0.0, FLOAT32_MAX),
    "dry_base": (0.0, FLOAT32_MAX),
    "adaptive_target": (-FLOAT32_MAX, 1.0),
    "adaptive_decay": (0.0, 0.99),
    "top_n_sigma": (-FLOAT32_MAX, FLOAT32_MAX),
    "mirostat_tau": (0.0, FLOAT32_MAX),
    "mirostat_eta": (0.0, FLOAT32_MAX),
}


@dataclass(frozen=True, kw_only=True, repr=False)
class SamplingParams:
    """How the tokens of one request are chosen, and when it ends.

    Names, order and defaults are those of llama.cpp's sampling parameters (``temperature`` is its
    ``temp``). Sequences are stored as tuples, whatever was given.

    Attributes:
        seed: start of the random numbers, 0 to 2**32 - 2. The same seed, prompt and parameters give the
            same text, with and without speculation. None (also -1 and 0xFFFFFFFF, llama.cpp's words for
            it) draws one for each request; the result tells which.
        coupled: random choices depend on the seed, the position in the text and the token alone, so that a draft
            model can make the same ones: at a temperature above 0 more of its tokens are accepted, and tokens are
            drawn from the same distribution as without. The same seed gives another text than without; texts with
            the same seed make related choices where they are equally long. Not with Mirostat, XTC and
            ``adaptive_p``, which draw random numbers of their own.
        min_keep: ``top_p``, ``min_p``, ``typ_p`` and ``xtc`` leave at least so many candidates. 0: no rule.
        top_k: keep the k likeliest tokens. 0 or less: all.
        top_p: keep the likeliest tokens that together reach this probability, 0 to 1. 1: all.
        min_p: drop tokens less likely than this fraction of the likeliest one, 0 to 1. 0: none.
        xtc_probability: chance, per token, that XTC removes all candidates of at least ``xtc_threshold``
            but the least likely of them, so that a common continuation gives way. 0 to 1; 0: never.
        xtc_threshold: see there, 0 to 1. Above 0.5 XTC does nothing.
        typ_p: locally typical sampling: keep the tokens whose surprise is nearest to the expected one, up
            to this total probability, 0 to 1. 1: all.
        temperature: logits are divided by it: below 1 the likely tokens become likelier, above 1 less so.
            0 or less takes the likeliest token each time (greedy).
        dynatemp_range: the temperature moves within ``temperature`` plus and minus this, low where the
            model is sure and high where it is not. 0 or less: it stays.
        dynatemp_exponent: how the uncertainty maps to that range, 0 or more: above 1 keeps it low longer.
        penalty_last_n: the penalties look at so many last tokens, prompt included. 0: no penalties.
        penalty_repeat: divides the positive logits (multiplies the negative ones) of tokens seen there.
            Above 0; above 1 makes repetition less likely. 1: no change.
        penalty_freq: subtracted from a token's logit for each time it was seen there. 0: no change.
        penalty_present: subtracted once from the logit of each token seen there. 0: no change.
        dry_multiplier: strength of DRY, which lowers tokens that would continue a repeated passage, by
            ``dry_multiplier * dry_base ** (length of the passage - dry_allowed_length)``. 0 or more; 0: off.
        dry_base: see there, 0 or more. Below 1 turns DRY off.
        dry_allowed_length: passages up to so many tokens may repeat freely, 0 or more.
        dry_penalty_last_n: DRY looks at so many last tokens, prompt included. 0: off.
        dry_sequence_breakers: strings at which a repeated passage ends for DRY.
        adaptive_target: with ``adaptive_p`` among the samplers: choose tokens near this probability, and
            hold the average there. 0 to 1; negative: plain sampling.
        adaptive_decay: how slowly that average forgets, 0 to 0.99; it spans about ``1 / (1 - decay)`` tokens.
        mirostat: 1 or 2 replaces all samplers but the biases and the temperature by Mirostat, which holds
            the surprise of the text at a target. 0: off.
        top_n_sigma: keep tokens within so many standard deviations of the best logit. 0 or less: all.
        mirostat_tau: Mirostat's target surprise in bits per token, 0 or more.
        mirostat_eta: how fast Mirostat corrects, 0 or more.
        ignore_eos: never choose a token that ends the generation.
        samplers: which samplers run, in order: names, other spellings of them, letter codes, or one string
            of either (``"top_k;temperature"``, ``"kt"``). The last step always picks by probability, or
            the ``adaptive_p`` way if that is named anywhere.
        grammar: grammar that the text has to follow: GBNF, or llguidance's Lark format, which begins with
            ``%llguidance`` (needs the extra ``json``). None: free text.
        grammar_root: name of a GBNF grammar's start rule.
        grammar_triggers: the grammar (or schema) applies only from where one of these appears in the generated text:
            words, token ids, and ``("pattern", regex)`` or ``("pattern_full", regex)`` pairs (``re`` syntax; the second
            has to match all of the text so far). A grammar covers the trigger itself, or what a pattern's first
            group holds; JSON by a schema begins behind it. Also taken: llama.cpp's ``{"type": ..., "value": ...}``.
        json_schema: JSON Schema (a mapping, or its JSON text, which is what is stored) that the text has to follow;
            keys come in the schema's order. ``{}``: any JSON; ``"json_object"``: any object. Needs the extra ``json``
            (llguidance); its ``x-guidance`` settings may stand in the schema, ``{"whitespace_flexible": False}`` for
            compact JSON. None: free text.
        logit_bias: token id -> number added to its logit; ``-inf`` forbids the token. Copied.
        max_tokens: end after so many tokens, 1 or more. None: when the model ends it, or the context is full.
        stop: end where one of these strings appears in the generated text, which then ends before it. One
            string or several; the first to be complete counts.
        stop_token_ids: end at one of these tokens, as at the model's own end-of-generation tokens.
        logprobs: report each token's log-probability, and those of so many likeliest tokens, 0 or more. None: no
            log-probabilities.
        logprobs_mode: "raw": under the model, before any sampler. "sampled": in the distribution it was drawn from,
            after all of them, grammar included; only tokens that could have been drawn are listed. Where no random
            number decides (greedy decoding) that is the token itself with 0.

    Raises:
        InvalidRequest: for a value that is not finite, out of range or of the wrong type; ``name`` and
            ``value`` tell which.
    """

    seed: int | None = None
    coupled: bool = False
    min_keep: int = 0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    typ_p: float = 1.0
    temperature: float = 0.8
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    penalty_last_n: int = 64
    penalty_repeat: float = 1.0
    penalty_freq: float = 0.0
    penalty_present: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64
    dry_sequence_breakers: Sequence[str] = ("\n", ":", '"', "*")
    adaptive_target: float = -1.0
    adaptive_decay: float = 0.9
    mirostat: int = 0
    top_n_sigma: float = -1.0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    ignore_eos: bool = False
    samplers: Sequence[str] = DEFAULT_SAMPLERS
    grammar: str | None = None
    grammar_root: str = "root"
    grammar_triggers: Sequence[Any] = ()
    json_schema: Mapping[str, Any] | str | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    max_tokens: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    logprobs: int | None = None
    logprobs_mode: Literal["raw", "sampled"] = "raw"

    def __post_init__(self) -> None:
        checked: dict[str, Any] = {}
        for name, (least, most) in _INTEGERS.items():
            checked[name] = integer(name, getattr(self, name), least, most)
        for name, (low, high) in _NUMBERS.items():
            checked[name] = number(name, getattr(self, name), low, high)
        if 0.0 < checked["temperature"] < _SMALLEST_TEMPERATURE:
            allowed = f"0 or less (greedy), or at least {_SMALLEST_TEMPERATURE:g}"
            raise wrong("temperature", self.temperature, allowed)
        if not (checked["penalty_repeat"] > 0.0 and 1.0 / checked["penalty_repeat"] <= FLOAT32_MAX):
            raise wrong("penalty_repeat", self.penalty_repeat, "above 0, and its reciprocal finite")
        if self.seed is not None:
            seed = integer("seed", self.seed, -1, LLAMA_DEFAULT_SEED)
            checked["seed"] = None if seed in (-1, LLAMA_DEFAULT_SEED) else seed
        if self.max_tokens is not None:
            if self.max_tokens == 0:
                raise wrong("max_tokens", self.max_tokens, "1 or more (None for no limit)")
            checked["max_tokens"] = integer("max_tokens", self.max_tokens, 1, INT32_MAX)
        if self.logprobs is not None:
            checked["logprobs"] = integer("logprobs", self.logprobs, 0, INT32_MAX)
        checked["ignore_eos"] = boolean("ignore_eos", self.ignore_eos)
        checked["coupled"] = boolean("coupled", self.coupled)
        checked["samplers"] = _sampler_order(self.samplers)
        checked["dry_sequence_breakers"] = texts("dry_sequence_breakers", self.dry_sequence_breakers)
        checked["stop"] = texts("stop", self.stop)
        checked["stop_token_ids"] = token_ids("stop_token_ids", self.stop_token_ids)
        checked["logit_bias"] = biases("logit_bias", self.logit_bias)
        checked["grammar"] = text("grammar", self.grammar) if self.grammar else None
        checked["grammar_root"] = text("grammar_root", self.grammar_root)
        checked["grammar_triggers"] = trigger_list("grammar_triggers", self.grammar_triggers)
        checked["json_schema"] = schema_text("json_schema", self.json_schema)
        if self.logprobs_mode not in ("raw", "sampled"):
            raise wrong("logprobs_mode", self.logprobs_mode, "'raw' or 'sampled'")
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        self._check_grammar()
        self._check_coupled()

    def _check_coupled(self) -> None:
        """What draws random numbers from a state of its own can't be made to depend on position and token."""
        for name in self.active_samplers if self.coupled else ():
            if name in ("xtc", "adaptive_p") or name.startswith("mirostat"):
                raise InvalidRequest(
                    f"coupled can't be combined with {name}, which draws random numbers of its own; leave one out",
                    name="coupled", value=True,
                )  # fmt: skip

    def _check_grammar(self) -> None:
        if self.grammar and self.json_schema:
            raise GrammarError(
                "grammar and json_schema are given, and a text can follow one of them only; leave the other out",
                name="json_schema", value=self.json_schema,
            )  # fmt: skip
        if self.grammar_triggers and not (self.grammar or self.json_schema):
            raise GrammarError(
                "grammar_triggers need a grammar, or a json_schema, to start", name="grammar_triggers",
                value=self.grammar_triggers,
            )  # fmt: skip
        if self.follows_lark and self.grammar_root != "root":
            raise GrammarError(
                f"grammar_root is for GBNF grammars; a Lark grammar begins with its rule start, not with "
                f"{self.grammar_root!r}",
                name="grammar_root", value=self.grammar_root,
            )  # fmt: skip

    @property
    def follows_lark(self) -> bool:
        """Whether the grammar is one of llguidance's."""
        return bool(self.grammar) and str(self.grammar).lstrip().startswith(LARK)

    @property
    def active_samplers(self) -> tuple[str, ...]:
        """The samplers that change anything with these values, in order.

        libllama turns the others into steps that do nothing, by the same rules.
        """
        if self.mirostat:
            return ("temperature", f"mirostat{'_v2' if self.mirostat == 2 else ''}")
        return tuple(name for name in self.samplers if self._is_active(name))

    def _is_active(self, sampler: str) -> bool:
        f32 = as_float32
        if sampler == "penalties":
            changes = (f32(self.penalty_repeat) - 1, f32(self.penalty_freq), f32(self.penalty_present))
            return self.penalty_last_n > 0 and any(changes)
        if sampler == "dry":
            return f32(self.dry_multiplier) != 0 and f32(self.dry_base) >= 1 and self.dry_penalty_last_n > 0
        if sampler == "top_n_sigma":
            return f32(self.top_n_sigma) > 0
        if sampler == "top_k":
            return self.top_k > 0
        if sampler in ("typ_p", "top_p"):
            return f32(getattr(self, sampler)) < 1
        if sampler == "min_p":
            return f32(self.min_p) > 0
        if sampler == "xtc":
            return f32(self.xtc_probability) > 0 and f32(self.xtc_threshold) <= 0.5
        if sampler == "temperature":
            return f32(self.temperature) != 1 or f32(self.dynatemp_range) > 0
        return True  # infill and adaptive_p have no value that turns them off

    @property
    def is_greedy(self) -> bool:
        """Whether no random number decides: the same prompt gives the same text, whatever the seed."""
        active = self.active_samplers
        if self.mirostat or "adaptive_p" in active or "xtc" in active:
            return False
        greedy_temperature = as_float32(self.temperature) <= 0 and as_float32(self.dynatemp_range) <= 0
        return ("temperature" in active and greedy_temperature) or ("top_k" in active and self.top_k == 1)

    def resolve_seed(self) -> int:
        """The seed of one request: the given one, or one drawn now (0 to 2**32 - 2)."""
        return secrets.randbelow(LLAMA_DEFAULT_SEED) if self.seed is None else self.seed

    def replace(self, **changes: Any) -> SamplingParams:
        """The same parameters but for the given ones.

        Raises:
            InvalidRequest: as the constructor does, and for an unknown name.
        """
        _refuse_unknown(changes)
        return dataclasses.replace(self, **changes)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SamplingParams:
        """Parameters from their names, as ``to_dict`` gives them or as llama.cpp and others write them.

        Taken besides the names of the attributes: the names of llama.cpp's command line and server
        (``temp``, ``repeat_penalty``, ``repeat_last_n``, ``typical_p``, ``n_predict``, ...), with dashes or
        underscores, and the common ``frequency_penalty``, ``presence_penalty``, ``max_completion_tokens``.

        Raises:
            InvalidRequest: for an unknown name, a name given twice, or a value the constructor refuses.
        """
        values = param_names(values)
        _refuse_unknown(values)
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """All parameters as plain Python values; ``from_dict`` makes equal parameters from them.

        The same holds after a trip through ``json`` (which turns token ids into strings).
        """
        plain = {name: getattr(self, name) for name in _FIELDS}
        plain["logit_bias"] = dict(self.logit_bias)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}

    def __repr__(self) -> str:
        changed = ((name, getattr(self, name)) for name in _FIELDS)
        shown = (f"{name}={value!r}" for name, value in changed if value != _DEFAULTS.get(name, {}))
        return f"SamplingParams({', '.join(shown)})"


_FIELDS = tuple(f.name for f in dataclasses.fields(SamplingParams))
_DEFAULTS = {
    f.name: f.default for f in dataclasses.fields(SamplingParams) if f.default is not dataclasses.MISSING
}


def _refuse_unknown(given: Iterable[str]) -> None:
    for name in given:
        if name not in _FIELDS:
            raise InvalidRequest(
                f"there is no sampling parameter {name!r}; known are {', '.join(_FIELDS)}", name=str(name)
            )


def _sampler_order(given: Any) -> tuple[str, ...]:
    if isinstance(given, bytes) or not isinstance(given, Iterable):
        raise wrong("samplers", given, "names of samplers, or a string of them")
    return sampler_names(given)
