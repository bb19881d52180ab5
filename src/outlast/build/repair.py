"""A second look at the files of a finished build, and the mending of what is missing or damaged.

In: the files that a manifest names. Out: whether each is there, whole. The portions of those that are not
lose their records, so the ordinary build makes them again. A note says which bytes the files must have, and
no record of other bytes is written (``build.plan``). The note is deleted last, so a mending that was killed
goes on (docs/design/building_shards.md).
"""

import hashlib
import os
from collections.abc import Sequence
from itertools import groupby, takewhile

from outlast.build.plan import (
    NamedFile,
    R,
    delete_note,
    files_to_mend,
    finished_portions,
    read_record_as,
    withdraw_record,
    write_note,
)
from outlast.errors import ObjectNotFound, ShardError
from outlast.logs import log
from outlast.storage import Store

_READ_BYTES = 2**22
_MOST_SHOWN = 10


def is_whole(store: Store, files: Sequence[NamedFile], record_type: type[R], *, verify: bool = False) -> bool:
    """Return whether the files of a finished build are there; where not, make the build ready to mend them.

    Args:
        files: all that the manifest names.
        record_type: the dataclass that a finished portion leaves.
        verify: compare digests and not sizes alone.

    Raises:
        ShardError: a file that no record tells the making of.
        StorageError: the store does not answer, or cannot be written.
    """
    noted = files_to_mend(store)
    wrong = find_wrong(store, files, verify=verify)
    if noted:
        wrong |= find_wrong(store, [file for file in files if file.name in noted], verify=True)
    if not wrong and not noted:
        return True
    _tell(wrong)
    records = [read_record_as(record_type, store, portion) for portion in sorted(finished_portions(store))]
    recorded = {file.name for record in records for file in record.files} | noted.keys()
    for file in files:
        if file.name not in recorded:
            raise ShardError(
                f"{min(wrong, default=file.name)} must be made again, and no record says of what.",
                where=store.url,
                expected=f"{file.name} in a record in done/",
                remedy="restore the file, or delete manifest.json and give the same line again: what has no "
                "record is made anew",
            )
    again = [record for record in records if any(file.name in wrong for file in record.files)]
    names = {file.name for record in again for file in record.files}
    write_note(store, noted | {file.name: file.sha256 for file in files if file.name in names})
    for record in again:
        withdraw_record(store, record.number)
    return False


def end_mending(store: Store, records: Sequence[R]) -> None:
    """Check the files of all records before they become a manifest, and end the mending.

    Raises:
        ShardError: a file is not there as its record says; its portion counts as not built.
    """
    wrong = find_wrong(store, [file for record in records for file in record.files], verify=False)
    if wrong:
        for record in records:
            if any(file.name in wrong for file in record.files):
                withdraw_record(store, record.number)
        _tell(wrong)
        name, problem = min(wrong.items())
        raise ShardError(
            f"{len(wrong)} files are not as they were when they were finished: {name} {problem}.",
            where=store.url,
            remedy="give the same line again: it makes them again",
        )
    if files_to_mend(store):
        delete_note(store)
        log.info("what was missing or damaged is made again, with the bytes that the manifest names")


def find_wrong(store: Store, files: Sequence[NamedFile], *, verify: bool) -> dict[str, str]:
    """Return what is wrong with files, by name; nothing where all is well.

    Sizes are asked for together, by one listing of a remote folder. With ``verify`` every file is read.
    """
    sizes = _sizes(store, [file.name for file in files])
    wrong: dict[str, str] = {}
    for file in files:
        size = sizes.get(file.name)
        if size is None:
            wrong[file.name] = "is missing"
        elif size != file.size_bytes:
            wrong[file.name] = f"has {size} bytes, the manifest says {file.size_bytes}"
        elif verify and (found := _digest(store, file.name)) != file.sha256:
            wrong[file.name] = f"has sha256 {found}, the manifest says {file.sha256}"
    return wrong


def _sizes(store: Store, names: Sequence[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    if store.local_path(".") is not None:
        for name in names:
            try:
                found[name] = store.size_bytes(name)
            except ObjectNotFound:
                continue
        return found
    for _, folder in groupby(sorted(names), key=os.path.dirname):
        first, *_, last = [*folder] * 2  # sorted, so what these two share all of them do
        prefix = "".join(
            one for one, _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
        )
        found |= {info.name: info.size_bytes for info in store.retry(store.list, prefix)}
    return found


def _digest(store: Store, name: str) -> str:
    digest = hashlib.sha256()
    with store.open(name) as file:
        while chunk := file.read(_READ_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _tell(wrong: dict[str, str]) -> None:
    for name, problem in sorted(wrong.items())[:_MOST_SHOWN]:
        log.warning("%s %s", name, problem)
    if len(wrong) > _MOST_SHOWN:
        log.warning("and %d more files", len(wrong) - _MOST_SHOWN)
