"""Memory that a step of training frees is kept for the next step."""

import ctypes
import platform

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_GIB = 1 << 30


def keep_freed_memory() -> None:
    """Have the C library keep what this process frees, where that is glibc; elsewhere do nothing.

    By itself glibc gives the memory of large activations back to the kernel when they are freed. The next step gets it again,
    page by page: a fifth of the time of a worker that trains HeteroFL's CNN. Small batches gain little. A run's numbers do not
    depend on it, and its peak memory grew by some 50 MB where it was measured.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    if libc.mallopt(_M_MMAP_THRESHOLD, _GIB) or libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20):  # the most before glibc 2.35
        libc.mallopt(_M_TRIM_THRESHOLD, _GIB)
