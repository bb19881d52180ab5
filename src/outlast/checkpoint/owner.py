"""The owner of a run as another process sees it: is it still alive?

In: the newest claim. Out: nothing, once the run is free; a refusal that names the owner, while it lives. A
process of this machine is looked up; of any other nothing is known but whether its heartbeat changes,
measured on our own clock.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import pydantic

from outlast.checkpoint.config import CheckpointConfig
from outlast.checkpoint.lineage import claim_name, heartbeat_name
from outlast.checkpoint.liveness import Clock, ProcessIdentity, is_gone, same_machine
from outlast.checkpoint.records import belongs_to, parse_sealed, read_or_none, read_sealed
from outlast.errors import RunError
from outlast.storage import Store

Report = Callable[[str], None]
_POLLS_PER_LIMIT = 30


class Owner:
    """The newest claim, as another process sees it."""

    def __init__(self, store: Store, number: int) -> None:
        self.store = store
        self.number = number
        self.claim = read_sealed(store, claim_name(number))

    def wait_until_free(
        self, config: CheckpointConfig, clock: Clock, ours: ProcessIdentity, report: Report
    ) -> None:
        """Return once the owner has ended or fallen silent for the limit. Raises RunError while it lives."""
        theirs_seconds = (self.claim or {}).get("heartbeat_limit_seconds")
        limit = max(
            config.heartbeat_limit_seconds, theirs_seconds if isinstance(theirs_seconds, float | int) else 0.0
        )
        theirs = self._process()
        first = self._heartbeat()
        silent_since = clock.now()
        if self._is_free(first, theirs, ours):
            return
        if theirs and same_machine(theirs, ours):
            last = (self._parse(first) or self.claim or {}).get("now")
            age = silent_since - last if isinstance(last, float | int) else 0.0
            if age > limit:
                return
            raise self._refusal(f"its last sign of life is {max(age, 0.0):.0f} s old", limit)
        report(
            f"attempt {self.number} ({self._describe()}) may live; watching its heartbeat for {limit:.0f} s"
        )
        while clock.now() - silent_since < limit:
            clock.sleep(limit / _POLLS_PER_LIMIT)
            asked = clock.now()
            heartbeat = self._heartbeat()
            silent_since += clock.now() - asked  # while the store was away, the owner could not write either
            if self._is_free(heartbeat, theirs, ours):
                return
            if heartbeat != first:
                raise self._refusal("its heartbeat has just changed", limit)

    def _is_free(
        self, heartbeat: bytes | None, theirs: ProcessIdentity | None, ours: ProcessIdentity
    ) -> bool:
        if theirs and is_gone(theirs, ours):
            return True
        document = self._parse(heartbeat)
        return bool(document and document.get("closed"))

    def _parse(self, heartbeat: bytes | None) -> dict[str, Any] | None:
        """One of another run under this number, whose folder this was, says nothing of the owner."""
        document = parse_sealed(heartbeat)
        return document if document and belongs_to(document, self.claim) else None

    def _heartbeat(self) -> bytes | None:
        return self.store.retry(read_or_none, self.store, heartbeat_name(self.number))

    def _process(self) -> ProcessIdentity | None:
        names = [field.name for field in dataclasses.fields(ProcessIdentity)]
        fields = {name: value for name, value in (self.claim or {}).items() if name in names}
        try:
            return pydantic.TypeAdapter(ProcessIdentity).validate_python(fields)
        except pydantic.ValidationError:
            return None

    def _describe(self) -> str:
        process = self._process()
        return f"host {process.host}, pid {process.pid}" if process else "whose claim is damaged"

    def _refusal(self, age: str, limit: float) -> RunError:
        return RunError(
            f"The run belongs to another process: attempt {self.number}, {self._describe()}; {age}.",
            where=self.store.url,
            expected="one process per run directory",
            remedy=f"stop that process; {limit:.0f} s after its last sign of life the run can be taken over",
        )
