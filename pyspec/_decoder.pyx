# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Rounds of speculative decoding: propose, verify, commit, for all sequences at once, without the GIL.

One round, seen from Python::

    decoder.plan(seq, budget=8)     # or prompt_rows=512 while the prompt is being read
    decoder.propose()               # the draft model fills the drafts
    decoder.offer(seq, tokens)      # or somebody else does
    decoder.verify()                # one target decode; the target's sampler decides; memories are cut
    decoder.result(seq)             # what was emitted

Positions. P = |tokens| is the seed's position. The target's batch for a sequence is the seed at P and the k
drafted tokens at P+1..P+k, each an output row: row i holds the logits for position P+i+1. With `a` tokens accepted
the rows 0..a were used and a+1 tokens are emitted; the seed and the first a of them are committed, and everything
from P+a+1 on is cut from the target's memory. The last emitted token is the new seed.

The draft is never evaluated twice: its memory keeps the cells of accepted proposals, and what it has not seen is
fed together with the next seed (`Sequence.synced` is the watermark). ``replay=True`` does instead what llama.cpp's
common/speculative.cpp does, evaluating every target batch on the draft as well; it is there to compare with.
"""

from libc.stdint cimport int32_t, int64_t
from libcpp.vector cimport vector

from pyspec._llama cimport Context, Sampler
from pyspec.libllama cimport (
    llama_batch_ext,
    llama_batch_ext_add_token,
    llama_batch_ext_clear,
    llama_batch_ext_free,
    llama_batch_ext_init,
    llama_batch_ext_set_output_logits,
    llama_batch_ext_set_pos,
    llama_get_logits_ith,
    llama_memory_can_shift,
    llama_memory_seq_add,
    llama_memory_seq_pos_max,
    llama_memory_seq_rm,
    llama_pos,
    llama_seq_id,
    llama_time_us,
    llama_token,
)

import os

from pyspec.errors import DecodeError, InvalidRequest

# Tokens that stay at the front when the draft's window moves on: attention leans on the first few
# (Xiao et al., "Efficient Streaming Language Models with Attention Sinks", 2023).
cdef int32_t WINDOW_KEEP = 4

cdef int32_t ABORTED = 2

cdef dict REASONS = {
    1: "no room in the target's memory",
    2: "aborted",
    -1: "invalid batch",
    -2: "allocation failed",
    -3: "compute failed",
    -100: "libllama threw an exception",
}


cdef inline int32_t add_row(
    llama_batch_ext * batch, llama_token token, llama_pos pos, llama_seq_id seq, bint output
) noexcept nogil:
    cdef int32_t row = llama_batch_ext_add_token(batch, seq, token)
    llama_batch_ext_set_pos(batch, row, &pos)
    if output:
        llama_batch_ext_set_output_logits(batch, row, True)
    return row


cdef class Decoder:
    """The target, at most one draft model, and the state of every sequence.

    Args:
        target: context of the model whose text is wanted. Its memory is this object's alone.
        draft: context of a smaller model with the same vocabulary, or None.
        n_min: shortest draft of the draft model that is submitted; shorter ones are discarded.
        p_min: 0..1; the draft model stops before a token it is less sure of (softmax over its ten best).
        replay: evaluate every target batch on the draft as well instead of synchronising lazily.
        check: verify the invariants after each round (AssertionError); None: as PYSPEC_CHECK says.

    Not thread-safe: one thread at a time may call it. Calls release the GIL while libllama works.
    """

    def __cinit__(self, Context target not None, Context draft=None, *, int n_min=0, float p_min=0.0,
                  bint replay=False, check=None):
        self.target = target
        self.draft = draft
        self.n_min = n_min
        self.p_min = p_min
        self.replay = replay and draft is not None
        self.checked = os.environ.get("PYSPEC_CHECK", "0") not in ("", "0") if check is None else bool(check)
        target.enter(False)
        try:
            self.target_memory = target.memory_ptr
            self.target_batch = llama_batch_ext_init(target.ptr)
        finally:
            target.leave()
        self.n_vocab = <int32_t> target.n_vocab
        self.n_draftable = self.n_vocab
        if draft is not None:
            draft.enter(False)
            try:
                self.draft_memory = draft.memory_ptr
                self.draft_batch = llama_batch_ext_init(draft.ptr)
                self.draft_can_shift = llama_memory_can_shift(self.draft_memory)
            finally:
                draft.leave()
            self.n_draftable = min(self.n_vocab, <int32_t> draft.n_vocab)
            self.draft_capacity = <int32_t> draft.n_ctx_seq
        self.sequences.resize(target.n_seq_max)
        self.borrowed = [None] * target.n_seq_max

    def __dealloc__(self):
        if self.target_batch != NULL:
            llama_batch_ext_free(self.target_batch)
        if self.draft_batch != NULL:
            llama_batch_ext_free(self.draft_batch)

    cdef Sequence * sequence(self, int seq) except NULL:
        if seq < 0 or <size_t> seq >= self.sequences.size():
            raise InvalidRequest(f"sequence {seq} is outside 0..{self.sequences.size() - 1}", name="seq", value=seq)
        return &self.sequences[seq]

    # -- a sequence's life ---------------------------------------------------------------------------------------

    def begin(self, int seq, prompt, plan, *, stop_tokens=(), int n_logprobs=-1):
        """Starts a request on a sequence; whatever the sequence held is forgotten.

        Args:
            prompt: token ids, at least one, all inside the target's vocabulary (checked by the caller).
            plan: a pyspec.sampling.SamplerPlan: the sampler chain and what is known about it.
            stop_tokens: ids after which nothing more is accepted (end-of-generation tokens).
            n_logprobs: -1: none; else the log-probability of each emitted token and of so many best ones.
        """
        cdef Sequence * s = self.sequence(seq)
        cdef Sampler chain = plan.chain
        cdef Sampler grammar = plan.grammar
        self.end(seq)
        self.borrowed[seq] = (chain, grammar)
        s.active = True
        s.pending = prompt
        s.stop_tokens = stop_tokens
        s.n_logprobs = n_logprobs
        s.sampler.chain = chain.ptr
        if grammar is not None:
            s.sampler.grammar = grammar.ptr
        s.sampler.use_argmax = plan.argmax
        s.sampler.preselect = plan.preselect
        s.sampler.history = plan.history
        s.sampler.needs_accept = plan.needs_accept
        s.sampler.biased = plan.biased_ids
        s.sampler.see_prompt(s.pending)

    def end(self, int seq):
        """Forgets a sequence and frees its cells in both memories."""
        cdef Sequence * s = self.sequence(seq)
        self.target.enter(False)
        try:
            llama_memory_seq_rm(self.target_memory, seq, -1, -1)
        finally:
            self.target.leave()
        if self.draft is not None:
            self.draft.enter(False)
            try:
                llama_memory_seq_rm(self.draft_memory, seq, -1, -1)
            finally:
                self.draft.leave()
        s.reset()
        self.borrowed[seq] = None

    def plan(self, int seq, *, int budget=0, int prompt_rows=0):
        """Opens a round for one sequence.

        Args:
            budget: most tokens that may be drafted; 0: none are asked for.
            prompt_rows: how many prompt tokens to evaluate, while ``pending(seq)`` is above 0.
        """
        cdef Sequence * s = self.sequence(seq)
        s.begin_round()
        s.budget = max(budget, 0)
        s.prompt_rows = min(max(prompt_rows, 0), <int32_t> s.pending.size())

    def propose(self):
        """Lets the draft model draft for all planned sequences that have a budget and no draft yet.

        A draft model that fails ends its drafts early and is counted; it never fails the round.
        """
        if self.draft is None:
            return
        self.draft.enter(True)
        try:
            with nogil:
                self.c_propose()
        finally:
            self.draft.leave()

    def offer(self, int seq, tokens):
        """Takes a draft from elsewhere for a sequence that has none yet, cut to its budget.

        The draft ends before the first id that is not in the target's vocabulary. Returns how many were taken.
        """
        cdef Sequence * s = self.sequence(seq)
        cdef int64_t token
        if not s.generating() or not s.draft.empty():
            return 0
        for token in tokens:
            if <int32_t> s.draft.size() >= s.budget or token < 0 or token >= self.n_vocab:
                break
            s.draft.push_back(<llama_token> token)
        return s.draft.size()

    def verify(self):
        """One target decode of all planned sequences; samples, commits, cuts both memories.

        Raises:
            DecodeError: the decode failed (code 1: no room, 2: aborted). Every sequence is as it was before the
                round, without its draft, and the round may be tried again.
        """
        cdef int32_t code
        self.fill_target_batch()
        if self.n_target_rows == 0:
            return
        if self.n_target_rows > <int32_t> self.target.n_batch:
            raise InvalidRequest(f"{self.n_target_rows} rows were planned, n_batch is {self.target.n_batch}")
        if self.n_target_outputs > <int32_t> self.target.n_outputs_max:
            raise InvalidRequest(
                f"{self.n_target_outputs} output rows were planned, n_outputs_max is {self.target.n_outputs_max}")
        self.target.enter(True)
        try:
            if self.draft is not None:
                self.draft.enter(True)
            try:
                with nogil:
                    code = self.c_verify()
            finally:
                if self.draft is not None:
                    self.draft.leave()
        finally:
            self.target.leave()
        if code != 0:
            raise DecodeError(
                f"decoding {self.n_target_rows} rows failed with code {code}: {REASONS.get(code, 'unknown')}",
                code=code)
        if self.checked:
            self.check()

    # -- what Python may know ------------------------------------------------------------------------------------

    def pending(self, int seq):
        """Prompt tokens that are not evaluated yet."""
        return self.sequence(seq).pending.size()

    def n_committed(self, int seq):
        """Tokens in the target's memory; the seed is not among them."""
        return self.sequence(seq).tokens.size()

    def n_synced(self, int seq):
        """Committed tokens that the draft model has read."""
        return self.sequence(seq).synced

    def tokens(self, int seq):
        """The committed tokens, then the seed if there is one."""
        cdef Sequence * s = self.sequence(seq)
        cdef list tokens = s.tokens
        if s.seed >= 0:
            tokens.append(s.seed)
        return tokens

    def drafted(self, int seq):
        """The draft of this round as it will be, or was, submitted."""
        return self.sequence(seq).draft

    def result(self, int seq):
        """The round's outcome: (emitted tokens, drafted, accepted, discarded, why none could be chosen or None)."""
        cdef Sequence * s = self.sequence(seq)
        error = s.error.decode("utf-8", "replace") if s.error.size() else None
        return s.emitted, <int> s.draft.size(), s.n_accepted, s.n_discarded, error

    def logprobs(self, int seq):
        """Per emitted token of the round: (its log-probability, [(id, log-probability), ...] best first)."""
        cdef Sequence * s = self.sequence(seq)
        cdef size_t i
        cdef list rows = []
        for i in range(s.logprobs.size()):
            rows.append((s.logprobs[i].chosen, [(t.id, t.logit) for t in s.logprobs[i].top]))
        return rows

    def counts(self):
        """Work done since construction: decode calls and rows, draft failures, microseconds by phase."""
        return self.counters

    # -- propose -------------------------------------------------------------------------------------------------

    cdef void c_propose(self) noexcept nogil:
        cdef int64_t t0 = llama_time_us()
        cdef llama_seq_id i
        cdef Sequence * s
        self.first_step()
        self.extend_drafts()
        for i in range(<llama_seq_id> self.sequences.size()):
            s = &self.sequences[i]
            if not s.seed_evaluated:
                continue
            if <int32_t> s.draft.size() < self.n_min:
                s.n_discarded = <int32_t> s.draft.size()
                s.draft.clear()
                s.n_evaluated = 0
                self.cut_draft(i, <int32_t> s.tokens.size() + 1)
            if self.replay:
                self.cut_draft(i, <int32_t> s.tokens.size())
                s.seed_evaluated = False
                s.n_evaluated = 0
        self.counters.draft_us += llama_time_us() - t0

    cdef void first_step(self) noexcept nogil:
        """One decode for all: the committed tokens each draft has not seen, and the seed, which gives a row."""
        cdef llama_seq_id i
        cdef Sequence * s
        cdef int32_t n_drafting = 0
        cdef int32_t room
        for i in range(<llama_seq_id> self.sequences.size()):
            s = &self.sequences[i]
            s.drafting = s.generating() and s.budget >= max(1, self.n_min) and s.draft.empty()
            n_drafting += s.drafting
        if n_drafting == 0:
            return
        room = max(1, <int32_t> self.draft.n_batch // n_drafting)
        for i in range(<llama_seq_id> self.sequences.size()):
            if self.sequences[i].drafting:
                self.fit_draft_window(i)
                self.sequences[i].drafting = self.catch_up(i, room)
        for i in range(<llama_seq_id> self.sequences.size()):
            s = &self.sequences[i]
            if s.drafting:
                while s.synced < <int32_t> s.tokens.size():
                    self.add_draft_row(s.tokens[s.synced], s.synced, i, False)
                    s.synced += 1
                s.draft_row = self.n_draft_rows
                self.add_draft_row(s.seed, s.synced, i, True)
        if self.run_draft() == 0:
            for i in range(<llama_seq_id> self.sequences.size()):
                self.sequences[i].seed_evaluated = self.sequences[i].drafting
        else:
            for i in range(<llama_seq_id> self.sequences.size()):
                if self.sequences[i].drafting:
                    self.forget_draft(i)

    cdef void extend_drafts(self) noexcept nogil:
        """Takes a proposal from each sequence that is still drafting, decodes them together, and so on."""
        cdef llama_seq_id i
        cdef Sequence * s
        while True:
            for i in range(<llama_seq_id> self.sequences.size()):
                if self.sequences[i].drafting:
                    self.take_proposal(i)
            for i in range(<llama_seq_id> self.sequences.size()):
                s = &self.sequences[i]
                if s.drafting:
                    s.draft_row = self.n_draft_rows
                    self.add_draft_row(s.draft.back(), <int32_t> (s.tokens.size() + s.draft.size()), i, True)
            if self.n_draft_rows == 0:
                return
            if self.run_draft() != 0:
                for i in range(<llama_seq_id> self.sequences.size()):
                    s = &self.sequences[i]
                    if s.drafting:
                        s.drafting = False
                        self.cut_draft(i, <int32_t> s.tokens.size() + 1 + s.n_evaluated)
                return
            for i in range(<llama_seq_id> self.sequences.size()):
                s = &self.sequences[i]
                if s.drafting:
                    s.n_evaluated = <int32_t> s.draft.size()

    cdef void take_proposal(self, llama_seq_id seq) noexcept nogil:
        """Appends the draft model's best token, or ends the draft: not sure enough, long enough, at its end."""
        cdef Sequence * s = &self.sequences[seq]
        cdef const float * logits = llama_get_logits_ith(self.draft.ptr, s.draft_row)
        cdef llama_token token = -1
        if logits != NULL and self.p_min > 0.0:
            top_k(logits, self.n_draftable, 10, self.best)
            if not self.best.empty() and confidence(self.best) >= self.p_min:
                token = self.best[0].id
        elif logits != NULL:
            token = argmax(logits, self.n_draftable)
        if token < 0:
            s.drafting = False
            return
        s.draft.push_back(token)
        s.drafting = <int32_t> s.draft.size() < s.budget and not s.stops_at(token)

    cdef bint catch_up(self, llama_seq_id seq, int32_t room) noexcept nogil:
        """Feeds the draft model until what it has not seen fits, with the seed, into `room` rows."""
        cdef Sequence * s = &self.sequences[seq]
        cdef int32_t n
        cdef int32_t i
        while <int32_t> s.tokens.size() - s.synced + 1 > room:
            n = min(<int32_t> s.tokens.size() - s.synced, <int32_t> self.draft.n_batch)
            for i in range(s.synced, s.synced + n):
                self.add_draft_row(s.tokens[i], i, seq, False)
            if self.run_draft() != 0:
                self.forget_draft(seq)
                return False
            s.synced += n
        return True

    cdef void fit_draft_window(self, llama_seq_id seq) noexcept nogil:
        """Moves the draft's context window on when seed and draft no longer fit, keeping its newer half."""
        cdef Sequence * s = &self.sequences[seq]
        cdef int32_t half = self.draft_capacity // 2
        cdef int32_t n_tokens = <int32_t> s.tokens.size()
        cdef int32_t n_drop = n_tokens - s.draft_gap - half
        s.budget = min(s.budget, half)
        if n_tokens - s.draft_gap + s.budget <= self.draft_capacity:
            return
        if (self.draft_can_shift and s.synced - s.draft_gap >= WINDOW_KEEP + n_drop
                and llama_memory_seq_rm(self.draft_memory, seq, WINDOW_KEEP, WINDOW_KEEP + n_drop)):
            llama_memory_seq_add(self.draft_memory, seq, WINDOW_KEEP + n_drop, -1, -n_drop)
            s.draft_gap += n_drop
            return
        llama_memory_seq_rm(self.draft_memory, seq, -1, -1)
        s.draft_gap = n_tokens - half
        s.synced = s.draft_gap

    # -- verify and commit ---------------------------------------------------------------------------------------

    cdef int32_t c_verify(self) noexcept nogil:
        cdef llama_seq_id i
        cdef int64_t t0 = llama_time_us()
        cdef int64_t t1
        cdef int32_t code = decode_and_wait(self.target.ptr, self.target_batch)
        t1 = llama_time_us()
        self.counters.target_calls += 1
        self.counters.target_rows += self.n_target_rows
        self.counters.verify_us += t1 - t0
        if code != 0:
            self.roll_back()
            return code
        for i in range(<llama_seq_id> self.sequences.size()):
            if self.sequences[i].n_rows > 0:
                self.choose_tokens(i)
        self.counters.sampling_us += llama_time_us() - t1
        if self.replay:
            self.replay_on_draft()
        for i in range(<llama_seq_id> self.sequences.size()):
            if self.sequences[i].n_rows > 0:
                self.commit(i)
        return 0

    cdef void fill_target_batch(self) noexcept nogil:
        """Seed and draft of every generating sequence, a prompt chunk of the others, rows contiguous."""
        cdef llama_seq_id seq
        cdef Sequence * s
        cdef int32_t i
        cdef int32_t n
        cdef bint last
        llama_batch_ext_clear(self.target_batch)
        self.n_target_rows = 0
        self.n_target_outputs = 0
        for seq in range(<llama_seq_id> self.sequences.size()):
            s = &self.sequences[seq]
            if not s.active:
                continue
            n = <int32_t> s.tokens.size()
            s.first_row = self.n_target_rows
            if s.generating():
                add_row(self.target_batch, s.seed, n, seq, True)
                for i in range(<int32_t> s.draft.size()):
                    add_row(self.target_batch, s.draft[i], n + 1 + i, seq, True)
                s.n_rows = 1 + <int32_t> s.draft.size()
                self.n_target_outputs += s.n_rows
            else:
                for i in range(s.prompt_rows):
                    last = i + 1 == <int32_t> s.pending.size() and s.seed < 0
                    add_row(self.target_batch, s.pending[i], n + i, seq, last)
                    self.n_target_outputs += last
                s.n_rows = s.prompt_rows
            self.n_target_rows += s.n_rows

    cdef void choose_tokens(self, llama_seq_id seq) noexcept nogil:
        """Row by row the target's own choice, for as long as it is what was drafted.

        Every choice is emitted, whether or not it equals the draft: drafts are compared, never inserted. A stop
        token ends the run; nothing behind it is sampled, so that the sampler's state is that of plain decoding.
        """
        cdef Sequence * s = &self.sequences[seq]
        cdef int32_t row = 0
        cdef llama_token token
        cdef const float * logits
        cdef TokenLogprobs lp
        if not s.generating():
            if s.prompt_rows < <int32_t> s.pending.size() or s.seed >= 0:
                return
            row = s.prompt_rows - 1
        while True:
            logits = llama_get_logits_ith(self.target.ptr, s.first_row + row)
            token = s.sampler.sample(logits, self.n_vocab, s.error)
            if token < 0:
                return
            s.emitted.push_back(token)
            if s.n_logprobs >= 0:
                s.sampler.logprobs(logits, self.n_vocab, token, s.n_logprobs, lp)
                s.logprobs.push_back(lp)
            if s.n_accepted == <int32_t> s.draft.size() or token != s.draft[s.n_accepted]:
                return
            s.n_accepted += 1
            if s.stops_at(token):
                return
            row += 1

    cdef void commit(self, llama_seq_id seq) noexcept nogil:
        """Moves what is settled into `tokens`, makes the last emitted token the seed, cuts both memories."""
        cdef Sequence * s = &self.sequences[seq]
        cdef int32_t n_before = <int32_t> s.tokens.size()
        cdef size_t i
        if not s.generating():
            s.tokens.insert(s.tokens.end(), s.pending.begin(), s.pending.begin() + s.prompt_rows)
            s.pending.erase(s.pending.begin(), s.pending.begin() + s.prompt_rows)
            if not s.emitted.empty():
                s.seed = s.emitted.back()
        else:
            if not s.emitted.empty():
                s.tokens.push_back(s.seed)
                for i in range(s.emitted.size() - 1):
                    s.tokens.push_back(s.emitted[i])
                s.seed = s.emitted.back()
            if <int32_t> s.tokens.size() < n_before + s.n_rows:
                llama_memory_seq_rm(self.target_memory, seq, <llama_pos> s.tokens.size(), -1)
        if self.draft_batch == NULL:
            return
        if self.replay:
            if s.synced > <int32_t> s.tokens.size():
                self.cut_draft(seq, <int32_t> s.tokens.size())
                s.synced = min(s.synced, <int32_t> s.tokens.size())
        elif s.seed_evaluated:
            # Its memory holds the seed and n_evaluated proposals; those that were accepted stay.
            s.synced = n_before + 1 + min(s.n_accepted, s.n_evaluated)
            s.synced = min(s.synced, <int32_t> s.tokens.size())
            if s.synced < n_before + 1 + s.n_evaluated:
                self.cut_draft(seq, s.synced)

    cdef void roll_back(self) noexcept nogil:
        """After a failed decode: both memories back to the committed tokens, the drafts dropped."""
        cdef llama_seq_id seq
        cdef Sequence * s
        for seq in range(<llama_seq_id> self.sequences.size()):
            s = &self.sequences[seq]
            if s.n_rows == 0:
                continue
            if not llama_memory_seq_rm(self.target_memory, seq, <llama_pos> s.tokens.size(), -1):
                # A memory that can't be cut: what was committed has to be read again, like a prompt.
                llama_memory_seq_rm(self.target_memory, seq, -1, -1)
                s.pending.insert(s.pending.begin(), s.tokens.begin(), s.tokens.end())
                s.tokens.clear()
                self.forget_draft(seq)
            if s.seed_evaluated:
                self.cut_draft(seq, s.synced)
            s.begin_round()

    cdef void replay_on_draft(self) noexcept nogil:
        """llama.cpp's way: the draft model reads every row of the target's batch too."""
        cdef llama_seq_id seq
        cdef Sequence * s
        cdef int32_t i
        cdef int32_t n
        cdef int32_t row = 0
        cdef bint failed = False
        cdef llama_token token
        cdef int64_t t0 = llama_time_us()
        for seq in range(<llama_seq_id> self.sequences.size()):
            s = &self.sequences[seq]
            n = <int32_t> s.tokens.size()
            for i in range(s.n_rows):
                if not s.generating():
                    token = s.pending[i]
                else:
                    token = s.seed if i == 0 else s.draft[i - 1]
                row += 1
                self.add_draft_row(token, n + i, seq, row == self.n_target_rows)
                if self.n_draft_rows == <int32_t> self.draft.n_batch or row == self.n_target_rows:
                    failed |= self.run_draft() != 0
            s.synced = n + s.n_rows
        if failed:
            for seq in range(<llama_seq_id> self.sequences.size()):
                if self.sequences[seq].n_rows > 0:
                    self.forget_draft(seq)
        self.counters.draft_us += llama_time_us() - t0

    # -- the draft's batch and memory ----------------------------------------------------------------------------

    cdef void add_draft_row(self, llama_token token, int32_t index, llama_seq_id seq, bint output) noexcept nogil:
        """A row for the token at `index` of the sequence, wherever the draft's window puts it."""
        add_row(self.draft_batch, token, index - self.sequences[seq].draft_gap, seq, output)
        self.n_draft_rows += 1

    cdef int32_t run_draft(self) noexcept nogil:
        """Decodes and empties the draft batch. 0, or what went wrong."""
        cdef int32_t code = decode_and_wait(self.draft.ptr, self.draft_batch)
        self.counters.draft_calls += 1
        self.counters.draft_rows += self.n_draft_rows
        self.counters.draft_failures += code != 0 and code != ABORTED
        llama_batch_ext_clear(self.draft_batch)
        self.n_draft_rows = 0
        return code

    cdef void cut_draft(self, llama_seq_id seq, int32_t n_valid) noexcept nogil:
        """Removes the draft's cells from the token at index n_valid on."""
        if not llama_memory_seq_rm(self.draft_memory, seq, n_valid - self.sequences[seq].draft_gap, -1):
            self.forget_draft(seq)

    cdef void forget_draft(self, llama_seq_id seq) noexcept nogil:
        """Empties the draft's memory of the sequence; it will be read again when it next drafts."""
        cdef Sequence * s = &self.sequences[seq]
        if self.draft_batch == NULL:
            return
        llama_memory_seq_rm(self.draft_memory, seq, -1, -1)
        s.synced = 0
        s.draft_gap = 0
        s.seed_evaluated = False
        s.n_evaluated = 0
        s.drafting = False

    # -- invariants ----------------------------------------------------------------------------------------------

    def check(self):
        """Compares the bookkeeping with both memories; AssertionError names the sequence and what is off."""
        cdef llama_seq_id seq
        cdef Sequence * s
        cdef llama_pos last
        cdef size_t i
        for seq in range(<llama_seq_id> self.sequences.size()):
            s = &self.sequences[seq]
            if not s.active:
                continue
            last = llama_memory_seq_pos_max(self.target_memory, seq)
            assert last == <llama_pos> s.tokens.size() - 1, (
                f"sequence {seq}: the target's memory ends at {last}, {s.tokens.size()} tokens are committed")
            if self.draft is not None:
                assert s.synced <= <int32_t> s.tokens.size(), (
                    f"sequence {seq}: the draft has read {s.synced} of {s.tokens.size()} committed tokens")
                last = llama_memory_seq_pos_max(self.draft_memory, seq)
                assert last == s.synced - s.draft_gap - 1, (
                    f"sequence {seq}: the draft's memory ends at {last}, its watermark is {s.synced}, "
                    f"its window starts at {s.draft_gap}")
            assert s.n_accepted <= <int32_t> s.draft.size(), (
                f"sequence {seq}: {s.n_accepted} of {s.draft.size()} drafted tokens accepted")
            for i in range(s.draft.size()):
                assert 0 <= s.draft[i] < self.n_vocab, f"sequence {seq}: draft token {s.draft[i]} is no token"
            for i in range(<size_t> s.n_accepted):
                assert s.emitted[i] == s.draft[i], f"sequence {seq}: accepted token {i} is not the drafted one"
            if s.n_rows and s.draft.size() and s.error.empty():
                assert 1 <= s.emitted.size() <= s.draft.size() + 1, (
                    f"sequence {seq}: {s.emitted.size()} tokens emitted for a draft of {s.draft.size()}")
