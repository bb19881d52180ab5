"""The streams as data sets of PyTorch, exact under the workers of a DataLoader and under several processes.

In: what ``outlast.open_stream`` and ``open_images`` take. Out: ``torch.utils.data.IterableDataset`` of whole
batches. Invariant: every batch of the stream comes once, in the stream's order, whatever the number of
workers, how they are started and how often; of several processes each has its own rows of every batch.

    dataset = StreamDataset("data/manifest.json", global_batch_size=256, sequence_length=512)
    for batch in DataLoader(dataset, batch_size=None, num_workers=3, pin_memory=True):
        loss = model(batch["input_ids"], batch["attention_mask"])
        step = batch.step + 1  # all the state there is: StreamDataset(..., start_step=step)

Needs torch, which nothing else of the package imports.
"""

# Of an extra: where it is not installed, its types are not known.
# pyright: reportMissingImports=false, reportUntypedBaseClass=false

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from outlast.config import checked
from outlast.errors import ConfigError
from outlast.images.stream import make_image_stream
from outlast.stream.blocks import Batch
from outlast.stream.examples import ExampleStream
from outlast.stream.loader import make_stream

__all__ = ["ImageDataset", "StreamDataset", "TensorBatch"]


class TensorBatch(dict[str, torch.Tensor]):
    """A batch as tensors by name, and the number of its step.

    Attributes:
        step: to resume behind this batch, open the stream with ``start_step=batch.step + 1``.
    """

    step: int


class StreamDataset(IterableDataset[TensorBatch]):
    """The batches of ``outlast.open_stream``, as tensors, for ``DataLoader(dataset, batch_size=None, ...)``.

    Each item is a whole batch. Every iteration begins at ``start_step``, which may be set between two
    iterations, also where workers persist. The state of training is the step behind the last batch that was
    used, ``batch.step + 1``; what workers have read ahead is no part of it.

    Args:
        manifest: as of ``open_stream``.
        global_batch_size: examples in a step, over all processes.
        start_step: the first step.
        stop_step: an iteration ends before this step; None: never, or with the evaluation.
        process_index, process_count: rank and number of the processes that train together. Default: those of
            ``torch.distributed`` where it is initialised, else one process.
        **options: further arguments of ``open_stream``: ``seed``, ``split``, ``evaluation``, ``word_starts``,
            and the keys of the ``[stream]`` table.

    Raises:
        ConfigError, ShardError: as ``open_stream``, at once and not first in a worker; one of several
            processes that nobody counted.
    """

    @checked
    def __init__(
        self,
        manifest: str | Path | Mapping[str, float] | None = None,
        *,
        global_batch_size: PositiveInt,
        start_step: NonNegativeInt = 0,
        stop_step: NonNegativeInt | None = None,
        process_index: NonNegativeInt | None = None,
        process_count: PositiveInt | None = None,
        **options: Any,
    ) -> None:
        index, count = _find_process(process_index, process_count)
        self._arguments: dict[str, Any] = {
            "manifest": manifest,
            "global_batch_size": global_batch_size,
            "process_index": index,
            "process_count": count,
            **options,
        }
        self._start_step = torch.zeros((), dtype=torch.int64).share_memory_()  # workers that persist see it
        self.start_step = start_step
        self.stop_step = stop_step
        self._open(1)  # a mistake shows here

    @property
    def start_step(self) -> int:
        """The step at which the next iteration begins."""
        return int(self._start_step)

    @start_step.setter
    @checked
    def start_step(self, step: NonNegativeInt) -> None:
        self._start_step.fill_(step)

    def __iter__(self) -> Iterator[TensorBatch]:
        worker = get_worker_info()
        number, num_workers = (0, 1) if worker is None else (worker.id, worker.num_workers)

        def read(step: int) -> Iterator[Batch]:
            evaluation = self._arguments.get("evaluation", False)
            return self._open(num_workers).read(step, evaluation=evaluation, every=num_workers)

        return _Steps(read, self.start_step + number, num_workers, self.stop_step)

    def _open(self, num_workers: int) -> ExampleStream:
        """Open the stream in one of several workers."""
        del num_workers
        return make_stream(**self._arguments)


class ImageDataset(StreamDataset):
    """The batches of ``outlast.open_images``, as tensors; all else as of ``StreamDataset``.

    Args:
        manifest: as of ``open_images``.
        **options: as of ``StreamDataset``, the further ones those of ``open_images``. Workers share the cores
            for decoding unless ``decode_threads`` is given.
    """

    def _open(self, num_workers: int) -> ExampleStream:
        threads = max(1, len(os.sched_getaffinity(0)) // num_workers)
        arguments: dict[str, Any] = {"decode_threads": threads, **self._arguments}
        return make_image_stream(**arguments)


class _Steps(Iterator[TensorBatch]):
    """Every so manieth batch from a step on. Its state is the next step, as of torchdata's ``Stateful``."""

    def __init__(
        self, read: Callable[[int], Iterator[Batch]], step: int, every: int, stop_step: int | None
    ) -> None:
        self._read, self._every, self._stop_step = read, every, stop_step
        self.load_state_dict({"step": step})

    def state_dict(self) -> dict[str, int]:
        return {"step": self._step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._step = state["step"]
        self._batches = self._read(self._step)

    def __next__(self) -> TensorBatch:
        if self._stop_step is not None and self._step >= self._stop_step:
            raise StopIteration
        # No copy: a tensor shares the memory of its array, which is used again only when it is gone.
        batch = TensorBatch({name: torch.from_numpy(array) for name, array in next(self._batches).items()})
        batch.step = self._step
        self._step += self._every
        return batch


def _find_process(index: int | None, count: int | None) -> tuple[int, int]:
    """Return rank and number of processes: as given, of torch.distributed, or of a single one."""
    if (index is None) != (count is None):
        raise ConfigError(
            "Of process_index and process_count one alone is given.",
            where=f"process_index={index}, process_count={count}",
            remedy="give both, or neither: then torch.distributed says them",
        )
    if index is not None and count is not None:
        return index, count
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    launched = os.environ.get("WORLD_SIZE", "1")
    if launched != "1":
        raise ConfigError(
            f"There are {launched} processes, and each would read every row of every batch.",
            where=f"WORLD_SIZE={launched}",
            remedy="call torch.distributed.init_process_group() before the data set is made, "
            "or give process_index and process_count",
        )
    return 0, 1


def _refuse_batches_of_batches(*_: Any, **__: Any) -> None:
    raise ConfigError(
        "The DataLoader makes batches of what are batches already.",
        where="DataLoader(batch_size=...)",
        expected="batch_size=None",
        remedy="DataLoader(dataset, batch_size=None, ...); global_batch_size says how large a batch is",
    )


default_collate_fn_map[TensorBatch] = _refuse_batches_of_batches
