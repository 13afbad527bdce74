"""What a process has in use.

Of what was freed the C library gives back more one time and less another, some megabytes; what is in use it knows to
the byte.
"""

from __future__ import annotations

import ctypes
import os


class _Mallinfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
    )]  # fmt: skip


def in_use() -> int:
    """Bytes that are allocated; with another C library than glibc those of the process in memory."""
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo is None:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    mallinfo.restype = _Mallinfo
    info = mallinfo()
    return int(info.hblkhd + info.uordblks)
