# The hot path's data, and the C++ it is written over (native/*.hpp).

from libc.stdint cimport int32_t, int64_t
from libcpp cimport bool as cpp_bool
from libcpp.string cimport string
from libcpp.vector cimport vector

from pyspec._llama cimport Context
from pyspec.libllama cimport (
    llama_batch_ext,
    llama_context,
    llama_memory_t,
    llama_sampler,
    llama_seq_id,
    llama_token,
)


cdef extern from "select.hpp" namespace "pyspec" nogil:
    cdef struct Scored:
        int32_t id
        float logit

    int32_t argmax(const float * x, int32_t n) noexcept
    void top_k(const float * x, int32_t n, int32_t k, vector[Scored] & out) noexcept
    float confidence(const vector[Scored] & best) noexcept


cdef extern from "guarded.hpp" namespace "pyspec" nogil:
    int32_t decode_and_wait(llama_context * ctx, llama_batch_ext * batch) noexcept


cdef extern from "row_sampler.hpp" namespace "pyspec" nogil:
    cdef cppclass TokenLogprobs:
        float chosen
        vector[Scored] top

    cdef cppclass RowSampler:
        llama_sampler * chain
        llama_sampler * grammar
        cpp_bool use_argmax
        int32_t preselect
        int32_t history
        cpp_bool needs_accept
        vector[llama_token] biased
        void see_prompt(const vector[llama_token] & tokens) except +
        llama_token sample(const float * logits, int32_t n_vocab, string & error) noexcept
        void logprobs(const float * logits, int32_t n_vocab, llama_token chosen, int32_t n_top,
                      TokenLogprobs & out) noexcept


cdef extern from "sequence.hpp" namespace "pyspec" nogil:
    cdef cppclass Sequence:
        cpp_bool active
        vector[llama_token] tokens
        vector[llama_token] pending
        llama_token seed
        int32_t synced
        int32_t draft_gap
        RowSampler sampler
        vector[llama_token] stop_tokens
        int32_t n_logprobs

        int32_t budget
        int32_t prompt_rows

        vector[llama_token] draft
        cpp_bool seed_evaluated
        int32_t n_evaluated
        cpp_bool drafting
        int32_t draft_row
        int32_t first_row
        int32_t n_rows
        int32_t n_discarded

        vector[llama_token] emitted
        vector[TokenLogprobs] logprobs
        int32_t n_accepted
        string error

        void reset() noexcept
        void begin_round() noexcept
        cpp_bool generating() noexcept
        cpp_bool stops_at(llama_token id) noexcept


cdef struct Counters:
    int64_t target_calls
    int64_t target_rows
    int64_t draft_calls
    int64_t draft_rows
    int64_t draft_failures
    int64_t draft_us
    int64_t verify_us
    int64_t sampling_us


cdef class Decoder:
    cdef readonly Context target
    cdef readonly Context draft
    cdef readonly bint replay
    cdef llama_memory_t target_memory
    cdef llama_memory_t draft_memory
    cdef llama_batch_ext * target_batch
    cdef llama_batch_ext * draft_batch
    cdef int32_t n_target_rows          # in target_batch
    cdef int32_t n_target_outputs
    cdef int32_t n_draft_rows           # in draft_batch
    cdef vector[Sequence] sequences
    cdef list borrowed                  # per sequence: the Python samplers its pointers belong to
    cdef vector[Scored] best
    cdef Counters counters
    cdef int32_t n_vocab
    cdef int32_t n_draftable            # ids below this exist in both vocabularies
    cdef int32_t draft_capacity         # positions one sequence has in the draft's memory
    cdef cpp_bool draft_can_shift
    cdef float p_min
    cdef int32_t n_min
    cdef bint checked

    cdef Sequence * sequence(self, int seq) except NULL

    cdef void c_propose(self) noexcept nogil
    cdef void first_step(self) noexcept nogil
    cdef void extend_drafts(self) noexcept nogil
    cdef void take_proposal(self, llama_seq_id seq) noexcept nogil
    cdef bint catch_up(self, llama_seq_id seq, int32_t room) noexcept nogil
    cdef void fit_draft_window(self, llama_seq_id seq) noexcept nogil

    cdef int32_t c_verify(self) noexcept nogil
    cdef void fill_target_batch(self) noexcept nogil
    cdef void choose_tokens(self, llama_seq_id seq) noexcept nogil
    cdef void commit(self, llama_seq_id seq) noexcept nogil
    cdef void roll_back(self) noexcept nogil
    cdef void replay_on_draft(self) noexcept nogil

    cdef void add_draft_row(self, llama_token token, int32_t index, llama_seq_id seq, bint output) noexcept nogil
    cdef int32_t run_draft(self) noexcept nogil
    cdef void cut_draft(self, llama_seq_id seq, int32_t n_valid) noexcept nogil
    cdef void forget_draft(self, llama_seq_id seq) noexcept nogil
