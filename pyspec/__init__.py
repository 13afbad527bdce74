"""Lossless speculative decoding for llama.cpp."""

import pyspec._loading  # noqa: F401 (first: it says what is missing when libllama can not be loaded)
from pyspec.buildinfo import build_info
from pyspec.engine import Chunk, Engine, Generation, Result, TokenLogprob
from pyspec.errors import (
    Busy,
    Cancelled,
    Closed,
    ContextError,
    ContextFull,
    DecodeError,
    FetchError,
    GrammarError,
    InvalidRequest,
    ModelLoadError,
    PyspecError,
    UnsupportedModel,
    VocabMismatch,
)
from pyspec.sampling import SamplingParams
from pyspec.speculation import DraftModel, Stats

__all__ = [
    "Busy",
    "Cancelled",
    "Chunk",
    "Closed",
    "ContextError",
    "ContextFull",
    "DecodeError",
    "DraftModel",
    "Engine",
    "FetchError",
    "Generation",
    "GrammarError",
    "InvalidRequest",
    "ModelLoadError",
    "PyspecError",
    "Result",
    "SamplingParams",
    "Stats",
    "TokenLogprob",
    "UnsupportedModel",
    "VocabMismatch",
    "build_info",
]
