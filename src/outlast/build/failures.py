"""Notes of failed tasks, so that a task that waits for another one hears of its end.

In: the folder of a build. Out: ``failed/<task>.json``, written by a task that fails, deleted when it is
started again and when the build is complete. A note says what the task said; nothing depends on it but
waiting. A task that was killed leaves none.
"""

import re
import time
import uuid
from collections.abc import Generator
from contextlib import contextmanager, suppress

from outlast.build.tasks import Task
from outlast.errors import Lines, OutlastError, SealError, StorageError, one_line
from outlast.logs import log
from outlast.storage import Store
from outlast.storage.checksummed_json import seal, unseal

_FOLDER = "failed/"
_NOTE = re.compile(re.escape(_FOLDER) + r"(\d{5,6})\.json")
_GRACE_SECONDS = 300.0


@contextmanager
def noting_failure(store: Store, task: Task | None) -> Generator[None]:
    """Leave a note where what happens inside fails. Without a task nobody waits, and none is left."""
    if task is None:
        yield
        return
    name = f"{_FOLDER}{task[0]:05d}.json"
    store.delete(name)
    try:
        yield
    except Exception as error:
        fields = {"task": "/".join(map(str, task)), "attempt": uuid.uuid4().hex, "message": str(error)}
        with suppress(StorageError, SealError):  # the error itself matters more
            store.replace(name, [seal(fields, "indented")])
        raise


def delete_notes(store: Store) -> None:
    """Delete all notes. Only when the build is complete."""
    for name in _list_notes(store, None):
        store.delete(name)


def tell_failures(store: Store) -> None:
    """Say which tasks have failed."""
    for content in _read_notes(store, None).values():
        task, message = _parse(content)
        log.warning("task %s failed: %s", task, message)


class FailureWatch:
    """Looks for tasks that fail while this one waits.

    A note that is there already may tell of an earlier life of a task that is about to be started again, and
    will take it away: it counts once it has stayed for five minutes.

    Args:
        task: the one that is waited for; None for all of them.
    """

    def __init__(self, store: Store, task: int | None) -> None:
        self._store = store
        self._task = task
        self._before = _read_notes(store, task)
        self._began = time.monotonic()
        for content in self._before.values():
            log.warning("task %s has failed, and must be started again: %s", *_parse(content))

    def check(self) -> None:
        """Raise OutlastError where a task has failed."""
        is_late = time.monotonic() - self._began > _GRACE_SECONDS
        for name, content in _read_notes(self._store, self._task).items():
            if is_late or self._before.get(name) != content:
                task, message = _parse(content)
                raise OutlastError(
                    Lines(f"Task {one_line(task)}, for which this one waits, has failed: {message}"),
                    where=f"{self._store.url}/{name}",
                    remedy="do what it says and start that task again, then this one",
                )


def _read_notes(store: Store, task: int | None) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for name in _list_notes(store, task):
        with suppress(StorageError):  # taken away meanwhile
            found[name] = store.read(name)
    return found


def _list_notes(store: Store, task: int | None) -> list[str]:
    """Return the names of the notes of a task, of all of them where it is None; other files stay out."""
    notes = [match for info in store.list(_FOLDER) if (match := _NOTE.fullmatch(info.name))]
    return [match[0] for match in notes if task is None or int(match[1]) == task]


def _parse(content: bytes) -> tuple[str, str]:
    try:
        fields = unseal(content, where=_FOLDER, layout="indented")
        return str(fields["task"]), Lines(fields["message"])
    except (SealError, KeyError):
        return "?", "its note cannot be read"
