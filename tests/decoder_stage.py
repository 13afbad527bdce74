"""For tests that drive the decoder by hand: tiny models, scripted drafts, and what plain decoding writes.

The tiny models have F32 weights, and here an F32 memory and no flash attention, whose results depend on the size of
a batch: a row computed in another batch then differs by 1e-5 at most, and no near tie is in reach.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pyspec._decoder import Decoder
from pyspec._drafting import DraftRunner
from pyspec._llama import Context, Model
from pyspec.errors import DecodeError
from pyspec.sampling import SamplerPlan, SamplingParams, build_chain

N_VOCAB = 256
N_CTX = 256  # of one sequence
N_SEQ = 3
N_MAX = 8
LENGTH = 40  # tokens every sequence writes

PROMPTS: tuple[tuple[int, ...], ...] = (
    (5, 6, 7),
    (9,),
    tuple(range(20, 57)),
    tuple((31 * i + 7) % N_VOCAB for i in range(90)),
    (5, 6, 7, 8),
)
SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 0.9, "seed": 11},
    "penalised": {"temperature": 0.7, "seed": 5, "penalty_repeat": 1.2, "dry_multiplier": 0.5},
}


class Stage:
    """A target, a draft model of another kind with its vocabulary, and what the target writes alone."""

    def __init__(self, target: Path, draft: Path) -> None:
        self.target = Model(str(target))
        self.draft = Model(str(draft))
        self.continuation = cache(self._continuation)

    def context(self, model: Model | None = None, n_seq: int = N_SEQ, **changes: Any) -> Context:
        sizes = {
            "n_ctx": N_CTX * n_seq, "n_seq_max": n_seq, "n_batch": 128, "n_ubatch": 128, "n_threads": 1,
            "n_outputs_max": n_seq * (1 + N_MAX), "type_k": "f32", "type_v": "f32", "flash_attn": "off",
        }  # fmt: skip
        return Context(self.target if model is None else model, **{**sizes, **changes})

    def runner(self, n_seq: int = N_SEQ, *, context: dict[str, Any] | None = None, **options: Any) -> DraftRunner:
        draft_context = self.context(self.draft, n_seq, **(context or {}))
        return DraftRunner(draft_context, N_VOCAB, **{"n_max": N_MAX, **options})

    def plan(self, sampling: str = "greedy") -> SamplerPlan:
        return build_chain(SamplingParams(**{"seed": 1, **SAMPLING[sampling]}), self.target.vocab, n_ctx=N_CTX)

    def _continuation(self, prompt: tuple[int, ...], sampling: str = "greedy", n: int = LENGTH) -> tuple[int, ...]:
        """What the target writes, one sequence, one token at a time."""
        with self.context(n_seq=1) as context:
            decoder = Decoder(context)
            decoder.begin(0, prompt, self.plan(sampling))
            written: list[int] = []
            while len(written) < n:
                decoder.plan(0, prompt_rows=128)
                decoder.verify()
                written += decoder.result(0)[0]
            return tuple(written)


@pytest.fixture(scope="module")
def dense(tiny: Callable[[str], Path]) -> Stage:
    return Stage(tiny("llama"), tiny("llama-draft"))


@pytest.fixture(scope="module")
def window(tiny: Callable[[str], Path]) -> Stage:
    """Every second layer of the target sees 32 positions only."""
    return Stage(tiny("gemma3"), tiny("llama-draft"))


@pytest.fixture(params=["dense", "window"])
def stage(request: pytest.FixtureRequest) -> Stage:
    return request.getfixturevalue(str(request.param))  # type: ignore[no-any-return]


def wrong(token: int) -> int:
    return (token + 1) % N_VOCAB


def scripted(kind: str, expected: Sequence[int], n: int) -> list[int]:
    """A draft of n tokens for a text that goes on as expected: all right, all wrong, or right up to a point."""
    draft = list(expected[:n])
    if kind == "wrong":
        return [wrong(token) for token in draft]
    if kind.startswith("mixed"):
        k = int(kind.removeprefix("mixed"))
        return draft[:k] + [wrong(token) for token in draft[k : k + 1]] + draft[k + 1 :]
    return draft


def room(decoder: Decoder, seq: int, written: Sequence[int], limit: int = LENGTH, n_ctx: int = N_CTX) -> int:
    """How long a draft may be, as the engine counts it."""
    return max(0, min(N_MAX, limit - len(written) - 1, n_ctx - decoder.n_committed(seq) - 2))


def verify(decoder: Decoder) -> int:
    """Carries out the round; libllama's code, 0 when all went well."""
    try:
        decoder.verify()
    except DecodeError as error:
        return error.code
    return 0
