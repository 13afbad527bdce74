"""What the target writes when it is asked: token ids, half of them greedy, kept in a file that can be gone on with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pyspec import Engine, Generation, SamplingParams, models
from pyspec.bench.prompts import chatml
from pyspec.chat import render
from tools.train.asked import requests
from tools.train.progress import Bar

N_SLOTS = 64
LONGEST = 160
WARM = 0.7


@dataclass(frozen=True)
class Text:
    """A request, as the target reads it, and what it wrote."""

    prompt: list[int]
    answer: list[int]

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.answer


def collect(path: Path, *, target: str, n_texts: int, seed: int, n_threads: int) -> list[Text]:
    """The first n_texts texts of a file, after writing those that it lacks.

    Every second one is greedy, as acceptance is measured; the others are drawn at temperature 0.7, so that there is
    more to learn from and the draft sees texts that went another way. Every second pair of prompts has no system
    message.

    Args:
        path: one JSON array of two lists of ids a line.
        target: a registered model; a quantized file writes faster, and much the same.
        n_texts: how many.
        seed: of the requests and the draws.
        n_threads: of the engine.
    """
    done = read(path)
    asked = requests(n_texts, seed)
    if len(done) < len(asked):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file, Bar("collecting", len(asked), len(done)) as bar:
            tokens = sum(len(text.answer) for text in done)
            for text in _written(asked, len(done), target, seed, n_threads):
                file.write(json.dumps([text.prompt, text.answer]) + "\n")
                file.flush()
                done.append(text)
                tokens += len(text.answer)
                bar.advance(tokens=tokens)
    return done[:n_texts]


def read(path: Path) -> list[Text]:
    """The texts of a file; none where there is no file. A last line that was not finished is left out, and cut off."""
    if not path.exists():
        return []
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        path.write_bytes(whole)
    return [Text(*json.loads(line)) for line in whole.splitlines()]


def _written(asked: list[str], start: int, target: str, seed: int, n_threads: int) -> Iterator[Text]:
    with Engine(
        models.resolve(target), speculation=None, n_slots=N_SLOTS, n_ctx=1024, prefix_reuse=False, n_threads=n_threads
    ) as engine:
        running: list[tuple[list[int], Generation]] = []
        for i in range(start, len(asked)):
            message = [{"role": "user", "content": asked[i]}]
            prompt = render(engine.model, message) if i % 4 < 2 else chatml(asked[i])
            ids = engine.model.vocab.tokenize(prompt, add_special=True, parse_special=True)
            params = SamplingParams(temperature=WARM * (i % 2), max_tokens=LONGEST, seed=seed + i)
            running.append((ids, engine.submit(ids, params)))
            if len(running) == 2 * N_SLOTS:
                yield _text(running.pop(0))
        yield from map(_text, running)


def _text(running: tuple[list[int], Generation]) -> Text:
    prompt, generation = running
    return Text(prompt, list(generation.result().token_ids))
