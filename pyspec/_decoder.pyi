from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from pyspec._llama import Context
from pyspec._speculator import CompiledSpeculator
from pyspec.sampling import SamplerPlan

def choose(plan: SamplerPlan, rows: npt.NDArray[np.float32], prompt: Sequence[int] = ()) -> list[int]:
    """The tokens a plan chooses for consecutive rows of logits, each accepted before the next is chosen."""

class Decoder:
    """The target, at most one draft model, and the state of every sequence.

    Args:
        target: context of the model whose text is wanted. Its memory is this object's alone.
        speculators: the compiled speculators that may be asked to propose.
        check: verify the invariants after each round (AssertionError); None: as PYSPEC_CHECK says.
        on_device: where checkpoints are needed, leave them on the device that holds the memory.

    Not thread-safe: one thread at a time may call it. Calls release the GIL while libllama works.
    """

    @property
    def target(self) -> Context: ...
    @property
    def speculators(self) -> list[CompiledSpeculator]: ...
    def __init__(
        self,
        target: Context,
        speculators: Iterable[CompiledSpeculator] = (),
        *,
        check: bool | None = None,
        on_device: bool = False,
    ) -> None: ...
    @property
    def rollback(self) -> Literal["cut", "snapshots", "checkpoint"]: ...
    def begin(
        self,
        seq: int,
        prompt: Sequence[int],
        plan: SamplerPlan,
        *,
        stop_tokens: Sequence[int] = (),
        n_logprobs: int = -1,
        sampled_logprobs: bool = False,
    ) -> None:
        """Starts a request on a sequence. Tokens the sequence still holds (`retain`) are not read again."""
    def end(self, seq: int) -> None:
        """Forgets a sequence and frees its cells in all memories."""
    def release(self, seq: int) -> None:
        """Ends the request on a sequence; what the memories hold of it stays for one that begins the same way."""
    def held(self, seq: int) -> list[int]:
        """Tokens whose results the target's memory holds."""
    def can_rewind(self, furthest: int) -> bool:
        """Whether a sequence whose memory has reached so many positions can be cut to any of its beginnings."""
    def furthest(self, seq: int) -> int:
        """The furthest position the memory of a sequence has reached since it was empty."""
    def retain(self, seq: int, n_tokens: int) -> int:
        """Cuts what a released sequence holds to its first tokens. Returns how many it holds now."""
    def shift(self, seq: int, n_keep: int, n_discard: int) -> None:
        """Forgets committed tokens in the middle: the n_discard ones behind the first n_keep; the others move up."""
    def save(self, seq: int) -> tuple[list[int], int, bytes, list[bytes | None]]:
        """What the memories hold of a sequence, for `load`: (tokens, furthest position, state, speculators' states)."""
    def load(
        self,
        seq: int,
        tokens: Sequence[int],
        furthest: int,
        state: bytes,
        speculators: Sequence[bytes | None] = (),
    ) -> None:
        """Fills a sequence that nobody uses with what `save` gave."""
    def plan(self, seq: int, *, budget: int = 0, prompt_rows: int = 0) -> None:
        """Opens a round for one sequence."""
    def set_budget(self, seq: int, budget: int) -> None:
        """Changes how much may be drafted for a planned sequence."""
    def cut(self, seq: int, length: int) -> None:
        """Shortens this round's draft; cut to nothing, another speculator may be asked."""
    def prepare(self, which: int) -> None:
        """Lets one speculator look at the planned sequences before it is decided who asks it: the draft model chooses
        the output head it would draft with.
        """
    def propose(self, which: int) -> None:
        """Lets one speculator draft for all planned sequences that have a budget and no draft yet."""
    def offer(self, seq: int, tokens: Iterable[int]) -> int:
        """Takes a draft from elsewhere for a sequence that has none yet, cut to its budget and its grammar."""
    def forced(self, seq: int) -> list[int]:
        """Tokens that the sequence's grammar leaves no choice about, as many as its budget allows."""
    def verify(self) -> None:
        """One target decode of all planned sequences; samples, commits, cuts all memories."""
    def set_synthetic(self, conditional: Sequence[float], seed: int = 0) -> None:
        """Draws acceptance at random from now on, for benchmarks: the text is no longer the target's."""
    def set_exact(self, width: int, least_rows: int = 1) -> None:
        """Keeps from now on to decodes in which a row is, to the bit, what it is in a narrow one."""
    def watch(self, seq: int) -> None:
        """Remembers the last row of a sequence that the next `verify` commits, for `compare_watched`."""
    def compare_watched(self) -> bool | None:
        """Decodes the last committed token of the watched sequence again, by itself, and compares its row of logits."""
    def pending(self, seq: int) -> int:
        """Tokens to read before anything is generated."""
    def n_committed(self, seq: int) -> int:
        """Tokens in the target's memory; the seed is not among them."""
    def tokens(self, seq: int) -> list[int]:
        """The committed tokens, then the seed if there is one."""
    def budget(self, seq: int) -> int:
        """Most tokens that may be drafted this round; 0 while there is no token to go on from."""
    def n_drafted(self, seq: int) -> int:
        """Length of this round's draft."""
    def drafted(self, seq: int) -> list[int]:
        """The draft of this round as it will be, or was, submitted."""
    def result(self, seq: int) -> tuple[list[int], int, int, int, str | None]:
        """The round's outcome: (emitted tokens, drafted, accepted, discarded, why none could be chosen or None)."""
    def dead_end(self, seq: int) -> bool:
        """Whether no token could be chosen this round because of the grammar."""
    def n_discarded(self, seq: int) -> int:
        """Drafted tokens of this round that were not submitted: their draft was shorter than its speculator's n_min."""
    def n_refused(self, seq: int) -> int:
        """Drafted tokens of this round that were cut off because the grammar does not let the first of them through."""
    def logprobs(self, seq: int) -> list[tuple[float, list[tuple[int, float]]]]:
        """Per emitted token of the round: (its log-probability, [(id, log-probability), ...] best first)."""
    def last_decode(self) -> tuple[int, float]:
        """The target's last decode: (rows without those that were thrown away, milliseconds)."""
    def counts(self) -> dict[str, int]:
        """Work done since construction: decode calls, rows, draft failures, microseconds by phase."""
    def spent(self) -> tuple[float, float, float, float, float, float, int, list[float]]:
        """What was done since the last call of this.

        Returns:
            Milliseconds in decodes of the target, in choosing tokens, in grammars, in checkpoints, in decodes of the
            draft model, and of these in catching up on more than a round; how many draft decodes failed; and for each
            speculator the milliseconds it took.
        """
    def check(self) -> None:
        """Compares the bookkeeping with all memories; AssertionError names the sequence and what is off."""
