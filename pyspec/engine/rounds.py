"""One request on one sequence, round by round: plan, propose, verify, emit."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspec.engine.generation import CallbackError, Chunk, FinishReason, Job, Result, TokenLogprob
from pyspec.engine.text import TextAssembler
from pyspec.errors import ContextFull, DecodeError, PyspecError
from pyspec.speculation.budget import draft_budget
from pyspec.speculation.chain import Chain

if TYPE_CHECKING:
    from pyspec._decoder import Decoder
    from pyspec._llama import Vocab

# libllama's codes for a decode that found no room, and for one that was told to stop.
NO_ROOM = 1
ABORTED = 2

DRAFT_MODEL = "draft-simple"


@dataclass(frozen=True)
class Setup:
    """What all requests of an engine share.

    Attributes:
        chain: who drafts.
        n_draft_max: longest draft that may be verified.
        n_ctx: tokens a sequence may hold.
        prompt_chunk: prompt tokens per decode.
        synthetic: acceptance is drawn at random.
    """

    decoder: Decoder
    vocab: Vocab
    chain: Chain
    n_draft_max: int
    n_ctx: int
    n_rows: int
    prompt_chunk: int
    synthetic: bool = False


class Run:
    """A request while it runs. `step` does one round; after the last one `outcome` is set."""

    def __init__(self, job: Job, setup: Setup, seq: int = 0) -> None:
        self.job = job
        self.setup = setup
        self.seq = seq
        self.outcome: Result | None = None
        self._decoder = setup.decoder
        params = job.params
        self._stop_tokens = frozenset(setup.vocab.eog_tokens) | frozenset(params.stop_token_ids)
        self._assembler = TextAssembler(params.stop)
        self._text: list[str] = []
        self._tokens: list[int] = []
        self._drafted_by: list[str | None] = []
        self._logprobs: list[TokenLogprob] | None = None if params.logprobs is None else []
        self._n_draft_max = setup.n_draft_max if job.n_draft_max is None else min(job.n_draft_max, setup.n_draft_max)
        self._source: str | None = None
        self._t_round = 0.0
        setup.chain.begin(seq)
        self._stopped_by: str | int | None = None
        self._counts = self._decoder.counts()
        self._t_settled = time.perf_counter()
        self._decoder.begin(
            seq,
            job.prompt,
            job.plan,
            stop_tokens=sorted(self._stop_tokens),
            n_logprobs=-1 if params.logprobs is None else params.logprobs,
        )

    def step(self) -> None:
        """One round, or one chunk of the prompt."""
        if self.job.cancelled:
            self._add(self._assembler.finish().text, [], 0)
            self._finish("cancelled")
        elif self._decoder.pending(self.seq):
            self._read_prompt()
        else:
            self._t_round = time.perf_counter()
            self._plan_round()
            self._source = self.setup.chain.propose(self.seq, self.job.stats)
            if self._verify():
                self._emit()

    # -- the moves -----------------------------------------------------------------------------------------------

    def _read_prompt(self) -> None:
        self._decoder.plan(self.seq, prompt_rows=self.setup.prompt_chunk)
        if not self._verify():
            return
        n_left = self._decoder.pending(self.seq)
        if self.job.prompt_progress is not None:
            try:
                self.job.prompt_progress(len(self.job.prompt) - n_left, len(self.job.prompt))
            except BaseException as error:
                raise CallbackError(error) from error
        if n_left == 0:
            self._settle()
            self._emit(first=True)

    def _plan_round(self) -> None:
        limit = self.job.params.max_tokens
        self._decoder.plan(
            self.seq,
            budget=draft_budget(
                n_ctx=self.setup.n_ctx,
                n_committed=self._decoder.n_committed(self.seq),
                remaining=None if limit is None else limit - len(self._tokens),
                n_rows=self.setup.n_rows,
                n_max=self._n_draft_max,
            ),
        )

    def _verify(self) -> bool:
        """The target's decode. False: it was told to stop, or there was no room, and this round has no result."""
        try:
            self._decoder.verify()
        except DecodeError as error:
            if error.code == ABORTED:
                return False
            if error.code != NO_ROOM:
                raise
            if self._n_draft_max > 0:  # without drafts it may fit
                self._n_draft_max = 0
                return False
            raise ContextFull(
                f"no room for another token after {self._decoder.n_committed(self.seq)}; make n_ctx larger",
                n_tokens=self._decoder.n_committed(self.seq) + 1,
                n_ctx=self.setup.n_ctx,
            ) from error
        return True

    def _emit(self, first: bool = False) -> None:
        """Tokens to text, text to the caller, and whether this was the last round."""
        tokens, n_drafted, n_accepted, _, error = self._decoder.result(self.seq)
        stats = self.job.stats
        if not first:
            stats.rounds += 1
            stats.rounds_without_draft += n_drafted == 0
            self.setup.chain.verified(
                self.seq,
                self._source,
                drafted=n_drafted,
                accepted=n_accepted,
                emitted=len(tokens),
                total_ms=1000.0 * (time.perf_counter() - self._t_round),
            )
            for name, n_discarded in self.setup.chain.discarded.items():
                stats.speculator(name).discarded += n_discarded
        if self._source is not None:
            stats.speculator(self._source).count(n_drafted, n_accepted)

        piece = self.setup.vocab.piece
        fed = self._assembler.feed(
            [b"" if token in self._stop_tokens else piece(token, special=False) for token in tokens]
        )
        text, stop = fed.text, fed.stop
        kept = tokens[: fed.n_used]
        stats.discarded_tokens += len(tokens) - len(kept)
        reason = self._finish_reason(kept, stop)
        if reason is not None and stop is None:
            tail = self._assembler.finish()
            text, stop = text + tail.text, tail.stop
            if stop is not None:
                reason = "stop"
        if reason == "stop":
            self._stopped_by = kept[-1] if stop is None else stop
        self._add(text, kept, n_accepted)
        if error is not None and reason is None:
            raise PyspecError(f"no token can be chosen after {len(self._tokens)} tokens: {error}")
        if reason is not None:
            self._finish(reason)

    def _finish_reason(self, kept: Sequence[int], stop: str | None) -> FinishReason | None:
        if stop is not None or (kept and kept[-1] in self._stop_tokens):
            return "stop"
        limit = self.job.params.max_tokens
        if limit is not None and len(self._tokens) + len(kept) >= limit:
            return "length"
        if self._decoder.n_committed(self.seq) >= self.setup.n_ctx:  # the last token has no cell to go to
            return "length"
        return None

    def _add(self, text: str, tokens: list[int], n_accepted: int) -> None:
        drafted_by = tuple(self._source if i < n_accepted else None for i in range(len(tokens)))
        logprobs: tuple[TokenLogprob, ...] = ()
        if self._logprobs is not None:
            rows = zip(tokens, self._decoder.logprobs(self.seq), strict=False)
            logprobs = tuple(TokenLogprob(token, chosen, tuple(top)) for token, (chosen, top) in rows)
            self._logprobs.extend(logprobs)
        self._text.append(text)
        self._tokens.extend(tokens)
        self._drafted_by.extend(drafted_by)
        self.job.stats.completion_tokens += len(tokens)
        self.job.stats.emitted_from_draft += min(n_accepted, len(tokens))
        if text or tokens:
            self.job.add(Chunk(text, tuple(tokens), drafted_by, logprobs))

    # -- the end -------------------------------------------------------------------------------------------------

    def _finish(self, reason: FinishReason) -> None:
        self._settle()
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
            synthetic=self.setup.synthetic,
        )

    def _settle(self) -> None:
        """Adds the work and the time since the last call to the statistics: the prompt's, then the rounds'."""
        stats, before, now = self.job.stats, self._counts, self._decoder.counts()
        work = {name: now[name] - before[name] for name in now}
        elapsed = 1000.0 * (time.perf_counter() - self._t_settled)
        self._counts = now
        self._t_settled = time.perf_counter()
        stats.target_calls += work["target_calls"]
        stats.target_rows += work["target_rows"]
        stats.draft_calls += work["draft_calls"]
        stats.draft_rows += work["draft_rows"]
        if work["draft_failures"]:
            stats.speculator(DRAFT_MODEL).failures += work["draft_failures"]
        propose_ms = 0.0
        for name in self.setup.chain.names:
            spent_us = (
                work["draft_us"]
                if name == DRAFT_MODEL
                else sum(work.get(f"{name}.{part}", 0) for part in ("propose_us", "index_us"))
            )
            if spent_us:
                stats.speculator(name).propose_ms += spent_us / 1000.0
                propose_ms += spent_us / 1000.0
        if self.setup.chain.controller is not None:
            stats.draft_length = self.setup.chain.controller.report()
        if not self._tokens:
            stats.prefill_ms += elapsed
            return
        stats.decode_ms += elapsed
        stats.draft_ms += propose_ms
        stats.draft_read_ms += work["draft_read_us"] / 1000.0
        stats.verify_ms += work["verify_us"] / 1000.0
        stats.sampling_ms += work["sampling_us"] / 1000.0
        stats.libllama_ms += (work["draft_decode_us"] + work["verify_us"]) / 1000.0
