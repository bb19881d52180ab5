"""Working off the portions of a job, with a line of progress for a person.

In: a job and its portions. Out: what the job writes and, where portions leave records, the records. A portion
that fails is named at once and the others go on; its error is told once, at the end. What a killed run had
finished is not built again.
"""

import os
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, Protocol

from outlast.build.plan import (
    NamedFile,
    R,
    agree_on_plan,
    delete_leftovers,
    finished_portions,
    read_record_as,
    withdraw_plan,
)
from outlast.build.processes import Job, P, Progress, build_portions, first_failure
from outlast.build.repair import end_mending, is_whole
from outlast.errors import OutlastError, ShardError
from outlast.logs import ProgressLine, format_count, format_seconds, log
from outlast.storage import Store
from outlast.version import __version__

Counts = tuple[int, int, int]
"""What a job counts: documents, text bytes and tokens, or what else ``Gauge.describe`` makes of them."""


class Run(Protocol):
    """Has portions built somewhere; returns the errors by the number of the portion (``build_portions``)."""

    def __call__(
        self,
        job: Job[P],
        portions: Sequence[P],
        *,
        on_tick: Callable[[Progress], None],
        on_failure: Callable[[P, OutlastError], None],
    ) -> dict[int, OutlastError]: ...


@dataclass(frozen=True)
class InProcesses:
    """Has portions built by so many processes of this machine; None: one for each core."""

    num_processes: int | None

    def __call__(
        self,
        job: Job[P],
        portions: Sequence[P],
        *,
        on_tick: Callable[[Progress], None],
        on_failure: Callable[[P, OutlastError], None],
    ) -> dict[int, OutlastError]:
        most = self.num_processes or len(os.sched_getaffinity(0))
        return build_portions(job, portions, min(most, len(portions)), on_tick=on_tick, on_failure=on_failure)


@dataclass(frozen=True)
class Gauge:
    """What the line of progress shows of a job.

    Attributes:
        what: the line's name.
        total: what ``done`` comes to in the end.
        done: returns how far the job is, from the counts of each portion so far and the indices of the
            finished ones.
        describe: returns the summed counts and the seconds since the beginning as text for a person.
        has_summary: whether that text is logged as a line of its own at the end.
    """

    what: str
    total: int
    done: Callable[[Sequence[Counts], set[int]], int]
    describe: Callable[[Counts, float], str]
    has_summary: bool = False


def drive(
    job: Job[P],
    portions: Sequence[P],
    run: Run,
    gauge: Gauge,
    *,
    name: Callable[[P], str] = lambda portion: f"portion {portion.number}",
    noun: str = "portion",
) -> None:
    """Do a job for each of the portions.

    Args:
        name: of a portion that failed, for the log.
        noun: what a portion is called in the error.

    Raises:
        OutlastError: the error of the first portion that failed, once all others are finished.
    """
    if not portions:
        return
    began = time.monotonic()
    last: list[str] = []

    def on_failure(portion: P, error: OutlastError) -> None:
        if len(portions) > 1:
            log.error("%s failed; the others go on", name(portion))

    with ProgressLine(gauge.what, gauge.total) as line:

        def describe(counted: Sequence[Counts]) -> str:
            documents, text_bytes, tokens = (sum(numbers) for numbers in zip(*counted, strict=True))
            return gauge.describe((documents, text_bytes, tokens), time.monotonic() - began)

        def on_tick(progress: Progress) -> None:
            # Adding up costs more than a small batch.
            if line.is_due():
                counted = [progress.counted(index) for index in range(len(portions))]
                line.update(gauge.done(counted, progress.finished), describe(counted))
            if gauge.has_summary and len(progress.finished) == len(portions):
                last[:] = [describe([progress.counted(index) for index in range(len(portions))])]

        failures = run(job, portions, on_tick=on_tick, on_failure=on_failure)
    if gauge.has_summary:
        seconds = format_seconds(time.monotonic() - began)
        log.info("%s: %s", gauge.what, f"{last[0]} in {seconds}" if last else "nothing")
    if failures:
        for portion in portions:
            if portion.number in failures and portion.number != min(failures):  # the first one's is raised
                log.error("%s failed: %s", name(portion), failures[portion.number])
        raise first_failure(failures, len(portions), noun)


class Build(Generic[R]):
    """A build whose portions leave records and whose manifest appears last, begun or gone on with.

    Args:
        store: of the result, opened from ``out``.
        manifest: the manifest's name.
        identity: what the result depends on.
        record_type: the dataclass that a finished portion leaves.
        library_versions: of what its bytes depend on beside this package.

    Attributes:
        url: of the manifest.
        versions: that the build was begun with, once it is begun.
    """

    def __init__(
        self,
        store: Store,
        out: str,
        manifest: str,
        identity: Mapping[str, Any],
        record_type: type[R],
        library_versions: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.url = f"{out.rstrip('/')}/{manifest}"
        self._store, self._manifest, self._record_type = store, manifest, record_type
        self._identity = identity
        self.versions = {"outlast": __version__, **library_versions}

    def begin(self, kept_versions: Mapping[str, str] = MappingProxyType({})) -> None:
        """Agree on the plan; again in the middle of a build, when another task may have made it anew.

        Args:
            kept_versions: of libraries that must stay the same until the build has ended.

        Raises:
            ShardError: the folder belongs to another build, or it was begun with other ``kept_versions``.
        """
        self.versions = agree_on_plan(self._store, self._identity, {**self.versions, **kept_versions})
        for name, number in kept_versions.items():
            if self.versions.get(name) != number:
                raise ShardError(
                    f"The build was begun with {name} {self.versions.get(name)}, here is {number}.",
                    where=self._store.url,
                    expected="one version throughout, for what it computes may differ",
                    remedy=f"install {name} {self.versions.get(name)}, or choose another folder",
                )

    def is_complete(
        self,
        named: Callable[[str], Sequence[NamedFile]],
        *,
        verify: bool,
        has_more: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Return whether the result is there, whole; where it is damaged, make ready to mend it.

        Args:
            named: returns the files that the manifest at a URL names.
            verify: compare digests and not sizes alone.
            has_more: returns whether what belongs to it beside those files is there.
        """
        if not self._store.exists(self._manifest):
            return False
        self.begin()
        is_there = has_more()
        is_there = is_whole(self._store, named(self.url), self._record_type, verify=verify) and is_there
        if is_there:
            log.info("complete already: %s", self.url)
        return is_there

    def run(
        self,
        what: str,
        job: Job[P],
        portions: Sequence[P],
        num_processes: int | None,
        *,
        counted: tuple[str, str, str],
        more_folders: Sequence[str] = (),
    ) -> list[R]:
        """Build the portions that are not finished yet; return the records of all.

        Args:
            what: for the line of progress.
            num_processes: at most so many; None: one for each core.
            counted: what the portions count, for the line of progress; "" for nothing.
            more_folders: that this build writes to, as prefixes that end with a slash.

        Raises:
            OutlastError: what went wrong with the first portion that failed.
            ShardError: what an earlier run had finished has been lost since.
        """
        finished = finished_portions(self._store)
        missing = [portion for portion in portions if portion.number not in finished]
        with self.freeing_folder(more_folders):
            drive(job, missing, InProcesses(num_processes), by_number(what, len(missing), counted))
        delete_leftovers(self._store, more_folders)
        return self.records(len(portions))

    @contextmanager
    def freeing_folder(self, more_folders: Sequence[str]) -> Generator[None]:
        """Withdraw the plan where what happens inside fails before anything is made (``withdraw_plan``)."""
        try:
            yield
        except OutlastError:
            withdraw_plan(self._store, more_folders)
            raise

    def records(self, num_portions: int) -> list[R]:
        """Return the records of all portions, which are finished. Raises ShardError where files are lost."""
        records = [read_record_as(self._record_type, self._store, number) for number in range(num_portions)]
        end_mending(self._store, records)
        return records


def by_size(what: str, sizes: Sequence[int]) -> Gauge:
    """Return the gauge of portions of text of these sizes in bytes."""

    def done(counted: Sequence[Counts], finished: set[int]) -> int:
        return sum(
            size if index in finished else min(counted[index][1], size) for index, size in enumerate(sizes)
        )

    return Gauge(what, sum(sizes), done, describe_progress, has_summary=True)


def by_number(what: str, num_portions: int, names: tuple[str, str, str]) -> Gauge:
    """Return the gauge that counts portions; ``names`` say what the three counts are, "" for one not used."""

    def describe(totals: Counts, seconds: float) -> str:
        # "12k records, 3.1MB": a unit of one letter stands at its number.
        shown = [
            format_count(total) + (name if len(name) == 1 else f" {name}")
            for total, name in zip(totals, names, strict=True)
            if name
        ]
        return ", ".join([*shown, f"{format_count(totals[0] / max(seconds, 1e-9))} {names[0]}/s"])

    return Gauge(what, num_portions, lambda _, finished: len(finished), describe)


def describe_progress(counts: Counts, seconds: float) -> str:
    """Return documents, bytes, tokens and the rates for a person; without tokens where there are none."""
    documents, text_bytes, tokens = counts
    seconds = max(seconds, 1e-9)
    amounts = [f"{format_count(documents)} documents", f"{format_count(text_bytes)}B"]
    rates = [f"{format_count(text_bytes / seconds)}B/s"]
    if tokens:
        amounts.append(f"{format_count(tokens)} tokens")
        rates.append(f"{format_count(tokens / seconds)} tokens/s")
    return ", ".join(amounts + rates)
