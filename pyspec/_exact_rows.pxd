from libc.stdint cimport int32_t, int64_t
from libcpp.vector cimport vector

from pyspec._llama cimport Context
from pyspec._sequence cimport Sequence
from pyspec.libllama cimport llama_batch_ext, llama_seq_id


cdef class ExactRows:
    cdef int32_t width                  # most rows of a decode that gives tokens; 0: as many as there is room for
    cdef int32_t least_rows             # fewest rows of a sequence in it
    cdef tuple threads                  # of the target's context, when that was found out
    cdef llama_seq_id watched           # the sequence whose last row is to be computed again; -1: none
    cdef vector[float] row              # that row, as the round's decode gave it
    cdef object state                   # its state before the decode, where the memory can't be cut
    cdef int64_t n_checks
    cdef int64_t n_differences
    cdef int64_t calls                  # decodes that computed rows again,
    cdef int64_t rows                   # and the rows
    cdef int64_t us

    # Keeps to such decodes from now on.
    cdef int set(self, Context target, str rollback, int width, int least_rows) except -1
    # Rows that each generating sequence of a decode gets at least.
    cdef int32_t rows_each(self, vector[Sequence] * sequences, vector[llama_seq_id] * order) noexcept nogil
    # Nothing is decoded in exact mode in another way than was found to be exact, or it raises.
    cdef int require(self, Context target, vector[Sequence] * sequences, vector[llama_seq_id] * order,
                     int32_t n_rows) except -1
    # Before a round: remembers its sequence and, where the memory can't be cut, the state it starts from.
    cdef int watch(self, Context target, llama_seq_id seq, bint can_cut) except -1
    # After its decode: copies the row behind which the watched sequence's last token was chosen, if it was beside others.
    cdef void keep(self, Context target, Sequence * s, int32_t n_rows) noexcept nogil
    # After its commit: whether there is a row to compare. Nothing is watched any more.
    cdef bint take(self)
    # Puts the memory back to where the round began, if it has to be; how many tokens are to be computed again.
    cdef int32_t put_back(self, Context target, llama_seq_id seq, Sequence * s) except -1
    # Computes these again. 1: the last row is the same to the bit; 0: it is not; -1: a decode failed, and the memory
    # lacks tokens.
    cdef int compare(self, Context target, llama_batch_ext * batch, llama_seq_id seq, Sequence * s, int32_t n_tokens,
                     bint can_cut) noexcept nogil
    cdef int32_t decode_again(self, Context target, llama_batch_ext * batch, llama_seq_id seq, Sequence * s,
                              int32_t n_tokens, bint can_cut) noexcept nogil
