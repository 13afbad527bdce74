# The C-level contract of the binding: what other compiled modules may touch.
# Everything else about these classes is in the .pxi files under binding/.

from libc.stdint cimport int32_t, uint32_t
from libcpp cimport bool as cpp_bool
from libcpp.atomic cimport atomic
from libcpp.vector cimport vector

from pyspec.libllama cimport (
    llama_batch_ext,
    llama_context,
    llama_memory_t,
    llama_model,
    llama_sampler,
    llama_token,
    llama_vocab,
)


cdef extern from "head_lock.hpp" namespace "pyspec" nogil:
    cdef cppclass HeadLock:
        pass


cdef class ModelHandle:
    """Owns a llama_model; freed when the last Model, Vocab, Context or Sampler lets go of it."""
    cdef llama_model * ptr
    cdef const llama_vocab * vocab
    cdef readonly bint has_weights
    cdef readonly bint has_mtp
    cdef bint repacked                 # weights may be in a layout that cannot be read back
    cdef HeadLock head_lock            # held by every call that builds a graph; see native/head_lock.hpp


cdef class Model:
    cdef ModelHandle handle            # None once closed
    cdef readonly str path
    cdef readonly dict load_params     # where and with which kernels it is computed
    cdef dict __dict__

    cdef ModelHandle use(self)         # the handle, or raises Closed


cdef class Vocab:
    cdef ModelHandle handle
    cdef readonly int n_tokens

    cdef llama_token check(self, object token) except? -1
    cdef int require(self) except -1
    cdef int check_special(self) except -1
    cdef list split(self, bytes text, cpp_bool add_special, cpp_bool parse_special)


cdef class Context:
    # NULL once freed. A context that is closed while a call, a view or another context needs it stays
    # alive, unusable, until they are done: use enter() rather than this to see whether it is open.
    cdef llama_context * ptr
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
    cdef readonly bint kv_unified
    cdef readonly bint swa_full
    cdef readonly bint can_shift       # positions can be shifted; more than llama_memory_can_shift() knows
    cdef readonly str ctx_type
    cdef readonly Context ctx_other    # kept alive: this context reads its weights or memory
    cdef atomic[int] abort_flag        # polled by the backend during a decode; non-zero stops it
    cdef int n_views                   # zero-copy views of results that are alive
    cdef int n_dependents              # contexts whose ctx_other this is
    cdef bint in_use                   # a call of another thread is inside libllama
    cdef bint closing                  # close() was called
    cdef bint watching                 # SIGINT sets abort_flag for the time of this call
    cdef object broken                 # why libllama's state is not to be trusted any more, or None
    cdef dict samplers                 # sequence: the SamplerChain attached to it
    cdef object samplers_taken         # why no others can be attached, or None
    cdef bint embeddings_on            # every row is an output
    cdef bint pools_all_rows           # which bounds n_ubatch and n_outputs_max while embeddings are on
    cdef bint encoded                  # encode() has run (the decoder of T5 needs it)
    cdef bint nextn_on
    cdef bint nextn_masked
    cdef vector[char] layer_inputs     # per layer: 1 wanted, 2 wanted and computed
    cdef dict device_saves             # sequence: serial number of its latest on-device state
    cdef int save_serial
    cdef object __weakref__

    # Enter and leave a call into libllama: raise Closed, Busy, or (when the call replaces results)
    # BufferInUse. Called with the GIL held, the work between them runs without it.
    #
    # While the main thread is between the two, SIGINT makes a running decode return 2 (aborted). Call
    # PyErr_CheckSignals() before turning that into an exception: it raises KeyboardInterrupt instead.
    cdef int enter(self, bint replaces_results) except -1
    cdef void leave(self) noexcept
    cdef void release(self) noexcept   # free what was closed meanwhile, if nobody needs it any more
    cdef void computed(self) noexcept  # after a successful decode: layer inputs are there
    cdef int settle(self) except -1    # before a setting changes what results there are
    cdef str model_arch(self)


# Enter several at once, or none of them; and leave them.
cdef int enter_all(list contexts) except -1
cdef void leave_all(list contexts) noexcept


cdef class Sampler:
    cdef llama_sampler * ptr           # NULL once closed or moved into a chain
    cdef bint owned
    cdef readonly str name
    cdef ModelHandle handle            # kept alive: the sampler points into the vocabulary
    cdef int32_t n_vocab               # token ids it takes are below this; 0: any
    cdef str kind                      # the constructor's name
    cdef int32_t k                     # of top_k
    cdef object spent                  # why it must not be used until reset() or ever, or None
    cdef object __weakref__

    cdef llama_sampler * use(self) except NULL
    cdef int check_token(self, object token) except -1


cdef class SamplerChain(Sampler):
    cdef list members
    cdef readonly bint has_selector    # the last member picks a token (greedy, dist, mirostat, adaptive_p)
    cdef object attached_to            # weak reference to the Context it runs on, or None
    cdef vector[char] scratch          # llama_token_data of one row

    cdef object context(self)          # the Context it is attached to, or None
    cdef int need_detached(self, str what) except -1
    cdef int describe(self) except -1
    cdef list names(self)
    cdef int forget_all_pending(self) except -1
    cdef llama_token choose(self, Context context, int32_t row, object i) except -1
