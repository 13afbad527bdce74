"""The parameters of the n-gram speculators."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from ngram_stage import SIZED

from pyspec._ngram import NGramCacheRunner, NGramModRunner, NGramSimpleRunner, Rehearsal
from pyspec.errors import InvalidRequest
from pyspec.speculation import NGramCache, NGramMapK, NGramMapK4V, NGramMod, NGramSimple

SIZED_CONFIGS = [NGramSimple, NGramMapK, NGramMapK4V]
CONFIGS = [*SIZED_CONFIGS, NGramMod, NGramCache]

every = pytest.mark.parametrize("config", CONFIGS)


def test_defaults_are_llama_cpps() -> None:
    for config in SIZED_CONFIGS:
        assert config().to_dict() == {"size_n": 12, "size_m": 48, "min_hits": 1}
    assert NGramMod().to_dict() == {"n_match": 24, "n_max": 64, "n_min": 48, "shared": False}
    assert NGramCache().n_draft == 8


@every
def test_round_trip(config: Any) -> None:
    assert config(**config().to_dict()) == config()


def test_round_trip_of_other_values(tmp_path: Any) -> None:
    for changed in (
        NGramSimple(size_n=3, size_m=5, min_hits=2),
        NGramMod(n_match=1, n_max=1024, n_min=0, shared=True),
        NGramCache(n_draft=3, lookup_cache_static=tmp_path / "a", lookup_cache_dynamic="b", save_dynamic=True),
    ):
        assert type(changed)(**changed.to_dict()) == changed


@every
def test_frozen_and_by_name_only(config: Any) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        config().n_match = 3
    with pytest.raises(TypeError):
        config(3)
    with pytest.raises(TypeError):
        config(unknown=3)


@every
def test_what_is_built(config: Any) -> None:
    runner = config().build(3)
    assert runner.name == config.kind
    assert (runner.n_max, runner.n_min) == (config().n_max, config().n_min)
    Rehearsal(runner, 3)


def test_the_parameters_arrive() -> None:
    for config in SIZED_CONFIGS:
        assert config(size_m=5).n_max == config(size_m=5).build(1).n_max == 5
    assert NGramMod(n_max=9, n_min=4).build(1).n_min == 4
    assert NGramMod(shared=True).build(1).shared
    assert NGramCache(n_draft=2).build(1).n_max == NGramCache(n_draft=2).n_max == 2


BAD = [
    *((config, {name: value}) for config in SIZED_CONFIGS for name in ("size_n", "size_m") for value in (0, -1, 1025)),
    *((config, {"min_hits": value}) for config in SIZED_CONFIGS for value in (0, -1)),
    *((NGramMod, {"n_match": value}) for value in (0, 1025)),
    *((NGramMod, {"n_max": value}) for value in (0, 1025)),
    *((NGramMod, {"n_min": value}) for value in (-1, 1025)),
    (NGramMod, {"n_max": 10}),
    (NGramMod, {"n_max": 10, "n_min": 11}),
    (NGramMod, {"shared": 1}),
    *((NGramCache, {"n_draft": value}) for value in (0, 1025, 8.0, True, "8")),
    (NGramCache, {"lookup_cache_static": 3}),
    (NGramCache, {"save_dynamic": True}),
    (NGramCache, {"save_dynamic": "yes", "lookup_cache_dynamic": "x"}),
]


@pytest.mark.parametrize(("config", "settings"), BAD)
def test_what_cannot_work_is_refused(config: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as error:
        config(**settings)
    assert error.value.name in {*settings, "n_min"}
    assert str(error.value.name) in str(error.value)


def test_the_compiled_classes_check_too() -> None:
    """A size of 0 or of a billion must not reach the tables."""
    for runner in SIZED.values():
        for settings in ({"size_n": 0}, {"size_n": 1025}, {"size_m": 0}, {"size_m": 2**30}):
            with pytest.raises(InvalidRequest):
                runner(1, **settings)
    for settings in ({"n_match": 0}, {"n_max": 0}, {"n_min": 65}, {"n_min": -1}):
        with pytest.raises(InvalidRequest):
            NGramModRunner(1, **settings)
    with pytest.raises(InvalidRequest):
        NGramCacheRunner(1, n_draft=0)
    with pytest.raises(InvalidRequest):
        NGramCacheRunner(1, teach=True)


def test_a_rehearsal_checks_what_it_is_given() -> None:
    stage = Rehearsal(NGramSimpleRunner(1))
    with pytest.raises(InvalidRequest):
        stage.feed([1, -1])
    with pytest.raises(InvalidRequest):
        stage.verify([1])
    stage.feed([1])
    with pytest.raises(InvalidRequest):
        stage.verify([])
    with pytest.raises(InvalidRequest):
        stage.propose(3, seq=1)
    with pytest.raises(InvalidRequest):
        Rehearsal(NGramSimpleRunner(1), 2)
