from libc.stdint cimport int32_t, int64_t
from libcpp.vector cimport vector

from pyspec._hidden_drafting cimport HiddenRows, HiddenRunner
from pyspec._sequence cimport Sequence
from pyspec.libllama cimport llama_seq_id


cdef struct Place:
    llama_seq_id seq
    int32_t position


cdef class PairRunner(HiddenRunner):
    cdef vector[HiddenRows] own         # per sequence: the draft's own hidden states of this round's proposals
    cdef vector[HiddenRows] encoded     # per sequence: what the encoder made of the target's rows, where there is one
    cdef vector[Place] encoding         # rows in the encoder's batch
    cdef int64_t n_encoded
    cdef bint has_encoder
    cdef bint all_outputs               # rows are only right where all of them are outputs

    cdef bint step(self, vector[Sequence] * sequences, int32_t i) noexcept nogil
    cdef bint catch_up(self, Sequence * s, llama_seq_id seq, int32_t room) noexcept nogil
    cdef void encode(self, llama_seq_id seq, int32_t end) noexcept nogil
    cdef bint run_encoder(self) noexcept nogil
    cdef bint feed(self, Sequence * s, llama_seq_id seq, int32_t end, bint output) noexcept nogil
    cdef bint add(self, Sequence * s, llama_seq_id seq, int32_t pair, bint output) noexcept nogil
