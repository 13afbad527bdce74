# The extended batch: tokens, embeddings or both, each with a position, its sequences and an output flag.


@cython.no_gc_clear
cdef class Batch:
    """Entries for one computation, up to the context's n_batch; ``clear()`` and refill it for the next.

    All entries must be of one kind: tokens (:meth:`add`), embeddings (:meth:`add_embd`), or tokens with a
    hidden state (:meth:`add`, then :meth:`set_embd_token`). Every entry has a position; llama.cpp does not
    count for you. An entry's number is its index in the results.

    Args:
        context: the context it will be computed with.
    """

    cdef Context context
    cdef llama_batch_ext * ptr
    cdef size_t n
    cdef size_t n_tokens              # entries with a token
    cdef size_t n_embds               # entries with an embedding
    cdef int64_t outputs
    cdef vector[char] has_embd        # per entry
    cdef vector[char] is_output       # per entry
    cdef vector[int32_t] of_sequence  # per sequence: entries whose first sequence it is
    cdef Py_ssize_t width             # of the embeddings in it, 0 without
    cdef Py_ssize_t decoder_width
    cdef Py_ssize_t encoder_width

    def __init__(self, Context context not None):
        if self.ptr != NULL:
            raise RuntimeError("Batch.__init__ called twice")
        context.enter(False)
        try:
            self.ptr = llama_batch_ext_init(context.ptr)
        finally:
            context.leave()
        self.context = context
        self.of_sequence.resize(context.n_seq_max)
        self.encoder_width = encoder_width(context.handle)
        self.decoder_width = (
            llama_model_n_embd_out(context.handle.ptr) if context.ctx_type == "mtp"
            else self.encoder_width if context.model_arch() == "dflash"
            else llama_model_n_embd_inp(context.handle.ptr)
        )

    def __dealloc__(self):
        if self.ptr != NULL:
            llama_batch_ext_free(self.ptr)

    def __len__(self):
        return self.n

    def __repr__(self):
        return f"<pyspec Batch: {self.n} entries, {self.outputs} outputs>"

    @property
    def n_outputs(self) -> int:
        """Entries whose results are wanted."""
        return self.outputs

    def clear(self) -> None:
        """Remove all entries; their memory is kept for the next ones."""
        llama_batch_ext_clear(self.ptr)
        self.has_embd.clear()
        self.is_output.clear()
        self.of_sequence.assign(self.of_sequence.size(), 0)
        self.n = self.n_tokens = self.n_embds = 0
        self.outputs = self.width = 0

    cdef llama_seq_id first_sequence(self, object seq, list rest) except? -1:
        """Check `seq`, an int or several; the first one comes back, the others in `rest`."""
        cdef int64_t last = <int64_t> self.context.n_seq_max - 1
        if isinstance(seq, (int, np.integer)):
            return as_int("seq", seq, 0, last)
        members = [as_int("seq", member, 0, last) for member in seq]
        if not members or len(set(members)) != len(members):
            raise InvalidRequest(
                f"seq must be one or several different sequences, not {seq!r}", name="seq", value=seq
            )
        rest += members[1:]
        return members[0]

    cdef int need_room(self) except -1:
        if self.n >= self.context.n_batch:
            raise InvalidRequest(
                f"the batch is full: n_batch is {self.context.n_batch}", name="batch", value=self.n
            )
        return 0

    cdef int finish_entry(
        self, int32_t index, llama_seq_id first, list rest, const llama_pos * pos, bint output, bint embd
    ) except -1:
        """Everything was checked: these calls cannot fail."""
        for seq in rest:
            llama_batch_ext_add_seq(self.ptr, index, seq)
        llama_batch_ext_set_pos(self.ptr, index, pos)
        llama_batch_ext_set_output_logits(self.ptr, index, output)
        self.has_embd.push_back(embd)
        self.is_output.push_back(output)
        self.of_sequence[first] += 1
        self.n += 1
        self.outputs += output
        return 0

    def add(self, token, pos, seq, output=False) -> int:
        """Add a token.

        Args:
            token: its id.
            pos: its position.
            seq: its sequence, or several that share it.
            output: whether its results are wanted.

        Returns:
            The entry's number.
        """
        cdef list rest = []
        cdef llama_token id = as_int("token", token, 0, <int64_t> self.context.n_vocab - 1)
        cdef llama_pos p = as_int("pos", pos, 0, MAX_POSITION)
        cdef llama_seq_id first = self.first_sequence(seq, rest)
        self.need_room()
        cdef int32_t index = llama_batch_ext_add_token(self.ptr, first, id)
        self.finish_entry(index, first, rest, &p, bool(output), False)
        self.n_tokens += 1
        return index

    def add_embd(self, embd, pos, seq, output=False) -> int:
        """Add an embedding in the place of a token.

        Args:
            embd: numbers, as many as the model's input is wide.
            pos: its position; four of them for a model with multi-dimensional RoPE.
            seq: its sequence, or several that share it.
            output: whether its results are wanted.

        Returns:
            The entry's number.
        """
        cdef list rest = []
        cdef llama_pos positions[4]
        cdef size_t n_pos = 4 if self.context.model.rope_type in ("mrope", "imrope") else 1
        cdef llama_embd row
        cdef const float[::1] view = self.embedding(embd)
        given = [pos] * n_pos if isinstance(pos, (int, np.integer)) else list(pos)
        if len(given) != n_pos:
            raise InvalidRequest(
                f"pos must be {n_pos} position(s) for this model, not {pos!r}", name="pos", value=pos
            )
        for i in range(n_pos):
            positions[i] = as_int("pos", given[i], 0, MAX_POSITION)
        cdef llama_seq_id first = self.first_sequence(seq, rest)
        self.need_room()
        self.take_row(view, &row)
        cdef int32_t index = llama_batch_ext_add_embd(self.ptr, first, row)
        if index < 0:
            self.give_up()
        self.finish_entry(index, first, rest, positions, bool(output), True)
        self.n_embds += 1
        return index

    def set_embd_token(self, index, embd) -> None:
        """Give a token a hidden state as well, for NextN layers and draft heads.

        Args:
            index: the entry's number; each takes one.
            embd: numbers, as many as the model's input is wide.
        """
        cdef int32_t i = as_int("index", index, 0, <int64_t> self.n - 1)
        cdef llama_embd row
        cdef const float[::1] view = self.embedding(embd)
        if self.has_embd[i]:
            raise InvalidRequest(f"entry {i} has an embedding already", name="index", value=index)
        self.take_row(view, &row)
        if not llama_batch_ext_set_embd_token(self.ptr, i, row):
            self.give_up()
        self.has_embd[i] = True
        self.n_embds += 1

    def set_output(self, index, value) -> None:
        """Change whether an entry's results are wanted."""
        cdef int32_t i = as_int("index", index, 0, <int64_t> self.n - 1)
        cdef char output = bool(value)
        llama_batch_ext_set_output_logits(self.ptr, i, output)
        self.outputs += output - self.is_output[i]
        self.is_output[i] = output

    cdef object embedding(self, object embd):
        """The numbers, of a width libllama will take (it would leave half an entry behind otherwise)."""
        try:
            array = np.ascontiguousarray(embd, dtype=np.float32)
        except (TypeError, ValueError):
            array = np.empty((0, 0), np.float32)
        widths = {self.width} if self.width else {self.decoder_width, self.encoder_width}
        if array.ndim != 1 or array.size not in widths:
            raise InvalidRequest(
                f"embd must be one row of {' or '.join(map(str, sorted(widths)))} numbers, not {array.shape}",
                name="embd", value=array.shape,
            )
        return array

    cdef int take_row(self, const float[::1] view, llama_embd * row) except -1:
        row.data = &view[0]
        row.n_rows = 1
        row.n_embd = view.shape[0]
        self.width = view.shape[0]
        return 0

    cdef int give_up(self) except -1:
        """libllama refused what was checked; what it left half-built must not be computed."""
        self.clear()
        raise PyspecError("libllama refused the embedding; the batch was cleared")

    cdef int check(self, Context context, bint encode) except -1:
        """Whether it can be computed: what libllama asserts, and what it reports without saying which."""
        if context is not self.context:
            raise InvalidRequest("the batch was made for another context", name="batch", value=self)
        check_batch_size(context, self.n)
        if self.n_tokens not in (0, self.n) or self.n_embds not in (0, self.n):
            raise InvalidRequest(
                "the entries of a batch must all be tokens, all be embeddings, or all be both",
                name="batch", value=self,
            )
        arch = context.model_arch()
        if encode or context.memory_ptr == NULL:
            self.check_encode(context, arch, encode)
        else:
            check_outputs(context, self.n, self.outputs)
            check_can_decode(context, self.n_embds > 0)
            self.check_decode(context, arch)
        return 0

    cdef int check_encode(self, Context context, str arch, bint encode) except -1:
        if encode and context.memory_ptr != NULL and not llama_model_has_encoder(context.handle.ptr):
            raise UnsupportedModel("the model has no encoder; use process()")
        if self.n > context.n_ubatch or self.n > context.n_outputs_max:
            raise InvalidRequest(
                f"an encoder computes a batch at once: it must fit into n_ubatch ({context.n_ubatch}) and "
                f"n_outputs_max ({context.n_outputs_max}); it has {self.n} entries",
                name="batch", value=self.n,
            )
        if self.width not in (0, self.encoder_width):
            raise InvalidRequest(f"the encoder takes rows of {self.encoder_width} numbers, not {self.width}",
                                 name="batch", value=self.width)
        if arch in ("eagle3", "dflash") and (self.n_tokens or not self.n_embds):
            raise InvalidRequest(
                "this encoder takes hidden states of the target: use add_embd()", name="batch"
            )
        return 0

    cdef int check_decode(self, Context context, str arch) except -1:
        cdef int32_t count, block = 0
        if self.width not in (0, self.decoder_width):
            raise InvalidRequest(f"the decoder takes rows of {self.decoder_width} numbers, not {self.width}",
                                 name="batch", value=self.width)
        if (arch == "eagle3" or context.ctx_type == "mtp") and not (self.n_tokens and self.n_embds):
            raise InvalidRequest(
                "this decoder takes a hidden state with every token: use add() and set_embd_token()",
                name="batch",
            )
        if context.ctx_type == "mtp" and context.nextn_on and not context.nextn_masked and (
            self.outputs < <int64_t> self.n
        ):
            raise InvalidRequest(
                "with unmasked hidden states every entry for NextN layers must be an output: some graphs compute "
                "only output rows", name="batch", value=self,
            )
        if arch == "dflash" and self.n_tokens:
            for count in self.of_sequence:
                if count and block and count != block:
                    raise InvalidRequest(
                        "a block-diffusion draft needs as many tokens of each sequence as of the others",
                        name="batch",
                    )
                block = count or block
            if self.n > context.n_ubatch:
                raise InvalidRequest(
                    f"a block-diffusion draft is computed at once: the batch must fit into n_ubatch "
                    f"({context.n_ubatch}); it has {self.n} entries", name="batch", value=self.n,
                )
        return 0
