"""What the decoder asks of a speculator that runs without the GIL, for all sequences at once.

A round calls, in this order: ``prepare`` (where lengths are adaptive), ``propose`` (only while a sequence has no draft), ``observe``, ``committed`` or
``dropped``; the end of a request calls ``forget``, or ``released`` where what it left in the memories stays. A subclass overrides what concerns it.
"""

from libc.stdint cimport int32_t
from libcpp.vector cimport vector

from pyspec._llama cimport Context
from pyspec._sequence cimport Sequence
from pyspec.libllama cimport (
    llama_get_causal_attn,
    llama_model,
    llama_model_has_decoder,
    llama_model_has_encoder,
    llama_seq_id,
)

from pyspec.errors import StateError, UnsupportedModel


cdef int require_left_to_right(Context context) except -1:
    cdef const llama_model * model = context.handle.ptr
    why = None
    if context.ctx_type == "mtp" or context.model_arch() in ("eagle3", "dflash"):
        why = "it drafts from a target's hidden states, not from tokens"
    elif llama_model_has_encoder(model) or not llama_model_has_decoder(model):
        why = "it has an encoder"
    elif context.memory_ptr == NULL or not llama_get_causal_attn(context.ptr):
        why = "it is an encoder, whose tokens see what comes after them"
    if why is not None:
        raise UnsupportedModel(
            f"{context.model.path} ({context.model_arch()}) can't write from left to right by itself: {why}")
    return 0


cdef class CompiledSpeculator:
    """A speculator in compiled code.

    Attributes:
        name: under which its drafts appear in results and statistics.
        n_max: longest draft it submits.
        n_min: shortest draft it submits; shorter ones are discarded and counted.
    """

    cdef int require_target(self, Context target) except -1:
        return 0

    cdef int enter(self) except -1:
        return 0

    cdef void leave(self) noexcept:
        pass

    cdef void prepare(self, vector[Sequence] * sequences) noexcept nogil:
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

    cdef void released(self, llama_seq_id seq) noexcept nogil:
        # The request is over; another may go on from what it left. Who keeps nothing for that forgets it.
        self.forget(seq)

    cdef int32_t reads_again(self, llama_seq_id seq, int32_t n_tokens) noexcept nogil:
        return 0

    cdef void rewind(self, llama_seq_id seq, int32_t n_tokens, int32_t n_common) noexcept nogil:
        # A released sequence is cut to its first tokens.
        self.forget(seq)

    cdef void shifted(self, llama_seq_id seq, int32_t n_keep, int32_t n_discard) noexcept nogil:
        # Committed tokens in the middle are gone, those behind them have moved up.
        self.forget(seq)

    cdef DraftWork work_done(self) noexcept nogil:
        return DraftWork(0, 0, 0, 0)

    cdef int check_sequence(self, llama_seq_id seq, Sequence * s) except -1:
        return 0

    def save(self, int seq):
        """What it keeps of a sequence, as bytes for `load`, or None."""
        return None

    def load(self, int seq, state, int n_tokens):
        """Takes back what `save` gave, for a sequence of so many tokens.

        Raises:
            StateError: the bytes are damaged, or somebody else's. It keeps nothing of the sequence then.
        """
        raise StateError(f"{self.name} keeps nothing that could be restored")

    def counts(self):
        """Work and time since construction, by name."""
        return {}
