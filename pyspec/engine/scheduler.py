"""Which requests run, and the round they share: one decode of the target for all of them.

The main loop of an engine is `Scheduler.round`: plan, propose, verify, emit. Requests join and leave between rounds.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from pyspec.engine.generation import Job, outcome_error
from pyspec.engine.metrics import EngineStats, SlotStats
from pyspec.engine.prefixes import Slots
from pyspec.engine.rounds import Run, Setup, Work
from pyspec.errors import ConsumerStalled, ContextFull, DecodeError, PyspecError
from pyspec.speculation.chain import Verdict

_log = logging.getLogger("pyspec.engine")

# libllama's codes for a decode that found no room, and for one that was told to stop.
NO_ROOM = 1
ABORTED = 2

# Rounds without drafts after one for which there was no room with them.
PAUSE_DRAFTING = 16


class Totals:
    """What an engine has done since it was opened, for its metrics."""

    def __init__(self) -> None:
        self.requests = 0
        self.failed = 0
        self.cancelled = 0
        self.rounds = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.completion_tokens = 0
        self.drafted = 0
        self.accepted = 0
        self.busy_ms = 0.0

    def add_unstarted(self, job: Job) -> None:
        """Takes in a request that was over before it had a slot."""
        self.requests += 1
        self.cancelled += job.cancelled

    def add(self, run: Run, *, failed: bool) -> None:
        """Takes in a request that is over."""
        stats = run.job.stats
        self.requests += 1
        self.failed += failed
        self.cancelled += run.outcome is not None and run.outcome.finish_reason == "cancelled"
        self.prompt_tokens += stats.prompt_tokens
        self.cached_tokens += stats.cached_tokens
        self.completion_tokens += stats.completion_tokens
        self.drafted += stats.drafted
        self.accepted += stats.accepted


class Scheduler:
    """The running requests of an engine.

    Args:
        setup: what they share.
        slots: their sequences.

    Attributes:
        runs: the running requests, the oldest first.
        totals: what has been done so far.
    """

    def __init__(self, setup: Setup, slots: Slots) -> None:
        self.runs: list[Run] = []
        self.totals = Totals()
        self.slots = slots
        self._setup = setup
        self._decoder = setup.decoder
        self._no_drafts = 0  # so many rounds
        self._t_settled: float | None = None  # the end of the last round, while requests run
        self._settled = False  # what the decoder has done by then is counted
        # Spot checks of exact mode: decodes since the last, how many there were, one is under way, one has failed.
        self._n_unchecked = 0
        self._n_watched = 0
        self._watching = False
        self._warned = False

    @property
    def full(self) -> bool:
        """No other request can be admitted."""
        return self.slots.n_free == 0

    def admit(self, job: Job) -> None:
        """Gives a request a slot. One that can't begin is finished with the error."""
        slot, n_held = self.slots.take(job.prompt)
        try:
            run = Run(job, self._setup, slot, n_held)
        except BaseException as error:
            self._setup.chain.end(slot)
            self.slots.give_back(slot, keep=False)
            job.finish(outcome_error(error))
            return
        if not self.runs:
            self._t_settled = time.perf_counter()
        self._settled = False  # taking a slot is no part of a round
        self.runs.append(run)

    def reads_for(self, job: Job) -> bool:
        """Whether a decode that is under way is for this request only, or reads its prompt, and so may be stopped."""
        runs = list(self.runs)
        return any(run.job is job and (len(runs) == 1 or not run.job.stats.completion_tokens) for run in runs)

    def round(self) -> bool:
        """One round of all requests that can go on. False: there are none, and nothing will change by itself."""
        self._retire()
        runs = [run for run in list(self.runs) if not self._stalled(run)]
        if not runs:
            self._t_settled = time.perf_counter()
            return False
        drafting = self._no_drafts == 0
        self._no_drafts = max(0, self._no_drafts - 1)
        for part in self._parts(runs):
            self.totals.rounds += 1
            self._decode([run for run in part if run in self.runs], drafting=drafting)
        return True

    def _parts(self, runs: Sequence[Run]) -> list[Sequence[Run]]:
        """Who shares a decode: everybody, or in exact mode those that write, as many as may; a prompt is read alone.

        While somebody writes only one prompt is read in a round, the oldest request's.
        """
        exact = self._setup.exact
        if exact is None:
            return [runs]
        writing = [run for run in runs if not run.reading]
        reading = [run for run in runs if run.reading]
        size = exact.width // exact.least_rows
        parts: list[Sequence[Run]] = [writing[at : at + size] for at in range(0, len(writing), size)]
        return parts + [[run] for run in (reading[:1] if writing else reading)]

    # -- who takes part ------------------------------------------------------------------------------------------

    def _retire(self) -> None:
        """Ends what was cancelled, or has run out of time."""
        now = time.monotonic()
        for run in list(self.runs):
            if run.job.cancelled:
                run.finish("cancelled")
                self._leave(run)
            elif run.job.deadline is not None and now >= run.job.deadline:
                run.finish("timeout")
                self._leave(run)

    def _stalled(self, run: Run) -> bool:
        """Whether the request waits for its reader."""
        if not run.job.full:
            run.t_stalled = None
            return False
        now = time.monotonic()
        if run.t_stalled is None:
            run.t_stalled = now
        if now - run.t_stalled > self._setup.stall_timeout:
            self._fail(
                run,
                ConsumerStalled(
                    f"nobody has read from the stream for {self._setup.stall_timeout} s; its request was ended so that "
                    "its slot is free"
                ),
            )
        return True

    def next_deadline(self) -> float | None:
        """When a request that waits for its reader has to be looked at again, by `time.monotonic`."""
        times = [run.t_stalled + self._setup.stall_timeout for run in self.runs if run.t_stalled is not None]
        times += [run.job.deadline for run in self.runs if run.job.deadline is not None]
        return min(times, default=None)

    # -- the round -----------------------------------------------------------------------------------------------

    def _decode(self, runs: Sequence[Run], *, drafting: bool) -> None:
        """One decode for these requests; where that fails, in smaller pieces, until only what can't be done fails."""
        if not runs:
            return
        if not self._settled:
            self._decoder.spent()
        self._settled = False
        t0 = time.perf_counter()
        try:
            n_prompt_rows = self._plan(runs, drafting)
            writing = [run for run in runs if not run.reading]
            seqs, left = [run.seq for run in writing], [run.left for run in writing]
            drafts = self._setup.chain.propose(seqs, left=left, prompt_rows=n_prompt_rows)
            for run, draft in zip(writing, drafts, strict=True):
                run.drafted(draft)
            self._watch(writing)
            self._decoder.verify()
            self._compare()
        except DecodeError as error:
            if error.code != ABORTED:
                self._recover(runs, error, drafting=drafting)
            return
        except BaseException as error:
            for run in runs:
                self._fail(run, error)
            return
        self._emit([run for run in runs if run.takes_part], t0)

    def _plan(self, runs: Sequence[Run], drafting: bool) -> int:
        """Shares the rows of the batch out: last tokens, then prompts, then drafts. Returns the rows of prompts."""
        setup = self._setup
        writing = [run for run in runs if not run.reading]
        reading = [run for run in runs if run.reading]
        left = min(setup.n_prompt_rows, setup.n_rows - len(writing)) if writing else setup.prompt_chunk
        n_prompt_rows = 0
        for run in reading:
            n = run.plan_reading(left)
            left -= n
            n_prompt_rows += n
        n_outputs = min(setup.n_rows - n_prompt_rows, self._decoder.target.n_outputs_max - len(reading))
        for i, run in enumerate(writing):
            share = n_outputs // (len(writing) - i)  # what the others leave over is for those behind them
            if setup.exact is not None:
                share = min(share, setup.exact.width // len(writing))  # with company, each gets as many as the longest
            run.plan_writing(share, drafting=drafting)
            n_outputs -= max(1, min(share, 1 + setup.n_draft_max))
        return n_prompt_rows

    def _watch(self, writing: Sequence[Run]) -> None:
        """In exact mode, every so many decodes with a draft: has the row of one of the requests computed again."""
        exact = self._setup.exact
        if exact is None or not exact.check_every or not writing:
            return
        drafting = [run for run in writing if self._decoder.n_drafted(run.seq)]
        if not drafting and len(writing) < 2:
            return
        self._n_unchecked += 1
        if self._n_unchecked >= exact.check_every:
            candidates = drafting or writing
            self._decoder.watch(candidates[self._n_watched % len(candidates)].seq)
            self._watching = True

    def _compare(self) -> None:
        if not self._watching:
            return
        self._watching = False
        same = self._decoder.compare_watched()
        if same is not None:
            self._n_unchecked = 0
            self._n_watched += 1
        if same is False and not self._warned:
            self._warned = True
            _log.warning(
                "exact mode: a row of logits in a batch was not, to the bit, what it is alone, against what was "
                "measured for this model; texts may differ from plain decoding's. EngineStats.spot_differences counts"
            )

    def _emit(self, runs: Sequence[Run], t0: float) -> None:
        """Hands out what the round gave, and lets those leave who are done."""
        spent = self._decoder.spent()
        self._settled = True
        t1 = time.perf_counter()
        settled = t0 if self._t_settled is None else self._t_settled
        work = Work(1000.0 * (t1 - settled), *spent)
        self._t_settled = t1
        self.totals.busy_ms += 1000.0 * (t1 - t0)
        verdicts: list[Verdict] = []
        for run in runs:
            try:
                verdict = run.took(work)
            except BaseException as error:
                self._fail(run, error)
                continue
            if verdict is not None:
                verdicts.append(verdict)
        if verdicts:
            self._setup.chain.verified(verdicts, total_ms=1000.0 * (time.perf_counter() - t0))
        for run in runs:
            if run.outcome is not None:
                self._leave(run)

    def _recover(self, runs: Sequence[Run], error: DecodeError, *, drafting: bool) -> None:
        """After a decode that failed: without drafts, then in halves, until it is known for whom it can't be done."""
        if error.code == NO_ROOM and self.slots.empty():
            self._decode(runs, drafting=False)
        elif drafting and self._setup.n_draft_max > 0:
            self._no_drafts = PAUSE_DRAFTING
            self._decode(runs, drafting=False)
        elif len(runs) > 1:
            half = len(runs) // 2
            for part in (runs[:half], runs[half:]):
                self._decode([run for run in part if run in self.runs], drafting=False)
        elif runs and error.code == NO_ROOM:
            youngest = self.runs[-1]
            n_tokens = self._decoder.n_committed(youngest.seq) + 1
            full = ContextFull(
                f"no room for another token after {n_tokens - 1}; make n_ctx larger",
                n_tokens=n_tokens,
                n_ctx=self._setup.n_ctx,
            )
            full.__cause__ = error
            self._fail(youngest, full)
            if youngest is not runs[0]:
                self._decode(runs, drafting=False)
        elif runs:
            self._fail(runs[0], error)

    # -- what there is -------------------------------------------------------------------------------------------

    def stats(self, n_waiting: int) -> EngineStats:
        """A snapshot, with so many requests in the queue."""
        counts, totals, cache = self._decoder.counts(), self.totals, self.slots.cache
        running = {run.seq: run for run in self.runs}
        slots = []
        for slot in range(self._setup.n_slots):
            run = running.get(slot)
            state = "idle" if run is None else "waiting" if run.waits else "reading" if run.reading else "writing"
            slots.append(SlotStats(state, self._decoder.n_committed(slot)))
        return EngineStats(
            n_waiting=n_waiting,
            slots=tuple(slots),
            requests=totals.requests,
            failed=totals.failed,
            cancelled=totals.cancelled,
            rounds=totals.rounds,
            prompt_tokens=totals.prompt_tokens,
            cached_tokens=totals.cached_tokens,
            completion_tokens=totals.completion_tokens,
            drafted=totals.drafted,
            accepted=totals.accepted,
            busy_ms=totals.busy_ms,
            target_rows=counts["target_rows"],
            draft_rows=counts["draft_rows"],
            verify_ms=counts["verify_us"] / 1000.0,
            draft_ms=counts["draft_us"] / 1000.0,
            sampling_ms=counts["sampling_us"] / 1000.0,
            checkpoint_ms=counts["checkpoint_us"] / 1000.0,
            checkpoints=counts["checkpoints"],
            restores=counts["restores"],
            spot_checks=counts["spot_checks"],
            spot_differences=counts["spot_differences"],
            prefix_entries=len(cache),
            prefix_bytes=cache.size,
            prefix_hits=cache.hits,
        )

    # -- the end of a request ------------------------------------------------------------------------------------

    def _fail(self, run: Run, error: BaseException) -> None:
        if run in self.runs:
            self._leave(run, outcome_error(error))

    def _leave(self, run: Run, error: BaseException | None = None) -> None:
        """Clears the request's slot, then tells whoever waits for it."""
        self.runs.remove(run)
        self.totals.add(run, failed=error is not None)
        try:
            self._setup.chain.end(run.seq)
            if run.job.before_leaving is not None and error is None:
                try:
                    run.job.before_leaving(run.seq)
                except (PyspecError, OSError) as refusal:
                    error = refusal
            self.slots.give_back(run.seq, keep=error is None)
        except BaseException as failure:  # the contexts are of no use any more
            error = outcome_error(failure)
            raise
        finally:
            outcome = run.outcome if error is None else error
            assert outcome is not None
            run.job.finish(outcome)
