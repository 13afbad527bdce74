"""From SamplingParams to a libllama sampler chain, and to what the decoder may do instead of running it."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspec._llama import Sampler, SamplerChain
from pyspec.errors import InvalidRequest
from pyspec.sampling.checks import as_float32
from pyspec.sampling.constraint import Constraint, LazyConstraint
from pyspec.sampling.guidance import Grammars, GuidedConstraint, without_leading_space
from pyspec.sampling.params import SamplingParams
from pyspec.sampling.triggers import Fired, Watch

if TYPE_CHECKING:
    from pyspec._llama import Vocab

_MIROSTAT_M = 100  # candidates from which Mirostat 1 estimates the distribution; llama.cpp's constant

# A partial selection that keeps a larger share of the vocabulary than this costs as much as the whole row.
_LARGEST_PRESELECTION = 1 / 8


@dataclass(frozen=True)
class SamplerPlan:
    """The chain of one request, and the shortcuts that provably give the same token as running it.

    Call *altered* the tokens whose logits the chain may change one by one: ``biased_ids``, and the tokens
    among the last ``history`` accepted ones (prompt included). Every other token keeps its raw logit, or the
    raw logit scaled as all are, until candidates are removed.

    ``argmax``: the chain picks the largest raw logit. Nothing is altered; no sampler can remove or overtake
    the largest logit (``top_k``, ``top_p``, ``min_p`` and ``top_n_sigma`` always keep it; ``typ_p``, ``xtc``,
    ``infill``, ``adaptive_p`` and Mirostat may not); and a temperature of 0 or less, ``top_k`` 1 or ``top_p``
    0 leaves it alone.

    ``argmax_unless_altered``: the same but for some altered tokens, none of which can be raised: biases and
    penalties only lower logits here. The largest raw logit is the chain's choice unless it belongs to an
    altered token; then the chain has to decide.

    ``preselect``: if not 0, the chain gives the same result for the ``preselect`` best raw logits plus the
    altered tokens as for the whole row. Then the first active ``top_k`` comes after nothing but biases,
    penalties, DRY and a plain temperature: of its k survivors, those not altered are among the k best of the
    not altered, hence among the ``k + len(biased_ids) + history`` best of the row. Samplers that look at the
    whole row before it (``top_n_sigma``, ``typ_p``, ``top_p``, ``min_p``, ``xtc``, ``infill``, a dynamic
    temperature) rule it out. After ``top_k`` the chain sees the same candidates in the same order with the
    same values either way, so all that follows, random numbers included, is the same to the bit.

    Both hold as long as no two logits that matter are exactly equal: the order of equal ones is up to the
    C++ library's partial sort in libllama, and to the lower token id here.

    Attributes:
        chain: the samplers, in llama.cpp's order; the last one picks a token, unless the choice is coupled.
        grammar: the grammar sampler, or None. It is not part of the chain: the chain picks first, and only
            if its pick doesn't fit are all candidates filtered and the chain asked again, as llama.cpp does.
        constraint: what else the text has to follow, or None. The chain sees only the tokens it allows; all said above
            of a row then holds for those of it.
        seed: what the chain's random numbers start from.
        coupled: the token is picked of what the chain leaves with noise that depends on seed, position and token alone.
        argmax: see above.
        argmax_unless_altered: see above; also true where ``argmax`` is.
        preselect: see above; 0 where it doesn't hold or doesn't pay.
        biased_ids: tokens whose logits the chain changes whatever the history is, in ascending order.
        history: how many of the last accepted tokens penalties or DRY may have altered; 0 if they are off.
        needs_accept: whether the chain has to be told the accepted tokens, prompt included.
    """

    chain: SamplerChain
    grammar: Sampler | None
    constraint: Constraint | None
    seed: int
    coupled: bool
    argmax: bool
    argmax_unless_altered: bool
    preselect: int
    biased_ids: tuple[int, ...]
    history: int
    needs_accept: bool


class DryCache:
    """DRY samplers of one vocabulary, ready to be cloned.

    libllama compares every token of the vocabulary with the sequence breakers when it makes one: 0.1 s for
    262,144 tokens, and every request with the same settings would pay it again.
    """

    def __init__(self, size: int = 8) -> None:
        self._size = size
        self._made: OrderedDict[tuple[Any, ...], Sampler] = OrderedDict()

    def get(self, vocab: Vocab, *settings: Any) -> Sampler:
        """A sampler of one's own; ``settings`` are those of ``Sampler.dry``."""
        made = self._made.pop(settings, None)
        if made is None:
            made = Sampler.dry(vocab, *settings)
        self._made[settings] = made
        while len(self._made) > self._size:
            self._made.popitem(last=False)
        return made.clone()


def build_chain(
    params: SamplingParams,
    vocab: Vocab,
    *,
    n_ctx: int,
    dry_cache: DryCache | None = None,
    grammars: Grammars | None = None,
) -> SamplerPlan:
    """Builds the sampler chain of one request.

    Args:
        params: what the request asked for.
        vocab: the target model's vocabulary.
        n_ctx: tokens one sequence can hold. Windows of the last tokens are cut to it, as no longer history
            exists.
        dry_cache: for several requests to the same vocabulary, where DRY samplers are kept.
        grammars: likewise, where JSON Schemas and Lark grammars are kept.

    Raises:
        InvalidRequest: for a token id that the vocabulary doesn't have, more log-probabilities than it has
            tokens, or a sampler that can't work with it.
        GrammarError: if the grammar or the schema can't be used.
    """
    _check_against(params, vocab)
    grammar, constraint = _grammar(params, vocab, grammars)
    seed = params.resolve_seed()
    bias = _all_biases(params, vocab)

    coupled = params.coupled and not params.is_greedy
    chain = SamplerChain()
    if bias:
        chain.add(Sampler.logit_bias(vocab, bias))
    if params.mirostat:
        chain.add(Sampler.temp(params.temperature))
        if params.mirostat == 1:
            chain.add(Sampler.mirostat(vocab, seed, params.mirostat_tau, params.mirostat_eta, _MIROSTAT_M))
        else:
            chain.add(Sampler.mirostat_v2(seed, params.mirostat_tau, params.mirostat_eta))
    else:
        for name in params.samplers:
            if name != "adaptive_p":
                chain.add(_sampler(name, params, vocab, seed, n_ctx, dry_cache or DryCache(0)))
        if "adaptive_p" in params.samplers:
            chain.add(Sampler.adaptive_p(params.adaptive_target, params.adaptive_decay, seed))
        elif not coupled:
            chain.add(Sampler.dist(seed))

    active = params.active_samplers
    windows = {"penalties": params.penalty_last_n, "dry": params.dry_penalty_last_n}
    history = max((min(n, n_ctx) for name, n in windows.items() if name in active), default=0)
    picks_largest = _picks_largest(params)
    return SamplerPlan(
        chain=chain,
        grammar=grammar,
        constraint=constraint,
        seed=seed,
        coupled=coupled,
        argmax=picks_largest and not bias and not history,
        argmax_unless_altered=picks_largest and _only_lowers(params, bias),
        preselect=_preselection(params, len(bias) + history, vocab.n_tokens),
        biased_ids=tuple(sorted(bias)),
        history=history,
        needs_accept=history > 0 or "adaptive_p" in active,
    )


def _grammar(
    params: SamplingParams, vocab: Vocab, grammars: Grammars | None
) -> tuple[Sampler | None, Constraint | None]:
    """What the text has to follow: a sampler of libllama's, or a constraint; or nothing."""
    if params.grammar is None and params.json_schema is None:
        return None, None
    watch = Watch(params.grammar_triggers, vocab) if params.grammar_triggers else None
    if params.json_schema is None and not params.follows_lark:
        grammar = Sampler.grammar(vocab, str(params.grammar), params.grammar_root)
        if watch is None:
            return grammar, None
        return None, LazyConstraint(watch, partial(_start_grammar, params, vocab, grammar))
    guide = grammars if grammars is not None else Grammars(vocab)
    text = guide.for_schema(str(params.json_schema)) if params.json_schema else guide.for_lark(str(params.grammar))
    if watch is None:
        return None, text
    return None, LazyConstraint(watch, partial(_start_text, params, text))


def _start_grammar(params: SamplingParams, vocab: Vocab, grammar: Sampler, fired: Fired) -> Sampler:
    """A grammar of libllama's whose trigger has appeared; the trigger is its first part."""
    if fired.offset > 0:  # it begins inside a token: only a lazy grammar takes a part of one
        pattern = rf"^[\s\S]{{{fired.offset}}}([\s\S]+)$"
        grammar = Sampler.grammar_lazy(vocab, str(params.grammar), params.grammar_root, trigger_patterns=[pattern])
    for token in fired.tokens:
        grammar.accept(token)
    return grammar


def _start_text(params: SamplingParams, text: GuidedConstraint, fired: Fired) -> GuidedConstraint:
    """Likewise of llguidance's; a JSON text begins behind the trigger."""
    text.start_with(fired.begin if params.json_schema is None else without_leading_space(fired.behind))
    return text


def _check_against(params: SamplingParams, vocab: Vocab) -> None:
    n_tokens = vocab.n_tokens
    for name, ids in (("logit_bias", params.logit_bias), ("stop_token_ids", params.stop_token_ids)):
        for token in ids:
            if token >= n_tokens:
                raise InvalidRequest(
                    f"{name} names token {token}, but the vocabulary has tokens 0 to {n_tokens - 1} only",
                    name=name, value=token,
                )  # fmt: skip
    if params.logprobs is not None and params.logprobs > n_tokens:
        raise InvalidRequest(
            f"logprobs asks for {params.logprobs} tokens, but the vocabulary has {n_tokens}",
            name="logprobs", value=params.logprobs,
        )  # fmt: skip
    if "infill" in params.active_samplers:
        _check_infill(params)


def _check_infill(params: SamplingParams) -> None:
    """Infill compares the text of every pair of candidates: hours for a whole vocabulary."""
    for name in params.active_samplers:
        if name == "infill":
            raise InvalidRequest(
                "samplers has infill before anything that limits the candidates; put top_k, top_p or min_p "
                "(with a value that limits them) before it",
                name="samplers", value=params.samplers,
            )  # fmt: skip
        if name in ("top_k", "top_p", "min_p", "typ_p"):
            return


def _all_biases(params: SamplingParams, vocab: Vocab) -> dict[int, float]:
    """The user's biases, the model's suppressed tokens and, with ignore_eos, its end tokens; one entry each.

    One each because libllama adds up several entries for a token in a whole row, but takes the first only
    where candidates were selected before.
    """
    bias = dict(params.logit_bias)
    bias.update(dict.fromkeys(vocab.suppress_tokens, -math.inf))
    if params.ignore_eos:
        bias.update(dict.fromkeys(vocab.eog_tokens, -math.inf))
    return bias


def _sampler(
    name: str, p: SamplingParams, vocab: Vocab, seed: int, n_ctx: int, dry_cache: DryCache
) -> Sampler:
    # Larger values mean the same as these limits, and libllama allocates windows at once.
    penalty_last_n, dry_last_n = min(p.penalty_last_n, n_ctx), min(p.dry_penalty_last_n, n_ctx)
    min_keep = min(p.min_keep, vocab.n_tokens)
    if name == "penalties":
        return Sampler.penalties(vocab, penalty_last_n, p.penalty_repeat, p.penalty_freq, p.penalty_present)
    if name == "dry":
        allowed_length = min(p.dry_allowed_length, n_ctx)
        breakers = p.dry_sequence_breakers
        return dry_cache.get(vocab, p.dry_multiplier, p.dry_base, allowed_length, dry_last_n, breakers)
    if name == "top_n_sigma":
        return Sampler.top_n_sigma(p.top_n_sigma)
    if name == "top_k":
        return Sampler.top_k(p.top_k)
    if name == "typ_p":
        return Sampler.typical(p.typ_p, min_keep)
    if name == "top_p":
        return Sampler.top_p(p.top_p, min_keep)
    if name == "min_p":
        return Sampler.min_p(p.min_p, min_keep)
    if name == "xtc":
        return Sampler.xtc(p.xtc_probability, p.xtc_threshold, min_keep, seed)
    if name == "temperature":
        return Sampler.temp_ext(p.temperature, max(p.dynatemp_range, 0.0), p.dynatemp_exponent)
    if name == "infill":
        return Sampler.infill(vocab)
    raise AssertionError(f"no sampler is named {name}")


def _picks_largest(params: SamplingParams) -> bool:
    """Whether the chain always picks the largest logit, after biases, penalties and DRY."""
    if params.mirostat:
        return False
    picked = False
    for name in params.active_samplers:
        if name in ("typ_p", "xtc", "infill", "adaptive_p"):
            return False
        if name == "temperature" and not picked:
            if as_float32(params.temperature) > 0 or as_float32(params.dynatemp_range) > 0:
                return False  # a division can make two different logits equal before one of them is picked
            picked = True
        elif name == "top_k":
            picked = picked or params.top_k == 1
        elif name == "top_p":
            picked = picked or (as_float32(params.top_p) <= 0 and params.min_keep <= 1)
    return picked


def _only_lowers(params: SamplingParams, bias: Mapping[int, float]) -> bool:
    """Whether biases and penalties can raise no logit; DRY never does."""
    if "penalties" in params.active_samplers:
        repeat, others = as_float32(params.penalty_repeat), (params.penalty_freq, params.penalty_present)
        if repeat < 1 or any(as_float32(value) < 0 for value in others):
            return False
    return all(value <= 0 for value in bias.values())


def _preselection(params: SamplingParams, n_altered: int, n_tokens: int) -> int:
    if params.mirostat:
        return 0
    for name in params.active_samplers:
        if name == "top_k":
            n = params.top_k + n_altered
            return n if n <= n_tokens * _LARGEST_PRESELECTION else 0
        plain_temperature = name == "temperature" and params.temperature > 0 >= params.dynatemp_range
        if name not in ("penalties", "dry") and not plain_temperature:
            return 0
    return 0
