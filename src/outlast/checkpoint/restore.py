"""Reading checkpoints: the newest one that is whole, or an older one, never half of one.

In: a store. Out: arrays in host memory whose every byte matched its digest. A commit that turns out damaged
is reported and the next older one of the line is taken; nothing is deleted. A store that does not answer says
nothing about a checkpoint: it is asked again until the deadline, then the error goes to the caller.
"""

import hashlib
import json
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, TypeVarTuple

import numpy as np
from numpy.typing import NDArray

from outlast.checkpoint.format import MAX_COMMIT_BYTES, Commit, Part, Slice, numpy_dtype, parse_commit
from outlast.checkpoint.lineage import (
    DATA,
    UNREADABLE,
    CommitKey,
    Start,
    ignored_because,
    line_of,
    parse_data_name,
)
from outlast.checkpoint.owner import Report
from outlast.checkpoint.records import claim_exists, list_keys, newest_known, read_recorded
from outlast.checkpoint.threads import for_each
from outlast.errors import (
    CheckpointError,
    DamagedCheckpoint,
    Fenced,
    ObjectNotFound,
    StorageError,
    StoreUnreachable,
    explained_limits,
)
from outlast.storage import Store

_log = logging.getLogger(__name__)
_PARALLEL_PARTS = 4
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@dataclass(frozen=True, kw_only=True)
class Restored:
    """A checkpoint in host memory. ``skipped`` lists newer ones that were damaged, with the reason."""

    commit: Commit
    arrays: dict[str, NDArray[Any]]
    skipped: list[tuple[str, str]]

    def under(self, prefix: str) -> dict[str, NDArray[Any]]:
        """Return the arrays whose names start with a prefix, named by what follows it."""
        return {
            name.removeprefix(prefix): value for name, value in self.arrays.items() if name.startswith(prefix)
        }


@dataclass(frozen=True, kw_only=True)
class CommitStatus:
    """One row of ``outlast checkpoint list``. ``reason`` says why it is ignored, None where it belongs to the
    run.
    """

    name: str
    step: int
    attempt: int
    in_line: bool
    reason: str | None
    size_bytes: int | None


@explained_limits()
def restore_newest(
    store: Store, *, attempt_number: int | None = None, prefix: str = "", report: Report = _log.warning
) -> Restored | None:
    """Restore the newest checkpoint of the line whose bytes are all right.

    Args:
        attempt_number: the caller's claim; only commits of earlier attempts are considered. None: a reader
            beside the run, to whom all count.
        prefix: restore only the arrays whose name starts with it; only their bytes are read and verified.
        report: told of each checkpoint that is skipped.

    Returns:
        None where the run has no checkpoint at all.

    Raises:
        CheckpointError: the newest commit that the run is known to have is gone.
        DamagedCheckpoint: there are checkpoints and none is usable; starting anew is for a person to decide.
        Fenced: one of these, and a later attempt has claimed the run.
        StoreUnreachable: the store did not answer until the deadline.
    """
    try:
        return _restore_newest(store, attempt_number, prefix, report)
    except CheckpointError:
        # What this attempt misses may be what its successor's retention has deleted meanwhile.
        if attempt_number is not None and claim_exists(store, attempt_number + 1):
            raise Fenced(
                f"Attempt {attempt_number + 1} has claimed the run; attempt {attempt_number} stops.",
                where=store.url,
                remedy="nothing: the new owner goes on",
            ) from None
        raise


def _restore_newest(store: Store, attempt_number: int | None, prefix: str, report: Report) -> Restored | None:
    known = newest_known(
        store, up_to=attempt_number
    )  # first, so that a run that goes on beside us hides none
    keys = list_keys(store)
    if attempt_number is not None:
        keys = [key for key in keys if key.attempt <= attempt_number]
    recorded = read_recorded(store, up_to=attempt_number)
    refuse_lost(store, known, line_of(keys, recorded))
    skipped: list[tuple[str, str]] = []
    for key in line_of(keys, recorded):
        try:
            commit = read_commit(store, key.name)
            return Restored(commit=commit, arrays=_read_arrays(store, commit, prefix), skipped=skipped)
        except (DamagedCheckpoint, ObjectNotFound) as error:
            skipped.append((key.name, error.line))
            report(f"skipping the checkpoint {key.name}: {error.line}")
    refuse_unusable(store, keys, recorded, were_read=bool(skipped))
    return None


@explained_limits()
def restore_commit(store: Store, key: CommitKey, *, prefix: str = "") -> Restored:
    """Restore one checkpoint, whatever else there is. Its errors are those of ``read_commit``.

    Args:
        prefix: as for ``restore_newest``.
    """
    commit = read_commit(store, key.name)
    return Restored(commit=commit, arrays=_read_arrays(store, commit, prefix), skipped=[])


def refuse_unusable(
    store: Store, keys: Sequence[CommitKey], recorded: Mapping[int, Start], *, were_read: bool = False
) -> None:
    """Raise DamagedCheckpoint where there are checkpoints, and none that counts.

    Args:
        were_read: each that counts was read and is damaged.
    """
    unreadable = [attempt for attempt, started in recorded.items() if started == UNREADABLE]
    if were_read or (keys and unreadable):
        raise DamagedCheckpoint(
            f"None of the {len(keys)} checkpoints can be restored.",
            where=store.url,
            expected="at least one whose bytes match their digests",
            remedy="run `outlast checkpoint verify` for the reasons; to start anew, move the run away"
            + "".join(f"; attempts/{attempt}.from.json is damaged" for attempt in unreadable),
        )


def refuse_lost(store: Store, known: CommitKey | None, line: Sequence[CommitKey]) -> None:
    """Stop where the newest commit that a run is known to have is gone, and no newer one is there.

    Without this a lost folder would be a silent new run, whose retention takes away the data that are left.

    Args:
        known: ``newest_known``, read before the line.
        line: the commits that count, newest first.

    Raises:
        CheckpointError: it is gone. Says what is known, and what is left.
    """
    if known is None or (line and line[0] >= known):
        return
    left: dict[CommitKey, int] = {}
    for info in store.retry(store.list, DATA):
        if key := parse_data_name(info.name):
            left[key] = left.get(key, 0) + info.size_bytes
    data = ", ".join(
        f"step {key.step} of attempt {key.attempt} ({size} bytes)" for key, size in sorted(left.items())
    )
    steps = ", ".join(f"step {key.step}" for key in reversed(line))
    recover = f"outlast checkpoint recover {store.url}"
    give_up = f"or `{recover} --go-on-from {line[0].step}`, which gives up what is lost; " if line else ""
    raise CheckpointError(
        f"The newest checkpoint that this run is known to have is gone: step {known.step} of attempt "
        f"{known.attempt}. There are the checkpoints of {steps or 'no step'}, "
        f"and data of {data or 'no step'}.",
        where=f"{store.url}/{known.name}",
        remedy=f"put the folder commits/ back; or `{recover}`, which rebuilds what the data allow; {give_up}"
        "or start anew with another --run-dir",
    )


def read_commit(store: Store, name: str) -> Commit:
    """Read and check one commit object; the bytes of its parts are not read.

    Raises:
        ObjectNotFound, DamagedCheckpoint, StoreUnreachable
    """
    if store.retry(store.size_bytes, name) > MAX_COMMIT_BYTES:
        raise DamagedCheckpoint("The commit is too large to be one.", where=name)
    return parse_commit(store.retry(store.read, name), name=name)


@explained_limits()
def list_commits(store: Store) -> list[CommitStatus]:
    """Return what there is, oldest first, with the reason for each commit that does not count."""
    keys = list_keys(store)
    recorded = read_recorded(store)
    rows: list[CommitStatus] = []
    for key in keys:
        reason = ignored_because(key, recorded)
        size: int | None = None
        try:
            size = read_commit(store, key.name).size_bytes
        except ObjectNotFound:
            continue  # deleted while we looked
        except DamagedCheckpoint as error:
            reason = reason or f"damaged: {error.message}"
        rows.append(
            CommitStatus(
                name=key.name,
                step=key.step,
                attempt=key.attempt,
                in_line=reason is None,
                reason=reason,
                size_bytes=size,
            )
        )
    return rows


@explained_limits()
def verify_commit(store: Store, name: str) -> list[str]:
    """Read every byte of a checkpoint and return what is wrong with it; empty: all is well.

    Raises:
        ObjectNotFound: there is no such commit.
        StoreUnreachable: the store did not answer until the deadline.
    """
    try:
        return verify_parts(store, read_commit(store, name))
    except DamagedCheckpoint as error:
        return [error.line]


@explained_limits()
def verify_parts(store: Store, commit: Commit) -> list[str]:
    """Read every byte that a commit names and return what is wrong with it; empty: all is well.

    Raises:
        StoreUnreachable: the store did not answer until the deadline.
    """
    problems: list[str] = []
    for part, slices in _slices_by_part(commit, commit.slices):
        for check in (
            lambda part=part: _check_size(store, part),
            lambda part=part: _check_header(store, part),
            *(lambda part=part, entry=entry: _read_slice(store, part, entry) for entry in slices),
        ):
            try:
                check()
            except DamagedCheckpoint as error:
                problems.append(error.line)
    return problems


@explained_limits()
def digest_arrays(store: Store, commit: Commit, prefix: str = "params/") -> str:
    """Return one sha256 over the arrays whose name starts with the prefix, however they are cut and on
    whatever mesh.

    For each array in the order of the names' code points: the line ``[name,dtype,[shape]]`` as JSON (ASCII,
    no spaces, ending in a newline), then its elements in C order, little-endian. Every byte is verified on
    the way.

    Raises:
        CheckpointError: no array has that prefix.
        DamagedCheckpoint: bytes that fail their digest.
    """
    names = commit.array_names(prefix)
    if not names:
        raise CheckpointError(f"The checkpoint has no array under {prefix!r}.", where=commit.name)
    total = hashlib.sha256()
    for name in names:
        entries = commit.slices_of(name)
        title = [name, entries[0].dtype, list(entries[0].global_shape)]
        total.update(json.dumps(title, separators=(",", ":"), ensure_ascii=True).encode() + b"\n")
        array = _empty(entries[0])
        for entry in entries:
            _place(array, entry, _read_slice(store, commit.parts[entry.part], entry))
        total.update(array.reshape(-1).view(np.uint8).data)
    return total.hexdigest()


def _read_arrays(store: Store, commit: Commit, prefix: str) -> dict[str, NDArray[Any]]:
    wanted = [entry for entry in commit.slices if entry.name.startswith(prefix)]
    by_part = list(_slices_by_part(commit, wanted))
    for part, _ in by_part:
        _check_size(store, part)  # before memory is taken for it
    arrays: dict[str, NDArray[Any]] = {}
    for entry in wanted:
        if entry.name not in arrays:
            arrays[entry.name] = _empty(entry)

    def load(work: tuple[Part, list[Slice]]) -> None:
        part, slices = work
        if prefix:
            for entry in slices:
                _place(arrays[entry.name], entry, _read_slice(store, part, entry))
            return
        content = memoryview(_answer(store, part, store.read, part.name, part.size_bytes))
        _compare(content[: part.header_bytes], part.header_sha256, f"{part.name}: header")
        for entry in slices:
            cut = content[entry.begin : entry.end]
            _compare(cut, entry.sha256, f"{part.name}: {entry.name}")
            _place(arrays[entry.name], entry, cut)

    for_each(load, by_part, _PARALLEL_PARTS)
    return arrays


def _slices_by_part(commit: Commit, slices: Sequence[Slice]) -> Iterator[tuple[Part, list[Slice]]]:
    grouped: defaultdict[int, list[Slice]] = defaultdict(list)
    for entry in slices:
        grouped[entry.part].append(entry)
    for index in sorted(grouped):
        yield commit.parts[index], grouped[index]


def _empty(entry: Slice) -> NDArray[Any]:
    try:
        return np.empty(entry.global_shape, dtype=numpy_dtype(entry.dtype))
    except (ValueError, MemoryError) as error:
        raise CheckpointError(
            f"No memory for an array of shape {entry.global_shape}: {error}", where=entry.name
        ) from None


def _place(array: NDArray[Any], entry: Slice, content: bytes | memoryview) -> None:
    box = tuple(slice(first, first + count) for first, count in zip(entry.start, entry.shape, strict=True))
    array[box] = np.frombuffer(content, dtype=array.dtype).reshape(entry.shape)


def _read_slice(store: Store, part: Part, entry: Slice) -> bytes:
    content = _answer(store, part, store.read_range, part.name, entry.begin, entry.end - entry.begin)
    _compare(content, entry.sha256, f"{part.name}: {entry.name}")
    return content


def _check_header(store: Store, part: Part) -> None:
    content = _answer(store, part, store.read_range, part.name, 0, part.header_bytes)
    _compare(content, part.header_sha256, f"{part.name}: header")


def _check_size(store: Store, part: Part) -> None:
    size = _answer(store, part, store.size_bytes, part.name)
    if size != part.size_bytes:
        raise DamagedCheckpoint(
            f"The part has {size} bytes.", where=part.name, expected=f"{part.size_bytes} bytes"
        )


def _compare(content: bytes | memoryview, digest: str, where: str) -> None:
    if hashlib.sha256(content).hexdigest() != digest:
        raise DamagedCheckpoint("The bytes do not match their sha256.", where=where)


def _answer(store: Store, part: Part, action: Callable[[*Ts], T], *arguments: *Ts) -> T:
    """Ask the store, telling a part that is gone or cut short (damage) from a store that fails (no
    statement).
    """
    try:
        return store.retry(action, *arguments)
    except StoreUnreachable:
        raise
    except ObjectNotFound:
        raise DamagedCheckpoint("The part is missing.", where=part.name) from None
    except StorageError:
        if store.retry(store.size_bytes, part.name) != part.size_bytes:
            raise DamagedCheckpoint("The part was cut short.", where=part.name) from None
        raise
