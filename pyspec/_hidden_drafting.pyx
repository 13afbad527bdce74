# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Drafting from the target's hidden states: which of them are kept and for how long, and the memories made of them.

After each decode of the target the rows of tokens that are committed are copied, those of rejected ones never are: so
nothing has to be taken back, whatever happens to the target's own memory, and a row always belongs to the text. A row
waits until the sequence next drafts, when it is fed to the draft together with the new seed; a prompt waits in the same
way, but of long ones, and in long stretches that others draft, the draft reads `n_backlog` rows at a time.

The draft's memory has a cell for each token, which is made of the row of that token or of the one before it (`lag`). When
a row that is needed next is not known, the memory begins anew behind it, with a shorter context. Where a request begins
like an earlier one, the row before its first new token is the only one needed that was used up: the target reads that
token again.
"""

from libc.stdint cimport int32_t, int64_t, uint32_t
from libc.string cimport memcpy
from libcpp.vector cimport vector

from pyspec._llama cimport Context, enter_all, leave_all
from pyspec._sequence cimport Sequence, decode_and_wait
from pyspec.libllama cimport (
    llama_batch_ext_clear,
    llama_batch_ext_free,
    llama_batch_ext_init,
    llama_get_embeddings_layer_inp,
    llama_get_embeddings_nextn,
    llama_get_logits_ith,
    llama_memory_seq_add,
    llama_memory_seq_pos_max,
    llama_memory_seq_rm,
    llama_model_n_swa,
    llama_seq_id,
    llama_time_us,
)

import struct

import numpy as np

from pyspec.errors import InvalidRequest, StateError, UnsupportedModel

cdef int32_t NEXTN_STATE = -1

# Ahead of a saved state: heads, width of a row, position of the first one, how many; per head where it begins and ends,
# how far it has gone, bytes.
SAVED = struct.Struct("=4i")
SAVED_HEAD = struct.Struct("=3iq")


cdef class HiddenRunner(ModelRunner):
    """A speculator that drafts from hidden states of the target.

    Attributes:
        contexts: of the draft, one for each layer that drafts a token of its own.
    """

    cdef int open_heads(self, contexts, n_backlog) except -1:
        """What every constructor goes on with, once it knows how wide rows are."""
        cdef Context context
        cdef Head head
        cdef llama_seq_id seq
        self.n_seq = self.context.n_seq_max
        self.n_backlog = <int32_t> self.context.n_batch if n_backlog is None else max(1, <int32_t> n_backlog)
        self.can_shift = True
        for context in contexts:
            if context.n_seq_max != self.n_seq or context.model is not self.context.model:
                raise InvalidRequest("the heads are contexts of different models or sizes", name="contexts",
                                     value=contexts)
            context.enter(False)
            try:
                head.batch = llama_batch_ext_init(context.ptr)
                head.ptr = context.ptr
                head.memory = context.memory_ptr
                self.heads.push_back(head)
            finally:
                context.leave()
            self.can_shift = self.can_shift and context.can_shift
        self.n_swa = 0 if self.context.swa_full else llama_model_n_swa(self.context.handle.ptr)
        self.marks.resize(self.heads.size() * self.n_seq)
        self.rows.resize(self.n_seq)
        for seq in range(<llama_seq_id> self.n_seq):
            self.rows[seq].set_width(self.width)
        return 0

    def __dealloc__(self):
        cdef size_t i
        for i in range(self.heads.size()):
            llama_batch_ext_free(self.heads[i].batch)

    def synced(self, int seq):
        """How many committed tokens of the sequence all heads have read."""
        return self.needed_from(seq) + self.lag

    def held(self, int seq):
        """Per head: the tokens of the sequence its memory has cells of, first and one behind the last."""
        cdef size_t i
        return [(self.mark(i, seq).begin, self.mark(i, seq).held) for i in range(self.heads.size())]

    def waiting(self, int seq):
        """Hidden states that wait for the sequence's next draft: (the first one's position, a copy of the rows)."""
        cdef HiddenRows * rows = &self.rows.at(seq)
        cdef int32_t i
        cdef float[::1] out
        copy = np.empty((rows.size(), self.width), np.float32)
        for i in range(rows.size()):
            out = copy[i]
            memcpy(&out[0], rows.row(rows.first() + i), self.width * sizeof(float))
        return rows.first(), copy

    cdef int require_target(self, Context target) except -1:
        for context in self.contexts:
            if context is target:
                raise InvalidRequest("target and draft need a context each, and were given the same one")
        ModelRunner.require_target(self, target)
        if self.target is not None and self.target is not target:
            raise InvalidRequest(f"{self.name} reads the hidden states of another context already")
        self.watch(target)
        return 0

    cdef int watch(self, Context target) except -1:
        """Makes the target keep the rows that are read here."""
        cdef int32_t layer
        cdef int32_t width = 0
        for layer in self.layers:
            width += target.model.n_embd_out if layer == NEXTN_STATE else target.model.n_embd
        if width != self.width:
            raise UnsupportedModel(
                f"{self.context.model.path} reads hidden states that are {self.width} wide, those of "
                f"{target.model.path} are {width} wide")
        for layer in self.layers:
            if layer == NEXTN_STATE:
                target.set_embeddings_nextn(True)
            else:
                target.set_embeddings_layer_inp(layer, True)
        self.target = target
        return 0

    cdef int enter(self) except -1:
        if self.head is not None:
            self.head.require_open()
        return enter_all(self.contexts)

    cdef void leave(self) noexcept:
        leave_all(self.contexts)

    # -- the target's rows ---------------------------------------------------------------------------------------

    cdef void observe(self, vector[Sequence] * sequences, int32_t n_target_rows) noexcept nogil:
        cdef llama_seq_id seq
        cdef Sequence * s
        cdef int32_t i
        cdef int32_t n_tokens
        cdef int32_t n_kept
        cdef int64_t t0
        cdef bint found = self.find_sources()
        for seq in range(<llama_seq_id> sequences.size()):
            s = &sequences.at(seq)
            if s.n_rows == 0:
                continue
            if not found:
                self.forget(seq)
                continue
            n_tokens = <int32_t> s.tokens.size()
            self.rows[seq].drop_before(self.needed_from(seq))
            if self.rows[seq].size() > self.n_backlog and self.rows[seq].end() == n_tokens:
                t0 = llama_time_us()
                for self.current in range(self.heads.size()):
                    self.align(seq, n_tokens)
                    self.read_on(seq, s)
                self.rows[seq].drop_before(self.needed_from(seq))
                self.time_us += llama_time_us() - t0
            if n_tokens == 0:
                self.begin_text(seq)
            n_kept = <int32_t> s.emitted.size() if s.generating() else s.prompt_rows
            for i in range(n_kept):
                self.copy_row(s.first_row + i, self.rows[seq].add(n_tokens + i))

    cdef bint find_sources(self) noexcept nogil:
        """Where the rows of the target's last decode are. False: it has none."""
        cdef int32_t layer
        cdef size_t i
        self.sources.clear()
        for layer in self.layers:
            if layer == NEXTN_STATE:
                self.sources.push_back(llama_get_embeddings_nextn(self.target.ptr))
            else:
                self.sources.push_back(llama_get_embeddings_layer_inp(self.target.ptr, <uint32_t> layer))
        for i in range(self.sources.size()):
            if self.sources[i] == NULL:
                return False
        return True

    cdef void copy_row(self, int32_t row, float * out) noexcept nogil:
        cdef size_t n = self.width // self.sources.size()
        cdef size_t i
        for i in range(self.sources.size()):
            memcpy(out + i * n, self.sources[i] + <size_t> row * n, n * sizeof(float))

    cdef void begin_text(self, llama_seq_id seq) noexcept nogil:
        self.rows[seq].clear()

    cdef void forget_derived(self, llama_seq_id seq) noexcept nogil:
        pass

    cdef void read_on(self, llama_seq_id seq, Sequence * s) noexcept nogil:
        pass

    # -- a sequence's life ---------------------------------------------------------------------------------------

    cdef bint can_draft(self, llama_seq_id seq, Sequence * s) noexcept nogil:
        return self.rows[seq].known() and self.rows[seq].end() == <int32_t> s.tokens.size()

    cdef void committed(self, llama_seq_id seq, Sequence * s, int32_t n_before, bint own) noexcept nogil:
        cdef size_t i
        for i in range(self.heads.size()):
            self.cut(i, seq, <int32_t> s.tokens.size())
        self.rows[seq].drop_before(self.needed_from(seq))

    cdef void dropped(self, llama_seq_id seq) noexcept nogil:
        """What was made for a seed that is none any more goes."""
        cdef size_t i
        if self.rows[seq].known():
            for i in range(self.heads.size()):
                self.cut(i, seq, self.rows[seq].end())

    cdef void forget(self, llama_seq_id seq) noexcept nogil:
        cdef size_t i
        for i in range(self.heads.size()):
            self.drop(i, seq)
        self.rows[seq].clear()
        self.forget_derived(seq)
        self.drafting[seq].active = False
        if self.head is not None:
            self.head.forget(seq)

    cdef void released(self, llama_seq_id seq) noexcept nogil:
        """What was read stays for a request that begins with the same tokens, and so do the rows that wait; what the
        draft vocabulary has taken from the text does not."""
        self.dropped(seq)
        if self.head is not None:
            self.head.forget(seq)

    cdef int32_t reads_again(self, llama_seq_id seq, int32_t n_tokens) noexcept nogil:
        cdef bint nothing_held = self.needed_from(seq) < 0
        if self.lag == 0 or nothing_held or self.rows[seq].has(n_tokens - 1) or self.loses_window(seq):
            return 0
        return 1

    cdef bint loses_window(self, llama_seq_id seq) noexcept nogil:
        """Whether cells that a sequence would need after going back may have been used again."""
        cdef size_t i
        for i in range(self.heads.size()):
            if 0 < self.n_swa < self.mark(i, seq).reached:
                return True
        return False

    cdef void rewind(self, llama_seq_id seq, int32_t n_tokens, int32_t n_common) noexcept nogil:
        cdef size_t i
        if self.loses_window(seq):
            self.forget(seq)
            return
        for i in range(self.heads.size()):
            self.cut(i, seq, n_common)
        self.rows[seq].truncate(n_common)
        self.forget_derived(seq)

    cdef void shifted(self, llama_seq_id seq, int32_t n_keep, int32_t n_discard) noexcept nogil:
        cdef size_t i
        cdef Held * m
        cdef int32_t end = n_keep + n_discard
        cdef int32_t first = max(n_keep - self.skipped, 0)
        self.dropped(seq)
        for i in range(self.heads.size()):
            m = self.mark(i, seq)
            if not self.can_shift or m.held < end or not llama_memory_seq_rm(self.heads[i].memory, seq, first,
                                                                           first + n_discard):
                self.drop(i, seq)
                continue
            llama_memory_seq_add(self.heads[i].memory, seq, first + n_discard, -1, -n_discard)
            m.held -= n_discard
            if m.begin > n_keep:
                m.begin = max(n_keep, m.begin - n_discard)
        self.rows[seq].drop_before(end - self.lag)
        self.rows[seq].move(-n_discard)
        self.forget_derived(seq)

    def save(self, int seq):
        """Each head's part of the memory and how far it goes, and the rows that wait; or None."""
        cdef size_t i
        cdef HiddenRows * rows = &self.rows.at(seq)
        cdef Held m
        if not rows.known():
            return None
        parts = [SAVED.pack(self.heads.size(), self.width, rows.first(), rows.size())]
        states = []
        for i in range(self.heads.size()):
            m = self.mark(i, seq)[0]
            state = (<Context> self.contexts[i]).state_seq_get(seq) if m.held > m.begin else b""
            parts.append(SAVED_HEAD.pack(m.begin, m.held, m.reached, len(state)))
            states.append(state)
        return b"".join((*parts, self.waiting(seq)[1].tobytes(), *states))

    def load(self, int seq, state, int n_tokens):
        """Takes back what `save` gave."""
        self.forget(seq)
        try:
            self.take_back(seq, memoryview(state), n_tokens)
        except (StateError, struct.error) as error:
            self.forget(seq)
            raise StateError(f"the state of {self.name} can't be used: {error}") from error

    cdef int take_back(self, int seq, object state, int n_tokens) except -1:
        cdef size_t i
        cdef int32_t n
        cdef Held * m
        cdef const float[:, ::1] rows
        n_heads, width, first, n_rows = SAVED.unpack_from(state)
        if n_heads != self.heads.size() or width != self.width:
            raise StateError(f"it has {n_heads} heads and rows {width} wide, not {self.heads.size()} and {self.width}")
        if first < -1 or n_rows < 0 or first + n_rows != n_tokens:
            raise StateError(f"it does not go to the end of {n_tokens} tokens")
        at = SAVED.size
        marks = [SAVED_HEAD.unpack_from(state, at + i * SAVED_HEAD.size) for i in range(n_heads)]
        at += n_heads * SAVED_HEAD.size
        sizes = [mark[3] for mark in marks]
        if min(sizes) < 0 or len(state) != at + 4 * n_rows * width + sum(sizes):
            raise StateError(f"it has {len(state)} bytes")
        if n_rows > 0:
            rows = np.frombuffer(state, np.float32, n_rows * width, at).reshape(n_rows, width)
            for n in range(n_rows):
                memcpy(self.rows[seq].add(first + n), &rows[n, 0], self.width * sizeof(float))
        else:  # it knows where it is, and has used everything up
            self.rows[seq].add(first - 1)
            self.rows[seq].drop_before(first)
        at += 4 * n_rows * width
        for i in range(self.heads.size()):
            m = self.mark(i, seq)
            begin, held, reached, n_bytes = marks[i]
            if n_bytes == 0:
                continue
            (<Context> self.contexts[i]).state_seq_set(state[at:at + n_bytes], seq)
            at += n_bytes
            last = llama_memory_seq_pos_max(self.heads[i].memory, seq)
            if not 0 <= begin < held <= n_tokens or last != held - 1 - self.skipped:
                raise StateError(f"head {i} does not hold the tokens from {begin} to {held}")
            m.begin, m.held, m.reached = begin, held, max(reached, held)
        return 0

    cdef int check_sequence(self, llama_seq_id seq, Sequence * s) except -1:
        """Marks, memories and rows agree with the text."""
        cdef size_t i
        cdef Held * m
        cdef int32_t last
        cdef int32_t n_tokens = <int32_t> s.tokens.size()
        for i in range(self.heads.size()):
            m = self.mark(i, seq)
            last = llama_memory_seq_pos_max(self.heads[i].memory, seq)
            assert m.held <= n_tokens, f"sequence {seq}: head {i} has {m.held} cells for {n_tokens} committed tokens"
            if m.held > m.begin:
                assert last == m.held - 1 - self.skipped, (
                    f"sequence {seq}: the memory of head {i} ends at {last}, its tokens at {m.held - 1}")
            else:
                assert last == -1, f"sequence {seq}: the memory of head {i} ends at {last}, it should be empty"
        if self.rows[seq].known():
            assert self.rows[seq].end() == n_tokens, (
                f"sequence {seq}: hidden states are kept up to {self.rows[seq].end()}, {n_tokens} tokens are committed")
        return 0

    # -- memories ------------------------------------------------------------------------------------------------

    cdef Held * mark(self, size_t head, llama_seq_id seq) noexcept nogil:
        return &self.marks[head * self.n_seq + <size_t> seq]

    cdef int32_t needed_from(self, llama_seq_id seq) noexcept nogil:
        cdef size_t i
        cdef int32_t n = self.mark(0, seq).held
        for i in range(1, self.heads.size()):
            n = min(n, self.mark(i, seq).held)
        return n - self.lag

    cdef void align(self, llama_seq_id seq, int32_t end) noexcept nogil:
        """The current head's memory ends before a token that is to be fed; where it lacks one whose row is not known any
        more, it begins anew behind that."""
        cdef Held * m = self.mark(self.current, seq)
        cdef int32_t first = max(self.rows[seq].first() + self.lag, self.skipped)
        self.cut(self.current, seq, end)
        if m.held < first:
            self.drop(self.current, seq)
            m.begin = m.held = first

    cdef void cut(self, size_t head, llama_seq_id seq, int32_t end) noexcept nogil:
        """Removes the cells of the tokens from `end` on."""
        cdef Held * m = self.mark(head, seq)
        if m.held <= end:
            return
        if m.begin >= end or not llama_memory_seq_rm(self.heads[head].memory, seq, end - self.skipped, -1):
            self.drop(head, seq)
        else:
            m.held = end

    cdef void drop(self, size_t head, llama_seq_id seq) noexcept nogil:
        """Empties a head's memory of a sequence."""
        cdef Held * m = self.mark(head, seq)
        llama_memory_seq_rm(self.heads[head].memory, seq, -1, -1)
        m.begin = m.held = m.reached = 0

    cdef const float * logits_of(self, int32_t row) noexcept nogil:
        return llama_get_logits_ith(self.heads[self.current].ptr, row)

    cdef int32_t compute(self) noexcept nogil:
        cdef Head * head = &self.heads[self.current]
        cdef int32_t code
        if self.head is not None:
            code = self.head.decode(self.current, head.batch)
        else:
            code = decode_and_wait(self.context.handle.head_lock, head.ptr, head.batch)
        llama_batch_ext_clear(head.batch)
        return code

    cdef void clear_batch(self) noexcept nogil:
        """After a row that could not be added."""
        llama_batch_ext_clear(self.heads[self.current].batch)
        self.n_rows = 0
