from libc.stdint cimport int32_t

from libcpp.vector cimport vector

from pyspec._hidden_drafting cimport HiddenRunner
from pyspec._sequence cimport Sequence
from pyspec.libllama cimport llama_seq_id, llama_token


cdef class BlockRunner(HiddenRunner):
    cdef readonly int32_t block_size
    cdef llama_token mask
    cdef int32_t first_row              # of a block's rows, the first one that is a proposal
    cdef bint has_confidence            # what its hidden states begin with is how sure it is
    cdef vector[llama_seq_id] waiting_for_block

    cdef bint inject(self, llama_seq_id seq, int32_t end) noexcept nogil
    cdef bint run_injection(self) noexcept nogil
    cdef void draft_blocks(self, vector[Sequence] * sequences) noexcept nogil
    cdef void draft_together(
        self, vector[Sequence] * sequences, size_t begin, size_t end, int32_t length) noexcept nogil
