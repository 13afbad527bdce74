"""A benchmark's results as a picture: speed-up by draft length, acceptance by position."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspec.bench.report import Report
from pyspec.bench.summary import ALL, Figures
from pyspec.errors import InvalidRequest

FORMATS = (".png", ".svg")


def check_plot(path: Path) -> None:
    """Refuses what `plot` can't do, before anything has been measured.

    Raises:
        InvalidRequest: another format than PNG or SVG, no such directory, or matplotlib is not installed.
    """
    if path.suffix.lower() not in FORMATS:
        raise InvalidRequest(f"a plot is a .png or .svg file, not {path.name!r}", name="plot", value=path)
    if not path.parent.is_dir():
        raise InvalidRequest(f"there is no directory {str(path.parent)!r}", name="plot", value=path)
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise InvalidRequest(
            "a plot needs matplotlib: python -m pip install 'pyspec[bench]'", name="plot", value=path
        ) from None


def plot(report: Report, path: Path) -> None:
    """Writes the picture: a column for each kind of prompt, above it how fast, below what was accepted.

    Raises:
        InvalidRequest: as `check_plot`.
        OSError: the file can't be written.
    """
    check_plot(path)
    from matplotlib.figure import Figure

    kinds = [kind for kind in dict.fromkeys(entry.kind for entry in report.figures) if kind != ALL]
    figure = Figure(figsize=(1.5 + 3.1 * len(kinds), 6.5), layout="constrained")
    axes = figure.subplots(2, len(kinds), squeeze=False, sharey="row")
    speculating = [setting for setting in report.plan.settings if not setting.is_plain]
    colors = {kind: f"C{i % 10}" for i, kind in enumerate(dict.fromkeys(s.kind for s in speculating))}
    for column, kind in enumerate(kinds):
        entries = {entry.setting: entry for entry in report.figures if entry.kind == kind}
        _speed_up(axes[0][column], report, entries, colors)
        _acceptance(axes[1][column], report, entries, colors)
        axes[0][column].set_title(kind)
        axes[0][column].set_xlabel("longest draft")
        axes[1][column].set_xlabel("position in the draft")
    top = max((entry.ratio for entry in report.figures if entry.ratio is not None), default=1.0)
    axes[0][0].set_ylim(0.0, 1.05 * max(top, 1.0))  # for the whole row
    axes[0][0].set_ylabel("speed, plain decoding = 1")
    axes[1][0].set_ylabel("accepted share")
    handles: dict[str, Any] = {}
    for axis in axes.flat:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.legend(handles.values(), handles.keys(), loc="outside right upper", frameon=False)
    title = " with ".join(_names(report))
    figure.suptitle(f"{title}{', synthetic acceptance' if report.synthetic else ''}")
    figure.savefig(path, dpi=120)


def _speed_up(axis: Any, report: Report, entries: dict[str, Figures], colors: dict[str, str]) -> None:
    """A line for each kind of speculator over its draft lengths; a level for what has no fixed length."""
    axis.axhline(1.0, color="grey", linewidth=1, linestyle=":", label="plain")
    lines: dict[str, list[tuple[int, float]]] = {}
    for setting in report.plan.settings:
        ratio = entries[setting.name].ratio
        if setting.is_plain or ratio is None:
            continue
        if setting.n_max is not None:
            lines.setdefault(setting.kind, []).append((setting.n_max, ratio))
        else:
            axis.axhline(ratio, color=colors[setting.kind], linestyle="--", label=setting.name)
    for kind, points in lines.items():
        axis.plot(*zip(*sorted(points), strict=True), "o-", color=colors[kind], markersize=5, label=kind)
    if lines:
        longest = max(length for points in lines.values() for length, _ in points)
        lengths = [2**i for i in range(longest.bit_length() + 1)]
        axis.set_xscale("log", base=2)
        axis.set_xticks(lengths, [str(length) for length in lengths])
        axis.set_xlim(0.9, 1.1 * longest)
        axis.minorticks_off()


def _acceptance(axis: Any, report: Report, entries: dict[str, Figures], colors: dict[str, str]) -> None:
    """For each kind of speculator the setting with the longest drafts."""
    longest: dict[str, Sequence[float]] = {}
    for setting in report.plan.settings:
        shares: Sequence[float] = entries[setting.name].acceptance_per_position
        if len(shares) > len(longest.get(setting.kind, ())):
            longest[setting.kind] = shares
    for kind, shares in longest.items():
        axis.plot(range(1, len(shares) + 1), shares, ".-", color=colors[kind], label=kind)
    axis.set_ylim(0.0, 1.03)
    axis.xaxis.get_major_locator().set_params(integer=True)


def _names(report: Report) -> list[str]:
    """File names of the models that took part."""
    configs = report.engines.values()
    paths = [config[role]["path"] for config in configs for role in ("target", "draft") if config[role] is not None]
    return list(dict.fromkeys(Path(path).stem for path in paths))
