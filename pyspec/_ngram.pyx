# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Drafting without a model: what followed the last few tokens when they occurred before.

Five methods under llama.cpp's names. All of them follow a sequence token by token, so that a proposal costs about a
microsecond however long the text has become, and all of them take what they propose from the text, the user's lookup
caches, or (only if asked to) other requests. The methods are in native/ngram_*.hpp; here they become speculators.

    ngram-simple    ngram_simple.hpp    the n-gram again: propose what came after it
    ngram-map-k     ngram_map_k.hpp     and learn for each n-gram how long a draft may be
    ngram-map-k4v   ngram_map_k4v.hpp   and take the most frequent of what came after it
    ngram-mod       ngram_mod.hpp       one token after the other through a table, possibly with other requests'
    ngram-cache     ngram_cache.hpp     counts of short n-grams, from this text and from files
"""

from libc.stdint cimport int32_t
from libcpp.memory cimport make_shared, shared_ptr
from libcpp.string cimport string
from libcpp.vector cimport vector

from pyspec._sequence cimport Sequence
from pyspec._speculator cimport CompiledSpeculator
from pyspec.libllama cimport llama_seq_id, llama_token

from pyspec.errors import InvalidRequest, StateError

cdef int32_t ORDER_MAX = 4
cdef int32_t SIZE_MAX = 1024


cdef int require(value, str name, int low, int high) except -1:
    if not low <= value <= high:
        raise InvalidRequest(f"{name} must be {low} to {high}, not {value}", name=name, value=value)
    return 0


cdef vector[llama_token] token_vector(tokens) except *:
    cdef vector[llama_token] ids = tokens
    cdef size_t i
    for i in range(ids.size()):
        if ids[i] < 0:
            raise InvalidRequest(f"token ids are 0 or larger, not {ids[i]}", name="tokens", value=ids[i])
    return ids


cdef class NGramRunner(CompiledSpeculator):
    """What the five have in common: it follows every sequence and lets the method propose."""

    cdef void propose(self, vector[Sequence] * sequences) noexcept nogil:
        cdef llama_seq_id seq
        cdef Sequence * s
        cdef int32_t limit
        for seq in range(min(self.sequences.size(), <int32_t> sequences.size())):
            s = &sequences.at(seq)
            limit = min(s.budget, self.n_max)
            if s.generating() and s.draft.empty() and limit >= max(1, self.n_min):
                s.n_discarded += self.sequences.propose(seq, s.tokens, s.seed, self.n_min, limit, s.draft)

    cdef void committed(self, llama_seq_id seq, Sequence * s, int32_t n_before, bint own) noexcept nogil:
        cdef int32_t submitted = <int32_t> s.draft.size() if own else 0
        if seq >= self.sequences.size():
            return
        if <int32_t> s.emitted.size() <= s.n_accepted:
            submitted = min(submitted, s.n_accepted)  # it ended there: what was behind it was not looked at
        self.sequences.settle(seq, submitted, s.n_accepted)
        self.sequences.see(seq, s.tokens, s.seed if s.generating() else -1, s.generating())

    cdef void dropped(self, llama_seq_id seq) noexcept nogil:
        if seq < self.sequences.size():
            self.sequences.settle(seq, 0, 0)

    cdef void forget(self, llama_seq_id seq) noexcept nogil:
        if seq < self.sequences.size():
            self.sequences.forget(seq)

    cdef DraftWork work_done(self) noexcept nogil:
        return DraftWork((self.sequences.tally.propose_ns + self.sequences.tally.index_ns) // 1000, 0, 0, 0)

    cdef int check_sequence(self, llama_seq_id seq, Sequence * s) except -1:
        assert seq < self.sequences.size(), f"sequence {seq}: {self.name} was made for {self.sequences.size()}"
        assert self.sequences.n_known(seq, s.tokens, s.seed) >= 0, (
            f"sequence {seq}: {self.name} believes in another history")
        return 0

    def counts(self):
        """What it did since construction, each name behind the speculator's: "ngram-mod.drafts".

        proposals (times it was asked), drafts, drafted (tokens), discarded (tokens of drafts shorter than n_min),
        rebuilds (histories that had been cut or edited), failures (out of memory; the request goes on), propose_us,
        index_us (following the sequences, the prompts among it).
        """
        cdef NgramTally * tally = &self.sequences.tally
        return {
            f"{self.name}.{key}": value for key, value in (
                ("proposals", tally.proposals), ("drafts", tally.drafts), ("drafted", tally.drafted),
                ("discarded", tally.discarded), ("rebuilds", tally.rebuilds), ("failures", tally.failures),
                ("propose_us", tally.propose_ns // 1000), ("index_us", tally.index_ns // 1000),
            )
        }


cdef class NGramSimpleRunner(NGramRunner):
    """ngram-simple: proposes what followed the last size_n tokens when they occurred before.

    The newest earlier occurrence counts that enough tokens follow. A text that repeats itself at present is expected
    to go on doing so: the continuation may run into itself.

    Better than llama.cpp's (common/ngram-map.cpp): a proposal looks up an index instead of scanning the history; a
    recent occurrence near the end does not hide an older one that more can be taken from; the seed is part of the
    history, and so is the very first n-gram; ``min_hits`` has an effect; loops are drafted to full length.

    Args:
        n_seq: sequences it drafts for.
        size_n: tokens that have to occur again, 1..1024.
        size_m: tokens proposed then, at most, 1..1024.
        min_hits: how often they must have occurred before.
    """

    def __cinit__(self, int n_seq, *, int size_n=12, int size_m=48, int min_hits=1):
        cdef int seq
        require(size_n, "size_n", 1, SIZE_MAX)
        require(size_m, "size_m", 1, SIZE_MAX)
        self.name = "ngram-simple"
        self.n_max = size_m
        for seq in range(n_seq):
            self.sequences.add(new SimpleDrafter(size_n, size_m, min_hits))


cdef class NGramMapKRunner(NGramRunner):
    """ngram-map-k: as ngram-simple, and learns for each n-gram how long its drafts should be.

    After a draft that went wrong the next one from this n-gram ends where it went wrong; one that was right to its end
    doubles the length.

    Better than llama.cpp's (common/ngram-map.cpp): lengths grow again, and never fall to 0, which there silences an
    n-gram for ever; a draft that was cut short by the round's budget and was right counts as right; ``min_hits`` has
    an effect; keys are found by a hash table, not by a scan; a history that was cut is followed, where llama.cpp
    aborts.

    Args:
        n_seq: sequences it drafts for.
        size_n: tokens that have to occur again, 1..1024.
        size_m: longest draft, 1..1024.
        min_hits: how often they must have occurred before.
    """

    def __cinit__(self, int n_seq, *, int size_n=12, int size_m=48, int min_hits=1):
        cdef int seq
        require(size_n, "size_n", 1, SIZE_MAX)
        require(size_m, "size_m", 1, SIZE_MAX)
        self.name = "ngram-map-k"
        self.n_max = size_m
        for seq in range(n_seq):
            self.sequences.add(new MapKDrafter(size_n, size_m, min_hits))


cdef class NGramMapK4VRunner(NGramRunner):
    """ngram-map-k4v: up to four continuations (values) for each n-gram, counted; proposes what most of them say.

    Token by token, for as long as what most say has at least twice the count of everything else. Draft lengths are
    learned as in ngram-map-k, for each value.

    Better than llama.cpp's (common/ngram-map.cpp): the draft is the winning value, not what the lookup happened upon;
    every occurrence is counted exactly once; values that begin in the same way do not block each other, their common
    beginning is drafted; occurrences younger than size_m tokens count as well, so that loops are seen at once; a fifth
    value replaces the rarest. And what ngram-map-k does better.

    Args:
        n_seq: sequences it drafts for.
        size_n: tokens that have to occur again, 1..1024.
        size_m: length of a value, and longest draft, 1..1024.
        min_hits: how often they must have occurred before.
    """

    def __cinit__(self, int n_seq, *, int size_n=12, int size_m=48, int min_hits=1):
        cdef int seq
        require(size_n, "size_n", 1, SIZE_MAX)
        require(size_m, "size_m", 1, SIZE_MAX)
        self.name = "ngram-map-k4v"
        self.n_max = size_m
        for seq in range(n_seq):
            self.sequences.add(new MapK4VDrafter(size_n, size_m, min_hits))


cdef class NGramModRunner(NGramRunner):
    """ngram-mod: a table from n_match tokens to the token that followed them last, applied again and again.

    A draft may so be pieced together from several places. Long drafts of long matches: nothing below n_min is
    submitted.

    Better than llama.cpp's (common/ngram-mod.cpp): an entry holds the n-gram's whole 64-bit hash, so that n-grams
    which share a place are told apart; every sequence has a table of its own, which grows with it, is never reset and
    forgets nothing within half a million tokens. With ``shared`` there is one more for all of them and for later
    requests; a sequence that it has misled five times in a row (less than a quarter of what was submitted accepted)
    stops reading it, and nobody else is concerned.

    Args:
        n_seq: sequences it drafts for.
        n_match: tokens that have to occur again, 1..1024.
        n_max: longest draft, 1..1024.
        n_min: shortest draft, 0..n_max.
        shared: let requests profit from each other. Their texts then influence each other's drafts, never each
            other's text.
    """

    def __cinit__(self, int n_seq, *, int n_match=24, int n_max=64, int n_min=48, bint shared=False):
        cdef int seq
        cdef shared_ptr[NgramPool] pool
        require(n_match, "n_match", 1, SIZE_MAX)
        require(n_max, "n_max", 1, SIZE_MAX)
        require(n_min, "n_min", 0, n_max)
        self.name = "ngram-mod"
        self.n_max = n_max
        self.n_min = n_min
        self.shared = shared
        if shared:
            pool = make_shared[NgramPool]()
        for seq in range(n_seq):
            self.sequences.add(new ModDrafter(n_match, pool))

    def counts(self):
        """As the others', and detached: sequences that stopped reading the shared table."""
        counts = super().counts()
        counts[f"{self.name}.detached"] = self.sequences.tally.detached
        return counts


cdef class NGramCacheRunner(NGramRunner):
    """ngram-cache: proposes the token that has followed the last four, three, two or one tokens most often.

    Counted in this text (context), in what was written in other requests (dynamic) and in a large corpus (static),
    with llama.cpp's thresholds: lax for the context, strict for the dynamic counts; the corpus decides between
    candidates, or alone.

    Better than llama.cpp's (common/ngram-cache.cpp): n-grams are counted across the borders between rounds, where
    most of what is generated lies; a history that was cut or replaced is counted anew; static and dynamic counts exist
    once for all sequences; a damaged file is an exception that says where, and never trusted with sizes; the draft's
    length is a parameter; the dynamic counts are learned and can be saved.

    Args:
        n_seq: sequences it drafts for.
        n_draft: longest draft, 1..1024.
        lookup_static: counts of a corpus, never changed; None: none.
        lookup_dynamic: counts of earlier requests; None: none.
        teach: count what is written into lookup_dynamic, at the end of each request (prompts are left out). Needs
            lookup_dynamic.
    """

    def __cinit__(self, int n_seq, *, int n_draft=8, LookupCache lookup_static=None,
                  LookupCache lookup_dynamic=None, bint teach=False):
        cdef int seq
        cdef shared_ptr[NgramCounts] corpus
        cdef shared_ptr[NgramCounts] learned
        require(n_draft, "n_draft", 1, SIZE_MAX)
        if teach and lookup_dynamic is None:
            raise InvalidRequest("teach needs a dynamic lookup cache", name="teach", value=True)
        self.name = "ngram-cache"
        self.n_max = n_draft
        self.lookup_static = lookup_static
        self.lookup_dynamic = lookup_dynamic
        self.teach = teach
        if lookup_static is not None:
            corpus = lookup_static.counts
        if lookup_dynamic is not None:
            learned = lookup_dynamic.counts
        for seq in range(n_seq):
            self.sequences.add(new CacheDrafter(n_draft, corpus, learned, teach))


cdef class LookupCache:
    """How often which token followed which n-gram of one to four tokens: what llama.cpp calls a lookup cache.

    `pyspec.speculation.lookup_file` reads and writes files of them. A corpus becomes one with `update`.
    """

    def __cinit__(self):
        self.counts = make_shared[NgramCounts]()

    def update(self, tokens, *, int low=1, int high=4):
        """Counts all n-grams of a text.

        Args:
            tokens: its token ids.
            low, high: the shortest and the longest n-grams that are counted, 1..4. A static cache needs only those
                of two tokens.
        """
        cdef vector[llama_token] text = token_vector(tokens)
        cdef size_t i
        if not 1 <= low <= high <= ORDER_MAX:
            raise InvalidRequest(f"n-grams have 1 to {ORDER_MAX} tokens, not {low} to {high}", name="low", value=low)
        with nogil:
            for i in range(text.size()):
                self.counts.get().add_all(text, i, low, high)

    def merge(self, LookupCache other not None):
        """Adds another one's counts."""
        if other is self:
            other = LookupCache.from_bytes(self.to_bytes())
        with nogil:
            self.counts.get().merge(other.counts.get()[0])

    def __len__(self):
        return self.counts.get().entries().size()

    def __getitem__(self, tokens):
        """What followed an n-gram: ``{token: count}``; KeyError if it never occurred."""
        cdef Ngram ngram
        cdef const NgramEntry * entry
        cdef size_t i
        if not 1 <= len(tokens) <= ORDER_MAX:
            raise KeyError(tokens)
        ngram.fill(-1)
        for i in range(<size_t> len(tokens)):
            ngram[i] = tokens[i]
        entry = self.counts.get().find(ngram)
        if entry == NULL:
            raise KeyError(tokens)
        return self.successors(entry.newest)

    cdef dict successors(self, int32_t at):
        cdef dict found = {}
        while at >= 0:
            found[self.counts.get().successor(at).token] = self.counts.get().successor(at).count
            at = self.counts.get().successor(at).next
        return found

    def to_dict(self):
        """All of it: ``{(token, ...): {token: count}}``."""
        cdef size_t i
        cdef size_t j
        cdef NgramEntry entry
        cdef dict everything = {}
        for i in range(self.counts.get().entries().size()):
            entry = self.counts.get().entries()[i]
            tokens = tuple([entry.ngram[j] for j in range(<size_t> ORDER_MAX) if entry.ngram[j] >= 0])
            everything[tokens] = self.successors(entry.newest)
        return everything

    @staticmethod
    def from_bytes(const unsigned char[::1] data not None, n_vocab=None):
        """Reads llama.cpp's format.

        Args:
            data: the content of a file.
            n_vocab: size of the vocabulary it has to belong to; None: any.

        Raises:
            StateError: the data is damaged (it ends too early, an n-gram or successor is there twice, a count is not
                above 0) or has tokens that are not in the vocabulary. The message says at which byte.
        """
        cdef LookupCache cache = LookupCache()
        cdef size_t size = data.shape[0]
        cdef LookupReader * reader = new LookupReader(
            &data[0] if size else NULL, size, 2**31 - 1 if n_vocab is None else n_vocab)
        cdef string error
        cdef size_t offset
        try:
            with nogil:
                error = reader.read(cache.counts.get()[0])
            offset = reader.offset
        finally:
            del reader
        if not error.empty():
            raise StateError(f"byte {offset}: {error.decode()}")
        return cache

    def to_bytes(self):
        """In llama.cpp's format."""
        cdef string data
        with nogil:
            data = lookup_bytes(self.counts.get()[0])
        return data

    def __repr__(self):
        return f"<LookupCache, {len(self)} n-grams>"


cdef class Rehearsal:
    """Drives a speculator as the decoder does, on token sequences that are known: no model is needed.

    For tests and measurements, and to see what it would have made of a recorded text.

    Args:
        speculator: it believes what happens here, so it must not be an engine's at the same time.
        n_seq: sequences there are; no more than it was made for.
    """

    def __cinit__(self, NGramRunner speculator not None, int n_seq=1):
        require(n_seq, "n_seq", 1, speculator.sequences.size())
        self.speculator = speculator
        self.sequences.resize(n_seq)

    cdef Sequence * sequence(self, int seq) except NULL:
        if not 0 <= seq < <int> self.sequences.size():
            raise InvalidRequest(f"sequence {seq} is outside 0..{self.sequences.size() - 1}", name="seq", value=seq)
        return &self.sequences[seq]

    def feed(self, tokens, *, int seq=0, bint told=True):
        """A sequence consists of these tokens now, the last of them its seed.

        With ``told=False`` the speculator is not informed and has to find out.
        """
        cdef Sequence * s = self.sequence(seq)
        cdef vector[llama_token] text = token_vector(tokens)
        s.begin_round()
        s.active = True
        s.seed = text.back() if text.size() else -1
        if text.size():
            text.pop_back()
        s.tokens = text
        if told:
            self.speculator.committed(seq, s, 0, False)

    def propose(self, int budget, *, int seq=0):
        """Asks for a draft of at most `budget` tokens, as at the beginning of a round; returns it."""
        cdef Sequence * s = self.sequence(seq)
        cdef size_t i
        for i in range(self.sequences.size()):
            self.sequences[i].begin_round()
        s.budget = budget
        with nogil:
            self.speculator.propose(&self.sequences)
        return s.draft

    def n_discarded(self, *, int seq=0):
        """Tokens of the last proposal that were not submitted, for being too few."""
        return self.sequence(seq).n_discarded

    def verify(self, continuation, *, int seq=0, n_submitted=None, bint own=True):
        """The rest of the round: the target says these tokens, for as long as they are the drafted ones and one more.

        Args:
            continuation: what comes next in truth, at least one token. If all of it was drafted, it is as if the last
                token had ended the text.
            n_submitted: the draft is cut to so many tokens before; None: all.
            own: the draft is the speculator's; False: somebody else's.

        Returns:
            The emitted tokens.
        """
        cdef Sequence * s = self.sequence(seq)
        cdef int32_t n_before = <int32_t> s.tokens.size()
        cdef size_t i
        if s.seed < 0:
            raise InvalidRequest(f"sequence {seq} has no tokens yet; feed it some", name="seq", value=seq)
        if len(continuation) == 0:
            raise InvalidRequest("the target says at least one token", name="continuation", value=continuation)
        if n_submitted is not None:
            s.draft.resize(min(s.draft.size(), <size_t> n_submitted))
        for token in token_vector(continuation):
            s.emitted.push_back(token)
            if s.n_accepted == <int32_t> s.draft.size() or token != s.draft[s.n_accepted]:
                break
            s.n_accepted += 1
        s.tokens.push_back(s.seed)
        for i in range(s.emitted.size() - 1):
            s.tokens.push_back(s.emitted[i])
        s.seed = s.emitted.back()
        self.speculator.committed(seq, s, n_before, own and not s.draft.empty())
        return s.emitted

    def drop(self, *, int seq=0):
        """The round came to nothing."""
        self.speculator.dropped(seq)

    def forget(self, *, int seq=0):
        """The request is over."""
        self.speculator.forget(seq)
        self.sequence(seq).reset()

    def tokens(self, *, int seq=0):
        """The sequence, the seed included."""
        cdef Sequence * s = self.sequence(seq)
        cdef list tokens = s.tokens
        if s.seed >= 0:
            tokens.append(s.seed)
        return tokens

    def check(self, *, int seq=0):
        """AssertionError when what the speculator believes of the sequence can't be."""
        self.speculator.check_sequence(seq, self.sequence(seq))
