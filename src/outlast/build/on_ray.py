"""The portions of a job on the machines of a Ray cluster: the same builders, the same files.

In: the address of a cluster; then jobs and their portions. Out: the error of each portion that failed. Ray
only decides where a portion is built: what makes it done is its record in the output folder, as everywhere. A
worker that dies costs its portion a new attempt; where the command itself dies, the same line again goes on.
Every machine needs this version of the package, and sees the corpus and the output folder at the same place.
"""

import functools
import importlib
import os
import re
import socket
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

from outlast.build.drive import Counts, Run
from outlast.build.processes import Builder, Job, P, Progress, try_to_build
from outlast.errors import (
    ConfigError,
    CorpusError,
    OutlastError,
    ShardError,
    StorageError,
    StoreUnreachable,
    TokenizerError,
)
from outlast.logs import log
from outlast.version import __version__

_TICK_SECONDS = 1.0
_CONNECT_SECONDS = 20.0
_ATTEMPTS = 4
"""Of a portion whose worker dies. One that fails with an error is not tried again: it would fail again."""

_KINDS = {
    kind.__name__: kind
    for kind in (ConfigError, CorpusError, TokenizerError, ShardError, StorageError, StoreUnreachable)
}

Fields = tuple[str, str, str | None, str | None, str | None]
"""An error as plain text: kind, message, where, expected, remedy. So Ray brings back no objects of ours."""


@contextmanager
def on_ray(address: str, num_processes: int | None) -> Generator[Run]:
    """Connect to a cluster, and let go of it in the end.

    Args:
        address: ``auto`` for the cluster that this machine belongs to, ``local`` for one of this machine
            alone that lives as long as this process, or what Ray knows itself (``HOST:PORT``,
            ``ray://HOST:PORT``).
        num_processes: how many cores a ``local`` cluster uses; None for all.

    Raises:
        ConfigError: Ray is not installed, or there is no cluster at the address.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a local cluster would report to its makers
    try:
        ray: Any = importlib.import_module("ray")  # so that type checks need not have it
    except ImportError:
        raise ConfigError(
            "The library ray is not installed.", where="--ray", remedy="pip install 'outlast[ray]'"
        ) from None
    local = {"num_cpus": num_processes, "include_dashboard": False} if address == "local" else {}
    try:
        _check_listening(address)
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", **local)
    except (OSError, RuntimeError, ValueError, AssertionError) as error:  # what Ray raises for addresses
        raise ConfigError(
            f"There is no Ray cluster at {address!r}: {str(error).partition(chr(10))[0]}",
            where="--ray",
            expected='"auto" on a machine of the cluster, "local", or HOST:PORT',
            remedy="start one: ray start --head",
        ) from None
    try:
        yield functools.partial(_build_portions, ray)
    finally:
        ray.shutdown()


def _check_listening(address: str) -> None:
    """Raise OSError where nobody listens at HOST:PORT: Ray itself would try for minutes."""
    found = re.fullmatch(r"(?:ray://)?([^/:]+):(\d{1,5})", address)
    if found:
        socket.create_connection((found[1], int(found[2])), _CONNECT_SECONDS).close()


def _build_portions(
    ray: Any,
    job: Job[P],
    portions: Sequence[P],
    *,
    on_tick: Callable[[Progress], None],
    on_failure: Callable[[P, OutlastError], None],
) -> dict[int, OutlastError]:
    """Build portions; return the errors by the number of the portion."""
    progress = Progress(len(portions))
    failures: dict[int, OutlastError] = {}
    log.info("%d cores of %d machines on Ray", ray.cluster_resources().get("CPU", 0), len(ray.nodes()))
    build = ray.remote(num_cpus=1, max_retries=_ATTEMPTS - 1)(_build_there)
    shared = ray.put(job)
    running = {build.remote(shared, portion, __version__): index for index, portion in enumerate(portions)}
    while running:
        ready, _ = ray.wait(list(running), timeout=_TICK_SECONDS)
        for reference in ready:
            index = running.pop(reference)
            error, counts = _outcome(ray, reference)
            progress.add(index, *counts)
            progress.finished.add(index)
            if error is not None:
                failures[portions[index].number] = error
                on_failure(portions[index], error)
        on_tick(progress)
    return failures


def _outcome(ray: Any, reference: Any) -> tuple[OutlastError | None, Counts]:
    """Return what became of a portion; what Ray says instead is an error of that portion."""
    try:
        fields, counts = ray.get(reference)
        return _from_fields(fields) if fields else None, counts
    except ray.exceptions.WorkerCrashedError as error:
        return OutlastError(
            f"The Ray worker that built it died, {_ATTEMPTS} times in all: {_first_line(error)}",
            remedy="look for the reason in Ray's logs (mostly: out of memory)",
        ), (0, 0, 0)
    except ray.exceptions.RayError as error:
        return OutlastError(
            f"Ray could not have it built: {_first_line(error)}",
            remedy=f"install outlast {__version__} on every machine of the cluster; see Ray's logs",
        ), (0, 0, 0)


def _build_there(job: Job[P], portion: P, version: str) -> tuple[Fields | None, Counts]:
    """Build a portion, in a worker of the cluster."""
    if version != __version__:
        error = OutlastError(
            f"This machine of the cluster has outlast {__version__}.",
            where=os.uname().nodename,
            expected=version,
            remedy="install one version everywhere",
        )
        return _to_fields(error), (0, 0, 0)
    totals = [0, 0, 0]

    def count(*increases: int) -> None:
        totals[:] = [total + increase for total, increase in zip(totals, increases, strict=True)]

    try:
        builder = _open(job)
    except OutlastError as error:
        return _to_fields(error), (0, 0, 0)
    error = try_to_build(builder, portion, count)
    documents, text_bytes, tokens = totals
    return _to_fields(error) if error else None, (documents, text_bytes, tokens)


def _to_fields(error: OutlastError) -> Fields:
    return type(error).__name__, error.message, error.where, error.expected, error.remedy


def _from_fields(fields: Fields) -> OutlastError:
    kind, message, where, expected, remedy = fields
    return _KINDS.get(kind, OutlastError)(message, where=where, expected=expected, remedy=remedy)


@functools.lru_cache(maxsize=1)
def _open(job: Job[P]) -> Builder[P]:
    """A worker builds many portions of a job with one tokenizer."""
    return job.open()


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:300]
