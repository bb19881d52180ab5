"""What a build has agreed on and what it has finished, so that a killed one goes on where it stopped.

In: the identity of a build (what it reads and how it is configured) and the record of each finished portion.
Out: ``plan.json`` and ``done/<portion>.json``. Both are functions of the identity alone: whoever writes them,
however often it was killed, writes the same bytes (docs/design/building_shards.md). Both carry their digest.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Protocol, TypeVar, cast

from outlast.config import differences
from outlast.errors import ObjectExists, ObjectNotFound, ShardError, StorageError, listed
from outlast.storage import Store
from outlast.storage.checksummed_json import DIGEST_KEY, Kind, encode, parse, validate

PLAN_NAME = "plan.json"
_NOTE_NAME = "repair.json"
_RECORD_FOLDER = "done/"
_FOLDERS = ("", _RECORD_FOLDER)
_REMEDY = "delete it and give the same line again"
_PLAN = Kind("outlast-plan", (1, 2), "plan", _REMEDY, ShardError)
_NUMBER_KEY = "piece"
"""Of a portion in its record: what it was called when the format was made."""
_RECORD = Kind("outlast-piece", (1, 2), "record of a portion", _REMEDY, ShardError)
_NOTE = Kind("outlast-repair", (1, 2), "note of what is mended", _REMEDY, ShardError)
_MAX_DIFFERENCES = 5


def agree_on_plan(store: Store, identity: Mapping[str, Any], versions: Mapping[str, str]) -> dict[str, str]:
    """Write the plan if there is none yet, else check that it is the same; return the versions it was begun
    with.

    Raises:
        ShardError: the folder belongs to a build of another corpus or configuration; both values are listed.
    """
    content = encode(_PLAN, {"versions": versions, "identity": identity})
    try:
        text = store.read(PLAN_NAME)
    except ObjectNotFound:
        try:
            store.create_or_confirm(PLAN_NAME, [content])
            text = content
        except ObjectExists:
            text = store.read(PLAN_NAME)  # another task was faster
    where = f"{store.url}/{PLAN_NAME}"
    plan = parse(text, _PLAN, where=where)
    found = differences(plan.get("identity"), json.loads(content)["identity"])
    if found:
        shown = [f"{key}: {_show(old)} there, {_show(new)} now" for key, old, new in found[:_MAX_DIFFERENCES]]
        more = len(found) - len(shown)
        raise ShardError(
            listed(
                "The folder belongs to a build of another corpus or configuration:",
                (f"    {line}" for line in (*shown, *([f"and {more} more"] if more else []))),
            ),
            where=where,
            remedy="put back what has changed, choose another --out, or delete the folder; where files of "
            "your own lie in it, such as tars imported in place, delete plan.json, manifest.json and done/",
        )
    agreed = plan.get("versions")
    if not isinstance(agreed, dict):
        raise ShardError("The plan names no versions.", where=where, remedy=_REMEDY)
    return cast(dict[str, str], agreed)


def read_plan(store: Store) -> dict[str, Any]:
    """Return the plan that is there. Raises ObjectNotFound, ShardError where it is damaged."""
    return parse(store.read(PLAN_NAME), _PLAN, where=f"{store.url}/{PLAN_NAME}")


def withdraw_plan(store: Store, more_folders: Sequence[str] = ()) -> None:
    """Delete the plan of a build that failed and has made nothing, so that the folder is free for a corrected
    recipe.

    Args:
        more_folders: where this build makes what is worth keeping, as prefixes that end with a slash.
    """
    with suppress(StorageError):  # the error that ended the build matters more
        if not store.exists(_NOTE_NAME) and not any(
            store.list(folder) for folder in (*more_folders, _RECORD_FOLDER)
        ):
            store.delete(PLAN_NAME)


class NamedFile(Protocol):
    """A file as a manifest names it."""

    @property
    def name(self) -> str: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def sha256(self) -> str: ...


class Record(Protocol):
    """A dataclass that says what became of a portion, and of which files it consists."""

    @property
    def number(self) -> int: ...

    @property
    def files(self) -> Sequence[NamedFile]: ...


R = TypeVar("R", bound=Record)


def write_record(store: Store, record: Record) -> None:
    """Mark a portion as finished. Only after its shards are in place.

    Raises ShardError where it was made again, and its shards are not those that the manifest names.
    """
    _check_made_again(store, record)
    fields = asdict(cast(Any, record))
    content = encode(_RECORD, {_NUMBER_KEY: fields.pop("number"), **fields})
    store.replace(_record_name(record.number), [content])


def withdraw_record(store: Store, portion: int) -> None:
    """Mark a portion as not finished any more: the next run builds it again."""
    store.delete(_record_name(portion))


def write_note(store: Store, files: Mapping[str, str]) -> None:
    """Note which files are made again, with the sha256 that each must have."""
    store.replace(_NOTE_NAME, [encode(_NOTE, {"files": dict(sorted(files.items()))})])


def files_to_mend(store: Store) -> dict[str, str]:
    """Return the files that are made again, with the sha256 that each must have. Raises ShardError."""
    try:
        content = store.read(_NOTE_NAME)
    except ObjectNotFound:
        return {}
    return cast(dict[str, str], parse(content, _NOTE, where=f"{store.url}/{_NOTE_NAME}")["files"])


def delete_note(store: Store) -> None:
    """Delete the note of what is mended, once all of it is there again."""
    store.delete(_NOTE_NAME)


def _check_made_again(store: Store, record: Record) -> None:
    expected = files_to_mend(store)
    for file in record.files:
        if file.name in expected and expected[file.name] != file.sha256:
            plan = read_plan(store)
            versions = ", ".join(f"{name} {version}" for name, version in plan["versions"].items())
            raise ShardError(
                f"Made again, the file has other bytes than the manifest names: sha256 {file.sha256}.",
                where=f"{store.url}/{file.name}",
                expected=f"sha256 {expected[file.name]}",
                remedy="what it is made of, or a library, has changed: restore the file, or install "
                f"{versions} and give the same line again, or make the data set anew in another folder",
            )


def finished_portions(store: Store) -> set[int]:
    """Return the numbers of the portions that are marked as finished."""
    records = store.list(_RECORD_FOLDER)
    names = [info.name.removeprefix(_RECORD_FOLDER).removesuffix(".json") for info in records]
    return {int(name) for name in names if name.isdigit()}


def delete_leftovers(store: Store, more_folders: Sequence[str] = ()) -> None:
    """Delete the unfinished files that killed writers left in the folders that a build writes to.

    No other folder is looked into: beside the result there may be a run that somebody trains.

    Args:
        more_folders: that this build writes to, as prefixes that end with a slash.
    """
    for folder in (*_FOLDERS, *more_folders):
        for leftover in store.list_leftovers(folder, recursive=False):
            store.delete(leftover)


def read_record_as(cls: type[R], store: Store, portion: int) -> R:
    """Read the record of a finished portion as a dataclass. Raises ShardError where it is damaged."""
    name = _record_name(portion)
    where = f"{store.url}/{name}"
    fields = parse(store.read(name), _RECORD, where=where)
    found = fields.pop(_NUMBER_KEY, None)
    if found != portion:
        raise ShardError(f"The record is that of portion {found!r:.100}.", where=where, remedy=_REMEDY)
    fields.pop(DIGEST_KEY, None)
    return validate(cls, {"number": found, **fields}, _RECORD, where=where)


def _record_name(portion: int) -> str:
    return f"{_RECORD_FOLDER}{portion:05d}.json"


def _show(value: Any) -> str:
    return "nothing" if value is None else json.dumps(value, ensure_ascii=False)[:200]
