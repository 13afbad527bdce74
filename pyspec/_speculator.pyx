"""What the decoder asks of a speculator that runs without the GIL, for all sequences at once.

A round calls, in this order: ``propose`` (only while a sequence has no draft), ``observe``, ``committed`` or
``dropped``; the end of a request calls ``forget``. A subclass overrides what concerns it.
"""

from libc.stdint cimport int32_t
from libcpp.vector cimport vector

from pyspec._sequence cimport Sequence
from pyspec.libllama cimport llama_seq_id


cdef class CompiledSpeculator:
    """A speculator in compiled code.

    Attributes:
        name: under which its drafts appear in results and statistics.
        n_max: longest draft it submits.
        n_min: shortest draft it submits; shorter ones are discarded and counted.
    """

    cdef int enter(self) except -1:
        return 0

    cdef void leave(self) noexcept:
        pass

    cdef void propose(self, vector[Sequence] * sequences) noexcept nogil:
        pass

    cdef void observe(self, vector[Sequence] * sequences, int32_t n_target_rows) noexcept nogil:
        pass

    cdef void committed(self, llama_seq_id seq, Sequence * s, int32_t n_before, bint own) noexcept nogil:
        pass

    cdef void dropped(self, llama_seq_id seq) noexcept nogil:
        pass

    cdef void forget(self, llama_seq_id seq) noexcept nogil:
        pass

    cdef int check_sequence(self, llama_seq_id seq, Sequence * s) except -1:
        return 0

    def counts(self):
        """Work and time since construction, by name."""
        return {}
