"""How long drafts should be, decided while the engine runs, from what rounds cost and what drafts brought.

Two questions, asked once per round and answered from measurements:

*Should a sequence draft with the model at all?* Each sequence remembers what its rounds with a draft gave (tokens,
rows, steps of the draft model); the cost of such a round follows from the measured cost of a target decode by rows and
of a draft step. Sequences are let draft in the order of what they bring for as long as the expected tokens per second
of the whole round rise; none at all is one of the outcomes.

*When should a draft end?* The draft model's confidence says how likely its next token is to be accepted: a table,
learned as drafts are verified, turns one into the other. A draft goes on while the chance of its next token is worth
the row and the step it costs, at the rate the engine makes tokens anyway. That is a list of floors, one per position,
which the compiled draft loop compares with.

Drafts that cost nothing to make (n-grams, functions) are cut afterwards, by the same account (`lengths.best_lengths`),
and to what may be risked (`free_drafts`). All of them are compared with what the target says, so that it costs nothing
to learn whether such drafts would pay.

While a sequence does not draft with the model, it tries now and then whether it would pay again, more and more seldom,
and only as long as all such tries together cost a hundredth of the time. Where nobody drafts, it is left at that for a
few rounds before the costs are looked at again: a round of a small model is short. Of a draft model that nothing is
known about yet, good drafts are expected for a few rounds: with a wrong idea of it an engine would go on for long.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspec.speculation.acceptance import PositionRates
from pyspec.speculation.beliefs import DraftHistory, HeadBeliefs, SequenceState
from pyspec.speculation.confidence import Calibration
from pyspec.speculation.costs import RowCosts
from pyspec.speculation.free_drafts import FreeDrafts, Prices, general_rates
from pyspec.speculation.lengths import Candidate, Choice, best_common_length, best_lengths, worthwhile_chances


@dataclass
class Decisions:
    """What was chosen and why, for the statistics.

    Attributes:
        rounds: rounds decided.
        plain: rounds without any draft, by choice.
        probes: rounds drafted only to see whether it would pay.
        cut: tokens cut from drafts that had cost nothing.
        unasked: times that no such draft was looked for, as they had brought nothing, or too many others would have
            waited for it.
        probe_ms: what probing has cost beyond plain rounds, as estimated.
    """

    rounds: int = 0
    plain: int = 0
    probes: int = 0
    cut: int = 0
    unasked: int = 0
    probe_ms: float = 0.0


class LengthController:
    """Chooses draft lengths for an engine.

    Args:
        n_max: longest draft of the draft model; 0: there is none.
        n_rows_max: rows the target's batch can have.
        own_pools: sequences have pools of cells of their own: drafts are then computed in one piece with the seeds only
            where all are of one length, else in a piece besides; prompts always are.

    Attributes:
        switch_ms: what a decode of the target takes longer than its rows do where the one before it had another number
            of them, as libllama then builds its graph anew.
    """

    PROBE_SHARE = 0.01
    HYSTERESIS = 1.03
    REFRESH = 8  # rounds between two computations of the floors
    LONGEST_PATIENCE = 512  # rounds between two tries
    PROBE_FLOORS = ([0.0, 0.0, 2.0], [0.0, 2.0])  # a try drafts two tokens, whatever they look like
    WAITING = 0.15  # what a draft computed in a piece besides has to bring more for the sequence that waits for it
    MOST_WAITING = 1  # sequences that may have to wait for another one's draft; with more, streams would falter
    FREE_MARGIN = 1.1  # gain from which on free drafts are verified: waiting costs nothing, and teaches as much
    STRETCH = 16  # computations of the floors between two drafts that are longer than seems to pay
    MARGIN = 1.02  # a gain below this is within what costs are known to
    LONGEST_LAG = 4  # tokens a draft model that drafts in every round may have to read first; more is a new text
    HORIZON = 96.0  # tokens over which the cost of reading up is spread
    FIRST_TRIES = 6  # rounds for which a new draft model is believed to be good
    BELIEF = 0.9  # how likely a token is accepted then
    FIRST_LENGTH = 4  # so many tokens it drafts then, whatever they look like
    OWN_TRIES = 3  # drafts of a request before it counts how these fared, rather than others' drafts
    REST = 8  # rounds for which nobody goes on to draft before costs are looked at again
    GUESS_WEIGHT = 3.0  # what is guessed of drafts before there were any counts as so many rounds

    def __init__(self, *, n_max: int, n_rows_max: int, own_pools: bool = False) -> None:
        self.n_max = n_max
        self.n_rows_max = n_rows_max
        self.own_pools = own_pools
        self.verify = RowCosts()
        self.switch_ms = 0.0
        self.decisions = Decisions()
        self._free_rates: dict[str, PositionRates] = {}
        self._overhead_ms = 0.2
        self._total_ms = 0.0
        self._rows_before = 0  # of the last decode
        self._catching_up_ms = 0.0  # in the last round, for each sequence
        self._floors: tuple[list[float], list[float]] = ([], [])
        self._floors_due = 0
        self._load = (0, 0, 0, True)  # for which they were computed
        self._refreshes = 0
        self._resting = 0  # rounds left for which these go on not to draft
        self._resters: Sequence[int] = ()
        self._reduced = False
        self._head = HeadBeliefs()
        self._other_head = HeadBeliefs()

    @property
    def draft(self) -> RowCosts:
        """Costs of the draft model's steps, with the head in use."""
        return self._head.draft

    @property
    def calibration(self) -> Calibration:
        """What its confidence means, with that head."""
        return self._head.calibration

    @property
    def _is_new(self) -> bool:
        """Too little is known of the draft model yet."""
        return self._head.n_known < self.FIRST_TRIES

    # -- requests ------------------------------------------------------------------------------------------------

    def begin(self, seq: int) -> None:
        """A request starts: it begins with what the requests before it brought."""
        self._head.sequences[seq] = self._new_sequence()
        self._resting = 0

    def end(self, seq: int) -> None:
        """A request is over; what was particular to it is forgotten."""
        self._head.sequences.pop(seq, None)
        self._other_head.sequences.pop(seq, None)

    def use_head(self, *, reduced: bool) -> None:
        """The draft model drafts with a reduced output head from now on, or with its whole one.

        Steps then cost something else, and other drafts are accepted. What was learned with the one head stays for when
        it is used again.
        """
        if reduced == self._reduced:
            return
        self._reduced = reduced
        sequences = self._head.sequences
        self._head, self._other_head = self._other_head, self._head
        known_before = self._head.sequences
        self._head.sequences = {}
        for seq, state in sequences.items():
            known = known_before.get(seq) or self._new_sequence()
            known.free = state.free
            self._head.sequences[seq] = known
        self._floors_due = self._resting = 0

    def _new_sequence(self) -> SequenceState:
        general = self._head.history or self._guess()
        return SequenceState(replace(general, weight=min(general.weight, 2.0)), PositionRates(self._head.rates))

    # -- decisions -----------------------------------------------------------------------------------------------

    def rests(self, seqs: Sequence[int], *, n_plain: int = 0, prompt_rows: int = 0) -> bool:
        """Whether the model is not asked this round, as was decided for these sequences a few rounds ago: ask before
        `model_lengths`, and where this is so instead of it. Parameters as there.
        """
        if not self._resting:
            return False
        if n_plain or prompt_rows or seqs != self._resters:
            self._resting = 0
            return False
        self._resting -= 1
        for seq in seqs:
            self._head.sequences[seq].idle_rounds += 1
        self.decisions.rounds += 1
        self.decisions.plain += 1
        return True

    def model_lengths(
        self,
        seqs: Sequence[int],
        unread: Sequence[int],
        *,
        left: Sequence[float] | None = None,
        n_plain: int = 0,
        prompt_rows: int = 0,
    ) -> list[int]:
        """For each sequence: how long a draft of the model may be this round; 0: the model is not asked.

        Args:
            seqs: sequences that could draft with the model.
            unread: tokens of each that the draft model has to read first.
            left: most tokens that each will still write; None: nothing is known of that.
            n_plain: sequences that generate in the same batch without.
            prompt_rows: prompt rows in the same batch.
        """
        self.decisions.rounds += 1
        reading = [self._reading_ms(n, math.inf if left is None else left[i]) for i, n in enumerate(unread)]
        states = [self._head.sequences[seq] for seq in seqs]
        if prompt_rows and max(unread, default=0) > self.LONGEST_LAG:
            # Drafts look cheap beside a prompt; but soon there is one more that writes, and the reading was for little.
            lengths = [0] * len(seqs)
        elif n_plain + len(seqs) == 1:
            lengths = [self.n_max if self._pays_alone(states[0], reading[0], prompt_rows) else 0]
        else:
            lengths = self._lengths_together(seqs, reading, n_plain, prompt_rows)
        for i, state in enumerate(states):
            chosen = lengths[i] > 0
            state.probing = not chosen and self._probe(state, unread[i], n_plain + len(seqs))
            if state.probing:
                lengths[i] = min(2, self.n_max)
            state.idle_rounds = 0 if chosen else state.idle_rounds + 1
            if chosen:
                state.patience = 16
        if not any(lengths):
            self.decisions.plain += 1
            self._resting = 0 if n_plain or prompt_rows else self.REST
            self._resters = seqs
        return lengths

    def _pays_alone(self, state: SequenceState, reading_ms: float, prompt_rows: int) -> bool:
        """Whether a sequence that has the batch to itself should draft: as its rounds with a draft went lately."""
        general = self._head.history
        history = state.history if general is None or state.n_drafts >= self.OWN_TRIES else general
        plain_rate = 1.0 / (self._decode_ms(1, prompt_rows) + self._overhead_ms)
        if 1.0 + history.drafted + prompt_rows > self.n_rows_max:
            return False
        if self._is_new and not prompt_rows:
            return self._optimistic(self.BELIEF).rate > plain_rate * self.HYSTERESIS
        ms = self._decode_ms(1, prompt_rows, history.drafted) + self._drafting_ms(history) + self._overhead_ms
        ms += self.switch_ms + reading_ms * history.tokens  # lengths differ, so that most rounds build a graph
        return history.tokens / ms > plain_rate * (self.HYSTERESIS if state.idle_rounds else self.MARGIN)

    def _lengths_together(
        self, seqs: Sequence[int], reading_ms: Sequence[float], n_plain: int, prompt_rows: int
    ) -> list[int]:
        """Lengths for several that share a batch, by the chance of each position of each."""
        states = [self._head.sequences[seq] for seq in seqs]
        general = self._head.rates.rates(self.n_max)
        rates = [general if its.n_drafts < self.OWN_TRIES else its.rates.rates(self.n_max) for its in states]
        if self._is_new:
            rates = [[max(self.BELIEF, rate) for rate in its] for its in rates]
        n_all = n_plain + len(seqs)
        if (n_plain or prompt_rows) and self._too_many(n_all):
            return [0] * len(seqs)
        choice = self._best_together(rates, n_plain, prompt_rows)
        idle = any(its.idle_rounds for its in states)
        plain_rate = n_all / (self._decode_ms(n_all, prompt_rows) + self._overhead_ms)
        reading = sum(
            ms * choice.tokens / n_all + its.history.catching_up_ms
            for its, ms, k in zip(states, reading_ms, choice.lengths, strict=True)
            if k
        )
        margin = self.HYSTERESIS if idle else self.MARGIN
        if self._too_many(n_all):  # rounds get longer, and many streams less steady
            margin = max(margin, 1.0 + self.WAITING)
        if choice.tokens / (choice.ms + reading) <= plain_rate * margin:
            return [0] * len(seqs)
        return list(choice.lengths)

    def _decode_ms(self, n_generating: int, prompt_rows: int, drafted: float = 0.0, *, equal: bool = False) -> float:
        """A target decode for so many sequences and drafted tokens; equal: each has as many of them as the others."""
        drafted = round(drafted)
        if not self.own_pools:
            return self.verify(n_generating + prompt_rows + drafted)
        ms = self.verify(prompt_rows) if prompt_rows else 0.0
        if equal or n_generating == 1 or not drafted:
            return ms + self.verify(n_generating + drafted)
        return ms + self.verify(n_generating) + self.verify(drafted)

    def _drafting_ms(self, history: DraftHistory) -> float:
        """What the draft model takes for one sequence's draft."""
        return history.steps * self.draft(1) + history.catching_up_ms

    def _prices(self, n_generating: int) -> Prices:
        """What drafts are paid with where so many sequences generate."""
        plain_ms = self._decode_ms(n_generating, 0)
        return Prices(
            token_ms=(plain_ms + self._overhead_ms) / n_generating,
            row_ms=lambda drafted: self._decode_ms(n_generating, 0, drafted) - plain_ms,
            switch_ms=self.switch_ms,
        )

    def _reading_ms(self, unread: int, left: float) -> float:
        """What it costs each token to come that the model has to read up first."""
        return (self.draft(unread) - self.draft(1)) / max(1.0, min(left, self.HORIZON)) if unread > 2 else 0.0

    def floors(
        self, seqs: Sequence[int], *, n_others: int = 0, prompt_rows: int = 0
    ) -> tuple[list[float], list[float]]:
        """The least chances, all tokens before it included, with which a draft's token is worth its cost.

        Args:
            seqs: the sequences that draft with the model this round, all of them about as long.
            n_others: sequences that generate in the same batch without.
            prompt_rows: prompt rows in the same batch.

        Returns:
            For each position: the chance with which the token, now that it is drafted, is worth a row of the target;
            and the chance with which another step behind it is worth taking.
        """
        if all(self._head.sequences[seq].probing for seq in seqs):
            return self.PROBE_FLOORS
        if self.own_pools and len(seqs) + n_others > 1:  # drafts of one length are worth more than the right lengths
            return [0.0] * self.n_max, [0.0] * self.n_max
        load = (len(seqs), n_others, prompt_rows // 16, self._is_new)
        if self._floors_due > 0 and self._floors[0] and load == self._load:
            self._floors_due -= 1
            return self._floors
        self._floors_due = self.REFRESH
        self._load = load
        self._refreshes += 1
        n, base = len(seqs), len(seqs) + n_others + prompt_rows
        history = self._head.history or self._guess()
        step = self.draft(n) / n
        plain_rate = (n + n_others) / (self.verify(base) + self._overhead_ms)
        drafting_ms = self.verify(round(base + n * history.drafted)) + self._overhead_ms
        drafting_ms += n * (history.steps * step + history.catching_up_ms)
        rate = plain_rate
        if drafting_ms > 0:
            rate = max(rate, (n_others + n * history.tokens) / drafting_ms)
        accepted = min(0.97, max(0.3, (history.tokens - 1.0) / max(history.drafted, 1e-6)))
        rows = [self.verify(base + n * i) / n for i in range(self.n_max + 1)]  # each sequence's share
        keep, onwards = worthwhile_chances(rows, rate=rate, step_ms=step, accepted=accepted)
        if self._refreshes % self.STRETCH == 0:
            # Once in a while a token more than seems to pay, lest a wrong idea of what it costs stay for ever.
            end = next((i for i, least in enumerate(onwards) if least > 1.0), None)
            if end is not None and end + 1 < self.n_max:
                onwards[end] = keep[end + 1] = 0.5
        if self._is_new:  # nothing is known of what its confidence means: this is how it is learned
            keep[: self.FIRST_LENGTH] = [0.0] * len(keep[: self.FIRST_LENGTH])
            onwards[: self.FIRST_LENGTH - 1] = [0.0] * len(onwards[: self.FIRST_LENGTH - 1])
        self._floors = keep, onwards
        return self._floors

    def asks(self, seq: int, speculator: str, *, n_generating: int = 1) -> bool:
        """Whether this speculator, whose drafts cost nothing, is asked for one this round: ask once a round.

        Args:
            n_generating: sequences that generate in the batch, this one among them.
        """
        known = self._free(seq, speculator)
        if self._too_many(n_generating) or known.rests():
            self.decisions.unasked += 1
            return False
        known.ask(self._prices(n_generating))
        return True

    def cut(
        self,
        seq: int,
        speculator: str,
        draft: Sequence[int],
        *,
        n_rows: int,
        model_may_draft: bool,
        n_generating: int = 1,
    ) -> int:
        """How much of a draft that cost nothing is worth verifying; 0 if another kind of round brings more. Of all of
        it is remembered whether it was right.

        Args:
            draft: the tokens, at least one.
            n_rows: rows the batch has besides this draft, its own seed among them.
            n_generating: sequences that generate in the batch, this one among them.
            model_may_draft: whether the draft model would draft instead.
        """
        known = self._free(seq, speculator)
        known.propose(draft)
        kept = 0
        if not self._too_many(n_generating):
            n = known.affordable(len(draft), self._prices(n_generating))
            kept = self._worthwhile(seq, known.chances(n), n_rows, n_generating, model_may_draft) if n else 0
        self.decisions.cut += len(draft) - kept
        return kept

    def _worthwhile(
        self, seq: int, chances: Sequence[float], n_rows: int, n_generating: int, model_may_draft: bool
    ) -> int:
        """Of a draft with these chances, how much brings the most tokens per second. Parameters as in `cut`."""

        def verify_ms(rows: int) -> float:
            switches = (rows != self._rows_before) + (rows != n_rows)  # now, and back again
            return self._decode_ms(n_generating, n_rows - n_generating, rows - n_rows) + switches * self.switch_ms

        choice = best_lengths(
            [Candidate(chances, free=True)],
            n_plain=n_generating - 1,
            prompt_rows=n_rows - n_generating,
            n_rows_max=self.n_rows_max,
            verify_ms=verify_ms,
            draft_ms=self.draft,
            overhead_ms=self._overhead_ms,
        )
        plain_rate = n_generating / (verify_ms(n_rows) + self._overhead_ms)
        margin = self.FREE_MARGIN + (self.WAITING * (n_generating - 1) if self.own_pools else 0.0)
        if choice.rate < plain_rate * margin:
            return 0
        if model_may_draft:
            history = self._head.sequences[seq].history
            ms = self._decode_ms(n_generating, n_rows - n_generating, history.drafted)
            ms += self._drafting_ms(history) + self._overhead_ms
            if (n_generating - 1 + history.tokens) / ms > choice.rate:
                return 0
        return choice.lengths[0]

    # -- measurements --------------------------------------------------------------------------------------------

    def observe_round(
        self,
        *,
        rows: int,
        verify_ms: float,
        draft_calls: Sequence[tuple[int, float]],
        total_ms: float,
        in_one_piece: bool = True,
    ) -> None:
        """Takes in what a round cost.

        Args:
            rows: rows of the target's decode, which took verify_ms.
            draft_calls: (rows, ms) of each decode of the draft model.
            total_ms: the whole round.
            in_one_piece: the rows were computed together.
        """
        if in_one_piece or not self.own_pools:
            switched = self._rows_before not in (0, rows)
            self.verify.observe(rows, max(verify_ms - self.switch_ms * switched, 0.5 * verify_ms))
        spent = verify_ms
        for n, ms in draft_calls:
            self.draft.observe(n, ms)
            spent += ms
        if draft_calls:
            steps = [rows for rows, _ in draft_calls[1:]]
            n = max(steps, default=1)  # sequences that draft
            first = min(draft_calls[0][0], self.LONGEST_LAG * n)
            self._catching_up_ms = max(0.0, self.draft(first) - self.draft(n)) / n if first > n else 0.0
        self._overhead_ms += 0.05 * (min(max(total_ms - spent, 0.0), 5.0) - self._overhead_ms)
        self.observe_time(rows, total_ms)

    def observe_time(self, rows: int, total_ms: float) -> None:
        """Takes in that a round with so many rows took so long, and nothing else of it."""
        self._rows_before = rows
        self._total_ms += total_ms

    def observe_draft(self, seq: int, speculator: str, drafted: int, accepted: int, *, n_generating: int = 1) -> None:
        """Takes in how a draft that had cost nothing fared, in a batch of so many sequences that generate."""
        self._free(seq, speculator).pay(drafted, accepted, self._prices(n_generating))

    def observe_emitted(self, seq: int, tokens: Sequence[int], *, n_generating: int = 1) -> None:
        """Takes in what the target has said, whoever drafted it, in a batch of so many sequences that generate."""
        for known in self._head.sequences[seq].free.values():
            n_right = known.compare(tokens)
            if n_right or known.balance_ms < 0.0:
                known.trust(n_right, len(tokens), self._prices(n_generating))
            known.verified = False

    def observe_model_draft(
        self, seq: int, confidences: Sequence[float], accepted: int, *, steps: int, emitted: int
    ) -> None:
        """Takes in how a draft of the model fared, an empty one as well."""
        state = self._head.sequences[seq]
        self.calibration.observe(confidences, accepted)
        if confidences:
            state.rates.observe(len(confidences), accepted)
        state.n_drafts += 1
        state.history.observe(emitted, len(confidences), steps, self._catching_up_ms)
        if self._head.history is None:
            self._head.history = self._guess()
        self._head.history.observe(emitted, len(confidences), steps, self._catching_up_ms)
        self._head.n_known += 1
        if state.probing:
            self.decisions.probes += 1
            plain = emitted * (self.verify(1) + self._overhead_ms)
            spent = self.verify(1 + len(confidences)) + steps * self.draft(1) + self._overhead_ms
            spent += self._catching_up_ms
            self.decisions.probe_ms += max(0.0, spent - plain)

    # -- inside --------------------------------------------------------------------------------------------------

    def _too_many(self, n_generating: int) -> bool:
        """With so many sequences, too many would wait for a draft that one of them has."""
        return self.own_pools and n_generating - 1 > self.MOST_WAITING

    def _free(self, seq: int, speculator: str) -> FreeDrafts:
        free = self._head.sequences[seq].free
        if speculator not in free:
            general = self._free_rates.setdefault(speculator, general_rates())
            free[speculator] = FreeDrafts.after(general)
        return free[speculator]

    def _guess(self) -> DraftHistory:
        """Before anything was verified: the best length if seven of ten tokens are accepted."""
        choice = self._optimistic(0.7)
        n = choice.lengths[0] or min(2, self.n_max)
        tokens = sum(0.7**i for i in range(n + 1))
        return DraftHistory(tokens, float(n), float(n), self.GUESS_WEIGHT)

    def _optimistic(self, rate: float, n_generating: int = 1) -> Choice:
        """What so many sequences would draft if so many of their tokens were accepted."""
        return self._best_together([[rate] * self.n_max] * n_generating)

    def _best_together(self, rates: Sequence[Sequence[float]], n_plain: int = 0, prompt_rows: int = 0) -> Choice:
        """The lengths for sequences with these chances that bring the most tokens per second in one batch."""
        n_all = n_plain + len(rates)
        if self.own_pools:
            return best_common_length(
                rates,
                n_rows_max=self.n_rows_max - n_plain - prompt_rows,
                decode_ms=lambda rows: self._decode_ms(n_all, prompt_rows, rows, equal=n_plain == 0),
                draft_ms=self.draft,
                n_plain=n_plain,
                overhead_ms=self._overhead_ms,
            )
        return best_lengths(
            [Candidate(its) for its in rates],
            n_plain=n_plain,
            prompt_rows=prompt_rows,
            n_rows_max=self.n_rows_max,
            verify_ms=self.verify,
            draft_ms=self.draft,
            overhead_ms=self._overhead_ms,
        )

    def _probe(self, state: SequenceState, unread: int, n_generating: int) -> bool:
        """Whether to draft although it does not pay, to see whether it still does not."""
        if state.idle_rounds < state.patience:
            return False
        reading_ms = self.draft(unread) - self.draft(1) if unread > 2 else 0.0
        if self.decisions.probe_ms + reading_ms > self.PROBE_SHARE * self._total_ms:
            return False
        if state.patience < self.LONGEST_PATIENCE and not any(self._optimistic(0.95, n_generating).lengths):
            # Not even if nearly everything were accepted; unless a cost is remembered wrongly, so look once in a while.
            state.idle_rounds, state.patience = 0, 2 * state.patience
            return False
        self.decisions.probe_ms += reading_ms
        state.idle_rounds = 0
        state.patience = min(2 * state.patience, self.LONGEST_PATIENCE)
        state.history.weight = min(state.history.weight, 1.5)  # what it shows counts more than what was long ago
        return True

    def report(self) -> dict[str, Any]:
        """What it believes and what it chose."""
        history = self._head.history
        return {
            "verify_ms": {rows: round(ms, 3) for rows, ms in self.verify.table().items()},
            "draft_ms": {rows: round(ms, 3) for rows, ms in self.draft.table().items() if rows <= 4},
            "overhead_ms": round(self._overhead_ms, 3),
            "switch_ms": round(self.switch_ms, 3),
            "acceptance_by_confidence": [round(a, 3) for a in self.calibration.table],
            "floors": [round(f, 3) for f in self._floors[0]],
            "floors_to_go_on": [round(f, 3) for f in self._floors[1][:-1]],
            "tokens_per_drafted_round": None if history is None else round(history.tokens, 3),
            "drafted_per_drafted_round": None if history is None else round(history.drafted, 3),
            **vars(self.decisions),
        }
