# What stands between a batch and libllama: the checks, the call, the error.

cdef extern from "guarded.hpp" namespace "pyspec" nogil:
    int32_t process(HeadLock & lock, llama_context * ctx, llama_process_type type, llama_batch_ext * batch) except +
    int32_t decode(HeadLock & lock, llama_context * ctx, const llama_batch & batch) except +
    llama_context * new_context(HeadLock & lock, llama_model * model, const llama_context_params & params) except +


cdef dict DECODE_ERRORS = {
    1: "there is no room in the memory for the batch (n_ctx is too small, or other sequences take the cells)",
    2: "aborted",
    -1: "the batch is invalid",
    -2: "memory could not be allocated",
    -3: "the computation failed",
}


cdef int check_can_decode(Context context, bint with_embd) except -1:
    """Refuse what the graph of this context asserts against."""
    cdef llama_model * model = context.handle.ptr
    if not llama_model_has_decoder(model) and context.memory_ptr != NULL:
        raise UnsupportedModel("the model has no decoder; use encode()")
    if not with_embd and (context.ctx_type == "mtp" or context.model_arch() == "eagle3"):
        raise InvalidRequest("this decoder takes a hidden state with every token: use a Batch with add() and "
                             "set_embd_token()", name="batch")
    if context.model_arch() == "t5" and not context.encoded:
        raise InvalidRequest("an encoder-decoder model needs encode() before it can decode", name="batch")
    return 0


cdef int check_batch_size(Context context, size_t n) except -1:
    if n == 0:
        raise InvalidRequest("the batch is empty", name="tokens", value=0)
    if n > context.n_batch:
        raise InvalidRequest(
            f"the batch has {n} tokens, n_batch is {context.n_batch}: split it", name="tokens", value=n
        )
    if n > context.n_ubatch and context.ptr != NULL and (
        context.memory_ptr == NULL or not llama_get_causal_attn(context.ptr)
    ):
        raise InvalidRequest(
            f"without causal attention a batch must fit into n_ubatch ({context.n_ubatch}); it has {n} "
            "tokens", name="tokens", value=n,
        )
    return 0


cdef int check_outputs(Context context, size_t n, int64_t n_outputs) except -1:
    """Too many outputs end the process in libllama."""
    if context.embeddings_on or context.memory_ptr == NULL:
        n_outputs = n  # whatever the flags say
    if n_outputs > context.n_outputs_max:
        raise InvalidRequest(
            f"the batch has {n_outputs} output rows, n_outputs_max is {context.n_outputs_max}",
            name="outputs", value=n_outputs,
        )
    return 0


cdef int fill_positions(object pos, size_t n, vector[llama_pos] & out) except -1:
    cdef int64_t first
    cdef size_t i
    if pos is None:
        return 0
    if isinstance(pos, (int, np.integer)):
        first = as_int("pos", pos, 0, MAX_POSITION - <int64_t> n)
        for i in range(n):
            out.push_back(first + i)
        return 0
    for item in pos:
        out.push_back(as_int("pos", item, 0, MAX_POSITION))
    if out.size() != n:
        raise InvalidRequest(f"pos has {out.size()} entries for {n} tokens", name="pos", value=pos)
    return 0


cdef int fill_sequences(
    Context context, object seq_ids, size_t n, vector[int32_t] & counts, vector[llama_seq_id] & seqs
) except -1:
    cdef int64_t last = <int64_t> context.n_seq_max - 1
    entries = [seq_ids] * n if isinstance(seq_ids, (int, np.integer)) else list(seq_ids)
    if len(entries) != n:
        raise InvalidRequest(
            f"seq_ids has {len(entries)} entries for {n} tokens", name="seq_ids", value=seq_ids
        )
    for entry in entries:
        members = [entry] if isinstance(entry, (int, np.integer)) else list(entry)
        if not members or len(set(members)) != len(members):
            raise InvalidRequest(f"a token must belong to one or several different sequences, not {entry!r}",
                                 name="seq_ids", value=entry)
        counts.push_back(len(members))
        for member in members:
            seqs.push_back(as_int("seq_ids", member, 0, last))
    return 0


cdef int fill_outputs(object outputs, size_t n, vector[int8_t] & out) except -1:
    cdef size_t i
    cdef bint flag
    out.resize(n)
    if outputs is None:
        out[n - 1] = 1
    elif isinstance(outputs, bool):
        out.assign(n, outputs)
    else:
        flags = list(outputs)
        if len(flags) != n:
            raise InvalidRequest(
                f"outputs has {len(flags)} entries for {n} tokens", name="outputs", value=outputs
            )
        for i in range(n):
            # `out[i] = 1 if ... else 0` would be a reference to a temporary in Cython's C++.
            flag = flags[i]
            out[i] = flag
    return 0


cdef int run_batch(
    Context context, llama_batch * batch, llama_batch_ext * extended, llama_process_type kind, size_t n
) except -1:
    """Compute one of the two kinds of batch."""
    cdef int32_t code = 0
    cdef object failure = None
    context.enter(True)
    begin_call()
    try:
        with nogil:
            if extended != NULL:
                code = process(context.handle.head_lock, context.ptr, kind, extended)
            else:
                code = decode(context.handle.head_lock, context.ptr, batch[0])
    except Exception as error:
        failure = error
        context.broken = f"libllama failed inside a computation ({error}); create a new context"
    finally:
        context.leave()
    if failure is not None:
        raise DecodeError(context.broken, code=-3) from failure
    if code == 0:
        context.computed()
        drain_log()
        return 0
    why = reason("")
    if code == 2:
        PyErr_CheckSignals()
    text = DECODE_ERRORS.get(code, f"libllama returned {code}")
    raise DecodeError(f"computing a batch of {n} failed: {text}{': ' + why if why else ''}", code=code)
