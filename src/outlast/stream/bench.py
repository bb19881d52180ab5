"""How fast a data set can be streamed here, and what limits it: store or disk, decoding or memory.

In: the ``[stream]`` table, and what opens it. Out: rates of the whole stream and of each of its parts
alone, in examples per second, so that the smallest names the limit. Bounded in time; what was fetched is
deleted unless a cache folder is named.
"""

import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np

from outlast.errors import StorageError
from outlast.shards.manifest import FileEntry
from outlast.storage import Store
from outlast.stream.blocks import Batch
from outlast.stream.config import StreamConfig
from outlast.stream.loader import TokenStream
from outlast.stream.remote.cancel import Cancellation, Cancelled
from outlast.stream.remote.ranges import InFlight, copy_object

_LATENCY_REQUESTS = 7
_NEAR = 1.25
"""A part this much faster than the slowest is no limit, but not far from being one."""

_REMEDIES = {
    "store": "Keep the data in stream.cache_dir on a local disk that holds all of it, or move the machine "
    "to the store's region.",
    "decoding": "Give it more cores, or store the pictures anew: outlast shards repack.",
    "gathering": "Raise stream.reader_threads, or make examples longer.",
    "disk": "Move the data set to a faster disk; one that was read before comes from memory, and is faster.",
    "memory": "Nothing is left to gain: the batches are made as fast as memory takes them.",
}


@dataclass(frozen=True)
class StreamRates:
    """What was measured; rates in examples per second unless said otherwise.

    Attributes:
        examples_per_second: of the whole stream, from the second batch on; 0 where none came in time.
        first_batch_seconds: until the first batch; None where none came in time.
        waiting_share: of a consumer whose step takes ``step_seconds``, 0 to 1, from the second batch on.
        store_examples_per_second: if the store, of a local data set the disk, were all there is.
        store_megabytes_per_second: of fetching alone, in memory.
        latency_seconds: of a request for one byte, median.
        decode_examples_per_second: of decoding, or for text of gathering, alone; None where nothing came.
        copy_examples_per_second: of copying finished batches in memory; None where nothing came.
        source: where the shards lie: ``store``, or ``disk`` of a local data set.
        limit: the source, ``decoding``, ``gathering`` or ``memory``.
        verdict: what limits the stream, and what to change, in a sentence each.
    """

    examples_per_second: float
    first_batch_seconds: float | None
    waiting_share: float
    store_examples_per_second: float
    store_megabytes_per_second: float
    latency_seconds: float
    decode_examples_per_second: float | None
    copy_examples_per_second: float | None
    source: Literal["store", "disk"]
    limit: str
    verdict: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Measured(Protocol):
    """A stream that can be measured: of text, or of what else has a manifest of shards."""

    config: StreamConfig
    store: Store
    process_batch_size: int

    @property
    def manifest(self) -> "_Manifest": ...
    @property
    def num_examples(self) -> int: ...
    def batch(self, step: int) -> Batch: ...
    def batches_from(self, step: int) -> Generator[Batch]: ...


class _Manifest(Protocol):
    def shards(self, split: str) -> Sequence[FileEntry]: ...


class Open(Protocol):
    """Opens a stream."""

    def __call__(self, config: Any, *, seed: int, split: str) -> Measured: ...


Work = Literal["gathering", "decoding"]
"""What making a batch from shards that are there consists of."""


def measure_stream(
    config: StreamConfig,
    *,
    seconds: float = 20.0,
    step_seconds: float = 0.0,
    split: str = "train",
    open_stream: Open = TokenStream,
    work: Work = "gathering",
) -> StreamRates:
    """Measure a data set: the store alone, the whole stream, decoding alone and copying alone.

    Args:
        config: the ``[stream]`` table. Where it names no cache folder, a temporary one is used, so that the
            store is read anew.
        seconds: for everything; a request that is under way is waited for besides.
        step_seconds: how long the consumer takes for a batch, for the waiting share.
        split: of the manifest.
        open_stream: makes the stream of the table.
        work: what its batches cost; decoding brings threads of its own.

    Raises:
        ConfigError, ShardError, StorageError: as the stream.
    """
    part = seconds / 4
    place = nullcontext(config.cache_dir) if config.cache_dir else tempfile.TemporaryDirectory("-outlast")
    with place as folder:
        stream = open_stream(replace(config, cache_dir=str(folder)), seed=0, split=split)
        entries = stream.manifest.shards(split)
        names = [(entry.name, entry.size_bytes) for entry in entries]
        example_bytes = sum(size for _, size in names) / stream.num_examples
        latency = _measure_latency(stream.store, names)
        bytes_per_second = _measure_store(stream.store, names, part)
        rate, first, waiting = _measure_whole(stream, 2 * part, step_seconds)
        decode = copy = None
        if first is not None:
            decode, batch = _measure_parts(stream, part / 2, work)
            copy = _repeat(lambda: [np.copy(array) for array in batch.values()], part / 2)
            copy *= stream.process_batch_size
    store = bytes_per_second / example_bytes
    source = "store" if stream.store.local_path(names[0][0]) is None else "disk"
    rates = {source: store, work: decode, "memory": copy}
    limit = min((alone, name) for name, alone in rates.items() if alone is not None)[1]
    return StreamRates(
        examples_per_second=rate,
        first_batch_seconds=first,
        waiting_share=waiting,
        store_examples_per_second=store,
        store_megabytes_per_second=bytes_per_second / 1e6,
        latency_seconds=latency,
        decode_examples_per_second=decode,
        copy_examples_per_second=copy,
        source=source,
        limit=limit,
        verdict=_verdict(limit, rates),
    )


def _verdict(limit: str, rates: Mapping[str, float | None]) -> str:
    known = {name: rate for name, rate in rates.items() if rate is not None}
    others = ", ".join(f"{name} {rate:,.0f}" for name, rate in known.items() if name != limit)
    sentence = f"The limit is {limit}: {known[limit]:,.0f} examples/s alone"
    sentence += (
        f", where the other parts alone reach: {others}." if others else "; nothing else could be measured."
    )
    near = [name for name, rate in known.items() if name != limit and rate < _NEAR * known[limit]]
    close = f" Next comes {near[0]}, close behind." if near else ""
    return f"{sentence}{close} {_REMEDIES[limit]}"


def _measure_latency(store: Store, names: list[tuple[str, int]]) -> float:
    name = names[0][0]
    store.retry(store.read_range, name, 0, 1)  # names are resolved, connections made
    found: list[float] = []
    for start in range(_LATENCY_REQUESTS):
        began = time.perf_counter()
        store.retry(store.read_range, name, start, 1)
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def _measure_store(store: Store, names: list[tuple[str, int]], seconds: float) -> float:
    """Return the bytes per second of reading shards, one after the other, as the stream does."""
    in_flight = InFlight()
    began = time.perf_counter()
    num_bytes = 0

    def count(_: int, content: bytes) -> None:
        nonlocal num_bytes
        num_bytes += len(content)

    def is_over() -> bool:
        return time.perf_counter() - began > seconds

    for name, size in _around(names):
        try:
            copy_object(store, name, size, count, in_flight, Cancellation(is_over))
        except Cancelled:
            break
        if is_over():
            break
    if not num_bytes:
        raise StorageError(
            f"The store gave nothing within {seconds:.1f} s.",
            where=store.url,
            remedy="give it more --seconds",
        )
    return num_bytes / (time.perf_counter() - began)


def _around(names: list[tuple[str, int]]) -> Iterator[tuple[str, int]]:
    while True:
        yield from names


def _measure_whole(
    stream: Measured, seconds: float, step_seconds: float
) -> tuple[float, float | None, float]:
    """Return examples per second, the time to the first batch, and the waiting share."""
    found: list[tuple[float, float | None, float]] = []

    def consume() -> None:
        began = time.perf_counter()
        batches = stream.batches_from(0)
        try:
            next(batches)
            first = time.perf_counter() - began
            waited, done, stop = 0.0, 0, max(began + seconds, time.perf_counter() + seconds / 4)
            while (asked := time.perf_counter()) < stop:
                next(batches)
                waited += time.perf_counter() - asked
                done += 1
                time.sleep(step_seconds)
            elapsed = time.perf_counter() - began - first
            found.append((done * stream.process_batch_size / elapsed, first, waited / elapsed))
        finally:
            batches.close()

    errors: list[BaseException] = []

    def work() -> None:
        try:
            consume()
        except BaseException as error:
            errors.append(error)

    # A first batch may need more than the time there is: then this one is left to end by itself.
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(2 * seconds)
    if errors:
        raise errors[0]
    return found[0] if found else (0.0, None, 1.0)


def _measure_parts(stream: Measured, seconds: float, work: Work) -> tuple[float, Batch]:
    """Return examples per second of making batches from shards that are there, and one of the batches."""
    batch = stream.batch(0)
    threads = 1 if work == "decoding" else stream.config.reader_threads
    with ThreadPoolExecutor(threads) as pool:
        rates = pool.map(lambda _: _repeat(lambda: stream.batch(0), seconds), range(threads))
        return sum(rates) * stream.process_batch_size, batch


def _repeat(action: Callable[[], object], seconds: float) -> float:
    """Return how often per second an action can be done."""
    action()
    began = time.perf_counter()
    done = 0
    while done == 0 or time.perf_counter() - began < seconds:
        action()
        done += 1
    return done / (time.perf_counter() - began)
