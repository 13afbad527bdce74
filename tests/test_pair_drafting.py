"""draft-mtp and draft-eagle3: the right hidden states with the right tokens, whatever happens between two drafts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from head_stage import LENGTH, N_MAX, SURPRISING, HeadStage, exact_draft, prompt, runner_of, write
from tiny_heads import N_EXACT, NEVER, RIGHT, SOMETIMES, chain

from pyspec import InvalidRequest, StateError, UnsupportedModel
from pyspec._decoder import Decoder
from pyspec._pair_drafting import PairRunner

Tiny = Callable[[str], Path]

# Exact pairs: target, draft, what each head takes to follow a token.
EXACT = {
    "mtp": ("exact-step35", None, [RIGHT]),
    "mtp-errors": ("exact-step35-errors", None, [SOMETIMES]),
    "mtp-never": ("exact-step35-never", None, [NEVER]),
    "mtp-file": ("exact-step35-errors", "exact-step35-nextn", [RIGHT]),
    "mtp-heads": ("exact-step35-heads", None, [RIGHT, SOMETIMES, RIGHT]),
    "mtp-hybrid": ("exact-qwen35", None, [RIGHT]),
    "mtp-hybrid-errors": ("exact-qwen35-errors", None, [SOMETIMES]),
    "eagle3": ("exact-llama", "exact-eagle3", [RIGHT]),
    "eagle3-errors": ("exact-llama", "exact-eagle3-errors", [SOMETIMES]),
}
RANDOM = {
    "mtp": ("step35-one", None),
    "mtp-heads": ("step35", None),
    "mtp-file": ("step35", "step35-nextn"),
    "mtp-hybrid": ("qwen35-mtp", None),
    "mtp-first": ("hy-v3", None),
    "eagle3": ("llama", "eagle3"),
    "eagle3-ends": ("llama", "eagle3-ends"),
    "eagle3-d2t": ("llama", "eagle3-d2t"),
    "eagle3-norms": ("llama", "eagle3-norms"),
}
ONE_EACH = ("mtp-errors", "mtp-heads", "mtp-hybrid-errors", "eagle3-errors")


@pytest.fixture(scope="module")
def stages(tiny: Tiny) -> Callable[[str, str], HeadStage]:
    made: dict[tuple[str, str], HeadStage] = {}

    def stage(kind: str, name: str) -> HeadStage:
        if (kind, name) not in made:
            target, draft = EXACT[name][:2] if kind == "exact" else RANDOM[name]
            made[kind, name] = HeadStage(tiny(target), None if draft is None else tiny(draft))
        return made[kind, name]

    return stage


Stages = Callable[[str, str], HeadStage]


def check_round(decoder: Decoder, seq: int, follows: list[list[int]], budget: int) -> None:
    """A planned round whose draft is just what an exact draft has to propose, and is accepted as far as it is right."""
    tokens = decoder.tokens(seq)
    decoder.plan(seq, budget=budget)
    decoder.propose(0)
    n = budget if len(follows) == 1 else min(budget, len(follows))
    assert decoder.drafted(seq) == exact_draft(tokens, n, *follows)
    decoder.verify()


# -- exact drafts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("n_prompt", [1, 2, 3 * 64 + 1])
def test_drafts_are_made_of_the_right_hidden_states(stages: Stages, name: str, n_prompt: int) -> None:
    """Full, partial and no acceptance, behind prompts of one token and of more than three batches."""
    stage, follows = stages("exact", name), EXACT[name][2]
    decoder = stage.decoder()
    decoder.begin(0, prompt(n_prompt), stage.plan())
    while decoder.pending(0):
        decoder.plan(0, prompt_rows=64)
        decoder.verify()
    written = decoder.result(0)[0]
    accepted = []
    while len(written) < LENGTH:
        check_round(decoder, 0, follows, N_MAX)
        written += decoder.result(0)[0]
        accepted.append(decoder.result(0)[2])
    assert tuple(written[:LENGTH]) == stage.plain(prompt(n_prompt))
    longest = N_MAX if len(follows) == 1 else len(follows)
    if all(f is RIGHT for f in follows):
        assert set(accepted) == {longest}
    elif follows[0] is NEVER:
        assert set(accepted) == {0}
    else:
        assert 0 < sum(accepted) < longest * len(accepted)


@pytest.mark.parametrize("name", ONE_EACH)
def test_tokens_that_the_target_did_not_expect(stages: Stages, name: str) -> None:
    """Sampled at a high temperature: a draft follows what the target made of the text, not the seed."""
    stage, follows = stages("exact", name), EXACT[name][2]
    decoder = stage.decoder()
    decoder.begin(0, prompt(5), stage.plan(**SURPRISING))
    decoder.plan(0, prompt_rows=64)
    decoder.verify()
    written = decoder.result(0)[0]
    surprises = 0
    while len(written) < LENGTH:
        tokens = decoder.tokens(0)
        surprises += tokens[-1] != chain(tokens[-2], 1)[0]
        check_round(decoder, 0, follows, min(N_MAX, LENGTH - len(written)))
        written += decoder.result(0)[0]
    assert surprises > 2
    assert tuple(written[:LENGTH]) == stage.plain(prompt(5), surprising=True)


@pytest.mark.parametrize("name", ONE_EACH)
def test_rounds_of_others_between(stages: Stages, name: str) -> None:
    """Somebody else drafts, right or wrong, or nobody does: the next draft is as if it had drafted all along."""
    stage, follows = stages("exact", name), EXACT[name][2]
    expected = stage.plain(prompt(7), 60)
    decoder = stage.decoder()
    decoder.begin(0, prompt(7), stage.plan())
    decoder.plan(0, prompt_rows=64)
    decoder.verify()
    written = list(decoder.result(0)[0])
    for kind in ("right", "own", "half", "nobody", "own", "wrong", "right", "right", "nobody", "own", "half", "own"):
        if kind == "own":
            check_round(decoder, 0, follows, 3)
        else:
            decoder.plan(0, budget=4)
            right = list(expected[len(written) : len(written) + 4])
            wrong = [(token + 1) % N_EXACT for token in right]
            offer = {"right": right, "half": right[:2] + wrong[2:], "wrong": wrong, "nobody": []}[kind]
            decoder.offer(0, offer)
            decoder.verify()
        written += decoder.result(0)[0]
    assert tuple(written) == expected[: len(written)]


@pytest.mark.parametrize("name", ONE_EACH)
@pytest.mark.parametrize("n_seq", [2, 3, 4])
def test_several_sequences(stages: Stages, name: str, n_seq: int) -> None:
    """They begin at different times, behind prompts of different lengths, and share every decode."""
    stage, follows = stages("exact", name), EXACT[name][2]
    decoder = stage.decoder(n_seq, draft={"kv_unified": True})
    prompts = [prompt(4 + 30 * i, start=i) for i in range(n_seq)]
    written: list[list[int]] = [[] for _ in prompts]
    begun = 0
    while min(map(len, written)) < LENGTH:
        if begun < n_seq:
            decoder.begin(begun, prompts[begun], stage.plan())
            begun += 1
        writing = [seq for seq in range(begun) if not decoder.pending(seq)]
        before = {seq: decoder.tokens(seq) for seq in writing}
        for seq in range(begun):
            decoder.plan(seq, prompt_rows=17, budget=1 + seq)
        decoder.propose(0)
        for seq in writing:
            n = 1 + seq if len(follows) == 1 else min(1 + seq, len(follows))
            assert decoder.drafted(seq) == exact_draft(before[seq], n, *follows)
        decoder.verify()
        for seq in range(begun):
            written[seq] += decoder.result(seq)[0]
    for seq in range(n_seq):
        assert tuple(written[seq][:LENGTH]) == stage.plain(prompts[seq])


@pytest.mark.parametrize("name", ONE_EACH)
def test_a_beginning_that_is_used_again(stages: Stages, name: str) -> None:
    """The hidden state before the first new token is not kept: the target reads one token again for it."""
    stage, follows = stages("exact", name), EXACT[name][2]
    decoder = stage.decoder()
    decoder.begin(0, prompt(40), stage.plan())
    write(decoder, 0, 20)
    decoder.release(0)
    if decoder.rollback != "cut":  # all of it or nothing
        again = (*decoder.held(0), 9, 8)
        assert decoder.retain(0, len(again) - 2) == len(again) - 2
    else:
        again = (*prompt(30), 1, 2, 3)
        assert decoder.retain(0, 30) == 29
    decoder.begin(0, again, stage.plan())
    decoder.plan(0, prompt_rows=64)
    decoder.verify()
    assert decoder.pending(0) == 0
    for _ in range(3):
        check_round(decoder, 0, follows, N_MAX)
    n_rows = decoder.counts()["draft_rows"]
    check_round(decoder, 0, follows, 1)
    assert decoder.counts()["draft_rows"] - n_rows <= N_MAX + 1


def test_a_beginning_before_anything_was_drafted(stages: Stages) -> None:
    """All hidden states are there still: nothing is read again."""
    stage = stages("exact", "mtp-errors")
    decoder = stage.decoder()
    decoder.begin(0, prompt(40), stage.plan())
    write(decoder, 0, 3, n_max=0)
    decoder.release(0)
    assert decoder.retain(0, 30) == 30
    decoder.begin(0, (*prompt(30), 1, 2, 3), stage.plan())
    decoder.plan(0, prompt_rows=64)
    decoder.verify()
    check_round(decoder, 0, [SOMETIMES], N_MAX)


def test_a_context_that_shifts(stages: Stages) -> None:
    stage, follows = stages("exact", "eagle3-errors"), [SOMETIMES]  # none of libllama's targets with NextN layers can
    decoder = stage.decoder()
    decoder.begin(0, prompt(50), stage.plan())
    write(decoder, 0, 12)
    for n_keep, n_discard in ((4, 20), (0, 6)):
        decoder.shift(0, n_keep, n_discard)
        for budget in (N_MAX, 0, 2):
            if budget:
                check_round(decoder, 0, follows, budget)
            else:
                decoder.plan(0)
                decoder.verify()


@pytest.mark.parametrize("name", ONE_EACH)
@pytest.mark.parametrize("drafted", [0, 9])
def test_saved_and_loaded(stages: Stages, name: str, drafted: int) -> None:
    """What is saved goes on in another decoder, with rows that wait for their draft or without."""
    stage, follows = stages("exact", name), EXACT[name][2]
    decoder, other = stage.decoder(), stage.decoder()
    decoder.begin(0, prompt(20), stage.plan())
    write(decoder, 0, 3, n_max=0)
    if drafted:
        write(decoder, 0, drafted)
    decoder.release(0)
    saved = decoder.save(0)
    other.load(0, *saved)
    other.begin(0, (*saved[0], 5), stage.plan())
    other.plan(0, prompt_rows=64)
    other.verify()
    n_rows = other.counts()["draft_rows"]
    check_round(other, 0, follows, 1)
    assert other.counts()["draft_rows"] - n_rows <= (30 if not drafted else 5) * 3
    state = saved[3][0]
    assert state is not None
    other.end(0)
    for damaged in (state[:10], state[:-1], state + b"x", b"\1" * len(state)):
        with pytest.raises(StateError):
            other.load(0, *saved[:3], [damaged])
    assert other.held(0) == []


@pytest.mark.parametrize("name", ["mtp-errors", "eagle3-errors", "mtp-heads"])
def test_a_long_stretch_without_a_draft(stages: Stages, name: str) -> None:
    """Hidden states do not pile up: beyond n_backlog of them the draft reads on though nobody asks it."""
    stage, follows = stages("exact", name), EXACT[name][2]
    decoder = stage.decoder(n_backlog=16)
    runner = runner_of(decoder)
    decoder.begin(0, prompt(150), stage.plan())
    most = 0
    while decoder.pending(0):
        decoder.plan(0, prompt_rows=10)
        decoder.verify()
        most = max(most, len(runner.waiting(0)[1]))
    assert most <= 16 + 10 + 1
    write(decoder, 0, 40, n_max=0)
    assert len(runner.waiting(0)[1]) <= 17
    assert all(held > 150 for _, held in runner.held(0))
    check_round(decoder, 0, follows, N_MAX)


# -- work ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXACT)
def test_rows_of_a_round(stages: Stages, name: str) -> None:
    """a accepted tokens and the new seed, then one row for each further proposal; no row of the draft twice, and no
    rejected row encoded."""
    stage, follows = stages("exact", name), EXACT[name][2]
    decoder = stage.decoder()
    decoder.begin(0, prompt(9), stage.plan())
    write(decoder, 0, 6)
    accepted = -1
    for i in range(7):
        before = decoder.counts()
        decoder.plan(0, budget=3)
        decoder.propose(0)
        decoder.verify()
        after = decoder.counts()
        if i == 0:
            accepted = decoder.result(0)[2]
            continue
        rows = after["draft_rows"] - before["draft_rows"]
        if len(follows) == 1:
            assert rows == accepted + 1 + 2
        else:  # the i-th head reads the i proposals before its own as well, for they come from other heads
            assert rows == 3 * (accepted + 1) + 1 + 2
        assert after["draft_calls"] - before["draft_calls"] == 3
        assert after["target_rows"] - before["target_rows"] == 1 + 3
        if stage.eagle3:
            assert after["encoder_rows"] - before["encoder_rows"] == accepted + 1
        accepted = decoder.result(0)[2]


def test_graphs_are_used_again(stages: Stages) -> None:
    stage = stages("exact", "mtp")
    decoder = stage.decoder(draft={"no_perf": False})
    decoder.begin(0, prompt(9), stage.plan())
    write(decoder, 0, 6)
    context = runner_of(decoder).contexts[0]
    context.reset_perf()
    n_rounds = 10
    for _ in range(n_rounds):
        decoder.plan(0, budget=3)
        decoder.propose(0)
        decoder.verify()
    assert context.perf()["n_reused"] >= 0.8 * n_rounds


# -- against drafts made anew ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RANDOM)
def test_random_drafts_are_those_of_empty_memories(stages: Stages, name: str) -> None:
    """Others' drafts are accepted between; what this one proposes is what a fresh evaluation of the text proposes."""
    stage = stages("random", name)
    tokens = prompt(70, n_vocab=256)
    expected = stage.plain(tokens, 60)
    decoder = stage.decoder()
    decoder.begin(0, tokens, stage.plan())
    while decoder.pending(0):
        decoder.plan(0, prompt_rows=64)
        decoder.verify()
    written = list(decoder.result(0)[0])
    for right in (3, 1, 0, 4, 2):
        text = decoder.tokens(0)
        decoder.plan(0, budget=N_MAX)
        decoder.propose(0)
        proposed = decoder.drafted(0)
        assert proposed == stage.fresh_draft(text, N_MAX)
        decoder.cut(0, 0)
        wrong = (expected[len(written) + right] + 1) % 256
        decoder.offer(0, [*expected[len(written) : len(written) + right], wrong])
        decoder.verify()
        assert decoder.result(0)[2] == right
        written += decoder.result(0)[0]
    assert tuple(written) == expected[: len(written)]
    if stage.draft.arch == "eagle3" and name == "eagle3-d2t":
        assert all(token in range(3, 203, 2) for token in proposed)


@pytest.mark.parametrize("name", ["mtp", "mtp-hybrid", "eagle3"])
def test_kept_rows_are_the_targets(stages: Stages, name: str) -> None:
    """To the bit where the target read them in the same batches, and up to rounding where it didn't."""
    stage = stages("random", name)
    tokens = prompt(64, n_vocab=256)
    decoder = stage.decoder()
    decoder.begin(0, tokens, stage.plan())
    decoder.plan(0, prompt_rows=64)
    decoder.verify()
    first, rows = runner_of(decoder).waiting(0)
    layers = stage.draft.target_layer_ids
    with stage.context(stage.target) as context:
        if layers:
            for layer in layers:
                context.set_embeddings_layer_inp(layer, True)
        else:
            context.set_embeddings_nextn(True)
        context.decode(tokens)
        again = np.array(
            [
                np.hstack([context.embeddings_layer_inp(n)[i] for n in layers])
                if layers
                else context.embeddings_nextn(i)
                for i in range(64)
            ]
        )
    assert (first, len(rows)) == ((-1, 65) if not layers else (0, 64))
    assert (rows[-64:] == again).all()
    if not layers:
        assert not rows[0].any()
        expected = stage.plain(tokens, 8)
        decoder.plan(0, budget=4)
        decoder.offer(0, [*expected[1:4], (expected[4] + 1) % 256])
        decoder.verify()
        first, rows = runner_of(decoder).waiting(0)
        text = decoder.tokens(0)
        assert first + len(rows) == len(text) - 1
        assert np.abs(rows[-4:] - stage.hidden(text[:-1])[-4:]).max() < 1e-4


# -- failures and misuse ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mtp-errors", "mtp-heads", "eagle3-errors"])
def test_a_draft_that_fails(stages: Stages, name: str) -> None:
    """Its memory is too small: the text goes on without a draft, and a counter says so."""
    stage = stages("exact", name)
    decoder = stage.decoder(target={"n_ctx": 1024}, draft={"n_ctx": 256})
    decoder.begin(0, prompt(300), stage.plan())
    assert tuple(write(decoder, 0, LENGTH)) == tuple(chain(prompt(300)[-1], LENGTH))
    assert decoder.counts()["draft_failures"] > 0


def test_a_round_that_came_to_nothing(stages: Stages) -> None:
    """It is planned again, with another budget, and drafts the same."""
    stage = stages("exact", "mtp-errors")
    decoder = stage.decoder()
    decoder.begin(0, prompt(9), stage.plan())
    write(decoder, 0, 6)
    for budget in (4, 2, 3):
        tokens = decoder.tokens(0)
        decoder.plan(0, budget=budget)
        decoder.propose(0)
        assert decoder.drafted(0) == exact_draft(tokens, budget, SOMETIMES)
    decoder.verify()
    check_round(decoder, 0, [SOMETIMES], 4)


def test_confidence_ends_a_draft(stages: Stages) -> None:
    stage = stages("random", "mtp")
    decoder = stage.decoder(p_min=0.9999)
    decoder.begin(0, prompt(9, n_vocab=256), stage.plan())
    assert tuple(write(decoder, 0, LENGTH)) == stage.plain(prompt(9, n_vocab=256))
    decoder.plan(0, budget=4)
    decoder.propose(0)
    assert decoder.drafted(0) == []
    decoder = stage.decoder(n_min=4, n_max=4)
    decoder.begin(0, prompt(9, n_vocab=256), stage.plan())
    write(decoder, 0, 4)
    decoder.plan(0, budget=3)
    decoder.propose(0)
    assert decoder.drafted(0) == []


def test_what_can_not_be_a_runner(stages: Stages, tiny: Tiny) -> None:
    stage = stages("random", "mtp")
    with stage.context(stage.target) as plain, stage.context(stage.target, ctx_type="mtp") as heads:
        with pytest.raises(UnsupportedModel, match="neither EAGLE-3 nor"):
            PairRunner([plain], 256)
        with pytest.raises(InvalidRequest, match="no context"):
            PairRunner([], 256)
        with pytest.raises(InvalidRequest, match="n_max"):
            PairRunner([heads], 256, n_max=0)
        runner = PairRunner([heads], 256)
        with pytest.raises(InvalidRequest, match="has 1 sequences"), stage.context(stage.target, 2) as two:
            Decoder(two, [runner])
        llama = stages("random", "eagle3")
        with llama.context(llama.target) as other, pytest.raises(UnsupportedModel, match="no hidden state"):
            Decoder(other, [runner])
