"""Speculators as dictionaries and TOML, and back."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from pyspec import DraftModel, GrammarDrafts, InvalidRequest, NGramCache, NGramMapK, NGramMapK4V, NGramMod, NGramSimple
from pyspec.speculation.settings import from_settings, read_toml, to_settings
from pyspec.speculation.specs import speculators_from

SPECS = [
    NGramMod(n_match=16, n_max=32, n_min=4),
    NGramSimple(size_n=4),
    NGramMapK(min_hits=2),
    NGramMapK4V(size_m=8),
    NGramCache(n_draft=5),
    GrammarDrafts(n_max=4, n_min=2),
    DraftModel("draft.gguf", n_max=7, n_min=2, p_min=0.25, n_ctx=512, sync="replay", type_k="q8_0"),
]


def test_a_round_trip_loses_nothing() -> None:
    assert from_settings(to_settings(SPECS)) == SPECS


def test_what_is_left_out_has_its_default() -> None:
    assert from_settings([{"type": "ngram-mod"}]) == [NGramMod()]


def test_none_is_no_speculation() -> None:
    assert from_settings([{"type": "none"}]) == [] == from_settings([])


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ([{"type": "none"}, {"type": "ngram-mod"}], "none"),
        ([{"type": "none", "n_max": 3}], "none"),
        ([{"type": "ngram-mod", "n_matsch": 3}], "n_matsch"),
        ([{"type": "n-gram"}], "n-gram"),
        ([{}], "None"),
        ([{"type": "draft-magic"}], "draft-magic"),
        ([{"type": "draft-eagle3"}], "path"),
        ([{"type": "draft-mtp", "sync": "replay"}], "sync"),
        ([{"type": "draft-simple"}], "path"),
        ([{"type": "draft-simple", "path": "a.gguf", "n_min": 4, "n_max": 3}], "n_min"),
        ([{"type": "draft-simple", "path": "a.gguf", "p_min": "high"}], "p_min"),
    ],
)
def test_settings_that_can_not_be(settings: list[dict[str, Any]], named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        from_settings(settings)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib came with Python 3.11")
def test_toml(tmp_path: Path) -> None:
    path = tmp_path / "speculation.toml"
    path.write_text(
        '[[speculators]]\ntype = "ngram-mod"\nn_match = 16\n'
        '[[speculators]]\ntype = "draft-simple"\npath = "draft.gguf"\nn_max = 8\n'
    )
    assert read_toml(path) == [NGramMod(n_match=16), DraftModel("draft.gguf", n_max=8)]
    path.write_text("speculators = 3 = 4")
    with pytest.raises(InvalidRequest, match="no TOML"):
        read_toml(path)
    path.write_text("[[speculator]]\n")
    with pytest.raises(InvalidRequest, match="unknown keys: speculator"):
        read_toml(path)


def test_an_ngram_type_is_there_once() -> None:
    for speculators in ([NGramSimple(), NGramSimple(size_n=3)], [NGramMod(), NGramSimple(), NGramMod()]):
        with pytest.raises(InvalidRequest, match=r"ngram-(simple|mod) is there twice"):
            speculators_from(speculators, None)
