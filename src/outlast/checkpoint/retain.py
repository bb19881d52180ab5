"""Which checkpoints go: a pure decision, and the one place that carries it out.

In: the commits there are, and what this attempt knows of them. Out: fewer of them. A commit object is deleted
first and its data after it, so a retention that dies half-way leaves unlisted data and never a checkpoint
that cannot be read. Nothing is deleted once a later claim exists: what a replaced owner believes to be old
may be all that its successor has.
"""

import logging
import math
import time
from collections.abc import Container, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from outlast.checkpoint.attempts import Attempt
from outlast.checkpoint.config import CheckpointConfig
from outlast.checkpoint.lineage import DATA, CommitKey, heartbeat_name, ignored_because, parse_data_name
from outlast.checkpoint.owner import Report
from outlast.checkpoint.records import list_keys, read_recorded
from outlast.storage import Store

_log = logging.getLogger(__name__)

GRACE_SECONDS = 24 * 3600.0
"""How long what no commit names is kept."""

_LOOK_SECONDS = 3600.0
"""Between two looks for what is kept."""


class Candidate(NamedTuple):
    """One commit, as retention sees it."""

    key: CommitKey
    in_line: bool


def choose_deletions(
    candidates: Sequence[Candidate],
    *,
    attempt: int,
    restored_step: int | None,
    verified: AbstractSet[CommitKey],
    keep_newest: int,
    keep_every_steps: int | None,
    best_step: int | None,
) -> list[CommitKey]:
    """Return the commits that attempt number ``attempt`` may delete, oldest first.

    Kept are: the newest ``keep_newest`` that this attempt has verified and everything newer; the one it
    restored; the one of ``best_step``; the first at or after each multiple of ``keep_every_steps``; all of
    later attempts. As long as fewer than ``keep_newest`` are verified, everything is kept.
    """
    line = sorted(candidate for candidate in candidates if candidate.in_line)
    trusted = [candidate.key for candidate in line if candidate.key in verified][-keep_newest:]
    if len(trusted) < keep_newest:
        return []
    kept = reasons_to_keep(
        [candidate.key for candidate in line],
        newest_from=trusted[0],
        restored_step=restored_step,
        keep_every_steps=keep_every_steps,
        best_step=best_step,
    )
    return sorted(
        candidate.key
        for candidate in candidates
        if candidate.key not in kept and candidate.key.attempt <= attempt
    )


def reasons_to_keep(
    line: Sequence[CommitKey],
    *,
    newest_from: CommitKey,
    restored_step: int | None,
    keep_every_steps: int | None,
    best_step: int | None,
) -> dict[CommitKey, list[str]]:
    """Return the reasons to keep each commit of a line; a commit that may be deleted has no entry.

    Args:
        line: the commits that belong to the run, oldest first.
        newest_from: this one and all newer are kept.
    """
    reasons: dict[CommitKey, list[str]] = {}
    first_of = {key.step // keep_every_steps: key for key in reversed(line)} if keep_every_steps else {}
    every = {key for multiple, key in first_of.items() if multiple > 0}
    for key in line:
        found = {
            "among the newest": key >= newest_from,
            "the best": key.step == best_step,
            f"every {keep_every_steps} steps": key in every,
            "restored": key.step == restored_step,
        }
        if any(found.values()):
            reasons[key] = [reason for reason, holds in found.items() if holds]
    return reasons


def best_committed(ranking: Sequence[int], committed: Container[int]) -> int | None:
    """Return the first of the evaluated steps, the best first, that has a checkpoint."""
    return next((step for step in ranking if step in committed), None)


class Retention:
    """Deletes what a run no longer needs, on behalf of one attempt."""

    def __init__(
        self, store: Store, config: CheckpointConfig, attempt: Attempt, report: Report = _log.info
    ) -> None:
        self._store = store
        self._report = report
        self._config = config
        self._attempt = attempt
        self._look_at = 0.0

    def run(self, verified: AbstractSet[CommitKey], ranking: Sequence[int] = ()) -> list[CommitKey]:
        """Delete what may go and return it.

        Args:
            verified: commits that this attempt has read back, or restored.
            ranking: evaluated steps, the best first; the first that has a checkpoint keeps it.

        Raises:
            Fenced: a later attempt owns the run; what is left stays.
            StorageError: the store failed; the next retention goes on.
        """
        deleted: list[CommitKey] = []
        candidates = self._candidates()
        committed = {candidate.key.step for candidate in candidates if candidate.in_line}
        best_step = best_committed(ranking, committed)
        for key in choose_deletions(
            candidates,
            attempt=self._attempt.number,
            restored_step=self._attempt.restored_step,
            verified=verified,
            keep_newest=self._config.keep_newest,
            keep_every_steps=self._config.keep_every_steps,
            best_step=best_step if self._config.keep_best else None,
        ):
            self._attempt.check_owned()
            self._delete(key.name)
            self._delete_data(key)
            deleted.append(key)
        if time.monotonic() >= self._look_at:
            kept_bytes = self._delete_orphans()
            self._look_at = time.monotonic() + (_LOOK_SECONDS if kept_bytes else math.inf)
        return deleted

    def _candidates(self) -> list[Candidate]:
        keys = list_keys(self._store)
        recorded = read_recorded(self._store)
        return [Candidate(key=key, in_line=ignored_because(key, recorded) is None) for key in keys]

    def _delete_orphans(self) -> int:
        """Delete data that earlier attempts wrote and never committed, a day after the last of them was
        written; return the bytes that are kept until then.

        Should such an attempt wake up and commit after all, its commit lies beyond the step this attempt
        restored and so outside the line: nobody will miss its data. The commit is looked up by name, since a
        listing may lag. The run's newest known commit was there when its owner began, and it has committed
        since. The day is for what nobody thought of, and for `checkpoint recover`; the store's own clock
        counts it, from the data to this attempt's heartbeat.
        """
        store = self._store
        sizes: dict[CommitKey, int] = {}
        newest: dict[CommitKey, float] = {}
        for info in store.retry(store.list, DATA):
            key = parse_data_name(info.name)
            if key and key.attempt < self._attempt.number:
                sizes[key] = sizes.get(key, 0) + info.size_bytes
                newest[key] = max(newest.get(key, 0.0), info.modified)
        orphans = [key for key in sorted(sizes) if not store.retry(store.exists, key.name)]
        now = self._store_seconds() if orphans else 0.0
        kept = [key for key in orphans if now - newest[key] < GRACE_SECONDS]
        for key in orphans:
            if key not in kept:
                self._attempt.check_owned()
                self._delete_data(key)
        self._delete_leftovers()
        kept_bytes = sum(sizes[key] for key in kept)
        if kept:
            steps = ", ".join(f"step {key.step} of attempt {key.attempt}" for key in kept)
            self._report(
                f"{kept_bytes} bytes of unfinished saves of earlier attempts are kept for a day: {steps}"
            )
        return kept_bytes

    def _store_seconds(self) -> float:
        """Return the store's time: when it took this attempt's latest heartbeat."""
        name = heartbeat_name(self._attempt.number)
        infos = self._store.retry(self._store.list, name)
        return max((info.modified for info in infos if info.name == name), default=0.0)

    def _delete_leftovers(self) -> None:
        for name in self._store.list_leftovers(DATA):
            key = parse_data_name(name)
            if key and key.attempt < self._attempt.number:
                self._delete(name)

    def _delete_data(self, key: CommitKey) -> None:
        store = self._store
        for info in store.retry(store.list, key.data_prefix):
            self._delete(info.name)
        for name in store.list_leftovers(key.data_prefix):
            self._delete(name)

    def _delete(self, name: str) -> None:
        _log.debug("deleting %s", name)
        self._store.retry(self._store.delete, name)
