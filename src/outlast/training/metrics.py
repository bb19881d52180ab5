"""What a run measures of itself: lines of JSON in the run directory, and the line on the screen.

In: the device values of each step. Out: objects ``metrics/<attempt>-<chunk>.jsonl``, written by a background
thread, so that a slow store never slows a step. The values of a step are fetched while the next one runs; the
loop is therefore never more than one step ahead of the device, and a loss that is not finite is found before
the step after it ends.
"""

import json
import math
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import jax

from outlast.errors import RunError, StorageError
from outlast.logs import ProgressLine, format_count, log
from outlast.objectives.report import Report, Sums
from outlast.storage import Store
from outlast.training.step import Measured

T = TypeVar("T")

_FLUSH_SECONDS = 5.0
_CHUNK_BYTES = 2**20


class Place(NamedTuple):
    """How much of the data a run has consumed."""

    examples: int
    units: int
    """Of the report: tokens, or images."""
    epoch: float
    source_epochs: dict[str, float]
    """Of each source of a mixture; else empty."""


class MetricsFile:
    """JSON lines of one attempt. Only this attempt writes these names, so replacing them is safe."""

    def __init__(self, store: Store, attempt: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._attempt = attempt
        self._clock = clock
        self._chunk = 0
        self._text = ""
        self._flushed = clock()
        self._writer = ThreadPoolExecutor(1, "outlast-metrics")
        self._pending: Future[None] | None = None

    def write(self, record: dict[str, Any]) -> None:
        """Add a line; it reaches the store within some seconds."""
        self._text += json.dumps(record) + "\n"
        if self._clock() - self._flushed >= _FLUSH_SECONDS and (
            self._pending is None or self._pending.done()
        ):
            self._flush()

    def close(self) -> None:
        """Write what is left and wait for it."""
        self._flush()
        self._writer.shutdown()

    def _flush(self) -> None:
        self._flushed = self._clock()
        if not self._text:
            return
        name, content = f"metrics/{self._attempt:06d}-{self._chunk:04d}.jsonl", self._text.encode()
        self._pending = self._writer.submit(self._put, name, content)
        if len(content) >= _CHUNK_BYTES:
            self._chunk, self._text = self._chunk + 1, ""

    def _put(self, name: str, content: bytes) -> None:
        try:
            self._store.replace(name, [content])
        except StorageError as error:
            log.warning("the metrics could not be written (training goes on): %s", error)


class StepMeter:
    """Follows the steps of one attempt.

    Args:
        progress: counts tokens, since steps of different phases take different times.
        start_step: completed steps at the start of the attempt.
        place_of: how much of the data is consumed after so many steps.
        interval_steps: steps between two lines.
        report: what a line says of the loss, and what ``Place.units`` counts.
    """

    def __init__(
        self,
        file: MetricsFile,
        progress: ProgressLine,
        *,
        start_step: int,
        place_of: Callable[[int], Place],
        interval_steps: int,
        report: Report,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.file = file
        self.progress = progress
        self.place_of = place_of
        self.interval_steps = interval_steps
        self.report = report
        self.clock = clock
        self._in_flight: list[tuple[int, Measured]] = []
        self._interval = Sums()
        self._newest: Measured | None = None  # of the interval, on the host
        self._interval_began = clock()
        self._waited = 0.0
        self._last_step = self._fetched_step = start_step
        self.last_loss: float | None = None
        """The mean over the newest interval; None before the first."""

    def next_batch(self, batches: Iterator[T]) -> T:
        """Take the next batch, counting the time spent waiting for it."""
        began = self.clock()
        batch = next(batches)
        self._waited += self.clock() - began
        return batch

    def record(self, step: int, measured: Measured) -> None:
        """Take the device values of a step just started, and fetch those of the step before.

        Raises:
            RunError: a loss or a gradient that is not finite, with its step.
        """
        self._in_flight.append((step, measured))
        if len(self._in_flight) > 1:
            self._fetch(*self._in_flight.pop(0))

    def settle(self) -> None:
        """Wait for every step so far; raises as ``record``. Afterwards the state is known to be sound."""
        while self._in_flight:
            self._fetch(*self._in_flight.pop(0))

    def close(self) -> None:
        """Settle, and write the line of an interval that the end of the run cuts short."""
        self.settle()
        if self._newest is not None:
            self._write_interval(self._fetched_step)

    @contextmanager
    def paused(self) -> Generator[None]:
        """Leave out of the rates what is done inside: an evaluation."""
        began = self.clock()
        yield
        self._interval_began += self.clock() - began

    def _fetch(self, step: int, measured: Measured) -> None:
        host: Measured = jax.device_get(measured)
        alone = Sums()
        alone.add(host.terms)
        loss, grad_norm = alone.loss, float(host.grad_norm)
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            raise RunError(
                f"The loss of step {step} is {loss}, the norm of its gradient {grad_norm}.",
                remedy="lower optimizer.learning_rate or clip_norm; the checkpoints before it are sound",
            )
        log.debug("step %d: loss %.4f", step, loss)
        self._interval.add_sums(alone)
        self._newest = host
        self._fetched_step = step
        if step % self.interval_steps == 0:
            self._write_interval(step)

    def _write_interval(self, step: int) -> None:
        seconds = max(self.clock() - self._interval_began, 1e-9)
        assert self._newest is not None, "a line stands for at least one step"
        before, now = self.place_of(self._last_step), self.place_of(step)
        unit, loss = self.report.unit, self._interval.loss
        record: dict[str, Any] = {
            "step": step,
            **self.report.of_steps(self._interval),
            "grad_norm": float(self._newest.grad_norm),
            "learning_rate": float(self._newest.learning_rate),
            "epoch": round(now.epoch, 4),
            "examples_per_second": round((now.examples - before.examples) / seconds, 2),
            f"{unit}_per_second": round((now.units - before.units) / seconds, 1),
            "waiting_share": round(self._waited / seconds, 4),
            "time": round(time.time(), 3),
        }
        if now.source_epochs:
            record["source_epochs"] = {name: round(epoch, 4) for name, epoch in now.source_epochs.items()}
        self.file.write(record)
        self.last_loss = loss
        rate = f"{format_count(record[f'{unit}_per_second'])} {unit}/s"
        rate += f", waiting {record['waiting_share']:.0%}"
        self.progress.update(now.units, f"step {step}, loss {loss:.3f}, {rate}")
        self._interval, self._newest, self._waited = Sums(), None, 0.0
        self._interval_began, self._last_step = self.clock(), step
