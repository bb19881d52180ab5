"""One life of a run: what a training process calls, with the observer looking on.

In: a store, a clock, a process. Out: what the store holds afterwards. Claim, restore, record, save in a
thread of its own while a heartbeat beats in another, leave; or recover.
"""

import random
import re

from outlast.checkpoint.attempts import Attempt, claim_attempt
from outlast.checkpoint.config import CheckpointConfig
from outlast.checkpoint.lineage import CommitKey, parse_commit_name
from outlast.checkpoint.liveness import Clock, ProcessIdentity
from outlast.checkpoint.recover import recover_run
from outlast.checkpoint.restore import list_commits, restore_newest, verify_commit
from outlast.checkpoint.save import CheckpointWriter
from outlast.errors import DamagedCheckpoint, Fenced, OutlastError
from support.simulation.observer import Observer, arrays_of
from support.simulation.store import Disk, Machine, SimulatedStore

CONFIG = CheckpointConfig(part_bytes=64)
_NOT_READ_BACK = re.compile("the checkpoint (.*) could not be read back")


class Life:
    """What one process does.

    Args:
        clock, identity: of the process; whether others can look it up is the identity's to say.
    """

    def __init__(
        self, disk: Disk, machine: Machine, clock: Clock, identity: ProcessIdentity, rng: random.Random
    ) -> None:
        self.store = SimulatedStore(disk, machine)
        self.machine = machine
        self.clock = clock
        self.identity = identity
        self.rng = rng
        self._watcher = disk.watcher

    @property
    def observer(self) -> Observer:
        return self.machine.observer

    def live(self) -> None:
        try:
            if self.observer.losses and self.rng.random() < 0.5:
                self._recover()
                return
            attempt, state, step = self._begin()
        except OutlastError as error:
            self._told(error)
            return
        try:
            self._train(attempt, state, step)
        except OutlastError as error:
            self._told(error)
        attempt.close()

    def last(self) -> None:
        """A life that nothing may go wrong in."""
        try:
            if self.observer.lost:
                self._recover()
            attempt, state, step = self._begin()
            writer = self._writer(attempt)
            state = self.observer.train(state, attempt.number, step + 1)
            writer.save(step + 1, arrays_of(state), wait=True)
            attempt.close()
            found = restore_newest(self.store, report=self._say)
            if found is None or found.commit.key != CommitKey(step + 1, attempt.number):
                self.observer.violated(f"saved step {step + 1}, found {found and found.commit.key}")
            self.observer.judge_line(
                (CommitKey(row.step, row.attempt), not verify_commit(self.store, row.name))
                for row in list_commits(self.store)
                if row.in_line
            )
        except DamagedCheckpoint as error:
            if not self.observer.rotten or self.observer.needed():
                self.observer.violated(f"the run cannot go on: {error!r}")
        except OutlastError as error:
            self.observer.violated(f"the run cannot go on: {error!r}")

    def _told(self, error: OutlastError) -> None:
        """An error that a person reads. Judge whether it may be."""
        self._say(f"ends: {error.message}")
        if self.observer.emptied_at is not None:
            return  # the whole run was deleted under this life, which may say so in either way
        if "is known to have is gone" in error.message and not self.observer.lost:
            self.observer.violated(f"nothing was lost: {error.message}")
        damaged = self.observer.rotten | self.observer.lost
        if isinstance(error, DamagedCheckpoint) and not damaged:
            self.observer.violated(f"nothing was damaged: {error.message}")

    def _begin(self) -> tuple[Attempt, int, int]:
        attempt = claim_attempt(
            self.store, config=CONFIG, clock=self.clock, process=self.identity, report=self._say
        )
        self.machine.attempt = attempt.number
        acknowledge = attempt.acknowledge

        def watched(commit_name: str) -> None:
            key = parse_commit_name(commit_name)
            assert key
            self._say(f"acknowledges {key}")
            self.observer.acknowledged(key, self.machine)
            acknowledge(commit_name)

        attempt.acknowledge = watched
        try:
            restored = restore_newest(self.store, attempt_number=attempt.number, report=self._say)
            if restored is None:
                attempt.record_restored(0)
                return attempt, 0, 0
            self.machine.restores += 1
            key = restored.commit.key
            attempt.record_restored(key.step, restored.commit.name)
            state = self.observer.restored(key, restored.arrays)
        except OutlastError:
            attempt.close()
            raise
        return attempt, state, key.step

    def _recover(self) -> None:
        before = self.observer.losses
        found = recover_run(self.store.url, report=self._say)
        if found.lost_step is not None:
            self.observer.violated(f"recover left step {found.lost_step}")
        if self.observer.losses == before:
            self.observer.losses = 0

    def _writer(self, attempt: Attempt) -> CheckpointWriter:
        return CheckpointWriter(self.store, CONFIG, attempt, {"seed": 1}, {}, report=self._heard)

    def _heard(self, what: str) -> None:
        self._say(what)
        if unread := _NOT_READ_BACK.search(what):
            key = parse_commit_name(unread[1])
            assert key
            self.observer.unread.add(key)
        if "Saving failed" in what:
            self.observer.violated(what)

    def _train(self, attempt: Attempt, state: int, step: int) -> None:
        writer = self._writer(attempt)
        for _ in range(self.rng.randint(1, 6)):
            self.clock.sleep(self.rng.choice((1.0, 15.0)))
            attempt.check_owned_locally()
            step += 1
            state = self.observer.train(state, attempt.number, step)
            for _ in range(2):
                try:
                    writer.save(step, arrays_of(state), wait=self.rng.random() < 0.5)
                except Fenced:
                    raise
                except OutlastError as error:
                    self._say(f"the save of step {step} failed: {error.message}")
                    if self.rng.random() < 0.5:
                        continue
                break
            if self.rng.random() < 0.2:
                writer.rank([step])
        writer.close()
        writer.raise_if_fenced()

    def _say(self, what: str) -> None:
        self._watcher.say(self.machine, what)
