"""Exact mode: the same token ids, and log-probabilities to the bit, whoever drafts and whoever runs beside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import drafters
import pytest
from cli_runs import run_json
from drafters import Stage

from pyspec import DraftModel, Engine, InvalidRequest, Model, NGramMapK4V, Result, SamplingParams, StateError
from pyspec._decoder import Decoder
from pyspec._llama import Context
from pyspec.bench.prompts import chatml
from pyspec.errors import UnsupportedModel
from pyspec.exactness import Exact
from pyspec.sampling import build_chain
from pyspec.speculation import Synthetic

Tiny = Callable[[str], Path]

LONG = "The lighthouse keeper walked down to the shore every morning and looked at the sea. " * 13  # 250 tokens
PROMPTS = (chatml("Name three rivers of Europe."), chatml(f"{LONG}\nSummarise this."), chatml("Count to twenty."))
SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 0.8, "seed": 7},
}


def params(sampling: str, n: int = 16) -> SamplingParams:
    return SamplingParams(max_tokens=n, logprobs=2, ignore_eos=True, **SAMPLING[sampling])


def same(a: Result, b: Result) -> bool:
    return a.token_ids == b.token_ids and a.logprobs == b.logprobs


@pytest.fixture(scope="module", params=["smollm2", "smollm2_q4_0", "smollm2_f32"])
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    puppet = drafters.Puppet()
    exact = Exact(check_every=2)
    model = request.getfixturevalue(str(request.param))
    with Engine(model, speculation=puppet, n_ctx=512, n_slots=1, exact=exact) as engine:
        yield Stage(engine, puppet)


@pytest.fixture(scope="module")
def alone(stage: Stage) -> Iterator[Engine]:
    """An engine of its own that never speculates."""
    with Engine(stage.engine.config.target.path, speculation=None, n_ctx=512, exact=True) as engine:
        yield engine


@pytest.mark.parametrize(("at", "sampling"), [(0, "greedy"), (0, "seeded"), (1, "seeded")])
def test_drafts_change_no_bit(stage: Stage, alone: Engine, at: int, sampling: str) -> None:
    assert stage.engine.config.exact is not None and stage.engine.config.exact.width > 4
    how = params(sampling)
    prompt = stage.engine.tokenize(PROMPTS[at])
    plain = alone.generate(prompt, how)
    assert len(plain.token_ids) == 16
    scripts = stage.scripts(prompt, plain.token_ids)
    tried = (("right", 16), ("noise", 3), ("mix1", 8), ("mix3", 5), ("right", 1))
    for kind, n_draft_max in tried if at == 0 else tried[2:3]:  # the other prompt is long
        stage.puppet.script = scripts[kind]
        result = stage.engine.generate(prompt, how, n_draft_max=n_draft_max)
        assert same(result, plain), (kind, n_draft_max)
        assert result.stats.drafted > 0
    stats = stage.engine.stats()
    assert stats.spot_checks > 0 and stats.spot_differences == 0


@pytest.mark.parametrize("n_slots", [2, 4])
def test_neighbours_change_no_bit(stage: Stage, alone: Engine, n_slots: int) -> None:
    """Requests beside each other, one with a prompt of 250 tokens that is read while the others write."""
    path = stage.engine.config.target.path
    asked = [(PROMPTS[i % 3], params("seeded" if i % 2 else "greedy", 8 + 4 * i)) for i in range(5)]
    expected = [alone.generate(prompt, how) for prompt, how in asked]
    draft = NGramMapK4V(size_n=2, size_m=4)
    with Engine(path, speculation=draft, n_ctx=512, n_slots=n_slots, exact=Exact(check_every=4)) as engine:
        exact = engine.config.exact
        assert exact is not None and exact.width >= 4 * n_slots
        streams = [engine.stream(prompt, how) for prompt, how in asked]
        for stream, plain in zip(streams, expected, strict=True):
            assert same(stream.result(120), plain)
        assert engine.stats().spot_checks > 0 and engine.stats().spot_differences == 0


def test_a_draft_model_changes_no_bit(smollm2: Path, smollm2_f32: Path) -> None:
    draft = DraftModel(smollm2, n_max=6)
    with Engine(smollm2_f32, speculation=draft, n_ctx=512, n_slots=2, exact=True) as engine:
        for sampling in SAMPLING:
            plain = engine.generate(PROMPTS[0], params(sampling, 24), n_draft_max=0)
            streams = [engine.stream(PROMPTS[0], params(sampling, 24)) for _ in range(2)]
            assert all(same(stream.result(120), plain) for stream in streams)
        assert engine.stats().accepted > 0


def test_a_second_turn_goes_on_from_what_was_written(smollm2_q4_0: Path) -> None:
    """Prefixes are used again where prompts are exact too, and then change no bit: here in pieces of 32, as f16
    attention has tiles from 64 rows on."""
    how = params("greedy")
    options: dict[str, Any] = {"speculation": None, "n_ctx": 512, "n_prompt_rows": 32, "exact": True}
    with Engine(smollm2_q4_0, **options) as engine:
        assert engine.config.exact is not None and engine.config.exact.prefix_reuse
        first = engine.generate(PROMPTS[0], how)
        turn = [*first.prompt_token_ids, *first.token_ids, *engine.tokenize(" And of Asia?")]
        again = engine.generate(turn, how)
        assert again.stats.cached_tokens > 16
    with Engine(smollm2_q4_0, **options, prefix_reuse=False) as engine:
        assert same(engine.generate(turn, how), again)


def test_prefixes_are_read_again_where_they_would_differ(smollm2_f32: Path) -> None:
    how = params("greedy", 8)
    with Engine(smollm2_f32, speculation=None, n_ctx=512, exact=True) as engine:
        exact = engine.config.exact
        assert exact is not None
        first = engine.generate(PROMPTS[0], how)
        turn = [*first.prompt_token_ids, *first.token_ids, *engine.tokenize(" And?")]
        assert (engine.generate(turn, how).stats.cached_tokens > 0) == exact.prefix_reuse


@pytest.mark.parametrize("name", ["llama", "mamba", "qwen35", "gemma3"])
def test_other_memories(tiny: Tiny, name: str) -> None:
    """Where a state can't be cut no row can be thrown away: then nothing is drafted, or it is exact."""
    puppet = drafters.Puppet()
    how = SamplingParams(max_tokens=30, temperature=0.0, logprobs=2, ignore_eos=True)
    prompt = list(range(20, 60))
    with Engine(tiny(name), speculation=puppet, n_ctx=256, n_threads=1, exact=Exact(check_every=2)) as engine:
        exact = engine.config.exact
        assert exact is not None
        stage = Stage(engine, puppet)
        plain = stage.plain(prompt, how)
        for script in stage.scripts(prompt, plain.token_ids).values():
            puppet.script = script
            result = engine.generate(prompt, how)
            assert same(result, plain)
            assert (result.stats.drafted > 0) == exact.speculates
        assert engine.stats().spot_differences == 0


def test_the_context_may_fill_up(tiny: Tiny) -> None:
    """Rows that are thrown away need cells of their own; the last token of the context is written all the same."""
    prompt = list(range(20, 60))
    how = SamplingParams(max_tokens=1000, temperature=0.0, ignore_eos=True)
    with Engine(tiny("llama"), speculation=None, n_ctx=256, n_threads=1, exact=True) as engine:
        result = engine.generate(prompt, how)
    assert result.finish_reason == "length" and len(result.token_ids) == 256 - 40 + 1


def test_a_context_that_moves_on(tiny: Tiny) -> None:
    puppet = drafters.Puppet()
    prompt = list(range(20, 60))
    how = SamplingParams(max_tokens=120, temperature=0.0, logprobs=1, ignore_eos=True)
    with Engine(tiny("llama"), speculation=puppet, n_ctx=96, n_threads=1, exact=True) as engine:
        plain = engine.generate(prompt, how, n_keep=8, n_draft_max=0)
        assert plain.stats.context_shifts > 0
        puppet.script = drafters.mix(2, prompt, plain.token_ids, 256, length=4)
        result = engine.generate(prompt, how, n_keep=8)
    assert result.stats.accepted > 0 and same(result, plain)


# -- what it comes to --------------------------------------------------------------------------------------------


def test_the_configuration_says_what_was_chosen(smollm2: Path) -> None:
    with Engine(smollm2, speculation=NGramMapK4V(size_m=16), n_ctx=1024, n_threads=2, exact=True) as engine:
        config = engine.config
        assert config.exact is not None
        assert config.exact.changed == {"type_v": "bf16"} and config.target.type_v == "bf16"
        assert "exact" in config.exact.explanation and "type_v='bf16'" in config.exact.explanation
        assert config.to_dict()["exact"]["width"] == config.exact.width >= 17
        assert config.exact.least_rows == 1


def test_settings_can_be_kept(smollm2: Path) -> None:
    """f16 for K and V has another kernel for a row that is alone: it gets company."""
    exact = Exact(settings="keep")
    with Engine(smollm2, speculation=NGramMapK4V(size_m=8), n_ctx=1024, n_threads=2, exact=exact) as engine:
        config = engine.config
        assert config.exact is not None and config.exact.changed == {}
        assert config.target.type_v == "f16"
        assert config.exact.least_rows == 2 and config.exact.width > 8


def test_drafts_are_no_longer_than_what_is_exact(smollm2: Path) -> None:
    with Engine(smollm2, speculation=NGramMapK4V(size_m=200), n_ctx=512, exact=True) as engine:
        exact = engine.config.exact
        assert exact is not None and engine.config.n_draft_max == exact.width - 1


def test_where_nothing_is_exact_it_decodes_plainly_or_refuses(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No backend here is as bad as that, so the measurement says it."""
    import pyspec.exactness.mode as mode
    from pyspec.exactness import RowInvariance

    hopeless = RowInvariance(1, 1, 33, 1, 1, None, (), {})
    monkeypatch.setattr(mode, "measured", lambda model, **options: hopeless)
    puppet = drafters.Puppet()
    with Engine(tiny("llama"), speculation=puppet, n_ctx=128, n_slots=2, exact=True) as engine:
        assert engine.config.exact is not None and not engine.config.exact.speculates
        assert engine.config.speculators == () and "nothing is drafted" in engine.config.exact.explanation
        results = [engine.stream([5, 6, 7], SamplingParams(max_tokens=8, seed=1)) for _ in range(2)]
        assert results[0].result(60).token_ids == results[1].result(60).token_ids
        assert not puppet.requests
    assert "nothing is drafted" in caplog.text
    with pytest.raises(UnsupportedModel, match="can't be exact"):
        Engine(tiny("llama"), speculation=puppet, n_ctx=128, exact=Exact(fallback="raise"))


@pytest.mark.parametrize("flag", ["--exact", "--exact-strict"])
def test_on_the_command_line(tiny: Tiny, capfd: pytest.CaptureFixture[str], flag: str) -> None:
    args = ("generate", "-m", str(tiny("llama")), "-p", "hello", "-n", "4", "-c", "64", "-t", "1", "--temp", "0")
    document = run_json(capfd, *args, flag)
    exact = document["config"]["exact"]
    assert exact["width"] > 4 and exact["explanation"].startswith("decodes of up to")
    assert run_json(capfd, *args)["config"]["exact"] is None


# -- bad input ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"exact": "yes"}, "exact"),
        ({"exact": 1}, "exact"),
        ({"exact": True, "n_slots": 2, "n_cells": 512}, "n_cells"),
        ({"exact": True, "synthetic": Synthetic(rates=(0.5,))}, "synthetic"),
        ({"exact": True, "n_ctx": 8}, "n_ctx"),
    ],
)
def test_bad_parameters(tiny: Tiny, options: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Engine(tiny("llama"), speculation=drafters.Puppet(), **options)
    assert caught.value.name == name


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"fallback": "hope"}, "fallback"),
        ({"settings": "mine"}, "settings"),
        ({"check_every": -1}, "check_every"),
        ({"check_every": True}, "check_every"),
        ({"check_every": 1.5}, "check_every"),
    ],
)
def test_bad_strictness(options: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Exact(**options)
    assert caught.value.name == name


def test_saved_prefixes_are_refused(tiny: Tiny, tmp_path: Path) -> None:
    with Engine(tiny("llama"), speculation=None, n_ctx=128, exact=True) as engine:
        engine.save_prefix([5, 6, 7], tmp_path / "prefix")
        with pytest.raises(InvalidRequest, match="does not load prefixes"):
            engine.load_prefix(tmp_path / "prefix")


# -- the decoder -------------------------------------------------------------------------------------------------


class Rounds:
    """A decoder with the tiny llama, driven by hand."""

    def __init__(self, model: Model, *, check: bool, n_seq: int = 2) -> None:
        self.context = Context(model, n_ctx=256 * n_seq, n_seq_max=n_seq, n_outputs_max=32, n_threads=1)
        self.decoder = Decoder(self.context, check=check)
        self.model = model

    def begin(self, seq: int, prompt: list[int]) -> None:
        self.decoder.begin(seq, prompt, build_chain(SamplingParams(temperature=0.0), self.model.vocab, n_ctx=256))

    def read(self, seq: int) -> None:
        self.decoder.plan(seq, prompt_rows=64)
        self.decoder.verify()


@pytest.fixture
def llama(tiny: Tiny) -> Iterator[Model]:
    with Model(str(tiny("llama"))) as model:
        yield model


def test_the_decoder_refuses_what_is_not_exact(llama: Model) -> None:
    rounds = Rounds(llama, check=True)
    decoder = rounds.decoder
    decoder.set_exact(4, 2)
    rounds.begin(0, [5, 6, 7])
    rounds.read(0)
    before = decoder.tokens(0)
    decoder.plan(0, budget=8)
    assert decoder.offer(0, [1] * 8) == 8
    with pytest.raises(InvalidRequest, match="exact up to 4"):
        decoder.verify()
    rounds.begin(1, [9, 10, 11])
    decoder.plan(0, budget=1)
    decoder.plan(1, prompt_rows=8)
    with pytest.raises(InvalidRequest, match="a decode of its own"):
        decoder.verify()
    assert decoder.tokens(0) == before and decoder.pending(1) == 3
    decoder.plan(0, budget=3)
    decoder.offer(0, [1, 1, 1])
    decoder.verify()
    assert decoder.last_decode()[0] == 4 and len(decoder.tokens(0)) > len(before)


def test_other_threads_are_refused(llama: Model) -> None:
    rounds = Rounds(llama, check=True)
    rounds.decoder.set_exact(8, 1)
    rounds.begin(0, [5, 6, 7])
    rounds.context.set_n_threads(2, 2)
    with pytest.raises(StateError, match="threads were changed"):
        rounds.read(0)
    rounds.context.set_n_threads(1, 1)
    rounds.read(0)
    assert len(rounds.decoder.tokens(0)) == 4


@pytest.mark.parametrize(("width", "least"), [(0, 1), (-1, 1), (4, 0), (4, 5)])
def test_widths_that_can_not_be(llama: Model, width: int, least: int) -> None:
    with pytest.raises(InvalidRequest):
        Rounds(llama, check=True).decoder.set_exact(width, least)


def test_no_row_is_thrown_away_where_the_memory_can_not_be_cut(tiny: Tiny) -> None:
    with Model(str(tiny("mamba"))) as model, pytest.raises(InvalidRequest, match="can't be thrown away"):
        Rounds(model, check=True).decoder.set_exact(4, 2)


def test_company_is_thrown_away(llama: Model) -> None:
    """Every sequence gets as many rows as the longest, and the memory holds what was committed."""
    rounds = Rounds(llama, check=True)
    decoder = rounds.decoder
    decoder.set_exact(12, 2)
    for seq, prompt in enumerate(([5, 6, 7], [9, 10])):
        rounds.begin(seq, prompt)
        rounds.read(seq)
    before = decoder.counts()["target_rows"]
    decoder.plan(0)
    decoder.verify()
    assert decoder.counts()["target_rows"] == before + 2 and decoder.last_decode()[0] == 1
    decoder.plan(0)
    decoder.plan(1, budget=4)
    decoder.offer(1, [1, 2, 3, 4])
    decoder.verify()  # and the invariants are checked
    assert decoder.counts()["target_rows"] == before + 12 and decoder.last_decode()[0] == 6
    assert decoder.result(0)[1] == 0 and len(decoder.result(0)[0]) == 1


def spoilt(rounds: Rounds) -> None:
    """A round after which the watched row is not what it would be alone: a cell in front of it has gone."""
    decoder = rounds.decoder
    rounds.begin(0, list(range(20, 60)))
    rounds.read(0)
    decoder.plan(0, budget=3)
    decoder.offer(0, [1, 1, 1])
    decoder.watch(0)
    decoder.verify()
    assert rounds.context.memory.seq_rm(0, 10, 11)


def test_a_difference_is_found(llama: Model) -> None:
    rounds = Rounds(llama, check=False)
    rounds.decoder.set_exact(8, 2)
    spoilt(rounds)
    assert rounds.decoder.compare_watched() is False
    assert rounds.decoder.counts()["spot_differences"] == 1


def test_a_difference_is_loud_where_invariants_are_checked(llama: Model) -> None:
    rounds = Rounds(llama, check=True)
    rounds.decoder.set_exact(8, 2)
    spoilt(rounds)
    with pytest.raises(AssertionError, match="not what it is alone"):
        rounds.decoder.compare_watched()


def test_nothing_to_compare(llama: Model) -> None:
    rounds = Rounds(llama, check=True)
    decoder = rounds.decoder
    decoder.set_exact(8, 2)
    assert decoder.compare_watched() is None
    rounds.begin(0, [5, 6, 7])
    rounds.read(0)
    decoder.watch(0)
    decoder.plan(0)
    decoder.verify()
    assert decoder.compare_watched() is None  # as few rows as there may be
    assert decoder.counts()["spot_checks"] == 0


def test_a_check_that_is_stopped_costs_nothing_but_time(llama: Model) -> None:
    """An abort between the round and the check: the text goes on as it would have."""

    def write(stop: bool) -> list[int]:
        rounds = Rounds(llama, check=True, n_seq=1)
        decoder = rounds.decoder
        decoder.set_exact(8, 2)
        rounds.begin(0, [5, 6, 7])
        rounds.read(0)
        for i in range(6):
            while decoder.pending(0):
                rounds.read(0)
            decoder.plan(0, budget=2)
            decoder.offer(0, [1, 2])
            decoder.watch(0)
            decoder.verify()
            if stop and i == 2:
                rounds.context.abort()
                assert decoder.compare_watched() is None
                rounds.context.clear_abort()
                assert decoder.pending(0)
            else:
                assert decoder.compare_watched()
        return decoder.tokens(0)  # type: ignore[no-any-return]

    assert write(True)[:8] == write(False)[:8]
