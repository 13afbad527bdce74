# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The grammars of a decoder's sequences: where drafts end, which tokens may be chosen, and what was.

A plan's grammar sampler is libllama's and works row by row. A plan's constraint is Python's and works once a round: it
says where a draft has to end, gives a mask for the row behind each token of what is left, and is told what was emitted.
(pyspec.sampling.constraint has the kinds there are; the methods used here are `fitting`, `accept`, `forced` and its
masker's `fill`.)
"""

from libc.stdint cimport int32_t, int64_t, uint32_t
from libcpp.vector cimport vector

from pyspec._llama cimport Sampler
from pyspec._sequence cimport Sequence
from pyspec.libllama cimport llama_seq_id, llama_time_us


cdef class Constraints:
    """What the texts of a decoder's sequences have to follow.

    Args:
        n_seq: sequences.
        n_vocab: tokens of the vocabulary, which a mask has a bit for each of.
    """

    def __cinit__(self, int n_seq, int32_t n_vocab):
        self.n_vocab = n_vocab
        self.constraints = [None] * n_seq
        self.started = [None] * n_seq
        self.mask_rows = [None] * n_seq

    cdef int begin(self, llama_seq_id seq, Sequence * s, constraint) except -1:
        self.constraints[seq] = constraint
        s.constrained = constraint is not None
        return 0

    cdef int end(self, llama_seq_id seq) except -1:
        self.constraints[seq] = None
        self.started[seq] = None
        self.mask_rows[seq] = None
        return 0

    cdef bint any(self, vector[Sequence] * sequences) noexcept nogil:
        cdef size_t seq
        for seq in range(sequences.size()):
            if sequences.at(seq).constrained:
                return True
        return False

    cdef bint needs_masks(self, llama_seq_id seq, Sequence * s):
        return (s.active and s.planned and s.constrained and s.masks == NULL and s.chooses() and s.refusal.empty()
                and self.constraints[seq].masker is not None)

    cdef void fit(self, Sequence * s) noexcept nogil:
        cdef int64_t t0
        cdef int32_t n
        if s.sampler.grammar == NULL:
            return
        t0 = llama_time_us()
        n = s.sampler.fitting(s.draft)
        if n < <int32_t> s.draft.size():
            s.refuse_from(n)
        self.us += llama_time_us() - t0

    cdef int constrain(self, list seqs, vector[Sequence] * sequences) except -1:
        cdef int64_t t0 = llama_time_us()
        cdef list masked = []
        cdef Sequence * s
        cdef const uint32_t[:, ::1] rows
        cdef int32_t n
        for seq in seqs:
            if self.constraints[seq].masker is None:
                s = &sequences.at(<size_t> seq)
                n = self.constraints[seq].fitting(s.draft)
                if n < <int32_t> s.draft.size():
                    s.refuse_from(n)
            else:
                masked.append(seq)
        if masked:
            masker = self.constraints[masked[0]].masker
            filled = masker.fill([(self.constraints[seq], sequences.at(<size_t> seq).draft) for seq in masked])
            for seq, (mask_rows, n_fitting) in zip(masked, filled):
                s = &sequences.at(<size_t> seq)
                rows = mask_rows
                if rows.shape[0] <= n_fitting or 32 * rows.shape[1] < self.n_vocab:
                    raise AssertionError(f"masks of shape {mask_rows.shape} for a draft of {n_fitting}")
                self.mask_rows[seq] = mask_rows
                s.masks = &rows[0, 0]
                s.mask_words = <int32_t> rows.shape[1]
                if n_fitting < <int32_t> s.draft.size():
                    s.refuse_from(n_fitting)
                self.take_refusal(seq, s)
        self.us += llama_time_us() - t0
        return 0

    cdef list forced(self, llama_seq_id seq, int32_t budget):
        return self.constraints[seq].forced(budget)

    cdef int follow(self, vector[Sequence] * sequences) except -1:
        cdef int64_t t0 = llama_time_us()
        cdef llama_seq_id seq
        cdef Sequence * s
        for seq in range(<llama_seq_id> sequences.size()):
            s = &sequences.at(seq)
            if not s.constrained or s.n_rows == 0 or s.emitted.empty():
                continue
            constraint = self.constraints[seq].accept(s.emitted)
            if isinstance(constraint, Sampler):
                s.sampler.grammar = (<Sampler> constraint).use()
                s.constrained = False
                self.started[seq] = constraint
                self.constraints[seq] = None
            else:
                self.constraints[seq] = constraint
                self.take_refusal(seq, s)
        self.us += llama_time_us() - t0
        return 0

    cdef int take_refusal(self, llama_seq_id seq, Sequence * s) except -1:
        error = self.constraints[seq].error
        if error is not None:
            s.refusal = error.encode()
        return 0
