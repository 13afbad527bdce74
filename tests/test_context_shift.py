"""Texts longer than the context: the same with and without drafts, and with other requests beside them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspec import DraftModel, Engine, InvalidRequest, NGramSimple, SamplingParams, UnsupportedModel

OPTIONS: dict[str, Any] = {"type_k": "f32", "type_v": "f32", "flash_attn": "off", "n_ctx": 64, "n_threads": 1}
LONG = SamplingParams(temperature=0.0, max_tokens=200)
PROMPT = [(31 * i + 7) % 256 for i in range(20)]


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
@pytest.mark.parametrize("n_keep", [-1, 0, 5, 100])
@pytest.mark.parametrize("n_slots", [1, 3])
def test_the_text_goes_on(tiny: Callable[[str], Path], kind: str, n_keep: int, n_slots: int) -> None:
    with Engine(tiny(kind), speculation=None, **OPTIONS) as plain:
        assert plain.generate(PROMPT, LONG).finish_reason == "length"
        expected = plain.generate(PROMPT, LONG, n_keep=n_keep)
        assert len(expected.token_ids) == 200 and expected.stats.context_shifts >= 2
        assert plain.generate(PROMPT, LONG).token_ids[: 64 - 20] == expected.token_ids[: 64 - 20]
    for speculation in (NGramSimple(size_n=1), DraftModel(tiny(kind), n_max=5)):
        with Engine(tiny(kind), speculation=speculation, n_slots=n_slots, **OPTIONS) as engine:
            generations = [engine.submit(PROMPT, LONG, n_keep=n_keep) for _ in range(n_slots)]
            for generation in generations:
                result = generation.result(60)
                assert result.token_ids == expected.token_ids
                assert result.stats.context_shifts == expected.stats.context_shifts
                assert result.stats.accepted > 0


def test_where_it_can_not_be(tiny: Callable[[str], Path]) -> None:
    with Engine(tiny("mamba"), speculation=None, **OPTIONS) as engine, pytest.raises(UnsupportedModel, match="shifted"):
        engine.generate(PROMPT, LONG, n_keep=0)
    with Engine(tiny("llama"), speculation=None, **OPTIONS) as engine:
        for n_keep in (-2, 1.5, "all", True):
            with pytest.raises(InvalidRequest, match="n_keep"):
                engine.generate(PROMPT, LONG, n_keep=n_keep)  # type: ignore[arg-type]
