"""Running commands of the command line in this process."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pyspec.cli import main


def run(capfd: pytest.CaptureFixture[str], *args: str, code: int = 0) -> tuple[str, str]:
    """Standard output and error of a command that has to end with ``code``."""
    capfd.readouterr()
    result = main(args)
    out, err = capfd.readouterr()
    assert result == code, f"exit code {result}\n{out}\n{err}"
    return out, err


def run_json(capfd: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(run(capfd, *args, "--json")[0])
    return document
