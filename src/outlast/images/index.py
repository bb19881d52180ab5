"""The index of a tar: where each image lies and its label, 16 bytes an example (docs/formats/image_shard.md).

In: the examples of a tar. Out: a safetensors file beside it; and, the other way, arrays over its bytes,
every row of which has been checked to lie within the tar that the manifest describes.
"""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from outlast.corpus.tar import BLOCK
from outlast.errors import ShardError
from outlast.images.manifest import ImageShardEntry
from outlast.images.records import Example
from outlast.shards.array_file import make_head, parse_described
from outlast.shards.manifest import FileEntry
from outlast.shards.opened import OpenedFile
from outlast.shards.read import Buffer
from outlast.storage import Store
from outlast.storage.checksummed_json import Kind

INDEX_REMEDY = "restore the file, or import the tars again: it makes the same bytes"
_KIND = Kind("outlast-image-index", ("1",), "index", INDEX_REMEDY, ShardError)
_COLUMNS = {"offset": ("U64", "<u8"), "size_bytes": ("U32", "<u4"), "label": ("I32", "<i4")}


class ImageIndex(NamedTuple):
    """Arrays of shape (num_examples,), read-only: offset uint64 and size_bytes uint32 of each image's bytes
    within the tar, label int32.
    """

    offset: NDArray[np.uint64]
    size_bytes: NDArray[np.uint32]
    label: NDArray[np.int32]


def index_name(tar_name: str) -> str:
    """Return the name of a tar's index: ``train-000000.tar`` has ``train-000000.index.safetensors``."""
    return tar_name.removesuffix(".tar") + ".index.safetensors"


def write_index(store: Store, name: str, examples: Sequence[Example], *, tar_sha256: str) -> FileEntry:
    """Write the index of a tar; return its entry. Raises StorageError."""
    header = make_head(
        _KIND,
        {"tar_sha256": tar_sha256},
        [(column, kind, len(examples)) for column, (kind, _) in _COLUMNS.items()],
        aligned="offset",
    )
    columns = [
        np.array([getattr(example, column) for example in examples], dtype).tobytes()
        for column, (_, dtype) in _COLUMNS.items()
    ]
    content = b"".join((header, *columns))
    store.replace(name, [content])
    return FileEntry(name=name, size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


def open_index(file: OpenedFile, entry: ImageShardEntry) -> ImageIndex:
    """Read a local index into memory and check every row of it. Raises ShardError where the file is damaged,
    or not the one that the manifest describes.
    """
    return read_index(file.read(0, file.size_bytes), entry, where=str(file.path))


def read_index(content: Buffer, entry: ImageShardEntry, *, where: str) -> ImageIndex:
    """Check the bytes of an index and return its rows, as ``open_index`` does. Raises ShardError."""
    arrays = {name: (code, (entry.num_examples,)) for name, (code, _) in _COLUMNS.items()}
    metadata = {"tar_sha256": entry.sha256}
    spans = parse_described(memoryview(content), _KIND, metadata, arrays, file_size=len(content), where=where)
    index = ImageIndex(
        *(
            np.frombuffer(content, dtype, entry.num_examples, spans[name].begin)
            for name, (_, dtype) in _COLUMNS.items()
        )
    )
    problem = _find_problem(index, entry.size_bytes)
    if problem:
        raise ShardError(f"The index is wrong: {problem}.", where=where, remedy=INDEX_REMEDY)
    return index


def _find_problem(index: ImageIndex, tar_bytes: int) -> str | None:
    """Return what cannot be true of an index: its rows are followed unchecked."""
    if index.label.min() < 0:
        return f"label holds {index.label.min()}"
    if index.size_bytes.min() < 1:
        return "an image has no bytes"
    begins = index.offset
    if begins.max() > tar_bytes or (begins + index.size_bytes).max() > tar_bytes:
        return f"an image lies beyond the tar's {tar_bytes} bytes"
    if (begins % BLOCK).any() or begins.min() < BLOCK or (begins[1:] <= begins[:-1]).any():
        return f"offset does not rise in multiples of {BLOCK} from the first header's end"
    return None
