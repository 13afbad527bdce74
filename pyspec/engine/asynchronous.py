"""The engine for coroutines. It needs no thread for a request: the engine's own thread wakes the event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from pyspec._llama import Model
from pyspec.engine.engine import Engine
from pyspec.engine.generation import Generation, Result
from pyspec.engine.metrics import EngineStats
from pyspec.sampling import SamplingParams


class AsyncEngine:
    """An engine whose slow calls are awaited.

    >>> async with await AsyncEngine.open("target.gguf", n_slots=4) as engine:
    ...     async for chunk in engine.stream("Once upon a time"):
    ...         print(chunk.text, end="")

    Args:
        engine: the engine, which stays usable from threads as well.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @classmethod
    async def open(cls, target: str | os.PathLike[str] | Model, **options: Any) -> AsyncEngine:
        """Opens an engine while the event loop goes on. Parameters and errors are those of `Engine`."""
        return cls(await asyncio.to_thread(Engine, target, **options))

    async def generate(
        self, prompt: str | bytes | Sequence[int], params: SamplingParams | None = None, **options: Any
    ) -> Result:
        """`Engine.generate`; cancelling the task cancels the request."""
        return await self.engine.stream(prompt, params, **options)

    def stream(
        self, prompt: str | bytes | Sequence[int], params: SamplingParams | None = None, **options: Any
    ) -> Generation:
        """`Engine.stream`: iterate what it returns with ``async for``."""
        return self.engine.stream(prompt, params, **options)

    async def chat(
        self, messages: Sequence[Mapping[str, Any]], params: SamplingParams | None = None, **options: Any
    ) -> Result:
        """`Engine.chat`."""
        return await self.engine.stream_chat(messages, params, **options)

    def stats(self) -> EngineStats:
        """`Engine.stats`."""
        return self.engine.stats()

    async def close(self, *, drain: bool = False) -> None:
        """`Engine.close`, while the event loop goes on."""
        await asyncio.to_thread(self.engine.close, drain=drain)

    async def __aenter__(self) -> AsyncEngine:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
