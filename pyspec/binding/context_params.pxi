# The parameters of a context, checked: what libllama would end the process for is refused here.

cdef dict CONTEXT_TYPES = {"default": LLAMA_CONTEXT_TYPE_DEFAULT, "mtp": LLAMA_CONTEXT_TYPE_MTP}
cdef dict ROPE_SCALING_TYPES = {
    "none": LLAMA_ROPE_SCALING_TYPE_NONE,
    "linear": LLAMA_ROPE_SCALING_TYPE_LINEAR,
    "yarn": LLAMA_ROPE_SCALING_TYPE_YARN,
    "longrope": LLAMA_ROPE_SCALING_TYPE_LONGROPE,
}
cdef dict POOLING_TYPES = {
    "none": LLAMA_POOLING_TYPE_NONE,
    "mean": LLAMA_POOLING_TYPE_MEAN,
    "cls": LLAMA_POOLING_TYPE_CLS,
    "last": LLAMA_POOLING_TYPE_LAST,
    "rank": LLAMA_POOLING_TYPE_RANK,
}
cdef dict ATTENTION_TYPES = {
    "causal": LLAMA_ATTENTION_TYPE_CAUSAL,
    "non-causal": LLAMA_ATTENTION_TYPE_NON_CAUSAL,
}
cdef dict FLASH_ATTN = {
    "auto": LLAMA_FLASH_ATTN_TYPE_AUTO,
    "on": LLAMA_FLASH_ATTN_TYPE_ENABLED,
    "off": LLAMA_FLASH_ATTN_TYPE_DISABLED,
}
cdef dict CACHE_TYPES = {
    "f32": GGML_TYPE_F32,
    "f16": GGML_TYPE_F16,
    "bf16": GGML_TYPE_BF16,
    "q8_0": GGML_TYPE_Q8_0,
    "q5_1": GGML_TYPE_Q5_1,
    "q5_0": GGML_TYPE_Q5_0,
    "q4_1": GGML_TYPE_Q4_1,
    "q4_0": GGML_TYPE_Q4_0,
    "iq4_nl": GGML_TYPE_IQ4_NL,
}
cdef int64_t MAX_CELLS = (1 << 31) - 512  # libllama pads to 256 in 32 bits
cdef int MAX_THREADS = 512                # ggml's limit
cdef int64_t CELL_BYTES = 48              # what libllama notes about each position, at least (llama-kv-cells.h)


cdef llama_context_params make_context_params(Model model, dict given) except *:
    """libllama's parameters from Context's arguments, all of which are in `given`."""
    cdef llama_context_params params = llama_context_default_params()
    params.n_ctx = as_int("n_ctx", given["n_ctx"], 1, MAX_CELLS)
    params.n_batch = as_int("n_batch", given["n_batch"], 1, 1 << 30)
    params.n_ubatch = as_int("n_ubatch", given["n_ubatch"], 1, 1 << 30)
    params.n_seq_max = as_int("n_seq_max", given["n_seq_max"], 1, llama_max_parallel_sequences())
    params.n_rs_seq = as_int("n_rs_seq", given["n_rs_seq"], 0, 1 << 16)
    params.n_outputs_max = as_int("n_outputs_max", given["n_outputs_max"], 0, 1 << 30)
    params.n_outputs_max_per_seq = as_int("n_outputs_max_per_seq", given["n_outputs_max_per_seq"], 0, 1 << 30)
    params.n_threads = as_int("n_threads", given["n_threads"], 0, MAX_THREADS) or default_threads()
    params.n_threads_batch = as_int("n_threads_batch", given["n_threads_batch"], 0, MAX_THREADS)
    params.n_threads_batch = params.n_threads_batch or params.n_threads
    params.ctx_type = <llama_context_type> as_choice("ctx_type", given["ctx_type"], CONTEXT_TYPES)
    if given["rope_scaling_type"] is not None:
        params.rope_scaling_type = <llama_rope_scaling_type> as_choice(
            "rope_scaling_type", given["rope_scaling_type"], ROPE_SCALING_TYPES)
    if given["pooling_type"] is not None:
        params.pooling_type = <llama_pooling_type_t> as_choice(
            "pooling_type", given["pooling_type"], POOLING_TYPES)
    if given["attention_type"] is not None:
        params.attention_type = <llama_attention_type> as_choice(
            "attention_type", given["attention_type"], ATTENTION_TYPES)
    params.flash_attn_type = <llama_flash_attn_type> as_choice("flash_attn", given["flash_attn"], FLASH_ATTN)
    params.type_k = <ggml_type> as_choice("type_k", given["type_k"], CACHE_TYPES)
    params.type_v = <ggml_type> as_choice("type_v", given["type_v"], CACHE_TYPES)
    params.rope_freq_base = as_finite("rope_freq_base", given["rope_freq_base"], 0.0)
    params.rope_freq_scale = as_finite("rope_freq_scale", given["rope_freq_scale"], 0.0)
    params.yarn_ext_factor = as_finite("yarn_ext_factor", given["yarn_ext_factor"])
    params.yarn_attn_factor = as_finite("yarn_attn_factor", given["yarn_attn_factor"])
    params.yarn_beta_fast = as_finite("yarn_beta_fast", given["yarn_beta_fast"])
    params.yarn_beta_slow = as_finite("yarn_beta_slow", given["yarn_beta_slow"])
    params.yarn_orig_ctx = as_int("yarn_orig_ctx", given["yarn_orig_ctx"], 0, MAX_CELLS)
    params.embeddings = bool(given["embeddings"])
    params.offload_kqv = bool(given["offload_kqv"])
    params.no_perf = bool(given["no_perf"])
    params.op_offload = bool(given["op_offload"])
    params.swa_full = bool(given["swa_full"])
    params.kv_unified = bool(given["kv_unified"])
    if not model.use().has_weights:
        raise InvalidRequest(
            "the model was loaded with vocab_only=True and cannot compute", name="model", value=model
        )
    if model.arch == "t5" and params.n_seq_max > 1 and not params.kv_unified:
        raise InvalidRequest("several sequences of an encoder-decoder model need kv_unified=True",
                             name="kv_unified", value=False)
    if params.n_ctx * CELL_BYTES > total_memory():  # it would be taken bit by bit, until the system ends the process
        raise ContextError(
            f"n_ctx={params.n_ctx} needs {params.n_ctx * CELL_BYTES >> 30} GiB for its bookkeeping alone; there are "
            f"{total_memory() >> 30} GiB"
        )
    check_context_sizes(model, &params)
    check_cache_types(model, &params)
    check_context_type(model, &params)
    return params


cdef int check_context_sizes(Model model, llama_context_params * params) except -1:
    """Refuse combinations of sizes that libllama asserts against."""
    cdef uint32_t n_batch = min(params.n_batch, params.n_ctx)
    cdef uint32_t n_ubatch = min(n_batch, params.n_ubatch)
    cdef uint32_t n_outputs = params.n_outputs_max
    name = "n_outputs_max"
    if n_outputs == 0 or llama_model_has_encoder(model.handle.ptr):
        n_outputs, name = n_batch, "n_batch (which bounds the outputs)"
    if n_outputs < params.n_seq_max:
        raise InvalidRequest(
            f"{name} is {n_outputs}, but each of the {params.n_seq_max} sequences (n_seq_max) needs room for "
            "an output", name="n_outputs_max", value=params.n_outputs_max,
        )
    if params.n_rs_seq and (model.is_hybrid or model.is_recurrent) and n_ubatch <= params.n_rs_seq + 1:
        raise InvalidRequest(
            f"n_rs_seq={params.n_rs_seq} needs an n_ubatch of at least {params.n_rs_seq + 2}, it is "
            f"{n_ubatch}", name="n_rs_seq", value=params.n_rs_seq,
        )
    if params.embeddings and pools_all_rows(model, params):
        check_pooling(n_outputs, n_ubatch, params.n_seq_max)
    return 0


cdef int check_pooling(uint32_t n_outputs, uint32_t n_ubatch, uint32_t n_seq_max) except -1:
    if n_outputs < n_ubatch or n_ubatch % n_seq_max:
        raise InvalidRequest(
            f"mean pooling adds up all rows of a micro-batch: n_outputs_max ({n_outputs}) must be at least n_ubatch "
            f"({n_ubatch}), and that a multiple of n_seq_max ({n_seq_max})", name="n_outputs_max", value=n_outputs,
        )
    return 0


cdef bint pools_all_rows(Model model, llama_context_params * params):
    """Whether the graph pools by a matrix product, whose shape has to be right from the start."""
    cdef int pooling = params.pooling_type
    if pooling == LLAMA_POOLING_TYPE_UNSPECIFIED:
        given = meta_value(model.handle, f"{model.arch}.pooling_type".encode())
        pooling = LLAMA_POOLING_TYPE_NONE
        if given in ("1", "4"):  # what is no type at all may stand there as well
            pooling = int(given)
    return pooling in (LLAMA_POOLING_TYPE_MEAN, LLAMA_POOLING_TYPE_RANK)


cdef int check_cache_types(Model model, llama_context_params * params) except -1:
    """Quantized caches need heads that divide into blocks; libllama looks only when flash attention is on."""
    cdef int64_t block = 1, head
    n_head = llama_model_n_head(model.handle.ptr)
    for what, cache_type in (("type_k", params.type_k), ("type_v", params.type_v)):
        block = ggml_blck_size(<ggml_type> cache_type)
        if block == 1 or n_head == 0:
            continue
        key = "key_length" if what == "type_k" else "value_length"
        given = meta_value(model.handle, f"{model.arch}.attention.{key}".encode())
        head = llama_model_n_embd(model.handle.ptr) // n_head
        if given is not None and given.isdecimal():
            head = int(given)
        if head % block:
            name = ggml_type_name(<ggml_type> cache_type).decode()
            raise InvalidRequest(
                f"{what}={name!r} needs attention heads whose size is a multiple of {block}; this model's "
                f"heads have {head}", name=what, value=name,
            )
    return 0


cdef int check_context_type(Model model, llama_context_params * params) except -1:
    if params.ctx_type == LLAMA_CONTEXT_TYPE_MTP:
        if params.embeddings:
            raise InvalidRequest('NextN layers have no embeddings: leave embeddings off with ctx_type="mtp"',
                                 name="embeddings", value=True)
        if llama_model_n_layer_nextn(model.handle.ptr) == 0:
            raise InvalidRequest('ctx_type="mtp" needs a model with NextN layers; this one has none',
                                 name="ctx_type", value="mtp")
        if not model.handle.has_mtp:
            raise InvalidRequest('ctx_type="mtp" needs the NextN layers: load the model with load_mtp=True',
                                 name="ctx_type", value="mtp")
    return 0


cdef int check_ctx_other(Model model, Context other) except -1:
    """A draft head that borrows the target's embeddings or memory must fit to it."""
    arch = model.arch
    if arch in ("eagle3", "dflash", "gemma4-assistant"):
        if other.handle.ptr == model.handle.ptr:
            raise InvalidRequest("ctx_other must be a context of the target model, not of the same model",
                                 name="ctx_other", value=other)
    if arch in ("eagle3", "dflash"):
        for what, mine, others in (
            ("n_embd", llama_model_n_embd(model.handle.ptr), llama_model_n_embd(other.handle.ptr)),
            ("n_vocab", llama_vocab_n_tokens(model.handle.vocab), llama_vocab_n_tokens(other.handle.vocab)),
        ):
            if mine != others:
                raise InvalidRequest(
                    f"ctx_other is of another kind of model: its {what} is {others}, this model's is {mine}",
                    name="ctx_other", value=other,
                )
    elif arch == "gemma4-assistant" and other.model.arch != "gemma4":
        raise InvalidRequest(f"ctx_other must be a context of a gemma4 model, not of {other.model.arch!r}",
                             name="ctx_other", value=other)
    return 0
