# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""What drafting with a model has in common, whatever the model reads: from rows of its logits to proposals.

A draft ends where its budget does, behind a token that ends the text, and before a token that the model is not sure
enough of: less than `p_min`, or, where lengths are chosen by what pays, not worth its row of the target (`floors`) or
the next step (`onwards`). It is made of the model's best tokens, or, where the target's choices are coupled, of those
that the request's sampler would draw from the model's logits with the noise of the target. With a draft vocabulary the
rows are those of a reduced output head (`DraftHead`). What a subclass adds is the memory: which rows it decodes, and
which cells stay.
"""

from libc.stdint cimport int32_t, int64_t
from libcpp.vector cimport vector

from pyspec._draft_head cimport DraftHead
from pyspec._llama cimport Context
from pyspec._sequence cimport Sequence, argmax, confidence, n_confidence, top_k
from pyspec.libllama cimport (
    llama_get_logits_ith,
    llama_memory_seq_rm,
    llama_seq_id,
    llama_time_us,
    llama_token,
)

from pyspec.errors import InvalidRequest


cdef class ModelRunner(CompiledSpeculator):
    """A speculator that drafts with a model of its own.

    Attributes:
        context: the draft model's (first) context.
        head: its reduced output head; None: it drafts with the whole one.
        p_min: drafting stops before a token the model is less sure of.
    """

    cdef int set_up(self, Context context, int n_vocab_target, int n_max, int n_min, float p_min) except -1:
        """What every constructor begins with."""
        if n_max < 1 or not 0 <= n_min <= n_max or not 0.0 <= p_min <= 1.0:
            raise InvalidRequest(
                f"a draft model needs n_max of at least 1, n_min from 0 to n_max and p_min from 0 to 1, not n_max={n_max}, "
                f"n_min={n_min}, p_min={p_min}")
        if context.n_batch < context.n_seq_max:
            raise InvalidRequest(
                f"the draft's context needs a row for each of its {context.n_seq_max} sequences, n_batch is "
                f"{context.n_batch}", name="n_batch", value=context.n_batch)
        self.context = context
        self.n_max = n_max
        self.n_min = n_min
        self.p_min = p_min
        self.n_draftable = min(n_vocab_target, <int32_t> context.n_vocab)
        self.never = -1
        self.drafting.resize(context.n_seq_max)
        self.confidences.resize(context.n_seq_max)
        return 0

    cdef int take_head(self, DraftHead head, contexts) except -1:
        if head is not None and (len(head.contexts) != len(contexts)
                                 or any(a is not b for a, b in zip(head.contexts, contexts))):
            raise InvalidRequest("the head belongs to another context", name="head", value=head)
        self.head = head
        return 0

    def drop_head(self):
        """Drafts with the whole output head from now on, and frees the reduced one."""
        if self.head is not None:
            self.head.close()
            self.head = None

    def set_floors(self, floors, onwards, calibration):
        """Lets drafts end where the next token is not worth its cost, instead of at p_min.

        Args:
            floors: for each position the least chance (of this proposal and all before it being accepted) with which
                the proposal is worth a row of the target; positions beyond the last one have the last one's. Empty:
                back to p_min.
            onwards: for each position the least chance with which another step behind it is worth taking.
            calibration: chance that a proposal is accepted by the model's confidence in it, which is sorted into as
                many equal intervals from 0 to 1 as there are entries.
        """
        self.floors = floors
        self.onwards = onwards
        self.calibration = calibration

    def confidences_of(self, int seq):
        """The model's confidence in each proposal of this round, where p_min or floors made it look."""
        return self.confidences.at(seq)

    def steps(self, int seq):
        """Decodes of the draft model the sequence took part in this round."""
        return self.drafting.at(seq).steps

    def work(self, int seq):
        """What the sequence has taken part in since construction: (decodes, rows of its own in them)."""
        return self.drafting.at(seq).calls, self.drafting.at(seq).rows

    def round_calls(self):
        """The decodes of the draft model in this round: (rows, milliseconds) each."""
        cdef size_t i
        return [(self.call_rows[i], self.call_us[i] / 1000.0) for i in range(self.call_rows.size())]

    def counts(self):
        """Work done since construction: decode calls, rows, failed calls, microseconds."""
        return {
            "draft_calls": self.calls, "draft_rows": self.rows, "draft_failures": self.failures,
            "draft_us": self.time_us, "draft_decode_us": self.decode_us,
            "draft_read_us": self.read_us,
        }

    cdef DraftWork work_done(self) noexcept nogil:
        return DraftWork(self.time_us, self.decode_us, self.read_us, self.failures)

    cdef int require_target(self, Context target) except -1:
        if self.context is target:
            raise InvalidRequest("target and draft need a context each, and were given the same one")
        if self.context.n_seq_max < target.n_seq_max:
            raise InvalidRequest(
                f"the draft's context has {self.context.n_seq_max} sequences, the target's has {target.n_seq_max}",
                name="n_seq_max", value=self.context.n_seq_max)
        return 0

    # -- which head ----------------------------------------------------------------------------------------------

    cdef void prepare(self, vector[Sequence] * sequences) noexcept nogil:
        """Chooses the output head, by all that could draft, whether they will or not."""
        cdef llama_seq_id seq
        cdef Sequence * s
        cdef int32_t n_wanting = 0
        cdef int32_t n_missing = 0
        if self.head is None:
            return
        for seq in range(<llama_seq_id> sequences.size()):
            s = &sequences.at(seq)
            if s.generating() and s.budget > 0:
                n_wanting += 1
                n_missing += self.head.note(seq, s)
        if n_wanting > 0:
            self.head.settle(n_wanting, n_missing)
            self.prepared = True

    cdef void settle_head(self, vector[Sequence] * sequences) noexcept nogil:
        cdef llama_seq_id seq
        cdef int32_t n_drafting = 0
        cdef int32_t n_missing = 0
        if self.head is not None and not self.prepared:
            for seq in range(<llama_seq_id> sequences.size()):
                if self.drafting[seq].active:
                    n_drafting += 1
                    n_missing += self.head.note(seq, &sequences.at(seq))
            self.head.settle(n_drafting, n_missing)
        self.prepared = False

    # -- proposals -----------------------------------------------------------------------------------------------

    cdef int32_t open_round(self, vector[Sequence] * sequences) noexcept nogil:
        cdef llama_seq_id seq
        cdef Sequence * s
        cdef Drafting * d
        cdef int32_t n_drafting = 0
        self.call_rows.clear()
        self.call_us.clear()
        for seq in range(<llama_seq_id> sequences.size()):
            s = &sequences.at(seq)
            d = &self.drafting[seq]
            d.budget = min(s.budget, self.n_max)
            d.steps = 0
            d.chance = 1.0
            self.confidences[seq].clear()
            d.active = s.generating() and s.draft.empty() and d.budget >= max(1, self.n_min) and self.can_draft(seq, s)
            n_drafting += d.active
        return n_drafting

    cdef bint can_draft(self, llama_seq_id seq, Sequence * s) noexcept nogil:
        return True

    cdef void take_proposal(self, Sequence * s, llama_seq_id seq) noexcept nogil:
        """Appends the model's choice, or ends the draft: not sure enough, long enough, at its end."""
        cdef Drafting * d = &self.drafting[seq]
        cdef llama_token token = -1
        cdef bint coupled = s.sampler.coupled
        if coupled or self.p_min > 0.0 or not self.floors.empty():
            self.look(d.row, max(n_confidence, s.sampler.n_alike()) if coupled else n_confidence)
            token = self.confident(seq, s.draft.size())
        else:
            token = self.best_token(d.row)
        if coupled and token >= 0:
            token = s.sampler.draw_alike(self.best, <int32_t> s.draft.size())
        if token >= 0:
            s.draft.push_back(token)
        d.active = token >= 0 and <int32_t> s.draft.size() < d.budget and not s.stops_at(token)
        if d.active and not self.onwards.empty():
            d.active = d.chance >= self.onwards[min(s.draft.size(), self.onwards.size()) - 1]

    cdef bint discard_short(self, Sequence * s) noexcept nogil:
        if <int32_t> s.draft.size() >= self.n_min:
            return False
        s.n_discarded += <int32_t> s.draft.size()
        s.draft.clear()
        return True

    cdef const float * logits_of(self, int32_t row) noexcept nogil:
        """The logits of an output row, or NULL."""
        return llama_get_logits_ith(self.context.ptr, row)

    cdef void look(self, int32_t row, int32_t n) noexcept nogil:
        """The n best tokens of an output row, best first, in `best`; with a reduced head the ten best that it has."""
        cdef const float * logits
        cdef size_t i
        self.best.clear()
        if self.head is not None and self.head.reduces():
            self.head.best(row, self.n_draftable, self.best)
            return
        logits = self.logits_of(row)
        if logits == NULL:
            return
        top_k(logits, self.n_draftable, n + (self.never >= 0), self.best)
        for i in range(self.best.size()):
            if self.best[i].id == self.never:
                self.best.erase(self.best.begin() + i)
                break
        if <int32_t> self.best.size() > n:
            self.best.pop_back()

    cdef llama_token best_token(self, int32_t row) noexcept nogil:
        """The best token of an output row, or -1."""
        cdef const float * logits
        cdef llama_token token
        if self.head is not None and self.head.reduces():
            self.look(row, n_confidence)
            return self.best[0].id if not self.best.empty() else -1
        logits = self.logits_of(row)
        if logits == NULL:
            return -1
        token = argmax(logits, self.n_draftable)
        if token != self.never:
            return token
        self.look(row, n_confidence)
        return self.best[0].id if not self.best.empty() else -1

    cdef llama_token confident(self, llama_seq_id seq, size_t position) noexcept nogil:
        """The best of the ten tokens if the model is sure enough of it, else -1."""
        if self.best.empty():
            return -1
        return self.sure(seq, position, confidence(self.best), self.best[0].id)

    cdef llama_token sure(self, llama_seq_id seq, size_t position, float p, llama_token token) noexcept nogil:
        """The token, if a confidence of p in it is enough, else -1."""
        cdef Drafting * d = &self.drafting[seq]
        cdef size_t interval
        if p < self.p_min:
            return -1
        if not self.floors.empty():
            interval = min(<size_t> (p * self.calibration.size()), self.calibration.size() - 1)
            d.chance *= self.calibration[interval]
            if d.chance < self.floors[min(position, self.floors.size() - 1)]:
                return -1
        self.confidences[seq].push_back(p)
        return token

    # -- decodes -------------------------------------------------------------------------------------------------

    cdef void count_row(self, llama_seq_id seq) noexcept nogil:
        cdef Drafting * d = &self.drafting[seq]
        self.n_rows += 1
        d.rows += 1
        d.calls += not d.in_batch
        d.in_batch = True

    cdef int32_t compute(self) noexcept nogil:
        return -1

    cdef int32_t run(self) noexcept nogil:
        cdef llama_seq_id seq
        cdef int64_t t0 = llama_time_us()
        cdef int32_t code = self.compute()
        t0 = llama_time_us() - t0
        self.decode_us += t0
        if self.n_rows > 2 * <int32_t> self.drafting.size():  # a prompt, or what others drafted
            self.read_us += t0
        self.call_rows.push_back(self.n_rows)
        self.call_us.push_back(t0)
        self.calls += 1
        self.rows += self.n_rows
        self.failures += code != 0 and code != ABORTED
        self.n_rows = 0
        for seq in range(<llama_seq_id> self.drafting.size()):
            self.drafting[seq].in_batch = False
        return code

    cdef void add_trial(self, int32_t rows, bint reduced) noexcept nogil:
        pass

    cdef object timed(self, int32_t rows, int repetitions, bint reduced):
        cdef int r
        cdef int32_t code = 0
        self.enter()
        self.call_us.clear()
        try:
            with nogil:
                for r in range(repetitions):
                    self.add_trial(rows, reduced)
                    code = self.run()
                    llama_memory_seq_rm(self.context.memory_ptr, 0, -1, -1)
                    if code != 0:
                        break
        finally:
            self.leave()
        times = [us / 1000.0 for us in self.call_us]
        self.call_us.clear()
        self.call_rows.clear()
        return times if code == 0 else times[:len(times) - 1]
