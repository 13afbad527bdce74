"""Who drafts this round: speculators are asked in order, the first that has a draft wins the sequence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from pyspec._decoder import Decoder
from pyspec._model_drafting import ModelRunner
from pyspec._speculator import CompiledSpeculator
from pyspec.speculation.controller import LengthController
from pyspec.speculation.grammar import ForcedTokens
from pyspec.speculation.scripted import DraftRequest, GuardedSpeculator

# Of rounds in which nobody drafts, which are all alike, one in so many tells the controller what it cost.
PLAIN_SAMPLE = 4


@dataclass(eq=False)
class Draft:
    """How one sequence came to its draft, or to none.

    Attributes:
        seq: the sequence.
        budget: most tokens it could have.
        model_budget: most tokens the draft model may propose.
        left: most tokens that the sequence will still write.
        source: name of the speculator whose draft is verified; None: nobody's.
        asked_model: the draft model was asked for it.
        discarded: by name, tokens of drafts that were shorter than their speculator's n_min.
        refused: by name, tokens of drafts behind what the request's grammar allows.
        failures: by name, how often a speculator failed.
    """

    seq: int
    budget: int
    model_budget: int
    left: float = math.inf
    source: str | None = None
    asked_model: bool = False
    discarded: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """How a draft fared in the target's decode.

    Attributes:
        draft: the draft.
        drafted, accepted: tokens submitted, and accepted.
        emitted: the tokens that the sequence emitted.
    """

    draft: Draft
    drafted: int
    accepted: int
    emitted: Sequence[int]


class Chain:
    """The speculators of an engine, and how long their drafts may be.

    Args:
        decoder: whose compiled speculators are those of the list, in the same order.
        speculators: compiled ones, Python ones under guard, and the one that asks the grammar.
        controller: chooses the lengths; None: every draft is as long as its speculator and the budget allow.

    Attributes:
        compiled_names: names of the compiled speculators, in the decoder's order.
    """

    def __init__(
        self,
        decoder: Decoder,
        speculators: Sequence[CompiledSpeculator | GuardedSpeculator | ForcedTokens],
        controller: LengthController | None = None,
    ) -> None:
        self.controller = controller
        self._decoder = decoder
        self._speculators = speculators
        self._model = next((s for s in speculators if isinstance(s, ModelRunner)), None)
        compiled = [s for s in speculators if isinstance(s, CompiledSpeculator)]
        self.compiled_names = tuple(speculator.name for speculator in compiled)
        self._which = compiled.index(self._model) if self._model is not None else -1  # among the decoder's
        self._with_prompts = False  # in the round's batch
        self._n_plain = 0  # rounds in which nobody drafted

    @property
    def draft_model(self) -> ModelRunner | None:
        """The speculator that drafts with a model, if there is one."""
        return self._model

    def begin(self, seq: int) -> None:
        """A request starts on a sequence."""
        if self.controller is not None:
            self.controller.begin(seq)

    def end(self, seq: int) -> None:
        """It is over."""
        if self.controller is not None:
            self.controller.end(seq)

    def draft_work(self, seq: int) -> tuple[int, int]:
        """Decodes of the draft model the sequence has ever taken part in, and its rows in them."""
        return (0, 0) if self._model is None else self._model.work(seq)

    def propose(self, seqs: Sequence[int], *, left: Sequence[float], prompt_rows: int = 0) -> list[Draft]:
        """Lets the speculators draft for the sequences that generate this round, all of them planned.

        Args:
            left: most tokens that each will still write.
            prompt_rows: rows of prompts in the same batch.

        Returns:
            For each sequence, in order, how it came to its draft.
        """
        decoder, controller = self._decoder, self.controller
        self._with_prompts = prompt_rows > 0
        budgets = map(decoder.budget, seqs)
        drafts = [Draft(seq, n, n, its) for seq, n, its in zip(seqs, budgets, left, strict=True)]
        wanting = [draft for draft in drafts if draft.budget > 0]
        if not wanting:
            return drafts
        n_plain = len(drafts) - len(wanting)
        with_model = self._who_may_use_the_model(wanting, n_plain, prompt_rows) if controller is not None else wanting
        compiled = 0
        for speculator in self._speculators:
            open_ones = [draft for draft in wanting if draft.source is None]
            if isinstance(speculator, CompiledSpeculator):
                if speculator is self._model:
                    open_ones = [draft for draft in open_ones if draft in with_model]
                elif controller is not None:
                    n, name = len(drafts), speculator.name
                    open_ones = [draft for draft in open_ones if controller.asks(draft.seq, name, n_generating=n)]
                self._ask(compiled, speculator, open_ones, wanting)
                compiled += 1
            elif isinstance(speculator, ForcedTokens):
                if not speculator.offer(decoder, [draft.seq for draft in open_ones]):
                    continue
            else:
                self._offer(speculator, open_ones)
            for draft in open_ones:
                length = decoder.n_drafted(draft.seq)
                n_refused = decoder.n_refused(draft.seq)
                if n_refused:
                    _note_more(draft.refused, speculator.name, n_refused)
                if length and controller is not None and speculator is not self._model:
                    rows = prompt_rows + len(drafts) + sum(decoder.n_drafted(d.seq) for d in wanting if d is not draft)
                    length = controller.cut(
                        draft.seq,
                        speculator.name,
                        decoder.drafted(draft.seq),
                        n_rows=rows,
                        n_generating=len(drafts),
                        model_may_draft=draft in with_model,
                    )
                    decoder.cut(draft.seq, length)
                if length:
                    draft.source = speculator.name
        return drafts

    def verified(self, verdicts: Sequence[Verdict], *, total_ms: float) -> None:
        """Tells the controller what a round was like."""
        controller, model = self.controller, self._model
        if controller is None:
            return
        asked = drafted = False
        for verdict in verdicts:
            asked |= verdict.draft.asked_model
            drafted |= verdict.drafted > 0
        plain = not asked and not drafted
        self._n_plain += plain
        rows, verify_ms = self._decoder.last_decode()
        if plain and self._n_plain % PLAIN_SAMPLE:
            controller.observe_time(rows, total_ms)
        else:
            controller.observe_round(
                rows=rows,
                verify_ms=verify_ms,
                draft_calls=model.round_calls() if model is not None and asked else [],
                total_ms=total_ms,
                in_one_piece=not self._with_prompts and _alike(verdicts),
            )
        for verdict in verdicts:
            draft = verdict.draft
            if model is not None and draft.asked_model and draft.source in (None, model.name):
                controller.observe_model_draft(
                    draft.seq,
                    model.confidences_of(draft.seq)[: verdict.drafted],
                    verdict.accepted,
                    steps=model.steps(draft.seq),
                    emitted=len(verdict.emitted),
                )
            elif draft.source is not None:
                controller.observe_draft(
                    draft.seq, draft.source, verdict.drafted, verdict.accepted, n_generating=len(verdicts)
                )
            controller.observe_emitted(draft.seq, verdict.emitted, n_generating=len(verdicts))

    # -- the draft model -----------------------------------------------------------------------------------------

    def _who_may_use_the_model(self, wanting: Sequence[Draft], n_plain: int, prompt_rows: int) -> list[Draft]:
        """Asks the controller for whom the draft model should draft, and hands it the floors to stop at."""
        controller, model = self.controller, self._model
        if model is None or controller is None:
            return []
        seqs = [draft.seq for draft in wanting]
        if controller.rests(seqs, n_plain=n_plain, prompt_rows=prompt_rows):
            return []
        if model.head is not None:
            self._decoder.prepare(self._which)
            controller.use_head(reduced=model.head.reduced)
        unread = [self._decoder.n_committed(draft.seq) + 1 - model.synced(draft.seq) for draft in wanting]
        left = [draft.left for draft in wanting]
        lengths = controller.model_lengths(seqs, unread, left=left, n_plain=n_plain, prompt_rows=prompt_rows)
        chosen = []
        for draft, length in zip(wanting, lengths, strict=True):
            draft.model_budget = min(draft.budget, length)
            if length:
                chosen.append(draft)
        if chosen:
            n_others = n_plain + len(wanting) - len(chosen)
            floors, onwards = controller.floors(
                [draft.seq for draft in chosen], n_others=n_others, prompt_rows=prompt_rows
            )
            model.set_floors(floors, onwards, controller.calibration.table)
        return chosen

    def _ask(
        self, which: int, speculator: CompiledSpeculator, asked: Sequence[Draft], wanting: Sequence[Draft]
    ) -> None:
        """Lets a compiled speculator draft for some of the sequences that have no draft yet."""
        if not asked:
            return
        decoder = self._decoder
        by_model = speculator is self._model
        limited = by_model or len(asked) < len(wanting)
        if limited:
            for draft in wanting:
                if draft.source is None:
                    budget = draft.model_budget if by_model else draft.budget
                    decoder.set_budget(draft.seq, budget if draft in asked else 0)
        decoder.propose(which)
        if limited:
            for draft in wanting:
                decoder.set_budget(draft.seq, draft.budget)
        for draft in asked:
            draft.asked_model |= by_model
            n_discarded = decoder.n_discarded(draft.seq)
            if n_discarded:
                _note_more(draft.discarded, speculator.name, n_discarded)

    # -- Python --------------------------------------------------------------------------------------------------

    def _offer(self, speculator: GuardedSpeculator, asked: Sequence[Draft]) -> None:
        if not asked:
            return
        requests = [DraftRequest(draft.seq, self._decoder.tokens(draft.seq), draft.budget) for draft in asked]
        for draft, tokens in zip(asked, speculator.draft(requests), strict=True):
            if tokens is None:
                draft.failures[speculator.name] = 1
            else:
                self._decoder.offer(draft.seq, tokens)


def _note_more(by_name: dict[str, int], name: str, total: int) -> None:
    """Of a total, puts what is not others' down to one speculator."""
    n_new = total - sum(by_name.values())
    if n_new:
        by_name[name] = n_new


def _alike(verdicts: Sequence[Verdict]) -> bool:
    """Whether neighbouring sequences have drafts of one length."""
    seqs = [verdict.draft.seq for verdict in verdicts]
    return max(seqs) - min(seqs) < len(seqs) and len({verdict.drafted for verdict in verdicts}) == 1
