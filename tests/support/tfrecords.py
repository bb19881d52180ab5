"""What an export wrote, read back."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from outlast.interchange.feature_sets import recognise, to_batch
from outlast.interchange.tf_example import Feature, decode_example
from outlast.interchange.tfrecord import read_records
from support.datasets import SPECIAL_IDS


def records_of(out: Path, document: dict[str, Any]) -> list[Mapping[str, Feature]]:
    found: list[Mapping[str, Feature]] = []
    for file in document["files"]:
        path = out / file["name"]
        with path.open("rb") as content:
            records = list(read_records(content, where=path.name))
        assert len(records) == file["num_records"] == int(path.name.split(".")[0].rpartition("-")[2])
        found += [decode_example(record.payload, path.name) for record in records]
    return found


def batch_of(records: list[Mapping[str, Feature]]) -> dict[str, NDArray[Any]]:
    shape = recognise(records[0], None, "f")
    return to_batch(records, shape, ["f"] * len(records), pad_id=SPECIAL_IDS["pad"])
