#!/usr/bin/env python3
"""What a draft vocabulary is worth: cost of a draft step, acceptance, speed, foreign scripts, two texts at once.

    make example                                        # llama.cpp's own example, to compare with
    python benchmarks/draft_vocab.py                    # everything, for both pairs; about 20 minutes
    python benchmarks/draft_vocab.py --pairs gemma3 --parts speed --repetitions 2

Greedy. The list is the one that comes with the package (`vocab="auto"`), or --list. Parts:

    step        a decode of one row of the draft model, with the whole head and with smaller ones, in turn
    acceptance  drafts of 4 tokens, on English prose, chat and code: counts, which do not depend on the machine's speed
    speed       plain decoding, fixed lengths and lengths that pay, each with the whole head and with the list, and
                llama.cpp's example, in turn on each prompt
    script      a text in a script that the list lacks
    mixed       an English text and one in that script, at once

Prints tables; writes everything it measured as JSON, into what is there already. What is there of "speed" is added to,
so that it may be measured in several goes: each prompt is a whole, with all settings.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import platform
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from example import require_example, run_example

import pyspec
from pyspec import DraftModel, Engine, Model, SamplingParams, models
from pyspec._draft_head import DraftHead
from pyspec._drafting import DraftRunner
from pyspec._llama import Context
from pyspec.bench.kinds import prompts_for
from pyspec.bench.prompts import OPENINGS, REQUESTS, chatml
from pyspec.speculation.shipped_lists import shipped_list

ROOT = Path(__file__).resolve().parent.parent
LENGTHS = (2, 4, 8)
STEP_ROWS = (8192, 16384, 32768)
SETTINGS = ("lengths", "prompts", "repetitions", "tokens", "threads")


@dataclass(frozen=True)
class Pair:
    """A target, its draft, whether they answer or go on with a text, and the beginning of a text in another script."""

    target: str
    draft: str
    chat: bool
    foreign: str


PAIRS = {
    "gemma3": Pair("gemma3-f32", "gemma3", False, "Столица России — Москва. Город стоит на реке"),
    "smollm2": Pair("smollm2-f32", "smollm2", True, chatml("Напиши по-русски короткий рассказ о смотрителе маяка.")),
}


def prompts_of(pair: Pair, kinds: Iterable[str], n: int) -> list[tuple[str, str]]:
    """(kind, text) of the first n prompts of each kind; "various" are the ten of `pyspec.bench.prompts`."""
    found = []
    for kind in kinds:
        if kind == "various":
            found += [(kind, text) for text in ([chatml(r) for r in REQUESTS] if pair.chat else OPENINGS)]
        else:
            texts = prompts_for([kind], n)
            found += [(kind, chatml(p.request) if pair.chat else p.opening) for p in texts]
    return found


def draft(pair: Pair, vocab: str | None, n_max: int = max(LENGTHS)) -> DraftModel:
    return DraftModel(models.resolve(pair.draft), n_max=n_max, vocab=vocab)


def engine(pair: Pair, speculation: DraftModel | None, args: argparse.Namespace, **options: Any) -> Engine:
    return Engine(
        models.resolve(pair.target), speculation=speculation, n_ctx=1024, n_threads=args.threads, prefix_reuse=False,
        **options,
    )  # fmt: skip


def heads(args: argparse.Namespace) -> dict[str, Any]:
    """What is compared: drafts from the whole vocabulary, and from the list."""
    return {"whole": None, "list": args.list}


def greedy(n_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=n_tokens, ignore_eos=True)


# -- the parts -------------------------------------------------------------------------------------------------------


def step(pair: Pair, args: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of a draft step by rows of its head; all sizes in turn, the whole head with each of them."""
    path = models.resolve(pair.draft)
    with Model(str(path)) as model:
        vocab = model.vocab
        shipped = shipped_list(vocab, vocab)
        ids = list(range(vocab.n_tokens)) if shipped is None else list(shipped.tokens.ids)
        ids += [token for token in range(vocab.n_tokens) if token not in set(ids)] if shipped is not None else []
        sizes = [n for n in STEP_ROWS if n < vocab.n_tokens]
        times: dict[int, list[float]] = {n: [] for n in sizes}
        ratios: dict[int, list[float]] = {n: [] for n in sizes}
        for _ in range(args.repetitions):
            for n in sizes:
                with Context(model, n_ctx=256, n_outputs_max=1, n_threads=args.threads) as context:
                    head = DraftHead(context, ids[:n])
                    runner = DraftRunner(context, vocab.n_tokens, head=head)
                    for _ in range(4):
                        whole = runner.time_decodes(1, 6, reduced=False)[2:]
                        reduced = runner.time_decodes(1, 6, reduced=True)[2:]
                        times[n] += reduced
                        times.setdefault(vocab.n_tokens, []).extend(whole)
                        ratios[n].append(median(reduced) / median(whole))
                    head.close()
    return {
        "ms": {n: round(median(its), 3) for n, its in sorted(times.items())},
        "of_whole": {n: round(median(its), 3) for n, its in ratios.items()},
    }


def acceptance(pair: Pair, args: argparse.Namespace) -> dict[str, Any]:
    """Share of drafted tokens that are accepted, with the whole head and with the list."""
    counts: dict[str, dict[str, list[int]]] = {}
    for name, vocab in heads(args).items():
        with engine(pair, draft(pair, vocab, 4), args) as opened:
            for kind, text in prompts_of(pair, ("prose", "chat", "code", "various"), 3):
                stats = opened.generate(text, greedy(args.tokens)).stats
                entry = counts.setdefault(kind, {}).setdefault(name, [0, 0, 0])
                for i, n in enumerate((stats.drafted, stats.accepted, stats.rounds)):
                    entry[i] += n
    return {kind: {name: _rate(*entry) for name, entry in by.items()} for kind, by in counts.items()}


def _rate(drafted: int, accepted: int, rounds: int) -> dict[str, float]:
    return {"drafted": drafted, "accepted": accepted, "rounds": rounds, "rate": round(accepted / drafted, 4)}


def speed(pair: Pair, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Tokens per second of every setting, by kind of prompt; once more after each prompt."""
    found: dict[str, dict[str, list[float]]] = args.before.get("tokens_per_second", {})
    now: list[tuple[str, str, float]] = []

    def note(setting: str, kind: str, tokens_per_second: float) -> None:
        now.append((setting, kind, round(tokens_per_second, 2)))

    def run(opened: Engine, setting: str, kind: str, text: str, n_max: int | None) -> None:
        stats = opened.generate(text, greedy(args.tokens), n_draft_max=n_max).stats
        note(setting, kind, (stats.completion_tokens - 1) / (stats.decode_ms - stats.draft_read_ms) * 1000)

    prompts = prompts_of(pair, args.kinds, args.prompts)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "prompt.txt"
        for _ in range(args.repetitions):
            for kind, text in prompts:
                file.write_text(text + "\n", encoding="utf-8")  # the example drops one line end
                for name, vocab in heads(args).items():
                    with engine(pair, draft(pair, vocab), args) as opened:  # one at a time: two would share processors
                        opened.generate(text, greedy(8), n_draft_max=2)
                        if name == "whole":
                            run(opened, "plain", kind, text, 0)
                        for n in args.lengths:
                            run(opened, f"{name}:{n}", kind, text, n)
                    with engine(pair, draft(pair, vocab), args, draft_length="auto") as opened:
                        opened.generate(prompts[0][1], greedy(24))
                        run(opened, f"{name}:auto", kind, text, None)
                for n in [] if args.no_llama_cpp else args.lengths:
                    options = ["-md", str(models.resolve(pair.draft)), "--spec-type", "draft-simple",
                               "--spec-draft-n-max", str(n)]  # fmt: skip
                    ran = run_example(models.resolve(pair.target), file, args.tokens, args.threads, options)
                    note(f"llama.cpp:{n}", kind, ran.n_tokens / ran.generation_s)
                for setting, its_kind, value in now:
                    found.setdefault(setting, {}).setdefault(its_kind, []).append(value)
                now.clear()
                yield summary_of(found)


def summary_of(found: dict[str, dict[str, list[float]]]) -> dict[str, Any]:
    """Of every kind of setting the best over all prompts, and how the list's compares."""
    overall = {name: _over(by_kind.values()) for name, by_kind in found.items()}
    best = {
        who: max((name for name in overall if name.startswith(who)), key=lambda name: overall[name])
        for who in ("plain", "whole", "list", "llama.cpp")
        if any(name.startswith(who) for name in overall)
    }
    return {
        "tokens_per_second": found,
        "overall": {name: round(value, 2) for name, value in overall.items()},
        "best": best,
        "list_over": {who: round(overall[best["list"]] / overall[name], 3) for who, name in best.items()},
    }


def _over(kinds: Iterable[list[float]]) -> float:
    """Tokens per second over all texts, which have one length: the harmonic mean."""
    all_runs = [value for runs in kinds for value in runs]
    return len(all_runs) / sum(1 / value for value in all_runs)


TEXTS_A_TURN = 4  # with each engine, once both are open


def script(pair: Pair, args: argparse.Namespace) -> dict[str, Any]:
    """A text in another script: seconds of the same text with the list over those without, for drafts of four tokens
    and for lengths that pay.
    """
    params = greedy(args.tokens)
    found = []
    ratios: dict[str, list[float]] = {"fixed": [], "auto": []}
    names = heads(args)
    for turn in range(args.repetitions):
        for length, its in ratios.items():
            n_max = 4 if length == "fixed" else max(LENGTHS)
            with contextlib.ExitStack() as stack:
                opened = {
                    name: stack.enter_context(engine(pair, draft(pair, vocab, n_max), args, draft_length=length))
                    for name, vocab in names.items()
                }
                for each in opened.values():
                    each.generate(pair.foreign, greedy(24))
                for text in range(TEXTS_A_TURN):
                    seconds: dict[str, float] = {}
                    for name in sorted(names, reverse=(turn + text) % 2 == 1):
                        stats = opened[name].generate(pair.foreign, params).stats
                        seconds[name] = stats.decode_ms / 1000
                        found.append({"head": name, "length": length, "decode_s": round(seconds[name], 3),
                                      "drafted": stats.drafted, "accepted": stats.accepted,
                                      "rounds": stats.rounds})  # fmt: skip
                    its.append(seconds["list"] / seconds["whole"])
    summary = {name: {"time_of_whole": round(median(its), 4), "each": [round(r, 4) for r in its]}
               for name, its in ratios.items()}  # fmt: skip
    return {"runs": found, "summary": summary}


def mixed(pair: Pair, args: argparse.Namespace) -> dict[str, Any]:
    """An English text beside one in another script: what becomes of the English one."""
    english = prompts_of(pair, ("prose",), 1)[0][1]
    found = []
    for _ in range(args.repetitions):
        for name, vocab in heads(args).items():
            for fixed in (True, False):
                length = "fixed" if fixed else "auto"
                with engine(pair, draft(pair, vocab, 4), args, n_slots=2, draft_length=length) as opened:
                    opened.generate(english, greedy(24))
                    asked = [opened.submit(text, greedy(args.tokens)) for text in (english, pair.foreign)]
                    for text, generation in zip(("english", "foreign"), asked, strict=True):
                        stats = generation.result().stats
                        found.append({
                            "head": name, "length": length, "text": text, "drafted": stats.drafted,
                            "accepted": stats.accepted, "rounds": stats.rounds,
                            "tokens_per_second": round(stats.tokens_per_second or 0.0, 2),
                        })  # fmt: skip
    summary: dict[str, Any] = {}
    for length in ("fixed", "auto"):
        for text in ("english", "foreign"):
            by_head = {
                name: median(
                    run["tokens_per_second"] for run in found
                    if (run["head"], run["length"], run["text"]) == (name, length, text)
                )
                for name in ("whole", "list")
            }  # fmt: skip
            summary[f"{length} {text}"] = {**by_head, "list_over_whole": round(by_head["list"] / by_head["whole"], 3)}
    return {"runs": found, "summary": summary}


PARTS: dict[str, Callable[[Pair, argparse.Namespace], Any]] = {
    "step": step, "acceptance": acceptance, "speed": speed, "script": script, "mixed": mixed,
}  # fmt: skip


# -- the program -----------------------------------------------------------------------------------------------------


def chosen(table: dict[str, Any]) -> Callable[[str], list[str]]:
    def read(text: str) -> list[str]:
        for name in text.split(","):
            if name not in table:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(table)}")
        return text.split(",")

    return read


def show(pair: str, part: str, result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if part == "acceptance":
        table = Table("kind", "whole head", "list", title=f"{pair}: acceptance")
        for kind, by in result.items():
            table.add_row(kind, *(f"{by[name]['rate']:.3f} of {by[name]['drafted']}" for name in ("whole", "list")))
        console.print(table)
    elif part == "speed":
        kinds = list(next(iter(result["tokens_per_second"].values())))
        table = Table("setting", *kinds, "all", title=f"{pair}: tokens per second")
        for name, by in result["tokens_per_second"].items():
            table.add_row(name, *(f"{_over([by[kind]]):.1f}" for kind in kinds), f"{result['overall'][name]:.1f}")
        console.print(table)
        console.print(f"best list setting over the best of: {result['list_over']}", highlight=False)
    else:
        shown = {name: value for name, value in result.items() if name != "runs"}
        console.print(f"{pair}, {part}: {json.dumps(shown)}", highlight=False, soft_wrap=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=chosen(PAIRS), default=list(PAIRS), help="of: " + ", ".join(PAIRS))
    parser.add_argument("--parts", type=chosen(PARTS), default=list(PARTS), help="of: " + ", ".join(PARTS))
    parser.add_argument("--lengths", type=lambda t: [int(n) for n in t.split(",")], default=list(LENGTHS))
    parser.add_argument("--kinds", type=lambda t: t.split(","), default=["prose", "chat", "code"], help="for speed")
    parser.add_argument("--prompts", type=int, default=2, help="of each kind, where speed is measured (default: 2)")
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--list", default="auto", metavar="FILE|auto", help="the draft vocabulary (default: auto)")
    parser.add_argument("--no-llama-cpp", action="store_true", help="measure pyspec alone")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "draft_vocab.json")
    args = parser.parse_args()
    if "speed" in args.parts and not args.no_llama_cpp:
        require_example()
    results = json.loads(args.output.read_text(encoding="utf-8")) if args.output.exists() else {}
    for name in args.pairs:
        for part in args.parts:
            args.before = results.get(name, {}).get(part, {})
            if part == "step":  # it computes in this thread, whose helpers would take the processors from the engines'
                with multiprocessing.get_context("spawn").Pool(1) as pool:
                    done = pool.apply(step, (PAIRS[name], args))
            else:
                done = PARTS[part](PAIRS[name], args)
            for result in [done] if isinstance(done, dict) else done:
                settings = {key: getattr(args, key) for key in SETTINGS}
                settings["list"] = args.list if args.list == "auto" else Path(args.list).name
                results.setdefault(name, {})[part] = {"settings": settings, **result}
                results["machine"] = {"platform": platform.platform(), **pyspec.build_info()}
                args.output.parent.mkdir(parents=True, exist_ok=True)
                args.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
            show(name, part, result)
    print(f"written: {args.output}", file=sys.stderr)


if __name__ == "__main__":
    main()
