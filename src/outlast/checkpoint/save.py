"""Saving checkpoints in the background: data first, then the one object that makes it a checkpoint.

In: a step and host arrays, handed over by the train loop. Out: a commit, read back and verified, and fewer
old ones. One save runs at a time. A save that fails costs itself and no more: it is reported, its data are
taken away, training goes on. Only losing the run to a later attempt (``Fenced``) stops the caller.
"""

import json
import logging
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from outlast.checkpoint.attempts import Attempt
from outlast.checkpoint.config import CheckpointConfig
from outlast.checkpoint.format import (
    VERSION,
    ArraySlice,
    Commit,
    Parent,
    Part,
    Slice,
    build_part,
    encode_commit,
    plan_parts,
    whole_arrays,
)
from outlast.checkpoint.interval import SaveTimer, mean_seconds_between_preemptions
from outlast.checkpoint.lineage import CommitKey, list_name
from outlast.checkpoint.owner import Report
from outlast.checkpoint.restore import read_commit, verify_commit
from outlast.checkpoint.retain import Retention
from outlast.checkpoint.threads import start
from outlast.errors import (
    CheckpointError,
    DamagedCheckpoint,
    Fenced,
    ObjectExists,
    ObjectNotFound,
    OutlastError,
    SealError,
    explained,
)
from outlast.storage import Store
from outlast.storage.checksummed_json import canonical

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _Job:
    step: int
    slices: Sequence[ArraySlice]
    blocking_seconds: float | None


class CheckpointWriter:
    """Writes the checkpoints of one attempt.

    Args:
        attempt: owns the run, and has recorded the step it starts from.
        identity: what a resume must not change (plain JSON values); written into each commit.
        mesh: how the arrays lay on the devices; for people.
        report: told of saves that fail and of what is deleted.

    ``last_error`` is the error of the latest save, None where it went well; ``num_failed`` and
    ``num_committed`` count, ``num_failed_in_a_row`` since the last one that went well.
    """

    def __init__(
        self,
        store: Store,
        config: CheckpointConfig,
        attempt: Attempt,
        identity: Mapping[str, Any],
        mesh: Mapping[str, Any],
        *,
        report: Report = _log.warning,
    ) -> None:
        self.last_error: OutlastError | None = None
        self.last_step: int | None = None
        self.last_save_seconds: float | None = None
        self.num_failed = self.num_failed_in_a_row = self.num_committed = 0
        self._store = store
        self._config = config
        self._attempt = attempt
        self._identity = _to_plain(identity)
        self._mesh = _to_plain(mesh)
        self._report = report
        self._retention = Retention(store, config, attempt, report)
        self._verified: set[CommitKey] = set()
        self._withdrawn: set[CommitKey] = set()
        self._ranking: Sequence[int] = ()
        self._parent: Parent | None = None
        self._knows_parent = False
        self._fenced: Fenced | None = None
        self._thread: threading.Thread | None = None
        self._timer = SaveTimer(config)

    def due(self, step: int, now: float) -> bool:
        """Whether a save is wanted at this step. Cheap; for every step.

        Args:
            now: seconds of one steady clock (``time.monotonic()``), the same in every call.
        """
        self._attempt.last_step = step
        return self._timer.due(step, now, first_step=self._attempt.restored_step or 0) and not self.saving

    @property
    def saving(self) -> bool:
        """Whether a save is being written."""
        return self._thread is not None and self._thread.is_alive()

    def save(
        self,
        step: int,
        arrays: Mapping[str, NDArray[Any]] | Sequence[ArraySlice],
        *,
        wait: bool = False,
        blocking_seconds: float | None = None,
    ) -> bool:
        """Hand host arrays over; they must not change until the save has ended.

        Args:
            arrays: whole arrays by name, or this process's slices.
            wait: finish a save that is running, then this one, and raise what goes wrong.
            blocking_seconds: how long this save held up training (the copy off the device): the cost in
                Young's rule. None: the whole save counts, as where training and saving share the processor.

        Returns:
            False where another save is still running and this one was left out.

        Raises:
            Fenced: this attempt owns the run no more.
            OutlastError: with ``wait``, what went wrong.
        """
        try:
            taken = self._start(step, arrays, wait, blocking_seconds)
            if wait:
                self._join()
        except CheckpointError:  # fenced, or the caller's mistake
            raise
        except Exception as error:  # no memory, no thread: it costs a save like any other failure
            self._fail(step, error)
            taken = True
        if wait:
            self.raise_if_fenced()
            if self.last_error:
                raise self.last_error
        return taken

    def _start(
        self,
        step: int,
        arrays: Mapping[str, NDArray[Any]] | Sequence[ArraySlice],
        wait: bool,
        blocking_seconds: float | None,
    ) -> bool:
        """Begin a save. False where another one is running and is not waited for."""
        self.raise_if_fenced()
        if self.saving and not wait:
            return False
        self._join()
        self.raise_if_fenced()
        if step == self.last_step or (step == self._attempt.restored_step and self._attempt.restored_commit):
            self.last_error = None
            return True
        slices = whole_arrays(arrays) if isinstance(arrays, Mapping) else list(arrays)
        job = _Job(step=step, slices=slices, blocking_seconds=blocking_seconds)
        if self._attempt.restored_step is None:
            raise CheckpointError(
                "A save before the attempt recorded where it starts.", remedy="call record_restored first"
            )
        self._attempt.last_step = step
        self._timer.saved(step)
        self._thread = threading.Thread(target=self._run, args=(job,), name=f"save-{step}")
        start(self._thread)
        return True

    def rank(self, steps: Sequence[int]) -> None:
        """Say which steps are the best, the best first: retention keeps the first that has a checkpoint."""
        self._ranking = steps

    def raise_if_fenced(self) -> None:
        """Raise Fenced where a save found that a later attempt owns the run."""
        if self._fenced:
            raise self._fenced

    def close(self) -> None:
        """Wait for the save that is running. Its errors are in ``last_error``."""
        self._join()

    def _join(self) -> None:
        if self._thread and self._thread.ident is not None:  # None: the system refused to start it
            self._thread.join()
        self._thread = None

    def _run(self, job: _Job) -> None:
        try:
            self._save_and_measure(job)
        except Exception as error:  # whatever it is, it must reach the caller and must not end training
            self._fail(job.step, error)

    def _save_and_measure(self, job: _Job) -> None:
        begun = time.monotonic()
        try:
            self._save(job)
            self.last_error = None
            self.num_failed_in_a_row = 0
        finally:
            self.last_save_seconds = time.monotonic() - begun
            cost = job.blocking_seconds
            self._timer.save_seconds = self.last_save_seconds if cost is None else cost

    def _fail(self, step: int, error: Exception) -> None:
        if isinstance(error, Fenced):
            self._fenced = self.last_error = error
            return
        self.num_failed += 1
        self.num_failed_in_a_row += 1
        known = error if isinstance(error, OutlastError) else explained(error)
        self.last_error = known or CheckpointError(f"Saving failed: {error!r}")
        self._report(f"the save of step {step} failed, training goes on: {self.last_error}")

    # Why a death at any line of `_save`, or a rival at any moment, loses nothing that was acknowledged and
    # shows nothing that is not whole (docs/design/commit.md; tests/checkpoint/test_model.py tries every
    # history):
    #
    # 1. Parts come before the commit. Readers look for commits alone. Until the commit object is created the
    #    parts are garbage under a random prefix; from then on every byte that it names has been written,
    #    under a digest taken from host memory. There is nothing between: a store creates an object whole or
    #    not.
    # 2. No name is used twice. Step and attempt make the commit's name. The attempt's number is ours alone,
    #    for its claim was created where nothing was, and within an attempt steps grow. So a lost answer is
    #    settled by reading back, and a request that the store applies late, or again, cannot hit newer data.
    # 3. A rival need not be stopped, only not believed. Whoever comes after us records which commit it
    #    restored, and from then on only what lies on that way counts: what we write late, asleep or cut off,
    #    does not (`lineage.ignored_because`). The heartbeat and most looks at the owner only save wasted
    #    work.
    # 4. The look after the commit does more. If there is no later claim by then, every later attempt lists
    #    after our commit was there and finds it. Only so may it be acknowledged, and older ones be deleted.

    def _save(self, job: _Job) -> None:
        self._attempt.check_owned()  # a folder that is gone is not made again by the first part
        if self._timer.seconds_between_preemptions is None:
            lives = self._attempt.history()
            self._timer.seconds_between_preemptions = mean_seconds_between_preemptions(lives)
        self._find_parent()
        key = CommitKey(job.step, self._attempt.number)
        if key in self._withdrawn:
            # A store may apply the deletion of that name once more, and late: nothing new may have it.
            raise CheckpointError(
                f"The checkpoint of step {job.step} was damaged when it was written; this attempt cannot "
                "commit that step again.",
                where=key.name,
                remedy="save another step, or start the run again",
            )
        prefix = f"{key.data_prefix}{uuid.uuid4().hex}/"
        try:
            _log.debug("step %d: writing its arrays", job.step)
            commit, content = encode_commit(self._write_parts(job, prefix))
            self._write_list(list_name(prefix), content)
            self._attempt.check_owned()
        except Exception:
            self._discard(prefix)  # no commit can name it
            self._raise_if_replaced()  # a successor takes what is not committed away, under our hands
            raise
        _log.debug("step %d: committing", job.step)
        commit = self._commit(commit, content, prefix)
        _log.debug("step %d: committed", job.step)
        is_right = not self._config.verify_after_save or self._verify(commit)
        self._attempt.check_owned()  # only now it is certain that every later attempt will see this commit
        self._attempt.acknowledge(commit.name)
        self.num_committed += 1
        self.last_step = job.step
        self._parent = Parent(name=commit.name, sha256=commit.sha256)
        if is_right:
            self._verified.add(key)
            self._retain()
        _log.debug("step %d: saved", job.step)

    def _raise_if_replaced(self) -> None:
        try:
            self._attempt.check_owned()
        except Fenced:
            raise
        except OutlastError:
            return  # the store does not say; what went wrong before is the better answer

    def _retain(self) -> None:
        try:
            for deleted in self._retention.run(self._verified, self._ranking):
                self._verified.discard(deleted)
        except Fenced:
            raise
        except OutlastError as error:
            self._report(f"old checkpoints could not be deleted, the next save tries again: {error.line}")

    def _write_parts(self, job: _Job, prefix: str) -> Commit:
        parts: list[Part] = []
        slices: list[Slice] = []
        for index, group in enumerate(plan_parts(job.slices, self._config.part_bytes)):
            built = build_part(group, name=f"{prefix}part-{index:05d}.safetensors", index=index)
            self._store.create_or_confirm(built.part.name, built.content)
            parts.append(built.part)
            slices += built.slices
        return Commit(
            version=VERSION,
            step=job.step,
            attempt=self._attempt.number,
            parent=self._parent,
            identity=self._identity,
            mesh=self._mesh,
            parts=tuple(parts),
            slices=tuple(slices),
        )

    def _write_list(self, name: str, content: bytes) -> None:
        """Write what `checkpoint recover` reads, and read it back."""
        self._store.create_or_confirm(name, [content])
        if self._config.verify_after_save and self._store.retry(self._store.read, name) != content:
            raise DamagedCheckpoint(
                "The list of the parts was damaged as soon as it was written.", where=name
            )

    def _commit(self, commit: Commit, content: bytes, prefix: str) -> Commit:
        """Create the commit object and return it. From here on nothing may take the data away but a retention
        that deletes it first.

        The name can be taken only by an earlier save of this step whose outcome remained unknown: then that
        one counts.
        """
        try:
            self._store.create_or_confirm(commit.name, [content])
        except ObjectExists:
            earlier = read_commit(self._store, commit.name)
            problems = verify_commit(self._store, commit.name)
            self._discard(prefix)
            if problems:
                raise DamagedCheckpoint(problems[0], where=commit.name) from None
            return earlier
        return commit

    def _verify(self, commit: Commit) -> bool:
        """Read a commit back.

        One that is damaged already is taken away again; one that cannot be read stays, unverified.
        """
        try:
            problems = verify_commit(self._store, commit.name)
        except ObjectNotFound:
            problems = [f"{commit.name} is gone"]
        except OutlastError as error:
            self._report(f"the checkpoint {commit.name} could not be read back: {error.line}")
            return False
        if not problems:
            return True
        self._attempt.check_owned()
        self._withdrawn.add(commit.key)
        self._store.retry(self._store.delete, commit.name)
        self._discard(commit.key.data_prefix)
        raise DamagedCheckpoint(
            f"A checkpoint was damaged as soon as it was written: {problems[0]}", where=commit.name
        )

    def _find_parent(self) -> None:
        """Find what comes before this attempt's first commit: the one it restored."""
        if self._knows_parent:
            return
        if self._attempt.restored_commit:
            try:
                parent = read_commit(self._store, self._attempt.restored_commit)
            except (DamagedCheckpoint, ObjectNotFound) as error:  # it was whole when it was restored
                self._report(f"the checkpoint this attempt started from has been lost: {error.line}")
            else:
                self._parent = Parent(name=parent.name, sha256=parent.sha256)
                self._verified.add(parent.key)
        self._knows_parent = True

    def _discard(self, prefix: str) -> None:
        """Take away data that no commit names; what cannot be deleted now is left to the next attempt."""
        try:
            for info in self._store.list(prefix):
                self._store.delete(info.name)
        except OutlastError as error:
            self._report(f"the data of a failed save stay behind in {prefix}: {error.message}")


def _to_plain(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return what reading a document back gives. Raises CheckpointError for what is no JSON."""
    try:
        return json.loads(canonical(document))
    except SealError as error:
        raise CheckpointError(error.message, expected=error.expected) from None
