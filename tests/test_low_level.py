"""The decoder driven by hand: several sequences at once, failing decodes, any schedule; plain decoding decides."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_models
from decoder_stage import LENGTH, N_MAX, N_SEQ, N_VOCAB, PROMPTS, SAMPLING, Stage, room, scripted, verify
from decoder_stage import dense as dense
from decoder_stage import stage as stage
from decoder_stage import window as window
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyspec._decoder import Decoder
from pyspec._drafting import DraftRunner
from pyspec._llama import Model, quantize

# -- several sequences -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_seq", [1, 2, 3])
@pytest.mark.parametrize("kind", ["none", "right", "wrong", "mixed3", "model"])
def test_sequences_write_what_they_write_alone(stage: Stage, n_seq: int, kind: str) -> None:
    """Different prompts, lengths and samplers; one starts while the others write, and reads in small pieces."""
    runner = stage.runner(n_seq) if kind == "model" else None
    decoder = Decoder(stage.context(n_seq=n_seq), [] if runner is None else [runner])
    jobs = [(PROMPTS[3], "greedy"), (PROMPTS[0], "seeded"), (PROMPTS[2], "penalised")][:n_seq]
    starts = [0, 2, 5]
    written: list[list[int]] = [[] for _ in jobs]
    accepted = 0
    for step in range(200):
        for seq, (prompt, sampling) in enumerate(jobs):
            if step == starts[seq]:
                decoder.begin(seq, prompt, stage.plan(sampling))
            if step >= starts[seq] and len(written[seq]) < LENGTH:
                decoder.plan(seq, budget=room(decoder, seq, written[seq]), prompt_rows=7 + 4 * seq)
        if runner is not None:
            decoder.propose(0)
        elif kind != "none":
            for seq, (prompt, sampling) in enumerate(jobs):
                ahead = stage.continuation(prompt, sampling)[len(written[seq]) :]
                decoder.offer(seq, scripted(kind, ahead, decoder.budget(seq)))
        decoder.verify()
        for seq in range(n_seq):
            if step >= starts[seq] and len(written[seq]) < LENGTH:
                emitted, _, n_accepted, _, error = decoder.result(seq)
                assert error is None
                written[seq] += emitted
                accepted += n_accepted
        if all(len(tokens) >= LENGTH for tokens in written):
            break
    for (prompt, sampling), tokens in zip(jobs, written, strict=True):
        assert tokens == list(stage.continuation(prompt, sampling))
    if kind == "right":
        assert accepted > 0.8 * n_seq * (LENGTH - LENGTH / N_MAX - 1)
    if kind in ("none", "wrong"):
        assert accepted == 0


def test_sequences_without_a_plan_sit_the_round_out(dense: Stage) -> None:
    decoder = Decoder(dense.context())
    for seq in range(N_SEQ):
        decoder.begin(seq, PROMPTS[seq], dense.plan())
        decoder.plan(seq, prompt_rows=100)
    decoder.verify()
    before = [decoder.tokens(seq) for seq in range(N_SEQ)]
    result = decoder.result(0)
    for _ in range(3):
        decoder.plan(1)
        decoder.verify()
    assert [decoder.tokens(0), decoder.tokens(2)] == [before[0], before[2]]
    assert decoder.result(0) == result
    assert decoder.tokens(1)[len(PROMPTS[1]) :] == list(dense.continuation(PROMPTS[1])[:4])
    decoder.verify()  # nobody is planned: nothing happens
    assert decoder.counts()["target_calls"] == 4


def test_a_sequence_may_end_and_start_again_beside_others(window: Stage) -> None:
    runner = window.runner()
    decoder = Decoder(window.context(), [runner])
    steady = (PROMPTS[0], "seeded")
    decoder.begin(0, steady[0], window.plan(steady[1]))
    written: list[int] = []
    visitor: list[int] = []
    for visit in range(12):
        prompt = PROMPTS[visit % len(PROMPTS)]
        decoder.begin(2, prompt, window.plan())
        visitor = []
        for _ in range(3):
            for seq, tokens in ((0, written), (2, visitor)):
                if len(tokens) < LENGTH:
                    decoder.plan(seq, budget=room(decoder, seq, tokens), prompt_rows=60)
            decoder.propose(0)
            decoder.verify()
            if len(written) < LENGTH:
                written += decoder.result(0)[0]
            visitor += decoder.result(2)[0]
        assert visitor == list(window.continuation(prompt)[: len(visitor)])
        decoder.end(2)
        assert runner.context.memory.pos_max(2) == decoder.target.memory.pos_max(2) == -1
    assert len(visitor) > 2 and written == list(window.continuation(*steady)[: len(written)])


# -- small batches ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_ubatch", [1, 3, 16])
def test_drafts_longer_than_the_micro_batch(window: Stage, n_ubatch: int) -> None:
    """A memory with a window drops cells as a batch is read piece by piece; rejected rows must not cost any."""
    n = 300  # far beyond the window and the cells there are for it
    with window.context(n_seq=1, n_ctx=512) as context:
        decoder = Decoder(context)
        decoder.begin(0, PROMPTS[0], window.plan())
        expected: list[int] = []
        while len(expected) < n:
            decoder.plan(0, prompt_rows=100)
            decoder.verify()
            expected += decoder.result(0)[0]
    with window.context(n_seq=1, n_ctx=512, n_ubatch=n_ubatch) as context:
        decoder = Decoder(context)
        decoder.begin(0, PROMPTS[0], window.plan())
        written: list[int] = []
        while len(written) < n - N_MAX:
            decoder.plan(0, budget=N_MAX, prompt_rows=100)
            decoder.offer(0, scripted("mixed1", expected[len(written) :], decoder.budget(0)))
            decoder.verify()
            written += decoder.result(0)[0]
        assert written == expected[: len(written)]


# -- what the draft model remembers ----------------------------------------------------------------------------------


def greedy_chain(stage: Stage, tokens: Sequence[int], n: int) -> list[int]:
    """What the draft model proposes after a text that it reads at once."""
    with stage.context(stage.draft, n_seq=1) as context:
        chain: list[int] = []
        context.decode(list(tokens))
        while True:
            chain.append(int(np.argmax(context.logits(-1))))
            if len(chain) == n:
                return chain
            context.decode(chain[-1:])


@pytest.mark.parametrize("replay", [False, True])
def test_proposals_are_those_of_a_model_that_read_the_text_at_once(
    dense: Stage, tmp_path: Path, replay: bool
) -> None:
    """Whatever was accepted, rejected, cut or drafted by others before: no stale cell is left in its memory."""
    chance = random.Random(3)
    draft = tmp_path / "draft.gguf"
    quantize(dense.target.path, draft, "q4_0")  # agrees with the target often, not always
    stage = Stage(Path(dense.target.path), draft)
    runner = stage.runner(2, replay=replay)
    decoder = Decoder(stage.context(n_seq=2), [runner])
    written: list[list[int]] = [[], []]
    for seq in (0, 1):
        decoder.begin(seq, PROMPTS[2 * seq], stage.plan("seeded"))
    accepted = []
    while min(map(len, written)) < LENGTH:
        for seq in (0, 1):
            if len(written[seq]) < LENGTH:
                decoder.plan(seq, budget=min(5, room(decoder, seq, written[seq])), prompt_rows=100)
        drafts = {seq: decoder.budget(seq) for seq in (0, 1)}
        move = chance.choice(["model", "model", "model", "cut", "shorter", "others", "none"])
        if move not in ("others", "none"):
            decoder.propose(0)
            for seq, budget in drafts.items():
                drafted = decoder.drafted(seq)
                assert len(drafted) == budget
                assert not drafted or drafted == greedy_chain(stage, decoder.tokens(seq), budget)
                decoder.cut(seq, {"cut": 0, "shorter": 2}.get(move, budget))
        if move in ("cut", "others"):
            for seq, budget in drafts.items():
                ahead = stage.continuation(PROMPTS[2 * seq], "seeded")[len(written[seq]) :]
                decoder.offer(seq, scripted(chance.choice(["right", "wrong", "mixed2"]), ahead, budget))
        decoder.verify()
        for seq in (0, 1):
            if len(written[seq]) < LENGTH:
                written[seq] += decoder.result(seq)[0]
                accepted.append((decoder.result(seq)[2], decoder.n_drafted(seq)))
    assert [tuple(tokens[:LENGTH]) for tokens in written] == [
        stage.continuation(PROMPTS[2 * seq], "seeded") for seq in (0, 1)
    ]
    assert any(0 < a < n for a, n in accepted) and any(0 < a == n for a, n in accepted)


def test_nothing_is_sampled_behind_a_stop_token(dense: Stage) -> None:
    """The sampler's random numbers are those of plain decoding at every end."""
    expected = dense.continuation(PROMPTS[0], "seeded")
    for at in range(1, 12):
        plan = dense.plan("seeded")
        with dense.context(n_seq=1) as context:
            decoder = Decoder(context)
            decoder.begin(0, PROMPTS[0], plan, stop_tokens=[expected[at]])
            decoder.plan(0, prompt_rows=10)
            decoder.verify()
            written = list(decoder.result(0)[0])
            while expected[at] not in written:
                decoder.plan(0, budget=N_MAX)
                decoder.offer(0, expected[len(written) : len(written) + N_MAX])
                decoder.verify()
                written += decoder.result(0)[0]
            assert written == list(expected[: expected.index(expected[at]) + 1])


# -- vocabularies of other sizes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_vocab", [N_VOCAB + 64, N_VOCAB - 64])
def test_a_draft_with_more_or_fewer_tokens(dense: Stage, tmp_path: Path, n_vocab: int) -> None:
    """Padding: ids only the draft has are never proposed; ids it lacks make it fail, and nothing else."""
    path = tmp_path / "draft.gguf"
    tiny_models.llama(path, seed=2, n_layer=2, head=False, n_vocab=n_vocab)
    with Model(str(path)) as model, dense.context(model, n_seq=1) as draft_context:
        runner = DraftRunner(draft_context, N_VOCAB, n_max=N_MAX)
        decoder = Decoder(dense.context(n_seq=1), [runner])
        drafted: list[int] = []
        for prompt in PROMPTS[:4]:
            decoder.begin(0, prompt, dense.plan())
            written: list[int] = []
            while len(written) < LENGTH:
                decoder.plan(0, budget=room(decoder, 0, written), prompt_rows=100)
                decoder.propose(0)
                drafted += decoder.drafted(0)
                decoder.verify()
                written += decoder.result(0)[0]
            assert written == list(dense.continuation(prompt))
        assert len(drafted) > 20 and max(drafted) < min(n_vocab, N_VOCAB)
        assert (decoder.counts()["draft_failures"] > 0) == (n_vocab < N_VOCAB)


# -- failing decodes -------------------------------------------------------------------------------------------------


def test_no_room_in_the_targets_memory(dense: Stage) -> None:
    """Two sequences in one pool that is too small for both: code 1, nothing lost, and room again when one ends."""
    with dense.context(n_seq=2, n_ctx=256, kv_unified=True) as context:
        decoder = Decoder(context)
        prompts = (tuple(range(120)), tuple(range(1, 121)))
        for seq in (0, 1):
            decoder.begin(seq, prompts[seq], dense.plan())
            decoder.plan(seq, prompt_rows=128)
            decoder.verify()
        written = [list(decoder.result(seq)[0]) for seq in (0, 1)]
        while True:
            for seq in (0, 1):
                decoder.plan(seq, budget=4)
                decoder.offer(seq, [1, 2, 3, 4])
            before = [decoder.tokens(seq) for seq in (0, 1)]
            code = verify(decoder)
            if code:
                break
            for seq in (0, 1):
                written[seq] += decoder.result(seq)[0]
        assert code == 1 and [decoder.tokens(seq) for seq in (0, 1)] == before
        assert [decoder.n_drafted(seq) for seq in (0, 1)] == [0, 0]
        decoder.check()
        decoder.end(1)
        while len(written[0]) < LENGTH:
            decoder.plan(0)
            decoder.verify()
            written[0] += decoder.result(0)[0]
        assert written[0] == list(dense.continuation(prompts[0]))


def test_no_room_in_the_drafts_memory(dense: Stage) -> None:
    """A pool of cells that the draft's sequences exhaust: decodes of the draft fail, the texts don't notice."""
    runner = dense.runner(2, context={"n_ctx": 256, "kv_unified": True})
    decoder = Decoder(dense.context(n_seq=2), [runner])
    prompts = (tuple(range(125)), tuple(range(1, 126)))
    written: list[list[int]] = [[], []]
    for seq in (0, 1):
        decoder.begin(seq, prompts[seq], dense.plan())
        decoder.plan(seq, prompt_rows=128)
        decoder.verify()
        written[seq] += decoder.result(seq)[0]
    while min(map(len, written)) < LENGTH:
        for seq in (0, 1):
            if len(written[seq]) < LENGTH:
                decoder.plan(seq, budget=room(decoder, seq, written[seq]))
        decoder.propose(0)
        decoder.verify()
        for seq in (0, 1):
            if len(written[seq]) < LENGTH:
                written[seq] += decoder.result(seq)[0]
    assert decoder.counts()["draft_failures"] > 0
    for prompt, tokens in zip(prompts, written, strict=True):
        assert tokens == list(dense.continuation(prompt))


@pytest.mark.parametrize("replay", [False, True])
@pytest.mark.parametrize("who", ["target", "draft"])
def test_a_stopped_decode_leaves_everything_as_it_was(stage: Stage, who: str, replay: bool) -> None:
    runner = stage.runner(replay=replay)
    decoder = Decoder(stage.context(), [runner])
    context = decoder.target if who == "target" else runner.context
    written: list[list[int]] = [[] for _ in range(N_SEQ)]
    for seq in range(N_SEQ):
        decoder.begin(seq, PROMPTS[seq], stage.plan("seeded"))
    stopped = 0
    for step in range(400):
        for seq in range(N_SEQ):
            if len(written[seq]) < LENGTH:
                decoder.plan(seq, budget=room(decoder, seq, written[seq]), prompt_rows=11)
        if step % 3 == 1:
            context.abort()
        decoder.propose(0)
        before = [decoder.tokens(seq) for seq in range(N_SEQ)]
        code = verify(decoder)
        if code:
            assert code == 2 and who == "target"
            stopped += 1
            assert [decoder.tokens(seq) for seq in range(N_SEQ)] == before
            decoder.check()
        else:
            for seq in range(N_SEQ):
                if len(written[seq]) < LENGTH:
                    written[seq] += decoder.result(seq)[0]
        context.clear_abort()
        if min(map(len, written)) >= LENGTH:
            break
    assert stopped > 0 or who == "draft"
    assert decoder.counts()["draft_failures"] == 0  # being told to stop is no failure
    for seq in range(N_SEQ):
        assert written[seq] == list(stage.continuation(PROMPTS[seq], "seeded"))


# -- a draft window that moves on ------------------------------------------------------------------------------------


@pytest.mark.parametrize("draft", ["llama-draft", "gemma3"])
def test_a_draft_window_shorter_than_the_text(dense: Stage, tiny: Callable[[str], Path], draft: str) -> None:
    """The draft holds 256 tokens, the texts get to 480; drafting never fails and costs no more decodes."""
    n = 400
    jobs = [((5, 6, 7), "greedy"), (PROMPTS[3], "seeded")]
    stage = Stage(dense.target.path, tiny(draft)) if draft != "llama-draft" else dense  # type: ignore[arg-type]
    runner = stage.runner(2, context={"n_ctx": 512})
    decoder = Decoder(stage.context(n_seq=2, n_ctx=1024), [runner])
    expected = []
    for prompt, sampling in jobs:
        with stage.context(n_seq=1, n_ctx=512) as context:
            alone = Decoder(context)
            alone.begin(0, prompt, stage.plan(sampling))
            tokens: list[int] = []
            while len(tokens) < n:
                alone.plan(0, prompt_rows=128)
                alone.verify()
                tokens += alone.result(0)[0]
            expected.append(tokens)
    written: list[list[int]] = [[], []]
    for seq, (prompt, sampling) in enumerate(jobs):
        decoder.begin(seq, prompt, stage.plan(sampling))
    n_rounds = n_drafts = 0
    decoder.spent()
    before, spent = decoder.counts(), []
    while min(map(len, written)) < n:
        for seq in (0, 1):
            if len(written[seq]) < n:
                decoder.plan(seq, budget=room(decoder, seq, written[seq], n, 512), prompt_rows=128)
        decoder.propose(0)
        n_rounds += 1
        n_drafts += bool(decoder.n_drafted(0) or decoder.n_drafted(1))
        decoder.verify()
        for seq in (0, 1):
            if len(written[seq]) < n:
                written[seq] += decoder.result(seq)[0]
        spent.append(decoder.spent())
    assert written == expected
    counts = decoder.counts()
    # What each round has spent adds up to all that was done, and nothing is told twice.
    names = ("verify_us", "sampling_us", "grammar_us", "checkpoint_us", "draft_decode_us", "draft_read_us")
    for i, name in enumerate(names):
        assert round(1000 * sum(its[i] for its in spent)) == counts[name] - before[name], name
    assert round(1000 * sum(its[7][0] for its in spent)) == counts["draft_us"] - before["draft_us"] > 0
    assert min(its[0] for its in spent) > 0.0
    assert decoder.spent() == (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, [0.0])
    assert counts["draft_failures"] == 0 and n_drafts >= n_rounds - 4
    assert counts["draft_calls"] < 1.2 * N_MAX * n_rounds


# -- any schedule ----------------------------------------------------------------------------------------------------

MOVES = st.one_of(
    st.tuples(st.just("idle"), st.just(1)),
    st.tuples(st.just("plain"), st.integers(1, 40)),  # prompt rows, while there is a prompt
    st.tuples(st.sampled_from(["right", "wrong", "mixed1", "mixed3", "mixed6"]), st.integers(1, N_MAX)),
    st.tuples(st.just("model"), st.integers(1, N_MAX)),
    st.tuples(st.just("restart"), st.integers(1, 40)),
)
ROUNDS = st.lists(
    st.tuples(
        st.tuples(*[MOVES] * N_SEQ),
        st.sampled_from(["", "", "", "target", "draft", "abandon"]),
    ),
    max_size=20,
)
JOBS = st.tuples(*[st.tuples(st.sampled_from(PROMPTS), st.sampled_from(sorted(SAMPLING)))] * N_SEQ)
RUNNERS = st.fixed_dictionaries(
    {}, optional={"replay": st.booleans(), "n_min": st.integers(0, 3), "p_min": st.sampled_from([0.0, 0.02, 0.5])}
)


class Play:
    """Carries out a schedule, and finishes every text after it."""

    def __init__(self, stage: Stage, jobs: Sequence[tuple[tuple[int, ...], str]], runner: DraftRunner) -> None:
        self.stage = stage
        self.jobs = jobs
        self.runner = runner
        self.decoder = Decoder(stage.context(), [runner])
        self.written: list[list[int]] = [[] for _ in jobs]
        self.open: set[int] = set()  # planned, but the decode never came
        for seq in range(len(jobs)):
            self.start(seq)

    def start(self, seq: int) -> None:
        prompt, sampling = self.jobs[seq]
        self.decoder.begin(seq, prompt, self.stage.plan(sampling))
        self.written[seq] = []

    def round(self, moves: Sequence[tuple[str, int]], event: str = "") -> None:
        decoder = self.decoder
        planned = []
        for seq, (move, n) in enumerate(moves):
            if move == "restart":
                self.start(seq)
            if (move == "idle" and seq not in self.open) or len(self.written[seq]) >= LENGTH:
                continue
            planned.append(seq)
            budget = 0 if move in ("idle", "plain", "restart") else min(n, room(decoder, seq, self.written[seq]))
            decoder.plan(seq, budget=budget, prompt_rows=n)
            if move not in ("idle", "plain", "restart", "model"):
                ahead = self.stage.continuation(*self.jobs[seq])[len(self.written[seq]) :]
                decoder.offer(seq, scripted(move, ahead, decoder.budget(seq)))
        context = {"target": decoder.target, "draft": self.runner.context}.get(event)
        if context is not None:
            context.abort()
        decoder.propose(0)
        self.open = set(planned) if event == "abandon" else set()
        code = 0
        if event != "abandon":
            code = verify(decoder)
            decoder.check()
        if context is not None:
            context.clear_abort()
        assert code == (2 if event == "target" and planned else 0)
        if code or event == "abandon":
            return
        for seq in planned:
            emitted, _, _, _, error = decoder.result(seq)
            assert error is None
            self.written[seq] += emitted

    def finish(self) -> None:
        for step in range(500):  # a bound, should nothing come any more
            if all(len(tokens) >= LENGTH for tokens in self.written):
                break
            self.round([("model", 5) if (step + seq) % 2 else ("plain", 30) for seq in range(len(self.jobs))])
        for job, tokens in zip(self.jobs, self.written, strict=True):
            assert tokens == list(self.stage.continuation(*job))


@pytest.mark.parametrize("kind", ["dense", "window"])
def test_any_schedule_gives_the_texts_of_plain_decoding(kind: str, request: pytest.FixtureRequest) -> None:
    stage: Stage = request.getfixturevalue(kind)

    @settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(jobs=JOBS, rounds=ROUNDS, options=RUNNERS)
    def play(jobs: Sequence[tuple[tuple[int, ...], str]], rounds: Sequence[Any], options: dict[str, Any]) -> None:
        play = Play(stage, jobs, stage.runner(**options))
        for moves, event in rounds:
            play.round(moves, event)
        play.finish()

    play()
