from libc.stdint cimport int32_t, int64_t
from libcpp.vector cimport vector

from pyspec._llama cimport Context
from pyspec._sequence cimport Sequence
from pyspec.libllama cimport llama_seq_id


# Raises UnsupportedModel unless the context's model goes on with a text from its tokens alone. The binding checks that
# before each batch; compiled code that calls libllama itself does it once.
cdef int require_left_to_right(Context context) except -1


# What a speculator has done since construction: microseconds altogether, of these within decodes, and of these again in
# catching up on more than a round; and decodes that failed.
cdef struct DraftWork:
    int64_t us
    int64_t decode_us
    int64_t read_us
    int64_t failures


cdef class CompiledSpeculator:
    cdef readonly str name
    cdef readonly int32_t n_max
    cdef readonly int32_t n_min

    # Raises InvalidRequest where it can't serve the sequences of this target.
    cdef int require_target(self, Context target) except -1
    # Before and after any of the calls below: takes hold of what they use, or raises Closed, Busy or BufferInUse.
    cdef int enter(self) except -1
    cdef void leave(self) noexcept
    # The round is planned, and it may be asked for those that have a budget: what it can do before it is.
    cdef void prepare(self, vector[Sequence] * sequences) noexcept nogil
    # Fills the draft of every generating sequence that has a budget and no draft yet.
    cdef void propose(self, vector[Sequence] * sequences) noexcept nogil
    # After the target's decode and before anything is committed: the batch is still there to be looked at.
    cdef void observe(self, vector[Sequence] * sequences, int32_t n_target_rows) noexcept nogil
    # A sequence had n_before tokens before the round and has s.tokens now. `own`: this speculator's draft was
    # verified, and s.draft and s.n_accepted say how it went; otherwise the round was somebody else's, or nobody's.
    cdef void committed(self, llama_seq_id seq, Sequence * s, int32_t n_before, bint own) noexcept nogil
    # The round came to nothing, tokens are as before.
    cdef void dropped(self, llama_seq_id seq) noexcept nogil
    # The request is over: nothing of it may be left.
    cdef void forget(self, llama_seq_id seq) noexcept nogil
    # The request is over; what the target's memory holds of it stays, and another may go on from there.
    cdef void released(self, llama_seq_id seq) noexcept nogil
    # Of a released sequence only the first n_tokens are to be left: how many of these the target has to read again, for
    # what it says about them.
    cdef int32_t reads_again(self, llama_seq_id seq, int32_t n_tokens) noexcept nogil
    # Of a released sequence only the first n_tokens are left. The text goes on with its first n_common tokens.
    cdef void rewind(self, llama_seq_id seq, int32_t n_tokens, int32_t n_common) noexcept nogil
    # The n_discard committed tokens behind the first n_keep are gone, those behind them have moved up.
    cdef void shifted(self, llama_seq_id seq, int32_t n_keep, int32_t n_discard) noexcept nogil
    cdef DraftWork work_done(self) noexcept nogil
    # AssertionError when what it believes of a sequence can't be.
    cdef int check_sequence(self, llama_seq_id seq, Sequence * s) except -1
