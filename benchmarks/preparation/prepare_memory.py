"""Peak memory of ``outlast prepare`` over a corpus of any size, tokenizer training included.

    python benchmarks/preparation/prepare_memory.py DATA --gib 2

Writes so many GiB of text (the real corpora of all languages, repeated with other orders of documents and
lines), prepares it with two processes and adds up, five times a second, the private memory of all processes
of the command (USS: what would be free if they ended; pages of files that are mapped or cached are not
theirs). Needs Linux's /proc and as much free disk as text and a half. DATA is the folder of real data
(OUTLAST_TEST_DATA).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import zip_longest
from pathlib import Path

from prepare_corpus import CORPORA, read_documents, write_corpus

_INTERVAL_SECONDS = 0.2


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--gib", type=float, default=2.0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--tokenizer-limit-mib", type=int, default=800)
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="TABLE.KEY=VALUE")
    parser.add_argument("--work", type=Path, help="where text and shards go; by default a temporary folder")
    arguments = parser.parse_args()
    corpora = [read_documents(arguments.data, corpus) for corpus in CORPORA]
    documents = [text for row in zip_longest(*corpora) for text in row if text is not None]
    with tempfile.TemporaryDirectory(dir=arguments.work) as scratch:
        work = Path(scratch)
        size = int(arguments.gib * 2**30)
        write_corpus(work / "text", documents, size, 4)
        (work / "recipe.toml").write_text(
            f'[corpus]\npath = "{work / "text"}"\nformat = "jsonl"\n'
            f"[tokenizer]\nvocab_size = 16000\nmemory_limit_bytes = {arguments.tokenizer_limit_mib * 2**20}\n"
            f"[shards]\nnum_processes = {arguments.processes}\n"
        )
        command = [sys.executable, "-m", "outlast", "prepare", str(work / "recipe.toml")]
        command += ["--out", str(work / "out")]
        for override in arguments.overrides:
            command += ["--set", override]
        began = time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        peaks = watch(process)
        if process.returncode:
            sys.exit(f"outlast prepare failed with {process.returncode}")
        counts = json.loads((work / "out" / "manifest.json").read_text())["provenance"]["counts"]
        num_tokens = sum(split["tokens"] for split in counts.values())
    print(
        f"{size / 2**30:.2f} GiB of text, {num_tokens / 1e6:.0f} M tokens in {time.monotonic() - began:.0f} s"
    )
    for phase, (peak, num_processes) in peaks.items():
        print(f"{phase:30s} peak {peak / 2**20:6.0f} MiB, in {num_processes} processes")


def watch(process: subprocess.Popen[bytes]) -> dict[str, tuple[int, int]]:
    """Return the highest sum of private bytes, and of how many processes, alone and with children."""
    peaks = {"reading and training": (0, 0), "building": (0, 0)}
    while process.poll() is None:
        family = descendants(process.pid)
        total = sum(map(private_bytes, family))
        phase = "building" if len(family) > 1 else "reading and training"
        peaks[phase] = max(peaks[phase], (total, len(family)))
        time.sleep(_INTERVAL_SECONDS)
    return peaks


def descendants(pid: int) -> list[int]:
    """Return a process and all that it has started."""
    found = [pid]
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split():
                found += descendants(int(child))
    except OSError:
        pass  # it has just ended
    return found


def private_bytes(pid: int) -> int:
    """Return the private memory of a process, 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


if __name__ == "__main__":
    main()
