"""Recycled memory: used again when nobody refers to it, and never before."""

import gc
from typing import Any

import numpy as np
import pytest

from outlast.stream.memory import RecycledMemory


def address(array: np.ndarray[Any, Any]) -> int:
    return array.__array_interface__["data"][0]


def test_memory_is_used_again_once_the_array_is_gone() -> None:
    memory = RecycledMemory(2)
    first = memory.empty((8, 4), np.int32)
    assert (first.shape, first.dtype, first.flags.writeable) == ((8, 4), np.dtype(np.int32), True)
    where = address(first)
    del first
    assert address(memory.empty((8, 4), np.int32)) == where


@pytest.mark.parametrize(
    "view", [lambda a: a[2:3], lambda a: a.T[1], lambda a: memoryview(a), lambda a: a.view(np.int8)]
)
def test_memory_is_not_used_again_while_anything_shares_it(view: Any) -> None:
    memory = RecycledMemory(2)
    first = memory.empty((8, 4), np.int32)
    where = address(first)
    kept = view(first)
    del first
    gc.collect()
    second = memory.empty((8, 4), np.int32)
    assert address(second) != where
    del kept
    assert address(memory.empty((8, 4), np.int32)) == where


def test_memory_goes_only_to_arrays_of_its_size() -> None:
    memory = RecycledMemory(2)
    del [memory.empty((8, 4), np.int32)][0]
    assert memory.empty((8, 5), np.int32).nbytes == 160
    assert memory.empty((32, 4), np.int8).nbytes == 128


def test_the_stock_is_bounded() -> None:
    memory = RecycledMemory(2)
    arrays = [memory.empty((1, 8), np.int8) for _ in range(5)]
    assert memory.spare_bytes == 0
    arrays.clear()
    assert memory.spare_bytes == 2 * 8
