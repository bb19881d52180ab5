"""System calls that Python does not have in the form that reading shards needs.

In: addresses and descriptors. Out: bytes that the kernel copied. Memory that maps a file is read here alone,
and by the kernel: where a page of it cannot be had, because the file shrank or its disk failed, the call
fails with EFAULT. The same access by the process itself would end it with SIGBUS, which nothing can handle.
"""

import ctypes
import errno
import mmap
import os
import sys
import tempfile
import threading
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

_libc = ctypes.CDLL(None, use_errno=True)
_mmap, _munmap, _pwritev, _futimens = _libc.mmap, _libc.munmap, _libc.pwritev, _libc.futimens
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
_munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_pwritev.restype = ctypes.c_ssize_t
_pwritev.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64]
_futimens.argtypes = [ctypes.c_int, ctypes.c_void_p]
_MAP_FAILED = ctypes.c_void_p(-1).value
_HUGE_PAGE = 2**21
_MOST_RUNS = os.sysconf("SC_IOV_MAX")
_NOW, _UNCHANGED = (-1, -2) if sys.platform == "darwin" else (2**30 - 1, 2**30 - 2)


def map_for_copying(descriptor: int, size_bytes: int) -> int:
    """Map a file, read-only, and return the address, which is for ``Scratch.write`` alone. Raises OSError."""
    address = _mmap(None, size_bytes, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if address is None or address == _MAP_FAILED:
        raise _last_error()
    return address


def unmap(address: int, size_bytes: int) -> None:
    """Give back what ``map_for_copying`` has mapped."""
    _munmap(address, size_bytes)


def mark_used(descriptor: int) -> None:
    """Set a file's time of access to now. Its time of modification stays, whoever sets it meanwhile."""
    times = np.array([[0, _NOW], [0, _UNCHANGED]], np.int64)
    with suppress(OSError):
        if _futimens(descriptor, times.ctypes.data):
            raise _last_error()


class Scratch:
    """Memory that the kernel copies into: a nameless file of this process, mapped."""

    def __init__(self) -> None:
        if sys.platform == "linux":
            self._descriptor = os.memfd_create("outlast-scratch", os.MFD_CLOEXEC)
        else:
            with tempfile.TemporaryFile() as file:
                self._descriptor = os.dup(file.fileno())
        self._memory = np.empty(0, np.uint8)

    def __del__(self) -> None:
        with suppress(OSError):
            os.close(self._descriptor)

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return an array of this memory from its beginning: the same at every call."""
        size = int(np.prod(shape)) * dtype.itemsize
        if size > len(self._memory):
            size_bytes = -(-size // _HUGE_PAGE) * _HUGE_PAGE
            os.ftruncate(self._descriptor, size_bytes)
            mapped = mmap.mmap(self._descriptor, size_bytes)
            if hasattr(mmap, "MADV_HUGEPAGE"):
                with suppress(OSError):  # a kernel without them
                    mapped.madvise(mmap.MADV_HUGEPAGE)
            self._memory = np.frombuffer(mapped, np.uint8)
            self._memory[::_HUGE_PAGE] = 0  # a write by the kernel alone would take small pages
        return self._memory[:size].view(dtype).reshape(shape)

    def write(self, addresses: NDArray[np.int64], lengths: NDArray[np.int64] | int) -> None:
        """Copy runs of memory, one behind the other.

        Args:
            addresses: where each begins, int64 of shape (runs,).
            lengths: their bytes, of each or of all alike; ``array`` has made room for them.

        Raises:
            OSError: EFAULT where a page of a mapped file cannot be had; ENOSPC and the like.
        """
        runs = np.empty((len(addresses), 2), np.int64)
        runs[:, 0], runs[:, 1] = addresses, lengths
        at = 0
        for first in range(0, len(runs), _MOST_RUNS):
            some = runs[first : first + _MOST_RUNS]
            wanted = int(some[:, 1].sum())
            if (found := _pwritev(self._descriptor, some.ctypes.data, len(some), at)) != wanted:
                raise _last_error() if found < 0 else OSError(errno.EFAULT, os.strerror(errno.EFAULT))
            at += wanted


def _last_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


_threads = threading.local()


def scratch() -> Scratch:
    """Return the calling thread's own; what was copied into it before is written over."""
    held: Scratch | None = getattr(_threads, "held", None)
    if held is None:
        held = _threads.held = Scratch()
    return held


def _forget() -> None:
    """In a forked child: the memory is its parent's, too."""
    global _threads
    _threads = threading.local()


os.register_at_fork(after_in_child=_forget)
