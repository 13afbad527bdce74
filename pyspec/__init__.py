"""Lossless speculative decoding for llama.cpp."""

from pyspec import _loading as _loading  # first: it says what is missing when libllama can't be loaded
from pyspec._llama import Model
from pyspec.buildinfo import build_info
from pyspec.engine import AsyncEngine, Chunk, Engine, EngineStats, Generation, Result, Token, TokenLogprob
from pyspec.errors import (
    Busy,
    Cancelled,
    Closed,
    ConsumerStalled,
    ContextError,
    ContextFull,
    DecodeError,
    FetchError,
    GrammarError,
    InvalidRequest,
    ModelLoadError,
    PyspecError,
    QueueFull,
    StateError,
    UnsupportedModel,
    VocabMismatch,
)
from pyspec.exactness import Exact
from pyspec.sampling import SamplingParams
from pyspec.speculation import (
    DraftModel,
    GrammarDrafts,
    NGramCache,
    NGramMapK,
    NGramMapK4V,
    NGramMod,
    NGramSimple,
    Stats,
)

__all__ = [
    "AsyncEngine",
    "Busy",
    "Cancelled",
    "Chunk",
    "Closed",
    "ConsumerStalled",
    "ContextError",
    "ContextFull",
    "DecodeError",
    "DraftModel",
    "Engine",
    "EngineStats",
    "Exact",
    "FetchError",
    "Generation",
    "GrammarDrafts",
    "GrammarError",
    "InvalidRequest",
    "Model",
    "ModelLoadError",
    "NGramCache",
    "NGramMapK",
    "NGramMapK4V",
    "NGramMod",
    "NGramSimple",
    "PyspecError",
    "QueueFull",
    "Result",
    "SamplingParams",
    "StateError",
    "Stats",
    "Token",
    "TokenLogprob",
    "UnsupportedModel",
    "VocabMismatch",
    "build_info",
]
