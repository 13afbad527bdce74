"""What speculation did for a request, in numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class SpeculatorStats:
    """One speculator's share of a request.

    Attributes:
        drafts: rounds in which its draft was verified.
        drafted: tokens it submitted.
        accepted: of those, tokens the target chose as well.
        discarded: tokens of drafts that were shorter than n_min and not submitted.
        refused: tokens of drafts that were not submitted because the request's grammar does not let them, or one
            before them, through.
        failures: rounds in which it failed and the round went on without it.
        propose_ms: time it took to propose, in compiled code (Python speculators: in ``Stats.python_ms``).
        drafted_per_position: how often a draft had a first, second, ... token.
        accepted_per_position: how often that token was accepted.
    """

    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    discarded: int = 0
    refused: int = 0
    failures: int = 0
    propose_ms: float = 0.0
    drafted_per_position: list[int] = field(default_factory=list)
    accepted_per_position: list[int] = field(default_factory=list)

    def count(self, drafted: int, accepted: int) -> None:
        """Adds one verified draft."""
        if drafted == 0:
            return
        self.drafts += 1
        self.drafted += drafted
        self.accepted += accepted
        missing = drafted - len(self.drafted_per_position)
        self.drafted_per_position.extend([0] * missing)
        self.accepted_per_position.extend([0] * missing)
        for i in range(drafted):
            self.drafted_per_position[i] += 1
        for i in range(accepted):
            self.accepted_per_position[i] += 1


@dataclass
class Stats:
    """A request in numbers. Times are milliseconds, rates are fractions.

    The prompt's last decode gives the first token, each round after it at least one more:
    ``completion_tokens == 1 + rounds + accepted``, less what a stop string cut off (``discarded_tokens``), and less one
    where the last round ended at a drafted end-of-generation or stop token, behind which nothing is sampled.

    Attributes:
        prompt_tokens: tokens of the prompt.
        completion_tokens: tokens of the result.
        cached_tokens: of the prompt, tokens that did not have to be read, as an earlier request had left them.
        discarded_tokens: tokens emitted behind the end of a stop string.
        context_shifts: times the context was full and older tokens were forgotten.
        rounds: target decodes after the prompt.
        rounds_without_draft: of those, with one row.
        emitted_from_draft: tokens of the result that had been drafted.
        target_calls, target_rows: decodes of the target it took part in, and its own rows in them, prompt included.
        draft_calls, draft_rows: the same of the draft model.
        speculators: by name, what each one did.
        queue_ms: from submission to a slot.
        prefill_ms: rounds up to the first token. A round that several requests share counts whole for each, here and
            below.
        decode_ms: all rounds after it.
        draft_ms, verify_ms, sampling_ms: of decode_ms, in drafting, in target decodes, in choosing tokens.
        grammar_ms: of decode_ms, in fitting drafts to the request's grammar and in masks of what it allows.
        checkpoint_ms: of decode_ms, where a memory can't be cut: in saving states, putting them back and reading
            accepted tokens again.
        draft_read_ms: of draft_ms, the draft model's reading of the prompt, when it first drafts, and of longer
            stretches that others drafted.
        python_ms: the rest of decode_ms: policy, text, hand-over.
        libllama_ms: of decode_ms, inside decodes of either model.
        draft_length: where lengths are chosen by what pays: what the controller believes decodes and tokens are worth,
            and what it has chosen so far, over all requests of the engine; else None.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    discarded_tokens: int = 0
    context_shifts: int = 0
    rounds: int = 0
    rounds_without_draft: int = 0
    emitted_from_draft: int = 0
    target_calls: int = 0
    target_rows: int = 0
    draft_calls: int = 0
    draft_rows: int = 0
    speculators: dict[str, SpeculatorStats] = field(default_factory=dict)
    queue_ms: float = 0.0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    draft_ms: float = 0.0
    draft_read_ms: float = 0.0
    verify_ms: float = 0.0
    sampling_ms: float = 0.0
    grammar_ms: float = 0.0
    checkpoint_ms: float = 0.0
    libllama_ms: float = 0.0
    draft_length: dict[str, Any] | None = None

    def speculator(self, name: str) -> SpeculatorStats:
        """The entry of one speculator, made on first use."""
        found = self.speculators.get(name)
        if found is None:
            found = self.speculators[name] = SpeculatorStats()
        return found

    def _sum(self, name: str) -> int:
        return sum(getattr(s, name) for s in self.speculators.values())

    def _per_position(self, name: str) -> list[int]:
        columns = [getattr(s, name) for s in self.speculators.values()]
        longest = max(map(len, columns), default=0)
        return [sum(c[i] for c in columns if i < len(c)) for i in range(longest)]

    @property
    def drafted(self) -> int:
        """Tokens submitted for verification."""
        return self._sum("drafted")

    @property
    def accepted(self) -> int:
        """Of those, tokens the target chose as well (some may lie behind a stop string)."""
        return self._sum("accepted")

    @property
    def discarded(self) -> int:
        """Drafted tokens that were not submitted: their draft was shorter than n_min."""
        return self._sum("discarded")

    @property
    def refused(self) -> int:
        """Drafted tokens that were not submitted: the request's grammar does not let them through."""
        return self._sum("refused")

    @property
    def draft_failures(self) -> int:
        """Times a speculator failed and the round went on without it."""
        return self._sum("failures")

    @property
    def drafted_per_position(self) -> list[int]:
        """How often a submitted draft had a first, second, ... token."""
        return self._per_position("drafted_per_position")

    @property
    def accepted_per_position(self) -> list[int]:
        """How often that token was accepted."""
        return self._per_position("accepted_per_position")

    @property
    def acceptance(self) -> float:
        """Accepted share of the submitted tokens; 0 when there were none (see ``drafted``)."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def tokens_per_round(self) -> float:
        """Tokens each target decode after the prompt gave on average; 1 without speculation."""
        return (self.completion_tokens + self.discarded_tokens - 1) / self.rounds if self.rounds else 0.0

    @property
    def draft_rows_per_round(self) -> float:
        """Rows the draft model evaluated per round, the prompt's included."""
        return self.draft_rows / self.rounds if self.rounds else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Generation speed: tokens after the first one, over decode_ms."""
        n = self.completion_tokens + self.discarded_tokens - 1
        return 1000.0 * n / self.decode_ms if self.decode_ms > 0 and n > 0 else 0.0

    @property
    def prompt_tokens_per_second(self) -> float:
        """Prompt speed, up to the first token, of what had to be read."""
        n = self.prompt_tokens - self.cached_tokens
        return 1000.0 * n / self.prefill_ms if self.prefill_ms > 0 else 0.0

    @property
    def python_ms(self) -> float:
        """decode_ms outside drafting, verification, sampling, grammars and checkpoints."""
        compiled = self.draft_ms + self.verify_ms + self.sampling_ms + self.grammar_ms + self.checkpoint_ms
        return max(0.0, self.decode_ms - compiled)

    @property
    def overhead(self) -> float:
        """Share of decode_ms outside libllama's decodes: sampling, policy, text, hand-over."""
        return max(0.0, 1.0 - self.libllama_ms / self.decode_ms) if self.decode_ms > 0 else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Counts, times and everything derived from them, by name."""
        derived = {
            name: getattr(self, name)
            for name, attribute in type(self).__dict__.items()
            if isinstance(attribute, property)
        }
        return {**asdict(self), **derived}
