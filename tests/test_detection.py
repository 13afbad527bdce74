"""Which speculator a draft file is made for, from its header."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pyspec import DraftModel, Engine, ModelLoadError, UnsupportedModel
from pyspec.speculation.detection import detect_draft

KINDS = {
    "llama": "draft-simple",
    "mamba": "draft-simple",
    "qwen35": "draft-simple",
    "eagle3": "draft-eagle3",
    "dflash": "draft-dflash",
    "dspark": "draft-dspark",
    "qwen35-mtp": "draft-mtp",
    "step35": "draft-mtp",
}


@pytest.mark.parametrize("name", KINDS)
def test_kinds(tiny: Callable[[str], Path], name: str) -> None:
    assert detect_draft(tiny(name)) == KINDS[name]


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind != "draft-simple"])
def test_another_kind_than_was_asked_for_is_named(tiny: Callable[[str], Path], name: str) -> None:
    with pytest.raises(UnsupportedModel, match=KINDS[name]):
        Engine(tiny("llama"), speculation=DraftModel(tiny(name)), n_ctx=256)


def test_no_gguf(tmp_path: Path) -> None:
    path = tmp_path / "draft.gguf"
    path.write_bytes(b"no model at all")
    with pytest.raises(ModelLoadError):
        detect_draft(path)
