# Chains of samplers, on their own or inside a context's compute graph.

# A chain's graph is sized for so many members (the probe in llama-sampler.cpp has a fixed size).
cdef int MAX_GRAPH_MEMBERS = 32
cdef int64_t PROBE_CANDIDATES = 128 * 1024


@cython.no_gc_clear
cdef class SamplerChain(Sampler):
    """Samplers applied one after the other; the last one should pick a token.

    Args:
        *samplers: the first members; a chain owns its members.
    """

    def __init__(self, *samplers):
        if self.ptr != NULL:
            raise RuntimeError("SamplerChain.__init__ called twice")
        take(self, llama_sampler_chain_init(llama_sampler_chain_default_params()), "chain")
        self.members = []
        for sampler in samplers:
            self.add(sampler)

    def __len__(self):
        return len(self.members or ())

    def __repr__(self):
        names = ", ".join(name for name, *_ in self.members or ())
        return f"<pyspec SamplerChain [{names}]{', closed' if self.ptr == NULL else ''}>"

    cdef object context(self):
        context = None if self.attached_to is None else self.attached_to()
        return None if context is None or context.closed else context

    cdef int need_detached(self, str what) except -1:
        if self.context() is not None:
            raise InvalidRequest(
                f"the chain runs in a compute graph: detach it before you {what}", name="chain", value=self
            )
        return 0

    def add(self, Sampler sampler not None) -> SamplerChain:
        """Append a sampler, which belongs to the chain from now on; returns the chain."""
        self.use()
        self.need_detached("add to it")
        if isinstance(sampler, SamplerChain):
            raise InvalidRequest("a chain cannot be a member of a chain; add its samplers", name="sampler",
                                 value=sampler)
        cdef llama_sampler * ptr = sampler.use()
        llama_sampler_chain_add(self.ptr, ptr)
        sampler.ptr = NULL
        sampler.owned = False
        self.members.append((sampler.name, sampler.kind, sampler.handle, sampler.n_vocab, sampler.k))
        self.describe()
        return self

    def get(self, i) -> str:
        """Name of member `i`."""
        self.use()
        return self.members[as_int("i", i, 0, len(self.members) - 1)][0]

    def remove(self, i) -> Sampler:
        """Take member `i` out; it is usable by itself again."""
        cdef int32_t index = as_int("i", i, 0, len(self) - 1)
        cdef Sampler sampler
        self.use()
        self.need_detached("remove from it")
        _, kind, handle, n_vocab, k = self.members.pop(index)
        sampler = new_sampler(llama_sampler_chain_remove(self.ptr, index), kind, handle, n_vocab, k)
        self.describe()
        return sampler

    cdef int describe(self) except -1:
        """What the members, taken together, ask for."""
        self.has_selector = bool(self.members) and self.members[-1][1] in SELECTORS
        self.n_vocab = min([n for _, _, _, n, _ in self.members if n], default=0)
        return 0

    cdef int check_token(self, object token) except -1:
        cdef llama_token id = as_int("token", token, 0, max_token(self.n_vocab))
        for i in range(len(self.members)):
            if self.members[i][1] == "grammar" and not fits_grammar(llama_sampler_chain_get(self.ptr, i), id):
                raise GrammarError(f"token {id} does not fit the grammar here", name="token", value=token)
        return 0

    def reset(self) -> None:
        """Forget accepted tokens and restart random numbers, of all members."""
        Sampler.reset(self)

    def clone(self) -> SamplerChain:
        """An independent copy with the same state; it can be attached to a context."""
        cdef SamplerChain copy = SamplerChain.__new__(SamplerChain)
        if self.ptr == NULL:
            self.use()
        take(copy, llama_sampler_clone(self.ptr), "chain")
        copy.members = list(self.members)
        if self.spent is not DETACHED:
            copy.spent = self.spent
        copy.forget_all_pending()
        copy.describe()
        return copy

    def copy_from(self, Sampler source not None) -> None:
        """Take over the state of a chain with the same members, e.g. one this was cloned from."""
        cdef SamplerChain other
        self.use()
        source.use()
        if not isinstance(source, SamplerChain):
            raise InvalidRequest("source is not a chain", name="source", value=source)
        other = source
        if [m[1] for m in self.members] != [m[1] for m in other.members] or self.names() != other.names():
            raise InvalidRequest(f"cannot copy the state of {source!r} to {self!r}: the members differ",
                                 name="source", value=source)
        llama_sampler_copy(other.ptr, self.ptr)
        self.members = list(other.members)
        self.forget_all_pending()

    cdef list names(self):
        """The members' names without the mark of having run on a backend."""
        return [name.lstrip("+-") for name, *_ in self.members]

    cdef int forget_all_pending(self) except -1:
        for i in range(len(self.members)):
            forget_pending(llama_sampler_chain_get(self.ptr, i), self.members[i][1])
        return 0

    def sample(self, Context context not None, i=-1) -> int:
        """Pick a token from a row of the last computation, and accept it.

        Where a backend sampler picked already, that token is accepted and returned.

        Args:
            context: where the row is.
            i: the token's index in the batch, or a negative number counting output rows from the end.

        Raises:
            InvalidRequest: the chain has no member that picks, the row was no output, or the chain removes
            every
                candidate.
            DecodeError: the row holds NaN.
        """
        cdef llama_token token
        cdef int32_t row = as_row(context, i)
        cdef object attached = self.context()
        self.use()
        if attached is not None and attached is not context:
            raise InvalidRequest(
                "the chain runs in the graph of another context", name="context", value=context
            )
        context.enter(False)
        try:
            token = llama_get_sampled_token_ith(context.ptr, row)
            if token == LLAMA_TOKEN_NULL:
                token = self.choose(context, row, i)
        finally:
            context.leave()
        self.accept(token)
        return token

    cdef llama_token choose(self, Context context, int32_t row, object i) except -1:
        cdef llama_token_data_array array
        cdef llama_token_data * data
        cdef float * logits
        cdef const llama_token * ids = NULL
        cdef size_t n = context.n_vocab, j
        cdef bint clean = True
        if not self.has_selector:
            raise InvalidRequest("the chain has no last member that picks a token (greedy, dist, mirostat, "
                                 "mirostat_v2 or adaptive_p)", name="chain", value=self)
        if self.n_vocab and self.n_vocab != <int32_t> context.n_vocab:
            raise InvalidRequest(
                f"the chain was made for a vocabulary of {self.n_vocab} tokens, the context has "
                f"{context.n_vocab}", name="context", value=context,
            )
        logits = llama_get_sampled_logits_ith(context.ptr, row)
        if logits != NULL:
            n = llama_get_sampled_logits_count_ith(context.ptr, row)
            if llama_get_sampled_candidates_count_ith(context.ptr, row) > 0:
                ids = llama_get_sampled_candidates_ith(context.ptr, row)
        else:
            logits = llama_get_logits_ith(context.ptr, row)
        if logits == NULL:
            raise no_row(i, "logits")
        self.scratch.resize(n * sizeof(llama_token_data))
        data = <llama_token_data *> self.scratch.data()
        for j in range(n):
            data[j].id = <llama_token> j if ids == NULL else ids[j]
            data[j].logit = logits[j]
            data[j].p = 0
            clean = clean and logits[j] == logits[j]
        if not clean:
            raise DecodeError(f"the logits of row {i} hold NaN: the model or its file is broken", code=-3)
        array.data, array.size, array.selected, array.sorted = data, n, -1, False
        try:
            with nogil:
                llama_sampler_apply(self.ptr, &array)
        except Exception as error:
            raise InvalidRequest(f"the chain cannot work with this row: {error}", name="chain") from error
        if array.selected < 0 or array.selected >= <int64_t> array.size or (
            array.data[array.selected].logit == -math.inf
        ):
            raise InvalidRequest("the chain removes every candidate of the row", name="chain", value=self)
        return array.data[array.selected].id

    def close(self) -> None:
        """Free the chain and its members; detaches it first."""
        context = self.context()
        if context is not None:
            for seq, chain in list((<Context> context).samplers.items()):
                if chain is self:
                    attach_chain(context, seq, None)
        Sampler.close(self)


cdef int check_attachable(SamplerChain chain, int32_t n_vocab) except -1:
    """What libllama asserts when it builds the chain into a graph."""
    chain.use()
    if chain.attached_to is not None:
        raise InvalidRequest("the chain was attached before; attach its clone()", name="chain", value=chain)
    if not 0 < len(chain.members) <= MAX_GRAPH_MEMBERS:
        raise InvalidRequest(
            f"a chain in a graph must have 1 to {MAX_GRAPH_MEMBERS} members, not {len(chain.members)}",
            name="chain", value=chain,
        )
    if chain.n_vocab and chain.n_vocab != n_vocab:
        raise InvalidRequest(
            f"the chain was made for a vocabulary of {chain.n_vocab} tokens, the context has {n_vocab}",
            name="chain", value=chain,
        )
    left = min(<int64_t> n_vocab, PROBE_CANDIDATES)
    for name, kind, _, _, k in chain.members:
        if kind == "top_k" and k > 0:
            if k > left:
                raise InvalidRequest(f"top_k({k}) in a graph needs {k} candidates; there are {left} left",
                                     name="chain", value=chain)
            left = k
    return 0


cdef dict take_chains(
    object samplers, uint32_t n_seq_max, int32_t n_vocab, vector[llama_sampler_seq_config] & configs
):
    """Check ``{sequence: chain}`` and fill the configuration of a context with it."""
    cdef llama_sampler_seq_config config
    result = {}
    if not isinstance(samplers, dict):
        raise InvalidRequest(
            f"samplers must be a dict of sequences and chains, not {samplers!r}",
            name="samplers", value=samplers,
        )
    for seq, chain in samplers.items():
        config.seq_id = as_int("a sequence in samplers", seq, 0, <int64_t> n_seq_max - 1)
        if not isinstance(chain, SamplerChain):
            raise InvalidRequest(
                f"samplers must hold SamplerChains, not {chain!r}", name="samplers", value=chain
            )
        if any(chain is other for other in result.values()):
            raise InvalidRequest(
                "a chain can serve one sequence only; use clones", name="samplers", value=chain
            )
        check_attachable(chain, n_vocab)
        config.sampler = (<SamplerChain> chain).ptr
        configs.push_back(config)
        result[config.seq_id] = chain
    return result


cdef bint attach_chain(Context context, llama_seq_id seq, SamplerChain chain) except -1:
    cdef llama_sampler * ptr = NULL
    cdef bint attached
    cdef SamplerChain old
    if chain is not None:
        check_attachable(chain, context.n_vocab)
        ptr = chain.ptr
    context.enter(True)
    begin_call()
    try:
        context.settle()
        attached = llama_set_sampler(context.ptr, seq, ptr)
    finally:
        context.leave()
    old = context.samplers.pop(seq, None)
    if old is not None:
        old.attached_to = None
        old.spent = DETACHED
    if chain is not None:
        chain.attached_to = weakref.ref(context)
        if attached:
            context.samplers[seq] = chain
        else:
            chain.spent = DETACHED
    drain_log()
    return attached
