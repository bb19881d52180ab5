"""The plan: which stretch of which file belongs to which portion of the corpus.

In: a ``CorpusConfig``. Out: the list of its files, each with its format, and the list cut into portions of
about equal size. Both are pure functions of the corpus. A document belongs to the portion in which its first
byte lies, so the portions together hold every document once, however many portions there are
(docs/design/building_shards.md).
"""

import bisect
import hashlib
import io
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import BinaryIO

from outlast.corpus.archive import describe_tar
from outlast.corpus.compressed import is_compressed, open_binary, plain_name
from outlast.corpus.config import CorpusConfig
from outlast.corpus.encoding import canonical, detect, is_byte_aligned
from outlast.corpus.extent import CorpusFile, Extent, Extents
from outlast.corpus.files import FoundFile, find_files
from outlast.corpus.formats import check_formats, documents_of, format_of, warn_of_json
from outlast.corpus.recognize import HEAD_BYTES, is_saved_dataset, refuse_binary
from outlast.corpus.source import local_path, open_file
from outlast.corpus.tar import has_tar_name, is_tar
from outlast.errors import CorpusError, printable

_PROBES = 16
_PROBE_BYTES = 4096
REMOTE_FILES_AT_ONCE = 16


def list_corpus(config: CorpusConfig, *, held_out: bool = False) -> tuple[CorpusFile, ...]:
    """Return the files of ``path``, or of ``validation_path`` where held_out, in a fixed order.

    Raises:
        CorpusError: a path that does not exist, nothing in it, a file that is no text, whose encoding cannot
            be detected, or of another format than those beside it.
        ConfigError, StorageError: a URL that is not known, a store that cannot be read from.
    """
    paths = config.validation_path if held_out else config.path
    if paths is None:
        raise CorpusError(
            "The recipe names no corpus.", where="corpus.path", remedy="set it to a file, folder or glob"
        )
    several = [paths] if isinstance(paths, str) else list(paths)
    if config.format == "huggingface" or (
        config.format == "auto" and all(is_saved_dataset(local_path(path)) for path in several)
    ):
        from outlast.corpus.tables import list_dataset

        files = [list_dataset(config, local_path(path)) for path in several]
    else:
        _refuse_datasets(several)
        found = find_files(paths, config.include, config.exclude)
        files = [file for file in _describe_all(config, found) if file]
        check_formats(files, len(several))
        warn_of_json(config, files)
    if not any(file.size_bytes for file in files):
        raise CorpusError(
            "The corpus is empty.", where=str(paths), remedy="check corpus.path and corpus.include"
        )
    return tuple(files)


def plan_portions(files: Sequence[CorpusFile], num_portions: int) -> tuple[Extents, ...]:
    """Cut a corpus into portions by bytes. A unit belongs to the portion in which its first byte lies.

    Portions may be empty where a unit is larger than a portion.
    """
    sizes = [sum(file.unit_bytes) if file.unit_bytes else file.num_units for file in files]
    total = sum(sizes)
    bounds = [total * number // num_portions for number in range(num_portions + 1)]
    portions: list[list[Extent]] = [[] for _ in range(num_portions)]
    base = 0
    for file, size in zip(files, sizes, strict=True):
        for portion, start, end in _cut(file, base, size, bounds):
            portions[portion].append(Extent(file=file, start=start, end=end))
        base += size
    return tuple(tuple(portion) for portion in portions)


def _cut(file: CorpusFile, base: int, size: int, bounds: list[int]) -> Iterator[tuple[int, int, int]]:
    """Yield (portion, start, end) for a file that begins at ``base`` of all the files laid end to end."""
    if not size:
        return
    if not file.unit_bytes:
        first = bisect.bisect_right(bounds, base) - 1
        last = bisect.bisect_left(bounds, base + size)
        for portion in range(first, last):
            start, end = max(bounds[portion] - base, 0), min(bounds[portion + 1] - base, size)
            if start < end:
                yield portion, start, end
        return
    owners: list[int] = []
    for unit in file.unit_bytes:
        owners.append(bisect.bisect_right(bounds, base) - 1)
        base += unit
    for portion in sorted(set(owners)):
        start = bisect.bisect_left(owners, portion)
        yield portion, start, bisect.bisect_right(owners, portion)


def _refuse_datasets(paths: Sequence[str]) -> None:
    """Raise CorpusError for a saved data set, which is read as one or not at all."""
    for path in paths:
        if is_saved_dataset(local_path(path)):
            raise CorpusError(
                "The folder is a data set that `save_to_disk` of the library datasets wrote.",
                where=path,
                remedy='set corpus.format = "huggingface", and prepare what else there is by itself',
            )


def _describe_all(config: CorpusConfig, found: Sequence[FoundFile]) -> list[CorpusFile | None]:
    """Describe files in their order, remote ones side by side: little is read of each, and far away."""
    if not any(file.store for file in found):
        return [_describe(config, file) for file in found]
    with ThreadPoolExecutor(REMOTE_FILES_AT_ONCE) as readers:
        return list(readers.map(lambda file: _describe(config, file), found))


def _describe(config: CorpusConfig, found: FoundFile) -> CorpusFile | None:
    """Describe a file; None for a tar in a folder that holds nothing of the corpus."""
    path = found.path
    try:
        with found.store.open(found.object_name) if found.store else open_file(path) as file:
            size, digest = probe(file)
    except OSError as error:
        raise CorpusError(
            f"The file cannot be read: {error.strerror}.", where=path, remedy="check it and its permissions"
        ) from error
    with open_binary(path, where=path) as source:
        head = source.read(HEAD_BYTES)
    described = CorpusFile(
        name=printable(found.name), path=path, size_bytes=size, digest=digest, encoding="", num_units=1
    )
    if has_tar_name(path) or is_tar(head):
        return describe_tar(config, replace(described, tar=found.members))
    format = format_of(config, plain_name(path), head, where=path)
    if format == "parquet":
        from outlast.corpus.tables import row_group_bytes

        units = row_group_bytes(path, config.text_field)
        return replace(described, format=format, num_units=len(units), unit_bytes=units)
    encoding = _encoding(config, path)
    refuse_binary(head, where=path, encoding=encoding, allows_nul=config.undecodable == "replace")
    documents = documents_of(config, format, is_member=False)
    can_split = documents != "file" and not is_compressed(path) and is_byte_aligned(encoding)
    return replace(
        described,
        encoding=encoding,
        format=format,
        documents=documents,
        num_units=size if can_split else 1,
        unit_bytes=() if can_split else (max(size, 1),),
    )


def _encoding(config: CorpusConfig, path: str) -> str:
    if config.encoding != "auto":
        return canonical(config.encoding)
    with open_binary(path, where=path) as source:
        return detect(source, where=path)


def probe(file: BinaryIO | io.BufferedIOBase) -> tuple[int, str]:
    """Return a file's size and a digest of it that costs 16 short reads, whatever its size and place."""
    size = file.seek(0, 2)
    digest = hashlib.blake2b(size.to_bytes(8, "little"), digest_size=16)
    for number in range(_PROBES):
        file.seek(max(size - _PROBE_BYTES, 0) * number // (_PROBES - 1))
        digest.update(file.read(_PROBE_BYTES))
    return size, digest.hexdigest()
