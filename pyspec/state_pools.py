"""States of sequences between contexts with one pool of cells and contexts with a pool for each sequence.

libllama writes a sequence's part of an attention memory pool by pool (``llama_kv_cache::state_write``), the empty ones
too, and reads it only where there are as many pools. What is in the one that has cells is the same either way.

    magic  sequence  {number of pools  {number of cells  cells  keys  values} per pool} per attention memory  the rest

Models with sliding windows have two attention memories; the rest is the state of recurrent layers.
"""

from __future__ import annotations

import struct
from itertools import product

from pyspec.errors import StateError

_U32 = struct.Struct("<I")
_KEYS = struct.Struct("<iQ")  # type, bytes of a row
_COLUMNS = struct.Struct("<iII")  # type, bytes of an element, rows: values that are stored transposed
_START = 8  # magic and sequence

# A cell: position, number of sequences, one of them; some models add three numbers (``llama_kv_cell_ext``).
_CELL_SIZES = (12, 24)

_MAX_TYPE, _MAX_ROW, _MAX_LAYERS = 255, 1 << 28, 1 << 16


def with_pools(state: bytes, n_pools: int, *, hybrid: bool) -> bytes:
    """The state of one sequence as a context with so many pools reads it.

    Args:
        state: as ``llama_state_seq_get_data`` wrote it, of a model with attention.
        n_pools: pools of the context that is to read it: 1, or its number of sequences.
        hybrid: the model has recurrent layers besides.

    Raises:
        StateError: it does not look like such a state.
    """
    for cell, has_values in product(_CELL_SIZES, (True, False)):
        memories, rest = _memories(state, cell, has_values)
        if memories and bool(rest) == hybrid:
            pools = [_U32.pack(n_pools) + cells + _U32.pack(0) * (n_pools - 1) for cells in memories]
            return b"".join((state[:_START], *pools, rest))
    raise StateError("the saved state is none of a sequence of this model")


def _memories(state: bytes, cell: int, has_values: bool) -> tuple[list[bytes], bytes]:
    """What the pool with cells holds in each attention memory, its number of cells included; and the rest."""
    memories: list[bytes] = []
    at, n_pools = _START, None
    while at < len(state):
        try:
            begin, end, after, n = _memory(state, at, cell, has_values)
        except (ValueError, struct.error):
            break  # recurrent layers begin here, or nothing that is known
        if n_pools not in (None, n):
            break
        memories.append(state[begin:end])
        at, n_pools = after, n
    return memories, state[at:]


def _memory(state: bytes, at: int, cell: int, has_values: bool) -> tuple[int, int, int, int]:
    """Where the filled pool of an attention memory begins and ends, where the memory ends, and its number of pools."""
    (n_pools,) = _U32.unpack_from(state, at)
    at += 4
    if not 1 <= n_pools <= _MAX_TYPE + 1:
        raise ValueError(n_pools)
    filled: tuple[int, int] | None = None
    for _ in range(n_pools):
        (n_cells,) = _U32.unpack_from(state, at)
        begin, at = at, at + 4
        if n_cells:
            at = _end_of_cells(state, at, n_cells, cell, has_values)
            if filled is not None:
                raise ValueError("two pools of one sequence")
            filled = begin, at
    if filled is None:
        raise ValueError("no cells")
    return *filled, at, n_pools


def _end_of_cells(state: bytes, at: int, n_cells: int, cell: int, has_values: bool) -> int:
    at += n_cells * cell
    transposed, n_layers = _U32.unpack_from(state, at)[0], _U32.unpack_from(state, at + 4)[0]
    at += 8
    if transposed > 1 or not 1 <= n_layers <= _MAX_LAYERS:
        raise ValueError("no layers")
    for _ in range(n_layers):
        at = _end_of_rows(state, at, n_cells)
    for _ in range(n_layers if has_values else 0):
        at = _end_of_columns(state, at, n_cells) if transposed else _end_of_rows(state, at, n_cells)
    return at


def _end_of_rows(state: bytes, at: int, n_cells: int) -> int:
    kind, size = _KEYS.unpack_from(state, at)
    return _checked(state, at + _KEYS.size + n_cells * size, kind, size)


def _end_of_columns(state: bytes, at: int, n_cells: int) -> int:
    kind, size, n_rows = _COLUMNS.unpack_from(state, at)
    return _checked(state, at + _COLUMNS.size + n_rows * n_cells * size, kind, size * n_rows)


def _checked(state: bytes, end: int, kind: int, size: int) -> int:
    if not 0 <= kind <= _MAX_TYPE or not 1 <= size <= _MAX_ROW or end > len(state):
        raise ValueError("no rows")
    return end
