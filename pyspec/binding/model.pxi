# Models: loading, what their metadata says, saving.

cdef dict SPLIT_MODES = {
    "none": LLAMA_SPLIT_MODE_NONE,
    "layer": LLAMA_SPLIT_MODE_LAYER,
    "row": LLAMA_SPLIT_MODE_ROW,
    "tensor": LLAMA_SPLIT_MODE_TENSOR,
}
cdef dict LOAD_MODES = {
    "auto": LLAMA_LOAD_MODE_AUTO,
    "none": LLAMA_LOAD_MODE_NONE,
    "mmap": LLAMA_LOAD_MODE_MMAP,
    "mlock": LLAMA_LOAD_MODE_MLOCK,
    "mmap+mlock": LLAMA_LOAD_MODE_MMAP_MLOCK,
    "direct_io": LLAMA_LOAD_MODE_DIRECT_IO,
}
cdef dict ROPE_TYPES = {
    LLAMA_ROPE_TYPE_NONE: "none",
    LLAMA_ROPE_TYPE_NORM: "norm",
    LLAMA_ROPE_TYPE_NEOX: "neox",
    LLAMA_ROPE_TYPE_MROPE: "mrope",
    LLAMA_ROPE_TYPE_IMROPE: "imrope",
    LLAMA_ROPE_TYPE_VISION: "vision",
}


cdef class ModelHandle:
    def __dealloc__(self):
        if self.ptr != NULL:
            llama_model_free(self.ptr)
            self.ptr = NULL


cdef class LoadProgress:
    """Carries a Python callback through a load, and what it raised back out."""
    cdef object callback
    cdef object error
    cdef bint cancelled


cdef cpp_bool load_progress(float progress, void * user_data) noexcept with gil:
    cdef LoadProgress state = <LoadProgress> user_data
    if state.error is not None:
        return False
    try:
        PyErr_CheckSignals()
        if state.callback is not None and state.callback(progress) is False:
            state.cancelled = True
    except BaseException as error:
        state.error = error
    return state.error is None and not state.cancelled


cdef int fill_kv_overrides(object overrides, vector[llama_model_kv_override] & out) except -1:
    """Translate ``{key: value}``; `out` ends with the empty key libllama looks for."""
    cdef llama_model_kv_override entry
    cdef bytes text
    if not isinstance(overrides, dict):
        raise InvalidRequest(
            f"kv_overrides must be a dict of metadata keys and values, not {overrides!r}",
            name="kv_overrides", value=overrides,
        )
    for key, value in overrides.items():
        memset(&entry, 0, sizeof(entry))
        text = as_c_string("a key of kv_overrides", key)
        if not 0 < len(text) < sizeof(entry.key):
            raise InvalidRequest(
                f"the key {key!r} of kv_overrides is empty or longer than {sizeof(entry.key) - 1} bytes",
                name="kv_overrides", value=key,
            )
        memcpy(entry.key, <const char *> text, len(text))
        if isinstance(value, bool):
            entry.tag = LLAMA_KV_OVERRIDE_TYPE_BOOL
            entry.val_bool = value
        elif isinstance(value, int):
            entry.tag = LLAMA_KV_OVERRIDE_TYPE_INT
            entry.val_i64 = as_int(f"kv_overrides[{key!r}]", value, -(1 << 62), 1 << 62)
        elif isinstance(value, float):
            entry.tag = LLAMA_KV_OVERRIDE_TYPE_FLOAT
            entry.val_f64 = as_float(f"kv_overrides[{key!r}]", value, -math.inf, math.inf)
        else:
            entry.tag = LLAMA_KV_OVERRIDE_TYPE_STR
            text = as_c_string(f"kv_overrides[{key!r}]", value)
            if len(text) >= sizeof(entry.val_str):
                raise InvalidRequest(
                    f"kv_overrides[{key!r}] is longer than {sizeof(entry.val_str) - 1} bytes",
                    name="kv_overrides", value=value,
                )
            memcpy(entry.val_str, <const char *> text, len(text))
        out.push_back(entry)
    memset(&entry, 0, sizeof(entry))
    out.push_back(entry)
    return 0


cdef int fill_devices(object names, vector[ggml_backend_dev_t] & out) except -1:
    """Translate device names; `out` ends with the NULL libllama looks for."""
    cdef ggml_backend_dev_t device
    if isinstance(names, (str, bytes)):
        raise InvalidRequest(f"devices must be a list of names, not {names!r}", name="devices", value=names)
    for name in names:
        device = ggml_backend_dev_by_name(as_c_string("a name in devices", name))
        if device == NULL or ggml_backend_dev_type(device) in (
            GGML_BACKEND_DEVICE_TYPE_CPU, GGML_BACKEND_DEVICE_TYPE_ACCEL
        ):
            known = [d["name"] for d in devices() if d["type"] not in ("cpu", "accel")]
            raise InvalidRequest(
                f"there is no device {name!r} to offload to (there are: {', '.join(known) or 'none'}); "
                "an empty list means the CPU", name="devices", value=name,
            )
        out.push_back(device)
    out.push_back(NULL)
    return 0


cdef class Model:
    """A model file in memory.

    Contexts, vocabularies and samplers made from it keep its memory alive; ``close()`` drops this object's
    share.

    Args:
        path: a GGUF file; of a split model, any of the parts when they are named ``*-00001-of-00003.gguf``.
        n_gpu_layers: layers to put on the GPU, -1 for all. Without a GPU it has no effect.
        split_mode: how several GPUs share the model: ``"none"``, ``"layer"``, ``"row"`` or ``"tensor"``.
        main_gpu: the GPU used when `split_mode` is ``"none"``.
        tensor_split: proportions of the model for each GPU; None divides by free memory.
        devices: names from :func:`devices` to offload to; None for all, an empty list for the CPU alone.
        load_mode: ``"auto"``, ``"none"`` (read), ``"mmap"``, ``"mlock"``, ``"mmap+mlock"`` or
        ``"direct_io"``.
        vocab_only: read only metadata and vocabulary. No context can be made from such a model.
        check_tensors: look for values that cannot be (slow).
        use_extra_bufts: let the CPU backend repack weights into faster layouts (more memory where `load_mode`
        maps).
        no_host: keep weights out of host buffers of the GPU backend.
        load_mtp: load the NextN (multi-token prediction) layers too; needed for ``Context(ctx_type="mtp")``.
        kv_overrides: metadata to replace, ``{"llama.context_length": 4096}``; values are int, float, bool or
        str.
        progress: called with the fraction loaded, 0.0 to 1.0, in this thread; returning False cancels.

    The attribute load_params has those of them that decide where and with which kernels it is computed.

    Raises:
        ModelLoadError: the file is missing, no GGUF, damaged, or of an architecture libllama does not know.
        Cancelled: `progress` returned False. What `progress` raises comes out as it is, and so does
            KeyboardInterrupt.
    """

    def __init__(
        self, path, *, n_gpu_layers=-1, split_mode="layer", main_gpu=0, tensor_split=None, devices=None,
        load_mode="auto", vocab_only=False, check_tensors=False, use_extra_bufts=True, no_host=False,
        load_mtp=False, kv_overrides=None, progress=None,
    ):
        cdef llama_model_params params = llama_model_default_params()
        cdef vector[llama_model_kv_override] overrides
        cdef vector[ggml_backend_dev_t] device_list
        cdef vector[float] split
        cdef LoadProgress state = LoadProgress.__new__(LoadProgress)
        cdef ModelHandle handle
        cdef llama_model * ptr
        cdef const char * c_path
        if self.handle is not None:
            raise RuntimeError("Model.__init__ called twice")
        params.n_gpu_layers = as_int("n_gpu_layers", n_gpu_layers, -1, 1 << 30)
        params.split_mode = <llama_split_mode> as_choice("split_mode", split_mode, SPLIT_MODES)
        params.main_gpu = as_int("main_gpu", main_gpu, -1, llama_max_devices() - 1)
        params.load_mode = <llama_load_mode> as_choice("load_mode", load_mode, LOAD_MODES)
        params.vocab_only = bool(vocab_only)
        params.check_tensors = bool(check_tensors)
        params.use_extra_bufts = bool(use_extra_bufts)
        params.no_host = bool(no_host)
        params.load_mtp = bool(load_mtp)
        if tensor_split is not None:
            for share in tensor_split:
                split.push_back(as_finite("tensor_split", share, 0.0))
            if split.size() > llama_max_devices():
                raise InvalidRequest(
                    f"tensor_split has {split.size()} entries, more than the {llama_max_devices()} devices "
                    "possible", name="tensor_split", value=tensor_split,
                )
            split.resize(llama_max_devices())
            params.tensor_split = split.data()
        if devices is not None:
            fill_devices(devices, device_list)
            params.devices = device_list.data()
        if kv_overrides:
            fill_kv_overrides(kv_overrides, overrides)
            params.kv_overrides = overrides.data()
        if progress is not None and not callable(progress):
            raise InvalidRequest(
                f"progress must be callable, not {progress!r}", name="progress", value=progress
            )
        state.callback = progress
        params.progress_callback = load_progress
        params.progress_callback_user_data = <void *> state

        c_name = as_path("path", path)
        self.path = os.fsdecode(c_name)
        check_gguf(self.path, params.vocab_only, kv_overrides or {})
        c_path = c_name
        begin_call()
        try:
            with nogil:
                ptr = llama_model_load_from_file(c_path, params)
        except Exception as error:
            raise ModelLoadError(f"cannot load {self.path}: {error}", path=self.path) from error
        if ptr == NULL:
            if state.error is not None:
                drain_log()
                raise state.error
            if state.cancelled:
                drain_log()
                raise Cancelled(f"loading {self.path} was cancelled by the progress callback")
            why = reason()
            raise ModelLoadError(f"cannot load {self.path}: {why}", path=self.path)
        handle = ModelHandle.__new__(ModelHandle)
        handle.ptr = ptr
        handle.vocab = llama_model_get_vocab(ptr)
        handle.has_weights = not params.vocab_only
        handle.has_mtp = params.load_mtp and llama_model_n_layer_nextn(ptr) > 0
        handle.repacked = params.use_extra_bufts
        self.handle = handle
        self.load_params = {
            "n_gpu_layers": params.n_gpu_layers, "split_mode": split_mode, "main_gpu": params.main_gpu,
            "tensor_split": None if tensor_split is None else list(split),
            "devices": None if devices is None else list(devices), "use_extra_bufts": params.use_extra_bufts,
            "no_host": params.no_host, "kv_overrides": dict(kv_overrides or {}),
        }
        if state.error is not None:  # raised in the very last call of the callback
            self.close()
            raise state.error
        drain_log()

    cdef ModelHandle use(self):
        if self.handle is None:
            raise Closed(f"the model {self.path or ''} is closed")
        return self.handle

    def close(self) -> None:
        """Let go of the model. Its memory is freed once no context, vocabulary or sampler needs it."""
        self.handle = None

    @property
    def closed(self) -> bool:
        return self.handle is None

    def __enter__(self):
        self.use()
        return self

    def __exit__(self, *exc_info):
        self.close()

    def __repr__(self):
        if self.handle is None:
            return f"<pyspec Model {self.path!r}, closed>"
        return f"<pyspec Model {self.path!r}: {self.desc}>"

    # -- what the file says --------------------------------------------------------------------------------

    @property
    def vocab(self) -> Vocab:
        """The vocabulary; stays usable after the model is closed."""
        cdef Vocab vocab = Vocab.__new__(Vocab)
        vocab.handle = self.use()
        vocab.n_tokens = llama_vocab_n_tokens(vocab.handle.vocab)
        return vocab

    @property
    def metadata(self) -> dict[str, str]:
        """The file's scalar metadata (arrays are left out), with overrides applied, as strings."""
        cdef ModelHandle handle = self.use()
        cdef string key, value
        cdef int32_t i
        result = {}
        for i in range(llama_model_meta_count(handle.ptr)):
            meta_string(handle, i, True, key)
            meta_string(handle, i, False, value)
            result[(<bytes> key).decode("utf-8", "replace")] = (<bytes> value).decode("utf-8", "replace")
        return result

    @property
    def arch(self) -> str:
        """The architecture, e.g. ``"llama"``."""
        return meta_value(self.use(), b"general.architecture") or ""

    @property
    def desc(self) -> str:
        """Architecture, size and quantization in one line, as libllama writes it."""
        cdef char buf[256]
        cdef int32_t n = llama_model_desc(self.use().ptr, buf, sizeof(buf))
        return buf[:max(0, min(n, <int32_t> sizeof(buf) - 1))].decode("utf-8", "replace")

    @property
    def n_ctx_train(self) -> int:
        """Positions the model was trained on."""
        return llama_model_n_ctx_train(self.use().ptr)

    @property
    def n_embd(self) -> int:
        """Width of the hidden state."""
        return llama_model_n_embd(self.use().ptr)

    @property
    def n_embd_inp(self) -> int:
        """Width of an input embedding."""
        return llama_model_n_embd_inp(self.use().ptr)

    @property
    def n_embd_out(self) -> int:
        """Width of an output embedding."""
        return llama_model_n_embd_out(self.use().ptr)

    @property
    def n_layer(self) -> int:
        """Layers of the trunk, NextN layers excluded."""
        return llama_model_n_layer(self.use().ptr)

    @property
    def n_layer_nextn(self) -> int:
        """NextN layers the file has, loaded or not."""
        return llama_model_n_layer_nextn(self.use().ptr)

    @property
    def n_head(self) -> int:
        """Attention heads of the first layer; 0 for a vocabulary-only model."""
        return llama_model_n_head(self.use().ptr) if self.handle.has_weights else 0

    @property
    def n_head_kv(self) -> int:
        """Key/value heads of the first layer; 0 for a vocabulary-only model."""
        return llama_model_n_head_kv(self.use().ptr) if self.handle.has_weights else 0

    @property
    def n_swa(self) -> int:
        """Positions a sliding-window layer sees, 0 without such layers."""
        return llama_model_n_swa(self.use().ptr)

    @property
    def n_expert(self) -> int:
        """Experts of a mixture-of-experts model, else 0."""
        return llama_model_n_expert(self.use().ptr)

    @property
    def rope_type(self) -> str:
        """``"none"``, ``"norm"``, ``"neox"``, ``"mrope"``, ``"imrope"`` or ``"vision"``."""
        return ROPE_TYPES.get(<int> llama_model_rope_type(self.use().ptr), "none")

    @property
    def rope_freq_scale_train(self) -> float:
        """RoPE frequency scale the model was trained with."""
        return llama_model_rope_freq_scale_train(self.use().ptr)

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return llama_model_size(self.use().ptr)

    @property
    def n_params(self) -> int:
        """Number of parameters."""
        return llama_model_n_params(self.use().ptr)

    @property
    def ftype(self) -> str:
        """The quantization, e.g. ``"Q8_0"`` or ``"Q4_K - Medium"``."""
        return llama_ftype_name(llama_model_ftype(self.use().ptr)).decode("utf-8", "replace")

    @property
    def is_recurrent(self) -> bool:
        """Whether the memory is a state without positions (Mamba, RWKV)."""
        return llama_model_is_recurrent(self.use().ptr)

    @property
    def is_hybrid(self) -> bool:
        """Whether recurrent and attention layers alternate."""
        return llama_model_is_hybrid(self.use().ptr)

    @property
    def is_diffusion(self) -> bool:
        """Whether the model generates by diffusion."""
        return llama_model_is_diffusion(self.use().ptr)

    @property
    def has_encoder(self) -> bool:
        """Whether ``Context.encode`` works (T5, EAGLE-3, DFlash)."""
        return llama_model_has_encoder(self.use().ptr)

    @property
    def has_decoder(self) -> bool:
        """Whether ``Context.decode`` works."""
        return llama_model_has_decoder(self.use().ptr)

    @property
    def decoder_start_token(self) -> int | None:
        """What the decoder of an encoder-decoder model starts with."""
        return token_or_none(llama_model_decoder_start_token(self.use().ptr))

    @property
    def has_mtp(self) -> bool:
        """Whether NextN layers were loaded."""
        return self.use().has_mtp

    @property
    def vocab_only(self) -> bool:
        """Whether only metadata and vocabulary were loaded."""
        return not self.use().has_weights

    @property
    def target_layer_ids(self) -> tuple[int, ...]:
        """Layers of the target whose inputs a draft head (EAGLE-3, DFlash) reads; empty for other models."""
        cdef const llama_model * ptr = self.use().ptr
        cdef const int32_t * ids = llama_model_target_layer_ids(ptr)
        return tuple(ids[i] for i in range(llama_model_target_layer_ids_n(ptr)))

    @property
    def n_embd_inp_enc(self) -> int:
        """Width of a row the encoder takes: of a draft head the hidden states of all layers it reads."""
        return encoder_width(self.use())

    @property
    def n_mtp_heads(self) -> int:
        """NextN layers that can draft one after the other; 0 where libllama has no graph for them."""
        return n_mtp_heads(self.arch, llama_model_n_layer_nextn(self.use().ptr))

    @property
    def mtp_crops_rows(self) -> bool:
        """Whether NextN layers compute hidden states of output rows only: they are then read masked."""
        return self.arch in CROPPED_NEXTN_ARCHS

    @property
    def has_nextn_state(self) -> bool:
        """Whether ``Context.set_embeddings_nextn`` works: there is a hidden state for NextN layers."""
        return self.arch in NEXTN_ARCHS

    def has_layer_input(self, layer) -> bool:
        """Whether ``Context.set_embeddings_layer_inp`` works for a layer."""
        cdef int64_t i = as_int("layer", layer, -(1 << 31), (1 << 31) - 1)
        cdef int32_t n = llama_model_n_layer(self.use().ptr)
        return 0 <= i <= n and self.arch in (LAST_LAYER_INPUT_ARCHS if i == n else LAYER_INPUT_ARCHS)

    def chat_template(self, name: str | None = None) -> str | None:
        """The Jinja chat template in the file, or None when there is none.

        Args:
            name: a named variant, e.g. ``"tool_use"``; None for the default.
        """
        cdef const char * c_name = NULL
        cdef const char * text
        if name is not None:
            encoded = as_c_string("name", name)
            c_name = encoded
        text = llama_model_chat_template(self.use().ptr, c_name)
        return None if text == NULL else text.decode("utf-8", "replace")

    def save(self, path) -> None:
        """Write the model as a GGUF file.

        Raises:
            UnsupportedModel: libllama cannot write this architecture, or the weights may have been repacked
                (load with ``use_extra_bufts=False``) or are not loaded.
            OSError: the file cannot be written.
        """
        cdef ModelHandle handle = self.use()
        c_name = as_path("path", path)
        cdef const char * c_path = c_name
        if not handle.has_weights:
            raise UnsupportedModel("a model loaded with vocab_only=True has no weights to save")
        if handle.repacked:
            raise UnsupportedModel("weights that were repacked cannot be saved: load the model with "
                                   "use_extra_bufts=False")
        if self.arch in UNSAVABLE:
            raise UnsupportedModel(f"libllama cannot save models of the architecture {self.arch!r}")
        with open(c_name, "wb"):  # libllama would not report that it cannot
            pass
        begin_call()
        try:
            with nogil:
                llama_model_save_to_file(handle.ptr, c_path)
        except Exception as error:
            raise OSError(f"cannot save the model to {os.fsdecode(c_name)}: {error}") from error
        drain_log()
        if os.path.getsize(c_name) < handle_bytes(handle):
            raise OSError(
                f"cannot save the model to {os.fsdecode(c_name)}: the file came out short (disk full?)"
            )


cdef uint64_t handle_bytes(ModelHandle handle):
    return llama_model_size(handle.ptr)


cdef Py_ssize_t encoder_width(ModelHandle handle):
    """Numbers in a row the encoder takes; libllama has no getter for it."""
    cdef Py_ssize_t n_layers = llama_model_target_layer_ids_n(handle.ptr)
    width = None
    if n_layers and meta_value(handle, b"general.architecture") == "eagle3":
        width = meta_value(handle, b"eagle3.target_hidden_size")
    if width is not None and width.isdecimal():
        return n_layers * int(width)
    return n_layers * llama_model_n_embd(handle.ptr) if n_layers else llama_model_n_embd_inp(handle.ptr)


cdef int meta_string(ModelHandle handle, int32_t i, bint key, string & out) except -1:
    """Key or value number `i` of the metadata."""
    cdef int32_t n
    out.resize(255)
    while True:
        if key:
            n = llama_model_meta_key_by_index(handle.ptr, i, &out[0], out.size() + 1)
        else:
            n = llama_model_meta_val_str_by_index(handle.ptr, i, &out[0], out.size() + 1)
        if n <= <int32_t> out.size():
            out.resize(max(n, 0))
            return 0
        out.resize(n)


cdef str meta_value(ModelHandle handle, bytes key):
    """One metadata value, or None."""
    cdef string out
    cdef int32_t n
    out.resize(255)
    while True:
        n = llama_model_meta_val_str(handle.ptr, key, &out[0], out.size() + 1)
        if n < 0:
            return None
        if n <= <int32_t> out.size():
            out.resize(n)
            return (<bytes> out).decode("utf-8", "replace")
        out.resize(n)


cdef object check_gguf(str path, bint vocab_only, dict overrides):
    """Refuse early what libllama reports badly or not at all; returns the header, with the overrides in it."""
    header = read_gguf(path)
    header.metadata.update(overrides)
    header.check(vocab_only=vocab_only)
    return header
