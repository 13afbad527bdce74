"""Why rows differ: the measurement again with one thing switched at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pyspec._llama import Model
from pyspec.buildinfo import build_info
from pyspec.exactness.invariance import RowInvariance
from pyspec.exactness.mode import CONTEXT_SETTINGS
from pyspec.exactness.store import measured


@dataclass(frozen=True)
class Variant:
    """A measurement under settings of which one or two are other than was asked for.

    Attributes:
        name: what was switched, in words; "as given" where nothing was.
        changed: the settings that are different.
        found: what was measured.
    """

    name: str
    changed: dict[str, Any]
    found: RowInvariance


def variants(settings: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What can be switched while the program runs: (in words, the settings that change)."""
    yield "as given", {}
    full = settings["type_v"] in ("f32", "f16", "bf16")
    if settings["flash_attn"] != "off" and full:
        yield "without flash attention", {"flash_attn": "off"}
    if settings["flash_attn"] != "off" and settings["type_k"] == settings["type_v"] == "f16":
        yield "V cache in bf16", {"type_v": "bf16"}
    if settings["use_extra_bufts"]:
        yield "without repacking", {"use_extra_bufts": False}
        if settings["flash_attn"] != "off" and settings["type_k"] == settings["type_v"] == "f16":
            yield "without repacking, V cache in bf16", {"use_extra_bufts": False, "type_v": "bf16"}


def compare_causes(
    load: Callable[[bool], Model],
    settings: dict[str, Any],
    *,
    progress: Callable[[str, float], None] | None = None,
    remeasure: bool = False,
    **options: Any,
) -> list[Variant]:
    """Measures a model under its settings, and with each thing switched that can be.

    Args:
        load: opens the model, with weights repacked or not; it is closed here.
        settings: use_extra_bufts, and parameters of a context.
        progress: called with what is measured, and the share of it that is done.
        remeasure: do not look whether it was measured before.
        **options: n_rows, n_slots, n_ctx and prompt_rows of `row_invariance`.
    """
    found: list[Variant] = []
    opened: dict[bool, Model] = {}
    try:
        for name, changed in sorted(variants(settings), key=lambda v: "use_extra_bufts" in v[1]):
            its = {**settings, **changed}
            repacked = bool(its["use_extra_bufts"])
            if repacked not in opened:
                for model in opened.values():
                    model.close()
                opened = {repacked: load(repacked)}
            found.append(
                Variant(
                    name,
                    changed,
                    measured(
                        opened[repacked],
                        remeasure=remeasure,
                        progress=None if progress is None else _named(progress, name),
                        **options,
                        **{key: its[key] for key in CONTEXT_SETTINGS},
                    ),
                )
            )
    finally:
        for model in opened.values():
            model.close()
    return found


def _named(progress: Callable[[str, float], None], name: str) -> Callable[[str, float], None]:
    return lambda _, done: progress(name, done)


def conclusions(found: list[Variant]) -> list[str]:
    """What follows from the variants, in sentences."""
    given = found[0].found
    lines: list[str] = []
    first = given.first_difference()
    if first is None:
        return [f"Every row of decodes of up to {given.limit} rows is, to the bit, the row alone."]
    lines.append(
        f"From {first.rows[0]} rows on logits differ from the row alone by up to {_largest(given):.3g}; "
        f"{_flips(given)} of {_compared(given)} best tokens are other ones."
    )
    depths = sorted({c.depth for c in given.comparisons if c.reference == 1})
    shallow = [d for d in depths if all(c.exact for c in given.comparisons if c.reference == 1 and c.depth == d)]
    if shallow and len(shallow) < len(depths):
        lines.append(
            f"It depends on depth: behind {', '.join(map(str, shallow))} tokens everything is equal, behind "
            f"{', '.join(str(d) for d in depths if d not in shallow)} it is not."
        )
    for variant in found[1:]:
        if variant.found.width > given.width:
            lines.append(f"{variant.name[0].upper()}{variant.name[1:]} it is exact up to {variant.found.width} rows.")
    best = max(variant.found.width for variant in found)
    if best == 1 and build_info()["llamafile"]:
        lines.append(
            "Nothing that can be switched here makes two rows exact. The CPU backend has llamafile's matrix kernels, "
            "which compute F32 and F16 weights in another way from two rows on; with PYSPEC_LLAMAFILE=0 in the "
            "environment another one is loaded, which has not."
        )
    if given.width == 1 and given.paired_width > 2:
        lines.append(
            f"Among decodes of 2 to {given.paired_width} rows all are equal: exact mode decodes no row alone."
        )
    return lines


def _largest(found: RowInvariance) -> float:
    return max((c.largest for c in found.comparisons if c.reference == 1), default=0.0)


def _flips(found: RowInvariance) -> int:
    return sum(c.flips for c in found.comparisons if c.reference == 1 and not c.exact)


def _compared(found: RowInvariance) -> int:
    return sum(c.compared for c in found.comparisons if c.reference == 1 and not c.exact)
