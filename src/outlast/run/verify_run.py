"""Whether every byte of a run or an import is as it was written, and whether all of it is there.

In: the store of a run directory. Out: what is wrong, a line for each file. Whatever an attempt leaves behind
says which of its other documents must be there, and all of them carry what is unique in its claim: what
another run wrote, or somebody deleted, is named. Not told is what a kill may have left as well.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from outlast.checkpoint.config import CheckpointConfig
from outlast.checkpoint.format import Commit, parse_commit
from outlast.checkpoint.inspect import verify_run as verify_checkpoints
from outlast.checkpoint.lineage import (
    ATTEMPTS,
    COMMITS,
    DATA,
    CommitKey,
    claim_name,
    description_name,
    heartbeat_name,
    is_list_name,
    line_of,
    parse_attempt_name,
    parse_commit_name,
    parse_data_name,
    record_name,
)
from outlast.checkpoint.records import belongs_to, list_keys, read_recorded, read_sealed
from outlast.checkpoint.restore import read_commit
from outlast.errors import DamagedCheckpoint, ObjectNotFound, OutlastError, SealError, StorageError
from outlast.run.directory import (
    FORMER_NAME,
    TOKENIZER_FOLDER,
    check_same_run,
    find_description,
    read_description,
)
from outlast.storage import Store
from outlast.storage.checksummed_json import unseal
from outlast.tokenizer.manifest import MANIFEST_NAME, read_tokenizer_manifest
from outlast.training.ranking import FOLDER as EVALUATIONS
from outlast.training.ranking import parse_evaluation


def verify_run(store: Store) -> Iterator[str]:
    """Yield what is wrong with a run or an import, a line for each file."""
    missing = list(_missing_documents(store))  # first: what comes later is of a run that goes on beside us
    try:
        yield from verify_checkpoints(store.url)
    except OutlastError as error:  # there is none
        yield f"{store.url}: {error.message}"
    yield from (f"{name}: is missing, though its attempt left more behind" for name in missing)
    yield from _lost_commits(store)
    attempts = [
        line
        for info in store.list(ATTEMPTS)
        for line in told(info.name, partial(_check_attempt, store, info.name))
    ]
    yield from attempts
    for info in store.list(EVALUATIONS):
        yield from told(info.name, partial(_check_evaluation, store, info.name))
    for info in store.list(DATA):
        key = parse_data_name(info.name)
        if key is not None and is_list_name(info.name):
            yield from told(info.name, partial(_check_list, store, info.name, key))
    yield from _verify_description(store, known=[line.partition(": ")[0] for line in attempts] + missing)


def _missing_documents(store: Store) -> Iterator[str]:
    """Yield the documents that an attempt must have written before what lies there of it, and that are gone.

    An attempt claims, beats, and records what it starts from; then it describes itself, and then it writes
    data. An attempt of ``recover`` does not train, and an import of an earlier version describes itself in
    ``run.json``.
    """
    saved = {key.attempt for key in list_keys(store)}
    saved |= {key.attempt for info in store.list(DATA) if (key := parse_data_name(info.name))}
    parsed = {found for info in store.list(ATTEMPTS) if (found := parse_attempt_name(info.name))}
    descends = {start.commit.attempt for start in read_recorded(store).values() if start.commit}
    for number in sorted(saved | descends | {number for number, _ in parsed}):
        heartbeat = read_sealed(store, heartbeat_name(number)) or {}
        has_begun = number in saved | descends or heartbeat.get("last_step") is not None
        needed = [claim_name(number)]
        if has_begun or (number, "from.json") in parsed:
            needed += [heartbeat_name(number)]
        if has_begun:
            needed += [record_name(number)]
        if number in saved and not store.exists(FORMER_NAME):
            needed += [description_name(number)]
        yield from (name for name in needed if not store.exists(name))


def _lost_commits(store: Store) -> Iterator[str]:
    """Yield the commits that were acknowledged, whose list lies there, and that no retention can have taken:
    of fewer newer ones than it keeps. With more, a kill between commit and data leaves the same.
    """
    present = list_keys(store)
    line = line_of(present, read_recorded(store))
    known = {parent for key in line if (parent := _parent_of(store, key))}
    lists = {
        key for info in store.list(DATA) if is_list_name(info.name) and (key := parse_data_name(info.name))
    }
    for key in sorted((known & lists) - set(present)):
        if 0 < sum(newer > key for newer in line) < _fewest_kept(store):
            yield (
                f"{key.name}: is missing, though a later checkpoint went on from it and its data lie there: "
                f"`outlast checkpoint recover {store.url}` makes it again"
            )


def _parent_of(store: Store, key: CommitKey) -> CommitKey | None:
    try:
        parent = read_commit(store, key.name).parent
    except (DamagedCheckpoint, ObjectNotFound):
        return None
    return parse_commit_name(parent.name) if parent else None


def _fewest_kept(store: Store) -> int:
    """Return the smallest ``checkpoint.keep_newest`` of all attempts, 1 where one does not tell."""
    default, kept = CheckpointConfig().keep_newest, list[int]()
    for info in store.list(ATTEMPTS):
        parsed = parse_attempt_name(info.name)
        if parsed and parsed[1] == "run.json":
            try:
                tables = unseal(store.read(info.name), where="", layout="indented")["recipe"]
                kept.append(int(tables.get("checkpoint", {}).get("keep_newest", default)))
            except (SealError, ObjectNotFound, ValueError, TypeError, KeyError, AttributeError):
                kept.append(1)
    return min(kept, default=default)


def _check_list(store: Store, name: str, key: CommitKey) -> None:
    parse_commit(store.read(name), name=key.name)


def _check_attempt(store: Store, name: str) -> None:
    parsed = parse_attempt_name(name)
    if parsed is None:
        return
    number, kind = parsed
    document = unseal(store.read(name), where=name, layout="indented" if kind == "run.json" else "line")
    if document.get("attempt") != number:
        raise SealError(f"It is that of attempt {document.get('attempt')}.")
    claim = read_sealed(store, claim_name(number))
    if not belongs_to(document, claim):
        raise SealError(f"It does not belong to {claim_name(number)}: one of the two is another run's.")


def _check_evaluation(store: Store, name: str) -> None:
    commit = parse_commit_name(COMMITS + name.removeprefix(EVALUATIONS))
    if commit is not None:
        parse_evaluation(store.read(name), commit)


def _verify_description(store: Store, known: list[str]) -> Iterator[str]:
    """Check the description that counts against the checkpoints, and the tokenizer against both.

    Args:
        known: names of files of which it is said what is wrong.
    """
    name = find_description(store)
    identity: Mapping[str, Any] = {}
    try:
        description = read_description(store)
        identity = description.get("identity", {})
        for commit in _newest_readable(store):
            check_same_run(description, commit, where=name)
    except OutlastError as error:
        if name not in known and not (name == FORMER_NAME and known):
            yield f"{name}: {error.message}"
    fingerprint = identity.get("data", {}).get("tokenizer")
    if fingerprint or store.exists(f"{TOKENIZER_FOLDER}/{MANIFEST_NAME}"):
        yield from check_tokenizer(store, TOKENIZER_FOLDER, fingerprint)


def _newest_readable(store: Store) -> Iterator[Commit]:
    for key in line_of(list_keys(store), read_recorded(store)):
        try:
            yield read_commit(store, key.name)
        except (DamagedCheckpoint, ObjectNotFound):
            continue
        return


def check_tokenizer(store: Store, path: str, fingerprint: str | None) -> Iterator[str]:
    """Yield what is wrong with the tokenizer in a folder, which should have a fingerprint."""

    def check() -> None:
        found = read_tokenizer_manifest(store, path).fingerprint
        if fingerprint not in (None, found):
            raise SealError(f"It has the fingerprint {found}, the manifest beside it says {fingerprint}.")

    yield from told(path, check)


def told(name: str, check: Callable[[], object]) -> Iterator[str]:
    """Yield what a check of a file raises, as a line."""
    try:
        check()
    except ObjectNotFound:
        yield f"{name}: is missing"
    except StorageError:
        raise
    except OutlastError as error:
        place = "" if error.where in (None, "", name) else f"{error.where}: "
        yield f"{name}: {place}{error.message}"
