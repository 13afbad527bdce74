"""What README says is true: its examples run, its promise names its condition, its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return README.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_the_examples_run(smollm2: Path, smollm2_f32: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    examples = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(examples) >= 2
    for example in examples:
        exec(compile(example, "README.md", "exec"), names)
    printed = capsys.readouterr().out
    assert "Paris" in printed
    assert names["engine"].closed
    assert names["result"].stats.accepted > 0


def test_the_promise_names_its_condition() -> None:
    promise = section("The promise about the text")
    for word in ("target", "near tie", "condition", "F32", "Q4_1", "seed"):
        assert word in promise


def test_the_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    for link in links:
        assert (ROOT / link).exists(), link


def test_nothing_was_left_to_fill_in() -> None:
    assert not re.search(r"@[A-Z_]+@", README)
