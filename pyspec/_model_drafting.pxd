from libc.stdint cimport int32_t, int64_t
from libcpp cimport bool as cpp_bool
from libcpp.vector cimport vector

from pyspec._draft_head cimport DraftHead
from pyspec._llama cimport Context
from pyspec._sequence cimport Scored, Sequence
from pyspec._speculator cimport CompiledSpeculator, DraftWork
from pyspec.libllama cimport llama_seq_id, llama_token


# What a decode returns after its abort callback said stop: not the draft's fault.
cdef enum:
    ABORTED = 2


# One sequence in a round of drafting, and what it has had a part in since construction.
cdef struct Drafting:
    cpp_bool active           # it wants another proposal
    int32_t budget            # most proposals this round
    int32_t row               # its output row in the batch
    int32_t steps             # decodes it took part in this round
    float chance              # that all its proposals of this round are accepted
    cpp_bool in_batch
    int64_t calls             # since construction: decodes its rows were in,
    int64_t rows              # and its rows


cdef class ModelRunner(CompiledSpeculator):
    cdef readonly Context context
    cdef readonly float p_min
    cdef readonly DraftHead head        # or None: the whole head
    cdef bint prepared                  # the head of this round's drafts is chosen
    cdef int32_t n_draftable            # ids below this exist in both vocabularies
    cdef llama_token never              # an id that is never proposed; -1: none
    cdef int32_t n_rows                 # in the batch
    cdef vector[Drafting] drafting
    cdef vector[Scored] best
    cdef vector[vector[float]] confidences  # per sequence, of this round's proposals
    cdef vector[float] floors           # per position: least chance worth verifying; empty: p_min decides
    cdef vector[float] onwards          # per position: least chance to go on from, a step later
    cdef vector[float] calibration      # chance of acceptance by confidence, in equal intervals
    cdef vector[int32_t] call_rows      # this round's decodes: rows,
    cdef vector[int64_t] call_us        # and microseconds
    cdef int64_t calls
    cdef int64_t rows
    cdef int64_t failures
    cdef int64_t time_us
    cdef int64_t read_us                # of that, in decodes that caught up on more than a round
    cdef int64_t decode_us              # of that, inside libllama

    cdef int set_up(self, Context context, int n_vocab_target, int n_max, int n_min, float p_min) except -1
    # Drafts with a reduced head of its contexts, if it is given one.
    cdef int take_head(self, DraftHead head, contexts) except -1
    # Chooses the head by those that draft, where it was not chosen by all that could.
    cdef void settle_head(self, vector[Sequence] * sequences) noexcept nogil
    # Marks who drafts this round; returns how many.
    cdef int32_t open_round(self, vector[Sequence] * sequences) noexcept nogil
    # Whether the sequence can draft at all, with what is known of it.
    cdef bint can_draft(self, llama_seq_id seq, Sequence * s) noexcept nogil
    cdef void take_proposal(self, Sequence * s, llama_seq_id seq) noexcept nogil
    # Takes back a draft that is shorter than n_min, and counts it; returns whether it was.
    cdef bint discard_short(self, Sequence * s) noexcept nogil
    cdef const float * logits_of(self, int32_t row) noexcept nogil
    cdef void look(self, int32_t row, int32_t n) noexcept nogil
    cdef llama_token best_token(self, int32_t row) noexcept nogil
    cdef llama_token confident(self, llama_seq_id seq, size_t position) noexcept nogil
    cdef llama_token sure(self, llama_seq_id seq, size_t position, float p, llama_token token) noexcept nogil
    # Notes that a row of the sequence is in the batch.
    cdef void count_row(self, llama_seq_id seq) noexcept nogil
    # Computes the batch and empties it: libllama's code. `run` also times and counts that.
    cdef int32_t compute(self) noexcept nogil
    cdef int32_t run(self) noexcept nogil
    # What `time_decodes` of a subclass does once it has looked at its parameters; `add_trial` fills the batch for it,
    # with so many rows on sequence 0, and chooses the output head where there is a choice.
    cdef object timed(self, int32_t rows, int repetitions, bint reduced)
    cdef void add_trial(self, int32_t rows, bint reduced) noexcept nogil
