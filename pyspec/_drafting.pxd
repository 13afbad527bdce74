from libc.stdint cimport int32_t, int64_t
from libcpp cimport bool as cpp_bool
from libcpp.vector cimport vector

from pyspec._draft_head cimport DraftHead
from pyspec._llama cimport Context
from pyspec._sequence cimport Checkpoint, Scored, Sequence
from pyspec._speculator cimport CompiledSpeculator
from pyspec.libllama cimport llama_batch_ext, llama_memory_t, llama_seq_id, llama_token


# One sequence as the draft model's memory has it. Token i is at position i - gap; the memory holds the tokens up to
# `synced` (excluded) and, within a round, maybe the seed and the first n_evaluated proposals behind them.
cdef struct Watermark:
    int32_t synced
    int32_t gap               # 0 until the draft's context window is full and moves on
    cpp_bool seed_evaluated
    int32_t n_evaluated
    cpp_bool drafting
    int32_t budget            # most proposals this round
    int32_t row               # its output row in the batch
    int32_t steps             # decodes it took part in this round
    int32_t reached           # positions its memory has ever reached since it was empty
    cpp_bool in_batch
    int64_t calls             # since construction: decodes its rows were in,
    int64_t rows              # and its rows
    float chance              # that all its proposals of this round are accepted


cdef class DraftRunner(CompiledSpeculator):
    cdef readonly Context context
    cdef readonly DraftHead head        # or None: the whole head
    cdef readonly bint replay
    cdef readonly float p_min
    cdef llama_memory_t memory
    cdef llama_batch_ext * batch
    cdef int32_t n_rows                 # in batch
    cdef vector[Watermark] marks
    cdef vector[Checkpoint] saved       # per sequence, where cells can't be cut: the state behind the round's seed
    cdef bint can_cut
    cdef int32_t n_swa                  # the sliding window; 0: none
    cdef vector[Scored] best
    cdef vector[vector[float]] confidences  # per sequence, of this round's proposals
    cdef vector[float] floors           # per position: least chance worth verifying; empty: p_min decides
    cdef vector[float] onwards          # per position: least chance to go on from, a step later
    cdef vector[float] calibration      # chance of acceptance by confidence, in equal intervals
    cdef bint prepared                  # the head of this round's drafts is chosen
    cdef vector[int32_t] call_rows      # this round's decodes: rows,
    cdef vector[int64_t] call_us        # and microseconds
    cdef int32_t n_draftable            # ids below this exist in both vocabularies
    cdef int32_t capacity               # positions one sequence has
    cdef cpp_bool can_shift
    cdef int64_t calls
    cdef int64_t rows
    cdef int64_t failures
    cdef int64_t time_us
    cdef int64_t read_us                # of that, in decodes that caught up on more than a round
    cdef int64_t decode_us              # of that, inside libllama's decode

    cdef void first_step(self, vector[Sequence] * sequences) noexcept nogil
    cdef void extend(self, vector[Sequence] * sequences) noexcept nogil
    cdef void take_proposal(self, Sequence * s, llama_seq_id seq) noexcept nogil
    cdef void look(self, int32_t row) noexcept nogil
    cdef llama_token best_token(self, int32_t row) noexcept nogil
    cdef llama_token confident(self, llama_seq_id seq, size_t position) noexcept nogil
    cdef bint catch_up(self, Sequence * s, llama_seq_id seq, int32_t room) noexcept nogil
    cdef void fit_window(self, Sequence * s, llama_seq_id seq) noexcept nogil
    cdef void add(self, llama_token token, int32_t index, llama_seq_id seq, bint output) noexcept nogil
    cdef int32_t run(self) noexcept nogil
    cdef void cut(self, llama_seq_id seq, int32_t n_valid) noexcept nogil
