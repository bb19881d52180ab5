"""Records a second: our TFRecord reader and writer beside TensorFlow's, in one process, turn by turn.

    python benchmarks/preparation/tfrecord.py [--records 50000] [--length 128] [--predictions 20] [--rounds 5]

Needs the extra ``peers``. Records are BERT's seven features with random ids below 30,000. TensorFlow reads
with tf.data in the ways that its trainers use: one record parsed at a time, and batches of 1024 parsed
together, with all cores. Ours runs on one core.
"""

import argparse
import importlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from outlast.interchange.feature_sets import Shape, recognise, to_batch, to_messages
from outlast.interchange.record_files import batches
from outlast.interchange.static_masks import StaticMasks
from outlast.interchange.tf_example import decode_example
from outlast.interchange.tfrecord import frame

BATCH = 1024


def make_rows(num_rows: int, length: int, predictions: int) -> dict[str, Any]:
    """Return masked rows of [CLS] tokens [SEP]."""
    ids = np.random.default_rng(0).integers(5, 30_000, (num_rows, length)).astype(np.int32)
    ids[:, 0], ids[:, -1] = 2, 3
    masks = StaticMasks(
        num_predictions=predictions,
        vocab_size=30_000,
        mask_id=4,
        special_ids=(0, 1, 2, 3, 4),
        mask_probability=0.15,
        mask_share=0.8,
        random_share=0.1,
    )
    return masks.apply({"input_ids": ids, "attention_mask": np.ones_like(ids, np.int8)}, np.arange(num_rows))


def our_write(rows: dict[str, Any], shape: Shape, path: Path) -> None:
    """Write a file from arrays."""
    with path.open("wb") as file:
        for first in range(0, len(rows["input_ids"]), BATCH):
            part = {name: array[first : first + BATCH] for name, array in rows.items()}
            file.write(b"".join([frame(message) for message in to_messages(part, shape)]))


def our_records(path: Path) -> int:
    """Read every record, checksums verified."""
    return sum(len(records) for records in batches(str(path), None))


def our_arrays(path: Path) -> int:
    """Read every record into arrays, as an import does."""
    shape, count = None, 0
    for records in batches(str(path), None):
        features = [decode_example(record.payload, "f") for record in records]
        shape = shape or recognise(features[0], None, "f")
        count += len(to_batch(features, shape, ["f"] * len(features), pad_id=0)["input_ids"])
    return count


def tensorflow_ways(path: Path, shape: Shape, rows: dict[str, Any]) -> dict[str, Callable[[], int]]:
    """Return what TensorFlow does with the same file."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    tf: Any = importlib.import_module("tensorflow")

    spec = {
        column.feature: tf.io.FixedLenFeature(
            [shape.length(column.size)], tf.float32 if column.kind == "float" else tf.int64
        )
        for column in shape.columns
    }

    def records() -> int:
        return sum(1 for _ in tf.data.TFRecordDataset(str(path)).batch(BATCH)) * BATCH

    def one_by_one() -> int:
        data = tf.data.TFRecordDataset(str(path)).map(
            lambda record: tf.io.parse_single_example(record, spec), num_parallel_calls=tf.data.AUTOTUNE
        )
        return sum(len(batch["input_ids"]) for batch in data.batch(BATCH))

    def together() -> int:
        data = (
            tf.data.TFRecordDataset(str(path))
            .batch(BATCH)
            .map(lambda batch: tf.io.parse_example(batch, spec), num_parallel_calls=tf.data.AUTOTUNE)
        )
        return sum(len(batch["input_ids"]) for batch in data)

    def write() -> int:
        num_rows = min(len(rows["input_ids"]), 5000)  # it is slow
        with tf.io.TFRecordWriter(str(path) + ".theirs") as writer:
            for row in range(num_rows):
                example = tf.train.Example()
                for column in shape.columns:
                    values = rows.get(column.array, np.zeros((num_rows, shape.length(column.size)), np.int64))
                    feature = example.features.feature[column.feature]
                    numbers = feature.float_list if column.kind == "float" else feature.int64_list
                    numbers.value.extend(values[row].tolist())
                writer.write(example.SerializeToString())
        return num_rows

    return {
        "tensorflow: records, batched": records,
        "tensorflow: parse_single_example": one_by_one,
        "tensorflow: parse_example of 1024": together,
        "tensorflow: write from arrays": write,
    }


def main() -> None:
    """Measure and print one line for each way."""
    parser = argparse.ArgumentParser()
    for name, default in (("records", 50_000), ("length", 128), ("predictions", 20), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    rows = make_rows(options.records, options.length, options.predictions)
    shape = Shape("bert", options.length, options.predictions)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "f.tfrecord")
        our_write(rows, shape, path)
        size = path.stat().st_size
        block = os.urandom(2**26)
        ways: dict[str, Callable[[], int]] = {
            "outlast: records": lambda: our_records(path),
            "outlast: arrays": lambda: our_arrays(path),
            "outlast: write from arrays": lambda: our_write(rows, shape, path) or options.records,
            **tensorflow_ways(path, shape, rows),
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        counts: dict[str, int] = {}
        for _ in range(options.rounds):
            for name, way in ways.items():
                began = time.perf_counter()
                counts[name] = way()
                times[name].append(time.perf_counter() - began)
        began = time.perf_counter()
        google_crc32c.value(block)
        print(f"CRC-32C: {len(block) / 1e6 / (time.perf_counter() - began):.0f} MB/s")
        print(f"{options.records} records of {size / options.records:.0f} bytes; median (least - most)")
        for name, seconds in times.items():
            rates = [counts[name] / second for second in seconds]
            rate = statistics.median(rates)
            print(
                f"{name:<36} {rate:>9.0f} records/s ({min(rates):.0f} - {max(rates):.0f}), "
                f"{rate * size / options.records / 1e6:.0f} MB/s"
            )


if __name__ == "__main__":
    main()
