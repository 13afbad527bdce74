# Contexts: a model's memory and its computations.

cdef extern from "interrupt.hpp" namespace "pyspec" nogil:
    cdef cppclass Interrupts:
        @staticmethod
        void watch(atomic[int] * flag) noexcept
        @staticmethod
        void unwatch(atomic[int] * flag) noexcept

    const int abort_requested
    const int abort_interrupted
    cpp_bool abort_callback(void * flag) noexcept


# Positions are 32-bit; this leaves room for batches behind the last one.
cdef int64_t MAX_POSITION = (1 << 30) - 1

@cython.no_gc_clear
cdef class Context:
    """A memory for sequences of tokens, and the computations on it.

    One thread at a time: a second one gets Busy. What a call returns as an array without copying is
    read-only, and while such an array is alive, calls that would overwrite it raise BufferInUse: copy() it or
    delete it.

    Args:
        model: a model loaded with its weights.
        n_ctx: positions the memory holds, all sequences together.
        n_batch: most tokens of one call.
        n_ubatch: most tokens computed at once.
        n_seq_max: sequences, ids 0 to n_seq_max - 1.
        n_rs_seq: steps a recurrent state can be rolled back (architectures that support it).
        n_outputs_max: most output rows of one call, which bounds the memory for logits; 0 for n_batch.
        n_outputs_max_per_seq: most output rows of one sequence with a backend sampler; 0 for n_outputs_max.
        n_threads: threads for single tokens; 0 for the physical cores this process may use.
        n_threads_batch: threads for more than one token; 0 for n_threads.
        ctx_type: ``"mtp"`` runs the model's NextN layers instead of its trunk.
        rope_scaling_type: ``"none"``, ``"linear"``, ``"yarn"`` or ``"longrope"``; None as the model says.
        rope_freq_base, rope_freq_scale: 0 as the model says.
        yarn_ext_factor, yarn_attn_factor, yarn_beta_fast, yarn_beta_slow: negative as the model says.
        yarn_orig_ctx: context length before YaRN, 0 as the model says.
        pooling_type: ``"none"``, ``"mean"``, ``"cls"``, ``"last"`` or ``"rank"``; None as the model says.
        attention_type: ``"causal"`` or ``"non-causal"``; None as the model says.
        flash_attn: ``"auto"``, ``"on"`` or ``"off"``.
        type_k, type_v: number formats of the attention memory: ``"f16"``, ``"f32"``, ``"bf16"``, ``"q8_0"``,
            ``"q5_1"``, ``"q5_0"``, ``"q4_1"``, ``"q4_0"`` or ``"iq4_nl"``.
        embeddings: compute embeddings; every token is then an output.
        offload_kqv: keep the attention memory on the GPU.
        no_perf: do not measure times (see :meth:`perf`).
        op_offload: let large host operations run on the GPU.
        swa_full: keep all positions of sliding-window layers, not only the window.
        kv_unified: one pool of cells for all sequences instead of one per sequence.
        samplers: ``{sequence: SamplerChain}``, chains that run in the compute graph.
        ctx_other: the target's context, for draft heads that borrow its embeddings or memory.

    The sizes libllama settled on are attributes: n_ctx, n_ctx_seq (positions of one sequence), n_batch,
    n_ubatch, n_seq_max, n_rs_seq, n_outputs_max, n_outputs_max_per_seq; can_shift says whether positions can
    be shifted.

    Raises:
        InvalidRequest: a parameter cannot work; the message says which and why.
        ContextError: libllama refused, for instance because memory is short.
    """

    def __init__(
        self, Model model not None, *, n_ctx=512, n_batch=2048, n_ubatch=512, n_seq_max=1, n_rs_seq=0,
        n_outputs_max=0, n_outputs_max_per_seq=1, n_threads=0, n_threads_batch=0, ctx_type="default",
        rope_scaling_type=None, rope_freq_base=0.0, rope_freq_scale=0.0, yarn_ext_factor=-1.0,
        yarn_attn_factor=-1.0, yarn_beta_fast=-1.0, yarn_beta_slow=-1.0, yarn_orig_ctx=0, pooling_type=None,
        attention_type=None,
        flash_attn="auto", type_k="f16", type_v="f16", embeddings=False, offload_kqv=True, no_perf=True,
        op_offload=True, swa_full=False, kv_unified=False, samplers=None, ctx_other=None,
    ):
        cdef llama_context_params params
        cdef llama_context * ptr
        cdef vector[llama_sampler_seq_config] configs
        cdef Context other = None
        given = {
            "n_ctx": n_ctx, "n_batch": n_batch, "n_ubatch": n_ubatch, "n_seq_max": n_seq_max,
            "n_rs_seq": n_rs_seq, "n_outputs_max": n_outputs_max,
            "n_outputs_max_per_seq": n_outputs_max_per_seq, "n_threads": n_threads,
            "n_threads_batch": n_threads_batch, "ctx_type": ctx_type,
            "rope_scaling_type": rope_scaling_type, "rope_freq_base": rope_freq_base,
            "rope_freq_scale": rope_freq_scale, "yarn_ext_factor": yarn_ext_factor,
            "yarn_attn_factor": yarn_attn_factor, "yarn_beta_fast": yarn_beta_fast,
            "yarn_beta_slow": yarn_beta_slow, "yarn_orig_ctx": yarn_orig_ctx, "pooling_type": pooling_type,
            "attention_type": attention_type,
            "flash_attn": flash_attn, "type_k": type_k, "type_v": type_v, "embeddings": embeddings,
            "offload_kqv": offload_kqv, "no_perf": no_perf, "op_offload": op_offload, "swa_full": swa_full,
            "kv_unified": kv_unified,
        }
        if self.ptr != NULL or self.closing:
            raise RuntimeError("Context.__init__ called twice")
        params = make_context_params(model, given)
        params.abort_callback = <ggml_abort_callback> abort_callback
        params.abort_callback_data = <void *> &self.abort_flag
        if ctx_other is not None:
            if not isinstance(ctx_other, Context):
                raise InvalidRequest(f"ctx_other must be a Context, not {ctx_other!r}", name="ctx_other",
                                     value=ctx_other)
            other = ctx_other
            other.enter(False)
            other.leave()
            check_ctx_other(model, other)
            params.ctx_other = other.ptr
        attached = {}
        if samplers:
            attached = take_chains(
                samplers, params.n_seq_max, llama_vocab_n_tokens(model.handle.vocab), configs)
            params.samplers = configs.data()
            params.n_samplers = configs.size()
        begin_call()
        try:
            with nogil:
                ptr = new_context(model.handle.head_lock, model.handle.ptr, params)
        except Exception as error:
            raise ContextError(f"cannot create a context: {error}") from error
        finally:
            for chain in attached.values():  # libllama may have started to build them in
                (<SamplerChain> chain).spent = DETACHED
        if ptr == NULL:
            why = reason()
            raise ContextError(f"cannot create a context: {why}")
        self.ptr = ptr
        self.model = model
        self.handle = model.handle
        self.memory_ptr = llama_get_memory(ptr)
        self.n_ctx = llama_n_ctx(ptr)
        self.n_ctx_seq = llama_n_ctx_seq(ptr)
        self.n_batch = llama_n_batch(ptr)
        self.n_ubatch = llama_n_ubatch(ptr)
        self.n_seq_max = llama_n_seq_max(ptr)
        self.n_rs_seq = llama_n_rs_seq(ptr)
        self.n_vocab = llama_vocab_n_tokens(self.handle.vocab)
        self.n_outputs_max = params.n_outputs_max
        if params.n_outputs_max == 0 or llama_model_has_encoder(self.handle.ptr):
            self.n_outputs_max = self.n_batch
        self.n_outputs_max = min(self.n_outputs_max, self.n_batch)
        self.n_outputs_max_per_seq = min(
            params.n_outputs_max_per_seq or self.n_outputs_max, self.n_outputs_max)
        self.kv_unified = params.kv_unified
        self.swa_full = params.swa_full
        # Shifting rotates the keys in place, which ggml ends the process for if they are bfloat16.
        self.can_shift = llama_memory_can_shift(self.memory_ptr) and params.type_k != GGML_TYPE_BF16
        self.ctx_type = ctx_type
        self.embeddings_on = params.embeddings
        self.pools_all_rows = pools_all_rows(model, &params)
        self.layer_inputs.resize(llama_model_n_layer(self.handle.ptr) + 1)
        self.samplers = attached
        self.device_saves = {}
        for chain in attached.values():
            (<SamplerChain> chain).attached_to = weakref.ref(self)
            (<SamplerChain> chain).spent = None
        if other is not None:
            self.ctx_other = other
            other.n_dependents += 1
        live_contexts.add(self)
        drain_log()

    def __dealloc__(self):
        self.closing = True
        self.in_use = False
        self.n_views = 0
        self.release()

    cdef int enter(self, bint replaces_results) except -1:
        if self.ptr == NULL or self.closing:
            raise Closed("the context is closed")
        if interpreter_ends:
            raise Closed("the interpreter is ending")
        if self.in_use:
            raise Busy("another thread is using the context; give each thread its own, or take turns")
        if self.broken is not None:
            raise DecodeError(self.broken, code=-3)
        if replaces_results and self.n_views > 0:
            raise BufferInUse(
                f"{self.n_views} array(s) of results are still alive and would be overwritten: "
                "copy() what you need and delete them first"
            )
        drain_log()
        self.in_use = True
        if threading.get_ident() == threading.main_thread().ident:
            self.watching = True
            Interrupts.watch(&self.abort_flag)
        return 0

    cdef void leave(self) noexcept:
        cdef int interrupted = abort_interrupted
        if self.watching:
            self.watching = False
            Interrupts.unwatch(&self.abort_flag)
            self.abort_flag.compare_exchange_strong(interrupted, 0)
        self.in_use = False
        if self.closing:
            self.release()

    cdef void release(self) noexcept:
        cdef llama_context * ptr = self.ptr
        if not self.closing or ptr == NULL or self.in_use or self.n_views > 0 or self.n_dependents > 0:
            return
        self.ptr = NULL
        self.memory_ptr = NULL
        llama_free(ptr)
        for chain in self.samplers.values():
            (<SamplerChain> chain).attached_to = None
            (<SamplerChain> chain).spent = DETACHED
        self.samplers = {}
        if self.ctx_other is not None:
            self.ctx_other.n_dependents -= 1
            self.ctx_other.release()
            self.ctx_other = None

    cdef void computed(self) noexcept:
        cdef size_t i
        for i in range(self.layer_inputs.size()):
            if self.layer_inputs[i]:
                self.layer_inputs[i] = 2

    cdef int settle(self) except -1:
        """Let libllama bring the last results into the batch's order. It does so when they are first read, and goes
        by the settings of that moment: changed in between, they make it reach beyond its buffers.
        """
        llama_get_logits(self.ptr)
        return 0

    def close(self) -> None:
        """Free the context.

        While another thread is in a call, arrays of results are alive, or another context depends on this one
        (`ctx_other`), the memory is freed when they are done; the object is unusable at once.
        """
        self.closing = True
        self.release()

    @property
    def closed(self) -> bool:
        return self.closing or self.ptr == NULL

    def __enter__(self):
        self.enter(False)
        self.leave()
        return self

    def __exit__(self, *exc_info):
        self.close()

    def __repr__(self):
        if self.closed:
            return "<pyspec Context, closed>"
        return f"<pyspec Context: n_ctx={self.n_ctx}, n_batch={self.n_batch}, n_seq_max={self.n_seq_max}>"

    # -- computing -----------------------------------------------------------------------------------------

    def decode(self, tokens, *, pos=None, seq_ids=0, outputs=None) -> None:
        """Compute a batch of tokens (llama_decode).

        Args:
            tokens: token ids, at most n_batch.
            pos: positions: None continues each sequence, an int is the first one's with the rest following, a
                sequence has one per token.
            seq_ids: the sequence of all tokens, or one entry per token: an int, or a sequence of ints for a
                token that several sequences share.
            outputs: which tokens' results are wanted: None the last one's, a bool for all or none, or one
                bool per token.

        Raises:
            InvalidRequest: a token, position, sequence or count is out of range.
            DecodeError: libllama could not; see its `code`.
        """
        cdef llama_batch batch
        cdef vector[llama_token] ids
        cdef vector[llama_pos] positions
        cdef vector[int32_t] n_seq
        cdef vector[llama_seq_id] seqs
        cdef vector[llama_seq_id *] seq_pointers
        cdef vector[int8_t] flags
        cdef size_t i, start = 0
        cdef int64_t n_outputs = 0
        as_tokens("tokens", tokens, self.n_vocab, ids)
        check_batch_size(self, ids.size())
        fill_sequences(self, seq_ids, ids.size(), n_seq, seqs)
        for i in range(ids.size()):
            seq_pointers.push_back(seqs.data() + start)
            start += n_seq[i]
        fill_positions(pos, ids.size(), positions)
        fill_outputs(outputs, ids.size(), flags)
        for i in range(ids.size()):
            n_outputs += flags[i]
        check_outputs(self, ids.size(), n_outputs)
        check_can_decode(self, False)
        batch.n_tokens = ids.size()
        batch.token = ids.data()
        batch.embd = NULL
        batch.pos = NULL
        if not positions.empty():
            batch.pos = positions.data()
        batch.n_seq_id = n_seq.data()
        batch.seq_id = seq_pointers.data()
        batch.logits = flags.data()
        run_batch(self, &batch, NULL, LLAMA_PROCESS_TYPE_DECODE, ids.size())

    def process(self, Batch batch not None) -> None:
        """Compute a :class:`Batch` (llama_process). Results are indexed by the entries' numbers.

        Raises:
            InvalidRequest: the batch is empty, mixed, of another context, or has too many outputs.
            DecodeError: libllama could not; see its `code`.
        """
        batch.check(self, False)
        run_batch(self, NULL, batch.ptr, LLAMA_PROCESS_TYPE_DECODE, batch.n)

    def encode(self, Batch batch not None) -> None:
        """Compute a :class:`Batch` with the model's encoder; all entries are outputs and are computed at
        once.

        Raises:
            UnsupportedModel: the model has no encoder.
            InvalidRequest, DecodeError: as for :meth:`process`.
        """
        batch.check(self, True)
        run_batch(self, NULL, batch.ptr, LLAMA_PROCESS_TYPE_ENCODE, batch.n)
        self.encoded = True

    def synchronize(self) -> None:
        """Wait until all computations are done. Getting results does so by itself."""
        self.enter(False)
        try:
            with nogil:
                llama_synchronize(self.ptr)
        finally:
            self.leave()

    def abort(self) -> None:
        """Make the running computation, and every later one until :meth:`clear_abort`, end with DecodeError
        code 2.

        Callable from any thread. Only the CPU backend looks.
        """
        self.abort_flag.store(abort_requested)

    def clear_abort(self) -> None:
        """Undo :meth:`abort`."""
        self.abort_flag.store(0)

    # -- settings ------------------------------------------------------------------------------------------

    @property
    def n_threads(self) -> int:
        """Threads for single tokens."""
        self.enter(False)
        self.leave()
        return llama_n_threads(self.ptr)

    @property
    def n_threads_batch(self) -> int:
        """Threads for more than one token."""
        self.enter(False)
        self.leave()
        return llama_n_threads_batch(self.ptr)

    def set_n_threads(self, n_threads, n_threads_batch=None) -> None:
        """Change the thread counts; `n_threads_batch` None means the same."""
        cdef int32_t n = as_int("n_threads", n_threads, 1, MAX_THREADS)
        cdef int32_t n_batch = n if n_threads_batch is None else as_int(
            "n_threads_batch", n_threads_batch, 1, MAX_THREADS)
        self.enter(False)
        llama_set_n_threads(self.ptr, n, n_batch)
        self.leave()

    def set_embeddings(self, value) -> None:
        """Whether computations produce embeddings. Every token of a batch is then an output."""
        if value and self.ctx_type == "mtp":
            raise UnsupportedModel("NextN layers have no embeddings")
        if value and self.pools_all_rows:
            check_pooling(self.n_outputs_max, self.n_ubatch, self.n_seq_max)
        self.enter(False)
        llama_set_embeddings(self.ptr, bool(value))
        self.embeddings_on = bool(value)
        self.leave()

    def set_causal_attn(self, value) -> None:
        """Whether tokens see only earlier positions. Without, a batch must fit into n_ubatch."""
        self.enter(False)
        llama_set_causal_attn(self.ptr, bool(value))
        self.leave()

    def set_embeddings_nextn(self, value, masked=False) -> None:
        """Whether computations keep the hidden states NextN layers draft from.

        Args:
            value: on or off.
            masked: keep those of output tokens only, instead of all tokens.
        """
        if value and self.model_arch() not in NEXTN_ARCHS:
            raise UnsupportedModel(
                f"the architecture {self.model_arch()!r} has no hidden state for NextN layers"
            )
        self.enter(True)
        try:
            self.settle()
            llama_set_embeddings_nextn(self.ptr, bool(value), bool(masked))
            self.nextn_on = bool(value)
            self.nextn_masked = bool(masked)
        finally:
            self.leave()

    def set_embeddings_layer_inp(self, layer, value) -> None:
        """Whether computations keep the input of a layer for every token; draft heads read them.

        Args:
            layer: 0 to n_layer - 1, and n_layer (what leaves the last layer) where the architecture has it.
            value: on or off.
        """
        cdef uint32_t lid = as_int("layer", layer, 0, self.layer_inputs.size() - 1)
        cdef bint on = bool(value)
        arch = self.model_arch()
        if on and self.ctx_type == "mtp":
            raise UnsupportedModel("NextN layers do not hand out the inputs of the trunk's layers")
        last = lid == self.layer_inputs.size() - 1
        if on and arch not in (LAST_LAYER_INPUT_ARCHS if last else LAYER_INPUT_ARCHS):
            raise UnsupportedModel(f"the architecture {arch!r} does not hand out the input of layer {lid}")
        self.enter(True)
        try:
            self.settle()
            llama_set_embeddings_layer_inp(self.ptr, lid, on)
            self.layer_inputs[lid] = on
        finally:
            self.leave()

    def set_nextn_layer_offset(self, offset) -> None:
        """Which NextN layer an ``"mtp"`` context runs, 0 for the first."""
        cdef int32_t n = as_int("offset", offset, 0, max(0, llama_model_n_layer_nextn(self.handle.ptr) - 1))
        self.enter(False)
        llama_set_nextn_layer_offset(self.ptr, n)
        self.leave()

    def set_sampler(self, seq, SamplerChain chain) -> bool:
        """Run a sampler chain for a sequence in the compute graph, or None to stop.

        The longest prefix of the chain that the backend supports runs there. A chain can be attached once;
        attach its clone() next time. While attached, the chain stays this context's.

        Returns:
            False if nothing of the chain can run in the graph: then it is not attached.
        """
        if self.samplers_taken is not None:
            raise InvalidRequest(f"the context's samplers are taken: {self.samplers_taken}", name="chain", value=chain)
        return attach_chain(self, as_int("seq", seq, 0, self.n_seq_max - 1), chain)

    cdef str model_arch(self):
        return meta_value(self.handle, b"general.architecture") or ""

    # -- results, see results.pxi --------------------------------------------------------------------------

    def logits(self, i=-1) -> np.ndarray:
        """Logits of a row: float32, read-only, not copied. Where the sequence has a backend sampler: what
        that left of them, in the order of :meth:`sampled_candidates`.

        Args:
            i: the token's index in the batch, or a negative number counting output rows from the end.
        """
        return logits_row(self, i)

    def embeddings(self, i=-1) -> np.ndarray:
        """Embedding of a row (float32, read-only, not copied); needs embeddings on and no pooling."""
        return embeddings_row(self, i)

    def embeddings_seq(self, seq) -> np.ndarray:
        """Pooled embedding of a sequence of the last batch, or its rank scores (float32, read-only, not
        copied).
        """
        return embeddings_of_sequence(self, seq)

    def embeddings_nextn(self, i) -> np.ndarray:
        """Hidden state of a token of the last batch (float32, read-only, not copied); see
        :meth:`set_embeddings_nextn`.
        """
        return nextn_row(self, i)

    def embeddings_layer_inp(self, layer) -> np.ndarray:
        """Inputs of a layer, n_batch rows of which the first ones are the last batch's tokens (float32,
        read-only, not copied); see :meth:`set_embeddings_layer_inp`.
        """
        return layer_input_rows(self, layer)

    def sampled_token(self, i=-1) -> int | None:
        """The token a backend sampler picked for a row, or None."""
        return sampled_token_of_row(self, i)

    def sampled_probs(self, i=-1) -> np.ndarray | None:
        """Probabilities a backend sampler computed for a row, or None (float32, read-only, not copied)."""
        return sampled_row(self, SAMPLED_PROBS, i)

    def sampled_logits(self, i=-1) -> np.ndarray | None:
        """Logits a backend sampler left of a row, or None (float32, read-only, not copied)."""
        return sampled_row(self, SAMPLED_LOGITS, i)

    def sampled_candidates(self, i=-1) -> np.ndarray | None:
        """Token ids that belong to :meth:`sampled_logits` and :meth:`sampled_probs` (int32, read-only, not
        copied); None when they are all tokens in order.
        """
        return sampled_row(self, SAMPLED_CANDIDATES, i)

    # -- memory and state, see memory.pxi and state.pxi ------------------------------------------------------

    @property
    def memory(self) -> Memory:
        """The memory of the sequences."""
        cdef Memory memory = Memory.__new__(Memory)
        memory.context = self
        return memory

    def state_seq_size(self, seq, *, partial_only=False, on_device=False) -> int:
        """Bytes :meth:`state_seq_get` would return."""
        return seq_state_size(self, seq, partial_only, on_device)

    def state_seq_get(self, seq, *, partial_only=False, on_device=False) -> bytes:
        """Save a sequence.

        Args:
            seq: the sequence.
            partial_only: leave out what can be restored by removing positions: of a sliding-window model only
                the window, of a hybrid model only the recurrent state. Other models save everything.
            on_device: leave the tensors in buffers of this context; the bytes are then small, belong to this
                context, and are outdated by the next such save of the same sequence.
        """
        cdef vector[llama_token] no_tokens
        return seq_state_get(self, seq, partial_only, on_device, no_tokens)

    def state_seq_set(self, data, seq, *, partial_only=False, on_device=False) -> None:
        """Restore a sequence, replacing what it held; the flags must be those of the save.

        Raises:
            StateError: the bytes are damaged, or from another model, layout, or (on_device) time. The
            sequence is
                untouched when the bytes themselves are at fault, and empty when they do not fit the memory.
        """
        seq_state_set(self, data, seq, partial_only, on_device)

    def state_seq_save(self, path, seq, tokens=()) -> int:
        """Save a sequence and its tokens to a file, which appears when it is complete; returns its size."""
        return seq_state_save(self, path, seq, tokens)

    def state_seq_load(self, path, seq) -> list[int]:
        """Restore a sequence from a file of :meth:`state_seq_save`; returns its tokens."""
        return seq_state_load(self, path, seq)

    def state_size(self) -> int:
        """Bytes :meth:`state_get` would return."""
        return whole_state_size(self)

    def state_get(self) -> bytes:
        """Save all sequences."""
        return whole_state_get(self)

    def state_set(self, data) -> None:
        """Restore all sequences, replacing everything; raises StateError as :meth:`state_seq_set` does."""
        whole_state_set(self, data)

    # -- figures -------------------------------------------------------------------------------------------

    def perf(self) -> dict[str, float]:
        """Counters since creation or :meth:`reset_perf`: ``t_load_ms``, ``t_p_eval_ms`` and ``n_p_eval``
        (batches), ``t_eval_ms`` and ``n_eval`` (single tokens), ``n_reused`` (graphs). Times need
        ``no_perf=False``.
        """
        cdef llama_perf_context_data data
        self.enter(False)
        data = llama_perf_context(self.ptr)
        self.leave()
        return {
            "t_load_ms": data.t_load_ms, "t_p_eval_ms": data.t_p_eval_ms, "t_eval_ms": data.t_eval_ms,
            "n_p_eval": data.n_p_eval, "n_eval": data.n_eval, "n_reused": data.n_reused,
        }

    def reset_perf(self) -> None:
        """Set the counters of :meth:`perf` to zero."""
        self.enter(False)
        llama_perf_context_reset(self.ptr)
        self.leave()

    def memory_breakdown(self) -> dict[str, int]:
        """Bytes on all devices: ``"model"``, the weights; ``"context"``, the memory of the sequences; ``"compute"``,
        intermediate results. The results themselves (n_outputs_max rows of logits) are not in it.
        """
        cdef llama_memory_breakdown parts
        cdef size_t model = 0, context = 0, compute = 0
        self.enter(False)
        try:
            parts = llama_get_memory_breakdown(self.ptr)
        finally:
            self.leave()
        for part in parts:
            model += part.second.model
            context += part.second.context
            compute += part.second.compute
        return {"model": model, "context": context, "compute": compute}


cdef int enter_all(list contexts) except -1:
    cdef int n = 0
    cdef int i
    try:
        for n in range(len(contexts)):
            (<Context> contexts[n]).enter(True)
    except BaseException:
        for i in range(n):
            (<Context> contexts[i]).leave()
        raise
    return 0


cdef void leave_all(list contexts) noexcept:
    for context in contexts:
        (<Context> context).leave()
