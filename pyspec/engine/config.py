"""The engine's settings, as they were resolved: what is really used, readable and comparable."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class ModelConfig:
    """One model and its context, read back from libllama where libllama decides.

    Attributes:
        path: the GGUF file.
        description: libllama's, e.g. "llama 135M Q4_1".
        n_ctx: tokens one sequence may hold (what was asked for, not what libllama rounds it up to).
        n_batch, n_ubatch: most rows of one decode, and of one piece of it that is computed at once.
        n_outputs_max: rows of logits that are kept.
        n_threads, n_threads_batch: for decodes of one row, and of several.
        n_gpu_layers: as given; -1: all.
        flash_attn: as given: "auto", "on" or "off".
        type_k, type_v: types of the cache.
        use_extra_bufts: whether weights may be repacked for the CPU's matrix kernels.
    """

    path: str
    description: str
    n_ctx: int
    n_batch: int
    n_ubatch: int
    n_outputs_max: int
    n_threads: int
    n_threads_batch: int
    n_gpu_layers: int
    flash_attn: str
    type_k: str
    type_v: str
    use_extra_bufts: bool


@dataclass(frozen=True)
class DraftVocabConfig:
    """What became of a draft vocabulary.

    Attributes:
        source: what was asked for: a file, "auto", or "ids".
        n_vocab: tokens the draft model has.
        n_rows: tokens it chooses from.
        n_slots: of those, how many change with the texts.
        n_bytes: memory of the reduced output head.
        unused_because: why the whole vocabulary drafts nevertheless; None: it doesn't.
        shipped: the model whose list, of those that come with the package, "auto" has found to fit; None: it took the
            first tokens in the tokenizer's order, or something else was asked for.
    """

    source: str
    n_vocab: int
    n_rows: int = 0
    n_slots: int = 0
    n_bytes: int = 0
    unused_because: str | None = None
    shipped: str | None = None


@dataclass(frozen=True)
class ExactConfig:
    """How an engine keeps to decodes whose rows are, to the bit, what they are without speculation.

    Attributes:
        width: most rows of a decode that gives tokens. 1: no two rows are exact, and nothing is drafted.
        least_rows: fewest rows of a sequence in it: 1, or 2 where a row that is alone is computed in another way than
            all others. It then gets company, which is thrown away, with and without speculation.
        prompt_rows: tokens of a prompt that are read at once, whatever else runs.
        prefix_reuse: a request may go on from what an earlier one has left, as that is the same to the bit.
        changed: settings of the target that are other than was asked for, since more rows are exact with them.
        check_every: rounds with a draft between two spot checks; 0: there are none.
        explanation: all this in words.
    """

    width: int
    least_rows: int
    prompt_rows: int
    prefix_reuse: bool
    changed: dict[str, Any]
    check_every: int
    explanation: str

    @property
    def speculates(self) -> bool:
        """Whether there is anything to gain from a draft."""
        return self.width > 1


@dataclass(frozen=True)
class EngineConfig:
    """What an engine runs with.

    Attributes:
        target: the model whose text is wanted.
        draft: the draft model, or None.
        speculators: names of the speculators in the order they are asked.
        n_slots: requests that run at once.
        rollback: how rejected tokens leave the target's memory: "cut", "snapshots" or "checkpoint".
        n_draft_max: longest draft any of them may submit.
        draft_length: "fixed", or "auto": as long as pays.
        draft_options: the draft model's own parameters (n_max, n_min, p_min, sync, ...), or None.
        draft_vocab: the tokens the draft model chooses from; None: all, as nothing else was asked for.
        exact: what exact mode comes to; None: it is off.
    """

    target: ModelConfig
    draft: ModelConfig | None
    speculators: tuple[str, ...]
    n_slots: int
    rollback: str
    n_draft_max: int
    draft_length: str
    draft_options: dict[str, Any] | None
    draft_vocab: DraftVocabConfig | None = None
    exact: ExactConfig | None = None

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values, for JSON or a log."""
        return asdict(self)
