#!/usr/bin/env python3
"""One pyspec engine in a process of its own, for `serving.py`: loads come in and records go out, a line of JSON each.

The argument is a JSON object of `pyspec.Engine`'s parameters; speculators are a list of dictionaries, as for
`speculation.settings.from_settings`. A load is an object with ``prompts``, ``n_tokens``, ``n_at_once`` and ``steady``.
The first line that comes out describes the engine.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from load import Record, drive

from pyspec import Chunk, Engine, Generation, SamplingParams
from pyspec.speculation.settings import from_settings

Event = tuple[Generation, Chunk]


async def run(engine: Engine, prompts: list[str], n_tokens: int, n_at_once: int, steady: bool) -> list[Record]:
    """Streams greedy texts of exactly so many tokens; steady: as `Engine.stream` says."""
    params = SamplingParams(temperature=0.0, max_tokens=n_tokens, ignore_eos=True)

    async def stream(prompt: str) -> AsyncIterator[Event]:
        generation = engine.stream(prompt, params, steady=steady)
        async for chunk in generation:
            yield generation, chunk

    return await drive(stream, finish, prompts, n_at_once)


def finish(events: list[Event]) -> dict[str, Any]:
    """What the chunks of a request amount to."""
    stats = events[-1][0].stats
    return {
        "n_tokens": sum(len(chunk.tokens) for _, chunk in events),
        "drafted": stats.drafted,
        "accepted": stats.accepted,
        "text": "".join(chunk.text for _, chunk in events),
    }


def main() -> None:
    parameters = json.loads(sys.argv[1])
    if isinstance(parameters.get("speculation"), list):
        parameters["speculation"] = from_settings(parameters["speculation"])
    with Engine(**parameters) as engine:
        config = engine.config.to_dict()
        for part in (config["target"], config["draft"], config["draft_options"]):
            if part and part["path"]:
                part["path"] = Path(part["path"]).name  # the report is about the model, not about this machine
        print(json.dumps(config), flush=True)
        for line in sys.stdin:
            records = asyncio.run(run(engine, **json.loads(line)))
            print(json.dumps([record.to_dict() for record in records]), flush=True)


if __name__ == "__main__":
    main()
