"""Requests that begin like an earlier one go on from what it left, with the same text, on every kind of memory."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyspec import DraftModel, Engine, InvalidRequest, NGramSimple, Result, SamplingParams, StateError
from pyspec.engine.prefixes import PrefixCache, Saved, common_prefix

KINDS = ["llama", "gemma3", "mamba", "qwen35"]
CAN_CUT = {"llama"}
OPTIONS: dict[str, Any] = {
    "type_k": "f32", "type_v": "f32", "flash_attn": "off", "n_ctx": 256, "n_threads": 1, "prefix_reuse": True,
}  # fmt: skip
GREEDY = SamplingParams(temperature=0.0, max_tokens=12)
SEEDED = SamplingParams(temperature=0.8, seed=2, max_tokens=12, penalty_repeat=1.3)
PROMPT = [(31 * i + 7) % 256 for i in range(60)]


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def plain(kind: str, tiny: Callable[[str], Path]) -> Iterator[Callable[..., Result]]:
    with Engine(tiny(kind), speculation=None, **{**OPTIONS, "prefix_reuse": False}) as engine:
        yield engine.generate


@pytest.fixture
def opened(kind: str, tiny: Callable[[str], Path]) -> Iterator[Callable[..., Engine]]:
    engines: list[Engine] = []

    def open_engine(**options: Any) -> Engine:
        engines.append(Engine(tiny(kind), **{"speculation": NGramSimple(size_n=1), **OPTIONS, **options}))
        return engines[-1]

    yield open_engine
    for engine in engines:
        engine.close()


def test_the_next_turn(opened: Callable[..., Engine], plain: Callable[..., Result]) -> None:
    """Prompt, answer and a new question: only the question, and the answer's last token, are read."""
    engine = opened()
    tokens = list(PROMPT)
    for turn in range(4):
        result = engine.generate(tokens, GREEDY)
        assert result.token_ids == plain(tokens, GREEDY).token_ids
        if turn:
            assert result.stats.cached_tokens == len(tokens) - 5 - 1
        tokens += [*result.token_ids, *(turn + i for i in range(5))]
    assert engine.stats().cached_tokens > 0


def test_the_same_prompt_again(kind: str, opened: Callable[..., Engine], plain: Callable[..., Result]) -> None:
    engine = opened()
    for params in (GREEDY, SEEDED, GREEDY):
        result = engine.generate(PROMPT, params)
        assert result.token_ids == plain(PROMPT, params).token_ids
    assert result.stats.cached_tokens == (len(PROMPT) - 1 if kind in CAN_CUT else 0)


def test_a_draft_model_goes_on_too(
    kind: str, opened: Callable[..., Engine], plain: Callable[..., Result], tiny: Callable[[str], Path]
) -> None:
    engine = opened(speculation=DraftModel(tiny(kind), n_max=4))
    tokens = list(PROMPT)
    rows = []
    for _ in range(3):
        result = engine.generate(tokens, GREEDY)
        assert result.token_ids == plain(tokens, GREEDY).token_ids
        assert result.stats.acceptance > 0.9
        rows.append(result.stats.draft_rows)
        tokens += [*result.token_ids, 3]
    assert max(rows[1:]) < rows[0] - 40  # the prompt was read once


@pytest.mark.parametrize("n_slots", [1, 2, 3])
def test_any_order(kind: str, opened: Callable[..., Engine], plain: Callable[..., Result], n_slots: int) -> None:
    """Prompts that share beginnings, in any order: slots and cache never give one what is another's."""
    rng = random.Random(n_slots)
    engine = opened(n_slots=n_slots)
    stems = [[rng.randrange(256) for _ in range(50)] for _ in range(3)]
    for _ in range(30):
        stem = rng.choice(stems)
        prompt = stem[: rng.randrange(1, 51)] + [rng.randrange(4) for _ in range(rng.randrange(8))]
        params = rng.choice((GREEDY, SEEDED))
        assert engine.generate(prompt, params).token_ids == plain(prompt, params).token_ids
    if kind in CAN_CUT:
        assert engine.stats().cached_tokens > 100


def test_the_cache_holds_what_slots_lost(opened: Callable[..., Engine], plain: Callable[..., Result]) -> None:
    """Three conversations in one slot."""
    engine = opened()
    talks = [[(start + 5 * i) % 256 for i in range(60)] for start in (1, 2, 3)]
    for turn in range(3):
        for talk in talks:
            result = engine.generate(talk, GREEDY)
            assert result.token_ids == plain(talk, GREEDY).token_ids
            assert (result.stats.cached_tokens > 50) == (turn > 0)
            talk += [*result.token_ids, turn]
    stats = engine.stats()
    assert stats.prefix_hits == 6 and stats.prefix_entries >= 2
    assert 0 < stats.prefix_bytes <= 256 << 20


def test_one_slot_goes_on_but_not_back(opened: Callable[..., Engine]) -> None:
    """By default the same requests in the same order read the same tokens again."""
    engine = opened(prefix_reuse=None)
    first = engine.generate(PROMPT, GREEDY)
    again = engine.generate(PROMPT, GREEDY)
    assert (first.stats.cached_tokens, again.stats.cached_tokens) == (0, 0)
    longer = engine.generate([*PROMPT, *again.token_ids, 1], GREEDY)
    assert longer.stats.cached_tokens == len(PROMPT) + len(again.token_ids) - 1


def test_without_reuse(opened: Callable[..., Engine]) -> None:
    engine = opened(prefix_reuse=False)
    for _ in range(2):
        assert engine.generate(PROMPT, GREEDY).stats.cached_tokens == 0
    assert engine.stats().slots[0].n_tokens == 0


def test_the_window_that_has_moved_on(tiny: Callable[[str], Path]) -> None:
    """A sliding window holds its last positions only: going back further means reading again."""
    with (
        Engine(tiny("gemma3"), speculation=None, **OPTIONS) as engine,
        Engine(tiny("gemma3"), speculation=None, **{**OPTIONS, "prefix_reuse": False}) as plain,
    ):
        for n in (200, 150, 31, 20, 33, 60, 20):
            prompt = [(7 * i) % 256 for i in range(n)]
            assert engine.generate(prompt, GREEDY).token_ids == plain.generate(prompt, GREEDY).token_ids


# -- files -----------------------------------------------------------------------------------------------------------


def test_saved_and_loaded(
    kind: str, opened: Callable[..., Engine], plain: Callable[..., Result], tmp_path: Path
) -> None:
    path = tmp_path / "prefix"
    assert opened().save_prefix(PROMPT, path) == path.stat().st_size
    engine = opened(n_slots=2)
    assert engine.load_prefix(path) == PROMPT
    longer = [*PROMPT, 1, 2, 3]
    result = engine.generate(longer, SEEDED)
    assert result.token_ids == plain(longer, SEEDED).token_ids
    assert result.stats.cached_tokens == len(PROMPT)
    assert [p.name for p in tmp_path.iterdir()] == ["prefix"]


def test_a_file_of_another_model(
    kind: str, opened: Callable[..., Engine], tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    path = tmp_path / "prefix"
    with Engine(tiny("llama-tied"), speculation=None, **OPTIONS) as other:
        other.save_prefix(PROMPT, path)
    engine = opened()
    with pytest.raises(StateError, match="another model: its"):
        engine.load_prefix(path)
    with pytest.raises(FileNotFoundError):
        engine.load_prefix(tmp_path / "missing")
    with pytest.raises(FileNotFoundError, match="no folder"):
        engine.save_prefix(PROMPT, tmp_path / "nowhere" / "prefix")
    with pytest.raises(InvalidRequest, match="prefix_cache_mib"):
        opened(prefix_cache_mib=0).load_prefix(save(engine, tmp_path))
    assert engine.generate(PROMPT, GREEDY).finish_reason == "length"


def save(engine: Engine, folder: Path) -> Path:
    engine.save_prefix(PROMPT, folder / "good")
    return folder / "good"


@pytest.fixture(scope="module")
def saved_file(tiny: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Engine, Path]]:
    with Engine(tiny("llama"), speculation=None, **OPTIONS) as engine:
        yield engine, save(engine, tmp_path_factory.mktemp("saved"))


@given(st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_files(saved_file: tuple[Engine, Path], tmp_path: Path, data: st.DataObject) -> None:
    """Cut short, or with any bytes changed: an exception, and the engine goes on."""
    engine, path = saved_file
    content = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    else:
        at = data.draw(st.one_of(st.integers(0, 300), st.integers(0, len(content) - 1)))
        content[at] ^= data.draw(st.integers(1, 255))
    bad = tmp_path / "bad"
    bad.write_bytes(bytes(content))
    with pytest.raises(StateError):
        engine.load_prefix(bad)


# -- the parts -------------------------------------------------------------------------------------------------------

tokens = st.lists(st.integers(0, 2), max_size=12)


@given(tokens, tokens)
def test_common_prefix(a: list[int], b: list[int]) -> None:
    n = common_prefix(a, b)
    assert a[:n] == b[:n] and (n == min(len(a), len(b)) or a[n] != b[n])


@given(st.lists(st.tuples(tokens, st.integers(1, 50)), max_size=20), tokens)
def test_the_cache_is_bounded(entries: list[tuple[list[int], int]], prompt: list[int]) -> None:
    cache = PrefixCache(200)
    for held, size in entries:
        cache.add(Saved(tuple(held), len(held), bytes(size)))
        assert cache.size <= 200
    assert cache.size == sum(entry.size for entry in cache._entries.values())
    found, n = cache.best(prompt, lambda furthest: True)
    assert found is None or (found.tokens[:n] == tuple(prompt[:n]) and n < max(1, len(prompt)))
    found, n = cache.best(prompt, lambda furthest: False)
    assert found is None or (len(found.tokens) == n < len(prompt))
