"""A draft vocabulary: cheaper drafts from fewer tokens, and the same text, whatever the list."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspec import DraftModel, Engine, InvalidRequest, SamplingParams
from pyspec._draft_head import DraftHead
from pyspec._drafting import DraftRunner
from pyspec._llama import Context, Model

OPTIONS: dict[str, Any] = {"type_k": "f32", "type_v": "f32", "flash_attn": "off", "n_ctx": 192, "n_threads": 1}
GREEDY = SamplingParams(temperature=0.0, max_tokens=40)
SEEDED = SamplingParams(temperature=0.8, seed=7, max_tokens=40, top_k=5)
PROMPTS = [[5, 6, 7], [9], list(range(20, 57)), [(31 * i + 7) % 256 for i in range(90)]]


@pytest.mark.parametrize("draft", ["llama", "llama-tied", "llama-draft", "gemma3"])
@pytest.mark.parametrize("slots", [0, 32])
@pytest.mark.parametrize("n_slots", [1, 3])
def test_the_text_is_the_targets(tiny: Callable[[str], Path], draft: str, slots: int, n_slots: int) -> None:
    ids = tuple(range(0, 256, 2))
    speculation = DraftModel(tiny(draft), n_max=4, vocab=ids, vocab_slots=slots, vocab_max_miss=1.0)
    with (
        Engine(tiny("llama"), speculation=None, prefix_reuse=False, **OPTIONS) as plain,
        Engine(tiny("llama"), speculation=speculation, n_slots=n_slots, **OPTIONS) as engine,
    ):
        vocab = engine.config.draft_vocab
        assert vocab is not None and vocab.unused_because is None
        assert vocab.n_rows >= len(ids) and vocab.n_slots >= slots
        generations = [engine.submit(prompt, params) for prompt in PROMPTS for params in (GREEDY, SEEDED)]
        expected = [plain.generate(prompt, params) for prompt in PROMPTS for params in (GREEDY, SEEDED)]
        for generation, alone in zip(generations, expected, strict=True):
            assert generation.result(60).token_ids == alone.token_ids
        assert engine.stats().drafted > 0


def test_only_listed_tokens_are_drafted(tiny: Callable[[str], Path]) -> None:
    ids = tuple(range(1, 256, 4))
    speculation = DraftModel(tiny("llama"), n_max=4, vocab=ids, vocab_slots=0, vocab_max_miss=1.0)
    with Engine(tiny("llama"), speculation=speculation, **OPTIONS) as engine:
        for prompt in PROMPTS:
            result = engine.generate(prompt, GREEDY)
            accepted = [t for t, who in zip(result.token_ids, result.drafted_by, strict=True) if who]
            assert set(accepted) <= set(ids)


def test_rows_follow_the_text(tiny: Callable[[str], Path]) -> None:
    """What the list lacks and the text repeats is drafted from its slots."""
    unlisted = tuple(range(200, 256))
    accepted = []
    for n_slots in (0, 128):
        draft = DraftModel(tiny("llama"), n_max=4, vocab=unlisted, vocab_slots=n_slots, vocab_max_miss=1.0)
        with Engine(tiny("llama"), speculation=draft, **OPTIONS) as engine:
            accepted.append(engine.generate(list(range(128)), GREEDY).stats.accepted)
    assert accepted[1] > accepted[0]


def test_the_logits_are_the_whole_heads(gemma3: Path) -> None:
    rng = random.Random(1)
    with Model(str(gemma3)) as model, Context(model, n_ctx=64, n_outputs_max=1) as context:
        head = DraftHead(context, rng.sample(range(model.vocab.n_tokens), 4096), n_slots=16)
        n_compared, n_different = head.compare([2, 100, 5000, 70000])
        assert n_compared > 4 * 4096 and n_different == 0
        for _ in range(50):
            head.switch(True)
            head.switch(False)
        assert head.compare([2, 9, 12345])[1] == 0
        head.close()
        context.decode([2, 3], pos=0)
        assert context.logits(-1).shape == (model.vocab.n_tokens,)


def test_the_automatic_list(gemma3: Path, gemma3_f32: Path) -> None:
    """Gemma's 262,144 tokens are too many to choose each draft from."""
    prompt = "The history of the city of Lisbon begins"
    params = SamplingParams(temperature=0.0, max_tokens=48, ignore_eos=True)
    with Engine(gemma3_f32, speculation=DraftModel(gemma3, n_max=4, vocab="auto"), n_ctx=256) as engine:
        vocab = engine.config.draft_vocab
        assert vocab is not None and vocab.source == "auto"
        drafted = engine.generate(prompt, params)
        plain = engine.generate(prompt, params, n_draft_max=0)
    assert drafted.token_ids == plain.token_ids
    assert drafted.stats.acceptance > 0.5
    if vocab.unused_because is None:
        assert vocab.n_rows < vocab.n_vocab / 2


@pytest.mark.parametrize("ids", [(), (-1,), (256,), (1.5,), "missing.txt"])
def test_lists_that_are_none(tiny: Callable[[str], Path], ids: Any) -> None:
    with pytest.raises((InvalidRequest, OSError)):
        Engine(tiny("llama"), speculation=DraftModel(tiny("llama"), vocab=ids), **OPTIONS)


def test_a_list_is_kept_by_its_runner(tiny: Callable[[str], Path]) -> None:
    with Model(str(tiny("llama"))) as model, Context(model, n_ctx=64, n_outputs_max=1) as context:
        head = DraftHead(context, range(0, 256, 2))
        runner = DraftRunner(context, 256, head=head)
        assert runner.head is head and head.n_rows == 128
        head.close()
        head.close()
        assert head.closed
