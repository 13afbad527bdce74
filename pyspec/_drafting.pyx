# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Drafting with a small model (draft-simple), for all sequences at once, without the GIL.

The draft model's best token, fed back, again and again: a chain of k proposals costs k decodes of one row, shared by
all sequences that draft. What this file is about is the draft model's memory, which nobody evaluates twice.

Its memory trails the target's. `synced` is the watermark: how many committed tokens it has read. When a sequence
next drafts, one decode feeds what is missing together with the seed. After a round in which `a` of k proposals were
accepted, the cells of the seed and of the accepted proposals it evaluated itself stay, the others are cut:

    accepted      cells kept           missing next time    rows next time before the first proposal
    all k         seed, d1..d(k-1)     dk                   2  (dk and the new seed)
    a < k         seed, d1..da         none                 1  (the new seed)
    somebody's    seed if evaluated    what was committed   as many, and the new seed

A recurrent draft model can't cut: its state is saved behind the seed, and put back when not everything it went on to
read was accepted; it then reads the accepted proposals again with the next seed.

So a round of k proposals evaluates at most k + 1 rows, where llama.cpp's common/speculative.cpp, which feeds every
target batch to the draft as well, evaluates 2k + 1. ``replay=True`` does it that way, to compare.
"""

from libc.stdint cimport int32_t, int64_t
from libcpp.vector cimport vector

from pyspec._draft_head cimport DraftHead
from pyspec._llama cimport Context
from pyspec._model_drafting cimport Drafting, ModelRunner
from pyspec._sequence cimport Checkpoint, Sequence, add_row, decode_and_wait, n_confidence
from pyspec._speculator cimport require_left_to_right
from pyspec.libllama cimport (
    llama_batch_ext_clear,
    llama_batch_ext_free,
    llama_batch_ext_init,
    llama_memory_seq_add,
    llama_memory_seq_pos_max,
    llama_memory_seq_rm,
    llama_model_is_hybrid,
    llama_model_is_recurrent,
    llama_model_n_swa,
    llama_seq_id,
    llama_time_us,
    llama_token,
)

import struct

from pyspec.errors import InvalidRequest, StateError

# Ahead of a saved state: tokens read, where the window starts, the furthest position.
SAVED = struct.Struct("=3i")

# Tokens that stay at the front when the draft's window moves on: attention leans on the first few
# (Xiao et al., "Efficient Streaming Language Models with Attention Sinks", 2023).
cdef int32_t WINDOW_KEEP = 4


cdef class DraftRunner(ModelRunner):
    """A draft model's context, and how far each sequence has got in it.

    Args:
        context: the draft model's context; its memory is this object's alone. It needs as many sequences as the
            target's context, and one output row for each.
        n_vocab_target: the target's vocabulary size; ids from there on are never proposed.
        n_max: longest draft.
        n_min: shortest draft that is submitted; shorter ones are discarded and counted.
        p_min: 0..1: drafting stops before a token the model is less sure of, by a softmax over its ten best.
        replay: evaluate every target batch on the draft as well instead of synchronising lazily.
        capacity: tokens one sequence may hold; None: as many as the context has for each.
        head: a reduced output head of the context; None: proposals come from the whole one.
    """

    def __cinit__(self, Context context not None, int n_vocab_target, *, int n_max=3, int n_min=0, float p_min=0.0,
                  bint replay=False, capacity=None, DraftHead head=None):
        cdef llama_seq_id seq
        self.set_up(context, n_vocab_target, n_max, n_min, p_min)
        self.take_head(head, [context])
        context.enter(False)
        try:
            require_left_to_right(context)
            self.batch = llama_batch_ext_init(context.ptr)
            self.memory = context.memory_ptr
            self.can_cut = not (llama_model_is_recurrent(context.handle.ptr)
                                or llama_model_is_hybrid(context.handle.ptr))
            self.can_shift = context.can_shift and self.can_cut
            self.n_swa = 0 if context.swa_full else llama_model_n_swa(context.handle.ptr)
        finally:
            context.leave()
        self.name = "draft-simple"
        self.replay = replay
        self.capacity = <int32_t> context.n_ctx_seq if capacity is None else capacity
        self.marks.resize(context.n_seq_max)
        self.saved.resize(context.n_seq_max)
        for seq in range(<llama_seq_id> context.n_seq_max):
            self.forget(seq)

    def __dealloc__(self):
        if self.batch != NULL:
            llama_batch_ext_free(self.batch)

    def synced(self, int seq):
        """How many committed tokens of the sequence the draft model has read."""
        return self.marks.at(seq).synced

    def save(self, int seq):
        """The sequence's part of the memory and how far it goes, or None if there is nothing."""
        cdef Watermark m = self.marks.at(seq)
        if m.synced == 0:
            return None
        return SAVED.pack(m.synced, m.gap, m.reached) + self.context.state_seq_get(seq)

    def load(self, int seq, state, int n_tokens):
        """Takes back what `save` gave."""
        cdef Watermark * m = &self.marks.at(seq)
        if len(state) < SAVED.size:
            raise StateError(f"the draft model's state is truncated: it has {len(state)} bytes")
        synced, gap, reached = SAVED.unpack_from(state)
        self.context.state_seq_set(memoryview(state)[SAVED.size:], seq)
        if not 0 <= gap <= synced <= n_tokens or llama_memory_seq_pos_max(self.memory, seq) != synced - gap - 1:
            llama_memory_seq_rm(self.memory, seq, -1, -1)
            raise StateError(f"the draft model's state does not hold the {synced} tokens it is said to")
        m.synced, m.gap, m.reached = synced, gap, max(reached, synced - gap)

    def time_decodes(self, int rows, int repetitions, *, bint reduced=True):
        """Decodes on sequence 0, which has to be empty and is so afterwards.

        Args:
            rows: of each decode, the last one an output.
            repetitions: how many decodes.
            reduced: with the reduced output head, where there is one.

        Returns:
            Milliseconds of each; fewer of them where one fails.
        """
        if self.marks.at(0).synced or not 0 < rows <= <int> self.context.n_batch:
            raise InvalidRequest(f"sequence 0 is in use, or {rows} rows are not from 1 to {self.context.n_batch}",
                                 name="rows", value=rows)
        return self.timed(rows, repetitions, reduced)

    cdef void add_trial(self, int32_t rows, bint reduced) noexcept nogil:
        cdef int32_t i
        if self.head is not None:
            self.head.settle(1, 0 if reduced else 1)
        for i in range(rows):
            add_row(self.batch, 0, i, 0, i + 1 == rows)
            self.n_rows += 1

    cdef int check_sequence(self, llama_seq_id seq, Sequence * s) except -1:
        """The watermark and the memory of a sequence agree."""
        cdef Watermark * m = &self.marks[seq]
        cdef int32_t last = llama_memory_seq_pos_max(self.memory, seq)
        assert m.synced <= <int32_t> s.tokens.size(), (
            f"sequence {seq}: the draft model has read {m.synced} of {s.tokens.size()} committed tokens")
        assert last == m.synced - m.gap - 1, (
            f"sequence {seq}: the draft's memory ends at {last}, its watermark is {m.synced}, its window starts at {m.gap}")
        return 0

    cdef int enter(self) except -1:
        if self.head is not None:
            self.head.require_open()
        return self.context.enter(True)

    cdef void leave(self) noexcept:
        self.context.leave()

    # -- the round -----------------------------------------------------------------------------------------------

    cdef void propose(self, vector[Sequence] * sequences) noexcept nogil:
        """Fills the draft of every generating sequence that has a budget and no draft yet.

        A decode that fails ends drafts early and is counted; the round goes on with what there is.
        """
        cdef int64_t t0 = llama_time_us()
        cdef llama_seq_id seq
        cdef Sequence * s
        cdef Watermark * m
        cdef int32_t n_tokens
        self.first_step(sequences)
        self.extend(sequences)
        for seq in range(<llama_seq_id> sequences.size()):
            s = &sequences.at(seq)
            m = &self.marks[seq]
            n_tokens = <int32_t> s.tokens.size()
            if not m.seed_evaluated:
                continue
            if self.discard_short(s):
                m.n_evaluated = 0
                self.cut(seq, n_tokens + 1)
            if self.replay:
                self.dropped(seq)
        self.time_us += llama_time_us() - t0

    cdef void observe(self, vector[Sequence] * sequences, int32_t n_target_rows) noexcept nogil:
        """After the target's decode: with replay, reads every row of its batch, as llama.cpp does."""
        cdef llama_seq_id seq
        cdef Sequence * s
        cdef int32_t i
        cdef int32_t n_tokens
        cdef int32_t row = 0
        cdef bint failed = False
        cdef llama_token token
        cdef int64_t t0
        if not self.replay:
            return
        t0 = llama_time_us()
        for seq in range(<llama_seq_id> sequences.size()):
            s = &sequences.at(seq)
            n_tokens = <int32_t> s.tokens.size()
            for i in range(s.n_rows):
                if not s.generating():
                    token = s.pending[i]
                else:
                    token = s.seed if i == 0 else s.draft[i - 1]
                row += 1
                self.add(token, n_tokens + i, seq, row == n_target_rows)
                if self.n_rows == <int32_t> self.context.n_batch or row == n_target_rows:
                    failed |= self.run() != 0
            if s.n_rows > 0:
                self.marks[seq].synced = n_tokens + s.n_rows
        if failed:
            for seq in range(<llama_seq_id> sequences.size()):
                if sequences.at(seq).n_rows > 0:
                    self.forget(seq)
        self.time_us += llama_time_us() - t0

    cdef void committed(self, llama_seq_id seq, Sequence * s, int32_t n_before, bint own) noexcept nogil:
        """Keeps the cells of tokens that are committed now, cuts the others."""
        cdef Watermark * m = &self.marks[seq]
        cdef int32_t n_held = m.synced
        if m.seed_evaluated:
            n_held = n_before + 1 + m.n_evaluated
            m.synced = n_before + 1 + min(s.n_accepted if own else 0, m.n_evaluated)
        m.synced = min(m.synced, <int32_t> s.tokens.size())
        if n_held > m.synced:
            if not self.can_cut:
                m.synced = min(m.synced, n_before + 1)
            self.cut(seq, m.synced)
        m.seed_evaluated = False
        m.n_evaluated = 0

    cdef void dropped(self, llama_seq_id seq) noexcept nogil:
        """The round came to nothing: keeps the cells of committed tokens only."""
        cdef Watermark * m = &self.marks[seq]
        if m.seed_evaluated:
            self.cut(seq, m.synced)
        m.seed_evaluated = False
        m.n_evaluated = 0

    cdef void forget(self, llama_seq_id seq) noexcept nogil:
        """Empties the memory of a sequence; it is read again when the sequence next drafts."""
        cdef Watermark * m = &self.marks[seq]
        llama_memory_seq_rm(self.memory, seq, -1, -1)
        if self.head is not None:
            self.head.forget(seq)
        m.synced = 0
        m.gap = 0
        m.seed_evaluated = False
        m.n_evaluated = 0
        self.drafting[seq].active = False
        m.reached = 0
        self.saved[seq].clear()

    cdef void released(self, llama_seq_id seq) noexcept nogil:
        """What was read stays, for a request that begins with the same tokens; what its text was made of does not."""
        if self.head is not None:
            self.head.forget(seq)

    cdef void rewind(self, llama_seq_id seq, int32_t n_tokens, int32_t n_common) noexcept nogil:
        cdef Watermark * m = &self.marks[seq]
        if m.synced <= n_tokens:
            return
        # Cells outside the window of the furthest position may have been used again.
        if m.gap > 0 or not self.can_cut or 0 < self.n_swa < m.reached:
            self.forget(seq)
            return
        m.synced = n_tokens
        self.cut(seq, n_tokens)

    cdef void shifted(self, llama_seq_id seq, int32_t n_keep, int32_t n_discard) noexcept nogil:
        cdef Watermark * m = &self.marks[seq]
        if not self.can_shift or m.gap > 0 or m.synced < n_keep + n_discard:
            self.forget(seq)
            return
        llama_memory_seq_rm(self.memory, seq, n_keep, n_keep + n_discard)
        llama_memory_seq_add(self.memory, seq, n_keep + n_discard, -1, -n_discard)
        m.synced -= n_discard

    # -- drafting ------------------------------------------------------------------------------------------------

    cdef bint can_draft(self, llama_seq_id seq, Sequence * s) noexcept nogil:
        return not self.marks[seq].seed_evaluated  # once a round

    cdef void first_step(self, vector[Sequence] * sequences) noexcept nogil:
        """One decode for all: the committed tokens each sequence lacks here, and its seed, which gives a row."""
        cdef llama_seq_id seq
        cdef Sequence * s
        cdef Watermark * m
        cdef Drafting * d
        cdef int32_t n_drafting = self.open_round(sequences)
        cdef int32_t room
        if n_drafting == 0:
            return
        self.settle_head(sequences)
        room = max(1, <int32_t> self.context.n_batch // n_drafting)
        for seq in range(<llama_seq_id> sequences.size()):
            if self.drafting[seq].active:
                self.fit_window(&sequences.at(seq), seq)
                self.drafting[seq].active = self.catch_up(&sequences.at(seq), seq, room)
        for seq in range(<llama_seq_id> sequences.size()):
            s = &sequences.at(seq)
            m = &self.marks[seq]
            d = &self.drafting[seq]
            if d.active:
                while m.synced < <int32_t> s.tokens.size():
                    self.add(s.tokens[m.synced], m.synced, seq, False)
                    m.synced += 1
                d.row = self.n_rows
                self.add(s.seed, m.synced, seq, True)
        if self.n_rows == 0:
            return
        if self.run() == 0:
            for seq in range(<llama_seq_id> sequences.size()):
                d = &self.drafting[seq]
                self.marks[seq].seed_evaluated = d.active
                d.steps += d.active
                if d.active and not self.can_cut:
                    self.saved[seq].save(self.context.ptr, seq, <int32_t> sequences.at(seq).tokens.size() + 1 - self.marks[seq].gap, False)
        else:
            for seq in range(<llama_seq_id> sequences.size()):
                if self.drafting[seq].active:
                    self.forget(seq)

    cdef void extend(self, vector[Sequence] * sequences) noexcept nogil:
        """Takes a proposal from each sequence that is still drafting, decodes them together, and so on."""
        cdef llama_seq_id seq
        cdef Sequence * s
        cdef Drafting * d
        while True:
            for seq in range(<llama_seq_id> sequences.size()):
                if self.drafting[seq].active:
                    self.take_proposal(&sequences.at(seq), seq)
            for seq in range(<llama_seq_id> sequences.size()):
                s = &sequences.at(seq)
                d = &self.drafting[seq]
                if d.active:
                    d.row = self.n_rows
                    self.add(s.draft.back(), <int32_t> (s.tokens.size() + s.draft.size()), seq, True)
            if self.n_rows == 0:
                return
            if self.run() != 0:
                for seq in range(<llama_seq_id> sequences.size()):
                    if self.drafting[seq].active:
                        self.drafting[seq].active = False
                        self.cut(seq, <int32_t> sequences.at(seq).tokens.size() + 1 + self.marks[seq].n_evaluated)
                return
            for seq in range(<llama_seq_id> sequences.size()):
                if self.drafting[seq].active:
                    self.marks[seq].n_evaluated = <int32_t> sequences.at(seq).draft.size()
                    self.drafting[seq].steps += 1

    # -- the batch and the memory --------------------------------------------------------------------------------

    cdef bint catch_up(self, Sequence * s, llama_seq_id seq, int32_t room) noexcept nogil:
        """Reads on until what the model lacks fits, with the seed, into `room` rows."""
        cdef Watermark * m = &self.marks[seq]
        cdef int32_t n
        cdef int32_t i
        while <int32_t> s.tokens.size() - m.synced + 1 > room:
            n = min(<int32_t> s.tokens.size() - m.synced, <int32_t> self.context.n_batch)
            for i in range(m.synced, m.synced + n):
                self.add(s.tokens[i], i, seq, False)
            if self.run() != 0:
                self.forget(seq)
                return False
            m.synced += n
        return True

    cdef void fit_window(self, Sequence * s, llama_seq_id seq) noexcept nogil:
        """Moves the context window on when seed and draft no longer fit, keeping its newer half."""
        cdef Watermark * m = &self.marks[seq]
        cdef Drafting * d = &self.drafting[seq]
        cdef int32_t half = self.capacity // 2
        cdef int32_t n_tokens = <int32_t> s.tokens.size()
        cdef int32_t n_drop = n_tokens - m.gap - half
        d.budget = min(d.budget, half)
        if n_tokens - m.gap + d.budget <= self.capacity:
            return
        if (self.can_shift and m.synced - m.gap >= WINDOW_KEEP + n_drop
                and llama_memory_seq_rm(self.memory, seq, WINDOW_KEEP, WINDOW_KEEP + n_drop)):
            llama_memory_seq_add(self.memory, seq, WINDOW_KEEP + n_drop, -1, -n_drop)
            m.gap += n_drop
            return
        self.forget(seq)
        m.gap = n_tokens - half
        m.synced = m.gap
        d.active = True

    cdef void add(self, llama_token token, int32_t index, llama_seq_id seq, bint output) noexcept nogil:
        """A row for the token at `index` of the sequence, wherever the window puts it."""
        cdef Watermark * m = &self.marks[seq]
        add_row(self.batch, token, index - m.gap, seq, output)
        self.count_row(seq)
        m.reached = max(m.reached, index - m.gap + 1)

    cdef int32_t compute(self) noexcept nogil:
        cdef int32_t code
        if self.head is not None:
            code = self.head.decode(0, self.batch)
        else:
            code = decode_and_wait(self.context.handle.head_lock, self.context.ptr, self.batch)
        llama_batch_ext_clear(self.batch)
        return code

    cdef void cut(self, llama_seq_id seq, int32_t n_valid) noexcept nogil:
        """Removes the cells from the token at index n_valid on, or goes back to the state saved there."""
        cdef int32_t n_cells = n_valid - self.marks[seq].gap
        cdef bint done
        if self.can_cut:
            done = llama_memory_seq_rm(self.memory, seq, n_cells, -1)
        else:
            done = self.saved[seq].n_tokens() == n_cells and self.saved[seq].restore(self.context.ptr, seq)
        if not done:
            self.forget(seq)
