"""The memory that this process takes."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

_STATM = Path("/proc/self/statm")


def resident() -> int:
    """Bytes of physical memory; where the system does not tell, the most it ever were; 0 where it tells neither."""
    if _STATM.exists():
        return int(_STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    try:
        import resource  # noqa: PLC0415  POSIX alone has it
    except ImportError:  # Windows
        return 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def give_back() -> None:
    """Let the system have what was freed. Without glibc, nothing."""
    if sys.platform == "linux":
        # What imports have freed lies between what they have left, where glibc keeps it.
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(ctypes.c_size_t(0))
