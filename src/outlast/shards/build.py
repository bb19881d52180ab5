"""What a build has agreed on and what it has finished, so that a killed one goes on where it stopped.

In: the identity of a build (corpus, configuration, number of shards) and the record of each finished piece.
Out: ``plan.json``, ``done/<piece>.json`` and, when every piece is there, the manifest. All are functions of
the corpus and the configuration alone: whoever writes them, however often it was killed, writes the same
bytes (docs/design/building_shards.md).
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Protocol, TypeVar, cast

import pydantic

from outlast.cleaning.tally import CleaningTally
from outlast.errors import ObjectExists, ObjectNotFound, ShardError, StorageError
from outlast.shards.manifest import Manifest, ShardEntry, TokenizerEntry
from outlast.storage import Store

PLAN_NAME = "plan.json"
_PLAN_FORMAT = "outlast-plan"
_RECORD_FORMAT = "outlast-piece"
_RECORD_FOLDER = "done/"
_FOLDERS = ("", "tokenizer/", _RECORD_FOLDER)
_VERSION = 1
_MAX_LISTED = 100
_MAX_DIFFERENCES = 5


@dataclass(frozen=True, kw_only=True)
class PieceRecord:
    """What became of a piece.

    Attributes:
        piece: its number.
        tokenizer_fingerprint: of the tokenizer that made its tokens.
        shards: the shard of each split that got a document.
        text_bytes: UTF-8 bytes of the documents, by split.
        skipped: documents that were left out, by reason.
        undecodable_bytes: bytes that were replaced by U+FFFD.
        undecodable: the first places of such bytes: file, offset, number of bytes.
        cleaning: what cleaning did to the documents, None where there was none.
    """

    piece: int
    tokenizer_fingerprint: str
    shards: dict[str, ShardEntry]
    text_bytes: dict[str, int]
    skipped: dict[str, int]
    undecodable_bytes: int
    undecodable: list[tuple[str, int, int]]
    cleaning: CleaningTally | None = None


def shard_name(split: str, piece: int, num_shards: int) -> str:
    """Return the name of a shard: ``train-00003-of-00016.safetensors``."""
    return f"{split}-{piece:05d}-of-{num_shards:05d}.safetensors"


def agree_on_plan(store: Store, identity: Mapping[str, Any], versions: Mapping[str, str]) -> dict[str, str]:
    """Write the plan if there is none yet, else check that it is the same; return the versions it was begun
    with.

    Raises:
        ShardError: the folder belongs to a build of another corpus or configuration; both values are listed.
    """
    document = {"format": _PLAN_FORMAT, "version": _VERSION, "versions": versions, "identity": identity}
    content = _json(document)
    try:
        found = store.read(PLAN_NAME)
    except ObjectNotFound:
        try:
            store.create_or_confirm(PLAN_NAME, [content])
            found = content
        except ObjectExists:
            found = store.read(PLAN_NAME)  # another task was faster
    where = f"{store.url}/{PLAN_NAME}"
    plan = _parse(found, _PLAN_FORMAT, where)
    differences = _differences(plan.get("identity"), json.loads(content)["identity"])
    if differences:
        shown = differences[:_MAX_DIFFERENCES]
        more = len(differences) - len(shown)
        raise ShardError(
            "The folder belongs to a build of another corpus or configuration:\n"
            + "\n".join(f"    {line}" for line in shown)
            + (f"\n    and {more} more" if more else ""),
            where=where,
            remedy="choose another --out, or delete the folder",
        )
    agreed = plan.get("versions")
    if not isinstance(agreed, dict):
        raise ShardError(
            "The plan names no versions.", where=where, remedy="delete it and give the same line again"
        )
    return cast(dict[str, str], agreed)


def withdraw_plan(store: Store) -> None:
    """Delete the plan of a build that failed and has made nothing, so that the folder is free for a corrected
    one: most such errors are ended by another configuration.
    """
    with suppress(StorageError):  # the error that ended the build matters more
        if not any(store.list(folder) for folder in ("cleaning/", "tokenizer/", _RECORD_FOLDER)):
            store.delete(PLAN_NAME)


class Record(Protocol):
    """A dataclass that says what became of a piece."""

    @property
    def piece(self) -> int: ...


R = TypeVar("R")


def write_record(store: Store, record: Record) -> None:
    """Mark a piece as finished. Only after its shards are in place."""
    document = {"format": _RECORD_FORMAT, "version": _VERSION, **asdict(cast(Any, record))}
    store.replace(_record_name(record.piece), [_json(document)])


def withdraw_record(store: Store, piece: int) -> None:
    """Mark a piece as not finished any more: the next run builds it again."""
    store.delete(_record_name(piece))


def finished_pieces(store: Store) -> set[int]:
    """Return the numbers of the pieces that are marked as finished."""
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


def read_record(store: Store, piece: int) -> PieceRecord:
    """Read the record of a finished piece. Raises ShardError where it is damaged."""
    return read_record_as(PieceRecord, store, piece)


def read_record_as(cls: type[R], store: Store, piece: int) -> R:
    """Read the record of a finished piece as a dataclass. Raises ShardError where it is damaged."""
    name = _record_name(piece)
    where = f"{store.url}/{name}"
    fields = _parse(store.read(name), _RECORD_FORMAT, where)
    try:
        return pydantic.TypeAdapter(cls).validate_python(
            {key: value for key, value in fields.items() if key not in ("format", "version")}
        )
    except pydantic.ValidationError as error:
        raise ShardError(
            f"The record is damaged: {error.errors()[0]['msg']}",
            where=where,
            remedy="delete it and give the same line again",
        ) from None


def make_manifest(
    records: list[PieceRecord], tokenizer: TokenizerEntry, token_dtype: str, provenance: Mapping[str, Any]
) -> Manifest:
    """Put the records of all pieces together, in the order of the pieces.

    Raises:
        ShardError: a piece was made with another tokenizer.
    """
    splits: dict[str, tuple[ShardEntry, ...]] = {}
    counts: dict[str, dict[str, int]] = {}
    for split in ("train", "validation"):
        entries = tuple(record.shards[split] for record in records if split in record.shards)
        if entries:
            splits[split] = entries
            counts[split] = {
                "documents": sum(entry.num_documents for entry in entries),
                "text_bytes": sum(record.text_bytes.get(split, 0) for record in records),
                "tokens": sum(entry.num_tokens for entry in entries),
            }
    for record in records:
        if record.tokenizer_fingerprint != tokenizer.fingerprint:
            raise ShardError(
                f"Piece {record.piece} was made with the tokenizer {record.tokenizer_fingerprint}.",
                expected=tokenizer.fingerprint,
                remedy="the tokenizer was exchanged during the build: delete the folder, prepare again",
            )
    reasons = sorted({reason for record in records for reason in record.skipped})
    listed = [list(place) for record in records for place in record.undecodable][:_MAX_LISTED]
    return Manifest(
        token_dtype=token_dtype,
        tokenizer=tokenizer,
        splits=splits,
        provenance={
            **provenance,
            "counts": counts,
            "skipped_documents": {
                reason: sum(r.skipped.get(reason, 0) for r in records) for reason in reasons
            },
            "undecodable_bytes": sum(record.undecodable_bytes for record in records),
            "undecodable": listed,
        },
    )


def _record_name(piece: int) -> str:
    return f"{_RECORD_FOLDER}{piece:05d}.json"


def _json(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode()


def _parse(content: bytes, kind: str, where: str) -> dict[str, Any]:
    try:
        document: Any = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ShardError(
            f"The file is not JSON: {error}", where=where, remedy="delete it and give the same line again"
        ) from None
    fields = cast(dict[str, Any], document) if isinstance(document, dict) else {}
    if (fields.get("format"), fields.get("version")) != (kind, _VERSION):
        raise ShardError(
            "The file is of another kind or version.",
            where=where,
            expected=f'"format": "{kind}", "version": {_VERSION}',
            remedy="prepare into another folder",
        )
    return fields


def _differences(there: Any, here: Any, key: str = "") -> list[str]:
    """List where two plain values differ, one line for each key, with both values."""
    if isinstance(there, dict) and isinstance(here, dict):
        old, new = cast(dict[str, Any], there), cast(dict[str, Any], here)
        lines: list[str] = []
        for name in [*old, *(name for name in new if name not in old)]:
            path = f"{key}.{name}" if key else name
            if name not in old or name not in new:
                lines.append(f"{path}: {_show(old.get(name))} there, {_show(new.get(name))} now")
            else:
                lines += _differences(old[name], new[name], path)
        return lines
    return [] if there == here else [f"{key}: {_show(there)} there, {_show(here)} now"]


def _show(value: Any) -> str:
    return "nothing" if value is None else json.dumps(value, ensure_ascii=False)[:200]
