"""The callers of `soak.py`: threads and coroutines that use one engine in every manner there is.

A manner is what is done with a request that has been submitted: read it, cancel it, forget it. What became of it goes
into the ledger.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from soak_ledger import PATIENCE_S, Ledger
from soak_requests import Bad, Known

from pyspec import Chunk, ConsumerStalled, Engine, Generation, QueueFull

Manner = Callable[[Generation, list[Chunk]], bool]  # reads into the list; whether it has read everything
AsyncManner = Callable[[Generation, list[Chunk]], Awaitable[bool]]


class Caller:
    """One who sends requests until told to stop: `run` as a thread, `arun` as a coroutine.

    Args:
        stall_timeout: the engine's.
        seed: of everything that is left to chance.
    """

    def __init__(
        self,
        engine: Engine,
        ledger: Ledger,
        known: Sequence[Known],
        bad: Sequence[Bad],
        stall_timeout: float,
        seed: int,
    ) -> None:
        self._engine = engine
        self._ledger = ledger
        self._known = known
        self._bad = bad
        self._stall_timeout = stall_timeout
        self._rng = random.Random(seed)

    def run(self, stop: threading.Event) -> None:
        """Sends one request after the other; a thread's loop."""
        ways: dict[Callable[[], None], int] = {
            lambda: self._call(self._read): 4,
            lambda: self._call(self._read_slowly): 2,
            lambda: self._call(self._stop_reading): 1,
            lambda: self._call(self._wait): 2,
            lambda: self._call(self._cancel): 4,
            lambda: self._call(self._wait, timeout=self._rng.random()): 1,
            self._drop: 2,
            self._generate: 2,
            self._send_bad: 3,
            self._ask: 1,
        }
        while not stop.is_set():
            way = self._rng.choices(list(ways), list(ways.values()))[0]
            try:
                way()
            except Exception as error:
                self._ledger.violated(f"a caller got {type(error).__name__}: {error}")

    async def arun(self, stop: threading.Event) -> None:
        """The same as a coroutine."""
        ways: dict[AsyncManner, int] = {
            self._aread: 4,
            self._aread_slowly: 2,
            self._await: 2,
            self._acancel: 4,
            self._abreak: 2,
        }
        while not stop.is_set():
            way = self._rng.choices(list(ways), list(ways.values()))[0]
            try:
                await self._acall(way)
            except Exception as error:
                self._ledger.violated(f"a coroutine got {type(error).__name__}: {error}")

    # -- one request ---------------------------------------------------------------------------------------------

    def _call(self, manner: Manner, **options: Any) -> None:
        known = self._rng.choice(self._known)
        number = self._ledger.submit(f"{manner.__name__} {known.number}")
        generation = self._start(number, known, **options)
        if generation is None:
            time.sleep(0.05)
            return
        chunks: list[Chunk] = []
        try:
            read_all = manner(generation, chunks)
        except ConsumerStalled:
            read_all = False
        self._settle(number, known, generation, chunks, read_all)

    async def _acall(self, manner: AsyncManner) -> None:
        known = self._rng.choice(self._known)
        number = self._ledger.submit(f"{manner.__name__} {known.number}")
        generation = self._start(number, known)
        if generation is None:
            await asyncio.sleep(0.05)
            return
        chunks: list[Chunk] = []
        try:
            read_all = await manner(generation, chunks)
        except ConsumerStalled:
            read_all = False
        await asyncio.to_thread(self._settle, number, known, generation, chunks, read_all)

    def _start(self, number: int, known: Known, **options: Any) -> Generation | None:
        """Submits it; None: the queue was full."""
        try:
            return self._engine.stream(
                known.prompt,
                known.params,
                priority=self._rng.randrange(3),
                steady=self._rng.random() < 0.3,
                **options,
            )
        except QueueFull:
            self._ledger.end(number, "refused: QueueFull")
            return None

    def _settle(self, number: int, known: Known, generation: Generation, chunks: list[Chunk], read_all: bool) -> None:
        """Waits for the end of it, and enters it."""
        try:
            result = generation.result(PATIENCE_S)
        except ConsumerStalled:
            self._ledger.end(number, "failed: ConsumerStalled")
            self._ledger.compare(known, [token for chunk in chunks for token in chunk.tokens], whole=False)
        else:
            self._ledger.end(number, result.finish_reason)
            self._ledger.check_result(known, result, chunks, read_all=read_all)
            if generation.result(0) is not result:
                self._ledger.violated(f"request {known.number} has two results")
        self._ledger.add(generation.stats)

    # -- manners of a thread -------------------------------------------------------------------------------------

    def _read(self, generation: Generation, chunks: list[Chunk]) -> bool:
        chunks.extend(generation)
        return True

    def _read_slowly(self, generation: Generation, chunks: list[Chunk]) -> bool:
        for chunk in generation:
            chunks.append(chunk)
            time.sleep(0.1 * self._rng.random())
        return True

    def _stop_reading(self, generation: Generation, chunks: list[Chunk]) -> bool:
        """Reads some, nothing for a while, and the rest."""
        for chunk in generation:
            chunks.append(chunk)
            if len(chunks) == 2:
                time.sleep(4 * self._stall_timeout * self._rng.random())
        return True

    def _wait(self, generation: Generation, chunks: list[Chunk]) -> bool:
        generation.result(PATIENCE_S)
        return False

    def _cancel(self, generation: Generation, chunks: list[Chunk]) -> bool:
        time.sleep(self._moment())
        generation.cancel()
        chunks.extend(generation)
        return True

    def _drop(self) -> None:
        """Reads some and forgets it."""
        known = self._rng.choice(self._known)
        number = self._ledger.submit(f"drop {known.number}")
        generation = self._start(number, known)
        if generation is None:
            return
        chunks = [chunk for _, chunk in zip(range(self._rng.randrange(4)), generation, strict=False)]
        stats = generation.stats
        del generation
        self._ledger.end(number, "dropped")
        self._ledger.compare(known, [token for chunk in chunks for token in chunk.tokens], whole=False)
        self._ledger.add_dropped(stats)

    def _generate(self) -> None:
        known = self._rng.choice(self._known)
        number = self._ledger.submit(f"generate {known.number}")
        try:
            result = self._engine.generate(known.prompt, known.params)
        except QueueFull:
            self._ledger.end(number, "refused: QueueFull")
            return
        self._ledger.end(number, result.finish_reason)
        self._ledger.check_result(known, result, [], read_all=False)
        self._ledger.add(result.stats)

    def _send_bad(self) -> None:
        bad = self._rng.choice(self._bad)
        number = self._ledger.submit(bad.name)
        try:
            bad.send(self._engine)
        except bad.errors as error:
            self._ledger.end(number, f"refused: {type(error).__name__}")
        except Exception as error:
            self._ledger.end(number, f"refused: {type(error).__name__}")
            self._ledger.violated(f"{bad.name}: {type(error).__name__}: {error}")
        else:
            self._ledger.end(number, "not refused")
            self._ledger.violated(f"{bad.name}: it was not refused")

    def _ask(self) -> None:
        stats = self._engine.stats()
        if stats.accepted > stats.drafted or stats.failed + stats.cancelled > stats.requests:
            self._ledger.violated(f"statistics that can't be: {stats}")
        if min(self._engine.memory().values()) < 0:
            self._ledger.violated("memory that can't be")

    def _moment(self) -> float:
        """Seconds to wait before something is cancelled: often none, seldom many."""
        return self._rng.choice([0.0, 0.01, 0.1, 1.0]) * self._rng.random()

    # -- manners of a coroutine ----------------------------------------------------------------------------------

    async def _aread(self, generation: Generation, chunks: list[Chunk]) -> bool:
        async for chunk in generation:
            chunks.append(chunk)
        return True

    async def _aread_slowly(self, generation: Generation, chunks: list[Chunk]) -> bool:
        async for chunk in generation:
            chunks.append(chunk)
            await asyncio.sleep(0.1 * self._rng.random())
        return True

    async def _await(self, generation: Generation, chunks: list[Chunk]) -> bool:
        await generation
        return False

    async def _acancel(self, generation: Generation, chunks: list[Chunk]) -> bool:
        task = asyncio.ensure_future(self._aread(generation, chunks))
        await asyncio.sleep(self._moment())
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return False

    async def _abreak(self, generation: Generation, chunks: list[Chunk]) -> bool:
        n_read = self._rng.randrange(1, 4)
        async for chunk in generation:
            chunks.append(chunk)
            if len(chunks) == n_read:
                break
        return False
