"""Attempts: who owns a run, one life of the training process after another.

In: a store. Out: an ``Attempt``, claimed by creating ``attempts/<E>.json`` for E = largest + 1, kept by a
heartbeat that only its owner writes. Claiming over a living owner is refused. Nothing here needs a clock that
two machines share, nor an update that compares first: creating what must not exist is enough, so every store
will do (docs/design/commit.md).
"""

import dataclasses
import logging
import threading
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from outlast.checkpoint.config import CheckpointConfig
from outlast.checkpoint.interval import Life
from outlast.checkpoint.lineage import (
    CommitKey,
    claim_name,
    heartbeat_name,
    line_of,
    parse_commit_name,
    record_name,
)
from outlast.checkpoint.liveness import Clock, ProcessIdentity, this_process
from outlast.checkpoint.owner import Owner, Report
from outlast.checkpoint.records import (
    attempt_objects,
    claim_exists,
    list_keys,
    newest_attempt,
    read_life,
    read_or_none,
    read_recorded,
)
from outlast.checkpoint.threads import start
from outlast.errors import (
    CheckpointError,
    Fenced,
    ObjectExists,
    OutlastError,
    StoreUnreachable,
    explained_limits,
)
from outlast.storage import Store
from outlast.storage.checksummed_json import seal

_log = logging.getLogger(__name__)
_LONGEST_HISTORY = 50


class Attempt:
    """One life of the training process, and its right to write.

    ``number`` grows with every claim. ``last_step`` is the newest step reached, told by the train loop
    through the checkpoint writer. ``acknowledged`` is the newest commit that this attempt counts on: a run
    that misses it later has lost its commits. The heartbeat keeps both.
    """

    def __init__(
        self,
        store: Store,
        number: int,
        *,
        config: CheckpointConfig,
        clock: Clock,
        report: Report,
        claim: Mapping[str, Any],
        claimed_at: float,
    ) -> None:
        self.store = store
        self.number = number
        self.claim_id: str = claim["claim"]
        """Unlike the number no other run's: what this attempt writes carries it."""
        self.restored_step: int | None = None
        self.restored_commit: str | None = None
        self.last_step: int | None = None
        self.acknowledged: str | None = None
        self._config = config
        self._clock = clock
        self._report = report
        self._claim = seal(claim)
        self._counter = 0
        self._confirmed = claimed_at
        self._fenced: Fenced | None = None
        self._stop = threading.Event()
        self._writing = threading.Lock()
        self._thread: threading.Thread | None = None

    def start_heartbeat(self) -> None:
        """Write the first heartbeat, then one every ``heartbeat_seconds`` from a daemon thread."""
        self.store.retry(self.beat)
        thread = threading.Thread(target=self._keep_beating, name=f"heartbeat-{self.number}", daemon=True)
        start(thread)
        self._thread = thread

    @explained_limits()
    def beat(self, *, closed: bool = False) -> None:
        """Look for the own claim, write one heartbeat, then look for a later claim.

        The own claim comes first: where the run's folder was renamed or emptied, a heartbeat would make a
        folder of its old name, and training would go on into nothing. Raises Fenced, StorageError.
        """
        with self._writing:
            begun = self._clock.now()
            self._look_for_own_claim()
            self._counter += 1
            heartbeat = {
                "version": 1,
                "attempt": self.number,
                "claim": self.claim_id,
                "counter": self._counter,
                "closed": closed,
                "last_step": self.last_step,
                "committed": self.acknowledged,
                "now": begun,
                "wall": self._clock.wall(),
            }
            self.store.replace(heartbeat_name(self.number), [seal(heartbeat)])
            self._look_for_later_claim()
            self._confirmed = begun

    @explained_limits()
    def record_restored(self, step: int, commit_name: str | None = None) -> None:
        """Write down what this attempt starts from: the restored step, 0 for a fresh start. Training comes
        after.

        Args:
            commit_name: the commit that was restored; without it the commit of that step in the line is
            looked up.

        Raises:
            Fenced: a later attempt has claimed the run.
            CheckpointError: the line has no commit of that step.
        """
        self.check_owned()
        if commit_name is None:
            commit_name = self._find_commit(step)
        record = {
            "version": 1,
            "attempt": self.number,
            "claim": self.claim_id,
            "step": step,
            "commit": commit_name,
        }
        self.store.create_or_confirm(record_name(self.number), [seal(record)])
        self.restored_step = step
        self.restored_commit = self.acknowledged = commit_name
        self.last_step = step if self.last_step is None else max(step, self.last_step)
        _log.debug("attempt %d starts from step %d", self.number, step)

    def acknowledge(self, commit_name: str) -> None:
        """Write the name of a commit into the heartbeat at once: if it is lost, the next attempt notices.

        Raises:
            Fenced: this attempt owns the run no more.
        """
        self.acknowledged = commit_name
        try:
            self.beat()
        except Fenced:
            raise
        except OutlastError as error:  # the next heartbeat names it
            self._report(f"the heartbeat cannot be written: {error.message}")

    def commit_of(self, step: int) -> CommitKey:
        """Return the commit, made or to be made, that holds this attempt's state of a step.

        Where the attempt began that is the commit it restored, which is saved no second time.
        """
        restored = parse_commit_name(self.restored_commit) if self.restored_commit else None
        return restored if restored and restored.step == step else CommitKey(step, self.number)

    @explained_limits()
    def check_owned(self) -> None:
        """Ask the store whether this attempt still owns the run.

        A heartbeat that has grown too old is renewed before the question: an owner that slept, or whose store
        was away, and that nobody has replaced meanwhile, goes on.

        Raises:
            Fenced: a later claim exists; or the heartbeat is older than its limit and the store does not
            answer.
            StoreUnreachable: no answer, and the heartbeat is still young.
        """
        if self._fenced:
            raise self._fenced
        if self._age() <= self._config.heartbeat_limit_seconds:
            self.store.retry(self._look_for_claims)
            return
        try:
            self.store.retry(self.beat)
        except StoreUnreachable as error:
            raise self._fence(
                f"The heartbeat of attempt {self.number} is {self._age():.0f} s old, and the store is silent."
            ) from error
        except Fenced:
            raise
        except (
            OutlastError
        ) as error:  # a full disk: nobody else can claim on it either, and no later claim is there
            self._report(f"the heartbeat cannot be written: {error.message}")
            begun = self._clock.now()
            self.store.retry(self._look_for_claims)
            self._confirmed = begun

    def check_owned_locally(self) -> None:
        """Check before a step, without touching the store while the heartbeat is young. Raises Fenced."""
        if self._fenced:
            raise self._fenced
        if self._age() > self._config.heartbeat_limit_seconds:
            self.check_owned()

    @explained_limits()
    def close(self) -> None:
        """Stop the heartbeat and mark the attempt as ended, so that the next one need not wait.

        Safe to call twice.
        """
        if self._stop.is_set():
            return
        self.stop_heartbeat()
        if self._fenced:
            return
        try:
            self.beat(closed=True)
        except OutlastError as error:
            self._report(f"attempt {self.number} could not be marked as ended: {error.message}")

    def stop_heartbeat(self) -> None:
        """Stop the heartbeat without a mark, as a death would."""
        self._stop.set()
        if self._thread:
            self._thread.join(timeout=self._config.heartbeat_limit_seconds)

    @explained_limits()
    def history(self) -> list[Life]:
        """Return the lives of the latest 50 earlier attempts, oldest first; damaged or missing ones are left
        out.
        """
        numbers = sorted({number for number, _ in attempt_objects(self.store) if number < self.number})
        numbers = numbers[-_LONGEST_HISTORY:]
        lives = [read_life(self.store, number) for number in numbers]
        return [life for life in lives if life]

    def _find_commit(self, step: int) -> str | None:
        keys = [key for key in list_keys(self.store) if key.attempt < self.number]
        for key in line_of(keys, read_recorded(self.store, up_to=self.number)):
            if key.step == step:
                return key.name
        if step:
            raise CheckpointError(
                f"The run has no checkpoint of step {step} to start from.", where=self.store.url
            )
        return None

    def _age(self) -> float:
        return self._clock.now() - self._confirmed

    def _look_for_claims(self) -> None:
        self._look_for_own_claim()
        self._look_for_later_claim()

    def _look_for_own_claim(self) -> None:
        """A claim is never deleted or changed, so one that is missing went with its folder; and where another
        stands under its number the folder was emptied, and another run has begun there.
        """
        if read_or_none(self.store, claim_name(self.number)) != self._claim:
            raise self._fence(
                f"The claim of attempt {self.number} is gone: the run's folder was renamed, emptied or "
                f"deleted while this process trained; it stops.",
                remedy="put the folder back, and give the same line again: it goes on from the newest "
                "checkpoint there",
            )

    def _look_for_later_claim(self) -> None:
        """Later claims follow without a gap, so one name tells."""
        if self.store.exists(claim_name(self.number + 1)):
            raise self._fence(f"Attempt {self.number + 1} has claimed the run; attempt {self.number} stops.")

    def _fence(
        self,
        message: str,
        remedy: str = "nothing: what this attempt committed before is kept, the new owner goes on",
    ) -> Fenced:
        self._fenced = Fenced(message, where=self.store.url, remedy=remedy)
        return self._fenced

    def _keep_beating(self) -> None:
        goes_on = True
        while goes_on:
            with suppress(Exception):  # of telling, too: a thread that dies would silently give the run away
                goes_on = self._beat_later()

    def _beat_later(self) -> bool:
        """Wait, then beat. False where there is nothing to beat for."""
        try:
            if self._stop.wait(self._config.heartbeat_seconds):
                return False
            self.beat()
        except Fenced:
            return False
        except Exception as error:
            message = error.message if isinstance(error, OutlastError) else repr(error)
            self._report(f"the heartbeat of attempt {self.number} failed, trying again: {message}")
        return True


@explained_limits()
def claim_attempt(
    store: Store,
    *,
    config: CheckpointConfig,
    clock: Clock | None = None,
    report: Report = _log.warning,
    process: ProcessIdentity | None = None,
    start_heartbeat: bool = True,
) -> Attempt:
    """Claim the run in a store, waiting where the owner may be dead and only its silence can tell.

    Args:
        clock, process: for tests; the machine's clock and this process otherwise.
        report: told what is waited for.
        start_heartbeat: False leaves ``Attempt.beat`` to the caller.

    Raises:
        RunError: the run has a living owner; names its host, pid and age.
        StoreUnreachable: the store does not answer.
    """
    clock = clock or Clock()
    process = process or this_process()
    while True:
        number = newest_attempt(store)
        if number and claim_exists(store, number):
            Owner(store, number).wait_until_free(config, clock, process, report)
        number += 1
        begun = clock.now()
        claim = {
            "version": 1,
            "attempt": number,
            "claim": uuid.uuid4().hex,
            **dataclasses.asdict(process),
            "now": begun,
            "wall": clock.wall(),
            "heartbeat_seconds": config.heartbeat_seconds,
            "heartbeat_limit_seconds": config.heartbeat_limit_seconds,
        }
        try:
            store.create_or_confirm(claim_name(number), [seal(claim)])
        except ObjectExists:
            continue  # another process claimed in the same moment: see whether it lives
        _log.debug("attempt %d has claimed the run", number)
        store.anchor = claim_name(number)
        attempt = Attempt(
            store, number, config=config, clock=clock, report=report, claim=claim, claimed_at=begun
        )
        if start_heartbeat:
            try:
                attempt.start_heartbeat()
            except OutlastError:
                attempt.close()  # or its claim keeps this process out for as long as it lives
                raise
        return attempt
