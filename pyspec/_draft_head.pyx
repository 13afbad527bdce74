# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""A draft vocabulary at work: the reduced output head of a draft model's contexts, and what its rows stand for.

A draft step of a small model with a large vocabulary is mostly its output head. With this, the draft multiplies by the
rows of the tokens worth drafting only; the target judges every draft over its whole vocabulary as before.

The head is `native/draft_head.hpp`. Some of its rows may be slots (`native/vocab_slots.hpp`): they take the tokens of
the drafting sequences that no row stands for, so that names and rare words can be drafted from their second occurrence
on. Where most of the drafting sequences still use too many tokens that can't be drafted (`native/miss_window.hpp`), the
whole head drafts until that has passed.
"""

cimport cython
from cython.operator cimport dereference as deref
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcmp
from libcpp.string cimport string
from libcpp.vector cimport vector

from pyspec._llama cimport Context, enter_all, leave_all
from pyspec._sequence cimport Scored, Sequence, add_pair, add_row
from pyspec.libllama cimport (
    llama_batch_ext,
    llama_batch_ext_clear,
    llama_batch_ext_free,
    llama_batch_ext_init,
    llama_context,
    llama_get_logits,
    llama_memory_seq_rm,
    llama_seq_id,
    llama_token,
)

import os

from pyspec.errors import Closed, DecodeError, InvalidRequest, UnsupportedModel
from pyspec.gguf_header import read_gguf


@cython.no_gc_clear
cdef class DraftHead:
    """The reduced output head of a draft model's context. Give it to the `DraftRunner` or `PairRunner` of the same one.

    Args:
        context: a draft model's, which nobody else uses; or several of one model, one for each NextN layer that drafts.
        ids: the tokens that can be drafted, each once.
        n_slots: so many of them, the last ones, may give way to tokens that turn up in a text.
        max_miss: 0..1: the whole head drafts while more than this share of the last 64 tokens could not be drafted,
            for most of the drafting sequences.

    Raises:
        InvalidRequest: an id is there twice or not in the vocabulary; too many slots; or a list that is no reduction.
        UnsupportedModel: this model's head can't be reduced; the message says why.
    """

    def __cinit__(self, context not None, ids, *, int n_slots=0, float max_miss=0.1):
        cdef vector[int32_t] rows = ids
        cdef string why
        cdef size_t i
        cdef vector[char] known
        cdef vector[llama_context *] pointers
        cdef Context first
        cdef bint nextn
        self.contexts = []
        contexts = [context] if isinstance(context, Context) else [<Context?> each for each in context]
        if not contexts or any(each.model is not contexts[0].model for each in contexts):
            raise InvalidRequest("a draft vocabulary is for a context, or for several of one model", name="context",
                                 value=context)
        first = contexts[0]
        nextn = first.ctx_type == "mtp"
        cdef int32_t n_vocab = <int32_t> first.n_vocab
        if not 0 < rows.size() < <size_t> n_vocab:
            raise InvalidRequest(
                f"a draft vocabulary has at least one token and fewer than the model's {n_vocab}, not {rows.size()}",
                name="ids", value=rows.size())
        if not 0 <= n_slots <= <int> rows.size():
            raise InvalidRequest(f"n_slots must be from 0 to the {rows.size()} ids, not {n_slots}", name="n_slots",
                                 value=n_slots)
        if not 0.0 <= max_miss <= 1.0:
            raise InvalidRequest(f"max_miss must be from 0 to 1, not {max_miss}", name="max_miss", value=max_miss)
        known.resize(n_vocab)
        for i in range(rows.size()):
            if not 0 <= rows[i] < n_vocab or known[rows[i]]:
                what = "twice" if 0 <= rows[i] < n_vocab else f"outside 0..{n_vocab - 1}"
                raise InvalidRequest(f"token {rows[i]} is {what} in the draft vocabulary", name="ids", value=rows[i])
            known[rows[i]] = 1
        path = first.model.path
        self.contexts = contexts
        try:
            self.enter()
        except BaseException:
            self.contexts = []
            raise
        try:
            why = ReducedHead.refusal(first.ptr, nextn)
            if any((<Context> each).samplers for each in contexts):
                why = b"its context has samplers of its own"
            if why.empty():
                name = ReducedHead.head_name(first.ptr).decode("utf-8", "replace")
                tensor = read_gguf(path).tensors.get(name)
                if tensor is None:
                    why = f"its file has no tensor {name!r}".encode()
            if not why.empty():
                raise UnsupportedModel(f"{path} ({first.model_arch()}) can't draft with a part of its vocabulary: "
                                       f"{why.decode('utf-8', 'replace')}")
            for each in contexts:
                pointers.push_back((<Context> each).ptr)
            try:
                self.head.reset(new ReducedHead(pointers, first.handle.head_lock, rows, os.fsencode(tensor.file),
                                                tensor.offset, nextn))
                if n_slots and not deref(self.head).can_write():
                    n_slots = 0
                deref(self.head).attach()
            except RuntimeError as error:
                self.head.reset()
                raise UnsupportedModel(
                    f"{path} ({first.model_arch()}) can't draft with a part of its vocabulary: {error}") from None
            self.handle = first.handle
            for each in contexts:
                (<Context> each).samplers_taken = "a draft vocabulary reads its results"
        finally:
            self.leave()
        self.all_outputs = first.model_arch() == "eagle3"
        self.pairs = nextn or self.all_outputs
        if self.pairs:
            self.some_state.resize(first.model.n_embd_out)
        self.slots = VocabSlots(rows, n_slots, n_vocab, <int32_t> first.n_seq_max)
        self.windows.resize(first.n_seq_max)
        self.noted.resize(first.n_seq_max)
        self.max_miss = max_miss

    def __dealloc__(self):
        for context in self.contexts:
            if (<Context> context).in_use:
                self.head.release()  # another thread computes with it, against the rules
                return
        self.give_back()

    cdef void give_back(self) noexcept:
        """Detaches the contexts that are still there, and frees the head."""
        cdef Context context
        cdef size_t i
        if self.head:
            for i in range(len(self.contexts)):
                context = self.contexts[i]
                if context.ptr != NULL:
                    llama_get_logits(context.ptr)  # before the samplers change, see Context.settle
                    deref(self.head).detach(i)
                    context.samplers_taken = None
        self.head.reset()

    cdef int enter(self) except -1:
        return enter_all(self.contexts)

    cdef void leave(self) noexcept:
        leave_all(self.contexts)

    def close(self):
        """Frees the head; the context drafts with the whole one again. What uses this object can't be used any more."""
        if self.closed:
            return
        for context in self.contexts:
            if not (<Context> context).closed:
                (<Context> context).enter(False)
                (<Context> context).leave()
        self.give_back()

    @property
    def closed(self):
        return not self.head

    cdef int require_open(self) except -1:
        if not self.head:
            raise Closed("the draft vocabulary's head is closed")
        return 0

    # -- what Python may know ------------------------------------------------------------------------------------

    @property
    def context(self):
        """The (first) context."""
        return self.contexts[0]

    @property
    def n_rows(self):
        """Tokens that can be drafted."""
        return self.slots.n_rows()

    @property
    def n_slots(self):
        """Of those, how many change with the texts."""
        return self.slots.n_slots()

    @property
    def n_bytes(self):
        """Memory of the head."""
        self.require_open()
        return deref(self.head).bytes()

    @property
    def reduced(self):
        """Whether the next draft uses the reduced head."""
        return not self.closed and deref(self.head).is_reduced()

    def ids(self):
        """The tokens the rows stand for now, in order."""
        cdef int32_t row
        return [self.slots.id_of(row) for row in range(self.slots.n_rows())]

    def miss_rate(self, int seq):
        """Of the last tokens of a sequence, 64 at most, the share that could not be drafted when they came."""
        return self.windows.at(seq).rate()

    def counts(self):
        """What happened since construction."""
        return {
            "decodes": self.n_decodes, "reduced_decodes": self.n_reduced, "switches": self.n_switches,
            "seen": self.n_seen, "missed": self.n_missed, "rows_written": self.n_written,
            "slots_taken": self.slots.n_taken(),
        }

    def switch(self, bint reduced):
        """Chooses the head for the next decode; a round chooses again."""
        self.require_open()
        self.enter()
        try:
            self.use(reduced)
        finally:
            self.leave()

    def compare(self, tokens):
        """Decodes tokens with both heads, on an empty sequence 0, which is empty again afterwards.

        A draft that reads hidden states gets some numbers in their place, in each of its contexts.

        Returns:
            How many logits of listed tokens were compared, and how many of them differ in any bit.
        """
        cdef vector[llama_token] text = tokens
        cdef llama_batch_ext * batch
        cdef Context context
        cdef vector[float] logits
        cdef vector[Scored] best
        cdef int kind
        cdef const float * row = NULL
        cdef int32_t n = 0
        cdef int32_t code = 0
        cdef int32_t i
        cdef size_t position
        cdef size_t which
        cdef int64_t n_compared = 0
        cdef int64_t n_different = 0
        cdef int32_t n_rows = self.slots.n_rows()
        cdef int32_t n_vocab = <int32_t> (<Context> self.contexts[0]).n_vocab
        self.require_open()
        self.enter()
        try:
            for which in range(len(self.contexts)):
                context = self.contexts[which]
                batch = llama_batch_ext_init(context.ptr)
                with nogil:
                    for position in range(text.size()):
                        for kind in range(3):  # whole, reduced_all, reduced
                            llama_memory_seq_rm(context.memory_ptr, 0, -1, -1)
                            llama_batch_ext_clear(batch)
                            for i in range(<int32_t> position + 1):
                                self.add(batch, text[i], i, i == <int32_t> position)
                            deref(self.head).show(<Kind> kind)
                            code = deref(self.head).decode(which, batch)
                            if code != 0:
                                break
                            n = deref(self.head).logits(<int32_t> position, &row)
                            if kind == whole and row != NULL:
                                logits.assign(row, row + n)
                            elif kind == reduced_all:
                                for i in range(n_rows):
                                    n_compared += 1
                                    n_different += (
                                        row == NULL or n != n_rows or <int32_t> logits.size() != n_vocab
                                        or memcmp(&row[i], &logits[self.slots.id_of(i)], sizeof(float)) != 0)
                            elif kind == reduced:
                                self.best(<int32_t> position, n_vocab, best)
                                n_different += best.empty()
                                for i in range(<int32_t> best.size()):
                                    n_compared += 1
                                    n_different += memcmp(&best[i].logit, &logits[best[i].id], sizeof(float)) != 0
                        if code != 0:
                            break
                    llama_memory_seq_rm(context.memory_ptr, 0, -1, -1)
                    deref(self.head).show(whole)
                llama_batch_ext_free(batch)
                if code != 0:
                    break
        finally:
            self.leave()
        if code != 0:
            raise DecodeError(f"the draft model failed with code {code} while its heads were compared", code=code)
        return n_compared, n_different

    cdef void add(self, llama_batch_ext * batch, llama_token token, int32_t pos, bint output) noexcept nogil:
        cdef size_t i
        if self.pairs:
            for i in range(self.some_state.size()):
                self.some_state[i] = <float> ((7 * token + <int32_t> i) % 11 - 5)
            add_pair(batch, token, pos, 0, output or self.all_outputs, self.some_state.data(), self.some_state.size())
        else:
            add_row(batch, token, pos, 0, output)

    # -- the round -----------------------------------------------------------------------------------------------

    cdef bint note(self, llama_seq_id seq, Sequence * s) noexcept nogil:
        cdef int32_t n = <int32_t> s.tokens.size()
        cdef int32_t i
        cdef bint known
        for i in range(self.noted[seq], n + 1):
            known = self.slots.see(seq, s.tokens[i] if i < n else s.seed)
            self.windows[seq].push(not known)
            self.n_seen += 1
            self.n_missed += not known
        self.noted[seq] = n + 1
        return self.windows[seq].missing(self.max_miss)

    cdef void settle(self, int32_t n_drafting, int32_t n_missing) noexcept nogil:
        self.write_rows()
        self.use(not self.whole_only and 2 * n_missing <= n_drafting)

    cdef void use(self, bint reduced_head) noexcept nogil:
        if reduced_head != deref(self.head).is_reduced():
            self.n_switches += 1
            if reduced_head:
                deref(self.head).show(reduced)
            else:
                deref(self.head).show(whole)

    cdef void forget(self, llama_seq_id seq) noexcept nogil:
        self.slots.leave(seq)
        self.windows[seq].clear()
        self.noted[seq] = 0

    cdef bint reduces(self) noexcept nogil:
        return deref(self.head).is_reduced()

    cdef int32_t decode(self, size_t i, llama_batch_ext * batch) noexcept nogil:
        self.n_decodes += 1
        self.n_reduced += deref(self.head).is_reduced()
        return deref(self.head).decode(i, batch)

    cdef void best(self, int32_t output, int32_t n_draftable, vector[Scored] & out) noexcept nogil:
        cdef size_t i
        cdef size_t n = 0
        deref(self.head).best(output, out)
        for i in range(out.size()):
            out[n].id = self.slots.id_of(out[i].id)
            out[n].logit = out[i].logit
            n += out[n].id < n_draftable
        out.resize(n)

    cdef void write_rows(self) noexcept nogil:
        cdef int32_t row
        self.slots.take_dirty(self.dirty)
        for row in self.dirty:
            self.n_written += 1
            if not deref(self.head).write(row, self.slots.id_of(row)):
                self.whole_only = True  # the file is gone or shorter now
