"""Keeps freed memory in the process instead of giving it back to the system again and again.

A node takes and frees blocks of slice size all the time: received payloads, sums, updates. By default glibc maps
blocks of this size one by one, or trims its heap when a few are free; each new one is then zeroed and
mapped page by page. On an exchange of 1 MiB messages over loopback that was half of the receiver's processor time.
"""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
LARGEST_REUSED_BYTES = 32 << 20  # what glibc allows at most
KEPT_FREE_BYTES = 512 << 20


def reuse_freed_blocks() -> bool:
    """Keep up to 512 MiB of freed memory, in blocks of up to 32 MiB, for reuse; for the whole process.

    To be called once by whoever owns the process. The peak of the memory used does not change. False where the C
    library knows no `mallopt`: then nothing has changed.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(
        mallopt(_M_MMAP_THRESHOLD, LARGEST_REUSED_BYTES) and mallopt(_M_TRIM_THRESHOLD, KEPT_FREE_BYTES)
    )
