# The memory of a context: what is stored of each sequence.


cdef class Memory:
    """The tokens a context remembers, by sequence; from ``Context.memory``.

    Ranges of positions are half-open, ``[p0, p1)``; a negative `p0` means 0 and a negative `p1` no end. For
    an architecture without a memory everything is empty.
    """

    cdef Context context

    def __init__(self):
        raise TypeError("a Memory comes from Context.memory")

    cdef llama_seq_id sequence(self, object seq, str name="seq") except? -2:
        return as_int(name, seq, 0, <int64_t> self.context.n_seq_max - 1)

    cdef bint recurrent(self):
        cdef const llama_model * model = self.context.handle.ptr
        return llama_model_is_recurrent(model) or llama_model_is_hybrid(model)

    def seq_rm(self, seq, p0=-1, p1=-1) -> bool:
        """Forget a range of a sequence.

        Recurrent states can forget a whole sequence, and of the end at most n_rs_seq tokens, once per decode
        and only as many as that decode added; libllama does not check the last part.

        Args:
            seq: the sequence, or -1 for all.

        Returns:
            False if the memory cannot forget this range; nothing has changed then.
        """
        cdef llama_seq_id id = as_int("seq", seq, -1, <int64_t> self.context.n_seq_max - 1)
        cdef llama_pos a = as_position("p0", p0), b = as_position("p1", p1)
        cdef bint removed
        self.context.enter(False)
        try:
            removed = llama_memory_seq_rm(self.context.memory_ptr, id, a, b)
        finally:
            self.context.leave()
        return removed

    def seq_cp(self, src, dst, p0=-1, p1=-1) -> None:
        """Let `dst` remember what `src` does in a range, in place of what it had.

        Raises:
            InvalidRequest: only a part is asked for where the memory copies whole sequences only: without
                kv_unified, and for recurrent states.
        """
        cdef llama_seq_id a = self.sequence(src, "src"), b = self.sequence(dst, "dst")
        cdef llama_pos first = as_position("p0", p0), end = as_position("p1", p1)
        cdef llama_pos last
        self.context.enter(False)
        try:
            last = llama_memory_seq_pos_max(self.context.memory_ptr, a)
            if first <= 0 and (end < 0 or end > last):
                first = end = -1
            elif a != b and (
                not self.context.kv_unified or self.recurrent() or self.context.model_arch() == "deepseek4"
            ):
                raise InvalidRequest(
                    f"positions {first} to {end} are a part of sequence {src} (which ends at {last}); this "
                    "memory copies whole sequences only", name="p0" if first > 0 else "p1", value=(p0, p1),
                )
            llama_memory_seq_cp(self.context.memory_ptr, a, b, first, end)
        finally:
            self.context.leave()

    def seq_keep(self, seq) -> None:
        """Forget all other sequences."""
        cdef llama_seq_id id = self.sequence(seq)
        cdef llama_seq_id other
        self.context.enter(False)
        try:
            llama_memory_seq_keep(self.context.memory_ptr, id)
            if not self.context.kv_unified:  # libllama looks only at the cells of this sequence
                for other in range(<llama_seq_id> self.context.n_seq_max):
                    if other != id:
                        llama_memory_seq_rm(self.context.memory_ptr, other, -1, -1)
        finally:
            self.context.leave()

    def seq_add(self, seq, p0, p1, delta) -> None:
        """Shift the positions of a range by `delta`; what falls below 0 is forgotten.

        Raises:
            UnsupportedModel: this memory cannot shift, see :attr:`can_shift`.
        """
        cdef llama_seq_id id = self.sequence(seq)
        cdef llama_pos a = as_position("p0", p0), b = as_position("p1", p1)
        cdef llama_pos d = as_int("delta", delta, -MAX_POSITION, MAX_POSITION)
        cdef llama_pos last
        self.context.enter(False)
        try:
            self.require_shift()
            last = llama_memory_seq_pos_max(self.context.memory_ptr, id)
            if last >= 0 and <int64_t> last + d > MAX_POSITION:
                raise InvalidRequest(
                    f"delta={d} shifts position {last} beyond {MAX_POSITION}", name="delta", value=d
                )
            llama_memory_seq_add(self.context.memory_ptr, id, a, b, d)
        finally:
            self.context.leave()

    def seq_div(self, seq, p0, p1, divisor) -> None:
        """Divide the positions of a range by an integer; raises as :meth:`seq_add`."""
        cdef llama_seq_id id = self.sequence(seq)
        cdef llama_pos a = as_position("p0", p0), b = as_position("p1", p1)
        cdef int d = as_int("divisor", divisor, 1, MAX_POSITION)
        self.context.enter(False)
        try:
            self.require_shift()
            llama_memory_seq_div(self.context.memory_ptr, id, a, b, d)
        finally:
            self.context.leave()

    cdef int require_shift(self) except -1:
        if not self.context.can_shift:
            raise UnsupportedModel("this memory cannot shift positions (see Memory.can_shift)")
        return 0

    def pos_min(self, seq) -> int:
        """The first position of a sequence that is remembered, -1 if it is empty."""
        cdef llama_seq_id id = self.sequence(seq)
        cdef llama_pos pos
        self.context.enter(False)
        pos = llama_memory_seq_pos_min(self.context.memory_ptr, id)
        self.context.leave()
        return pos

    def pos_max(self, seq) -> int:
        """The last position of a sequence, -1 if it is empty."""
        cdef llama_seq_id id = self.sequence(seq)
        cdef llama_pos pos
        self.context.enter(False)
        pos = llama_memory_seq_pos_max(self.context.memory_ptr, id)
        self.context.leave()
        return pos

    @property
    def can_shift(self) -> bool:
        """Whether :meth:`seq_add` and :meth:`seq_div` work."""
        self.context.enter(False)
        self.context.leave()
        return self.context.can_shift

    def clear(self, data=True) -> None:
        """Forget everything; `data` also zeroes the buffers."""
        cdef cpp_bool with_data = bool(data)
        self.context.enter(False)
        try:
            with nogil:
                llama_memory_clear(self.context.memory_ptr, with_data)
        finally:
            self.context.leave()


cdef llama_pos as_position(str name, object value) except? -2:
    return as_int(name, value, -1, MAX_POSITION + 1)
