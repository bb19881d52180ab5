"""Getting back what is left of a run whose commits were lost.

In: a run directory. Out: the commits that the sealed lists among the data allow, made again. A list is the
commit itself, written beside its parts before the commit was; it counts only where every byte of every part
matches its digest. Nothing is deleted. Where only a checkpoint is left that is older than one the run is
known to have had, going back to it must be asked for; an attempt of its own then records that the run goes on
from there.
"""

from dataclasses import dataclass

from outlast.checkpoint.attempts import Attempt, claim_attempt
from outlast.checkpoint.config import CheckpointConfig
from outlast.checkpoint.format import parse_commit
from outlast.checkpoint.lineage import DATA, CommitKey, is_list_name, line_of, parse_data_name
from outlast.checkpoint.owner import Report
from outlast.checkpoint.records import list_keys, newest_attempt, newest_known, read_recorded
from outlast.checkpoint.restore import verify_parts
from outlast.errors import CheckpointError, DamagedCheckpoint, ObjectExists, explained_limits
from outlast.storage import Store, open_store


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """What a recovery found.

    Attributes:
        rebuilt: steps whose commits were made again, oldest first.
        steps: of the checkpoints that count now, oldest first.
        lost_step: the newest step that the run is known to have had, where it is still missing.
    """

    rebuilt: list[int]
    steps: list[int]
    lost_step: int | None


@explained_limits()
def recover_run(run_dir: str, *, go_on_from: int | None = None, report: Report) -> Recovery:
    """Make the commits again that the data of a run allow.

    Args:
        go_on_from: a step whose checkpoint is there; the run goes on from it, and what it was known to have
            beyond is given up.
        report: told of each list that cannot be used, and why.

    Raises:
        RunError: the run has a living owner.
        CheckpointError: there is no run; or no checkpoint of the step to go on from.
        StoreUnreachable: the store did not answer until the deadline.
    """
    store = open_store(run_dir)
    if not newest_attempt(store):
        raise CheckpointError("There is no run.", where=run_dir, remedy="check the path")
    attempt = claim_attempt(store, config=CheckpointConfig(), report=report)
    try:
        rebuilt = _rebuild(store, report)
        line = _line(store, attempt)
        known = newest_known(store, up_to=attempt.number)
        lost = known if known and not (line and line[0] >= known) else None
        if go_on_from is not None:
            _step_back(attempt, line, go_on_from)
            line, lost = [key for key in line if key.step <= go_on_from], None
    finally:
        attempt.close()
    return Recovery(
        rebuilt=sorted({key.step for key in rebuilt}),
        steps=sorted({key.step for key in line}),
        lost_step=lost.step if lost else None,
    )


def _line(store: Store, attempt: Attempt) -> list[CommitKey]:
    keys = [key for key in list_keys(store) if key.attempt <= attempt.number]
    return line_of(keys, read_recorded(store, up_to=attempt.number))


def _rebuild(store: Store, report: Report) -> list[CommitKey]:
    """Return the commits that were made again, oldest first."""
    rebuilt: list[CommitKey] = []
    for info in store.retry(store.list, DATA):
        key = parse_data_name(info.name)
        if key is None or not is_list_name(info.name) or store.retry(store.exists, key.name):
            continue
        content = store.retry(store.read, info.name)
        try:
            problems = verify_parts(store, parse_commit(content, name=key.name))
        except DamagedCheckpoint as error:
            problems = [error.line]
        if problems:
            report(f"the data of step {key.step}, attempt {key.attempt}, are not whole: {problems[0]}")
            continue
        try:
            store.create_or_confirm(key.name, [content])
        except ObjectExists:
            continue  # another list of the same step was whole too
        rebuilt.append(key)
    return rebuilt


def _step_back(attempt: Attempt, line: list[CommitKey], step: int) -> None:
    found = next((key for key in line if key.step == step), None)
    if found is None:
        raise CheckpointError(
            f"There is no checkpoint of step {step} to go on from.",
            where=attempt.store.url,
            expected="one of "
            + (", ".join(str(key.step) for key in reversed(line)) or "none: none is there"),
        )
    attempt.record_restored(step, found.name)
