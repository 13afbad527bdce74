"""What speculation did: tables for people, plain values for programs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from rich import box
from rich.bar import Bar
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pyspec.engine import EngineConfig, Result
from pyspec.sampling import SamplingParams
from pyspec.speculation import Stats


@dataclass(frozen=True)
class Comparison:
    """A speculative run beside a plain one of the same request.

    Attributes:
        identical: whether both gave the same tokens (as many as both have, where one was interrupted).
        compared: how many tokens that were.
        first_difference: index of the first token that differs, or None.
        speedup: tokens per second, as a multiple of plain decoding's; None where one of them has none.
    """

    identical: bool
    compared: int
    first_difference: int | None
    speedup: float | None

    @classmethod
    def of(cls, plain: Result, result: Result) -> Comparison:
        """Compares two results."""
        ids = [plain.token_ids, result.token_ids]
        if "cancelled" in (plain.finish_reason, result.finish_reason):
            shorter = min(map(len, ids))
            ids = [tokens[:shorter] for tokens in ids]
        first = next((i for i, (a, b) in enumerate(zip_longest(*ids)) if a != b), None)
        return cls(
            identical=first is None,
            compared=max(map(len, ids)),
            first_difference=first,
            speedup=_ratio(result.stats.tokens_per_second, plain.stats.tokens_per_second),
        )


def as_json(result: Result, sampling: SamplingParams, config: EngineConfig, plain: Result | None) -> dict[str, Any]:
    """Everything about a run, as values that JSON has."""
    document = result.to_dict()
    document["sampling"] = sampling.to_dict()
    document["config"] = config.to_dict()
    if plain is not None:
        document["plain"] = plain.to_dict()
        document["comparison"] = asdict(Comparison.of(plain, result))
    values: dict[str, Any] = _finite(document)
    return values


def _finite(value: Any) -> Any:
    """JSON has no infinities. A bias of -inf is written ``false``, a logarithm of 0 ``null``."""
    if isinstance(value, dict):
        if "logit_bias" in value:
            bias = {str(k): False if b == -math.inf else b for k, b in value["logit_bias"].items()}
            value = {**value, "logit_bias": bias}
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def tables(
    result: Result, config: EngineConfig, sampling: SamplingParams, plain: Result | None = None
) -> RenderableType:
    """The tables shown after a run; with ``plain``, both runs side by side. The upshot comes last."""
    stats = result.stats
    parts: list[RenderableType] = [_headline(result, config, sampling)]
    if stats.drafted:
        parts.append(_acceptance(stats))
    if stats.rounds:
        parts.append(_times(stats))
    parts.append(_summary(stats, plain.stats if plain else None))
    if result.synthetic:
        parts.append(Text("Acceptance was drawn at random: this is not the model's text.", style="yellow"))
    elif plain is not None:
        parts.append(_verdict(plain, result))
    return Group("", *(line for part in parts for line in (part, "")))


def _headline(result: Result, config: EngineConfig, sampling: SamplingParams) -> Text:
    """What ran, and how it ended."""
    who = Path(config.target.path).name
    if config.speculators:
        who += f"; up to {config.n_draft_max} tokens drafted by {', '.join(config.speculators)}"
    if config.draft is not None:
        who += f" ({Path(config.draft.path).name})"
    end = {"length": "token limit reached", "cancelled": "interrupted", "stop": "the model ended the text"}
    if isinstance(result.stop, str):
        end["stop"] = f"stopped at {result.stop!r}"
    threads = f"{config.target.n_threads} thread{'s' if config.target.n_threads != 1 else ''}"
    chance = "greedy" if sampling.is_greedy else f"seed {result.seed}"
    return Text(f"{who}; {threads}; {chance}; {end[result.finish_reason]}", style="dim")


def _table(*headers: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim", show_header=any(headers))
    table.add_column(headers[0], style="dim", no_wrap=True)
    for header in headers[1:]:
        table.add_column(header, justify="right", no_wrap=True)
    return table


def _summary(stats: Stats, plain: Stats | None) -> Table:
    """Speed, tokens and rounds."""
    table = _table("", "plain", "speculative", "ratio") if plain else _table("", "")
    rows: list[tuple[str, Callable[[Stats], float], str, bool]] = [
        ("tokens per second", lambda s: s.tokens_per_second, "{:.1f}", True),
        ("tokens per round", lambda s: s.tokens_per_round, "{:.2f}", True),
        ("rounds", lambda s: s.rounds, "{:,}", False),
        ("tokens", lambda s: s.completion_tokens, "{:,}", False),
        ("seconds", lambda s: s.decode_ms / 1000, "{:.2f}", False),
        ("prompt tokens per second", lambda s: s.prompt_tokens_per_second, "{:.1f}", False),
    ]
    for number, (label, value, form, compared) in enumerate(rows):
        cells = [form.format(value(stats)) if value(stats) else "-"]
        if plain is not None:
            ratio = _ratio(value(stats), value(plain)) if compared else None
            cells = [form.format(value(plain)), *cells, "" if ratio is None else f"{ratio:.2f}x"]
        if number == 0:
            cells[-1] = f"[bold]{cells[-1]}[/]"
        table.add_row(label, *cells)
    return table


def _acceptance(stats: Stats) -> Table:
    """Drafted and accepted tokens, all together and by position in the draft."""
    table = _table("drafts", "drafted", "accepted", "rate")
    table.add_column("", no_wrap=True)
    table.add_row("all", f"{stats.drafted:,}", f"{stats.accepted:,}", f"[bold]{stats.acceptance:.1%}[/]")
    if len(stats.speculators) > 1:
        for name, each in stats.speculators.items():
            share = f"{each.accepted / each.drafted:.1%}" if each.drafted else ""
            table.add_row(f"by {name}", f"{each.drafted:,}", f"{each.accepted:,}", share)
    positions = zip(stats.drafted_per_position, stats.accepted_per_position, strict=True)
    for number, (drafted, accepted) in enumerate(positions, 1):
        rate = accepted / drafted
        table.add_row(
            f"token {number}",
            f"{drafted:,}",
            f"{accepted:,}",
            f"{rate:.1%}",
            Bar(1, 0, rate, width=20, color="green"),
        )
    for label, count in (
        ("rounds without a draft", stats.rounds_without_draft),
        ("discarded, shorter than n_min", stats.discarded),
        ("refused by the grammar", stats.refused),
        ("failures of a speculator", stats.draft_failures),
    ):
        if count:
            table.add_row(label, f"{count:,}")
    return table


def _times(stats: Stats) -> RenderableType:
    """Where the time after the prompt went, and the rows both models evaluated."""
    table = _table("time", "ms per round", "ms", "share", "rows")
    rows = [("draft", stats.draft_ms, stats.draft_rows)] if stats.draft_calls or stats.draft_ms else []
    rows += (
        [("verify", stats.verify_ms, stats.target_rows)] if rows else [("decode", stats.verify_ms, stats.target_rows)]
    )
    rows += [("sampling", stats.sampling_ms, 0)]
    rows += [("grammar", stats.grammar_ms, 0)] if stats.grammar_ms else []
    rows += [("Python", stats.python_ms, 0)]
    for label, ms, evaluated in rows:
        share = ms / stats.decode_ms if stats.decode_ms else 0.0
        table.add_row(
            label,
            f"{ms / stats.rounds:.2f}",
            f"{ms:,.1f}",
            f"{share:.1%}",
            f"{evaluated:,}" if evaluated else "",
        )
    table.add_section()
    table.add_row("all", f"{stats.decode_ms / stats.rounds:.2f}", f"{stats.decode_ms:,.1f}", "", style="dim")
    note = f"rows include the prompt; {stats.overhead:.2%} of the time was spent outside libllama"
    return Group(table, Text(note, style="dim"))


def _verdict(plain: Result, result: Result) -> Text:
    """Whether the two texts are the same, in a sentence."""
    comparison = Comparison.of(plain, result)
    if comparison.identical:
        tokens = f"{comparison.compared} token{'s' if comparison.compared != 1 else ''}"
        return Text(f"The texts are identical ({tokens}).", style="green")
    return Text(
        f"The texts differ from token {comparison.first_difference} on (of {comparison.compared}, from 0). "
        "Where two choices are nearly tied, it can matter that a backend rounds a row otherwise in a batch.",
        style="yellow",
    )


def _ratio(value: float, reference: float) -> float | None:
    return value / reference if value and reference else None
