"""Images per second of the stream beside its peers, in one run: JPEGs of 500 x 375 to crops of 224.

Every pipeline lives in a process group of its own, which is stopped while another one is measured
(``stream.py``). All are measured in turn, round after round, each time after a stretch that is not counted.
"bare decode" is the limit: the same images in memory, decoded by libjpeg-turbo at the scale that the crop
needs, in as many threads; nothing is resized, batched or checked. "pixels" are the same pictures repacked
(``outlast shards repack``).

    OUTLAST_TEST_DATA=DATA python benchmarks/streams/images.py --rounds 5
    OUTLAST_TEST_DATA=DATA python benchmarks/streams/images.py --images 64 --rounds 1 --only outlast bare

Columns: images/s (median, range, share of the bare decode); cores used; anonymous memory in MiB of all the
pipeline's processes. Peers that are not installed are left out, and said so: pip install torch torchvision
tensorflow-cpu grain webdataset
"""

import argparse
import importlib
import importlib.util
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from images_pipelines import PIPELINES, SIZE
from images_set import make_set

from stream import Child, Reply, answer, rate, redirected_answers

LIMIT = "bare decode"
LEAST_SPREAD = 30


def serve(name: str, folder: Path, batch: int, workers: int) -> None:
    """Run one pipeline: answer questions on standard input until it ends."""
    answers = redirected_answers()
    pipeline = PIPELINES[name]
    if pipeline.module is not None:
        importlib.import_module(pipeline.module)
    began = time.perf_counter()
    batches = pipeline.batches(folder, batch, workers)
    check(next(batches), batch)
    reply: Reply = {"first_seconds": time.perf_counter() - began}
    answer(answers, reply, {"rate": rate}, batches, batch)


def check(found: Any, batch: int) -> None:
    """Check that a batch holds different pictures of the right shape. The bare decode has none to show."""
    if found is None:
        return
    images = np.asarray(found["images"] if isinstance(found, dict) else found[0])
    images = images if images.shape[-1] == 3 else images.transpose(0, 2, 3, 1)
    assert images.shape == (batch, SIZE, SIZE, 3), images.shape
    assert images.dtype == np.uint8, images.dtype
    assert images.std() > LEAST_SPREAD, "pictures of one colour"
    assert len({image.tobytes() for image in images}) == batch, "a picture comes twice"


def measure(folder: Path, arguments: argparse.Namespace) -> None:
    """Measure all pipelines in turn, round after round, and print a line for each."""
    running: dict[str, Child] = {}
    try:
        for name, pipeline in PIPELINES.items():
            if arguments.only and not any(name.startswith(wanted) for wanted in arguments.only):
                continue
            if pipeline.module is not None and importlib.util.find_spec(pipeline.module) is None:
                print(f"{name}: not installed", flush=True)
                continue
            numbers = [str(arguments.batch), str(arguments.workers)]
            child = running[name] = Child([sys.executable, __file__, "--child", name, str(folder), *numbers])
            if "error" in child.start:
                print(f"{name}: failed: {child.start['error']}", flush=True)
                running.pop(name).close()
        found: dict[str, list[Reply]] = {name: [] for name in running}
        for _ in range(arguments.rounds):
            for name, child in running.items():
                found[name].append(child.measure(arguments.seconds))
        rates = {name: [reply["rate"] for reply in replies] for name, replies in found.items()}
        limit = statistics.median(rates.get(LIMIT, [float("nan")]))
        for name, child in running.items():
            median = statistics.median(rates[name])
            cores = statistics.median(reply["cores"] for reply in found[name])
            print(
                f"{name:28s}{median:9,.0f}/s ({min(rates[name]):,.0f} to {max(rates[name]):,.0f})"
                f" {median / limit:7.1%}  cores {cores:.2f}  {child.memory_bytes() / 2**20:,.0f} MiB",
                flush=True,
            )
        print(json.dumps({"workers": arguments.workers, "rates": rates}), flush=True)
    finally:
        for child in running.values():
            child.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5, help="measured per pipeline and round")
    parser.add_argument("--only", nargs="+", help="only pipelines whose names begin so")
    parser.add_argument("--folder", type=Path, help="keep the set here for the next run")
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="outlast-images-"))
    try:
        if not (folder / "tars" / "manifest.json").exists():
            make_set(folder, Path(os.environ["OUTLAST_TEST_DATA"]), arguments.images)
        sizes = [path.stat().st_size for path in (folder / "loose").rglob("*.jpg")]
        print(f"{len(sizes)} images, {statistics.mean(sizes) / 1e3:.0f} kB in the mean", flush=True)
        measure(folder, arguments)
    finally:
        if arguments.folder is None:
            shutil.rmtree(folder)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        serve(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
    else:
        main()
