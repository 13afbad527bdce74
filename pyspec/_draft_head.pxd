from libc.stdint cimport int32_t, int64_t, uint8_t
from libcpp cimport bool as cpp_bool
from libcpp.memory cimport unique_ptr
from libcpp.string cimport string
from libcpp.vector cimport vector

from pyspec._llama cimport Context, HeadLock, ModelHandle
from pyspec._sequence cimport Scored, Sequence
from pyspec.libllama cimport llama_batch_ext, llama_context, llama_seq_id, llama_token


cdef extern from "vocab_slots.hpp" namespace "pyspec" nogil:
    cdef cppclass VocabSlots:
        VocabSlots() except +
        VocabSlots(vector[int32_t] ids, int32_t n_slots, int32_t n_vocab, int32_t n_seq) except +
        int32_t n_rows() noexcept
        int32_t n_fixed() noexcept
        int32_t n_slots() noexcept
        int32_t n_taken() noexcept
        int32_t id_of(int32_t row) noexcept
        int32_t row_of(int32_t id) noexcept
        cpp_bool see(int32_t seq, int32_t id) noexcept
        void leave(int32_t seq) noexcept
        void take_dirty(vector[int32_t] & rows) noexcept


cdef extern from "miss_window.hpp" namespace "pyspec" nogil:
    cdef cppclass MissWindow:
        void clear() noexcept
        void push(cpp_bool miss) noexcept
        float rate() noexcept
        cpp_bool missing(float max_miss) noexcept


cdef extern from "draft_head.hpp" namespace "pyspec::HeadGraph" nogil:
    cdef enum Kind "pyspec::HeadGraph::Kind":
        whole
        reduced
        reduced_all


cdef extern from "draft_head.hpp" namespace "pyspec" nogil:
    cdef cppclass ReducedHead:
        ReducedHead(vector[llama_context *] contexts, HeadLock & lock, const vector[int32_t] & ids,
                    const string & path, int64_t offset, cpp_bool nextn) except +
        @staticmethod
        string refusal(const llama_context * ctx, cpp_bool nextn) except +
        @staticmethod
        const char * head_name(const llama_context * ctx) noexcept
        void attach() except +
        void detach(size_t i) noexcept
        void show(Kind kind) noexcept
        cpp_bool is_reduced() noexcept
        int32_t decode(size_t i, llama_batch_ext * batch) noexcept
        int32_t logits(int32_t output, const float ** values) noexcept
        void best(int32_t output, vector[Scored] & rows) noexcept
        cpp_bool can_write() noexcept
        cpp_bool write(int32_t row, int32_t id) noexcept
        size_t bytes() noexcept


cdef class DraftHead:
    cdef readonly list contexts         # one, or one for each NextN layer that drafts
    cdef bint pairs                     # they read pairs of a token and a hidden state
    cdef bint all_outputs               # rows are only right where all of them are outputs
    cdef ModelHandle handle             # whose lock and whose head the native object uses
    cdef unique_ptr[ReducedHead] head
    cdef VocabSlots slots
    cdef vector[MissWindow] windows     # by sequence
    cdef vector[int32_t] noted          # by sequence: how many of its tokens were looked at
    cdef vector[int32_t] dirty          # scratch
    cdef vector[float] some_state       # scratch: what stands for a hidden state when heads are compared
    cdef readonly float max_miss
    cdef readonly bint whole_only       # a row could not be written: the whole head from then on
    cdef int64_t n_written
    cdef int64_t n_switches
    cdef int64_t n_seen
    cdef int64_t n_missed
    cdef int64_t n_decodes
    cdef int64_t n_reduced

    cdef int require_open(self) except -1
    cdef int enter(self) except -1
    cdef void leave(self) noexcept
    cdef void give_back(self) noexcept
    # Looks at the tokens of a sequence that it has not seen yet, the seed among them. Returns whether too many of its
    # last ones could not have been drafted.
    cdef bint note(self, llama_seq_id seq, Sequence * s) noexcept nogil
    # The round begins: which head it drafts with.
    cdef void settle(self, int32_t n_drafting, int32_t n_missing) noexcept nogil
    cdef void use(self, bint reduced_head) noexcept nogil
    cdef void forget(self, llama_seq_id seq) noexcept nogil
    cdef bint reduces(self) noexcept nogil
    # A decode of the i-th context.
    cdef int32_t decode(self, size_t i, llama_batch_ext * batch) noexcept nogil
    # The best tokens of an output of the last decode, best first, ids from n_draftable on left out.
    cdef void best(self, int32_t output, int32_t n_draftable, vector[Scored] & out) noexcept nogil
    # A row to compare heads with, on sequence 0.
    cdef void add(self, llama_batch_ext * batch, llama_token token, int32_t pos, bint output) noexcept nogil
    cdef void write_rows(self) noexcept nogil
