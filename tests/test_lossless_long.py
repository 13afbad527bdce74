"""Texts longer than 256 tokens: the same to the bit where the attention's kernel does not depend on the batch.

From 512 cells of cache on (256 are reserved at a time) ggml's flash attention computes a row that is alone in its batch
by another kernel if K and V are both f16, and models with quantized weights enlarge the difference to as much as a
logit. With V in bf16 there is one kernel for all.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import drafters
import pytest

from pyspec import Engine, SamplingParams
from pyspec._llama import quantize

EXACT: dict[str, Any] = {"type_v": "bf16", "flash_attn": "on"}


def compare(target: Path, prompt: list[int], n: int, **settings: Any) -> dict[str, bool]:
    """For every way to draft and to sample: whether texts and log-probabilities are those of plain decoding."""
    puppet = drafters.Puppet()
    same = {}
    with Engine(target, speculation=puppet, n_ctx=512, **settings) as engine:
        for name, values in (("greedy", {"temperature": 0.0}), ("seeded", {"temperature": 0.9, "seed": 3})):
            params = SamplingParams(max_tokens=n, ignore_eos=True, logprobs=3, **values)  # type: ignore[arg-type]
            plain = engine.generate(prompt, params, n_draft_max=0)
            assert plain.stats.prompt_tokens + n > 300
            for k in (1, 8):
                puppet.script = drafters.mix(k, prompt, plain.token_ids, engine.model.vocab.n_tokens, 8)
                result = engine.generate(prompt, params)
                assert result.stats.accepted > 0
                same[f"{name}, {k} right"] = (result.token_ids, result.logprobs) == (plain.token_ids, plain.logprobs)
    return same


@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize("weights", ["q4_1", "q8_0"])
def test_long_texts_of_tiny_models(tiny: Callable[[str], Path], tmp_path: Path, name: str, weights: str) -> None:
    target = tmp_path / "target.gguf"
    quantize(tiny(name), target, weights)
    assert all(compare(target, [5, 6, 7], 400, **EXACT).values())


def test_a_long_text_of_a_real_model(smollm2: Path) -> None:
    with Engine(smollm2, n_ctx=64, speculation="none") as engine:
        prompt = [*engine.tokenize("The water cycle moves water around the planet. ")] * 24
    assert all(compare(smollm2, prompt, 70, **EXACT).values())


def test_short_texts_need_nothing(smollm2: Path) -> None:
    """Up to 256 tokens the default settings are as good; the check notices where they are not."""
    puppet = drafters.Puppet()
    with Engine(smollm2, speculation=puppet, n_ctx=512) as engine:
        prompt = engine.tokenize("The water cycle moves water around the planet. " * 20)
        params = SamplingParams(temperature=0.0, max_tokens=120, ignore_eos=True, logprobs=3)
        plain = engine.generate(prompt, params, n_draft_max=0)
        puppet.script = drafters.right(prompt, plain.token_ids, 4)
        fast = engine.generate(prompt, params)
    assert plain.logprobs is not None and fast.logprobs is not None
    within = 256 - len(prompt)
    assert 40 < within < 100
    assert plain.logprobs[:within] == fast.logprobs[:within]
