# The C++ that the compiled layers share (native/*.hpp): choosing tokens, and the state of a sequence.

from libc.stdint cimport int32_t, int64_t, uint32_t
from libcpp cimport bool as cpp_bool
from libcpp.string cimport string
from libcpp.vector cimport vector

from pyspec._llama cimport HeadLock
from pyspec.libllama cimport (
    llama_batch_ext,
    llama_batch_ext_add_token,
    llama_batch_ext_set_output_logits,
    llama_batch_ext_set_pos,
    llama_context,
    llama_pos,
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
    const int32_t n_confidence
    float confidence(const vector[Scored] & best) noexcept


cdef extern from "guarded.hpp" namespace "pyspec" nogil:
    int32_t decode_and_wait(HeadLock & lock, llama_context * ctx, llama_batch_ext * batch) noexcept


cdef extern from "hidden_batch.hpp" namespace "pyspec" nogil:
    cpp_bool add_pair(llama_batch_ext * batch, llama_token token, llama_pos pos, llama_seq_id seq, cpp_bool output,
                      const float * row, size_t width) noexcept


cdef extern from "checkpoint.hpp" namespace "pyspec" nogil:
    cdef cppclass Checkpoint:
        cpp_bool save(llama_context * ctx, llama_seq_id seq, int32_t n_tokens, cpp_bool on_device) noexcept
        cpp_bool restore(llama_context * ctx, llama_seq_id seq) noexcept
        int32_t n_tokens() noexcept
        int64_t bytes() noexcept
        void clear() noexcept


cdef extern from "row_sampler.hpp" namespace "pyspec" nogil:
    cdef cppclass TokenLogprobs:
        float chosen
        vector[Scored] top

    cdef cppclass RowSampler:
        llama_sampler * chain
        llama_sampler * grammar
        cpp_bool argmax_always
        cpp_bool argmax_unless_altered
        int32_t preselect
        int32_t history
        cpp_bool needs_accept
        vector[llama_token] biased
        cpp_bool coupled
        uint32_t seed
        cpp_bool dead_end
        void see_prompt(const vector[llama_token] & tokens) except +
        llama_token sample(const float * logits, int32_t n_vocab, const uint32_t * mask, string & error) noexcept
        int32_t fitting(const vector[llama_token] & draft) noexcept
        int32_t n_alike() noexcept
        llama_token draw_alike(const vector[Scored] & best, int32_t ahead) noexcept
        void sampled_logprobs(llama_token chosen, int32_t n_top, TokenLogprobs & out) noexcept
        void logprobs(const float * logits, int32_t n_vocab, llama_token chosen, int32_t n_top,
                      TokenLogprobs & out) noexcept


cdef extern from "synthetic.hpp" namespace "pyspec" nogil:
    cdef cppclass SyntheticAcceptance:
        void set(const vector[float] & conditional, uint32_t seed) except +
        cpp_bool active() noexcept
        cpp_bool accepts(int32_t position) noexcept


cdef extern from "sequence.hpp" namespace "pyspec" nogil:
    cdef cppclass Sequence:
        cpp_bool active
        int32_t furthest
        vector[llama_token] tokens
        vector[llama_token] pending
        llama_token seed
        RowSampler sampler
        vector[llama_token] stop_tokens
        int32_t n_logprobs
        cpp_bool sampled_logprobs
        cpp_bool constrained
        string refusal

        cpp_bool planned
        int32_t budget
        int32_t prompt_rows

        vector[llama_token] draft
        int32_t n_discarded
        int32_t n_refused
        const uint32_t * masks
        int32_t mask_words
        int32_t first_row
        int32_t n_rows

        vector[llama_token] emitted
        vector[TokenLogprobs] logprobs
        int32_t n_accepted
        string error
        cpp_bool dead_end

        void reset() noexcept
        void release() noexcept
        void begin_round() noexcept
        cpp_bool generating() noexcept
        cpp_bool chooses() noexcept
        void refuse_from(int32_t n) noexcept
        cpp_bool stops_at(llama_token id) noexcept


cdef inline int32_t add_row(
    llama_batch_ext * batch, llama_token token, llama_pos pos, llama_seq_id seq, bint output
) noexcept nogil:
    cdef int32_t row = llama_batch_ext_add_token(batch, seq, token)
    llama_batch_ext_set_pos(batch, row, &pos)
    if output:
        llama_batch_ext_set_output_logits(batch, row, True)
    return row
