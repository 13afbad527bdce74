# Drafting without a model: what the n-gram methods of native/ngram_*.hpp are to Cython.

from libc.stdint cimport int32_t, int64_t
from libcpp cimport bool as cpp_bool
from libcpp.memory cimport shared_ptr
from libcpp.string cimport string
from libcpp.vector cimport vector

from pyspec._sequence cimport Sequence
from pyspec._speculator cimport CompiledSpeculator, DraftWork
from pyspec.libllama cimport llama_token


cdef extern from "ngram_drafter.hpp" namespace "pyspec" nogil:
    cdef cppclass NgramDrafter:
        pass

    cdef cppclass NgramTally:
        int64_t proposals
        int64_t drafts
        int64_t drafted
        int64_t discarded
        int64_t rebuilds
        int64_t detached
        int64_t failures
        int64_t propose_ns
        int64_t index_ns


cdef extern from "ngram_sequences.hpp" namespace "pyspec" nogil:
    cdef cppclass NgramSequences:
        NgramTally tally
        void add(NgramDrafter * drafter) except +
        int32_t size()
        void see(int32_t seq, const vector[llama_token] & tokens, llama_token seed, cpp_bool writing) noexcept
        int32_t propose(int32_t seq, const vector[llama_token] & tokens, llama_token seed, int32_t n_min,
                        int32_t n_max, vector[llama_token] & out) noexcept
        void settle(int32_t seq, int32_t submitted, int32_t accepted) noexcept
        void forget(int32_t seq) noexcept
        int64_t n_known(int32_t seq, const vector[llama_token] & tokens, llama_token seed)


cdef extern from "ngram_simple.hpp" namespace "pyspec" nogil:
    cdef cppclass SimpleDrafter(NgramDrafter):
        SimpleDrafter(int32_t size_n, int32_t size_m, int32_t min_hits) except +


cdef extern from "ngram_map_k.hpp" namespace "pyspec" nogil:
    cdef cppclass MapKDrafter(NgramDrafter):
        MapKDrafter(int32_t size_n, int32_t size_m, int32_t min_hits) except +


cdef extern from "ngram_map_k4v.hpp" namespace "pyspec" nogil:
    cdef cppclass MapK4VDrafter(NgramDrafter):
        MapK4VDrafter(int32_t size_n, int32_t size_m, int32_t min_hits) except +


cdef extern from "ngram_pool.hpp" namespace "pyspec" nogil:
    cdef cppclass NgramPool:
        NgramPool() except +


cdef extern from "ngram_mod.hpp" namespace "pyspec" nogil:
    cdef cppclass ModDrafter(NgramDrafter):
        ModDrafter(int32_t n_match, shared_ptr[NgramPool] shared) except +


cdef extern from "ngram_counts.hpp" namespace "pyspec" nogil:
    cdef cppclass Ngram:
        llama_token & operator[](size_t)
        void fill(llama_token)

    cdef cppclass NgramEntry "pyspec::NgramCounts::Entry":
        Ngram ngram
        int64_t total
        llama_token best
        int32_t newest

    cdef cppclass NgramSuccessor "pyspec::NgramCounts::Successor":
        llama_token token
        int32_t count
        int32_t next

    cdef cppclass NgramCounts:
        NgramCounts() except +
        const vector[NgramEntry] & entries()
        const NgramSuccessor & successor(int32_t)
        const NgramEntry * find(const Ngram & ngram)
        cpp_bool add(const Ngram & ngram, llama_token token, int32_t n) except +
        void add_all(const vector[llama_token] & history, size_t i, int32_t low, int32_t high) except +
        void merge(const NgramCounts & other) except +


cdef extern from "ngram_cache.hpp" namespace "pyspec" nogil:
    cdef cppclass CacheDrafter(NgramDrafter):
        CacheDrafter(int32_t n_draft, shared_ptr[NgramCounts] fixed, shared_ptr[NgramCounts] dynamic,
                     cpp_bool teach) except +


cdef extern from "ngram_lookup_file.hpp" namespace "pyspec" nogil:
    cdef cppclass LookupReader:
        LookupReader(const unsigned char * data, size_t size, int32_t n_vocab)
        string read(NgramCounts & counts) except +
        size_t offset

    string lookup_bytes(const NgramCounts & counts) except +


cdef class LookupCache:
    cdef shared_ptr[NgramCounts] counts
    cdef dict successors(self, int32_t at)


cdef class NGramRunner(CompiledSpeculator):
    cdef NgramSequences sequences


cdef class NGramSimpleRunner(NGramRunner):
    pass


cdef class NGramMapKRunner(NGramRunner):
    pass


cdef class NGramMapK4VRunner(NGramRunner):
    pass


cdef class NGramModRunner(NGramRunner):
    cdef readonly bint shared


cdef class NGramCacheRunner(NGramRunner):
    cdef readonly LookupCache lookup_static
    cdef readonly LookupCache lookup_dynamic
    cdef readonly bint teach


cdef class Rehearsal:
    cdef readonly NGramRunner speculator
    cdef vector[Sequence] sequences
    cdef Sequence * sequence(self, int seq) except NULL
