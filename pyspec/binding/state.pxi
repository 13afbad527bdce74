# Saved states. libllama's bytes come in an envelope of ours: libllama trusts what it restores, and a damaged
# or foreign state would corrupt the memory or end the process.
#
#   magic "PSTA", format, kind, pools          4 bytes, u8, u8, u16
#   flags, model fingerprint, sequence         u32, u32, i32
#   serial number (on-device saves), tokens    u64, u32
#   length of what follows, its CRC-32         u64, u32
#   CRC-32 of all this                         u32
# then the tokens (i32 each) and libllama's bytes, all in the byte order of the machine.

STATE_FIELDS = struct.Struct("=4sBBHIIiQIQI")
STATE_HEADER = struct.Struct(STATE_FIELDS.format + "I")
STATE_MAGIC = b"PSTA"
STATE_FORMAT = 1
cdef int STATE_OF_SEQUENCE = 1
cdef int STATE_OF_ALL = 2


cdef uint32_t fingerprint(Context context):
    """Tells models apart; the layout of the memory is compared by libllama."""
    cdef Model model = Model.__new__(Model)
    model.handle = context.handle
    facts = (sorted(model.metadata.items()), model.n_params, model.size, context.ctx_type)
    return zlib.crc32(repr(facts).encode())


cdef uint32_t state_flags(bint partial_only, bint on_device):
    return (LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY if partial_only else 0) | (
        LLAMA_STATE_SEQ_FLAGS_ON_DEVICE if on_device else 0)


cdef int n_pools(Context context):
    """Pools of cells that libllama writes the attention memory of a sequence for, one by one; 0: there are none."""
    if context.handle.ptr == NULL or llama_model_is_recurrent(context.handle.ptr):
        return 0
    return 1 if context.kv_unified else context.n_seq_max


cdef bytes new_envelope(size_t n_bytes, uint8_t ** out):
    """Uninitialised bytes for a header and `n_bytes`, which start at `out`."""
    envelope = PyBytes_FromStringAndSize(NULL, <size_t> STATE_HEADER.size + n_bytes)
    out[0] = <uint8_t *> PyBytes_AS_STRING(envelope) + <size_t> STATE_HEADER.size
    return envelope


cdef int seal(
    Context context, bytes envelope, int kind, uint32_t flags=0, llama_seq_id seq=-1, uint64_t serial=0,
    uint32_t n_tokens=0,
) except -1:
    """Write the header, once all the rest is there."""
    body = memoryview(envelope)[STATE_HEADER.size:]
    fields = (STATE_MAGIC, STATE_FORMAT, kind, n_pools(context), flags, fingerprint(context), seq, serial, n_tokens, len(body),
              zlib.crc32(body))
    header = STATE_HEADER.pack(*fields, zlib.crc32(STATE_FIELDS.pack(*fields)))
    memcpy(PyBytes_AS_STRING(envelope), PyBytes_AS_STRING(header), STATE_HEADER.size)
    return 0


cdef tuple unseal(Context context, object data, int kind, uint32_t flags):
    """Check an envelope; returns sequence, serial number, number of pools, tokens and libllama's bytes (both as
    memoryviews).
    """
    try:
        view = memoryview(data).cast("B")
    except TypeError:
        raise InvalidRequest(f"data must be bytes, not {type(data).__name__}", name="data") from None
    if len(view) < STATE_HEADER.size:
        raise StateError(f"the state is truncated: it has {len(view)} bytes")
    *fields, header_crc = STATE_HEADER.unpack_from(view)
    magic, form, its_kind, its_pools, its_flags, its_model, seq, serial, n_tokens, length, crc = fields
    body = view[STATE_HEADER.size:]
    if magic != STATE_MAGIC or form != STATE_FORMAT:
        raise StateError("this is not a saved state, or one of another version of pyspec")
    if header_crc != zlib.crc32(STATE_FIELDS.pack(*fields)):
        raise StateError("the state is damaged: the checksum of its header does not match")
    if len(body) != length:
        raise StateError(f"the state is truncated: it should have {length} bytes and has {len(body)}")
    if zlib.crc32(body) != crc:
        raise StateError("the state is damaged: its checksum does not match")
    if its_kind != kind:
        raise StateError("the state is of all sequences, not of one" if kind == STATE_OF_SEQUENCE
                         else "the state is of one sequence, not of all")
    if its_flags != flags:
        raise StateError("the state was saved with other flags (partial_only, on_device)")
    if its_model != fingerprint(context):
        raise StateError("the state belongs to another model")
    return seq, serial, its_pools, body[:n_tokens * 4], body[n_tokens * 4:]


cdef size_t seq_state_size(Context context, object seq, bint partial_only, bint on_device) except? 0:
    cdef llama_seq_id id = as_int("seq", seq, 0, <int64_t> context.n_seq_max - 1)
    cdef uint32_t flags = state_flags(partial_only, on_device)
    cdef size_t size
    context.enter(False)
    try:
        with nogil:
            llama_synchronize(context.ptr)
            size = llama_state_seq_get_size_ext(context.ptr, id, flags)
    finally:
        context.leave()
    return size + STATE_HEADER.size


cdef bytes seq_state_get(
    Context context, object seq, bint partial_only, bint on_device, vector[llama_token] tokens
):
    cdef llama_seq_id id = as_int("seq", seq, 0, <int64_t> context.n_seq_max - 1)
    cdef uint32_t flags = state_flags(partial_only, on_device)
    cdef size_t size, written, n_tokens = tokens.size()
    cdef uint8_t * body
    cdef uint64_t serial = 0
    context.enter(False)
    begin_call()
    try:
        with nogil:
            llama_synchronize(context.ptr)
            size = llama_state_seq_get_size_ext(context.ptr, id, flags)
        envelope = new_envelope(4 * n_tokens + size, &body)
        memcpy(body, tokens.data(), 4 * n_tokens)
        if on_device:
            context.save_serial += 1
            serial = context.save_serial
            context.device_saves.pop(id, None)  # outdated, whatever happens now
        with nogil:
            written = llama_state_seq_get_data_ext(context.ptr, body + 4 * n_tokens, size, id, flags)
    finally:
        context.leave()
    if written != size or size == 0:
        raise StateError(f"libllama could not save sequence {id}: {reason()}")
    if on_device:
        context.device_saves[id] = serial
    seal(context, envelope, STATE_OF_SEQUENCE, flags, id, serial, n_tokens)
    drain_log()
    return envelope


cdef object seq_state_set(Context context, object data, object seq, bint partial_only, bint on_device):
    """Returns the tokens in the envelope, as bytes."""
    cdef llama_seq_id id = as_int("seq", seq, 0, <int64_t> context.n_seq_max - 1)
    cdef uint32_t flags = state_flags(partial_only, on_device)
    cdef const uint8_t[::1] payload
    cdef const uint8_t * buffer
    cdef size_t size, read = 0
    source, serial, its_pools, tokens, body = unseal(context, data, STATE_OF_SEQUENCE, flags)
    if on_device and context.device_saves.get(source) != serial:
        raise StateError(
            "the state is outdated: its tensors stayed on the device and were replaced by a later save of "
            f"sequence {source}, or they belong to another context"
        )
    if its_pools != n_pools(context) and not flags:
        body = with_pools(bytes(body), n_pools(context), hybrid=llama_model_is_hybrid(context.handle.ptr))
    payload = body
    buffer, size = &payload[0], payload.shape[0]
    context.enter(True)
    begin_call()
    try:
        if not partial_only:
            llama_memory_seq_rm(context.memory_ptr, id, -1, -1)  # restoring an empty sequence does not
        with nogil:
            read = llama_state_seq_set_data_ext(context.ptr, buffer, size, id, flags)
        if read != size:
            llama_memory_seq_rm(context.memory_ptr, id, -1, -1)
    except Exception as error:
        llama_memory_seq_rm(context.memory_ptr, id, -1, -1)
        raise StateError(f"the state does not fit this context: {error}") from error
    finally:
        context.leave()
    if read != size:
        raise StateError(f"the state does not fit this context: {reason()}")
    drain_log()
    return bytes(tokens)


cdef size_t whole_state_size(Context context) except? 0:
    cdef size_t size
    context.enter(False)
    try:
        with nogil:
            llama_synchronize(context.ptr)
            size = llama_state_get_size(context.ptr)
    finally:
        context.leave()
    return size + STATE_HEADER.size


cdef int check_whole_state(Context context) except -1:
    # With snapshots to roll back to, sequences that share a recurrent state may have rolled it back
    # differently; libllama ends the process when asked to save that.
    if context.n_rs_seq and context.n_seq_max > 1:
        raise UnsupportedModel("with n_rs_seq the sequences have to be saved one by one: use state_seq_get()")
    return 0


cdef bytes whole_state_get(Context context):
    cdef size_t size, written
    cdef uint8_t * body
    check_whole_state(context)
    context.enter(False)
    begin_call()
    try:
        with nogil:
            llama_synchronize(context.ptr)
            size = llama_state_get_size(context.ptr)
        envelope = new_envelope(size, &body)
        with nogil:
            written = llama_state_get_data(context.ptr, body, size)
    finally:
        context.leave()
    if written != size or size == 0:
        raise StateError(f"libllama could not save the state: {reason()}")
    seal(context, envelope, STATE_OF_ALL)
    drain_log()
    return envelope


cdef object whole_state_set(Context context, object data):
    cdef const uint8_t[::1] payload
    cdef const uint8_t * buffer
    cdef size_t size, read = 0
    _, _, _, _, body = unseal(context, data, STATE_OF_ALL, 0)
    payload = body
    buffer, size = &payload[0], payload.shape[0]
    context.enter(True)
    begin_call()
    try:
        with nogil:
            read = llama_state_set_data(context.ptr, buffer, size)
        if read != size:
            llama_memory_clear(context.memory_ptr, True)
    except Exception as error:
        llama_memory_clear(context.memory_ptr, True)
        raise StateError(f"the state does not fit this context: {error}") from error
    finally:
        context.leave()
    if read != size:
        raise StateError(f"the state does not fit this context: {reason()}")
    drain_log()


cdef size_t seq_state_save(Context context, object path, object seq, object tokens) except? 0:
    cdef vector[llama_token] ids
    as_tokens("tokens", tokens, context.n_vocab, ids)
    name = os.fsdecode(as_path("path", path))
    data = seq_state_get(context, seq, False, False, ids)
    with whole_file(name) as file:
        file.write(data)
    return len(data)


cdef list seq_state_load(Context context, object path, object seq):
    with open(as_path("path", path), "rb") as file:
        data = file.read()
    tokens = seq_state_set(context, data, seq, False, False)
    return np.frombuffer(tokens, np.int32).tolist()
