# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Rounds of speculative decoding: propose, verify, commit, for all sequences at once, without the GIL.

One round, seen from Python::

    decoder.plan(seq, budget=8)     # or prompt_rows=512 while the prompt is being read
    decoder.propose(0)              # the first speculator drafts, then the next for who has no draft yet
    decoder.offer(seq, tokens)      # or Python does
    decoder.verify()                # one target decode; the target's sampler decides; memories are cut
    decoder.result(seq)             # what was emitted

What texts have to follow is in _constraints.pyx, and how wide decodes may be in exact mode in _exact_rows.pyx.

Positions. P = |tokens| is the seed's position. The target's batch for a sequence is the seed at P and the k
drafted tokens at P+1..P+k, each an output row: row i holds the logits for position P+i+1. With `a` tokens accepted
the rows 0..a were used and a+1 tokens are emitted; the seed and the first a of them are committed, and everything
from P+a+1 on is cut from the target's memory. The last emitted token is the new seed.

How that is cut depends on the memory, `rollback`. "cut": attention, sliding windows included, drops the cells.
"snapshots": a recurrent state keeps its last few steps (n_rs_seq) and goes back to one of them, as long as it is the
only one: libllama loses the snapshots of a sequence when the decode of another moves its state. "checkpoint": it keeps
only its last; where more than it can take back is at stake its state is saved before the decode, put back after a
rejection, and the accepted tokens are read once more. They are accepted already, so nothing can undo them again.
"""

from libc.stdint cimport int32_t, int64_t, uint32_t
from libcpp.algorithm cimport equal
from libcpp.string cimport string
from libcpp.vector cimport vector

from pyspec._constraints cimport Constraints
from pyspec._exact_rows cimport ExactRows
from pyspec._llama cimport Context, Sampler
from pyspec._sequence cimport Checkpoint, RowSampler, Sequence, TokenLogprobs, add_row, decode_and_wait
from pyspec._speculator cimport CompiledSpeculator, DraftWork, require_left_to_right
from pyspec.libllama cimport (
    llama_batch_ext_clear,
    llama_batch_ext_free,
    llama_batch_ext_init,
    llama_get_logits_ith,
    llama_memory_seq_add,
    llama_memory_seq_pos_max,
    llama_memory_seq_rm,
    llama_model_is_hybrid,
    llama_model_is_recurrent,
    llama_model_n_swa,
    llama_pos,
    llama_seq_id,
    llama_time_us,
    llama_token,
)

import os

from pyspec.errors import DecodeError, InvalidRequest, StateError, UnsupportedModel

cdef dict REASONS = {
    1: "no room in the target's memory",
    2: "aborted",
    -1: "invalid batch",
    -2: "allocation failed",
    -3: "compute failed",
    -100: "libllama threw an exception",
}


cdef int configure(RowSampler * sampler, plan) except -1:
    """Points a row sampler at a plan's samplers, which have to be kept alive."""
    cdef Sampler chain = plan.chain
    cdef Sampler grammar = plan.grammar
    sampler.chain = chain.use()
    sampler.grammar = NULL
    if grammar is not None:
        sampler.grammar = grammar.use()
    sampler.argmax_always = plan.argmax
    sampler.argmax_unless_altered = plan.argmax_unless_altered
    sampler.preselect = plan.preselect
    sampler.history = plan.history
    sampler.needs_accept = plan.needs_accept
    sampler.biased = plan.biased_ids
    sampler.coupled = plan.coupled
    sampler.seed = plan.seed
    return 0


def choose(plan, const float[:, ::1] rows not None, prompt=()):
    """The tokens a plan chooses for consecutive rows of logits, each accepted before the next is chosen.

    Args:
        plan: a pyspec.sampling.SamplerPlan, used up by this: its samplers have seen these tokens afterwards.
        rows: shape (n, n_vocab), float32.
        prompt: token ids the samplers see first.

    Raises:
        ValueError: nothing can be chosen in a row.
    """
    cdef RowSampler sampler
    cdef string error
    cdef Py_ssize_t i
    cdef list chosen = []
    cdef llama_token token
    cdef const uint32_t[:, ::1] masks
    cdef const uint32_t * mask
    constraint = plan.constraint
    configure(&sampler, plan)
    sampler.see_prompt(prompt)
    for i in range(rows.shape[0]):
        mask = NULL
        if constraint is not None and constraint.masker is not None:
            masks = constraint.masker.fill([(constraint, [])])[0][0]
            mask = &masks[0, 0]
        with nogil:
            token = sampler.sample(&rows[i, 0], <int32_t> rows.shape[1], mask, error)
        if token < 0:
            raise ValueError(f"row {i}: {error.decode('utf-8', 'replace')}")
        chosen.append(token)
        if constraint is not None:
            constraint = constraint.accept([token])
            if isinstance(constraint, Sampler):
                grammar, constraint = constraint, None
                sampler.grammar = (<Sampler> grammar).use()
    return chosen


cdef class Decoder:
    """The target, at most one draft model, and the state of every sequence.

    Args:
        target: context of the model whose text is wanted. Its memory is this object's alone.
        speculators: the compiled speculators that may be asked to propose.
        check: verify the invariants after each round (AssertionError); None: as PYSPEC_CHECK says.
        on_device: where checkpoints are needed, leave them on the device that holds the memory.

    Not thread-safe: one thread at a time may call it. Calls release the GIL while libllama works.
    """

    def __cinit__(self, Context target not None, speculators=(), *, check=None, on_device=False):
        target.enter(False)
        try:
            require_left_to_right(target)
            self.memory = target.memory_ptr
            self.batch = llama_batch_ext_init(target.ptr)
        finally:
            target.leave()
        self.target = target
        self.rollback = "cut"
        self.n_cuttable = <int32_t> target.n_ctx
        if llama_model_is_recurrent(target.handle.ptr) or llama_model_is_hybrid(target.handle.ptr):
            self.rollback = "checkpoint"
            self.n_cuttable = 0
            if target.n_rs_seq and target.n_seq_max == 1:
                self.rollback = "snapshots"
                self.n_cuttable = <int32_t> target.n_rs_seq
        self.n_swa = llama_model_n_swa(target.handle.ptr) if not target.swa_full else 0
        self.on_device = bool(on_device)
        self.saved.resize(target.n_seq_max)
        self.speculators = [<CompiledSpeculator?> speculator for speculator in speculators]
        for speculator in self.speculators:
            (<CompiledSpeculator> speculator).require_target(target)
        if len(set(map(id, self.speculators))) < len(self.speculators):
            raise InvalidRequest("a speculator is there twice", name="speculators", value=self.speculators)
        self.winner.assign(target.n_seq_max, -1)
        self.n_vocab = <int32_t> target.n_vocab
        self.checked = os.environ.get("PYSPEC_CHECK", "0") not in ("", "0") if check is None else bool(check)
        self.sequences.resize(target.n_seq_max)
        self.borrowed = [None] * target.n_seq_max
        self.constraints = Constraints(target.n_seq_max, self.n_vocab)
        self.exact = ExactRows()

    def __dealloc__(self):
        if self.batch != NULL:
            llama_batch_ext_free(self.batch)

    cdef int enter(self, bint replaces_results) except -1:
        """Takes hold of the target's context and of what the speculators use."""
        cdef int n = 0
        self.target.enter(replaces_results)
        try:
            for n in range(len(self.speculators)):
                (<CompiledSpeculator> self.speculators[n]).enter()
        except BaseException:
            self.leave(n)
            raise
        return 0

    cdef void leave(self, int n_entered=-1) noexcept:
        cdef int i
        for i in range(len(self.speculators) if n_entered < 0 else n_entered):
            (<CompiledSpeculator> self.speculators[i]).leave()
        self.target.leave()

    cdef Sequence * sequence(self, int seq) except NULL:
        if seq < 0 or <size_t> seq >= self.sequences.size():
            raise InvalidRequest(f"sequence {seq} is outside 0..{self.sequences.size() - 1}", name="seq", value=seq)
        return &self.sequences[seq]

    # -- a sequence's life ---------------------------------------------------------------------------------------

    def begin(self, int seq, prompt, plan, *, stop_tokens=(), int n_logprobs=-1, bint sampled_logprobs=False):
        """Starts a request on a sequence. Tokens the sequence still holds (`retain`) are not read again.

        Args:
            prompt: token ids, at least one more than the sequence holds; those have to be the first ones.
            plan: a pyspec.sampling.SamplerPlan: the sampler chain and what is known about it.
            stop_tokens: ids after which nothing more is accepted (end-of-generation tokens).
            n_logprobs: -1: none; else the log-probability of each emitted token and of so many best ones.
            sampled_logprobs: as they were after the sampler chain, not before it.
        """
        cdef Sequence * s = self.sequence(seq)
        cdef vector[llama_token] tokens = prompt
        cdef size_t n_held
        if tokens.empty():
            raise InvalidRequest("the prompt is empty", name="prompt", value=prompt)
        for token in tokens:
            if not 0 <= token < self.n_vocab:
                raise InvalidRequest(
                    f"token {token} is outside 0..{self.n_vocab - 1}", name="prompt", value=token)
        if s.active:
            self.end(seq)
        n_held = s.tokens.size()
        if n_held >= tokens.size() or not equal(s.tokens.begin(), s.tokens.end(), tokens.begin()):
            self.end(seq)
            n_held = 0
        configure(&s.sampler, plan)
        self.borrowed[seq] = plan
        self.constraints.begin(seq, s, plan.constraint)
        s.active = True
        s.pending.assign(tokens.begin() + n_held, tokens.end())
        s.stop_tokens = stop_tokens
        s.n_logprobs = n_logprobs
        s.sampled_logprobs = sampled_logprobs
        s.sampler.see_prompt(tokens)

    def end(self, int seq):
        """Forgets a sequence and frees its cells in all memories."""
        cdef Sequence * s = self.sequence(seq)
        cdef CompiledSpeculator speculator
        self.enter(False)
        try:
            llama_memory_seq_rm(self.memory, seq, -1, -1)
            for speculator in self.speculators:
                speculator.forget(seq)
        finally:
            self.leave()
        s.reset()
        self.give_back(seq)

    def release(self, int seq):
        """Ends the request on a sequence; what the memories hold of it stays for one that begins the same way."""
        cdef Sequence * s = self.sequence(seq)
        cdef CompiledSpeculator speculator
        self.enter(False)
        try:
            for speculator in self.speculators:
                if s.planned:
                    speculator.dropped(seq)
                speculator.released(seq)
        finally:
            self.leave()
        s.release()
        self.give_back(seq)

    cdef int give_back(self, int seq) except -1:
        """Lets go of the Python objects of a request."""
        self.borrowed[seq] = None
        self.constraints.end(seq)
        return 0

    def held(self, int seq):
        """Tokens whose results the target's memory holds."""
        return self.sequence(seq).tokens

    def can_rewind(self, int furthest):
        """Whether a sequence whose memory has reached so many positions can be cut to any of its beginnings.

        Cells outside the sliding window of the furthest position may have been used again.
        """
        return self.rollback == "cut" and (self.n_swa == 0 or furthest <= self.n_swa)

    def furthest(self, int seq):
        """The furthest position the memory of a sequence has reached since it was empty."""
        return self.sequence(seq).furthest

    def retain(self, int seq, int n_tokens):
        """Cuts what a released sequence holds to its first tokens, for a text that begins with them.

        Returns:
            How many it holds now: n_tokens; fewer where a speculator needs what the target says about the last of them
            once more; 0 where its memory can't go back that far.
        """
        cdef Sequence * s = self.sequence(seq)
        cdef CompiledSpeculator speculator
        cdef int32_t n_held
        cdef int32_t n = min(max(n_tokens, 0), <int32_t> s.tokens.size())
        if s.active:
            raise InvalidRequest(f"sequence {seq} is in use", name="seq", value=seq)
        if n == <int32_t> s.tokens.size():
            return n
        n_held = n
        for speculator in self.speculators:
            n_held = min(n_held, n - speculator.reads_again(seq, n))
        if n_held <= 0 or not self.can_rewind(s.furthest):
            self.end(seq)
            return 0
        self.enter(False)
        try:
            llama_memory_seq_rm(self.memory, seq, n_held, -1)
            for speculator in self.speculators:
                speculator.rewind(seq, n_held, n)
        finally:
            self.leave()
        s.tokens.resize(n_held)
        return n_held

    def shift(self, int seq, int n_keep, int n_discard):
        """Forgets committed tokens in the middle: the n_discard ones behind the first n_keep; the others move up.

        Raises:
            UnsupportedModel: positions in the target's memory can't be changed.
        """
        cdef Sequence * s = self.sequence(seq)
        cdef CompiledSpeculator speculator
        cdef int32_t end = n_keep + n_discard
        if not self.target.can_shift or self.rollback != "cut":
            raise UnsupportedModel(f"{self.target.model.path} ({self.target.model_arch()}) keeps its tokens in a memory "
                                   f"that can't be shifted, or with keys of a type that can't")
        if n_keep < 0 or n_discard < 1 or end > <int32_t> s.tokens.size():
            raise InvalidRequest(f"{n_discard} tokens behind {n_keep} can't be discarded of {s.tokens.size()}",
                                 name="n_discard", value=n_discard)
        self.enter(False)
        try:
            llama_memory_seq_rm(self.memory, seq, n_keep, end)
            llama_memory_seq_add(self.memory, seq, end, -1, -n_discard)
            for speculator in self.speculators:
                speculator.shifted(seq, n_keep, n_discard)
        finally:
            self.leave()
        s.tokens.erase(s.tokens.begin() + n_keep, s.tokens.begin() + end)

    def save(self, int seq):
        """What the memories hold of a sequence, for `load`.

        Returns:
            (tokens, the furthest position the target's memory has reached, its state, each speculator's or None).
        """
        cdef Sequence * s = self.sequence(seq)
        cdef CompiledSpeculator speculator
        target = self.target.state_seq_get(seq)
        return s.tokens, s.furthest, target, [speculator.save(seq) for speculator in self.speculators]

    def load(self, int seq, tokens, int furthest, state, speculators=()):
        """Fills a sequence that nobody uses with what `save` gave.

        Raises:
            StateError: the bytes are damaged, or belong to another model or layout. The sequence is empty then.
        """
        cdef Sequence * s = self.sequence(seq)
        cdef vector[llama_token] held = tokens
        cdef CompiledSpeculator speculator
        if s.active:
            raise InvalidRequest(f"sequence {seq} is in use", name="seq", value=seq)
        self.end(seq)
        try:
            self.target.state_seq_set(state, seq)
            if llama_memory_seq_pos_max(self.memory, seq) != <llama_pos> held.size() - 1:
                raise StateError(f"the state does not hold the {held.size()} tokens it is said to")
            for speculator, saved in zip(self.speculators, speculators):
                if saved is not None:
                    speculator.load(seq, saved, <int32_t> held.size())
        except BaseException:
            self.end(seq)
            raise
        s.tokens = held
        s.furthest = max(furthest, <int32_t> held.size())

    def plan(self, int seq, *, int budget=0, int prompt_rows=0):
        """Opens a round for one sequence. Sequences without a plan sit the round out.

        Args:
            budget: most tokens that may be drafted; 0: none are asked for.
            prompt_rows: how many pending tokens to evaluate, while ``pending(seq)`` is above 0.
        """
        cdef Sequence * s = self.sequence(seq)
        if s.planned:  # and nothing came of it
            self.enter(False)
            try:
                for speculator in self.speculators:
                    (<CompiledSpeculator> speculator).dropped(seq)
            finally:
                self.leave()
        s.begin_round()
        s.planned = True
        self.winner[seq] = -1
        s.budget = max(budget, 0)
        s.prompt_rows = min(max(prompt_rows, 0), <int32_t> s.pending.size())

    def set_budget(self, int seq, int budget):
        """Changes how much may be drafted for a planned sequence; 0: speculators that are asked now pass it by."""
        self.sequence(seq).budget = max(budget, 0)

    def cut(self, int seq, int length):
        """Shortens this round's draft; cut to nothing, another speculator may be asked."""
        cdef Sequence * s = self.sequence(seq)
        if <int32_t> s.draft.size() > max(length, 0):
            s.draft.resize(max(length, 0))
            if s.draft.empty():
                self.winner[seq] = -1

    def prepare(self, int which):
        """Lets one speculator look at the planned sequences before it is decided who asks it: the draft model chooses
        the output head it would draft with.
        """
        cdef CompiledSpeculator speculator = self.speculators[which]
        speculator.enter()
        try:
            with nogil:
                speculator.prepare(&self.sequences)
        finally:
            speculator.leave()

    def propose(self, int which):
        """Lets one speculator draft for all planned sequences that have a budget and no draft yet."""
        cdef CompiledSpeculator speculator
        cdef size_t seq
        if not 0 <= which < len(self.speculators):
            raise InvalidRequest(f"there is no speculator {which}; there are {len(self.speculators)}", name="which",
                                 value=which)
        speculator = self.speculators[which]
        speculator.enter()
        try:
            with nogil:
                speculator.propose(&self.sequences)
                for seq in range(self.sequences.size()):
                    if self.winner[seq] < 0 and not self.sequences[seq].draft.empty():
                        self.winner[seq] = which
                        self.constraints.fit(&self.sequences[seq])
        finally:
            speculator.leave()
        if self.constraints.any(&self.sequences):
            self.constraints.constrain([seq for seq in range(self.sequences.size())
                                        if self.sequences[seq].constrained and self.winner[seq] == which],
                                       &self.sequences)
        self.drop_winners()

    def offer(self, int seq, tokens):
        """Takes a draft from elsewhere for a sequence that has none yet, cut to its budget.

        The draft ends before the first id that is not in the target's vocabulary, or that its grammar refuses. Returns
        how many were taken.
        """
        cdef Sequence * s = self.sequence(seq)
        if not s.generating() or not s.draft.empty():
            return 0
        for token in tokens:
            if <int32_t> s.draft.size() >= s.budget or not 0 <= token < self.n_vocab:
                break
            s.draft.push_back(<llama_token> token)
        if not s.draft.empty():
            self.winner[seq] = <int32_t> len(self.speculators)
            self.constraints.fit(s)
            if s.constrained:
                self.constraints.constrain([seq], &self.sequences)
            self.drop_winners()
        return s.draft.size()

    def forced(self, int seq):
        """Tokens that the sequence's grammar leaves no choice about, as many as its budget allows."""
        cdef Sequence * s = self.sequence(seq)
        if not s.constrained or not s.generating() or s.budget <= 0 or not s.refusal.empty():
            return []
        return self.constraints.forced(seq, s.budget)

    def verify(self):
        """One target decode of all planned sequences; samples, commits, cuts all memories.

        Raises:
            DecodeError: the decode failed (code 1: no room, 2: aborted). Every sequence is as it was before the
                round, without its draft, and the round may be tried again.
        """
        cdef int32_t code
        if self.constraints.any(&self.sequences):
            self.constraints.constrain(
                [seq for seq in range(self.sequences.size()) if self.constraints.needs_masks(seq, &self.sequences[seq])],
                &self.sequences)
            self.drop_winners()
        self.fill_batch()
        if self.n_rows == 0:
            return
        self.enter(True)
        try:
            self.require_room()
            with nogil:
                self.save_checkpoints()
                code = self.decode_and_choose()
            if code == 0:
                self.commit_all()
                if self.constraints.any(&self.sequences):
                    self.constraints.follow(&self.sequences)
            else:
                self.roll_back()
        finally:
            self.leave()
        if code != 0:
            raise DecodeError(
                f"decoding {self.n_rows} rows failed with code {code}: {REASONS.get(code, 'unknown')}", code=code)
        if self.checked:
            self.check()

    def set_synthetic(self, conditional, seed=0):
        """Draws acceptance at random from now on, for benchmarks: the text is no longer the target's.

        Args:
            conditional: chance of each drafted token to be accepted, given that those before it were; empty: off.
            seed: of the generator.
        """
        self.synthetic.set(conditional, seed)

    def set_exact(self, int width, int least_rows=1):
        """Keeps from now on to decodes in which a row is, to the bit, what it is in a narrow one.

        Args:
            width: most rows of a decode that gives tokens, from 1 on.
            least_rows: fewest rows of a sequence in it, up to `width`. Above 1 all sequences of a decode get as many
                rows as the one with the most, so that none is computed alone; rows that nobody asked for are thrown
                away.

        Raises:
            InvalidRequest: a number is out of range, or a row is to be thrown away where the memory can't be cut.
        """
        self.exact.set(self.target, self.rollback, width, least_rows)

    def watch(self, int seq):
        """Remembers the last row of a sequence that the next `verify` commits, for `compare_watched`."""
        self.sequence(seq)
        self.exact.watch(self.target, seq, self.rollback == "cut")

    def compare_watched(self):
        """Decodes the last committed token of the watched sequence again, by itself, and compares its row of logits.

        Returns:
            Whether the two are the same to the bit; None: there was nothing to compare, as no decode was wider than
            it has to be, or this one failed. Then the sequence has to be read again from its start.

        Raises:
            AssertionError: they are not, and the invariants are checked.
        """
        cdef llama_seq_id seq = self.exact.watched
        cdef Sequence * s
        cdef int32_t n
        cdef int verdict
        cdef bint can_cut = self.rollback == "cut"
        if not self.exact.take():
            return None
        s = self.sequence(seq)
        n = self.exact.put_back(self.target, seq, s)
        self.enter(True)
        try:
            with nogil:
                verdict = self.exact.compare(self.target, self.batch, seq, s, n, can_cut)
            if verdict < 0:
                self.read_from_the_start(seq)
                return None
        finally:
            self.leave()
        if self.checked:
            assert verdict, (f"sequence {seq}: the row of token {s.tokens.size() - 1} is not what it is alone; it was "
                             f"computed in a decode of {self.n_rows} rows")
            self.check()
        return verdict == 1

    # -- what Python may know ------------------------------------------------------------------------------------

    def pending(self, int seq):
        """Tokens to read before anything is generated."""
        return self.sequence(seq).pending.size()

    def n_committed(self, int seq):
        """Tokens in the target's memory; the seed is not among them."""
        return self.sequence(seq).tokens.size()

    def tokens(self, int seq):
        """The committed tokens, then the seed if there is one."""
        cdef Sequence * s = self.sequence(seq)
        cdef list tokens = s.tokens
        if s.seed >= 0:
            tokens.append(s.seed)
        return tokens

    def budget(self, int seq):
        """Most tokens that may be drafted this round; 0 while there is no token to go on from."""
        cdef Sequence * s = self.sequence(seq)
        return s.budget if s.generating() else 0

    def n_drafted(self, int seq):
        """Length of this round's draft."""
        return self.sequence(seq).draft.size()

    def drafted(self, int seq):
        """The draft of this round as it will be, or was, submitted."""
        return self.sequence(seq).draft

    def result(self, int seq):
        """The round's outcome: (emitted tokens, drafted, accepted, discarded, why none could be chosen or None)."""
        cdef Sequence * s = self.sequence(seq)
        error = s.error.decode("utf-8", "replace") if s.error.size() else None
        return s.emitted, <int> s.draft.size(), s.n_accepted, s.n_discarded, error

    def dead_end(self, int seq):
        """Whether no token could be chosen this round because of the grammar."""
        return self.sequence(seq).dead_end

    def n_discarded(self, int seq):
        """Drafted tokens of this round that were not submitted: their draft was shorter than its speculator's n_min."""
        return self.sequence(seq).n_discarded

    def n_refused(self, int seq):
        """Drafted tokens of this round that were cut off because the grammar does not let the first of them through."""
        return self.sequence(seq).n_refused

    def logprobs(self, int seq):
        """Per emitted token of the round: (its log-probability, [(id, log-probability), ...] best first)."""
        cdef Sequence * s = self.sequence(seq)
        cdef size_t i
        cdef list rows = []
        for i in range(s.logprobs.size()):
            rows.append((s.logprobs[i].chosen, [(t.id, t.logit) for t in s.logprobs[i].top]))
        return rows

    def last_decode(self):
        """The target's last decode: (rows without those that were thrown away, milliseconds)."""
        return self.n_rows - self.n_company, self.last_us / 1000.0

    def counts(self):
        """Work done since construction: decode calls, rows, draft failures, microseconds by phase."""
        counts = {
            "target_calls": self.calls + self.exact.calls, "target_rows": self.rows + self.exact.rows,
            "verify_us": self.verify_us + self.exact.us, "sampling_us": self.sampling_us,
            "checkpoints": self.n_checkpoints, "restores": self.n_restores, "replayed_rows": self.replayed_rows,
            "checkpoint_us": self.checkpoint_us, "grammar_us": self.constraints.us,
            "spot_checks": self.exact.n_checks, "spot_differences": self.exact.n_differences,
            "draft_calls": 0, "draft_rows": 0, "draft_failures": 0, "draft_us": 0, "draft_decode_us": 0, "draft_read_us": 0,
        }
        for speculator in self.speculators:
            counts.update(speculator.counts())
        return counts

    def spent(self):
        """What was done since the last call of this.

        Returns:
            Milliseconds in decodes of the target, in choosing tokens, in grammars, in checkpoints, in decodes of the
            draft model, and of these in catching up on more than a round; how many draft decodes failed; and for each
            speculator the milliseconds it took.
        """
        cdef DraftWork work
        cdef DraftWork together = DraftWork(0, 0, 0, 0)
        cdef list by_speculator = []
        cdef size_t i = 0
        for speculator in self.speculators:
            work = (<CompiledSpeculator> speculator).work_done()
            together.decode_us += work.decode_us
            together.read_us += work.read_us
            together.failures += work.failures
            by_speculator.append(self.since_settled(7 + i, work.us) / 1000.0)
            i += 1
        return (
            self.since_settled(0, self.verify_us + self.exact.us) / 1000.0,
            self.since_settled(1, self.sampling_us) / 1000.0,
            self.since_settled(2, self.constraints.us) / 1000.0,
            self.since_settled(3, self.checkpoint_us) / 1000.0,
            self.since_settled(4, together.decode_us) / 1000.0,
            self.since_settled(5, together.read_us) / 1000.0,
            self.since_settled(6, together.failures),
            by_speculator,
        )

    cdef int64_t since_settled(self, size_t which, int64_t total):
        cdef int64_t before
        if self.settled.size() <= which:
            self.settled.resize(which + 1)
        before = self.settled[which]
        self.settled[which] = total
        return total - before

    # -- the round -----------------------------------------------------------------------------------------------

    cdef void drop_winners(self) noexcept nogil:
        """A draft of which a grammar has left nothing is nobody's: another speculator may be asked."""
        cdef size_t seq
        for seq in range(self.sequences.size()):
            if self.sequences[seq].draft.empty():
                self.winner[seq] = -1

    cdef void fill_batch(self) noexcept nogil:
        """Seed and draft of every generating sequence, a chunk of what the others have to read."""
        cdef llama_seq_id seq
        cdef Sequence * s
        cdef int32_t i
        cdef int32_t n
        cdef int32_t each
        cdef bint last
        llama_batch_ext_clear(self.batch)
        self.n_rows = 0
        self.n_outputs = 0
        self.n_company = 0
        for seq in range(<llama_seq_id> self.sequences.size()):
            self.sequences[seq].n_rows = 0
        self.arrange()
        each = self.exact.rows_each(&self.sequences, &self.order)
        for seq in self.order:
            s = &self.sequences[seq]
            n = <int32_t> s.tokens.size()
            s.first_row = self.n_rows
            if s.generating():
                add_row(self.batch, s.seed, n, seq, True)
                for i in range(<int32_t> s.draft.size()):
                    add_row(self.batch, s.draft[i], n + 1 + i, seq, True)
                for i in range(1 + <int32_t> s.draft.size(), each):
                    add_row(self.batch, s.seed, n + i, seq, True)
                    self.n_company += 1
                s.n_rows = max(each, 1 + <int32_t> s.draft.size())
                self.n_outputs += s.n_rows
            else:
                for i in range(s.prompt_rows):
                    last = i + 1 == <int32_t> s.pending.size() and s.seed < 0
                    add_row(self.batch, s.pending[i], n + i, seq, last)
                    self.n_outputs += last
                s.n_rows = s.prompt_rows
            self.n_rows += s.n_rows
            s.furthest = max(s.furthest, n + s.n_rows)

    cdef void arrange(self) noexcept nogil:
        """Who takes part in the batch, in an order that keeps prompts apart from single rows.

        Where sequences have pools of their own, libllama computes as many rows of each as the one with the fewest has,
        then what is left. It begins with the first sequence of the batch and takes along those behind it whose numbers
        follow on. A prompt that is taken along costs a piece of work more, and its first row is rounded as a single
        row is, not as it would be alone. So prompts go in falling order, and before the seeds, unless a seed's number
        follows on a prompt's.
        """
        cdef llama_seq_id seq
        cdef llama_seq_id n_seqs = <llama_seq_id> self.sequences.size()
        cdef int32_t n_readers = 0
        cdef bint readers_first = True
        cdef bint was_reading = False
        self.order.clear()
        for seq in range(n_seqs):
            if self.sequences[seq].active and self.sequences[seq].planned and self.sequences[seq].generating():
                self.order.push_back(seq)
                readers_first = readers_first and not was_reading
            was_reading = self.reads_in_batch(seq)
        for seq in range(n_seqs - 1, -1, -1):
            if self.reads_in_batch(seq):
                if readers_first:
                    self.order.insert(self.order.begin() + n_readers, seq)
                    n_readers += 1
                else:
                    self.order.push_back(seq)

    cdef bint reads_in_batch(self, llama_seq_id seq) noexcept nogil:
        """Whether rows of the sequence's prompt are in the batch."""
        cdef Sequence * s = &self.sequences[seq]
        return s.active and s.planned and not s.generating()

    cdef int require_room(self) except -1:
        """More rows than the context was made for end the process in libllama."""
        if self.n_rows > <int32_t> self.target.n_batch:
            self.roll_back()
            raise InvalidRequest(f"{self.n_rows} rows were planned, n_batch is {self.target.n_batch}")
        if self.n_outputs > <int32_t> self.target.n_outputs_max:
            self.roll_back()
            raise InvalidRequest(
                f"{self.n_outputs} output rows were planned, n_outputs_max is {self.target.n_outputs_max}")
        try:
            self.exact.require(self.target, &self.sequences, &self.order, self.n_rows)
        except BaseException:
            self.roll_back()
            raise
        return 0

    cdef int32_t decode_and_choose(self) noexcept nogil:
        cdef llama_seq_id seq
        cdef int64_t t0 = llama_time_us()
        cdef int32_t code = decode_and_wait(self.target.handle.head_lock, self.target.ptr, self.batch)
        cdef int64_t t1 = llama_time_us()
        self.calls += 1
        self.rows += self.n_rows
        self.last_us = t1 - t0
        self.verify_us += self.last_us
        if code == 0:
            for seq in range(<llama_seq_id> self.sequences.size()):
                if self.sequences[seq].n_rows > 0:
                    self.choose_tokens(seq)
            if self.exact.watched >= 0:
                self.exact.keep(self.target, &self.sequences[self.exact.watched], self.n_rows)
            self.sampling_us += llama_time_us() - t1
        return code

    cdef void choose_tokens(self, llama_seq_id seq) noexcept nogil:
        """Row by row the target's own choice, for as long as it is what was drafted.

        Every choice is emitted, whether or not it equals the draft: drafts are compared, never inserted. A stop
        token ends the run; nothing behind it is sampled, so that the sampler's state is that of plain decoding.
        """
        cdef Sequence * s = &self.sequences[seq]
        cdef int32_t row = 0
        cdef llama_token token
        cdef const float * logits
        cdef const uint32_t * mask = NULL
        cdef TokenLogprobs lp
        if not s.chooses():
            return
        if not s.generating():
            row = s.prompt_rows - 1
        if not s.refusal.empty():
            s.error = s.refusal
            s.dead_end = True
            return
        while True:
            logits = llama_get_logits_ith(self.target.ptr, s.first_row + row)
            if s.masks != NULL:
                mask = s.masks + <size_t> s.n_accepted * s.mask_words
            token = s.sampler.sample(logits, self.n_vocab, mask, s.error)
            if token < 0:
                s.dead_end = s.sampler.dead_end
                return
            if self.synthetic.active() and s.n_accepted < <int32_t> s.draft.size():
                if self.accept_at_random(s, row):
                    s.n_accepted += 1
                    row += 1
                    continue
                s.emitted.push_back(token)
                return
            s.emitted.push_back(token)
            if s.n_logprobs >= 0:
                if s.sampled_logprobs:
                    s.sampler.sampled_logprobs(token, s.n_logprobs, lp)
                else:
                    s.sampler.logprobs(logits, self.n_vocab, token, s.n_logprobs, lp)
                s.logprobs.push_back(lp)
            if s.n_accepted == <int32_t> s.draft.size() or token != s.draft[s.n_accepted]:
                return
            s.n_accepted += 1
            if s.stops_at(token):
                return
            row += 1

    cdef bint accept_at_random(self, Sequence * s, int32_t row) noexcept nogil:
        """With synthetic acceptance: emits the drafted token instead of the chosen one, if chance has it so."""
        cdef llama_token drafted = s.draft[s.n_accepted]
        if not self.synthetic.accepts(s.n_accepted) or s.stops_at(drafted):
            return False
        s.emitted.push_back(drafted)
        return True

    # -- memories that can't be cut ------------------------------------------------------------------------------

    cdef void save_checkpoints(self) noexcept nogil:
        """Of the sequences whose drafts are longer than what their memory can take back."""
        cdef llama_seq_id seq
        cdef Sequence * s
        cdef int64_t t0
        self.restored.clear()
        for seq in range(<llama_seq_id> self.sequences.size()):
            s = &self.sequences[seq]
            self.saved[seq].clear()
            if s.n_rows == 0 or <int32_t> s.draft.size() <= self.n_cuttable:
                continue
            t0 = llama_time_us()
            if self.saved[seq].save(self.target.ptr, seq, <int32_t> s.tokens.size(), self.on_device):
                self.n_checkpoints += 1
            self.checkpoint_us += llama_time_us() - t0

    cdef void read_accepted_again(self) noexcept nogil:
        """Puts back the states that went too far, and reads what is committed behind them, in one decode for all."""
        cdef int64_t t0 = llama_time_us()
        cdef llama_seq_id seq
        cdef Sequence * s
        cdef int32_t i
        cdef int32_t n_rows = 0
        cdef bint failed = False
        llama_batch_ext_clear(self.batch)
        for seq in self.restored:
            s = &self.sequences[seq]
            self.n_restores += 1
            if not self.saved[seq].restore(self.target.ptr, seq):
                failed = True
                continue
            for i in range(self.saved[seq].n_tokens(), <int32_t> s.tokens.size()):
                add_row(self.batch, s.tokens[i], i, seq, False)
                n_rows += 1
        if n_rows > 0 and decode_and_wait(self.target.handle.head_lock, self.target.ptr, self.batch) != 0:
            failed = True
        self.replayed_rows += n_rows
        if failed:
            for seq in self.restored:
                s = &self.sequences[seq]
                if llama_memory_seq_pos_max(self.memory, seq) != <llama_pos> s.tokens.size() - 1 or n_rows == 0:
                    llama_memory_seq_rm(self.memory, seq, -1, -1)
        self.checkpoint_us += llama_time_us() - t0

    cdef bint cut_memory(self, llama_seq_id seq, int32_t n_tokens) noexcept nogil:
        """After a failed decode: the memory holds these first tokens and no more. False: it can't go back to that."""
        if llama_memory_seq_pos_max(self.memory, seq) == n_tokens - 1:
            return True
        if self.n_cuttable < <int32_t> self.target.n_ctx:  # what a state can take back after a failure nobody knows
            return self.saved[seq].n_tokens() == n_tokens and self.saved[seq].restore(self.target.ptr, seq)
        return llama_memory_seq_rm(self.memory, seq, n_tokens, -1)

    cdef void read_from_the_start(self, llama_seq_id seq):
        """Makes what was committed a prompt again, as the memory holds nothing of it any more."""
        cdef Sequence * s = &self.sequences[seq]
        cdef CompiledSpeculator speculator
        llama_memory_seq_rm(self.memory, seq, -1, -1)
        s.pending.insert(s.pending.begin(), s.tokens.begin(), s.tokens.end())
        s.tokens.clear()
        for speculator in self.speculators:
            speculator.forget(seq)

    cdef void commit(self, llama_seq_id seq) noexcept nogil:
        """Moves what is settled into `tokens`, makes the last emitted token the seed, cuts the memory."""
        cdef Sequence * s = &self.sequences[seq]
        cdef int32_t n_before = <int32_t> s.tokens.size()
        cdef size_t i
        if not s.generating():
            s.tokens.insert(s.tokens.end(), s.pending.begin(), s.pending.begin() + s.prompt_rows)
            s.pending.erase(s.pending.begin(), s.pending.begin() + s.prompt_rows)
        elif not s.emitted.empty():
            s.tokens.push_back(s.seed)
            for i in range(s.emitted.size() - 1):
                s.tokens.push_back(s.emitted[i])
        if not s.emitted.empty():
            s.seed = s.emitted.back()
        s.planned = False
        s.budget = 0
        if <int32_t> s.tokens.size() < n_before + s.n_rows:
            if n_before + s.n_rows - <int32_t> s.tokens.size() <= self.n_cuttable:
                llama_memory_seq_rm(self.memory, seq, <llama_pos> s.tokens.size(), -1)
            else:
                self.restored.push_back(seq)

    cdef void commit_all(self):
        """Every sequence of the round, and every speculator is told."""
        cdef llama_seq_id seq
        cdef int32_t i
        cdef vector[int32_t] n_before
        cdef CompiledSpeculator speculator
        for speculator in self.speculators:
            with nogil:
                speculator.observe(&self.sequences, self.n_rows)
        for seq in range(<llama_seq_id> self.sequences.size()):
            n_before.push_back(<int32_t> self.sequences[seq].tokens.size())
            if self.sequences[seq].n_rows > 0:
                self.commit(seq)
        for i, speculator in enumerate(self.speculators):
            for seq in range(<llama_seq_id> self.sequences.size()):
                if self.sequences[seq].n_rows > 0:
                    speculator.committed(seq, &self.sequences[seq], n_before[seq], self.winner[seq] == i)
        if not self.restored.empty():
            with nogil:
                self.read_accepted_again()
            for seq in self.restored:
                if llama_memory_seq_pos_max(self.memory, seq) != <llama_pos> self.sequences[seq].tokens.size() - 1:
                    self.read_from_the_start(seq)

    cdef void roll_back(self):
        """After a failed decode: all memories back to the committed tokens, the drafts dropped."""
        cdef llama_seq_id seq
        cdef Sequence * s
        cdef CompiledSpeculator speculator
        for seq in range(<llama_seq_id> self.sequences.size()):
            s = &self.sequences[seq]
            if s.n_rows == 0:
                continue
            for speculator in self.speculators:
                speculator.dropped(seq)
            if not self.cut_memory(seq, <int32_t> s.tokens.size()):
                self.read_from_the_start(seq)
            s.begin_round()

    # -- invariants ----------------------------------------------------------------------------------------------

    def check(self):
        """Compares the bookkeeping with all memories; AssertionError names the sequence and what is off."""
        cdef llama_seq_id seq
        cdef Sequence * s
        cdef llama_pos last
        cdef size_t i
        self.enter(False)
        self.leave()
        for seq in range(<llama_seq_id> self.sequences.size()):
            s = &self.sequences[seq]
            if not s.active:
                continue
            last = llama_memory_seq_pos_max(self.memory, seq)
            assert last == <llama_pos> s.tokens.size() - 1, (
                f"sequence {seq}: the target's memory ends at {last}, {s.tokens.size()} tokens are committed")
            for speculator in self.speculators:
                (<CompiledSpeculator> speculator).check_sequence(seq, s)
            assert s.n_accepted <= <int32_t> s.draft.size(), (
                f"sequence {seq}: {s.n_accepted} of {s.draft.size()} drafted tokens accepted")
            for i in range(s.draft.size()):
                assert 0 <= s.draft[i] < self.n_vocab, f"sequence {seq}: draft token {s.draft[i]} is no token"
            for i in range(<size_t> s.n_accepted):
                assert s.emitted[i] == s.draft[i], f"sequence {seq}: accepted token {i} is not the drafted one"
            if s.draft.size() and s.error.empty():
                assert 1 <= s.emitted.size() <= s.draft.size() + 1, (
                    f"sequence {seq}: {s.emitted.size()} tokens emitted for a draft of {s.draft.size()}")
