r"""Examples per second of the stream beside its peers, in one run.

A set of 100 million random tokens, fixed-length examples, batches of int32 (batch, length). Every pipeline
lives in a process group of its own, which is stopped (SIGSTOP) while another one is measured: a peer's
threads and workers cannot slow down the others. Before it is measured, its examples are looked up in the set.
Then all are measured in turn, round after round; each time a stretch that is not counted comes first, so that
what was read ahead is used up. The median of the rounds counts. "gather" is the bare NumPy gather from the
memory map with a permuted index in one thread: what the format allows at most without a second thread.

    python benchmarks/streams/stream.py --lengths 128 512 4096 --rounds 5
    python benchmarks/streams/stream.py --tokens 200000 --lengths 128 --rounds 1 --seconds 0.05 \
        --only outlast gather

Columns: examples/s (median, range, share of the gather); cores used; milliseconds from the start to the first
batch, imports not counted; milliseconds that a consumer waits for a batch when it takes one every 20 ms
(median, longest); anonymous memory in MiB of all the pipeline's processes; the share of the set between the
first and the last example of the first batch, which is near 1 where the whole set is shuffled.

Peers that are not installed are left out, and said so. Install them with: pip install torch==2.13.0
tensorflow-cpu grain webdataset datasets mosaicml-streaming
"""

import argparse
import importlib
import importlib.util
import itertools
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray
from stream_pipelines import PIPELINES
from stream_set import make_set, rows_of

CHECKED_EXAMPLES = 2048
STEP_SECONDS = 0.02
NUM_STEPS = 25
LIMIT = "gather (limit)"

Reply = dict[str, Any]


class Child:
    """A pipeline in a process group of its own, stopped unless it is asked something."""

    def __init__(self, command: Sequence[str]) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (close() closes it)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,
        )
        self.group = self._process.pid
        self.start = self._answer()

    def ask(self, question: str, seconds: float) -> Reply:
        assert self._process.stdin is not None
        os.killpg(self.group, signal.SIGCONT)
        self._process.stdin.write(f"{question} {seconds}\n")
        self._process.stdin.flush()
        return self._answer()

    def measure(self, seconds: float) -> Reply:
        self.ask("rate", seconds / 3)
        ticks = sum(int(x) for line in self._stats() for x in line[11:13])
        found = self.ask("rate", seconds)
        ticks = sum(int(x) for line in self._stats() for x in line[11:13]) - ticks
        return {**found, "cores": ticks / os.sysconf("SC_CLK_TCK") / found["seconds"]}

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.group, signal.SIGKILL)
        self._process.wait()
        self._errors.close()

    def memory_bytes(self) -> int:
        """Return the anonymous memory of the group: private and shared, without mapped files."""
        total = 0
        for line in self._stats():
            for entry in Path(f"/proc/{line[-1]}/status").read_text().splitlines():
                if entry.startswith(("RssAnon", "RssShmem")):
                    total += int(entry.split()[1]) * 1024
        return total

    def _answer(self) -> Reply:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._errors.seek(0)
            return {"error": (self._errors.read().strip().splitlines() or ["no message"])[-1]}
        os.killpg(self.group, signal.SIGSTOP)
        return json.loads(line)

    def _stats(self) -> list[list[str]]:
        """Return the fields of /proc/PID/stat behind the name, and the id, of each process of the group."""
        found: list[list[str]] = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[2]) == self.group:
                found.append([*fields, path.parent.name])
        return found


def serve(name: str, folder: Path, length: int, batch: int) -> None:
    """Run one pipeline: answer questions on standard input, a line of JSON each, until it ends."""
    answers = redirected_answers()
    pipeline = PIPELINES[name]
    if pipeline.prepare is not None:
        pipeline.prepare(folder, length)
    if pipeline.module is not None:
        importlib.import_module(pipeline.module)
    began = time.perf_counter()
    batches = pipeline.batches(folder, length, batch)
    first = next(batches)
    reply: Reply = {"first_seconds": time.perf_counter() - began}
    num_checked = -(-CHECKED_EXAMPLES // batch)
    found = [ids_of(found) for found in (first, *itertools.islice(batches, num_checked - 1))]
    reply["spread"] = check(np.concatenate(found), folder, length, batch, pipeline.same_examples)
    np.asarray(rows_of(folder, length)).max()  # every page is in memory
    answer(answers, reply, {"rate": rate, "wait": wait}, batches, batch)


def redirected_answers() -> TextIO:
    """Return the standard output for answers alone: what peers print there goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def answer(
    answers: TextIO,
    first: Reply,
    questions: Mapping[str, Callable[[Any, int, float], Reply]],
    batches: Any,
    batch: int,
) -> None:
    """Answer questions on standard input, a line of JSON each, until it ends; the first answer is given."""
    reply = first
    while True:
        print(json.dumps(reply), file=answers, flush=True)
        question, seconds = sys.stdin.readline().split()
        reply = questions[question](batches, batch, float(seconds))


def ids_of(batch: Any) -> NDArray[Any]:
    """Return the input_ids of a batch as its pipeline yields it."""
    return np.asarray(batch["input_ids"] if isinstance(batch, dict) else batch)


def check(ids: NDArray[Any], folder: Path, length: int, batch: int, same_examples: bool) -> float:
    """Check batches' dtype and shape, and that every row is an example of the set.

    Returns the share of the set that the first batch spans: near 1 where the whole set is shuffled.
    """
    assert ids.dtype == np.int32, ids.dtype
    assert ids.shape[1:] == (length,), ids.shape
    if not same_examples:
        return float("nan")
    rows = rows_of(folder, length)
    keys = np.ascontiguousarray(rows[:, :4]).view(np.uint64)[:, 0]  # four tokens tell examples apart
    sorted_keys = np.argsort(keys)
    wanted = np.ascontiguousarray(ids[:, :4].astype(np.uint16)).view(np.uint64)[:, 0]
    ranks = np.searchsorted(keys, wanted, sorter=sorted_keys)
    indices = sorted_keys[np.minimum(ranks, len(keys) - 1)]
    assert np.array_equal(rows[indices], ids), "rows that are no examples of the set"
    assert len(np.unique(indices)) > 0.8 * len(indices) or len(rows) < 2 * len(ids), "examples come twice"
    return float(np.ptp(indices[:batch]) / len(rows))


def rate(batches: Any, batch: int, seconds: float) -> Reply:
    """Return examples per second over at least so many seconds."""
    began, count = time.perf_counter(), 0
    while (passed := time.perf_counter() - began) < seconds:
        next(batches)
        count += batch
    return {"rate": count / passed, "seconds": passed}


def wait(batches: Any, batch: int, seconds: float) -> Reply:
    """Return how long a consumer waits that takes a batch every so many seconds."""
    waited: list[float] = []
    for _ in range(NUM_STEPS):
        time.sleep(seconds)
        began = time.perf_counter()
        next(batches)
        waited.append(time.perf_counter() - began)
    return {"median": statistics.median(waited), "longest": max(waited)}


def measure(folder: Path, length: int, arguments: argparse.Namespace) -> None:
    """Measure all pipelines at one length, in turn, round after round, and print a line for each."""
    running: dict[str, Child] = {}
    try:
        for name, pipeline in PIPELINES.items():
            if arguments.only and not any(name.startswith(wanted) for wanted in arguments.only):
                continue
            if pipeline.module is not None and importlib.util.find_spec(pipeline.module) is None:
                print(f"L={length}  {name}: not installed", flush=True)
                continue
            command = [sys.executable, __file__, "--child", name, str(folder), str(length)]
            child = running[name] = Child([*command, str(arguments.batch)])
            if "error" in child.start:
                print(f"L={length}  {name}: failed: {child.start['error']}", flush=True)
                running.pop(name).close()
        found: dict[str, list[Reply]] = {name: [] for name in running}
        for _ in range(arguments.rounds):
            for name, child in running.items():
                found[name].append(child.measure(arguments.seconds))
        for name, child in running.items():
            waited = child.ask("wait", STEP_SECONDS)
            print_line(length, name, found, child, waited)
        rates = {name: [reply["rate"] for reply in replies] for name, replies in found.items()}
        print(json.dumps({"length": length, "rates": rates}), flush=True)
    finally:
        for child in running.values():
            child.close()


def print_line(length: int, name: str, found: dict[str, list[Reply]], child: Child, waited: Reply) -> None:
    rates = [reply["rate"] for reply in found[name]]
    median = statistics.median(rates)
    limit = statistics.median(reply["rate"] for reply in found.get(LIMIT, found[name]))
    cores = statistics.median(reply["cores"] for reply in found[name])
    print(
        f"L={length} {name:33s}{median:12,.0f}/s ({min(rates):,.0f} to {max(rates):,.0f})"
        f" {median / limit:7.1%}  cores {cores:.2f}  first {child.start['first_seconds'] * 1e3:,.0f} ms"
        f"  waits {waited['median'] * 1e3:.1f} / {waited['longest'] * 1e3:.1f} ms"
        f"  {child.memory_bytes() / 2**20:,.0f} MiB  first batch spans {child.start['spread']:.3f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512, 4096], help="divisors of 4096")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="measured per pipeline and round")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=100_000_000)
    parser.add_argument("--only", nargs="+", help="only pipelines whose names begin so")
    parser.add_argument("--folder", type=Path, help="keep the set here for the next run")
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="outlast-stream-"))
    try:
        if not (folder / "outlast").exists():
            folder.mkdir(parents=True, exist_ok=True)
            make_set(folder, arguments.tokens)
        for length in arguments.lengths:
            measure(folder, length, arguments)
    finally:
        if arguments.folder is None:
            shutil.rmtree(folder)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        serve(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
    else:
        main()
