"""Looking at a run's checkpoints from outside: what the verbs ``outlast checkpoint ...`` print.

In: the URL of a run directory. Out: plain lists and dicts. Nothing is written, and a run that is going on is
not disturbed: what retention deletes while we look is left out.
"""

from typing import Any

from outlast.checkpoint.lineage import line_of
from outlast.checkpoint.records import list_keys, newest_attempt, newest_known, read_recorded
from outlast.checkpoint.restore import list_commits, refuse_lost, verify_commit
from outlast.errors import CheckpointError, Lines, ObjectNotFound, explained_limits
from outlast.storage import open_store


@explained_limits()
def describe_commits(run_dir: str) -> list[dict[str, Any]]:
    """Return the committed checkpoints, newest first: ``step``, ``attempt``, ``size_bytes``, ``state``.

    Raises:
        CheckpointError: nobody ever began a run there.
    """
    store = open_store(run_dir)
    if not newest_attempt(store):
        raise CheckpointError("There is no run.", where=run_dir, remedy="check the path, or train it first")
    return [
        {
            "step": status.step,
            "attempt": status.attempt,
            "size_bytes": status.size_bytes,
            "state": status.reason or "committed",
        }
        for status in reversed(list_commits(store))
    ]


@explained_limits()
def verify_run(run_dir: str) -> list[str]:
    """Read every byte of every checkpoint of the run; return what is wrong with them.

    Raises:
        CheckpointError: there is none, and none is known to have been there.
    """
    store = open_store(run_dir)
    known = newest_known(store)
    problems: list[str] = []
    present = list_commits(store)
    try:
        refuse_lost(store, known, line_of(list_keys(store), read_recorded(store)))
    except CheckpointError as error:
        problems.append(Lines(error))
    if not present and not problems:
        raise CheckpointError(
            "There is no checkpoint.", where=run_dir, remedy="check the path, or train first"
        )
    for status in present:
        try:
            problems += verify_commit(store, status.name)
        except ObjectNotFound:
            continue
    return problems
