# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Exact mode in the decoder: decodes in which a row is, to the bit, what it is in a narrow one.

Where decodes up to some width compute each row as a narrow one does, wider ones are refused, and so are tokens and
prompts in one decode. Where that holds from two rows on, but not for one, a sequence with one row gets another that is
thrown away. What was found out is looked at again now and then: a row of a round is computed again by itself.
"""

from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcmp
from libcpp.vector cimport vector

from pyspec._llama cimport Context
from pyspec._sequence cimport Sequence, add_row, decode_and_wait
from pyspec.libllama cimport (
    llama_batch_ext,
    llama_batch_ext_clear,
    llama_get_logits_ith,
    llama_memory_seq_rm,
    llama_n_threads,
    llama_n_threads_batch,
    llama_seq_id,
    llama_time_us,
)

from pyspec.errors import InvalidRequest, StateError


cdef class ExactRows:
    """How wide a decoder's decodes may be, and the row that is looked at again."""

    def __cinit__(self):
        self.least_rows = 1
        self.watched = -1

    cdef int set(self, Context target, str rollback, int width, int least_rows) except -1:
        if width < 1 or not 1 <= least_rows <= width:
            raise InvalidRequest(f"an exact decode has 1 row or more, and {least_rows} of a sequence do not fit into "
                                 f"{width}", name="width", value=width)
        if least_rows > 1 and rollback != "cut":
            raise InvalidRequest(f"least_rows is {least_rows}, and rows can't be thrown away where rollback is "
                                 f"{rollback!r}", name="least_rows", value=least_rows)
        self.width = width
        self.least_rows = least_rows
        self.threads = (target.n_threads, target.n_threads_batch)
        return 0

    cdef int32_t rows_each(self, vector[Sequence] * sequences, vector[llama_seq_id] * order) noexcept nogil:
        """With company: as many as any of them has."""
        cdef size_t i
        cdef Sequence * s
        cdef int32_t n = self.least_rows
        if n > 1:
            for i in range(order.size()):
                s = &sequences.at(order.at(i))
                if s.generating():
                    n = max(n, 1 + <int32_t> s.draft.size())
        return n

    cdef int require(self, Context target, vector[Sequence] * sequences, vector[llama_seq_id] * order,
                     int32_t n_rows) except -1:
        cdef size_t i
        cdef size_t n_generating = 0
        if self.width == 0:
            return 0
        threads = (llama_n_threads(target.ptr), llama_n_threads_batch(target.ptr))
        if threads != self.threads:
            raise StateError(f"the context's threads were changed from {self.threads} to {threads}; what decodes are "
                             "exact was found out with the first, so open another engine")
        for i in range(order.size()):
            n_generating += sequences.at(order.at(i)).generating()
        if n_generating == 0 and order.size() <= 1:
            return 0
        if n_generating < order.size():
            raise InvalidRequest("in exact mode a prompt is read in a decode of its own", name="prompt_rows")
        if n_rows > self.width:
            raise InvalidRequest(f"{n_rows} rows were planned, and decodes are exact up to {self.width}", name="budget",
                                 value=n_rows)
        return 0

    # -- a row that is looked at again -----------------------------------------------------------------------------

    cdef int watch(self, Context target, llama_seq_id seq, bint can_cut) except -1:
        self.watched = seq
        self.row.clear()
        self.state = None if can_cut else target.state_seq_get(seq)
        return 0

    cdef void keep(self, Context target, Sequence * s, int32_t n_rows) noexcept nogil:
        cdef const float * logits
        if s.generating() and not s.emitted.empty() and n_rows > self.least_rows:
            logits = llama_get_logits_ith(target.ptr, s.first_row + <int32_t> s.emitted.size() - 1)
            self.row.assign(logits, logits + target.n_vocab)

    cdef bint take(self):
        cdef bint there = self.watched >= 0 and not self.row.empty()
        self.watched = -1
        if not there:
            self.state = None
        return there

    cdef int32_t put_back(self, Context target, llama_seq_id seq, Sequence * s) except -1:
        if self.state is None:
            return 1
        target.state_seq_set(self.state, seq)
        self.state = None
        return <int32_t> s.emitted.size()

    cdef int compare(self, Context target, llama_batch_ext * batch, llama_seq_id seq, Sequence * s, int32_t n_tokens,
                     bint can_cut) noexcept nogil:
        cdef bint same
        if self.decode_again(target, batch, seq, s, n_tokens, can_cut) != 0:
            return -1
        same = memcmp(llama_get_logits_ith(target.ptr, 0), self.row.data(), self.row.size() * sizeof(float)) == 0
        self.n_checks += 1
        self.n_differences += not same
        return same

    cdef int32_t decode_again(self, Context target, llama_batch_ext * batch, llama_seq_id seq, Sequence * s,
                              int32_t n_tokens, bint can_cut) noexcept nogil:
        """Computes the last committed tokens of a sequence once more, one by one, each with no more than the company it
        has to have. The row of the last one is row 0."""
        cdef int32_t end = <int32_t> s.tokens.size()
        cdef int64_t t0 = llama_time_us()
        cdef int32_t at
        cdef int32_t i
        cdef int32_t code = 0
        if can_cut:
            llama_memory_seq_rm(target.memory_ptr, seq, end - n_tokens, -1)
        for at in range(end - n_tokens, end):
            llama_batch_ext_clear(batch)
            for i in range(self.least_rows):
                add_row(batch, s.tokens[at], at + i, seq, True)
            code = decode_and_wait(target.handle.head_lock, target.ptr, batch)
            self.calls += 1
            self.rows += self.least_rows
            if code != 0:
                break
            if self.least_rows > 1:
                llama_memory_seq_rm(target.memory_ptr, seq, at + 1, -1)
        self.us += llama_time_us() - t0
        return code
