"""A benchmark's results as tables."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pyspec.bench.report import Report
from pyspec.bench.summary import ALL, Figures, Verdict

# Positions whose acceptance is shown; the rest is in the JSON.
N_POSITIONS = 8

_COLUMNS = ("tokens/s", "ratio", "tokens", "rounds", "tok/round", "drafted", "accepted", "draft rows", "overhead",
            "same text")  # fmt: skip


def tables(report: Report) -> RenderableType:
    """A table for each kind of prompt, one over all, and the upshot."""
    kinds = list(dict.fromkeys(entry.kind for entry in report.figures))
    parts: list[RenderableType] = []
    for kind in kinds:
        parts += [_kind(kind, [entry for entry in report.figures if entry.kind == kind], report), ""]
    notes = [*_verdicts(report), *_partings(report), *_notes(report)]
    return Group("", *parts, *notes)


def _kind(kind: str, entries: list[Figures], report: Report) -> RenderableType:
    title = f"{kind} kinds (geometric mean; sums)" if kind == ALL else kind
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False,
                  show_edge=False, header_style="dim")  # fmt: skip
    table.add_column("", no_wrap=True)
    for column in _COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("accepted by position, %", no_wrap=True)
    best = max((entry.ratio or 0.0 for entry in entries), default=0.0)
    for entry in entries:
        table.add_row(*_cells(entry, report), style="bold" if entry.ratio == best else None)
    return table


def _cells(entry: Figures, report: Report) -> list[str]:
    positions = [f"{100 * share:.0f}" for share in entry.acceptance_per_position[:N_POSITIONS]]
    if len(entry.acceptance_per_position) > N_POSITIONS:
        positions.append(f"... {100 * entry.acceptance_per_position[-1]:.0f}")
    drafted = bool(entry.drafted)
    plain = entry.setting == report.plan.settings[0].name
    return [
        entry.setting,
        "-" if entry.tokens_per_second is None else f"{entry.tokens_per_second:.1f}",
        "-" if entry.ratio is None else f"{entry.ratio:.2f}",
        f"{entry.tokens:,}",
        f"{entry.rounds:,}",
        f"{entry.tokens_per_round:.2f}",
        f"{entry.drafted:,}" if drafted else "",
        f"{entry.accepted:,} ({entry.acceptance:.0%})" if drafted else "",
        f"{entry.draft_rows:,}" if entry.draft_rows else "",
        f"{entry.overhead:.1%}",
        "" if plain else "synthetic" if report.synthetic else f"{entry.same}/{entry.runs}",
        " ".join(positions),
    ]


def _verdicts(report: Report) -> list[RenderableType]:
    """Which setting won, and how auto did beside it."""
    speeds = {entry.setting: entry.tokens_per_second for entry in report.figures}  # the last ones: over all kinds
    plain = speeds[report.plan.settings[0].name]
    if plain is None:
        return [Text("No text was longer than a token: there are no speeds to compare.", style="yellow")]
    lines = []
    fixed, auto = report.best_fixed, report.auto
    if fixed is not None:
        lines.append(f"best fixed setting: {fixed.setting}, {_sentence(fixed, speeds[fixed.setting], plain)}")
    if auto is not None:
        beside = f"; {auto.ratio / fixed.ratio - 1:+.1%} beside the best fixed setting" if fixed is not None else ""
        lines.append(f"auto: {_sentence(auto, speeds[auto.setting], plain)}{beside}")
    return [Text(line, style="bold") for line in lines]


def _sentence(verdict: Verdict, speed: float | None, plain: float) -> str:
    return (
        f"{speed or 0.0:.1f} tokens/s where plain decoding has {plain:.1f} "
        f"({verdict.ratio:.2f} times; at worst {verdict.worst_ratio:.2f}, on {verdict.worst_kind})"
    )


def _partings(report: Report) -> list[RenderableType]:
    """The texts that are not plain decoding's, one by one."""
    lines: list[RenderableType] = []
    for parting in report.partings:
        where = f"{parting.setting}, {parting.kind} {parting.prompt}: another text from token {parting.at} on"
        if parting.near_tie:
            lines.append(Text(f"{where}, a near tie (gap {parting.gap:.2g})", style="dim"))
        else:
            lines.append(Text(f"{where}, and no near tie (gap {parting.gap:.2g}): please report this", style="red"))
    return lines


def _notes(report: Report) -> list[RenderableType]:
    """What has to be known to read the tables."""
    lines = [
        "tokens/s and ratio: medians of the repetitions, geometric mean of the prompts; generation only, without the "
        "prompt. overhead: share of the time outside libllama."
    ]
    for setting in report.learning:
        entry = next(e for e in reversed(report.figures) if e.setting == setting.name)
        if entry.first_ratio is not None and entry.later_ratio is not None:
            lines.append(
                f"{setting.name} learns from one request to the next: {entry.first_ratio:.2f} times plain decoding in "
                f"the first repetition, {entry.later_ratio:.2f} in those after it. A new run starts from nothing."
            )
        else:
            lines.append(
                f"{setting.name} learns from one request to the next; --repetitions 2 or more shows how much that does."
            )
    if report.synthetic:
        lines.append("Acceptance was drawn at random: the texts are not the model's.")
    return [Text(line, style="dim") for line in lines]
