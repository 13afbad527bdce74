"""A draft vocabulary for drafts that read hidden states: NextN layers, and EAGLE-3 with a head of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from head_stage import LENGTH, N_MAX, HeadStage, prompt, runner_of
from test_hidden_drafts import GREEDY, SEEDED, engine, tokens
from tiny_heads import N_EXACT, chain

from pyspec import InvalidRequest
from pyspec._draft_head import DraftHead
from pyspec._llama import Context, Model, quantize
from pyspec._pair_drafting import PairRunner

Tiny = Callable[[str], Path]

# Pairs whose draft can have a reduced head: target, draft.
REDUCIBLE = {
    "mtp": ("step35-one", None),
    "mtp-heads": ("step35", None),
    "mtp-file": ("step35", "step35-nextn"),
    "mtp-hybrid": ("qwen35-mtp", None),
    "mtp-first": ("hy-v3", None),
    "eagle3-ends": ("llama", "eagle3-ends"),
}
LISTED = range(1, 256, 3)


@pytest.fixture(scope="module")
def stages(tiny: Tiny) -> Callable[[str], HeadStage]:
    made: dict[str, HeadStage] = {}

    def stage(name: str) -> HeadStage:
        if name not in made:
            target, draft = REDUCIBLE[name]
            made[name] = HeadStage(tiny(target), None if draft is None else tiny(draft))
        return made[name]

    return stage


Stages = Callable[[str], HeadStage]


# -- what is drafted -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REDUCIBLE)
def test_drafts_are_the_best_of_the_listed_tokens(stages: Stages, name: str) -> None:
    """Each is what the whole head, computed anew, gives the most among those: by the first head and by all others."""
    stage = stages(name)
    decoder = stage.decoder(vocab=LISTED)
    decoder.begin(0, prompt(70, n_vocab=256), stage.plan())
    while decoder.pending(0):
        decoder.plan(0, prompt_rows=64)
        decoder.verify()
    written = decoder.result(0)[0]
    head = runner_of(decoder).head
    assert head is not None
    before = head.counts()  # it may have read of the prompt
    for _ in range(6):
        text = decoder.tokens(0)
        decoder.plan(0, budget=N_MAX)
        decoder.propose(0)
        drafted = decoder.drafted(0)
        assert drafted == stage.fresh_draft(text, N_MAX, among=LISTED)
        decoder.verify()
        written += decoder.result(0)[0]
    assert tuple(written) == stage.plain(prompt(70, n_vocab=256))[: len(written)]
    done = {name: n - before[name] for name, n in head.counts().items()}
    assert done["reduced_decodes"] == done["decodes"] > 0


def test_listed_tokens_and_those_of_the_text(tiny: Tiny) -> None:
    """An exact draft is right wherever the next token is one that it has: listed, or taken from the text."""
    stage = HeadStage(tiny("exact-step35"))
    text = prompt(9)
    listed = [t for t in range(N_EXACT) if t not in chain(text[-1], 12)]
    for slots, able in ((0, False), (24, True)):
        decoder = stage.decoder(vocab=listed, n_rows_that_follow=slots)
        decoder.begin(0, (*text, *chain(text[-1], 12), *text), stage.plan())
        decoder.plan(0, prompt_rows=64)
        decoder.verify()
        decoder.plan(0, budget=N_MAX)
        decoder.propose(0)
        assert (decoder.drafted(0) == chain(chain(text[-1], 1)[0], N_MAX)) == able
        decoder.verify()
        head = runner_of(decoder).head
        assert head is not None and (head.counts()["slots_taken"] > 0) == able
        decoder.release(0)
        assert head.counts()["slots_taken"] == 0 and set(head.ids()) >= set(listed[: len(listed) - slots])


@pytest.mark.parametrize("name", ["mtp", "mtp-hybrid", "mtp-file", "mtp-first", "eagle3-ends"])
@pytest.mark.parametrize("slots", [0, 32])
@pytest.mark.parametrize("n_slots", [1, 3])
def test_the_text_is_the_targets(tiny: Tiny, name: str, slots: int, n_slots: int) -> None:
    """Whatever is listed, and while heads are exchanged; the head's memory is counted."""
    prompts = [tokens(n, name) for n in (1, 9, 3 * 32 + 1)]
    for max_miss in (1.0, 0.5):
        draft = {"vocab": tuple(LISTED), "vocab_slots": slots, "vocab_max_miss": max_miss}
        with engine(tiny, name, n_slots=n_slots, draft=draft) as both:
            vocab = both.config.draft_vocab
            assert vocab is not None and vocab.unused_because is None
            assert vocab.n_rows >= len(LISTED) and vocab.n_slots >= slots
            assert both.memory()["draft.head"] == vocab.n_bytes >= 4 * 64 * vocab.n_rows
            plain = [both.generate(p, params, n_draft_max=0) for p in prompts for params in (GREEDY, SEEDED)]
            streams = [both.stream(p, params) for p in prompts for params in (GREEDY, SEEDED)]
            drafted = [stream.result() for stream in streams]
            assert [r.token_ids for r in drafted] == [r.token_ids for r in plain]
            assert all(r.stats.drafted > 0 and r.stats.draft_failures == 0 for r in drafted)


def test_lengths_that_pay(tiny: Tiny) -> None:
    for name in ("mtp", "mtp-hybrid", "eagle3-ends"):
        draft = {"vocab": tuple(LISTED), "vocab_slots": 0, "vocab_max_miss": 0.5}
        with engine(tiny, name, draft_length="auto", draft=draft) as adaptive:
            result = adaptive.generate(tokens(9, name), GREEDY)
            assert result.token_ids == adaptive.generate(tokens(9, name), GREEDY, n_draft_max=0).token_ids


# -- the head itself -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tensor_type", ["f32", "f16", "q8_0", "q4_0"])
@pytest.mark.parametrize("name", ["step35", "step35-nextn", "qwen35-mtp", "hy-v3", "eagle3-ends"])
def test_the_logits_are_the_whole_heads(tiny: Tiny, tmp_path: Path, name: str, tensor_type: str) -> None:
    """To the bit, in every context of the draft."""
    path = tmp_path / "model.gguf"
    quantize(tiny(name), path, "f32", output_tensor_type=tensor_type)
    with Model(path, load_mtp=True) as model:
        kind: dict[str, Any] = {"ctx_type": "default" if name == "eagle3-ends" else "mtp"}
        contexts = [Context(model, n_ctx=64, n_outputs_max_per_seq=8, n_threads=1, **kind) for _ in range(2)]
        for i, context in enumerate(contexts[: model.n_layer_nextn]):
            context.set_nextn_layer_offset(i)
        head = DraftHead(contexts, range(3, 195), n_slots=16)
        assert head.compare([3, 1, 4, 1, 5]) == (2 * 5 * (192 + 10), 0)
        head.close()
        for context in contexts:
            context.close()


WITHOUT_PLANNING = """
import sys
from pyspec._draft_head import DraftHead
from pyspec._pair_drafting import PairRunner
from pyspec._llama import Context, Model

options = {"n_ctx": 256, "n_seq_max": 3, "n_outputs_max": 3, "n_batch": 64, "kv_unified": True, "n_threads": 1}
with Model(sys.argv[1], load_mtp=True) as model:
    contexts = [Context(model, ctx_type="mtp", **options) for _ in range(model.n_mtp_heads)]
    head = DraftHead(contexts, range(0, 256, 2), n_slots=32)
    runner = PairRunner(contexts, 256, head=head)
    assert len(runner.time_decodes(64, 1, reduced=False)) == 1
    for i in range(201):
        assert len(runner.time_decodes((1, 1, 2, 7)[i % 4], 1 + i % 3, reduced=i % 2 == 0)) == 1 + i % 3
    assert head.counts()["switches"] >= 200, head.counts()
    assert head.compare([5, 6, 7])[1] == 0
    head.close()
    for context in contexts:
        context.close()
print("done")
"""


@pytest.mark.parametrize("name", ["step35-one", "step35", "qwen35-mtp"])
def test_switching_plans_nothing_anew(tiny: Tiny, name: str) -> None:
    """ggml would end the process if it had to."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PLANNING, str(tiny(name))],
        env={**os.environ, "GGML_SCHED_DEBUG_REALLOC": "2"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout.split()) == (0, ["done"]), done.stderr


def test_a_head_for_other_contexts(tiny: Tiny) -> None:
    with Model(tiny("step35"), load_mtp=True) as model, Model(tiny("step35-nextn"), load_mtp=True) as other:
        a, b, c = (Context(m, n_ctx=64, n_threads=1, ctx_type="mtp") for m in (model, model, other))
        with a, b, c:
            for contexts in ([], [a, c]):
                with pytest.raises(InvalidRequest, match="several of one model"):
                    DraftHead(contexts, range(64))
            head = DraftHead([a], range(64))
            with pytest.raises(InvalidRequest, match="another context"):
                PairRunner([a, b], 256, head=head)
            head.close()
            PairRunner([a, b], 256)
    with Model(tiny("eagle3-ends")) as model, Context(model, n_ctx=64, n_threads=1) as context:
        head = DraftHead(context, range(64))
        with pytest.raises(InvalidRequest, match="n_outputs_max_per_seq has to be 5, not 1"):
            PairRunner([context], 256, n_max=3, head=head)


# -- where it can't be -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("mtp-own-heads", "output heads of their own"),
        ("eagle3", "computes with its target's"),
        ("eagle3-d2t", "a reduced vocabulary of its own"),
        ("dflash", "drafts a block at once"),
        ("dspark", "drafts a block at once"),
    ],
)
def test_heads_that_can_not_be_reduced(tiny: Tiny, caplog: pytest.LogCaptureFixture, name: str, why: str) -> None:
    """The draft goes on with all tokens; the reason is said once, and nothing is allocated."""
    with engine(tiny, name, draft={"vocab": tuple(LISTED), "vocab_slots": 0}) as whole:
        found = whole.config.draft_vocab
        assert found is not None and found.n_bytes == found.n_rows == 0 and "draft.head" not in whole.memory()
        assert found.unused_because is not None and why in found.unused_because
        result = whole.generate(tokens(9, name), GREEDY)
        assert result.stats.drafted > 0 and result.stats.draft_failures == 0
        assert result.token_ids == whole.generate(tokens(9, name), GREEDY, n_draft_max=0).token_ids
    messages = [record.getMessage() for record in caplog.records if "draft vocabulary" in record.getMessage()]
    assert len(messages) == 1 and why in messages[0]


def test_lists_that_are_none(tiny: Tiny) -> None:
    for vocab in ((1, 256), "missing.txt"):
        with pytest.raises(InvalidRequest, match=r"token 256|missing.txt can't be read"):
            engine(tiny, "mtp", draft={"vocab": vocab})


def test_the_head_is_given_back_with_the_engine(tiny: Tiny) -> None:
    """The target's model goes on with its whole head, in whatever context."""
    with Model(tiny("step35-wide"), load_mtp=True) as model:
        with Context(model, n_ctx=64, n_threads=1) as context:
            context.decode([5, 6, 7])
            expected = context.logits().tolist()
        for _ in range(2):
            with engine(lambda name: model if name == "step35-wide" else tiny(name), "mtp",  # type: ignore[arg-type, return-value]
                        draft={"vocab": tuple(LISTED), "vocab_slots": 0}) as drafting:  # fmt: skip
                assert len(drafting.generate([1, 2, 3], GREEDY).token_ids) == LENGTH + 8
        with Context(model, n_ctx=64, n_threads=1) as context:
            context.decode([5, 6, 7])
            assert context.logits().tolist() == expected
