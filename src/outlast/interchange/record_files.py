"""The files of an import, and their records in batches.

In: URLs. Out: records in batches of bounded size, each with the place that a message names.
"""

import re
from collections.abc import Iterator, Sequence

import pydantic

from outlast.errors import ObjectNotFound, ShardError
from outlast.interchange.export_tfrecord import LIST
from outlast.interchange.tfrecord import Compression, Record, open_object, read_records
from outlast.shards.document import MANIFEST_NAME, parse_document
from outlast.shards.manifest import Name
from outlast.storage import open_store, split_url

_MAX_RECORD_BYTES = 2**26
_BATCH_BYTES = 2**19  # what it unfolds to stays in the processor's cache
_BATCH_RECORDS = 1024
_NAMES = pydantic.TypeAdapter(list[Name])
_COUNT_IN_NAME = re.compile(r"-\d+-(\d+)\.tfrecord(\.gz|\.zlib)?$")


def listed(urls: Sequence[str]) -> Iterator[str]:
    """Yield the URLs, those of manifests replaced by what they list: a bucket has no wildcards.

    Raises:
        ShardError: a manifest that is missing or lists no TFRecord files.
    """
    for url in urls:
        folder, name = split_url(url)
        if name != MANIFEST_NAME:
            yield url
            continue
        try:
            document = parse_document(open_store(folder).read(name), where=url, kind=LIST)
            names = _NAMES.validate_python([file["name"] for file in document["files"]])
        except ObjectNotFound:
            raise ShardError("There is no such manifest.", where=url, remedy="check the path") from None
        except (ValueError, KeyError, TypeError) as error:
            raise ShardError(
                f"The manifest does not list TFRecord files: {error}",
                where=url,
                expected="one that `outlast shards export-tfrecord` wrote, or the names of the files",
            ) from None
        yield from (f"{folder}/{name}" for name in names)


def file_size(url: str) -> int:
    """Return the bytes of a file. Raises ShardError where there is none."""
    folder, name = split_url(url)
    try:
        return open_store(folder).size_bytes(name)
    except ObjectNotFound:
        raise ShardError("There is no such file.", where=url, remedy="check the path") from None


def batches(url: str, compression: Compression | None) -> Iterator[list[Record]]:
    """Yield the records of a file, some thousand or some megabytes at a time. Raises ShardError."""
    folder, name = split_url(url)
    with open_object(open_store(folder), name) as file:
        batch: list[Record] = []
        num_bytes = 0
        for record in read_records(
            file,
            where=url,
            compression=compression,
            max_record_bytes=_MAX_RECORD_BYTES,
        ):
            batch.append(record)
            num_bytes += len(record.payload)
            if num_bytes >= _BATCH_BYTES or len(batch) >= _BATCH_RECORDS:
                yield batch
                batch, num_bytes = [], 0
        if batch:
            yield batch


def place(url: str, record: Record) -> str:
    """Say where a record stands."""
    return f"{url}, record {record.number} at byte {record.offset}"


def check_count(url: str, num_records: int) -> None:
    """Check the number of records that a file's name tells: nothing else shows a file cut between two
    records.

    Raises:
        ShardError: with both numbers.
    """
    match = _COUNT_IN_NAME.search(url)
    if match and int(match[1]) != num_records:
        raise ShardError(
            f"The file holds {num_records} records.",
            where=url,
            expected=f"{match[1]} by its name",
            remedy="restore the file, or give it a name without a count",
        )
