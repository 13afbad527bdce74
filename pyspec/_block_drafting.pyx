# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Drafting a block at once: draft-dflash and draft-dspark, without the GIL.

The draft's memory is not computed from tokens: the cell of a token is made of the inputs of some layers of the target at
that token (an embedding batch, "injected"). One decode of [seed, mask, mask, ...] behind it then fills in the masks: a
row of logits for each. The cells of the block are cut again at once; those of the tokens that are accepted come from the
target, in the next round.

    rows of a round in which a of the last k proposals were accepted      a + 1 injected, then a block

All sequences of a decode have blocks of one length, the longest that one of them wants: what the Markov head (DSpark)
adds to a row follows from the row before it in the block, and the graph tells blocks apart by their length. What a
sequence does not want of its block is not looked at. As a block's rows see each other, all of it has to be computed at
once, so sequences that do not fit into n_ubatch together draft one after the other.
"""

from libc.stdint cimport int32_t, int64_t
from libcpp.vector cimport vector

from pyspec._hidden_drafting cimport HiddenRunner, add_features
from pyspec._llama cimport Context
from pyspec._model_drafting cimport Drafting, ModelRunner
from pyspec._sequence cimport Sequence, add_row
from pyspec.libllama cimport (
    llama_get_embeddings_nextn_ith,
    llama_memory_seq_rm,
    llama_seq_id,
    llama_time_us,
    llama_token,
)

from pyspec.errors import InvalidRequest, UnsupportedModel


cdef class BlockRunner(HiddenRunner):
    """A block-diffusion draft, and how far each sequence has got in it.

    Args:
        context: of a DFlash model; its n_ubatch holds a block. Its memory is this object's alone, and needs room for a
            block behind each sequence.
        n_vocab_target: the target's vocabulary size; ids from there on are never proposed.
        mask: the token that stands for one to be filled in; it is never proposed.
        block_size: longest block.
        causal: whether the tokens of a block see only those before them.
        from_anchor: whether the row of the seed is the first proposal already, as in most DSpark models.
        markov: whether the model has a Markov head (DSpark).
        confidence: whether it has a head that says how sure it is of each row; else a softmax over the ten best does.
        n_max: longest draft; it is no longer than a block has room for.
        n_min: shortest draft that is submitted; shorter ones are discarded and counted.
        p_min: 0..1: a draft ends before a token the model is less sure of.
        n_backlog: rows of hidden states that wait for a sequence's next draft; beyond that the draft reads them anyway.
    """

    def __cinit__(self, Context context not None, int n_vocab_target, *, int mask, int block_size, bint causal=False,
                  bint from_anchor=False, bint markov=False, bint confidence=False, int n_max=3, int n_min=0,
                  float p_min=0.0, n_backlog=None):
        cdef llama_seq_id seq
        if context.model_arch() != "dflash":
            raise UnsupportedModel(f"{context.model.path} ({context.model_arch()}) is no block-diffusion draft")
        self.first_row = 0 if from_anchor else 1
        if block_size <= self.first_row:
            raise InvalidRequest(f"a block of {block_size} tokens has no room for a draft", name="block_size",
                                 value=block_size)
        if not 0 <= mask < <int> context.n_vocab:
            raise InvalidRequest(f"the mask token {mask} is outside 0..{context.n_vocab - 1}", name="mask", value=mask)
        n_max = min(n_max, block_size - self.first_row)
        self.set_up(context, n_vocab_target, n_max, min(n_min, n_max), p_min)
        if self.first_row + n_max > <int> context.n_ubatch or context.n_ubatch < context.n_batch:
            raise InvalidRequest(
                f"a block of {self.first_row + n_max} tokens, and whatever is read at once, has to be computed at once: "
                f"n_ubatch is {context.n_ubatch}, n_batch {context.n_batch}", name="n_ubatch", value=context.n_ubatch)
        self.name = "draft-dspark" if markov else "draft-dflash"
        self.block_size = block_size
        self.mask = mask
        self.never = mask
        self.has_confidence = confidence
        self.contexts = [context]
        self.layers = context.model.target_layer_ids
        self.width = context.model.n_embd_inp_enc
        self.open_heads(self.contexts, n_backlog)
        context.set_causal_attn(causal)
        if confidence:
            context.set_embeddings_nextn(True)
        for seq in range(<llama_seq_id> self.n_seq):
            self.forget(seq)

    def set_floors(self, floors, onwards, calibration):
        """As of every model that drafts; but a block's next token costs no step, so `onwards` does not end a draft."""
        ModelRunner.set_floors(self, floors, (), calibration)

    def time_decodes(self, int rows, int repetitions, *, bint reduced=True):
        """Decodes of a block on sequence 0, which has to be empty and is so afterwards.

        Args:
            rows: of each decode; no more than a block has.
            repetitions: how many decodes.
            reduced: makes no difference here: such a draft has no reduced output head.

        Returns:
            Milliseconds of each; fewer of them where one fails.
        """
        if self.mark(0, 0).held > 0 or rows < 1:
            raise InvalidRequest(f"sequence 0 is in use, or {rows} rows are less than one", name="rows", value=rows)
        return self.timed(min(rows, self.first_row + self.n_max), repetitions, reduced)

    cdef void add_trial(self, int32_t rows, bint reduced) noexcept nogil:
        cdef int32_t i
        for i in range(rows):
            add_row(self.heads[0].batch, self.mask, i, 0, True)
            self.n_rows += 1

    # -- the round -----------------------------------------------------------------------------------------------

    cdef void propose(self, vector[Sequence] * sequences) noexcept nogil:
        """Fills the draft of every generating sequence that has a budget and no draft yet.

        A decode that fails is counted; its sequences have no draft this round.
        """
        cdef int64_t t0 = llama_time_us()
        cdef llama_seq_id seq
        cdef Sequence * s
        cdef bint read = True
        if self.open_round(sequences) > 0:
            for seq in range(<llama_seq_id> sequences.size()):
                if self.drafting[seq].active:
                    self.align(seq, <int32_t> sequences.at(seq).tokens.size())
                    read = read and self.inject(seq, <int32_t> sequences.at(seq).tokens.size())
            read = read and self.run_injection()
            if read:
                self.draft_blocks(sequences)
            for seq in range(<llama_seq_id> sequences.size()):
                s = &sequences.at(seq)
                if not read and self.drafting[seq].active:
                    self.drafting[seq].active = False
                    self.drop(0, seq)
                if self.drafting[seq].steps > 0:
                    self.discard_short(s)
        self.time_us += llama_time_us() - t0

    cdef bint inject(self, llama_seq_id seq, int32_t end) noexcept nogil:
        """Rows for the cells that a sequence lacks up to `end`; decoded as often as the batch is full."""
        cdef int32_t position = self.mark(0, seq).held
        while position < end:
            self.count_row(seq)
            if not add_features(self.heads[0].batch, position, seq, False, self.rows[seq].row(position), self.width):
                self.clear_batch()
                return False
            position += 1
            self.mark(0, seq).held = position
            self.mark(0, seq).reached = max(self.mark(0, seq).reached, position)
            if self.n_rows == <int32_t> self.context.n_ubatch and not self.run_injection():
                return False
        return True

    cdef bint run_injection(self) noexcept nogil:
        return self.n_rows == 0 or self.run() == 0

    cdef void read_on(self, llama_seq_id seq, Sequence * s) noexcept nogil:
        if not self.inject(seq, <int32_t> s.tokens.size()) or not self.run_injection():
            self.drop(0, seq)

    cdef void draft_blocks(self, vector[Sequence] * sequences) noexcept nogil:
        """A block for each sequence that drafts, as many of them in one decode as there is room for."""
        cdef llama_seq_id seq
        cdef int32_t longest = 0
        cdef size_t begin = 0
        cdef size_t together
        self.waiting_for_block.clear()
        for seq in range(<llama_seq_id> sequences.size()):
            if self.drafting[seq].active:
                self.waiting_for_block.push_back(seq)
                longest = max(longest, self.drafting[seq].budget)
        together = <size_t> (<int32_t> self.context.n_ubatch // (self.first_row + longest))
        while begin < self.waiting_for_block.size():
            self.draft_together(
                sequences, begin, min(begin + together, self.waiting_for_block.size()), self.first_row + longest)
            begin += together

    cdef void draft_together(
        self, vector[Sequence] * sequences, size_t begin, size_t end, int32_t length) noexcept nogil:
        cdef size_t i
        cdef int32_t row
        cdef int32_t n_tokens
        cdef llama_seq_id seq
        cdef Sequence * s
        cdef Drafting * d
        cdef bint done
        for i in range(begin, end):
            seq = self.waiting_for_block[i]
            s = &sequences.at(seq)
            n_tokens = <int32_t> s.tokens.size()
            for row in range(length):
                add_row(self.heads[0].batch, s.seed if row == 0 else self.mask, n_tokens + row, seq, True)
                self.count_row(seq)
            self.mark(0, seq).reached = max(self.mark(0, seq).reached, n_tokens + length)
        done = self.run() == 0
        for i in range(begin, end):
            seq = self.waiting_for_block[i]
            s = &sequences.at(seq)
            d = &self.drafting[seq]
            d.steps += done
            d.active = done
            d.row = <int32_t> (i - begin) * length + self.first_row
            while d.active:
                self.take_proposal(s, seq)
                d.row += 1
            if not llama_memory_seq_rm(self.heads[0].memory, seq, self.mark(0, seq).held, -1):
                self.drop(0, seq)

    cdef llama_token confident(self, llama_seq_id seq, size_t position) noexcept nogil:
        """As sure as the model's own head says, where it has one."""
        cdef const float * confidence
        if self.has_confidence and not self.best.empty():
            confidence = llama_get_embeddings_nextn_ith(self.heads[0].ptr, self.drafting[seq].row)
            if confidence != NULL:
                return self.sure(seq, position, confidence[0], self.best[0].id)
        return ModelRunner.confident(self, seq, position)
