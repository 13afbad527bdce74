"""Making lists of the tokens worth drafting: reading texts, counting their tokens, choosing, looking at the result."""

from pyspec.vocab_lists.build import Built, build, merge
from pyspec.vocab_lists.corpus import Source, find, pieces
from pyspec.vocab_lists.count import Counts, count
from pyspec.vocab_lists.inspection import Inspection, inspect

__all__ = ["Built", "Counts", "Inspection", "Source", "build", "count", "find", "inspect", "merge", "pieces"]
