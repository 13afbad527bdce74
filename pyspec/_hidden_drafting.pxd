from libc.stdint cimport int32_t
from libcpp cimport bool as cpp_bool
from libcpp.vector cimport vector

from pyspec._llama cimport Context, HeadLock
from pyspec._model_drafting cimport ModelRunner
from pyspec._sequence cimport Sequence
from pyspec.libllama cimport llama_batch_ext, llama_context, llama_memory_t, llama_pos, llama_seq_id


cdef extern from "hidden_rows.hpp" namespace "pyspec" nogil:
    cdef cppclass HiddenRows:
        void set_width(int32_t width) except +
        void clear() noexcept
        cpp_bool known() noexcept
        int32_t first() noexcept
        int32_t end() noexcept
        int32_t size() noexcept
        cpp_bool has(int32_t position) noexcept
        const float * row(int32_t position) noexcept
        float * add(int32_t position) noexcept
        void drop_before(int32_t position) noexcept
        void truncate(int32_t position) noexcept
        void move(int32_t offset) noexcept
        size_t width() noexcept
        const float * data() noexcept


cdef extern from "hidden_batch.hpp" namespace "pyspec" nogil:
    cpp_bool add_features(llama_batch_ext * batch, llama_pos pos, llama_seq_id seq, cpp_bool output,
                          const float * row, size_t width) noexcept
    int32_t encode_and_wait(HeadLock & lock, llama_context * ctx, llama_batch_ext * batch) noexcept


# One sequence as the memory of one head has it: the tokens from `begin` up to `held` (excluded).
cdef struct Held:
    int32_t begin
    int32_t held
    int32_t reached           # how far the memory has ever gone since it was empty


cdef struct Head:
    llama_context * ptr
    llama_memory_t memory
    llama_batch_ext * batch


cdef class HiddenRunner(ModelRunner):
    cdef readonly list contexts         # one a head
    cdef Context target
    cdef vector[int32_t] layers         # of the target whose inputs make up a row; -1: its state for NextN layers
    cdef int32_t width                  # numbers in a row
    cdef vector[const float *] sources  # where the target's last decode left them
    cdef vector[HiddenRows] rows        # per sequence: the target's hidden states that are needed yet
    cdef int32_t n_backlog              # rows of a sequence that may wait for its next draft
    cdef int32_t lag                    # the cell of token j is made of the row of position j - lag
    cdef int32_t skipped                # first tokens that have no cell: token j is at position j - skipped
    cdef vector[Head] heads
    cdef size_t current                 # the head whose batch is being filled, or whose results are looked at
    cdef size_t n_seq
    cdef vector[Held] marks             # of head h and sequence s: h * n_seq + s
    cdef int32_t n_swa                  # the sliding window; 0: none
    cdef bint can_shift

    cdef int open_heads(self, contexts, n_backlog) except -1
    cdef int watch(self, Context target) except -1
    cdef bint find_sources(self) noexcept nogil
    cdef void copy_row(self, int32_t row, float * out) noexcept nogil
    # A text begins: what stands before its first token.
    cdef void begin_text(self, llama_seq_id seq) noexcept nogil
    # Forgets what was made of the rows of a sequence.
    cdef void forget_derived(self, llama_seq_id seq) noexcept nogil
    # The current head takes in all rows but those it needs with the next seed, though nobody drafts.
    cdef void read_on(self, llama_seq_id seq, Sequence * s) noexcept nogil
    cdef Held * mark(self, size_t head, llama_seq_id seq) noexcept nogil
    # The first position whose row is needed yet.
    cdef int32_t needed_from(self, llama_seq_id seq) noexcept nogil
    cdef bint loses_window(self, llama_seq_id seq) noexcept nogil
    cdef void align(self, llama_seq_id seq, int32_t end) noexcept nogil
    cdef void cut(self, size_t head, llama_seq_id seq, int32_t end) noexcept nogil
    cdef void drop(self, size_t head, llama_seq_id seq) noexcept nogil
    cdef void clear_batch(self) noexcept nogil
    cdef int take_back(self, int seq, object state, int n_tokens) except -1
