# Quantizing and pruning model files.

cdef dict FTYPES = {
    "f32": LLAMA_FTYPE_ALL_F32,
    "f16": LLAMA_FTYPE_MOSTLY_F16,
    "bf16": LLAMA_FTYPE_MOSTLY_BF16,
    "q8_0": LLAMA_FTYPE_MOSTLY_Q8_0,
    "q6_k": LLAMA_FTYPE_MOSTLY_Q6_K,
    "q5_0": LLAMA_FTYPE_MOSTLY_Q5_0,
    "q5_1": LLAMA_FTYPE_MOSTLY_Q5_1,
    "q5_k_s": LLAMA_FTYPE_MOSTLY_Q5_K_S,
    "q5_k_m": LLAMA_FTYPE_MOSTLY_Q5_K_M,
    "q4_0": LLAMA_FTYPE_MOSTLY_Q4_0,
    "q4_1": LLAMA_FTYPE_MOSTLY_Q4_1,
    "q4_k_s": LLAMA_FTYPE_MOSTLY_Q4_K_S,
    "q4_k_m": LLAMA_FTYPE_MOSTLY_Q4_K_M,
    "iq4_nl": LLAMA_FTYPE_MOSTLY_IQ4_NL,
    "iq4_xs": LLAMA_FTYPE_MOSTLY_IQ4_XS,
    "q3_k_s": LLAMA_FTYPE_MOSTLY_Q3_K_S,
    "q3_k_m": LLAMA_FTYPE_MOSTLY_Q3_K_M,
    "q3_k_l": LLAMA_FTYPE_MOSTLY_Q3_K_L,
    "iq3_s": LLAMA_FTYPE_MOSTLY_IQ3_S,
    "iq3_m": LLAMA_FTYPE_MOSTLY_IQ3_M,
    "iq3_xs": LLAMA_FTYPE_MOSTLY_IQ3_XS,
    "iq3_xxs": LLAMA_FTYPE_MOSTLY_IQ3_XXS,
    "q2_k": LLAMA_FTYPE_MOSTLY_Q2_K,
    "q2_k_s": LLAMA_FTYPE_MOSTLY_Q2_K_S,
    "tq1_0": LLAMA_FTYPE_MOSTLY_TQ1_0,
    "tq2_0": LLAMA_FTYPE_MOSTLY_TQ2_0,
    "mxfp4_moe": LLAMA_FTYPE_MOSTLY_MXFP4_MOE,
}


cdef dict tensor_types():
    """ggml's number formats by name, those that exist."""
    result = {}
    for number in range(GGML_TYPE_COUNT):
        if ggml_type_size(<ggml_type> number) > 0:
            result[ggml_type_name(<ggml_type> number).decode().lower()] = number
    return result


cdef dict TENSOR_TYPES = tensor_types()


def quantize(
    src, dst, ftype, *, n_threads=0, allow_requantize=False, pure=False, quantize_output_tensor=True,
    only_copy=False, output_tensor_type=None, token_embedding_type=None, keep_split=False, prune_layers=None,
    dry_run=False, tensor_types=None, kv_overrides=None,
) -> None:
    """Write a model file in another number format, or with layers left out.

    The file appears under its name only when it is complete.

    Args:
        src: the GGUF file to read.
        dst: the file to write; not the same one.
        ftype: the format: ``"f32"``, ``"f16"``, ``"bf16"``, ``"q8_0"``, ``"q4_0"``, ``"q4_k_m"``, ...
        n_threads: threads to use, 0 for all cores.
        allow_requantize: also convert tensors that are quantized already (loses more).
        pure: every tensor in the main type, instead of llama.cpp's mixture.
        quantize_output_tensor: whether the output head is converted.
        only_copy: copy the tensors as they are, whatever `ftype` says.
        output_tensor_type: ggml type for the output head, e.g. ``"q6_k"``; None leaves it to llama.cpp.
        token_embedding_type: the same for the token embeddings.
        keep_split: write as many parts as `src` has (`dst` is then the prefix of their names).
        prune_layers: indices of layers to leave out, in any order.
        dry_run: only log what would be done.
        tensor_types: ``{pattern: type}``, regular expressions for names of tensors and the type they get.
        kv_overrides: metadata to replace.

    Raises:
        ModelLoadError: `src` cannot be read.
        InvalidRequest: a parameter makes no sense, or the layers cannot be left out.
        PyspecError: libllama could not do it; the message says why.
    """
    cdef llama_model_quantize_params params = llama_model_quantize_default_params()
    cdef vector[llama_model_kv_override] overrides
    cdef vector[llama_model_tensor_override] types
    cdef llama_model_tensor_override entry
    cdef vector[int32_t] pruned
    cdef uint32_t status
    cdef const char * c_src
    cdef const char * c_dst
    params.ftype = <llama_ftype> as_choice("ftype", lower(ftype), FTYPES)
    params.nthread = as_int("n_threads", n_threads, 0, 512)
    params.allow_requantize = bool(allow_requantize)
    params.pure = bool(pure)
    params.quantize_output_tensor = bool(quantize_output_tensor)
    params.only_copy = bool(only_copy)
    params.keep_split = bool(keep_split)
    params.dry_run = bool(dry_run)
    if output_tensor_type is not None:
        params.output_tensor_type = as_tensor_type("output_tensor_type", output_tensor_type)
    if token_embedding_type is not None:
        params.token_embedding_type = as_tensor_type("token_embedding_type", token_embedding_type)

    if kv_overrides:
        fill_kv_overrides(kv_overrides, overrides)
        params.kv_overrides = overrides.data()
    source, target = as_path("src", src), as_path("dst", dst)
    header = check_gguf(os.fsdecode(source), False, kv_overrides or {})
    if os.path.exists(target) and os.path.samefile(source, target):
        raise InvalidRequest("dst is the same file as src", name="dst", value=dst)
    if not os.path.isdir(os.path.dirname(os.path.abspath(target))):
        raise InvalidRequest(
            f"the folder of dst does not exist: {os.fsdecode(target)}", name="dst", value=dst
        )
    if prune_layers is not None:
        fill_pruned(header, prune_layers, pruned)
        if pruned.size() > 1:
            params.prune_layers = pruned.data()
    keep = []  # the bytes `types` points into
    if tensor_types:
        for pattern, name in tensor_types.items():
            encoded = as_c_string("a pattern of tensor_types", pattern)
            keep.append(encoded)
            entry.pattern = encoded
            entry.type = as_tensor_type(f"tensor_types[{pattern!r}]", name)
            types.push_back(entry)
        entry.pattern = NULL
        entry.type = GGML_TYPE_COUNT
        types.push_back(entry)
        params.tt_overrides = types.data()

    whole = not (params.keep_split or params.dry_run)
    output = target + b".part" if whole else target
    c_src, c_dst = source, output
    begin_call()
    try:
        with nogil:
            status = llama_model_quantize(c_src, c_dst, &params)
        if status != 0:
            raise PyspecError(f"cannot quantize {os.fsdecode(source)} to {ftype}: {reason()}")
        if whole:
            os.replace(output, target)
    finally:
        if whole and os.path.exists(output):
            os.unlink(output)
    drain_log()


cdef ggml_type as_tensor_type(str name, object value) except? GGML_TYPE_COUNT:
    return <ggml_type> as_choice(name, lower(value), TENSOR_TYPES)


cdef object lower(object value):
    return value.lower() if isinstance(value, str) else value


cdef int fill_pruned(object header, object layers, vector[int32_t] & out) except -1:
    """The layers to leave out, ascending and ended with -1 as libllama needs them."""
    n_layer = header.key("block_count")
    wanted = sorted({as_int("a layer in prune_layers", layer, 0, n_layer - 1) for layer in layers})
    if len(wanted) >= n_layer:
        raise InvalidRequest(
            f"prune_layers leaves none of the {n_layer} layers", name="prune_layers", value=layers
        )
    if wanted:
        if header.key("nextn_predict_layers", 0):
            raise InvalidRequest(
                "layers of a model with NextN layers cannot be left out: libllama would not renumber the "
                "NextN layers", name="prune_layers", value=layers,
            )
        prefix = header.arch + "."
        for key, value in header.metadata.items():
            if (key.startswith(prefix) and not isinstance(value, (int, float, str)) and len(value) == n_layer
                    and not key.endswith("rope.dimension_sections")):
                raise InvalidRequest(
                    f"layers of this model cannot be left out: {key} has a value for each layer, which "
                    "libllama would not adapt", name="prune_layers", value=layers,
                )
    for layer in wanted:
        out.push_back(layer)
    out.push_back(-1)
    return 0
