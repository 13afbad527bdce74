"""Requests: from a prompt to text, through rounds of speculative decoding."""

from pyspec.engine.config import EngineConfig, ModelConfig
from pyspec.engine.engine import Engine
from pyspec.engine.generation import Chunk, Generation, Result, TokenLogprob

__all__ = ["Chunk", "Engine", "EngineConfig", "Generation", "ModelConfig", "Result", "TokenLogprob"]
