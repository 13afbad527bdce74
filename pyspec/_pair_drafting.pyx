# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Drafting from pairs of a token and the hidden state before it: draft-mtp and draft-eagle3, without the GIL.

Pair j is token j with the hidden state of position j - 1. A draft model of this kind reads pairs, and says the token
behind the last one. Of a text T with the seed behind it all pairs up to the seed's, j = |T|, are made of the target's
hidden states, and their cells stay; a proposal is fed back with the draft's own hidden state, and its cell is cut again
when the draft is done, since the target's hidden state of that position will be another.

    round with a of k accepted      pairs fed before the next first proposal
    this draft's, or somebody's     a accepted tokens and the new seed, with the target's rows: a + 1, in one decode
    nobody's                        the new seed

so a round of k proposals evaluates a + k rows, in k decodes. llama.cpp's common/speculative.cpp, which also feeds every
target batch to the draft, evaluates 2k + 1. An encoder (EAGLE-3) reads a + 1 rows, no rejected ones.

Heads. With several NextN layers the i-th proposal is made by the i-th of them. Each is a context of its own, because
the cells of one context belong to all its layers at once, and these read different things: head i is fed the pairs it
has not read, and the i proposals before its own with the hidden states that the heads before it made.

Positions. The pair of the first token has no hidden state before it: NextN layers read it with zeros, and pair j is at
position j; EAGLE-3 leaves it out, and pair j is at position j - 1. After a failure the memory begins anew at the first
pair whose hidden state is known, with a shorter context.
"""

from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy, memset
from libcpp.vector cimport vector

from pyspec._draft_head cimport DraftHead
from pyspec._hidden_drafting cimport Held, HiddenRows, HiddenRunner, add_features, encode_and_wait
from pyspec._llama cimport Context
from pyspec._model_drafting cimport ABORTED, Drafting, ModelRunner
from pyspec._sequence cimport Sequence, add_pair
from pyspec.libllama cimport (
    llama_batch_ext_clear,
    llama_get_embeddings_nextn_ith,
    llama_memory_seq_pos_max,
    llama_seq_id,
    llama_time_us,
    llama_token,
)

from pyspec.errors import InvalidRequest, UnsupportedModel

# Most rows of one call of the encoder: each is an output, for which libllama keeps a row of logits.
cdef int32_t ENCODER_ROWS = 64


cdef class PairRunner(HiddenRunner):
    """A draft model that reads pairs of a token and a hidden state, and how far each sequence has got in it.

    Args:
        contexts: of NextN layers (``ctx_type="mtp"``), one a head, all of one model; or one of an EAGLE-3 model. Their
            memories are this object's alone.
        n_vocab_target: the target's vocabulary size; ids from there on are never proposed.
        n_max: longest draft; with several heads it is no longer than those are many.
        n_min: shortest draft that is submitted; shorter ones are discarded and counted.
        p_min: 0..1: drafting stops before a token the model is less sure of, by a softmax over its ten best.
        n_backlog: rows of hidden states that wait for a sequence's next draft; beyond that the draft reads them anyway.
        head: a reduced output head of the contexts; None: proposals come from the whole one.
    """

    def __cinit__(self, contexts, int n_vocab_target, *, int n_max=3, int n_min=0, float p_min=0.0, n_backlog=None,
                  DraftHead head=None):
        cdef Context context
        cdef llama_seq_id seq
        self.contexts = [<Context?> context for context in contexts]
        if not self.contexts:
            raise InvalidRequest("there is no context to draft with", name="contexts", value=contexts)
        context = self.contexts[0]
        if len(self.contexts) > 1:
            n_max = min(n_max, len(self.contexts))
            n_min = min(n_min, n_max)
        self.set_up(context, n_vocab_target, n_max, n_min, p_min)
        self.take_head(head, self.contexts)
        self.has_encoder = context.model_arch() == "eagle3"
        self.all_outputs = self.has_encoder
        if head is not None and self.all_outputs and <int> context.n_outputs_max_per_seq < n_max + 2:
            raise InvalidRequest(
                f"every row of an EAGLE-3 draft is an output: with a reduced head n_outputs_max_per_seq has to be "
                f"{n_max + 2}, not {context.n_outputs_max_per_seq}", name="n_outputs_max_per_seq",
                value=context.n_outputs_max_per_seq)
        self.lag = 1
        self.skipped = self.has_encoder
        self.name = "draft-eagle3" if self.has_encoder else "draft-mtp"
        if self.has_encoder:
            self.layers = context.model.target_layer_ids
            self.width = context.model.n_embd_inp_enc
        elif context.ctx_type == "mtp":
            self.layers = (-1,)
            self.width = context.model.n_embd_out
        else:
            raise UnsupportedModel(f"{context.model.path} ({context.model_arch()}) does not draft from pairs of a token "
                                   "and a hidden state: neither EAGLE-3 nor a context of NextN layers")
        self.open_heads(self.contexts, n_backlog)
        for i, context in enumerate(self.contexts):
            context.set_embeddings_nextn(True, masked=not self.has_encoder and context.model.mtp_crops_rows)
            if not self.has_encoder:
                context.set_nextn_layer_offset(i)
        self.own.resize(self.n_seq)
        self.encoded.resize(self.n_seq)
        for seq in range(<llama_seq_id> self.n_seq):
            self.own[seq].set_width(context.model.n_embd_out)
            self.encoded[seq].set_width(context.model.n_embd_out)
            self.forget(seq)

    def counts(self):
        """As of every model that drafts, and the rows that the encoder read."""
        return {**ModelRunner.counts(self), "encoder_rows": self.n_encoded}

    def time_decodes(self, int rows, int repetitions, *, bint reduced=True):
        """Decodes on sequence 0 of the first head, which has to be empty and is so afterwards.

        Args:
            rows: of each decode, the last one an output.
            repetitions: how many decodes.
            reduced: with the reduced output head, where there is one.

        Returns:
            Milliseconds of each; fewer of them where one fails.
        """
        if self.mark(0, 0).held > self.mark(0, 0).begin or not 0 < rows <= <int> self.context.n_batch:
            raise InvalidRequest(f"sequence 0 is in use, or {rows} rows are not from 1 to {self.context.n_batch}",
                                 name="rows", value=rows)
        return self.timed(rows, repetitions, reduced)

    cdef void add_trial(self, int32_t rows, bint reduced) noexcept nogil:
        cdef int32_t i
        cdef vector[float] zeros
        cdef bint output
        zeros.resize(self.own[0].width())
        self.current = 0
        if self.head is not None:
            self.head.settle(1, 0 if reduced else 1)
        for i in range(rows):
            output = i + 1 == rows or (self.all_outputs and (self.head is None or rows <= self.n_max + 2))
            add_pair(self.heads[0].batch, 0, i, 0, output, zeros.data(), zeros.size())
            self.n_rows += 1

    # -- the round -----------------------------------------------------------------------------------------------

    cdef int require_target(self, Context target) except -1:
        cdef size_t i
        for i in range(self.layers.size()):  # what leaves the last layer is the state that NextN layers read
            if self.has_encoder and self.layers[i] == target.model.n_layer:
                self.layers[i] = -1
        return HiddenRunner.require_target(self, target)

    cdef void begin_text(self, llama_seq_id seq) noexcept nogil:
        self.rows[seq].clear()
        if self.skipped == 0:
            memset(self.rows[seq].add(-1), 0, self.width * sizeof(float))

    cdef void forget_derived(self, llama_seq_id seq) noexcept nogil:
        self.encoded[seq].clear()
        self.own[seq].clear()

    cdef void propose(self, vector[Sequence] * sequences) noexcept nogil:
        """Fills the draft of every generating sequence that has a budget and no draft yet.

        A decode that fails ends drafts early and is counted; the round goes on with what there is.
        """
        cdef int64_t t0 = llama_time_us()
        cdef llama_seq_id seq
        cdef Sequence * s
        cdef int32_t i
        cdef size_t h
        if self.open_round(sequences) > 0:
            self.settle_head(sequences)
            for seq in range(<llama_seq_id> sequences.size()):
                self.own[seq].clear()
            i = 0
            while self.step(sequences, i):
                i += 1
            for seq in range(<llama_seq_id> sequences.size()):
                s = &sequences.at(seq)
                if self.drafting[seq].steps == 0:
                    continue
                for h in range(self.heads.size()):
                    self.cut(h, seq, <int32_t> s.tokens.size() + 1)
                self.encoded[seq].drop_before(self.needed_from(seq))
                self.discard_short(s)
        self.time_us += llama_time_us() - t0

    cdef bint step(self, vector[Sequence] * sequences, int32_t i) noexcept nogil:
        """The i-th proposal of all sequences that want one, from one decode. False: nobody wants another."""
        cdef llama_seq_id seq
        cdef Sequence * s
        cdef Drafting * d
        cdef int32_t n_tokens
        cdef int32_t n_active = 0
        cdef int32_t room
        cdef const float * row
        cdef bint added = True
        cdef bint more = False
        self.current = <size_t> i if self.heads.size() > 1 else 0
        for seq in range(<llama_seq_id> sequences.size()):
            n_active += self.drafting[seq].active
        if n_active == 0:
            return False
        room = max(1, <int32_t> self.context.n_batch // n_active - i)
        if self.all_outputs:  # each keeps a row of logits
            room = min(room, self.n_max + 2)
        for seq in range(<llama_seq_id> sequences.size()):
            if self.drafting[seq].active:
                self.align(seq, <int32_t> sequences.at(seq).tokens.size() + i)
        if i == 0 and self.has_encoder:
            for seq in range(<llama_seq_id> sequences.size()):
                if self.drafting[seq].active:
                    self.encode(seq, <int32_t> sequences.at(seq).tokens.size())
            self.run_encoder()
        for seq in range(<llama_seq_id> sequences.size()):
            d = &self.drafting[seq]
            if d.active:
                d.active = self.catch_up(&sequences.at(seq), seq, room)
        for seq in range(<llama_seq_id> sequences.size()):
            d = &self.drafting[seq]
            if d.active and added:
                s = &sequences.at(seq)
                added = self.feed(s, seq, <int32_t> s.tokens.size() + i + 1, True)
                d.row = self.n_rows - 1
        if added and self.n_rows == 0:
            return False
        if not added or self.run() != 0:
            self.clear_batch()
            for seq in range(<llama_seq_id> sequences.size()):
                if self.drafting[seq].active:
                    self.drafting[seq].active = False
                    self.drop(self.current, seq)
            return False
        for seq in range(<llama_seq_id> sequences.size()):
            d = &self.drafting[seq]
            if d.active:
                s = &sequences.at(seq)
                n_tokens = <int32_t> s.tokens.size()
                d.steps += 1
                self.take_proposal(s, seq)
                if d.active:
                    row = llama_get_embeddings_nextn_ith(self.heads[self.current].ptr, d.row)
                    d.active = row != NULL
                if d.active:
                    memcpy(self.own[seq].add(n_tokens + i), row, self.own[seq].width() * sizeof(float))
                    more = True
        return more

    cdef bint catch_up(self, Sequence * s, llama_seq_id seq, int32_t room) noexcept nogil:
        """The current head reads on until what it lacks fits, with the seed, into `room` rows."""
        cdef Held * m = self.mark(self.current, seq)
        cdef int32_t n_tokens = <int32_t> s.tokens.size()
        cdef int32_t n_batch = <int32_t> self.context.n_batch
        if self.has_encoder and not self.encoded[seq].has(n_tokens - 1):
            return False
        while n_tokens - m.held + 1 > room:
            if not self.feed(s, seq, min(n_tokens, m.held + n_batch), False) or self.run() != 0:
                self.clear_batch()
                self.drop(self.current, seq)
                return False
        return True

    cdef void encode(self, llama_seq_id seq, int32_t end) noexcept nogil:
        """Hands the encoder the target's rows that the pairs up to `end` need and it has not had."""
        cdef HiddenRows * done = &self.encoded[seq]
        cdef int32_t position = max(self.mark(0, seq).held - 1, self.rows[seq].first())
        cdef int32_t first = llama_memory_seq_pos_max(self.heads[0].memory, 0) + 1
        if done.known() and done.first() <= position <= done.end():
            position = done.end()
        while position < end:
            # libllama checks the positions, and makes nothing of them.
            if not add_features(self.heads[0].batch, first + <int32_t> self.encoding.size(), 0, True,
                                self.rows[seq].row(position), self.width):
                llama_batch_ext_clear(self.heads[0].batch)
                self.encoding.clear()
                return
            self.encoding.push_back(Place(seq, position))
            position += 1
            if <int32_t> self.encoding.size() == min(ENCODER_ROWS, <int32_t> self.context.n_ubatch):
                if not self.run_encoder():
                    return

    cdef bint run_encoder(self) noexcept nogil:
        """Encodes what was handed to it, of all sequences at once."""
        cdef int64_t t0 = llama_time_us()
        cdef size_t i
        cdef const float * row
        cdef HiddenRows * done
        cdef int32_t code
        if self.encoding.empty():
            return True
        code = encode_and_wait(self.context.handle.head_lock, self.heads[0].ptr, self.heads[0].batch)
        self.decode_us += llama_time_us() - t0
        llama_batch_ext_clear(self.heads[0].batch)
        self.n_encoded += <int64_t> self.encoding.size()
        self.failures += code != 0 and code != ABORTED
        if code == 0:
            for i in range(self.encoding.size()):
                done = &self.encoded[self.encoding[i].seq]
                row = llama_get_embeddings_nextn_ith(self.heads[0].ptr, <int32_t> i)
                memcpy(done.add(self.encoding[i].position), row, done.width() * sizeof(float))
        self.encoding.clear()
        return code == 0

    cdef bint feed(self, Sequence * s, llama_seq_id seq, int32_t end, bint output) noexcept nogil:
        """Rows for the pairs the current head lacks up to `end` (excluded); the last one an output if asked for."""
        cdef Held * m = self.mark(self.current, seq)
        while m.held < end:
            if not self.add(s, seq, m.held, output and (self.all_outputs or m.held + 1 == end)):
                self.clear_batch()
                return False
            m.held += 1
            m.reached = max(m.reached, m.held)
        return True

    cdef bint add(self, Sequence * s, llama_seq_id seq, int32_t pair, bint output) noexcept nogil:
        cdef int32_t n_tokens = <int32_t> s.tokens.size()
        cdef llama_token token
        cdef const HiddenRows * rows = &self.rows[seq]
        if pair < n_tokens:
            token = s.tokens[pair]
        else:
            token = s.seed if pair == n_tokens else s.draft[pair - n_tokens - 1]
        if pair > n_tokens:
            rows = &self.own[seq]
        elif self.has_encoder:
            rows = &self.encoded[seq]
        self.count_row(seq)
        return add_pair(self.heads[self.current].batch, token, pair - self.skipped, seq, output,
                        (<HiddenRows *> rows).row(pair - 1), (<HiddenRows *> rows).width())

    cdef void read_on(self, llama_seq_id seq, Sequence * s) noexcept nogil:
        if self.has_encoder:
            self.encode(seq, <int32_t> s.tokens.size())
            self.run_encoder()
        self.catch_up(s, seq, 1)
