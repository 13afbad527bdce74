"""Requests: from a prompt to text, through rounds of speculative decoding."""

from pyspec.engine.asynchronous import AsyncEngine
from pyspec.engine.config import EngineConfig, ModelConfig
from pyspec.engine.engine import Engine
from pyspec.engine.generation import Chunk, Generation, Result, TokenLogprob
from pyspec.engine.metrics import EngineStats, SlotStats
from pyspec.engine.tokens import Token

__all__ = [
    "AsyncEngine",
    "Chunk",
    "Engine",
    "EngineConfig",
    "EngineStats",
    "Generation",
    "ModelConfig",
    "Result",
    "SlotStats",
    "Token",
    "TokenLogprob",
]
