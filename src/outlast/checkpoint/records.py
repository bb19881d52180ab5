"""What attempts leave behind for those after them: claims, heartbeats, the step each one started from.

In: a store. Out: numbers, documents, lives; a document that is absent, damaged or another run's is None,
never half read. The one that the line rule depends on, the record of the restored step, then counts as
"before everything", so that no commit of another history is ever taken for one of the run.
"""

import logging
from collections.abc import Mapping
from typing import Any

import pydantic

from outlast.checkpoint.interval import Life
from outlast.checkpoint.lineage import (
    ATTEMPTS,
    COMMITS,
    UNREADABLE,
    CommitKey,
    Start,
    claim_name,
    heartbeat_name,
    parse_attempt_name,
    parse_commit_name,
    record_name,
)
from outlast.errors import ObjectNotFound, SealError
from outlast.storage import Store
from outlast.storage.checksummed_json import unseal

_log = logging.getLogger(__name__)


def read_recorded(store: Store, *, up_to: int | None = None) -> dict[int, Start]:
    """Return what each attempt that began to train recorded (the input of the line rule).

    Only the newest and those it descends from are read: nothing else matters to the rule.

    Args:
        up_to: leave out the attempts above this number.
    """
    numbers = {number for number, kind in attempt_objects(store) if kind == "from.json"}
    numbers = {number for number in numbers if up_to is None or number <= up_to}
    recorded: dict[int, Start] = {}
    attempt = max(numbers, default=None)
    while attempt is not None and attempt not in recorded:
        recorded[attempt] = _read_start(store, attempt)
        came_from = recorded[attempt].commit
        attempt = came_from.attempt if came_from else None
    return recorded


def list_keys(store: Store) -> list[CommitKey]:
    """Return the step and attempt of every commit object, in or out of the line, oldest first."""
    infos = store.retry(store.list, COMMITS)
    return sorted(key for info in infos if (key := parse_commit_name(info.name)))


def newest_known(store: Store, *, up_to: int | None = None) -> CommitKey | None:
    """Return the newest commit that the run is known to have had, None where none is known: the later
    of the one that the newest attempt restored (its record) and the last one it acknowledged (its heartbeat).

    No other attempt has a newer one that counts, by the rule of the line. A commit that retention removed is
    never it: the one that an attempt restored outlives the attempt, and of its own the newest stay.

    Args:
        up_to: leave out the attempts above this number.
    """
    recorded = read_recorded(store, up_to=up_to)
    if not recorded:
        return None
    newest = max(recorded)
    heartbeat = _read_own(store, newest, heartbeat_name(newest)) or {}
    acknowledged = heartbeat.get("committed")
    named = parse_commit_name(acknowledged) if isinstance(acknowledged, str) else None
    return max((key for key in (recorded[newest].commit, named) if key), default=None)


def newest_attempt(store: Store) -> int:
    """Return the largest number in use, 0 for none.

    Commits count too: a run may have been copied without attempts/.
    """
    numbers = [number for number, _ in attempt_objects(store)]
    commits = store.retry(store.list, COMMITS)
    numbers += [key.attempt for info in commits if (key := parse_commit_name(info.name))]
    newest = max(numbers, default=0)
    while claim_exists(store, newest + 1):  # a listing may lag, a lookup does not
        newest += 1
    return newest


def claim_exists(store: Store, number: int) -> bool:
    """Whether an attempt of this number has claimed the run."""
    return store.retry(store.exists, claim_name(number))


def attempt_objects(store: Store) -> list[tuple[int, str]]:
    """Return the number and kind of every object that attempts wrote."""
    infos = store.retry(store.list, ATTEMPTS)
    return [parsed for info in infos if (parsed := parse_attempt_name(info.name))]


def _read_start(store: Store, number: int) -> Start:
    record = _read_own(store, number, record_name(number)) or {}
    step, name = record.get("step"), record.get("commit")
    commit = parse_commit_name(name) if isinstance(name, str) else None
    if record.get("attempt") != number or not isinstance(step, int) or (name is not None and commit is None):
        _log.warning(
            "%s is damaged: what attempt %d started from is not known, and no earlier checkpoint counts",
            store.url_of(record_name(number)),
            number,
        )
        return UNREADABLE
    return Start(step, commit)


def read_life(store: Store, number: int) -> Life | None:
    """Return the life of an attempt, None where its claim or heartbeat is absent or damaged."""
    claim = read_sealed(store, claim_name(number))
    heartbeat = read_sealed(store, heartbeat_name(number))
    if not claim or not heartbeat or not belongs_to(heartbeat, claim):
        return None
    record = read_sealed(store, record_name(number)) or {}
    fields = {
        "attempt": number,
        "start": claim.get("wall"),
        "last_heartbeat": heartbeat.get("wall"),
        "first_step": record.get("step"),
        "last_step": heartbeat.get("last_step"),
        "closed": heartbeat.get("closed"),
    }
    try:
        return pydantic.TypeAdapter(Life).validate_python(fields)
    except pydantic.ValidationError:
        return None


def belongs_to(document: Mapping[str, Any], claim: Mapping[str, Any] | None) -> bool:
    """Whether a document of an attempt carries what is unique in the claim under its number. Earlier versions
    wrote nothing of it, and of a claim that is gone, damaged or another attempt's nothing is known: then
    it does.
    """
    told = document.get("claim")
    if told is None or claim is None or claim.get("attempt") != document.get("attempt"):
        return True
    return told == claim.get("claim")


def _read_own(store: Store, number: int, name: str) -> dict[str, Any] | None:
    """Return a sealed document of an attempt; None where it is absent, damaged, or another run's."""
    document = read_sealed(store, name)
    if document and "claim" in document and not belongs_to(document, read_sealed(store, claim_name(number))):
        _log.warning("%s is that of another run: it does not belong to the claim", store.url_of(name))
        return None
    return document


def read_sealed(store: Store, name: str) -> dict[str, Any] | None:
    """Return a sealed document; None where it is absent or damaged."""
    try:
        return parse_sealed(store.retry(store.read, name))
    except ObjectNotFound:
        return None


def read_or_none(store: Store, name: str) -> bytes | None:
    """Return an object, None where it is absent."""
    try:
        return store.read(name)
    except ObjectNotFound:
        return None


def parse_sealed(content: bytes | None) -> dict[str, Any] | None:
    """Return a sealed document, None where it is absent or damaged."""
    try:
        return unseal(content, where="") if content is not None else None
    except SealError:
        return None
