"""Who drafts, and what it brought: policy, one concept a file."""

from pyspec.speculation.config import DraftModel
from pyspec.speculation.grammar import GrammarDrafts
from pyspec.speculation.hidden_config import DraftDFlash, DraftDSpark, DraftEagle3, DraftMTP
from pyspec.speculation.ngram_config import NGramCache, NGramMapK, NGramMapK4V, NGramMod, NGramSimple
from pyspec.speculation.scripted import DraftRequest, Speculator
from pyspec.speculation.stats import SpeculatorStats, Stats
from pyspec.speculation.synthetic import Synthetic

__all__ = [
    "DraftDFlash",
    "DraftDSpark",
    "DraftEagle3",
    "DraftMTP",
    "DraftModel",
    "DraftRequest",
    "GrammarDrafts",
    "NGramCache",
    "NGramMapK",
    "NGramMapK4V",
    "NGramMod",
    "NGramSimple",
    "Speculator",
    "SpeculatorStats",
    "Stats",
    "Synthetic",
]
