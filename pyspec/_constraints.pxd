from libc.stdint cimport int32_t, int64_t
from libcpp.vector cimport vector

from pyspec._sequence cimport Sequence
from pyspec.libllama cimport llama_seq_id


cdef class Constraints:
    cdef int32_t n_vocab
    cdef list constraints               # per sequence: the constraint its text follows, or None
    cdef list started                   # per sequence: the grammar sampler that a constraint became, or None
    cdef list mask_rows                 # per sequence: the array its masks are in
    cdef int64_t us                     # fitting drafts, masks

    # A request begins on a sequence; it is over.
    cdef int begin(self, llama_seq_id seq, Sequence * s, constraint) except -1
    cdef int end(self, llama_seq_id seq) except -1
    # Whether any sequence has a constraint.
    cdef bint any(self, vector[Sequence] * sequences) noexcept nogil
    # It chooses a token this round, and nobody has worked out yet which ones may be chosen.
    cdef bint needs_masks(self, llama_seq_id seq, Sequence * s)
    # Ends a draft before the first token that a grammar sampler refuses.
    cdef void fit(self, Sequence * s) noexcept nogil
    # Masks for what stands behind the seed and each drafted token of these sequences; their drafts end before a token
    # that may not stand there.
    cdef int constrain(self, list seqs, vector[Sequence] * sequences) except -1
    # Tokens there is no choice about, `budget` of them at most.
    cdef list forced(self, llama_seq_id seq, int32_t budget)
    # Tells the constraints what was emitted; of those that waited, some may have become what they waited for.
    cdef int follow(self, vector[Sequence] * sequences) except -1
    # What ends the request, if the constraint can't go on.
    cdef int take_refusal(self, llama_seq_id seq, Sequence * s) except -1
