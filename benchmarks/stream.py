"""Examples per second of the stream, beside the limit of its format and beside its peers, in one run.

A set of 100 million random tokens, shuffled over the whole set, fixed-length examples, batches of numpy
arrays (or the peer's own tensors) with input_ids as int32. Every pipeline delivers the same examples; each is
warmed up, then measured in turn, round after round, and the median of the rounds counts. "gather" is the bare
NumPy gather from the memory map with a permuted index: what the format allows at most.

    python benchmarks/stream.py --lengths 128 512 4096 --rounds 5

Peers that are not installed are left out, and said so. Install them with: pip install torch==2.13.0
tensorflow-cpu grain array_record webdataset mosaicml-streaming datasets
"""

import argparse
import importlib.util
import io
import itertools
import json
import shutil
import statistics
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from outlast.shards.manifest import MANIFEST_NAME, Manifest, TokenizerEntry, write_manifest
from outlast.shards.write import TokenShardWriter
from outlast.storage import LocalStore
from outlast.stream.config import StreamConfig
from outlast.stream.loader import TokenStream

NUM_TOKENS = 100_000_000
PEER_TOKENS = 4_000_000
"""Peers with a file per shard or a record per example get a smaller set: their rate does not depend on its
size.
"""
NUM_SHARDS = 16
VOCAB_SIZE = 32_000

Pipeline = Callable[[Path, int, int], Iterator[Any]]
"""From the folder, the length and the batch to batches without end."""


def make_tokens(folder: Path) -> None:
    """Write the set once: flat for the gather and the peers, as token shards for the stream."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(5, VOCAB_SIZE, NUM_TOKENS, dtype=np.uint16)
    tokens.tofile(folder / "tokens.bin")
    store = LocalStore(folder / "outlast")
    entries = []
    for index, part in enumerate(np.array_split(tokens, NUM_SHARDS)):
        with TokenShardWriter(vocab_size=VOCAB_SIZE, separator_id=3, tokenizer_fingerprint="f") as writer:
            for document in np.array_split(part, 1000):
                writer.add(document)
            entries.append(writer.write(store, f"train-{index:05d}.safetensors"))
    ids = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
    tokenizer = TokenizerEntry(path="tokenizer", fingerprint="f", vocab_size=VOCAB_SIZE, special_ids=ids)
    splits = {"train": tuple(entries)}
    write_manifest(store, Manifest(token_dtype="uint16", tokenizer=tokenizer, splits=splits, provenance={}))


def rows_of(folder: Path, length: int) -> Any:
    """Return the flat tokens as a mapped array of examples."""
    tokens = np.memmap(folder / "tokens.bin", np.uint16, "r")
    return tokens[: len(tokens) // length * length].reshape(-1, length)


def peer_rows(folder: Path, length: int) -> Any:
    return rows_of(folder, length)[: PEER_TOKENS // length]


def gather(folder: Path, length: int, batch: int) -> Iterator[Any]:
    rows = rows_of(folder, length)
    for epoch in itertools.count():
        order = np.random.default_rng(epoch).permutation(len(rows))
        for first in range(0, len(rows) - batch + 1, batch):
            yield {"input_ids": rows[order[first : first + batch]].astype(np.int32)}


def outlast(folder: Path, length: int, batch: int) -> Iterator[Any]:
    config = StreamConfig(
        manifest=str(folder / "outlast" / MANIFEST_NAME), sequence_length=length, global_batch_size=batch
    )
    return TokenStream(config, seed=0).batches_from(0)


def outlast_text_only(folder: Path, length: int, batch: int) -> Iterator[Any]:
    """As the gather: no [CLS] and [SEP] around the text."""
    config = StreamConfig(
        manifest=str(folder / "outlast" / MANIFEST_NAME),
        sequence_length=length,
        global_batch_size=batch,
        special_tokens=False,
    )
    return TokenStream(config, seed=0).batches_from(0)


def torch_gather(folder: Path, length: int, batch: int) -> Iterator[Any]:
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
    while True:
        yield from DataLoader(data, sampler=sampler, batch_size=None)


def tf_data(folder: Path, length: int, batch: int) -> Iterator[Any]:
    """tf.data over fixed-length records, decoded a batch at a time."""
    import tensorflow as tf

    path = folder / f"fixed-{length}.bin"
    if not path.exists():
        np.ascontiguousarray(peer_rows(folder, length)).tofile(path)
    data = tf.data.FixedLengthRecordDataset(str(path), length * 2).shuffle(10_000).repeat()
    data = data.batch(batch, drop_remainder=True)
    data = data.map(
        lambda x: tf.cast(tf.io.decode_raw(x, tf.uint16), tf.int32), num_parallel_calls=tf.data.AUTOTUNE
    )
    yield from data.prefetch(tf.data.AUTOTUNE).as_numpy_iterator()


def hf_datasets(folder: Path, length: int, batch: int) -> Iterator[Any]:
    """Hugging Face datasets, map-style, numpy format, shuffled indices, whole batches."""
    import datasets

    path = folder / f"hf-{length}"
    if not path.exists():
        columns = {"input_ids": list(peer_rows(folder, length).astype(np.int32))}
        datasets.Dataset.from_dict(columns).save_to_disk(str(path))
    data = datasets.load_from_disk(str(path)).with_format("numpy")
    for epoch in itertools.count():
        order = np.random.default_rng(epoch).permutation(len(data))
        for first in range(0, len(data) - batch + 1, batch):
            yield data[order[first : first + batch]]


def webdataset(folder: Path, length: int, batch: int) -> Iterator[Any]:
    import webdataset as wds

    path = folder / f"wds-{length}-%06d.tar"
    names = sorted(folder.glob(f"wds-{length}-*.tar"))
    if not names:
        for shard, rows in enumerate(np.array_split(peer_rows(folder, length), 8)):
            with tarfile.open(str(path) % shard, "w") as tar:
                for index, row in enumerate(rows):
                    info = tarfile.TarInfo(f"{shard}-{index}.npy")
                    buffer = io.BytesIO()
                    np.save(buffer, row)
                    info.size = buffer.tell()
                    buffer.seek(0)
                    tar.addfile(info, buffer)
        names = sorted(folder.glob(f"wds-{length}-*.tar"))
    data = wds.WebDataset([str(name) for name in names], shardshuffle=8, seed=0).shuffle(10_000).decode()
    for _ in itertools.count():
        yield from data.to_tuple("npy").batched(batch, partial=False)


def mosaic(folder: Path, length: int, batch: int) -> Iterator[Any]:
    from streaming import MDSWriter, StreamingDataLoader, StreamingDataset

    path = folder / f"mds-{length}"
    if not path.exists():
        with MDSWriter(out=str(path), columns={"input_ids": "ndarray:uint16"}) as writer:
            for row in peer_rows(folder, length):
                writer.write({"input_ids": np.asarray(row)})
    data = StreamingDataset(local=str(path), shuffle=True, batch_size=batch)
    while True:
        yield from StreamingDataLoader(data, batch_size=batch, drop_last=True)


def grain_records(folder: Path, length: int, batch: int) -> Iterator[Any]:
    import grain.python as grain

    rows = peer_rows(folder, length)

    class Source:
        def __len__(self) -> int:
            return len(rows)

        def __getitem__(self, index: Any) -> Any:
            return rows[index].astype(np.int32)

    data = grain.MapDataset.source(Source()).shuffle(seed=0).repeat().batch(batch)
    yield from data.to_iter_dataset()


PIPELINES: dict[str, tuple[str | None, Pipeline]] = {
    "gather (limit)": (None, gather),
    "outlast": (None, outlast),
    "outlast, text only": (None, outlast_text_only),
    "torch DataLoader, whole-batch gather": ("torch", torch_gather),
    "tf.data": ("tensorflow", tf_data),
    "Hugging Face datasets": ("datasets", hf_datasets),
    "Grain": ("grain", grain_records),
    "WebDataset": ("webdataset", webdataset),
    "MosaicML Streaming": ("streaming", mosaic),
}


def rate(batches: Iterator[Any], batch: int, seconds: float) -> float:
    """Return examples per second over at least so many seconds."""
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        next(batches)
        count += batch
    return count / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512, 4096])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="measured per pipeline and round")
    parser.add_argument("--batch", type=int, default=256)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="outlast-stream-"))
    try:
        make_tokens(folder)
        for length in arguments.lengths:
            measure(folder, length, arguments)
    finally:
        shutil.rmtree(folder)


def measure(folder: Path, length: int, arguments: argparse.Namespace) -> None:
    """Measure all pipelines at one length, in turn, round after round, and print their medians."""
    running: dict[str, Iterator[Any]] = {}
    for name, (module, pipeline) in PIPELINES.items():
        if module is not None and importlib.util.find_spec(module) is None:
            print(f"L={length}  {name}: not installed")
            continue
        running[name] = pipeline(folder, length, arguments.batch)
        rate(running[name], arguments.batch, 0.5)
    rates: dict[str, list[float]] = {name: [] for name in running}
    for _ in range(arguments.rounds):
        for name, batches in running.items():
            rates[name].append(rate(batches, arguments.batch, arguments.seconds))
    limit = statistics.median(rates["gather (limit)"])
    for name, found in rates.items():
        median = statistics.median(found)
        print(
            f"L={length}  {name:38s} {median:12,.0f} examples/s  ({min(found):,.0f} to {max(found):,.0f})"
            f"  {median / limit:7.1%} of the limit",
            flush=True,
        )
    print(json.dumps({"length": length, "rates": rates}))


if __name__ == "__main__":
    main()
