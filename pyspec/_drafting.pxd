from libc.stdint cimport int32_t
from libcpp cimport bool as cpp_bool
from libcpp.vector cimport vector

from pyspec._model_drafting cimport ModelRunner
from pyspec._sequence cimport Checkpoint, Sequence
from pyspec.libllama cimport llama_batch_ext, llama_memory_t, llama_seq_id, llama_token


# One sequence as the draft model's memory has it. Token i is at position i - gap; the memory holds the tokens up to
# `synced` (excluded) and, within a round, maybe the seed and the first n_evaluated proposals behind them.
cdef struct Watermark:
    int32_t synced
    int32_t gap               # 0 until the draft's context window is full and moves on
    cpp_bool seed_evaluated
    int32_t n_evaluated
    int32_t reached           # positions its memory has ever reached since it was empty


cdef class DraftRunner(ModelRunner):
    cdef readonly bint replay
    cdef llama_memory_t memory
    cdef llama_batch_ext * batch
    cdef vector[Watermark] marks
    cdef vector[Checkpoint] saved       # per sequence, where cells can't be cut: the state behind the round's seed
    cdef bint can_cut
    cdef int32_t n_swa                  # the sliding window; 0: none
    cdef int32_t capacity               # positions one sequence has
    cdef cpp_bool can_shift

    cdef void first_step(self, vector[Sequence] * sequences) noexcept nogil
    cdef void extend(self, vector[Sequence] * sequences) noexcept nogil
    cdef bint catch_up(self, Sequence * s, llama_seq_id seq, int32_t room) noexcept nogil
    cdef void fit_window(self, Sequence * s, llama_seq_id seq) noexcept nogil
    cdef void add(self, llama_token token, int32_t index, llama_seq_id seq, bint output) noexcept nogil
    cdef void cut(self, llama_seq_id seq, int32_t n_valid) noexcept nogil
