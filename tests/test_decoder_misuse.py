"""The decoder in the hands of somebody who gets the order, the ids or the sizes wrong: an exception, never the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from decoder_stage import N_MAX, N_VOCAB, PROMPTS, Stage
from decoder_stage import dense as dense

from pyspec._decoder import Decoder
from pyspec._drafting import DraftRunner
from pyspec._llama import Context, Model
from pyspec.errors import BufferInUse, Closed, InvalidRequest, UnsupportedModel


@pytest.fixture
def decoder(dense: Stage) -> Iterator[Decoder]:
    with dense.context(n_seq=1) as context:
        decoder = Decoder(context, [dense.runner(1)])
        decoder.begin(0, PROMPTS[0], dense.plan())
        decoder.plan(0, prompt_rows=10)
        decoder.verify()
        yield decoder
        decoder.check()
        decoder.plan(0, budget=4)
        decoder.propose(0)
        decoder.verify()
        decoder.plan(0)
        decoder.verify()
        written = decoder.tokens(0)[len(PROMPTS[0]) :]
        assert written == list(dense.continuation(PROMPTS[0])[: len(written)])


@pytest.mark.parametrize("seq", [-1, 1, 100])
def test_sequences_that_do_not_exist(dense: Stage, decoder: Decoder, seq: int) -> None:
    for use in (
        lambda: decoder.begin(seq, [1], dense.plan()),
        lambda: decoder.plan(seq),
        lambda: decoder.offer(seq, [1]),
        lambda: decoder.cut(seq, 0),
        lambda: decoder.end(seq),
        lambda: decoder.result(seq),
        lambda: decoder.logprobs(seq),
        lambda: decoder.pending(seq),
        lambda: decoder.tokens(seq),
        lambda: decoder.drafted(seq),
    ):
        with pytest.raises(InvalidRequest, match=f"sequence {seq} is outside 0..0"):
            use()


@pytest.mark.parametrize("which", [-1, 1, 7])
def test_speculators_that_do_not_exist(decoder: Decoder, which: int) -> None:
    with pytest.raises(InvalidRequest, match=f"no speculator {which}"):
        decoder.propose(which)


@pytest.mark.parametrize("prompt", [[], [-1], [N_VOCAB], [1, 2, N_VOCAB]])
def test_prompts_that_are_none(dense: Stage, decoder: Decoder, prompt: list[int]) -> None:
    with pytest.raises(InvalidRequest, match=r"empty|outside 0\.\.255"):
        decoder.begin(0, prompt, dense.plan())


def test_a_closed_sampler_chain(dense: Stage) -> None:
    plan = dense.plan("seeded")
    plan.chain.close()
    with dense.context(n_seq=1) as context:
        decoder = Decoder(context)
        with pytest.raises(Closed):
            decoder.begin(0, [1, 2], plan)
        decoder.plan(0, prompt_rows=5)
        decoder.verify()
        assert decoder.tokens(0) == []


def test_more_rows_than_the_context_was_made_for(dense: Stage, decoder: Decoder) -> None:
    """Refused before libllama, which would end the process; the draft model's memory is in step again, too."""
    decoder.plan(0, budget=40)
    decoder.offer(0, [1] * 40)
    with pytest.raises(InvalidRequest, match=f"41 output rows were planned, n_outputs_max is {1 + N_MAX}"):
        decoder.verify()
    with dense.context(n_seq=1) as context:
        other = Decoder(context)
        other.begin(0, range(200), dense.plan())
        other.plan(0, prompt_rows=200)
        with pytest.raises(InvalidRequest, match="200 rows were planned, n_batch is 128"):
            other.verify()


def test_a_round_may_be_abandoned_and_a_speculator_asked_twice(decoder: Decoder) -> None:
    for _ in range(3):
        decoder.plan(0, budget=5)
        decoder.propose(0)
        decoder.propose(0)
        drafted = decoder.drafted(0)
        assert len(drafted) == 5
    decoder.cut(0, 0)
    decoder.propose(0)  # it had its turn
    assert decoder.drafted(0) == []
    decoder.verify()
    assert decoder.counts()["draft_failures"] == 0


def test_offers_in_the_wrong_order(decoder: Decoder) -> None:
    before = decoder.tokens(0)
    assert decoder.offer(0, [1, 2, 3]) == 0  # no round is open
    decoder.verify()
    assert decoder.tokens(0) == before
    decoder.plan(0, budget=2)
    assert decoder.offer(0, [1, 2, 3]) == 2
    assert decoder.offer(0, [4]) == 0  # it has a draft
    decoder.plan(0, budget=3)
    assert decoder.offer(0, [-1, 2, 3]) == decoder.offer(0, [N_VOCAB]) == decoder.offer(0, [2**40]) == 0


def test_contexts_closed_under_a_decoder(dense: Stage) -> None:
    runner = dense.runner(1)
    decoder = Decoder(dense.context(n_seq=1), [runner])
    decoder.begin(0, [1, 2, 3], dense.plan())
    decoder.plan(0, prompt_rows=5)
    decoder.verify()
    runner.context.close()
    decoder.plan(0)
    for use in (lambda: decoder.propose(0), decoder.verify, decoder.check, lambda: decoder.end(0)):
        with pytest.raises(Closed):
            use()
    decoder.target.close()
    for use in (decoder.check, lambda: decoder.end(0), lambda: Decoder(decoder.target)):
        with pytest.raises(Closed):
            use()
    with pytest.raises(Closed):
        DraftRunner(runner.context, N_VOCAB)


def test_views_of_the_logits_stop_the_round_not_the_process(dense: Stage, decoder: Decoder) -> None:
    view = decoder.target.logits(-1)
    decoder.plan(0)
    with pytest.raises(BufferInUse):
        decoder.verify()
    del view


def test_a_draft_context_with_too_few_sequences(dense: Stage) -> None:
    with pytest.raises(InvalidRequest, match="has 1 sequences, the target's has 3"):
        Decoder(dense.context(), [dense.runner(1)])


def test_one_context_in_two_roles(dense: Stage) -> None:
    runner = dense.runner(1)
    with pytest.raises(InvalidRequest, match="twice"):
        Decoder(dense.context(n_seq=1), [runner, runner])
    with pytest.raises(InvalidRequest, match="a context each"):
        Decoder(runner.context, [runner])


@pytest.mark.parametrize(
    "options", [{"n_max": 0}, {"n_min": -1}, {"n_min": 4, "n_max": 3}, {"p_min": 1.5}, {"p_min": float("nan")}]
)
def test_draft_options_out_of_range(dense: Stage, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="n_max of at least 1"):
        dense.runner(1, **options)


@pytest.mark.parametrize("name", ["bert", "t5encoder"])
def test_encoders_do_not_write(dense: Stage, tiny: Callable[[str], Path], name: str) -> None:
    with Model(str(tiny(name))) as model, Context(model, n_ctx=64) as context:
        with pytest.raises(UnsupportedModel, match="encoder"):
            Decoder(context)
        with pytest.raises(UnsupportedModel, match="encoder"):
            DraftRunner(context, N_VOCAB)
