# Results without copying, and the rule that keeps them valid: a view counts on its context, and while one is
# alive the context is neither freed nor computed with.

@cython.no_gc_clear
cdef class ResultView:
    """The buffer behind an array of results."""
    cdef Context context
    cdef void * data
    cdef Py_ssize_t n_bytes

    def __getbuffer__(self, Py_buffer * buffer, int flags):
        if flags & PyBUF_WRITABLE == PyBUF_WRITABLE:
            raise BufferError("results are read-only; copy() them")
        PyBuffer_FillInfo(buffer, self, self.data, self.n_bytes, True, flags)

    def __dealloc__(self):
        if self.context is not None:
            self.context.n_views -= 1
            self.context.release()


cdef object make_view(Context context, void * data, size_t n, object dtype):
    """`n` numbers of 4 bytes as a read-only array."""
    cdef ResultView view = ResultView.__new__(ResultView)
    view.context = context
    view.data = data
    view.n_bytes = 4 * n
    context.n_views += 1
    return np.frombuffer(view, dtype=dtype)


cdef int32_t as_row(Context context, object i) except? -1073741824:
    return as_int("i", i, -<int64_t> context.n_batch, <int64_t> context.n_batch - 1)


cdef object no_row(object i, str what):
    return InvalidRequest(
        f"row {i} has no {what}: it was no output of the last computation", name="i", value=i
    )


cdef object logits_row(Context context, object i):
    cdef int32_t row = as_row(context, i)
    cdef float * data
    cdef size_t n = context.n_vocab
    context.enter(False)
    try:
        with nogil:
            data = llama_get_sampled_logits_ith(context.ptr, row)
            if data != NULL:
                n = llama_get_sampled_logits_count_ith(context.ptr, row)
            else:
                data = llama_get_logits_ith(context.ptr, row)
    finally:
        context.leave()
    if data == NULL:
        raise no_row(i, "logits")
    return make_view(context, data, n, np.float32)


cdef object embeddings_row(Context context, object i):
    cdef int32_t row = as_row(context, i)
    cdef float * data
    context.enter(False)
    try:
        if llama_pooling_type(context.ptr) != LLAMA_POOLING_TYPE_NONE and context.memory_ptr == NULL:
            raise InvalidRequest("the context pools embeddings: use embeddings_seq()", name="i", value=i)
        if not context.embeddings_on:
            raise InvalidRequest(
                "embeddings are off: set_embeddings(True) before computing", name="i", value=i
            )
        with nogil:
            data = llama_get_embeddings_ith(context.ptr, row)
    finally:
        context.leave()
    if data == NULL:
        raise no_row(i, "embedding")
    return make_view(context, data, llama_model_n_embd_out(context.handle.ptr), np.float32)


cdef object embeddings_of_sequence(Context context, object seq):
    cdef llama_seq_id id = as_int("seq", seq, 0, <int64_t> context.n_seq_max - 1)
    cdef float * data
    cdef size_t n = llama_model_n_embd_out(context.handle.ptr)
    context.enter(False)
    try:
        if llama_pooling_type(context.ptr) == LLAMA_POOLING_TYPE_RANK:
            n = llama_model_n_cls_out(context.handle.ptr)
        with nogil:
            data = llama_get_embeddings_seq(context.ptr, id)
    finally:
        context.leave()
    if data == NULL:
        raise InvalidRequest(
            f"there is no pooled embedding of sequence {seq}: it was not in the last computation, or the "
            "context does not pool", name="seq", value=seq,
        )
    return make_view(context, data, n, np.float32)


cdef object nextn_row(Context context, object i):
    cdef int32_t row = as_row(context, i)
    cdef float * data
    context.enter(False)
    try:
        if not context.nextn_on:
            raise InvalidRequest("hidden states are not kept: set_embeddings_nextn(True) before computing",
                                 name="i", value=i)
        with nogil:
            data = llama_get_embeddings_nextn_ith(context.ptr, row)
    finally:
        context.leave()
    if data == NULL:
        raise no_row(i, "hidden state")
    return make_view(context, data, llama_model_n_embd_out(context.handle.ptr), np.float32)


cdef object layer_input_rows(Context context, object layer):
    cdef uint32_t lid = as_int("layer", layer, 0, <int64_t> context.layer_inputs.size() - 1)
    cdef float * data
    cdef Py_ssize_t width = llama_model_n_embd(context.handle.ptr)
    context.enter(False)
    try:
        if context.layer_inputs[lid] != 2:
            raise InvalidRequest(
                f"the input of layer {lid} was not kept: set_embeddings_layer_inp({lid}, True) before "
                "computing", name="layer", value=layer,
            )
        with nogil:
            data = llama_get_embeddings_layer_inp(context.ptr, lid)
    finally:
        context.leave()
    return make_view(context, data, context.n_batch * width, np.float32).reshape(-1, width)


cdef object sampled_token_of_row(Context context, object i):
    cdef int32_t row = as_row(context, i)
    cdef llama_token token
    context.enter(False)
    try:
        with nogil:
            token = llama_get_sampled_token_ith(context.ptr, row)
    finally:
        context.leave()
    return token_or_none(token)


cdef enum:
    SAMPLED_PROBS
    SAMPLED_LOGITS
    SAMPLED_CANDIDATES


cdef object sampled_row(Context context, int what, object i):
    cdef int32_t row = as_row(context, i)
    cdef void * data = NULL
    cdef size_t n = 0
    if not context.samplers:
        return None
    context.enter(False)
    try:
        with nogil:
            if what == SAMPLED_PROBS:
                n = llama_get_sampled_probs_count_ith(context.ptr, row)
                data = llama_get_sampled_probs_ith(context.ptr, row)
            elif what == SAMPLED_LOGITS:
                data = llama_get_sampled_logits_ith(context.ptr, row)
                n = llama_get_sampled_logits_count_ith(context.ptr, row)
            else:
                n = llama_get_sampled_candidates_count_ith(context.ptr, row)
                data = llama_get_sampled_candidates_ith(context.ptr, row)
    finally:
        context.leave()
    if data == NULL or n == 0:
        return None
    return make_view(context, data, n, np.int32 if what == SAMPLED_CANDIDATES else np.float32)
