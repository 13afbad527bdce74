"""draft-dflash and draft-dspark: blocks that read just the text that is committed, several in one decode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from head_stage import LENGTH, HeadStage, prompt, write
from tiny_heads import N_EXACT, RIGHT, SOMETIMES

from pyspec import InvalidRequest, StateError, UnsupportedModel
from pyspec._block_drafting import BlockRunner
from pyspec._decoder import Decoder
from pyspec._llama import Batch, Context, Model
from pyspec.speculation.pairing import BlockShape, check_dflash

Tiny = Callable[[str], Path]

RANDOM = {
    "dflash": ("llama", "dflash"),
    "dflash-causal": ("llama", "dflash-causal"),
    "dflash-d2t": ("llama", "dflash-d2t"),
    "dspark": ("llama", "dspark"),
    "dspark-bonus": ("llama", "dspark-bonus"),
}
EXACT = {"exact": ("exact-llama", "exact-dspark"), "exact-errors": ("exact-llama", "exact-dspark-errors")}


class BlockStage(HeadStage):
    """A target, and a block-diffusion draft for it."""

    def __init__(self, target: Path, draft: Path) -> None:
        super().__init__(target, draft)
        self.shape: BlockShape = check_dflash(self.target, self.draft)

    def block_context(self, target: Context, n_seq: int = 1, **changes: Any) -> Context:
        sizes = {"ctx_other": target, "n_outputs_max": 0, "kv_unified": n_seq > 1}
        return self.context(self.draft, n_seq, **{**sizes, **changes})

    def decoder(
        self,
        n_seq: int = 1,
        *,
        target: dict[str, Any] | None = None,
        draft: dict[str, Any] | None = None,
        **options: Any,
    ) -> Decoder:
        context = self.context(self.target, n_seq, **(target or {}))
        shape = {name: getattr(self.shape, name) for name in BlockShape.__dataclass_fields__}
        runner = BlockRunner(
            self.block_context(context, n_seq, **(draft or {})), context.n_vocab, **{"n_max": 4, **shape, **options}
        )
        return Decoder(context, [runner])

    def fresh_block(self, tokens: Sequence[int], n: int) -> list[int]:
        """n proposals behind a text and its seed, from an empty memory."""
        text, layers = tokens[:-1], self.draft.target_layer_ids
        with self.context(self.target) as target:
            for layer in layers:
                target.set_embeddings_layer_inp(layer, True)
            rows = []
            for at in range(0, len(text), 64):
                piece = text[at : at + 64]
                target.decode(piece)
                rows += list(np.hstack([target.embeddings_layer_inp(i)[: len(piece)] for i in layers]))
            with self.block_context(target) as context:
                context.set_causal_attn(self.shape.causal)
                for i, row in enumerate(rows):
                    batch = Batch(context)
                    batch.add_embd(row, i, 0)
                    context.process(batch)
                batch = Batch(context)
                first = 0 if self.shape.from_anchor else 1
                for i in range(first + n):
                    batch.add(self.shape.mask if i else tokens[-1], len(text) + i, 0, True)
                context.process(batch)
                draft = []
                for i in range(n):
                    logits = context.logits(first + i).copy()
                    logits[self.shape.mask] = -np.inf
                    draft.append(int(np.argmax(logits)))
                return draft


@pytest.fixture(scope="module")
def stages(tiny: Tiny) -> Callable[[str], BlockStage]:
    made: dict[str, BlockStage] = {}

    def stage(name: str) -> BlockStage:
        if name not in made:
            target, draft = {**RANDOM, **EXACT}[name]
            made[name] = BlockStage(tiny(target), tiny(draft))
        return made[name]

    return stage


Stages = Callable[[str], BlockStage]


def begin(stage: BlockStage, decoder: Decoder, n_prompt: int, seq: int = 0) -> list[int]:
    n_vocab = stage.target.vocab.n_tokens
    decoder.begin(seq, prompt(n_prompt, start=3 + seq, n_vocab=n_vocab), stage.plan())
    while decoder.pending(seq):
        decoder.plan(seq, prompt_rows=64)
        decoder.verify()
    written: list[int] = decoder.result(seq)[0]
    return written


@pytest.mark.parametrize("name", RANDOM)
def test_blocks_are_those_of_an_empty_memory(stages: Stages, name: str) -> None:
    """Behind a prompt of several batches, and behind drafts of others that were accepted in part."""
    stage = stages(name)
    n_prompt = 3 * 64 + 1
    expected = stage.plain(prompt(n_prompt, n_vocab=256), 40)
    decoder = stage.decoder()
    written = begin(stage, decoder, n_prompt)
    n = min(4, stage.shape.longest)
    for right in (3, 0, 1, 4, 2):
        text = decoder.tokens(0)
        decoder.plan(0, budget=4)
        decoder.propose(0)
        assert decoder.drafted(0) == stage.fresh_block(text, n)
        assert stage.shape.mask not in decoder.drafted(0)
        decoder.cut(0, 0)
        wrong = (expected[len(written) + right] + 1) % 256
        decoder.offer(0, [*expected[len(written) : len(written) + right], wrong])
        decoder.verify()
        assert decoder.result(0)[2] == right
        written += decoder.result(0)[0]
    assert tuple(written) == expected[: len(written)]


@pytest.mark.parametrize("name", EXACT)
def test_a_markov_head_follows_the_text(stages: Stages, name: str) -> None:
    """Each token of a block follows from the one before it; the mask token is left out, right as it may be."""
    stage, follows = stages(name), RIGHT if name == "exact" else SOMETIMES
    decoder = stage.decoder()
    written = begin(stage, decoder, 20)
    full = 0
    while len(written) < 2 * N_EXACT:
        token = decoder.tokens(0)[-1]
        decoder.plan(0, budget=4)
        decoder.propose(0)
        draft = decoder.drafted(0)
        for proposed in draft:
            token = follows[token]
            assert proposed == token or token == stage.shape.mask
            if token == stage.shape.mask:
                break
        decoder.verify()
        full += decoder.result(0)[2] == 4
        written += decoder.result(0)[0]
    assert tuple(written[:LENGTH]) == stage.plain(prompt(20))
    assert full >= (N_EXACT // 4 if name == "exact" else 1)


@pytest.mark.parametrize("name", ["dflash", "dspark", "dspark-bonus", "dflash-causal"])
@pytest.mark.parametrize("n_batch", [64, 9])
def test_blocks_of_several_sequences(stages: Stages, name: str, n_batch: int) -> None:
    """In one decode as far as they fit into n_ubatch; each as it would be alone, whatever its budget."""
    stage = stages(name)
    decoder = stage.decoder(3, draft={"n_batch": n_batch, "n_ubatch": n_batch})
    for seq in range(3):
        begin(stage, decoder, 5 + 20 * seq, seq)
    for _ in range(3):
        texts = [decoder.tokens(seq) for seq in range(3)]
        budgets = [1, 3, 2]
        for seq in range(3):
            decoder.plan(seq, budget=budgets[seq])
        before = decoder.counts()["draft_calls"]
        decoder.propose(0)
        for seq in range(3):
            # A Markov head's rows do not depend on those behind them; where rows see each other they do.
            assert decoder.drafted(seq) == stage.fresh_block(texts[seq], 3)[: budgets[seq]]
        length = 3 + (not stage.shape.from_anchor)
        n_decodes = 1 if n_batch == 64 else -(-3 // (n_batch // length))
        assert decoder.counts()["draft_calls"] - before >= n_decodes + 1
        decoder.verify()


def test_rows_of_a_round(stages: Stages) -> None:
    """What was accepted and the seed before it are injected, then a block: no rejected row, none twice."""
    stage = stages("exact-errors")
    decoder = stage.decoder()
    begin(stage, decoder, 20)
    accepted = -1
    for i in range(8):
        before = decoder.counts()
        decoder.plan(0, budget=3)
        decoder.propose(0)
        decoder.verify()
        after = decoder.counts()
        if i:
            assert after["draft_rows"] - before["draft_rows"] == accepted + 1 + 3
            assert after["draft_calls"] - before["draft_calls"] == 2
        accepted = decoder.result(0)[2]


@pytest.mark.parametrize("name", ["dflash", "dspark"])
def test_what_others_left_and_what_was_saved(stages: Stages, name: str) -> None:
    """Used again, saved, loaded, shifted: the next block is that of an empty memory, or of the same one."""
    stage = stages(name)
    decoder, other = stage.decoder(), stage.decoder()
    begin(stage, decoder, 40)
    write(decoder, 0, 12)
    decoder.release(0)
    saved = decoder.save(0)
    assert decoder.retain(0, 30) == 30
    text = (*prompt(30, n_vocab=256), 1, 2, 3)
    for used, tokens, held in ((decoder, text, 30), (other, (*saved[0], 5), len(saved[0]))):
        if used is other:
            used.load(0, *saved)
        assert len(used.held(0)) == held
        used.begin(0, tokens, stage.plan())
        used.plan(0, prompt_rows=64)
        used.verify()
        for _ in range(2):
            now = used.tokens(0)
            used.plan(0, budget=3)
            used.propose(0)
            assert used.drafted(0) == stage.fresh_block(now, 3)
            used.verify()
    state = saved[3][0]
    assert state is not None
    other.end(0)
    with pytest.raises(StateError):
        other.load(0, *saved[:3], [state[:-1]])
    n_committed = decoder.n_committed(0)
    decoder.shift(0, 4, 10)
    assert decoder.n_committed(0) == n_committed - 10
    decoder.plan(0, budget=3)
    decoder.propose(0)
    assert decoder.n_drafted(0) == 3
    decoder.verify()


def test_a_long_stretch_without_a_draft(stages: Stages) -> None:
    stage = stages("dflash")
    decoder = stage.decoder(n_backlog=16)
    begin(stage, decoder, 100)
    written = write(decoder, 0, 30, n_max=0)
    runner = decoder.speculators[0]
    assert isinstance(runner, BlockRunner)
    assert len(runner.waiting(0)[1]) <= 17 and len(written) == 30
    text = decoder.tokens(0)
    decoder.plan(0, budget=3)
    decoder.propose(0)
    assert decoder.drafted(0) == stage.fresh_block(text, 3)


def test_confidence_ends_a_draft(stages: Stages) -> None:
    """DSpark's own head says how sure it is; p_min is compared with that."""
    stage = stages("dspark")

    def lengths(p_min: float) -> tuple[list[int], list[float]]:
        decoder = stage.decoder(p_min=p_min)
        runner = decoder.speculators[0]
        assert isinstance(runner, BlockRunner)
        begin(stage, decoder, 20)
        drafted, sure = [], []
        for _ in range(10):
            decoder.plan(0, budget=4)
            decoder.propose(0)
            drafted.append(decoder.n_drafted(0))
            sure += runner.confidences_of(0)
            decoder.verify()
        return drafted, sure

    drafted, sure = lengths(1e-6)
    assert drafted == [4] * 10 and len(sure) == 40
    threshold = float(np.median(sure))
    fewer, surer = lengths(threshold)
    assert 0 < sum(fewer) < 40 and min(surer) >= threshold
    assert lengths(1.0)[0] == [0] * 10


def test_what_can_not_be_a_runner(stages: Stages, tiny: Tiny) -> None:
    stage = stages("dflash")
    with stage.context(stage.target) as target, stage.block_context(target) as context:
        for wrong in ({"mask": 256}, {"mask": -1}, {"block_size": 1}, {"n_max": 0}):
            with pytest.raises(InvalidRequest):
                BlockRunner(context, 256, **{"mask": 255, "block_size": 4, **wrong})
        with pytest.raises(UnsupportedModel):
            BlockRunner(target, 256, mask=255, block_size=4)
        with (
            stage.block_context(target, n_batch=3, n_ubatch=3) as small,
            pytest.raises(InvalidRequest, match="n_ubatch"),
        ):
            BlockRunner(small, 256, mask=255, block_size=4)
    with Model(str(tiny("llama"))) as model, pytest.raises(UnsupportedModel, match="no block-diffusion"):
        check_dflash(model, model)
