"""Who reads a stream: one process, or the workers of a PyTorch DataLoader, which share out the steps.

In: batches. Out: the same batches, or an error where each of several workers or a forked child would read all
of them, so that every batch came several times. PyTorch is asked only where it is loaded already.
"""

import os
import sys
from collections.abc import Generator
from contextlib import closing
from typing import Any

from outlast.errors import ConfigError
from outlast.stream.blocks import Batch


def read_alone(batches: Generator[Batch], *, every: int) -> Generator[Batch]:
    """Yield batches, or raise ConfigError where another worker or process reads the same ones.

    Args:
        every: the batches are those of every so manieth step; 1: of all steps.

    Raises:
        ConfigError: all steps in one of several workers of a DataLoader, or in a process that was forked
            while they were read.
    """
    if every == 1:
        _refuse_workers()
    process = os.getpid()
    with closing(batches):
        for batch in batches:
            yield batch
            if os.getpid() != process:
                raise ConfigError(
                    "This process was forked from one that was reading the stream.",
                    remedy="open the stream where it is read; its state is the number of the step",
                )


def _refuse_workers() -> None:
    data: Any = sys.modules.get("torch.utils.data")
    worker = data.get_worker_info() if data else None
    if worker is not None and worker.num_workers > 1:
        raise ConfigError(
            f"Each of the DataLoader's {worker.num_workers} workers would read all of the stream, "
            f"so every batch would come {worker.num_workers} times.",
            where="DataLoader(num_workers=...)",
            remedy="outlast.pytorch.StreamDataset and ImageDataset share out the steps among workers and "
            "processes; or set num_workers to 0 or 1",
        )
