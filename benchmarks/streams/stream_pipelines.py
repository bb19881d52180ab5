"""The pipelines that the stream benchmark compares: this package's stream and its peers.

In: the folder of the set (``stream_set``), a length, a batch size. Out: batches of int32 (batch, length)
without end, as the peer yields them. Every peer is set up as its documentation advises for speed, in more
than one way where it is not plain which is the fastest.

A peer that can read the flat file or a table of it reads the whole set and shuffles over all of it.
WebDataset and MosaicML Streaming need a record per example; they get the set's first ``RECORDS`` examples,
for their rate does not depend on the number, and writing the others takes minutes.
"""

import io
import itertools
import tarfile
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stream_set import manifest_of, rows_of

from outlast.stream.config import StreamConfig
from outlast.stream.loader import TokenStream

RECORDS = 16_384
_TAR_SHARDS = 8

Batches = Iterator[Any]


def gather(folder: Path, length: int, batch: int) -> Batches:
    """The limit of the format: random rows of the mapped file, widened, in one thread."""
    rows = rows_of(folder, length)
    for epoch in itertools.count():
        order = np.random.default_rng(epoch).permutation(len(rows))
        for first in range(0, len(rows) - batch + 1, batch):
            yield rows[order[first : first + batch]].astype(np.int32)


def gather_two_threads(folder: Path, length: int, batch: int) -> Batches:
    """The same in two threads, each with 8 MiB of ids at a time: what the format allows on two cores."""
    rows = rows_of(folder, length)
    together = max(1, 2**21 // (batch * length))

    def several(order: NDArray[np.int64]) -> list[NDArray[np.int32]]:
        return [rows[part].astype(np.int32) for part in order.reshape(-1, batch)]

    with ThreadPoolExecutor(2) as readers:
        ahead: deque[Future[list[NDArray[np.int32]]]] = deque()
        for epoch in itertools.count():
            order = np.random.default_rng(epoch).permutation(len(rows))[: len(rows) // batch * batch]
            for first in range(0, len(order), batch * together):
                ahead.append(readers.submit(several, order[first : first + batch * together]))
                if len(ahead) > 2:
                    yield from ahead.popleft().result()


def outlast(folder: Path, length: int, batch: int, *, special_tokens: bool = False) -> Batches:
    config = StreamConfig(
        manifest=manifest_of(folder),
        sequence_length=length,
        global_batch_size=batch,
        special_tokens=special_tokens,
    )
    return TokenStream(config, seed=0).batches_from(0)


def outlast_framed(folder: Path, length: int, batch: int) -> Batches:
    """As a recipe has it: [CLS] and [SEP] around ``length - 2`` tokens."""
    return outlast(folder, length, batch, special_tokens=True)


def torch_gather(folder: Path, length: int, batch: int, *, workers: int = 0) -> Batches:
    """torch's DataLoader with whole batches gathered from the memory map: its fastest form."""
    import torch
    from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

    rows = rows_of(folder, length)

    class Rows(Dataset):  # pyright: ignore[reportMissingTypeArgument]
        def __len__(self) -> int:
            return len(rows)

        def __getitem__(self, index: Any) -> Any:
            return torch.from_numpy(rows[np.asarray(index)].astype(np.int32))

    data = Rows()
    sampler = BatchSampler(RandomSampler(data), batch, drop_last=True)
    loader = DataLoader(
        data, sampler=sampler, batch_size=None, num_workers=workers, persistent_workers=bool(workers)
    )
    while True:
        yield from loader


def tf_data(folder: Path, length: int, batch: int, *, buffer: int | None = None) -> Batches:
    """tf.data over fixed-length records, decoded a batch at a time; the buffer holds the whole set."""
    import tensorflow as tf

    data = tf.data.FixedLengthRecordDataset(str(folder / "tokens.bin"), length * 2)
    data = data.shuffle(buffer or len(rows_of(folder, length))).repeat().batch(batch, drop_remainder=True)
    data = data.map(
        lambda x: tf.cast(tf.io.decode_raw(x, tf.uint16), tf.int32), num_parallel_calls=tf.data.AUTOTUNE
    )
    yield from data.prefetch(tf.data.AUTOTUNE).as_numpy_iterator()


def tf_data_small_buffer(folder: Path, length: int, batch: int) -> Batches:
    return tf_data(folder, length, batch, buffer=10_000)


def prepare_hf(folder: Path, length: int) -> None:
    import datasets
    import pyarrow as pa

    path = folder / f"hf-{length}"
    if not path.exists():
        flat = pa.array(np.asarray(rows_of(folder, length)).reshape(-1).astype(np.int32))
        table = pa.table({"input_ids": pa.FixedSizeListArray.from_arrays(flat, length)})
        datasets.Dataset(table).save_to_disk(str(path))


def hf_datasets(folder: Path, length: int, batch: int) -> Batches:
    """Hugging Face datasets, map-style, numpy format, whole batches of permuted indices."""
    import datasets

    data = datasets.load_from_disk(str(folder / f"hf-{length}")).with_format("numpy", dtype=np.int32)
    for epoch in itertools.count():
        order = np.random.default_rng(epoch).permutation(len(data))
        for first in range(0, len(data) - batch + 1, batch):
            yield data[order[first : first + batch]]


def hf_workers(folder: Path, length: int, batch: int) -> Batches:
    """The same through torch's DataLoader with workers, which fetches whole batches."""
    import datasets
    import torch
    from torch.utils.data import DataLoader

    data = datasets.load_from_disk(str(folder / f"hf-{length}")).with_format("torch", dtype=torch.int32)
    loader = DataLoader(
        data, batch_size=batch, shuffle=True, drop_last=True, num_workers=2, persistent_workers=True
    )
    while True:
        yield from loader


def grain_records(folder: Path, length: int, batch: int, *, threads: int = 16) -> Batches:
    """Grain over the memory map, an example at a time; 16 threads are its default."""
    import grain.python as grain

    rows = rows_of(folder, length)

    class Source:
        def __len__(self) -> int:
            return len(rows)

        def __getitem__(self, index: Any) -> Any:
            return rows[index].astype(np.int32)

    data = grain.MapDataset.source(Source()).shuffle(seed=0).repeat().batch(batch)
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=500 if threads else 0)
    yield from data.to_iter_dataset(options)


def grain_no_threads(folder: Path, length: int, batch: int) -> Batches:
    """As its documentation advises for a source in memory."""
    return grain_records(folder, length, batch, threads=0)


def prepare_webdataset(folder: Path, length: int) -> None:
    if _tars(folder, length):
        return
    for shard, rows in enumerate(np.array_split(rows_of(folder, length)[:RECORDS], _TAR_SHARDS)):
        with tarfile.open(folder / f"wds-{length}-{shard:06d}.tar", "w") as tar:
            for index, row in enumerate(rows):
                buffer = io.BytesIO()
                np.save(buffer, row)
                info = tarfile.TarInfo(f"{shard}-{index}.npy")
                info.size = buffer.tell()
                buffer.seek(0)
                tar.addfile(info, buffer)


def webdataset(folder: Path, length: int, batch: int, *, workers: int = 0) -> Batches:
    import webdataset as wds

    data = wds.WebDataset(_tars(folder, length), shardshuffle=_TAR_SHARDS, seed=0).shuffle(10_000).decode()
    data = data.to_tuple("npy").batched(batch, partial=False).map(lambda found: found[0].astype(np.int32))
    loader = wds.WebLoader(data.repeat(), batch_size=None, num_workers=workers) if workers else data.repeat()
    yield from loader


def prepare_mosaic(folder: Path, length: int) -> None:
    from streaming import MDSWriter

    path = folder / f"mds-{length}"
    if not path.exists():
        with MDSWriter(out=str(path), columns={"input_ids": "ndarray:uint16"}) as writer:
            for row in rows_of(folder, length)[:RECORDS]:
                writer.write({"input_ids": np.asarray(row)})


def mosaic(folder: Path, length: int, batch: int, *, workers: int = 0) -> Batches:
    import torch
    from streaming import StreamingDataLoader, StreamingDataset

    data = StreamingDataset(local=str(folder / f"mds-{length}"), shuffle=True, batch_size=batch)
    loader = StreamingDataLoader(
        data, batch_size=batch, drop_last=True, num_workers=workers, persistent_workers=bool(workers)
    )
    while True:
        for found in loader:
            yield found["input_ids"].to(torch.int32)


def with_workers(pipeline: Callable[..., Batches]) -> Callable[..., Batches]:
    return lambda folder, length, batch: pipeline(folder, length, batch, workers=2)


@dataclass(frozen=True)
class Pipeline:
    """One line of the comparison."""

    module: str | None
    """What must be installed."""
    batches: Callable[[Path, int, int], Batches]
    prepare: Callable[[Path, int], None] | None = None
    same_examples: bool = True
    """Whether its examples are rows of the flat file."""


PIPELINES = {
    "gather (limit)": Pipeline(None, gather),
    "gather, 2 threads": Pipeline(None, gather_two_threads),
    "outlast": Pipeline(None, outlast),
    "outlast, framed": Pipeline(None, outlast_framed, same_examples=False),
    "torch, whole-batch gather": Pipeline("torch", torch_gather),
    "torch, the same, 2 workers": Pipeline("torch", with_workers(torch_gather)),
    "tf.data": Pipeline("tensorflow", tf_data),
    "tf.data, buffer of 10,000": Pipeline("tensorflow", tf_data_small_buffer),
    "Hugging Face datasets": Pipeline("datasets", hf_datasets, prepare_hf),
    "Hugging Face datasets, 2 workers": Pipeline("datasets", hf_workers, prepare_hf),
    "Grain": Pipeline("grain", grain_records),
    "Grain, no threads": Pipeline("grain", grain_no_threads),
    "WebDataset": Pipeline("webdataset", webdataset, prepare_webdataset),
    "WebDataset, 2 workers": Pipeline("webdataset", with_workers(webdataset), prepare_webdataset),
    "MosaicML Streaming": Pipeline("streaming", mosaic, prepare_mosaic),
    "MosaicML Streaming, 2 workers": Pipeline("streaming", with_workers(mosaic), prepare_mosaic),
}


def _tars(folder: Path, length: int) -> list[str]:
    return [str(path) for path in sorted(folder.glob(f"wds-{length}-*.tar"))]
