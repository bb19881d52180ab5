"""TFRecord files beside TensorFlow: it reads ours to the same values, and writes the same bytes."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outlast.interchange.feature_sets import FEATURE_SETS, Shape, to_messages
from outlast.interchange.tfrecord import Compression, open_object, read_records
from outlast.storage import LocalStore
from support.records import Batch, masked_rows, to_file_content

pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(
        importlib.util.find_spec("tensorflow") is None,
        reason="TensorFlow is not installed (pip install outlast[peers], on Linux x86-64)",
    ),
]
ROWS, LENGTH, SLOTS = 40, 64, 5
COMPRESSIONS: list[Compression] = ["none", "gzip", "zlib"]
FILES = [(features, compression) for features in FEATURE_SETS for compression in COMPRESSIONS]


def rows() -> Batch:
    """Rows whose values take one byte and more, up to all ten."""
    batch = masked_rows(ROWS, LENGTH)
    batch["labels"] = np.array([(-1) ** row * 2 ** (row * 63 // ROWS) for row in range(ROWS)])
    batch["example_weights"] = np.ones(ROWS, np.int64)
    return batch


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our files, and what TensorFlow made of them."""
    folder, batch = tmp_path_factory.mktemp("tensorflow"), rows()
    values: dict[str, Any] = {}
    for features, columns in FEATURE_SETS.items():
        shape = Shape(features, LENGTH, SLOTS)
        for column in columns:
            length = shape.length(column.size)
            dtype = np.float32 if column.kind == "float" else np.int64
            values[column.feature] = batch[column.array].reshape(ROWS, length).astype(dtype)
        (folder / f"names-{features}").write_text(" ".join(column.feature for column in columns))
        for compression in COMPRESSIONS:
            content = to_file_content(to_messages(batch, shape), compression)
            (folder / f"ours-{features}-{compression}").write_bytes(content)
    np.savez(folder / "values.npz", **values)
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("tensorflow_records.py")), str(folder)],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.parametrize(("features", "compression"), FILES)
def test_tensorflow_reads_what_we_write(folder: Path, features: str, compression: str) -> None:
    with (
        np.load(folder / "values.npz") as values,
        np.load(folder / f"read-{features}-{compression}.npz") as read,
    ):
        assert set(read) == set((folder / f"names-{features}").read_text().split())
        for name in read:
            np.testing.assert_array_equal(read[name], values[name])


@pytest.mark.parametrize(("features", "compression"), FILES)
def test_we_read_what_tensorflow_writes(folder: Path, features: str, compression: str) -> None:
    payloads: list[list[bytes]] = []
    for whose in ("ours", "theirs"):
        file = open_object(LocalStore(folder), f"{whose}-{features}-{compression}")
        with file:
            payloads.append([record.payload for record in read_records(file, where="f")])
    assert payloads[0] == payloads[1]
    assert len(payloads[1]) == ROWS


@pytest.mark.parametrize("features", FEATURE_SETS)
def test_the_bytes_of_a_file_are_the_same(folder: Path, features: str) -> None:
    ours, theirs = ((folder / f"{whose}-{features}-none").read_bytes() for whose in ("ours", "theirs"))
    assert ours == theirs
