"""Pairs: tokens per second of building the tables on one core, and examples per second of streaming them.

A set of 64 million random tokens in 16 shards, sentences of 25 tokens and documents of 30 sentences in the
mean. The tables are built by one process through the library, from shards to the manifest. The stream
delivers shuffled batches over the whole set; "blocks" packing of the same length stands beside it.

    python benchmarks/streams/pairs.py --lengths 128 512 4096 --rounds 5
"""

import argparse
import itertools
import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import Literal

import numpy as np

from outlast.prepare.pairs import add_pairs
from outlast.shards.config import PairsConfig
from outlast.shards.document import MANIFEST_NAME
from outlast.shards.manifest import Manifest, TokenizerEntry, read_manifest, write_manifest
from outlast.shards.write import TokenShardWriter
from outlast.storage import LocalStore
from outlast.stream.config import StreamConfig
from outlast.stream.loader import TokenStream

NUM_TOKENS = 64_000_000
NUM_SHARDS = 16
NUM_PASSES = 2
VOCAB_SIZE = 32_000
SENTENCE_TOKENS = 25
DOCUMENT_SENTENCES = 30
BATCH_TOKENS = 32_768
IDS_PER_ROUND = 2**26


def make_shards(folder: Path) -> str:
    """Write the set; return the manifest's URL."""
    rng = np.random.default_rng(0)
    store = LocalStore(folder)
    entries = []
    for index in range(NUM_SHARDS):
        with TokenShardWriter(
            vocab_size=VOCAB_SIZE, separator_id=3, tokenizer_fingerprint="f", has_sentences=True
        ) as writer:
            while writer.num_tokens < NUM_TOKENS // NUM_SHARDS:
                lengths = rng.geometric(1 / SENTENCE_TOKENS, rng.geometric(1 / DOCUMENT_SENTENCES))
                writer.add(rng.integers(5, VOCAB_SIZE, lengths.sum(), np.uint16), lengths)
            entries.append(writer.write(store, f"train-{index:05d}.safetensors"))
    ids = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
    tokenizer = TokenizerEntry(path="tokenizer", fingerprint="f", vocab_size=VOCAB_SIZE, special_ids=ids)
    splits = {"train": tuple(entries)}
    write_manifest(store, Manifest(token_dtype="uint16", tokenizer=tokenizer, splits=splits, provenance={}))
    return str(folder / MANIFEST_NAME)


def build(url: str, length: int) -> str:
    """Build the tables of a length; return what is to be told."""
    began = time.perf_counter()
    add_pairs(url, PairsConfig(lengths=(length,), num_passes=NUM_PASSES), num_processes=1)
    seconds = time.perf_counter() - began
    manifest, _ = read_manifest(url)
    pair_set = manifest.pair_set(length)
    tables = pair_set.splits["train"]
    size = sum(table.size_bytes for table in tables) / pair_set.num_examples
    tokens = manifest.num_tokens("train") * NUM_PASSES
    return (
        f"build {length:5d}  {tokens / seconds / 1e6:6.1f}M tokens/s  "
        f"{pair_set.num_examples / seconds / 1e6:5.2f}M examples/s  {size:.2f} bytes an example  "
        f"label 1 in {pair_set.random_share:.1%}  peak {peak_mib()} MiB"
    )


def peak_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def stream_rate(url: str, length: int, packing: Literal["blocks", "pairs"], rounds: int) -> list[float]:
    """Return the examples per second of each round, after a warm-up."""
    batch = max(1, BATCH_TOKENS // length)
    config = StreamConfig(manifest=url, sequence_length=length, global_batch_size=batch, packing=packing)
    batches = TokenStream(config, seed=0).batches_from(0)
    num_batches = IDS_PER_ROUND // length // batch
    rates: list[float] = []
    for _ in range(1 + rounds):
        began = time.perf_counter()
        for _ in itertools.islice(batches, num_batches):
            pass
        rates.append(num_batches * batch / (time.perf_counter() - began))
    return rates[1:]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512, 4096])
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = make_shards(Path(folder))
        for length in arguments.lengths:
            print(build(url, length), flush=True)
        for length in arguments.lengths:
            for packing in ("pairs", "blocks"):
                rates = stream_rate(url, length, packing, arguments.rounds)
                print(
                    f"stream {length:5d} {packing:6s}  {statistics.median(rates) / 1e3:7.1f}k examples/s "
                    f"({min(rates) / 1e3:.1f} to {max(rates) / 1e3:.1f})",
                    flush=True,
                )


if __name__ == "__main__":
    main()
