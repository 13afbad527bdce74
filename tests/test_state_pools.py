"""States of sequences between contexts with one pool of cells and with a pool for each sequence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pyspec._llama import Context, Model
from pyspec.errors import StateError
from pyspec.state_pools import with_pools

TOKENS = [(13 * i + 5) % 256 for i in range(40)]
LAYOUTS = {"alone": (1, False), "pools of two": (2, False), "pools of five": (5, False), "one of three": (3, True)}


def opened(model: Model, layout: str, flash_attn: str) -> Context:
    n_seq_max, unified = LAYOUTS[layout]
    return Context(
        model, n_ctx=128 * n_seq_max, n_seq_max=n_seq_max, kv_unified=unified, n_threads=1,
        type_k="f32", type_v="f32", flash_attn=flash_attn,
    )  # fmt: skip


def next_row(context: Context, seq: int) -> np.ndarray:
    context.decode([7], pos=len(TOKENS), seq_ids=seq, outputs=True)
    return context.logits(0).copy()


@pytest.mark.parametrize("flash_attn", ["off", "on"])  # without it values are stored transposed
@pytest.mark.parametrize("kind", ["llama", "gemma3", "mamba", "qwen35"])
def test_from_any_to_any(tiny: Callable[[str], Path], kind: str, flash_attn: str) -> None:
    with Model(str(tiny(kind))) as model:
        for source in LAYOUTS:
            with opened(model, source, flash_attn) as context:
                seq = context.n_seq_max - 1
                context.decode(TOKENS, pos=0, seq_ids=seq, outputs=False)
                state = context.state_seq_get(seq)
                expected = next_row(context, seq)
            for target in LAYOUTS:
                with opened(model, target, flash_attn) as context:
                    for into in {0, context.n_seq_max - 1}:
                        context.state_seq_set(state, into)
                        assert context.memory.pos_max(into) == len(TOKENS) - 1
                        assert np.allclose(next_row(context, into), expected, rtol=0, atol=1e-5), (source, target, into)


def test_what_is_no_state() -> None:
    for state in (b"", b"12345678", bytes(100), bytes(range(256)) * 4):
        with pytest.raises(StateError, match="none of a sequence"):
            with_pools(state, 2, hybrid=False)
