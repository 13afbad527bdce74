"""What tests of the trained models that come with the package share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspec import Engine, Result, SamplingParams, models
from pyspec.gguf_header import GGUFHeader, read_gguf
from pyspec.models import cache, catalog


def checked_header(name: str) -> GGUFHeader:
    """The header of a model's file, which is the one that the figures are of, and small enough to come along."""
    entry, path = catalog.SHIPPED[name], models.resolve(name)
    assert (path.stat().st_size, cache.sha256_of(path)) == (entry.size, entry.sha256)
    assert entry.size <= 12_000_000
    return read_gguf(path)


def written(target: Path, prompts: Sequence[str], params: SamplingParams, **options: Any) -> list[Result]:
    """What an engine writes to all prompts, as many at once as it has slots."""
    with Engine(target, **options) as engine:
        return [generation.result(300) for generation in [engine.submit(prompt, params) for prompt in prompts]]


def accepted_per_round(found: Sequence[Result]) -> float:
    return sum(result.stats.accepted for result in found) / sum(result.stats.rounds for result in found)
