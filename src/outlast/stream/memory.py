"""Memory that is used again: arrays for batches without the cost of fresh pages.

In: a shape and a dtype. Out: an uninitialised array. Invariant: memory is handed out again only after the
array, and everything that shares its memory (a slice, a tensor made of it, an accelerator's pending copy of
it), is gone. So whoever keeps a batch keeps what is in it; who drops it gives its memory back.

A system hands out pages filled with zeros. For a batch of 4 MiB that costs as much as filling it.
"""

import math
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Empty = Callable[[tuple[int, ...], Any], NDArray[Any]]
"""As ``numpy.empty``: from a shape and a dtype to an uninitialised array."""


class RecycledMemory:
    """A stock of memory that nobody uses at the moment. Threads may share it.

    Args:
        most: arrays of one size that are kept in stock; what is given back beyond is freed.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._stock: dict[int, deque[NDArray[np.uint8]]] = {}

    @property
    def spare_bytes(self) -> int:
        """Bytes in stock."""
        return sum(memory.nbytes for stock in self._stock.values() for memory in stock)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """Return an uninitialised array, on memory that was given back where there is some."""
        size_bytes = math.prod(shape) * np.dtype(dtype).itemsize
        stock = self._stock.setdefault(size_bytes, deque(maxlen=self._most))
        try:
            memory = stock.pop()
        except IndexError:
            memory = np.empty(size_bytes, np.uint8)
        # NumPy looks for the base of a view behind arrays, but not behind the memoryview ``data``. So this
        # array is the base of all its views, and dies with the last of them.
        array = np.frombuffer(memory.data, dtype)
        weakref.finalize(array, stock.append, memory).atexit = False
        return array.reshape(shape)
