"""Where the documents and sentences of a shard begin, without its tokens.

In: a store and a shard's entry in the manifest. Out: ``Offsets``. Of a remote shard only the header and the
two arrays are fetched, into a nameless temporary file with a hole where the tokens would be, and mapped.
"""

import hashlib
import mmap
import tempfile

from outlast.errors import ObjectNotFound, ShardError, StorageError
from outlast.shards.manifest import ShardEntry
from outlast.shards.opened import OpenedFile
from outlast.shards.pairs import Offsets
from outlast.shards.read import TokenShard, check_entry, read_offsets, read_shard_bytes
from outlast.shards.token_format import SHARD_REMEDY, header_bytes, parse_header
from outlast.storage import Store

_RANGE_BYTES = 8 * 2**20
_HEAD_BYTES = 4096


def open_offsets(store: Store, entry: ShardEntry) -> Offsets:
    """Open the offset arrays of a shard.

    Raises:
        ShardError: the shard is missing or damaged, not the one that the manifest describes, or its documents
            are not divided into sentences.
        StorageError: the store does not answer, or there is no room for temporary files.
    """
    where = f"{store.url}/{entry.name}"
    try:
        path = store.local_path(entry.name)
        if path is None:
            shard = _fetch(store, entry, where)
            check_entry(shard, entry, where=where)
            documents, sentences = shard.document_offsets, shard.sentence_offsets
        else:
            _, (documents, sentences) = read_offsets(OpenedFile(path, entry, verify=False), entry)
    except (FileNotFoundError, ObjectNotFound):
        raise ShardError("The shard is missing.", where=where, remedy=SHARD_REMEDY) from None
    if sentences is None:
        raise ShardError(
            "The shard does not know its documents' sentences.",
            where=where,
            remedy="set corpus.sentences and prepare the data again",
        )
    return Offsets(documents, sentences)


def check_digest(store: Store, entry: ShardEntry) -> None:
    """Check that a shard has the bytes that the manifest tells of, all of them.

    Raises:
        ShardError: it has not, or it is missing.
        StorageError: the store does not answer.
    """
    where = f"{store.url}/{entry.name}"
    digest = hashlib.sha256()
    try:
        size = store.retry(store.size_bytes, entry.name)
        for start in range(0, min(size, entry.size_bytes), _RANGE_BYTES):
            digest.update(_read(store, entry.name, start, min(_RANGE_BYTES, entry.size_bytes - start)))
    except ObjectNotFound:
        raise ShardError("The shard is missing.", where=where, remedy=SHARD_REMEDY) from None
    if size != entry.size_bytes or digest.hexdigest() != entry.sha256:
        raise ShardError(
            f"The shard fails the manifest's sha256 ({size} of {entry.size_bytes} bytes).",
            where=where,
            expected=entry.sha256,
            remedy=SHARD_REMEDY,
        )


def _fetch(store: Store, entry: ShardEntry, where: str) -> TokenShard:
    size = entry.size_bytes
    head = _read(store, entry.name, 0, min(_HEAD_BYTES, size))
    length = header_bytes(head, file_size=size, where=where)
    head += _read(store, entry.name, len(head), max(length - len(head), 0))
    header = parse_header(head, file_size=size, where=where)
    try:
        with tempfile.TemporaryFile() as file:
            file.truncate(size)
            file.write(head[:length])
            for span in (header.document_offsets, header.sentence_offsets):
                if span is None:
                    continue
                file.seek(span.begin)
                for start in range(span.begin, span.begin + span.size_bytes, _RANGE_BYTES):
                    stop = min(start + _RANGE_BYTES, span.begin + span.size_bytes)
                    file.write(_read(store, entry.name, start, stop - start))
            file.flush()
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise StorageError(
            f"Cannot write temporary files: {error.strerror}.",
            remedy="free space in the folder that TMPDIR names",
        ) from error
    return read_shard_bytes(memoryview(content), where=where)


def _read(store: Store, name: str, start: int, length: int) -> bytes:
    return store.retry(store.read_range, name, start, length) if length else b""
