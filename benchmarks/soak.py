#!/usr/bin/env python3
"""Many callers at one engine for a long time: nothing is lost, nothing leaks, and every text is the right one.

    python benchmarks/soak.py                     # ten minutes
    python benchmarks/soak.py --minutes 60 --target smollm2-f32 --seed 2

Threads and coroutines send random requests to an engine with four slots and a draft model: short and long ones, greedy
and seeded, with stop strings and grammars. They read them, read them slowly, stop reading, cancel them, forget them,
let them run out of time, and send what has to be refused. What is checked:

- every request ends exactly once, with a result or the error that is due;
- every text is the one that the request had alone, without speculation, or the first part of it; where it parts from
  it, that it was a near tie is proven (`soak_proof.py`; sharpest with F32 weights, whose logits move least);
- what was streamed is what the result holds;
- the engine's own statistics add up, and in the end it has nothing to do;
- the memory of the process does not grow by more than 10 MB after the first minute (the first third of a short run).

Ends with 1 if anything of this is not so.
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from soak_callers import Caller
from soak_ledger import PATIENCE_S, Ledger, Parting
from soak_proof import near_ties
from soak_requests import Known, bad_requests, known_requests

from pyspec import Engine
from pyspec._llama import Model
from pyspec.bench.lossless import row_difference
from pyspec.engine.metrics import EngineStats
from pyspec.models import resolve

MOST_GROWTH_MB = 10.0
N_CTX = 512


@dataclass(frozen=True)
class Sample:
    """The state of things at one time."""

    seconds: float
    rss_mb: float
    n_submitted: int
    n_tokens: int
    n_partings: int
    n_violations: int


def rss_mb() -> float:
    """Resident memory of this process in MB."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def soak(args: argparse.Namespace, engine: Engine, ledger: Ledger, known: list[Known]) -> Iterator[Sample]:
    """Lets the callers loose; yields a sample a second. In the end they are done and the engine is idle."""
    bad = bad_requests([1] * N_CTX)
    callers = [
        Caller(engine, ledger, known, bad, args.stall_timeout, 1000 * args.seed + i)
        for i in range(args.callers + args.coroutines)
    ]
    stop = threading.Event()

    async def coroutines() -> None:
        await asyncio.gather(*(caller.arun(stop) for caller in callers[args.callers :]))

    threads = [threading.Thread(target=caller.run, args=(stop,), daemon=True) for caller in callers[: args.callers]]
    threads.append(threading.Thread(target=lambda: asyncio.run(coroutines()), daemon=True))
    start = time.monotonic()
    for thread in threads:
        thread.start()
    while time.monotonic() - start < 60 * args.minutes:
        time.sleep(1)
        give_up_if_stuck(ledger.overdue(), engine)
        yield Sample(
            time.monotonic() - start,
            rss_mb(),
            ledger.n_submitted,
            ledger.n_tokens,
            ledger.partings.total(),
            len(ledger.violations),
        )
    stop.set()
    for thread in threads:
        thread.join(PATIENCE_S)
        if thread.is_alive():
            give_up_if_stuck([f"{thread.name} does not end"], engine)
    ledger.close(idle(engine))


def idle(engine: Engine) -> EngineStats:
    """The engine's statistics once it has nothing to do, or after ten seconds."""
    for _ in range(100):
        stats = engine.stats()
        if stats.n_waiting == 0 and all(slot.state == "idle" for slot in stats.slots):
            break
        time.sleep(0.1)
    return stats


def give_up_if_stuck(what: list[str], engine: Engine) -> None:
    """Nothing can be checked any more when a request hangs: says what the engine does (a request may be waiting behind
    others, or over with nobody having been told) and where every thread is, and ends the process.
    """
    if what:
        print("stuck:", *what, "the engine:", engine.stats(), sep="\n  ", file=sys.stderr, flush=True)
        faulthandler.dump_traceback(all_threads=True)
        os._exit(1)


def growth_mb(samples: list[Sample]) -> float:
    """By how much the most memory after the warm-up exceeds the most during it."""
    warm = min(60.0, samples[-1].seconds / 3)
    during = [sample.rss_mb for sample in samples if sample.seconds <= warm]
    after = [sample.rss_mb for sample in samples if sample.seconds > warm]
    return max(after, default=0.0) - max(during, default=0.0)


def show(samples: list[Sample], ledger: Ledger, proven: dict[Parting, bool]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(title="by minute")
    for column in ("minute", "requests", "tokens", "memory, MB", "most", "texts that parted", "violations"):
        table.add_column(column, justify="right")
    for minute in range(1 + int(samples[-1].seconds // 60)):
        of = [sample for sample in samples if int(sample.seconds // 60) == minute]
        if of:
            table.add_row(
                str(minute + 1), f"{of[-1].n_submitted:,}", f"{of[-1].n_tokens:,}", f"{of[-1].rss_mb:.1f}",
                f"{max(sample.rss_mb for sample in of):.1f}", str(of[-1].n_partings), str(of[-1].n_violations),
            )  # fmt: skip
    console.print(table)
    table = Table(title="how requests ended")
    table.add_column("outcome")
    table.add_column("requests", justify="right")
    for outcome, n in sorted(ledger.outcomes.items()):
        table.add_row(outcome, f"{n:,}")
    console.print(table)
    n_ties = sum(n for parting, n in ledger.partings.items() if proven[parting])
    console.print(
        f"{ledger.n_compared:,} texts compared: {ledger.n_compared - ledger.partings.total():,} the same, {n_ties:,} "
        f"with a near tie, {ledger.partings.total() - n_ties:,} wrong"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--target", default="smollm2-q4_0")
    parser.add_argument("--draft", default="smollm2")
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2, help="of the engine's decodes")
    parser.add_argument("--callers", type=int, default=6, help="threads that send requests (default: 6)")
    parser.add_argument("--coroutines", type=int, default=6, help="coroutines that send requests (default: 6)")
    parser.add_argument("--requests", type=int, default=60, help="different requests there are (default: 60)")
    parser.add_argument("--stall-timeout", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    from rich.progress import Progress, track

    ledger = Ledger()
    with Model(str(resolve(args.target))) as model:
        options = {"n_ctx": N_CTX, "n_threads": args.threads}
        with Engine(model, speculation=None, **options) as alone:
            requests = known_requests(alone, random.Random(args.seed), args.requests)
            known = list(track(requests, total=args.requests, description="each alone"))
        with Engine(
            model,
            draft_model=args.draft,
            n_slots=args.slots,
            n_queue_max=args.callers + args.coroutines - args.slots,  # full when requests that were dropped wait, too
            stall_timeout=args.stall_timeout,
            stream_buffer=16,
            prefix_cache_mib=16,  # full within the warm-up
            **options,
        ) as engine:
            samples: list[Sample] = []
            with Progress() as progress:
                task = progress.add_task("all at once", total=60 * args.minutes)
                for sample in soak(args, engine, ledger, known):
                    samples.append(sample)
                    progress.update(task, completed=sample.seconds)
        longest = max(((*request.prompt, *request.alone.token_ids) for request in known), key=len)
        difference = row_difference(model, longest)
        ties = track(near_ties(model, known, ledger.partings, 2 * difference), "near ties", len(ledger.partings))
        proven = dict(zip(ledger.partings, ties, strict=True))

    growth = growth_mb(samples)
    if growth > MOST_GROWTH_MB:
        ledger.violated(f"memory grew by {growth:.1f} MB after the warm-up")
    for parting, tie in proven.items():
        if not tie:
            ledger.violated(f"{parting}: no near tie; {known[parting.request].params}")
    show(samples, ledger, proven)
    print(f"largest difference of a logit between alone and shared: {difference:.4g}")
    print(f"memory after the warm-up: {growth:+.1f} MB")
    for violation in ledger.violations:
        print("VIOLATION:", violation)
    return 1 if ledger.violations else 0


if __name__ == "__main__":
    sys.exit(main())
