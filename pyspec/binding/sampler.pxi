# Samplers: one object of libllama's each, made by the class methods in sampler_kinds.pxi.

DETACHED = ("it ran inside a compute graph and cannot be used outside; attach or use its clone()")

cdef frozenset SELECTORS = frozenset({"greedy", "dist", "mirostat", "mirostat_v2", "adaptive_p"})


cdef class Sampler:
    """One step of sampling: it changes or removes candidates, or picks one.

    Made by the class methods: :meth:`greedy`, :meth:`dist`, :meth:`top_k`, ... A sampler added to a
    :class:`SamplerChain` belongs to the chain and cannot be used by itself any more.

    Attributes:
        name: libllama's name for it; a leading "?" means that its parameters switch it off.
    """

    def __init__(self):
        raise TypeError("a Sampler is made by one of the class methods, for instance Sampler.top_k(40)")

    def __dealloc__(self):
        if self.ptr != NULL and self.owned:
            llama_sampler_free(self.ptr)
        self.ptr = NULL

    def __repr__(self):
        return f"<pyspec {type(self).__name__} {self.name}{', closed' if self.ptr == NULL else ''}>"

    cdef llama_sampler * use(self) except NULL:
        if self.ptr == NULL:
            raise Closed(f"the sampler {self.name!r} is closed, or belongs to a chain")
        if self.spent is not None:
            raise InvalidRequest(
                f"the sampler {self.name!r} cannot be used: {self.spent}", name="sampler", value=self
            )
        return self.ptr

    def close(self) -> None:
        """Free the sampler."""
        if self.ptr != NULL and self.owned:
            llama_sampler_free(self.ptr)
        self.ptr = NULL

    @property
    def closed(self) -> bool:
        return self.ptr == NULL

    def __enter__(self):
        self.use()
        return self

    def __exit__(self, *exc_info):
        self.close()

    @property
    def seed(self) -> int | None:
        """The seed in use, or None for a sampler without random numbers."""
        cdef uint32_t seed = llama_sampler_get_seed(self.use())
        return None if seed == LLAMA_DEFAULT_SEED else seed

    cdef int check_token(self, object token) except -1:
        """Whether accepting it can go wrong in libllama."""
        cdef llama_token id = as_int("token", token, 0, max_token(self.n_vocab))
        if self.kind == "grammar" and not fits_grammar(self.ptr, id):
            raise GrammarError(f"token {id} does not fit the grammar here", name="token", value=token)
        return 0

    def accept(self, token) -> None:
        """Tell the sampler which token was chosen.

        Raises:
            GrammarError: the token does not fit the grammar. The sampler is as before; of a lazy grammar that
            was
                just triggered, :meth:`reset` or a clone from before is needed.
        """
        cdef llama_sampler * ptr = self.use()
        self.check_token(token)
        try:
            llama_sampler_accept(ptr, token)
        except Exception as error:
            self.spent = f"it was given a token that does not fit its grammar ({error}); reset() it"
            raise GrammarError(
                f"token {token} does not fit the grammar: {error}", name="token", value=token
            ) from error

    def apply(self, ids, logits) -> tuple[np.ndarray, np.ndarray, np.ndarray, int | None]:
        """Apply the sampler to candidates.

        Args:
            ids: token ids, each once.
            logits: their logits; -inf removes a candidate, NaN and +inf are refused.

        Returns:
            The remaining ids, their logits, their probabilities (0 where the sampler computes none), and the
            index in these arrays of the candidate that was picked, None when the sampler does not pick.
        """
        cdef llama_sampler * ptr = self.use()
        cdef vector[llama_token_data] candidates
        cdef llama_token_data_array array
        cdef const int32_t[::1] c_ids
        cdef const float[::1] c_logits
        cdef size_t i
        try:
            id_array = np.ascontiguousarray(ids, dtype=np.int32)
            logit_array = np.ascontiguousarray(logits, dtype=np.float32)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidRequest(
                f"ids and logits must be arrays of numbers: {error}", name="logits"
            ) from None
        if id_array.ndim != 1 or id_array.shape != logit_array.shape or id_array.size == 0:
            raise InvalidRequest(
                f"ids and logits must be of the same length, at least 1, not {id_array.shape} and "
                f"{logit_array.shape}", name="logits", value=logit_array.shape,
            )
        if np.isnan(logit_array).any() or np.isposinf(logit_array).any():
            raise InvalidRequest("logits must not be NaN or +inf", name="logits")
        if id_array.min() < 0 or (self.n_vocab and id_array.max() >= self.n_vocab):
            raise InvalidRequest(f"ids must be between 0 and {max_token(self.n_vocab)}", name="ids")
        c_ids, c_logits = id_array, logit_array
        candidates.resize(c_ids.shape[0])
        for i in range(candidates.size()):
            candidates[i].id = c_ids[i]
            candidates[i].logit = c_logits[i]
            candidates[i].p = 0
        array.data = candidates.data()
        array.size = candidates.size()
        array.selected = -1
        array.sorted = False
        try:
            with nogil:
                llama_sampler_apply(ptr, &array)
        except Exception as error:
            raise InvalidRequest(f"the sampler {self.name!r} cannot work with these candidates: {error}",
                                 name="logits") from error
        out_ids = np.empty(array.size, np.int32)
        out_logits = np.empty(array.size, np.float32)
        out_p = np.empty(array.size, np.float32)
        copy_candidates(&array, out_ids, out_logits, out_p)
        picked = array.selected if 0 <= array.selected < <int64_t> array.size else None
        return out_ids, out_logits, out_p, picked

    def reset(self) -> None:
        """Forget accepted tokens and restart random numbers."""
        if self.spent is not None and self.spent is not DETACHED and self.ptr != NULL:
            self.spent = None
        llama_sampler_reset(self.use())

    def clone(self) -> Sampler:
        """An independent copy with the same state."""
        cdef Sampler copy = type(self).__new__(type(self))
        cdef llama_sampler * ptr = self.ptr
        if ptr == NULL:
            self.use()
        take(copy, llama_sampler_clone(ptr), self.kind, self.handle, self.n_vocab, self.k)
        if self.spent is not DETACHED:
            copy.spent = self.spent
        forget_pending(copy.ptr, copy.kind)
        return copy

    def copy_from(self, Sampler source not None) -> None:
        """Take over the state of a sampler of the same kind, e.g. one this was cloned from."""
        cdef llama_sampler * mine = self.use()
        cdef llama_sampler * others = source.use()
        if self.kind != source.kind or self.name != source.name:
            raise InvalidRequest(f"cannot copy the state of {source.name!r} to {self.name!r}", name="source",
                                 value=source)
        llama_sampler_copy(others, mine)
        forget_pending(mine, self.kind)
        self.handle, self.n_vocab, self.k = source.handle, source.n_vocab, source.k

    # -- the samplers of llama.h, in its order --------------------------------------------------------------

    @staticmethod
    def greedy() -> Sampler:
        """Pick the largest logit."""
        return new_sampler(llama_sampler_init_greedy(), "greedy")

    @staticmethod
    def dist(seed) -> Sampler:
        """Pick at random, by probability."""
        return new_sampler(llama_sampler_init_dist(as_seed(seed)), "dist")

    @staticmethod
    def top_k(k) -> Sampler:
        """Keep the `k` largest logits; 0 or less keeps all."""
        cdef int32_t n = as_int("k", k, -2147483648, 2147483647)
        return new_sampler(llama_sampler_init_top_k(n), "top_k", None, 0, max(n, 0))

    @staticmethod
    def top_p(p, min_keep=1) -> Sampler:
        """Keep the most probable candidates that make up `p` of the probability, and at least `min_keep`."""
        return new_sampler(llama_sampler_init_top_p(as_float("p", p, 0.0, 1.0), as_keep(min_keep)), "top_p")

    @staticmethod
    def min_p(p, min_keep=1) -> Sampler:
        """Keep candidates at least `p` times as probable as the best one, and at least `min_keep`."""
        return new_sampler(llama_sampler_init_min_p(as_float("p", p, 0.0, 1.0), as_keep(min_keep)), "min_p")

    @staticmethod
    def typical(p, min_keep=1) -> Sampler:
        """Keep the candidates closest to the expected surprise that make up `p`; at least `min_keep`."""
        return new_sampler(
            llama_sampler_init_typical(as_float("p", p, 0.0, 1.0), as_keep(min_keep)), "typical"
        )

    @staticmethod
    def temp(t) -> Sampler:
        """Divide logits by `t`; at 0 or less keep only the largest."""
        return new_sampler(llama_sampler_init_temp(as_finite("t", t)), "temp")

    @staticmethod
    def temp_ext(t, delta, exponent) -> Sampler:
        """Divide logits by a temperature between ``t - delta`` and ``t + delta`` that grows with the
        entropy.
        """
        return new_sampler(llama_sampler_init_temp_ext(
            as_finite("t", t), as_finite("delta", delta, 0.0), as_finite("exponent", exponent)), "temp_ext")

    @staticmethod
    def xtc(p, t, min_keep, seed) -> Sampler:
        """With probability `p`, remove all candidates more probable than `t` but the last of them."""
        return new_sampler(llama_sampler_init_xtc(
            as_float("p", p, 0.0, 1.0), as_float("t", t, 0.0, 1.0), as_keep(min_keep), as_seed(seed)), "xtc")

    @staticmethod
    def top_n_sigma(n) -> Sampler:
        """Keep logits within `n` standard deviations of the largest; 0 or less keeps all."""
        return new_sampler(llama_sampler_init_top_n_sigma(as_finite("n", n)), "top_n_sigma")

    @staticmethod
    def mirostat(Vocab vocab not None, seed, tau, eta, m=100) -> Sampler:
        """Pick so that the surprise stays at `tau` (Mirostat 1); `eta` is the rate it learns at."""
        return new_sampler(llama_sampler_init_mirostat(
            vocab.n_tokens, as_seed(seed), as_finite("tau", tau, 0.0), as_finite("eta", eta, 0.0),
            as_int("m", m, 2, 1 << 20)), "mirostat")

    @staticmethod
    def mirostat_v2(seed, tau, eta) -> Sampler:
        """Pick so that the surprise stays at `tau` (Mirostat 2); `eta` is the rate it learns at."""
        return new_sampler(llama_sampler_init_mirostat_v2(
            as_seed(seed), as_finite("tau", tau, 0.0), as_finite("eta", eta, 0.0)), "mirostat_v2")

    @staticmethod
    def grammar(Vocab vocab not None, text, root="root") -> Sampler:
        """Keep what continues the text to a sentence of a GBNF grammar. GrammarError says what is wrong with
        one.
        """
        return make_grammar(vocab, text, root, None, None)

    @staticmethod
    def grammar_lazy(
        Vocab vocab not None, text, root="root", *, trigger_patterns=(), trigger_tokens=()
    ) -> Sampler:
        """A grammar that applies from a trigger on.

        Args:
            vocab, text, root: as for :meth:`grammar`.
            trigger_patterns: regular expressions (ECMAScript), matched from the start of the text; the
                grammar applies from the first group on.
            trigger_tokens: token ids from which on it applies.
        """
        return make_grammar(vocab, text, root, list(trigger_patterns), trigger_tokens)

    @staticmethod
    def penalties(Vocab vocab not None, last_n, repeat=1.0, freq=0.0, present=0.0) -> Sampler:
        """Lower the logits of the last `last_n` tokens: divide by `repeat`, subtract `freq` per occurrence
        and `present` once.
        """
        return new_sampler(llama_sampler_init_penalties(
            vocab.n_tokens, as_window("last_n", last_n), as_positive("repeat", repeat),
            as_finite("freq", freq), as_finite("present", present)), "penalties", None, vocab.n_tokens)

    @staticmethod
    def dry(Vocab vocab not None, multiplier, base, allowed_length, last_n, breakers=()) -> Sampler:
        """Lower the logits of tokens that would continue a repetition.

        Args:
            vocab: the vocabulary.
            multiplier: strength, 0 for off.
            base: the penalty grows with ``base ** (length - allowed_length)``.
            allowed_length: repetitions up to so many tokens are free.
            last_n: how many of the last tokens to search, 0 for off.
            breakers: strings a repetition ends at.
        """
        return make_dry(vocab, multiplier, base, allowed_length, last_n, breakers)

    @staticmethod
    def adaptive_p(target, decay, seed) -> Sampler:
        """Pick tokens whose probability is near `target` over time; a negative `target` only picks by
        probability. `decay` (0 to 0.99) is how slowly it forgets.
        """
        return new_sampler(llama_sampler_init_adaptive_p(
            as_float("target", target, -math.inf, 1.0), as_float("decay", decay, 0.0, 0.99), as_seed(seed)),
            "adaptive_p")

    @staticmethod
    def logit_bias(Vocab vocab not None, bias) -> Sampler:
        """Add to logits: ``{token: bias}``; -inf forbids a token."""
        return make_logit_bias(vocab, bias)

    @staticmethod
    def infill(Vocab vocab not None) -> Sampler:
        """For filling gaps: end early, and join candidates with a common beginning. Put top_k and top_p
        before it: it compares all candidates with each other.
        """
        return make_infill(vocab)


cdef void copy_candidates(
    llama_token_data_array * array, int32_t[::1] ids, float[::1] logits, float[::1] p
) noexcept:
    cdef size_t i
    for i in range(array.size):
        ids[i] = array.data[i].id
        logits[i] = array.data[i].logit
        p[i] = array.data[i].p


cdef bint fits_grammar(llama_sampler * grammar, llama_token token) except -1:
    """Whether the grammar lets the token through now: accepting another one ends the process or breaks the
    grammar.
    """
    cdef llama_token_data one
    cdef llama_token_data_array array
    one.id, one.logit, one.p = token, 0.0, 0.0
    array.data, array.size, array.selected, array.sorted = &one, 1, -1, False
    llama_sampler_apply(grammar, &array)
    return array.size == 1 and one.logit == 0.0


cdef int forget_pending(llama_sampler * ptr, str kind) except -1:
    """A clone of adaptive_p knows of a pick but not of its probability, and would read beyond its memory."""
    if kind == "adaptive_p":
        llama_sampler_accept(ptr, -2)  # an id that is never pending: it clears what is
    return 0


cdef int take(
    Sampler sampler, llama_sampler * ptr, str kind, ModelHandle handle=None, int32_t n_vocab=0, int32_t k=0
) except -1:
    """Fill a new Sampler."""
    if ptr == NULL:
        raise PyspecError(f"libllama could not make the sampler {kind}: {reason()}")
    sampler.ptr = ptr
    sampler.owned = True
    sampler.kind = kind
    sampler.name = llama_sampler_name(ptr).decode()
    sampler.handle = handle
    sampler.n_vocab = n_vocab
    sampler.k = k
    return 0


cdef int64_t max_token(int32_t n_vocab):
    """The largest token id a sampler takes; 0 stands for any."""
    return n_vocab - 1 if n_vocab else 2147483647
