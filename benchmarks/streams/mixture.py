r"""Examples per second of a mixture beside one data set, in one run.

Sets of random tokens, fixed-length examples, batches of int32 (batch, length). One set alone, one set with
the tokens and the shards of three, then mixtures of two, three and eight sets, with weights that have a small
common denominator and with ones that have none; all are measured in turn, round after round, and only one
reads at a time. The ratio of a round is that to the one set in the same round; the median of the rounds
counts. A batch visits every shard it has rows of, so a mixture compares with the set of as many shards.

    python benchmarks/streams/mixture.py --lengths 128 512 --rounds 7
    python benchmarks/streams/mixture.py \
        --lanes 16          # as large sets are read: many lanes, small windows
"""

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from stream_set import NUM_SHARDS, make_set, manifest_of

from outlast.stream.blocks import Batch
from outlast.stream.config import SourceConfig, StreamConfig
from outlast.stream.loader import TokenStream

MIXTURES: dict[str, tuple[float, ...]] = {
    "one set": (),
    "one set as large as 3": (),
    "2 sources": (0.7, 0.3),
    "3 sources": (0.7, 0.2, 0.1),
    "3 sources, odd weights": (0.6180339, 0.2718281, 0.1101380),
    "8 sources": (8, 7, 6, 5, 4, 3, 2, 1),
}
NUM_SETS = 8


def batches_of(
    urls: list[str], weights: tuple[float, ...], length: int, batch: int, lanes: int
) -> Iterator[Batch]:
    sources = tuple(
        SourceConfig(manifest=url, name=url, weight=weight)
        for url, weight in zip(urls, weights, strict=False)
    )
    config = StreamConfig(
        manifest=None if sources else urls[0],
        sources=sources,
        sequence_length=length,
        global_batch_size=batch,
        num_lanes=lanes,
        window_examples=None if lanes == 1 else 2**16,
        verify=False,
    )
    return TokenStream(config, seed=0).batches_from(0)


def rate(batches: Iterator[Batch], num_batches: int, batch: int) -> float:
    """Return examples per second, after as many batches as may have been read ahead."""
    for _ in itertools.islice(batches, num_batches // 4):
        pass
    began = time.perf_counter()
    for _ in itertools.islice(batches, num_batches):
        pass
    return num_batches * batch / (time.perf_counter() - began)


def measure(urls: list[str], length: int, arguments: argparse.Namespace) -> None:
    batch = arguments.batch
    num_batches = max(256, arguments.ids // length // batch)
    streams = {
        name: batches_of(
            urls[-1:] if name.endswith("large as 3") else urls, weights, length, batch, arguments.lanes
        )
        for name, weights in MIXTURES.items()
    }
    rates: dict[str, list[float]] = {name: [] for name in streams}
    for batches in streams.values():
        rate(batches, num_batches // 4, batch)  # windows sorted, pages in memory
    for _ in range(arguments.rounds):
        for name, batches in streams.items():
            rates[name].append(rate(batches, num_batches, batch))
    for name, found in rates.items():
        ratios = [ours / one for ours, one in zip(found, rates["one set"], strict=True)]
        print(
            f"L={length:5d} {name:23s} {statistics.median(found) / 1e3:8,.0f}k examples/s"
            f" ({min(found) / 1e3:,.0f} to {max(found) / 1e3:,.0f})"
            f"  {statistics.median(ratios):6.1%} of one set ({min(ratios):.1%} to {max(ratios):.1%})",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--lanes", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=16_000_000, help="of each set")
    parser.add_argument("--ids", type=int, default=2**28, help="of each mixture in a round")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        urls: list[str] = []
        for index in range(NUM_SETS):
            make_set(Path(folder, str(index)), arguments.tokens, seed=index)
            urls.append(manifest_of(Path(folder, str(index))))
        large = Path(folder, "large")
        make_set(large, 3 * arguments.tokens, seed=NUM_SETS, num_shards=3 * NUM_SHARDS)
        urls.append(manifest_of(large))
        for length in arguments.lengths:
            measure(urls, length, arguments)


if __name__ == "__main__":
    main()
