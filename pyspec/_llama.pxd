# The C-level contract of the binding: what other compiled modules may touch.
# Everything else about these classes is in the .pxi files under binding/.

from libc.stdint cimport int32_t, uint32_t
from libcpp.atomic cimport atomic

from pyspec.libllama cimport (
    llama_batch_ext,
    llama_context,
    llama_memory_t,
    llama_model,
    llama_sampler,
    llama_vocab,
)


cdef class ModelHandle:
    """Owns a llama_model; freed when the last Model, Vocab or Context lets go of it."""
    cdef llama_model * ptr
    cdef const llama_vocab * vocab
    cdef readonly bint has_weights
    cdef readonly bint has_mtp


cdef class Model:
    cdef ModelHandle handle            # None once closed
    cdef readonly str path
    cdef dict __dict__

    cdef ModelHandle use(self)         # the handle, or raises Closed


cdef class Vocab:
    cdef ModelHandle handle
    cdef readonly int n_tokens


cdef class Context:
    cdef llama_context * ptr           # NULL once closed
    cdef llama_memory_t memory_ptr     # NULL where the architecture has no memory
    cdef ModelHandle handle
    cdef readonly Model model
    cdef readonly uint32_t n_ctx
    cdef readonly uint32_t n_ctx_seq
    cdef readonly uint32_t n_batch
    cdef readonly uint32_t n_ubatch
    cdef readonly uint32_t n_seq_max
    cdef readonly uint32_t n_rs_seq
    cdef readonly uint32_t n_outputs_max
    cdef readonly uint32_t n_outputs_max_per_seq
    cdef readonly uint32_t n_vocab
    cdef atomic[int] abort_flag        # polled by the backend during a decode; non-zero stops it
    cdef int n_views                   # zero-copy views of results that are alive
    cdef bint in_use                   # a call of another thread is inside libllama
    cdef object __weakref__

    # Enter and leave a call into libllama: raise Closed, Busy, or (when the call replaces results)
    # BufferInUse. Called with the GIL held, the work between them runs without it.
    cdef int enter(self, bint replaces_results) except -1
    cdef void leave(self) noexcept


cdef class Sampler:
    cdef llama_sampler * ptr           # NULL once closed or moved into a chain
    cdef bint owned
    cdef readonly str name


cdef class SamplerChain(Sampler):
    cdef list members
    cdef readonly bint has_selector    # the last member picks a token (greedy, dist, mirostat, adaptive_p)
    cdef object attached_to            # the Context it runs on as a backend sampler, or None
