from libc.stdint cimport int32_t, int64_t
from libcpp.vector cimport vector

from pyspec._constraints cimport Constraints
from pyspec._exact_rows cimport ExactRows
from pyspec._llama cimport Context
from pyspec._sequence cimport Checkpoint, Sequence, SyntheticAcceptance
from pyspec.libllama cimport llama_batch_ext, llama_memory_t, llama_seq_id


cdef class Decoder:
    cdef readonly Context target
    cdef readonly list speculators
    cdef vector[int32_t] winner         # per sequence: which speculator's draft this round's is; -1: nobody's
    cdef llama_memory_t memory
    cdef llama_batch_ext * batch
    cdef int32_t n_rows                 # in batch
    cdef int32_t n_outputs
    cdef int32_t n_company              # of its rows, those that are thrown away
    cdef int32_t n_vocab
    cdef vector[Sequence] sequences
    cdef vector[llama_seq_id] order     # of the sequences in the batch
    cdef list borrowed                  # per sequence: the Python samplers its pointers belong to
    cdef Constraints constraints        # what texts have to follow
    cdef ExactRows exact                # how wide decodes may be
    cdef bint checked
    cdef readonly str rollback          # "cut", "snapshots" or "checkpoint": how rejected rows leave the target's memory
    cdef int32_t n_cuttable             # rows that can be cut after a decode which held them and one more
    cdef int32_t n_swa                  # the sliding window; 0: none
    cdef bint on_device                 # checkpoints stay on the device
    cdef vector[Checkpoint] saved       # per sequence
    cdef vector[llama_seq_id] restored  # sequences that have to read their accepted tokens again
    cdef int64_t n_checkpoints
    cdef int64_t n_restores
    cdef int64_t replayed_rows
    cdef int64_t checkpoint_us          # saving, restoring, reading again
    cdef SyntheticAcceptance synthetic
    cdef int64_t calls
    cdef int64_t rows
    cdef int64_t verify_us
    cdef int64_t last_us                # of that, the last decode
    cdef int64_t sampling_us
    cdef vector[int64_t] settled        # what `spent` has told already

    cdef int enter(self, bint replaces_results) except -1
    cdef int64_t since_settled(self, size_t which, int64_t total)
    cdef void leave(self, int n_entered=*) noexcept
    cdef Sequence * sequence(self, int seq) except NULL
    cdef void drop_winners(self) noexcept nogil
    cdef void fill_batch(self) noexcept nogil
    cdef void arrange(self) noexcept nogil
    cdef bint reads_in_batch(self, llama_seq_id seq) noexcept nogil
    cdef int require_room(self) except -1
    cdef int32_t decode_and_choose(self) noexcept nogil
    cdef void save_checkpoints(self) noexcept nogil
    cdef void read_accepted_again(self) noexcept nogil
    cdef void read_from_the_start(self, llama_seq_id seq)
    cdef bint cut_memory(self, llama_seq_id seq, int32_t n_tokens) noexcept nogil
    cdef void choose_tokens(self, llama_seq_id seq) noexcept nogil
    cdef int give_back(self, int seq) except -1
    cdef bint accept_at_random(self, Sequence * s, int32_t row) noexcept nogil
    cdef void commit(self, llama_seq_id seq) noexcept nogil
    cdef void commit_all(self)
    cdef void roll_back(self)
