r"""Where images come from: loose files (A), local shards (B), shards of a store at a distance (C).

All three go through the same decoder, crops and threads, so only the source differs. A reads files at random,
as a map-style data set does, a file for each image; from the store a request for each. B and C are this
package's stream. Every run is a process of its own that begins with a cold page cache (POSIX_FADV_DONTNEED)
and, for C, an empty cache folder, and reads whole epochs. The cache folder holds half of the set, so every
epoch of C is fetched anew; a window is one shard. The store is nginx on this machine (its processor time is
part of what is measured) behind ``latency_proxy.py``.

    OUTLAST_TEST_DATA=DATA python benchmarks/streams/image_sources.py --rounds 5
    OUTLAST_TEST_DATA=DATA python benchmarks/streams/image_sources.py --folder SET --rounds 1 \
        --only B "C 20"

Columns: images/s of whole runs (median, range), gain over A, share of B; milliseconds of a processor that an
image takes in the reading process, and in nginx and the proxy; how much of its time a consumer waits whose
step takes 1.2 times as long as B needs for a batch; seconds to the first batch. Where decoding keeps all
processors busy, B's milliseconds of the reading process over C's are at most the share of B that a store on
another machine would leave to C: on loopback the sender pays for part of what the receiver of a network does.
"""

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from images_set import NUM_SHARDS, files_of, make_set

from outlast.images.config import ImagesConfig, ImageStreamConfig
from outlast.images.crops import draw_numbers, training_crop
from outlast.images.decode import mirror, open_picture, resize_into
from outlast.images.stream import ImageStream
from outlast.storage import open_store

SIZE = 224
BATCHES_AHEAD = 4
SLACK = 1.2
SOURCES = ("A", "B", "A 20", "C 0", "C 20", "C 100")
"""A letter, and the latency of a request in milliseconds where it is not this machine's disk."""
_CONFIG = ImagesConfig()
_NGINX = """
daemon off; master_process off; pid {work}/pid; error_log {work}/errors;
events {{ worker_connections 256; }}
http {{
    access_log off; sendfile on; keepalive_requests 1000000;
    client_body_temp_path {work}/a; proxy_temp_path {work}/b; fastcgi_temp_path {work}/c;
    uwsgi_temp_path {work}/d; scgi_temp_path {work}/e;
    server {{ listen 127.0.0.1:{port}; root {folder}; }}
}}
"""


def loose_batches(folder: Path, url: str | None, batch: int, workers: int) -> Iterator[int]:
    """Yield batches of files read at random, each epoch in another order."""
    names = [(path, os.path.relpath(path, folder)) for path, _ in files_of(folder)]
    store = open_store(url) if url else None

    def show(number: int, path: str, name: str, image: Any) -> None:
        content = store.read(name) if store else Path(path).read_bytes()
        picture = open_picture(memoryview(content), max_pixels=2**26)
        row = draw_numbers(0, number, 1, 0, 1)[0].tolist()
        crop = training_crop(picture.width, picture.height, _CONFIG, row)
        resize_into(picture.region(crop.box, SIZE, SIZE), image)
        if crop.is_mirrored:
            mirror(image)

    rng = np.random.default_rng(0)
    ahead: deque[tuple[Any, list[Future[None]]]] = deque()
    number = 0
    with ThreadPoolExecutor(workers) as pool:
        order: Iterator[int] = iter(())
        while True:
            while len(ahead) <= BATCHES_AHEAD:
                images = np.empty((batch, SIZE, SIZE, 3), np.uint8)
                tasks: list[Future[None]] = []
                for image in images:
                    index = next(order, None)
                    if index is None:
                        order = iter(rng.permutation(len(names)).tolist())
                        index = next(order)
                    path, name = names[index]
                    tasks.append(pool.submit(show, number, path, name, image))
                    number += 1
                ahead.append((images, tasks))
            images, tasks = ahead.popleft()
            for task in tasks:
                task.result()
            yield len(images)


def shard_batches(
    folder: str, batch: int, workers: int, cache: Path, window: int, limit: int
) -> Iterator[int]:
    config = ImageStreamConfig(
        manifest=f"{folder}/manifest.json",
        packing="images",
        global_batch_size=batch,
        num_lanes=1,
        window_examples=window,
        prefetch_batches=BATCHES_AHEAD,
        cache_dir=str(cache),
        cache_bytes=limit,
        images=ImagesConfig(decode_threads=workers),
    )
    return (len(found["labels"]) for found in ImageStream(config, seed=0).batches_from(0))


def run_child(question: dict[str, Any]) -> dict[str, float]:
    """Read whole epochs; return images/s, the share of the time waited, seconds to the first batch, how many
    images there were, and milliseconds of a processor for each, with what was decoded ahead of the end.
    """
    folder, batch = Path(question["folder"]), question["batch"]
    num_images = len(files_of(folder))
    tars = sorted((folder / "tars").glob("*.tar"))
    with tempfile.TemporaryDirectory(prefix="outlast-cache-") as cache:
        if question["source"] == "A":
            batches = loose_batches(folder, question["url"], batch, question["workers"])
        else:
            place = f"{question['url']}/tars" if question["url"] else str(folder / "tars")
            limit = sum(path.stat().st_size for path in tars) // 2 + 2**20
            window = -(-num_images // len(tars))
            batches = shard_batches(place, batch, question["workers"], Path(cache), window, limit)
        began, processor_began = time.perf_counter(), time.process_time()
        waited, first, done = 0.0, 0.0, 0
        while done < num_images * question["epochs"]:
            asked = time.perf_counter()
            done += next(batches)
            waited += time.perf_counter() - asked
            first = first or time.perf_counter() - began
            time.sleep(question["step_seconds"])
        seconds = time.perf_counter() - began
        processor_seconds = time.process_time() - processor_began
    return {
        "rate": done / seconds,
        "waiting": (waited - first) / (seconds - first),
        "first": first,
        "images": done,
        "reader": 1000 * processor_seconds / done,
    }


def forget_pages(folder: Path) -> None:
    """Drop the files from the page cache, where the system does as it is asked."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def processor_time(*pids: int) -> float:
    """Return the seconds of a processor that processes have taken; 0 stands for none."""
    ticks = 0
    for pid in filter(None, pids):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def serving(folder: Path) -> Generator[tuple[int, int]]:
    """Serve a folder by nginx; yield its port and its process."""
    program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        raise SystemExit("nginx is not installed: apt-get install nginx-light")
    with tempfile.TemporaryDirectory(prefix="outlast-nginx-") as work:
        port = 18080 + os.getpid() % 10000
        settings = Path(work, "nginx.conf")
        settings.write_text(_NGINX.format(work=work, port=port, folder=folder.resolve()))
        process = subprocess.Popen([program, "-p", work, "-c", str(settings), "-e", f"{work}/errors"])
        try:
            time.sleep(0.5)
            yield port, process.pid
        finally:
            process.kill()
            process.wait()


@contextlib.contextmanager
def at_a_distance(port: int, latency_seconds: float) -> Generator[tuple[str, int]]:
    """Yield the URL of a server behind a latency, and the proxy's process; without one its own, and 0."""
    if not latency_seconds:
        yield f"http://127.0.0.1:{port}", 0
        return
    line = [
        sys.executable,
        str(Path(__file__).with_name("latency_proxy.py")),
        str(port),
        str(latency_seconds),
    ]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}", process.pid
    finally:
        process.kill()
        process.wait()


def measure(
    source: str, server: tuple[int, int], arguments: argparse.Namespace, step_seconds: float
) -> dict[str, float]:
    letter, _, latency = source.partition(" ")
    question = {
        "source": letter,
        "folder": str(arguments.folder),
        "batch": arguments.batch,
        "workers": arguments.workers,
        "epochs": arguments.epochs,
        "step_seconds": step_seconds,
    }
    forget_pages(arguments.folder)
    port, nginx = server
    place = at_a_distance(port, int(latency) / 1000) if latency else contextlib.nullcontext((None, 0))
    with place as (url, proxy):
        line = [sys.executable, __file__, "--child", json.dumps({**question, "url": url})]
        before = processor_time(nginx, proxy)
        run = json.loads(subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True).stdout)
        run["server"] = 1000 * (processor_time(nginx, proxy) - before) / run["images"]
    return run


def compare(arguments: argparse.Namespace) -> None:
    chosen = [source for source in SOURCES if not arguments.only or source in arguments.only]
    rates: dict[str, list[dict[str, float]]] = {source: [] for source in chosen}
    with serving(arguments.folder) as server:
        for _ in range(arguments.rounds):
            for source in chosen:
                rates[source].append(measure(source, server, arguments, 0.0))
        middle = {source: statistics.median(run["rate"] for run in runs) for source, runs in rates.items()}
        step = SLACK * arguments.batch / middle["B"] if "B" in middle else 0.0
        for source, runs in rates.items():
            waiting = measure(source, server, arguments, step)["waiting"] if step else float("nan")
            all_rates = [run["rate"] for run in runs]
            reader, servers = (statistics.median(run[of] for run in runs) for of in ("reader", "server"))
            print(
                f"{source:6s}{middle[source]:8,.0f}/s ({min(all_rates):,.0f} to {max(all_rates):,.0f})"
                f"  gain over A {middle[source] / middle.get('A', float('nan')) - 1:+7.1%}"
                f"  share of B {middle[source] / middle.get('B', float('nan')):6.1%}"
                f"  reader {reader:.3f} ms  server {servers:.3f} ms  waiting {waiting:5.1%}"
                f"  first batch {statistics.median(run['first'] for run in runs):.2f} s",
                flush=True,
            )
    print(json.dumps({"epochs": arguments.epochs, "rates": rates}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--epochs", type=int, default=4, help="in a run")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=SOURCES)
    parser.add_argument("--folder", type=Path, help="keep the set here for the next run")
    arguments = parser.parse_args()
    is_kept = arguments.folder is not None
    arguments.folder = arguments.folder or Path(tempfile.mkdtemp(prefix="outlast-images-"))
    try:
        if not (arguments.folder / "tars" / "manifest.json").exists():
            make_set(arguments.folder, Path(os.environ["OUTLAST_TEST_DATA"]), arguments.images)
        assert len(list((arguments.folder / "tars").glob("*.tar"))) == NUM_SHARDS
        compare(arguments)
    finally:
        if not is_kept:
            shutil.rmtree(arguments.folder)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(run_child(json.loads(sys.argv[2]))))
        os._exit(0)
    else:
        main()
