"""A draft vocabulary: cheaper drafts from fewer tokens, and the same text, whatever the list."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from decoder_stage import Stage

from pyspec import DraftModel, Engine, InvalidRequest, SamplingParams
from pyspec._decoder import Decoder
from pyspec._draft_head import DraftHead
from pyspec._drafting import DraftRunner
from pyspec._llama import Context, Model, quantize
from pyspec.gguf_header import read_gguf

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
        assert engine.memory()["draft.head"] == vocab.n_bytes >= 4 * 64 * vocab.n_rows
        generations = [engine.submit(prompt, params) for prompt in PROMPTS for params in (GREEDY, SEEDED)]
        expected = [plain.generate(prompt, params) for prompt in PROMPTS for params in (GREEDY, SEEDED)]
        for generation, alone in zip(generations, expected, strict=True):
            assert generation.result(60).token_ids == alone.token_ids
        assert engine.stats().drafted > 0


@pytest.mark.parametrize("n_ids", [1, 10, 64, 100, 192, 255, 256])
def test_the_text_is_the_targets_with_any_list(tiny: Callable[[str], Path], n_ids: int) -> None:
    """From one token up to the whole vocabulary, with slots and without, switching back and forth or never."""
    rng = random.Random(n_ids)
    with Engine(tiny("llama"), speculation=None, prefix_reuse=False, **OPTIONS) as plain:
        requests = [(prompt, params) for prompt in PROMPTS for params in (GREEDY, SEEDED)]
        expected = [plain.generate(*request).token_ids for request in requests]
    for slots, max_miss in ((0, 1.0), (8, 0.0), (64, 0.1)):
        ids = rng.sample(range(256), n_ids)
        draft = DraftModel(tiny("llama"), n_max=5, vocab=ids, vocab_slots=slots, vocab_max_miss=max_miss)
        with Engine(tiny("llama"), speculation=draft, prefix_reuse=False, **OPTIONS) as engine:
            vocab = engine.config.draft_vocab
            assert vocab is not None and (vocab.unused_because is None) == (n_ids + slots <= 192)
            assert [engine.generate(*request).token_ids for request in requests] == expected
            assert engine.stats().drafted > 0


@pytest.mark.parametrize("n_slots", [1, 3])
def test_lengths_that_pay(tiny: Callable[[str], Path], n_slots: int) -> None:
    draft = DraftModel(tiny("llama"), n_max=5, vocab=range(0, 256, 2), vocab_slots=0, vocab_max_miss=0.4)
    with (
        Engine(tiny("llama"), speculation=None, prefix_reuse=False, **OPTIONS) as plain,
        Engine(tiny("llama"), speculation=draft, draft_length="auto", n_slots=n_slots, **OPTIONS) as engine,
    ):
        requests = [(prompt, params) for prompt in PROMPTS for params in (GREEDY, SEEDED)]
        generations = [engine.submit(*request) for request in requests]
        for request, generation in zip(requests, generations, strict=True):
            assert generation.result(60).token_ids == plain.generate(*request).token_ids


def test_a_few_rare_words_in_a_short_prompt_do_not_ask_for_the_whole_head(tiny: Callable[[str], Path]) -> None:
    stage = Stage(tiny("llama"), tiny("llama-draft"))
    context = stage.context(stage.draft, 2, kv_unified=True)
    head = DraftHead(context, range(128), n_slots=0, max_miss=0.1)
    decoder = Decoder(stage.context(n_seq=2), [DraftRunner(context, 256, n_max=4, head=head)])
    few, many = [*range(150, 155), *range(15)], [*range(150, 160), *range(10)]  # a quarter is missing, and half
    chosen = []
    for seq, prompt in enumerate((few, many)):
        decoder.begin(seq, tuple(prompt), stage.plan())
        decoder.plan(seq, prompt_rows=20)
        decoder.verify()
        decoder.plan(seq, budget=3)
        decoder.prepare(0)
        chosen.append(head.reduced)
        decoder.verify()
        decoder.end(seq)
    assert chosen == [True, False]


def test_the_head_is_chosen_by_all_that_could_draft(tiny: Callable[[str], Path]) -> None:
    """Before it is decided who drafts: what the list lacks is noticed although nobody drafts."""
    stage = Stage(tiny("llama"), tiny("llama-draft"))
    context = stage.context(stage.draft, 2, kv_unified=True)
    head = DraftHead(context, range(128), n_slots=0, max_miss=0.1)
    decoder = Decoder(stage.context(n_seq=2), [DraftRunner(context, 256, n_max=4, head=head)])
    for seq, prompt in enumerate((range(150, 214), range(64))):
        decoder.begin(seq, tuple(prompt), stage.plan())
        decoder.plan(seq, prompt_rows=64)
        decoder.verify()

    def head_for(*budgets: int) -> str:
        for seq, budget in enumerate(budgets):
            decoder.plan(seq, budget=budget)
        decoder.prepare(0)
        chosen = "reduced" if head.reduced else "whole"
        if sum(budgets) == 4:
            decoder.propose(0)
            assert head.reduced == (chosen == "reduced")
        decoder.verify()
        return chosen

    assert [head_for(3, 0), head_for(0, 3)] == ["whole", "reduced"]
    assert head.counts()["decodes"] == 0
    assert [head_for(2, 2), head_for(4, 0), head_for(0, 4)] == ["reduced", "whole", "reduced"]
    assert head.counts()["decodes"] > head.counts()["reduced_decodes"] > 0


def test_sequences_that_draft_together_draft_as_alone(tiny: Callable[[str], Path]) -> None:
    """One decode chooses for all of them."""
    draft = DraftModel(tiny("llama"), n_max=4, vocab=range(192), vocab_slots=0, vocab_max_miss=1.0)
    prompts = [[i, 5, 9] for i in range(20, 24)]
    accepted = []
    for n_slots in (1, 4):
        with Engine(tiny("llama"), speculation=draft, n_slots=n_slots, **OPTIONS) as engine:
            generations = [engine.submit(prompt, GREEDY) for prompt in prompts]
            accepted.append([generation.result(60).stats.accepted for generation in generations])
    assert accepted[0] == accepted[1] and sum(accepted[0]) > 0


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


TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q4_k", "q5_k", "q6_k")


@pytest.mark.parametrize("tensor_type", TYPES)
@pytest.mark.parametrize("name", ["llama-wide", "llama-wide-tied"])
@pytest.mark.parametrize("use_extra_bufts", [False, True])
def test_the_logits_are_the_whole_heads_for_every_type(
    tiny: Callable[[str], Path], tmp_path: Path, name: str, tensor_type: str, use_extra_bufts: bool
) -> None:
    """To the bit, also where weights are repacked for the processor's matrix kernels."""
    path = tmp_path / "model.gguf"
    quantize(tiny(name), path, "q8_0", output_tensor_type=tensor_type, token_embedding_type=tensor_type)
    tensors = read_gguf(path).tensors
    head_name = "output.weight" if name == "llama-wide" else "token_embd.weight"
    assert tensors[head_name].type.lower() == tensor_type and ("output.weight" in tensors) == (name == "llama-wide")
    rng = random.Random(tensor_type)
    with Model(path, use_extra_bufts=use_extra_bufts) as model, Context(model, n_ctx=64, n_outputs_max=1) as context:
        for n_rows in (64, 128, 192):
            head = DraftHead(context, rng.sample(range(256), n_rows), n_slots=16)
            n_compared, n_different = head.compare([3, 1, 4, 1, 5])
            assert n_compared == 5 * (n_rows + 10) and n_different == 0
            head.close()


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


WITHOUT_PLANNING = """
import sys
from pyspec._draft_head import DraftHead
from pyspec._drafting import DraftRunner
from pyspec._llama import Context, Model

with Model(sys.argv[1]) as model, Context(model, n_ctx=256, n_seq_max=3, n_outputs_max=3, n_batch=64,
                                          kv_unified=True, n_threads=1) as context:
    head = DraftHead(context, range(0, 256, 2), n_slots=32)
    runner = DraftRunner(context, 256, head=head)
    assert len(runner.time_decodes(64, 1, reduced=False)) == 1
    for i in range(201):
        assert len(runner.time_decodes((1, 1, 2, 7)[i % 4], 1 + i % 3, reduced=i % 2 == 0)) == 1 + i % 3
    assert head.counts()["switches"] >= 200, head.counts()
    assert head.compare([5, 6, 7])[1] == 0
print("done")
"""


@pytest.mark.parametrize("name", ["llama", "llama-tied", "gemma3"])
@pytest.mark.parametrize("tensor_type", ["f32", "q4_0"])
def test_switching_plans_nothing_anew(tiny: Callable[[str], Path], tmp_path: Path, name: str, tensor_type: str) -> None:
    """With 2 ggml ends the process when any graph is planned anew, with 1 only where it has as many nodes as before."""
    path = tiny(name)
    if tensor_type != "f32":
        path = tmp_path / "model.gguf"
        quantize(tiny(name), path, tensor_type, pure=True)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PLANNING, str(path)],
        env={**os.environ, "GGML_SCHED_DEBUG_REALLOC": "2"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout.split()) == (0, ["done"]), done.stderr


@pytest.mark.parametrize("name", ["llama", "llama-tied", "gemma3"])
def test_a_prompt_in_pieces_without_outputs(tiny: Callable[[str], Path], name: str) -> None:
    """Only the last piece has a row of logits; in the others there is none that a sampler could look at."""
    with (
        Model(str(tiny(name))) as model,
        Context(model, n_ctx=256, n_seq_max=2, n_batch=64, n_ubatch=4, kv_unified=True, n_threads=1) as context,
    ):
        head = DraftHead(context, range(0, 256, 2), n_slots=0)
        n_compared, n_different = head.compare(range(20, 36))
        assert n_compared >= 16 * 128 and n_different == 0
        head.close()


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


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ((), "vocab must be 'auto', a file name, token ids or None"),
        ((-1,), "a token of vocab must be at least 0, not -1"),
        ((1, 256), "token 256, which the models don't have"),
        ((1.5,), "a token of vocab must be an integer"),
        ((True,), "a token of vocab must be an integer"),
        (("5",), "a token of vocab must be an integer"),
        (b"5", "vocab must be 'auto', a file name, token ids or None"),
        ({5: 6}, "vocab must be 'auto', a file name, token ids or None"),
        ("missing.txt", "missing.txt can't be read: No such file"),
        (".", r"the draft vocabulary \. can't be read: Is a directory"),
    ],
)
def test_lists_that_are_none(tiny: Callable[[str], Path], ids: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        Engine(tiny("llama"), speculation=DraftModel(tiny("llama"), vocab=ids), **OPTIONS)
    assert "vocab" in str(caught.value.name)


def test_a_list_with_a_wrong_line_ends_the_loading(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("5 6\n7 eight\n", encoding="utf-8")
    with pytest.raises(InvalidRequest, match=r"words\.txt, line 2: 'eight' is no token id"):
        Engine(tiny("llama"), speculation=DraftModel(tiny("llama"), vocab=path), **OPTIONS)


def test_a_model_whose_head_can_not_be_reduced(tiny: Callable[[str], Path], caplog: pytest.LogCaptureFixture) -> None:
    """It drafts from its whole vocabulary, and says why once; nothing is allocated."""
    speculation = DraftModel(tiny("qwen2-biased"), n_max=4, vocab=range(128), vocab_slots=0)
    with Engine(tiny("llama"), speculation=speculation, **OPTIONS) as engine:
        found = engine.config.draft_vocab
        assert found is not None and found.n_bytes == found.n_rows == 0
        assert found.unused_because is not None
        assert "its output head has a bias for each token" in found.unused_because
        drafted = engine.generate(PROMPTS[0], GREEDY)
        assert drafted.stats.drafted > 0
        assert drafted.token_ids == engine.generate(PROMPTS[0], GREEDY, n_draft_max=0).token_ids
    messages = [record.getMessage() for record in caplog.records if "draft vocabulary" in record.getMessage()]
    assert len(messages) == 1 and "has a bias" in messages[0]


def test_a_list_is_kept_by_its_runner(tiny: Callable[[str], Path]) -> None:
    with Model(str(tiny("llama"))) as model, Context(model, n_ctx=64, n_outputs_max=1) as context:
        head = DraftHead(context, range(0, 256, 2))
        runner = DraftRunner(context, 256, head=head)
        assert runner.head is head and head.n_rows == 128
        head.close()
        head.close()
        assert head.closed
