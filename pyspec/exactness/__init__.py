"""Exactness: in how wide a batch a row of logits is, to the bit, what it is alone, and what to make of that."""

from pyspec.exactness.invariance import Comparison, RowInvariance
from pyspec.exactness.mode import Exact
from pyspec.exactness.probe import row_invariance
from pyspec.exactness.store import measured

__all__ = ["Comparison", "Exact", "RowInvariance", "measured", "row_invariance"]
