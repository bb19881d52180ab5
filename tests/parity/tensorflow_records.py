"""Run by TensorFlow's own Python: reads our files with its reader, writes the same records with its writer.

In: a folder with ``values.npz`` (features by name) and our files ``ours-<set>-<compression>``. Out: beside
each, ``read-<set>-<compression>.npz`` with what TensorFlow parsed, and ``theirs-<set>-<compression>``.
"""

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np

tf: Any = importlib.import_module("tensorflow")
FOLDER = Path(sys.argv[1])
COMPRESSIONS = {"none": "", "gzip": "GZIP", "zlib": "ZLIB"}


def main() -> None:
    """Do it for every file of ours that lies in the folder."""
    with np.load(FOLDER / "values.npz") as file:
        values: dict[str, Any] = dict(file)
    for path in sorted(FOLDER.glob("ours-*")):
        _, features, compression = path.name.split("-")
        names = (FOLDER / f"names-{features}").read_text().split()
        read(path, {name: values[name] for name in names}, COMPRESSIONS[compression])
        write(path, {name: values[name] for name in names}, COMPRESSIONS[compression])


def read(path: Path, values: dict[str, Any], compression: str) -> None:
    """Parse our file as a trainer would."""
    shapes = {
        name: tf.io.FixedLenFeature(array.shape[1:], tf.float32 if array.dtype.kind == "f" else tf.int64)
        for name, array in values.items()
    }
    records = [
        tf.io.parse_single_example(record, shapes)
        for record in tf.data.TFRecordDataset(str(path), compression_type=compression)
    ]
    rows: dict[str, Any] = {name: np.stack([record[name].numpy() for record in records]) for name in values}
    np.savez(path.with_name(path.name.replace("ours", "read") + ".npz"), **rows)


def write(path: Path, values: dict[str, Any], compression: str) -> None:
    """Write the same records, keys in order."""
    with tf.io.TFRecordWriter(str(path).replace("ours", "theirs"), compression) as writer:
        for row in range(len(values["input_ids"])):
            example = tf.train.Example()
            for name, array in values.items():
                feature = example.features.feature[name]
                numbers = feature.float_list if array.dtype.kind == "f" else feature.int64_list
                numbers.value.extend(array[row].tolist())
            writer.write(example.SerializeToString(deterministic=True))


if __name__ == "__main__":
    main()
