"""The fixture `tiny`, for conftest.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import tiny_heads  # noqa: F401  (its models are among tiny_models.WRITERS then)
import tiny_models


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Path of a tiny model by name, see tiny_models.WRITERS."""
    folder = tmp_path_factory.mktemp("tiny")
    return lambda name: tiny_models.write(name, folder)
