#!/usr/bin/env python3
"""Exact mode against plain decoding: token by token, and log-probability by log-probability, to the bit.

    python benchmarks/exact_mode.py                                   # everything: hours; stop and go on at any time
    python benchmarks/exact_mode.py --targets smollm2 --prompts 5 --tokens 60 --minutes 4

For each target: plain decoding of every prompt with an engine of its own, one request at a time; then every speculator,
with draft lengths 1 to 16 in turn, greedy and at temperature 0.8 with a seed, for one, two and four requests at once,
with and without exact mode. "rejections" knows the plain text and drafts it with every third token wrong. Each request
that is done is a line in a file, and is not done again. Prints for each combination how many texts differ, and in exact
mode how many log-probabilities; writes the sums as JSON. Ends with 1 if anything differs in exact mode.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pyspec import (
    DraftModel,
    Engine,
    NGramCache,
    NGramMapK,
    NGramMapK4V,
    NGramMod,
    NGramSimple,
    Result,
    SamplingParams,
    models,
)
from pyspec.bench.kinds import prompts_for

ROOT = Path(__file__).resolve().parent.parent

# target: its draft model, and whether it answers requests
TARGETS: dict[str, tuple[str | None, bool]] = {
    "smollm2-f32": ("smollm2", True),
    "smollm2": (None, True),
    "smollm2-q4_0": ("smollm2", True),
    "gemma3-f32": ("gemma3", False),
    "gemma3": (None, False),
    "gemma3-q4_0": (None, False),
}
NGRAMS: dict[str, Callable[[], Any]] = {
    "ngram-simple": lambda: NGramSimple(size_n=3, size_m=16),
    "ngram-map-k": lambda: NGramMapK(size_n=3, size_m=16),
    "ngram-map-k4v": lambda: NGramMapK4V(size_n=3, size_m=16),
    "ngram-mod": lambda: NGramMod(n_match=8, n_max=16, n_min=1),
    "ngram-cache": lambda: NGramCache(n_draft=16),
}
REJECTIONS = "rejections"
SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 0.8, "seed": 1},
}
LENGTHS = 16
N_CTX = 1024


class Journal:
    """What was done, one line each, in a file that grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done: dict[str, dict[str, Any]] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    entry = json.loads(line)
                except ValueError:  # the last line of a run that was stopped
                    continue
                self.done[entry["key"]] = entry

    def add(self, key: str, **entry: Any) -> None:
        self.done[key] = {"key": key, **entry}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(self.done[key]) + "\n")


class Rejections:
    """Drafts what is known to come, every third token wrong; which ones those are depends on the length."""

    n_max = LENGTHS

    def __init__(self) -> None:
        self.texts: list[list[int]] = []

    def propose(self, requests: Sequence[Any]) -> list[list[int]]:
        return [self._draft(list(request.tokens), request.n_max) for request in requests]

    def _draft(self, tokens: list[int], n_max: int) -> list[int]:
        known = next((text for text in self.texts if text[: len(tokens)] == tokens), [])
        draft = known[len(tokens) : len(tokens) + n_max]
        return [token ^ 1 if (len(tokens) + i) % 3 == 2 else token for i, token in enumerate(draft)]


def digest(result: Result) -> str:
    """The log-probabilities, to the bit."""
    rows = [[entry.logprob.hex(), [(i, p.hex()) for i, p in entry.top]] for entry in result.logprobs or ()]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    both = zip_longest(a, b)  # no token is None
    return next((i for i, (x, y) in enumerate(both) if x != y), None)


class Matrix:
    """All combinations for one target, with what is known of it."""

    def __init__(self, args: argparse.Namespace, target: str, journal: Journal) -> None:
        self.args = args
        self.target = target
        self.journal = journal
        self.path = str(models.resolve(target))
        draft, self.as_chat = TARGETS[target]
        self.draft = None if draft is None else str(models.resolve(draft))
        self.deadline = time.monotonic() + 60.0 * args.minutes

    def run(self) -> bool:
        """False: the time was over before everything was done."""
        for exact in (True, False) if not self.args.exact_only else (True,):
            for sampling in self.args.sampling.split(","):
                if not self._plain(exact, sampling):
                    return False
            for who in self._speculators():
                for n_slots in self.args.slots:
                    if not self._speculative(who, n_slots, exact):
                        return False
        return True

    def _speculators(self) -> list[str]:
        every = [REJECTIONS, *NGRAMS] + (["draft-simple"] if self.draft is not None else [])
        chosen = self.args.speculators.split(",") if self.args.speculators else every
        return [who for who in every if who in chosen]

    def _engine(self, who: Any, n_slots: int, exact: bool) -> Engine:
        return Engine(
            self.path, speculation=who, n_slots=n_slots, n_ctx=N_CTX, exact=exact, draft_length="fixed",
            prefix_reuse=False, n_threads=self.args.threads,
        )  # fmt: skip

    def _prompts(self, engine: Engine) -> list[str]:
        prompts = prompts_for()
        texts = [prompt.text(engine.model, as_chat=self.as_chat) for prompt in prompts]
        while len(texts) < self.args.prompts:  # the same once more, behind a beginning of their own
            n = len(texts) - len(prompts)
            texts.append(f"{n + 1}. {prompts[n % len(prompts)].opening}")
        return texts[: self.args.prompts]

    def _params(self, sampling: str) -> SamplingParams:
        return SamplingParams(max_tokens=self.args.tokens, logprobs=1, ignore_eos=True, **SAMPLING[sampling])

    def _key(self, *parts: object) -> str:
        return "|".join(map(str, (self.target, self.args.tokens, *parts)))

    def _plain(self, exact: bool, sampling: str) -> bool:
        keys = [self._key("plain", exact, sampling, i) for i in range(self.args.prompts)]
        if all(key in self.journal.done for key in keys):
            return True
        with self._engine(None, 1, exact) as engine:
            for key, prompt in zip(keys, self._prompts(engine), strict=True):
                if key in self.journal.done:
                    continue
                if time.monotonic() > self.deadline:
                    return False
                result = engine.generate(prompt, self._params(sampling))
                self.journal.add(
                    key, prompt=list(result.prompt_token_ids), ids=list(result.token_ids), logprobs=digest(result)
                )
        return True

    def _speculative(self, who: str, n_slots: int, exact: bool) -> bool:
        todo = [
            (sampling, i)
            for sampling in self.args.sampling.split(",")
            for i in range(self.args.prompts)
            if self._key(who, n_slots, exact, sampling, i) not in self.journal.done
        ]
        if not todo:
            return True
        rejections = Rejections()
        with self._engine(self._spec(who, rejections), n_slots, exact) as engine:
            config = engine.config.exact
            prompts = self._prompts(engine)
            for at in range(0, len(todo), n_slots):
                if time.monotonic() > self.deadline:
                    return False
                group = todo[at : at + n_slots]
                plains = [self.journal.done[self._key("plain", exact, sampling, i)] for sampling, i in group]
                rejections.texts = [plain["prompt"] + plain["ids"] for plain in plains]
                streams = [
                    engine.stream(prompts[i], self._params(sampling), n_draft_max=1 + i % LENGTHS)
                    for sampling, i in group
                ]
                for (sampling, i), plain, stream in zip(group, plains, streams, strict=True):
                    result = stream.result()
                    self.journal.add(
                        self._key(who, n_slots, exact, sampling, i),
                        target=self.target,
                        who=who,
                        n_slots=n_slots,
                        exact=exact,
                        sampling=sampling,
                        differs_at=first_difference(result.token_ids, plain["ids"]),
                        same_logprobs=digest(result) == plain["logprobs"],
                        tokens=len(result.token_ids),
                        drafted=result.stats.drafted,
                        accepted=result.stats.accepted,
                        decode_ms=result.stats.decode_ms,
                        width=None if config is None else config.width,
                    )
            stats = engine.stats()
            if stats.spot_differences:
                raise SystemExit(f"{self.target}, {who}: {stats.spot_differences} spot checks failed")
        return True

    def _spec(self, who: str, rejections: Rejections) -> Any:
        if who == REJECTIONS:
            return rejections
        return DraftModel(self.draft, n_max=LENGTHS) if who == "draft-simple" else NGRAMS[who]()


def sums(journal: Journal) -> Iterator[dict[str, Any]]:
    """One entry for each target, speculator, number of slots, mode and way of sampling."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for entry in journal.done.values():
        if "who" in entry:
            groups[tuple(entry[name] for name in ("target", "exact", "sampling", "who", "n_slots"))].append(entry)
    for (target, exact, sampling, who, n_slots), entries in sorted(groups.items()):
        seconds = sum(entry["decode_ms"] for entry in entries) / 1000.0
        yield {
            "target": target,
            "exact": exact,
            "sampling": sampling,
            "speculator": who,
            "n_slots": n_slots,
            "width": entries[0]["width"],
            "requests": len(entries),
            "differing_texts": sum(entry["differs_at"] is not None for entry in entries),
            "differing_logprobs": sum(not entry["same_logprobs"] for entry in entries),
            "tokens": sum(entry["tokens"] for entry in entries),
            "drafted": sum(entry["drafted"] for entry in entries),
            "accepted": sum(entry["accepted"] for entry in entries),
            "tokens_per_second": round(sum(entry["tokens"] for entry in entries) / seconds, 2) if seconds else None,
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--speculators", default="", help="default: all that run on the target")
    parser.add_argument("--sampling", default=",".join(SAMPLING))
    parser.add_argument("--slots", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--prompts", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--exact-only", action="store_true", help="leave out what is not in exact mode")
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after so long; the next run goes on")
    parser.add_argument("--journal", type=Path, default=models.cache_dir() / "exactness" / "journal.jsonl")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "exact_mode.json")
    args = parser.parse_args()

    journal = Journal(args.journal)
    t0 = time.monotonic()
    complete = True
    for target in args.targets.split(","):
        args.minutes = max(0.0, args.minutes - (time.monotonic() - t0) / 60.0)
        t0 = time.monotonic()
        complete = Matrix(args, target, journal).run() and complete
    found = list(sums(journal))
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    names = f"{'target':14}{'sampling':9}{'speculator':15}{'slots':>5} {'exact':6}"
    print(f"{names}{'requests':>9}{'texts':>7}{'logprobs':>9}{'tokens/s':>10}")
    for each in found:
        print(
            f"{each['target']:14}{each['sampling']:9}{each['speculator']:15}{each['n_slots']:5} "
            f"{'yes' if each['exact'] else 'no':6}{each['requests']:9}{each['differing_texts']:7}"
            f"{each['differing_logprobs']:9}{each['tokens_per_second'] or 0:10.1f}"
        )
    print("complete" if complete else "not complete: run it again to go on")
    wrong = sum(each["differing_texts"] + each["differing_logprobs"] for each in found if each["exact"])
    print(f"{wrong} differences in exact mode")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
