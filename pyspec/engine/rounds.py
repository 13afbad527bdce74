"""One request while it runs: what it wants of a round, and what becomes of what the round gave."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pyspec.engine.config import ExactConfig
from pyspec.engine.generation import CallbackError, Chunk, FinishReason, Job, Result, TokenLogprob
from pyspec.engine.text import TextAssembler
from pyspec.errors import GrammarError, PyspecError
from pyspec.speculation.budget import draft_budget
from pyspec.speculation.chain import Chain, Draft, Verdict

if TYPE_CHECKING:
    from pyspec._decoder import Decoder
    from pyspec._llama import Vocab


@dataclass(frozen=True)
class Setup:
    """What all requests of an engine share.

    Attributes:
        chain: who drafts.
        n_slots: requests that run at once.
        n_draft_max: longest draft that may be verified.
        n_ctx: tokens a sequence may hold.
        n_rows: rows a round can have.
        prompt_chunk: most prompt tokens in a round in which nobody generates.
        n_prompt_rows: most prompt tokens in a round in which others generate.
        stall_timeout: seconds a stream may be full before its request ends with an error.
        synthetic: acceptance is drawn at random.
        exact: in exact mode, how decodes have to be; else None.
    """

    decoder: Decoder
    vocab: Vocab
    chain: Chain
    n_slots: int
    n_draft_max: int
    n_ctx: int
    n_rows: int
    prompt_chunk: int
    n_prompt_rows: int
    stall_timeout: float
    synthetic: bool = False
    exact: ExactConfig | None = None


class Work(NamedTuple):
    """What a round took, all its requests together; behind the first as `Decoder.spent` has it."""

    total_ms: float
    verify_ms: float
    sampling_ms: float
    grammar_ms: float
    checkpoint_ms: float
    draft_decode_ms: float
    draft_read_ms: float
    draft_failures: int
    propose_ms: Sequence[float]


class Run:
    """A request on a slot. Once it is over, `outcome` is set.

    Args:
        n_held: how many of the prompt's tokens the slot holds already.
    """

    def __init__(self, job: Job, setup: Setup, seq: int, n_held: int = 0) -> None:
        self.job = job
        self.setup = setup
        self.seq = seq
        self.outcome: Result | None = None
        self.takes_part = False  # in the round that is under way
        self.t_stalled: float | None = None
        self._decoder = setup.decoder
        params = job.params
        self._stop_tokens = frozenset(setup.vocab.eog_tokens) | frozenset(params.stop_token_ids)
        self._assembler = TextAssembler(params.stop)
        self._text: list[str] = []
        self._tokens: list[int] = []
        self._pieces: list[bytes] = []
        self._drafted_by: list[str | None] = []
        self._times: list[float] = []
        self._logprobs: list[TokenLogprob] | None = None if params.logprobs is None else []
        self._n_draft_max = setup.n_draft_max if job.n_draft_max is None else min(job.n_draft_max, setup.n_draft_max)
        self._draft: Draft | None = None
        self._n_prompt_rows = 0
        self._stopped_by: str | int | None = None
        self._draft_work = setup.chain.draft_work(seq)
        setup.chain.begin(seq)
        self._decoder.begin(
            seq,
            job.prompt,
            job.plan,
            stop_tokens=sorted(self._stop_tokens),
            n_logprobs=-1 if params.logprobs is None else params.logprobs,
            sampled_logprobs=params.logprobs_mode == "sampled",
        )
        job.stats.cached_tokens = n_held
        job.stats.queue_ms = 1000.0 * (time.monotonic() - job.t_submitted)

    @property
    def waits(self) -> bool:
        """It can't go on before its reader has read something."""
        return self.job.full and not self.job.over(time.monotonic())

    @property
    def left(self) -> float:
        """Most tokens it will still write."""
        limit = self.job.params.max_tokens
        room = self.setup.n_ctx - self._decoder.n_committed(self.seq) if self.job.n_keep is None else math.inf
        return room if limit is None else min(room, limit - len(self._tokens))

    @property
    def reading(self) -> int:
        """Tokens it has to read before it can write."""
        return self._decoder.pending(self.seq)

    # -- the round -----------------------------------------------------------------------------------------------

    def plan_reading(self, n_rows: int) -> int:
        """Takes part in the round with at most so many tokens of its prompt; returns with how many."""
        self._draft = None
        self._n_prompt_rows = min(n_rows, self.reading)
        if self.setup.exact is not None:
            self._n_prompt_rows = self._exact_piece(self._n_prompt_rows, self.setup.exact)
        self.takes_part = self._n_prompt_rows > 0
        if self.takes_part:
            self._decoder.plan(self.seq, prompt_rows=self._n_prompt_rows)
        return self._n_prompt_rows

    def _exact_piece(self, n_rows: int, exact: ExactConfig) -> int:
        """Of what has to be read, as much as belongs in one decode: should all be read again after a failure, first the
        prompt, cut as before, then the text, in decodes as wide as they may be.
        """
        n_left = len(self.job.prompt) - self._decoder.n_committed(self.seq)
        if n_left > 0:
            return min(n_rows, n_left)
        n_rows = min(n_rows, exact.width)
        lonely = self.reading - n_rows < exact.least_rows and self.reading > n_rows > exact.least_rows
        return n_rows - 1 if lonely else n_rows

    def make_room(self) -> None:
        """Where the context is full, and the request wants that, forgets the older half of what need not be kept."""
        n_committed = self._decoder.n_committed(self.seq)
        n_keep = self.job.n_keep
        if n_keep is None or n_committed + 1 < self.setup.n_ctx:
            return
        if n_keep < 0:
            n_keep = len(self.job.prompt)
        n_keep = min(n_keep, self.setup.n_ctx - 4)
        self._decoder.shift(self.seq, n_keep, max(1, (n_committed - n_keep) // 2))
        self.job.stats.context_shifts += 1

    def plan_writing(self, n_rows: int, *, drafting: bool = True) -> None:
        """Takes part in the round with its last token, and a draft that fits into so many rows with it."""
        self.make_room()
        self.takes_part = True
        self._draft = None
        self._n_prompt_rows = 0
        limit = self.job.params.max_tokens
        budget = draft_budget(
            n_ctx=self.setup.n_ctx,
            n_committed=self._decoder.n_committed(self.seq),
            remaining=None if limit is None else limit - len(self._tokens),
            n_rows=n_rows,
            n_max=self._n_draft_max if drafting else 0,
        )
        self._decoder.plan(self.seq, budget=budget)

    def drafted(self, draft: Draft) -> None:
        """Who drafted for it."""
        self._draft = draft

    def took(self, work: Work) -> Verdict | None:
        """Takes what the round gave: tokens to text, text to the caller, and whether this was the last round.

        Returns:
            How its draft fared, for those who choose the lengths; None while the prompt is read.

        Raises:
            CallbackError: the caller's progress callback raised.
            PyspecError: no token could be chosen.
        """
        first = not self._tokens
        tokens, n_drafted, n_accepted, _, error = self._decoder.result(self.seq)
        self._count(work, n_drafted, n_accepted, first)
        if self._n_prompt_rows:
            n_left = self.reading
            if first and self.job.prompt_progress is not None:
                try:
                    self.job.prompt_progress(len(self.job.prompt) - n_left, len(self.job.prompt))
                except BaseException as callback_error:
                    raise CallbackError(callback_error) from callback_error
            if not tokens and error is None:
                return None
        self._emit(tokens, n_accepted, error)
        if self._draft is None:
            return None
        return Verdict(self._draft, drafted=n_drafted, accepted=n_accepted, emitted=tokens)

    def _emit(self, tokens: list[int], n_accepted: int, error: str | None) -> None:
        stats = self.job.stats
        piece = self.setup.vocab.piece
        pieces = [b"" if token in self._stop_tokens else piece(token, special=False) for token in tokens]
        fed = self._assembler.feed(pieces)
        texts, stop = list(fed.parts), fed.stop
        self._pieces.extend(pieces[: fed.n_used])
        kept = tokens[: fed.n_used]
        stats.discarded_tokens += len(tokens) - len(kept)
        reason = self._finish_reason(kept, stop)
        if reason is not None and stop is None:
            tail = self._assembler.finish()
            texts, stop = [*texts, tail.text], tail.stop
            if stop is not None:
                reason = "stop"
        if reason == "stop":
            self._stopped_by = kept[-1] if stop is None else stop
        self._add(texts, kept, n_accepted)
        if error is not None and reason is None:
            message = f"no token can be chosen after {len(self._tokens)} tokens: {error}"
            if self._decoder.dead_end(self.seq):
                name = "json_schema" if self.job.params.json_schema else "grammar"
                raise GrammarError(message, name=name, value=getattr(self.job.params, name))
            raise PyspecError(message)
        if reason is not None:
            self.finish(reason, flush=False)

    def _finish_reason(self, kept: Sequence[int], stop: str | None) -> FinishReason | None:
        if stop is not None or (kept and kept[-1] in self._stop_tokens):
            return "stop"
        limit = self.job.params.max_tokens
        if limit is not None and len(self._tokens) + len(kept) >= limit:
            return "length"
        if self._decoder.n_committed(self.seq) >= self.setup.n_ctx:  # the last token has no cell to go to
            return "length"
        return None

    def _add(self, texts: Sequence[str], tokens: list[int], n_accepted: int) -> None:
        """Takes in tokens and what text each of them has released; texts beyond the tokens belong to no token."""
        text = "".join(texts)
        source = None if self._draft is None else self._draft.source
        drafted_by = tuple(source if i < n_accepted else None for i in range(len(tokens)))
        logprobs: tuple[TokenLogprob, ...] = ()
        if self._logprobs is not None:
            rows = zip(tokens, self._decoder.logprobs(self.seq), strict=False)
            logprobs = tuple(TokenLogprob(token, chosen, tuple(top)) for token, (chosen, top) in rows)
            self._logprobs.extend(logprobs)
        self._text.append(text)
        self._tokens.extend(tokens)
        self._drafted_by.extend(drafted_by)
        self._times.extend([time.monotonic() - self.job.t_submitted] * len(tokens))
        self.job.stats.completion_tokens += len(tokens)
        self.job.stats.emitted_from_draft += min(n_accepted, len(tokens))
        if self.job.pacer is not None and len(tokens) > 1:
            n = len(tokens)
            texts = [*texts[: n - 1], "".join(texts[n - 1 :])]
            self.job.add(*(Chunk(texts[i], (tokens[i],), (drafted_by[i],), logprobs[i : i + 1]) for i in range(n)))
        elif text or tokens:
            self.job.add(Chunk(text, tuple(tokens), drafted_by, logprobs))

    # -- the end -------------------------------------------------------------------------------------------------

    def finish(self, reason: FinishReason, *, flush: bool = True) -> None:
        """Ends the request with what there is; `flush`: text that was held back is part of it."""
        if flush:
            self._draft = None
            self._add([self._assembler.finish().text], [], 0)
        if self.setup.chain.controller is not None:
            self.job.stats.draft_length = self.setup.chain.controller.report()
        self.outcome = Result(
            text="".join(self._text),
            token_ids=tuple(self._tokens),
            finish_reason=reason,
            stop=self._stopped_by,
            logprobs=None if self._logprobs is None else tuple(self._logprobs),
            drafted_by=tuple(self._drafted_by),
            stats=self.job.stats,
            seed=self.job.plan.seed,
            prompt_token_ids=tuple(self.job.prompt),
            times=tuple(self._times),
            pieces=tuple(self._pieces),
            synthetic=self.setup.synthetic,
        )

    def _count(self, work: Work, n_drafted: int, n_accepted: int, first: bool) -> None:
        """Adds a round to the statistics. Times are those of the whole round, whoever shares it."""
        stats, chain, draft = self.job.stats, self.setup.chain, self._draft
        stats.target_calls += 1
        stats.target_rows += self._n_prompt_rows or 1 + n_drafted
        if chain.draft_model is not None:
            calls, rows = chain.draft_work(self.seq)
            stats.draft_calls += calls - self._draft_work[0]
            stats.draft_rows += rows - self._draft_work[1]
            self._draft_work = calls, rows
        if draft is not None:
            stats.rounds += 1
            stats.rounds_without_draft += n_drafted == 0
            if draft.source is not None:
                stats.speculator(draft.source).count(n_drafted, n_accepted)
            for name, n_discarded in draft.discarded.items():
                stats.speculator(name).discarded += n_discarded
            for name, n_refused in draft.refused.items():
                stats.speculator(name).refused += n_refused
            for name, n_failures in draft.failures.items():
                stats.speculator(name).failures += n_failures
            if draft.asked_model and work.draft_failures and chain.draft_model is not None:
                stats.speculator(chain.draft_model.name).failures += work.draft_failures
        propose_ms = 0.0
        for name, spent_ms in zip(chain.compiled_names, work.propose_ms, strict=True):
            if spent_ms:
                stats.speculator(name).propose_ms += spent_ms
                propose_ms += spent_ms
        if first:
            stats.prefill_ms += work.total_ms
            return
        stats.decode_ms += work.total_ms
        stats.draft_ms += propose_ms
        stats.draft_read_ms += work.draft_read_ms
        stats.verify_ms += work.verify_ms
        stats.sampling_ms += work.sampling_ms
        stats.grammar_ms += work.grammar_ms
        stats.checkpoint_ms += work.checkpoint_ms
        stats.libllama_ms += work.draft_decode_ms + work.verify_ms + work.checkpoint_ms
