"""Tokens per second of ``outlast prepare`` beside the tokenizer alone, and bytes on disk per token.

    python benchmarks/preparation/prepare.py DATA --corpora ja en zh python --rounds 5

For each corpus and tokenizer, in turn and round after round:

* the tokenizer alone: the library itself on the same documents, in memory as strings, the same number of
  processes, the batch size that does best. Where the library can return something else than lists of Python
  integers, or another library gives the same ids, this is measured too;
* ``outlast prepare`` with that tokenizer, from the start of the command to its end: start of the processes,
  reading, encoding, writing, digests, manifest. Held-out documents are chosen as in the default recipe.

The text is made so large that the tokenizer alone needs about ``--seconds``. The median of the rounds counts;
ratios are taken round by round. DATA is the folder of real data (OUTLAST_TEST_DATA).
"""

import argparse
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

from prepare_corpus import CORPORA, TOKENIZERS, read_documents, train, write_corpus

from outlast.storage import LocalStore
from outlast.tokenizer.encode import SentencePieceTokenizer, TokenizersTokenizer, load_tokenizer

_BATCHES = (2**14, 2**17, 2**20)
_TRIAL_CHARACTERS = 2_000_000

Encode = Callable[[list[str]], Sequence[Sequence[int] | NDArray[np.int32]]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--corpora", nargs="+", choices=CORPORA, default=list(CORPORA))
    parser.add_argument("--tokenizers", nargs="+", choices=list(TOKENIZERS), default=list(TOKENIZERS))
    parser.add_argument("--sentences", choices=("none", "lines", "rules"), default="none")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--work", type=Path, help="keep corpora and tokenizers there for another run")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        work = arguments.work or Path(scratch)
        for corpus in arguments.corpora:
            documents = read_documents(arguments.data, corpus)
            for name in arguments.tokenizers:
                compare(work, corpus, documents, name, arguments)


def compare(work: Path, corpus: str, documents: list[str], name: str, arguments: argparse.Namespace) -> None:
    """Measure one tokenizer on one corpus and print a line for each way."""
    folder = train(work / corpus, name, documents)
    ways = make_ways(folder)
    batches = {way: best_batch(encode, documents) for way, encode in ways.items()}
    fastest = max(rate for _, rate in batches.values())
    size = int(fastest * arguments.processes * arguments.seconds)
    paths = write_corpus(work / corpus / "text", documents, size, arguments.processes)
    rates: dict[str, list[float]] = {way: [] for way in [*ways, "prepare"]}
    result: dict[str, float] = {}
    for _ in range(arguments.rounds):
        for way in ways:
            rates[way].append(measure_alone(folder, way, batches[way][0], paths))
        rate, result = measure_prepare(work, paths, folder, arguments)
        rates["prepare"].append(rate)
    start = measure_start(work, documents, folder, arguments)
    print(f"\n{corpus}, {name}: {size / 2**20:.0f} MiB, {result['tokens'] / 1e6:.1f} M tokens")
    for way, found in rates.items():
        ratio = statistics.median(p / r for p, r in zip(rates["prepare"], found, strict=True))
        beside = "" if way == "prepare" else f"   prepare has {100 * ratio:.0f} % of it"
        print(
            f"  {way:24s}{statistics.median(found):7.2f} M tokens/s ({min(found):.2f} to {max(found):.2f})"
            + beside,
            flush=True,
        )
    print(f"  on disk {result['bytes_per_token']:.3f} bytes a token; start-up {start:.2f} s", flush=True)


def make_ways(folder: Path) -> dict[str, Encode]:
    """Return how the library itself, and one that gives the same ids, encodes a batch."""
    tokenizer = load_tokenizer(LocalStore(folder.parent), folder.name)
    if isinstance(tokenizer, SentencePieceTokenizer):
        processor = tokenizer.processor
        return {
            "alone, lists": lambda texts: processor.encode(texts, num_threads=1),
            "alone, arrays": lambda texts: processor.encode(texts, return_type="numpy", num_threads=1),
        }
    assert isinstance(tokenizer, TokenizersTokenizer)
    library = tokenizer.processor

    def encode(texts: list[str]) -> list[list[int]]:
        return [found.ids for found in library.encode_batch_fast(texts, add_special_tokens=False)]

    ways: dict[str, Encode] = {"alone, lists": encode}
    if tokenizer.is_fast:
        ways["fastokens alone, arrays"] = tokenizer.encode_batch
    return ways


def cut(documents: Sequence[str], num_characters: int) -> list[list[str]]:
    """Return the documents in batches of about so many characters."""
    batches: list[list[str]] = [[]]
    size = 0
    for document in documents:
        if size >= num_characters:
            batches.append([])
            size = 0
        batches[-1].append(document)
        size += len(document)
    return batches


def best_batch(encode: Encode, documents: list[str]) -> tuple[int, float]:
    """Return the batch size, in characters, at which a way does best, and its bytes per second there."""
    some: list[str] = []
    while sum(map(len, some)) < _TRIAL_CHARACTERS and len(some) < len(documents):
        some += documents[len(some) : len(some) + 200]
    num_bytes = sum(len(text.encode()) for text in some)
    rates: dict[int, float] = {}
    for size in (*_BATCHES, *_BATCHES):
        batches = cut(some, size)
        began = time.process_time()
        for batch in batches:
            encode(batch)
        rates[size] = max(num_bytes / (time.process_time() - began), rates.get(size, 0.0))
    best = max(rates, key=lambda size: rates[size])
    return best, rates[best]


def measure_alone(folder: Path, way: str, batch: int, paths: list[Path]) -> float:
    """Return the million tokens a second of all processes, each with the documents of one file in memory."""
    context = multiprocessing.get_context("spawn")
    pipes: list[Connection] = []
    processes: list[Any] = []
    for path in paths:
        ours, theirs = context.Pipe()
        processes.append(context.Process(target=encode_alone, args=(theirs, folder, way, batch, path)))
        processes[-1].start()
        pipes.append(ours)
    for pipe in pipes:
        pipe.recv()
    began = time.perf_counter()
    for pipe in pipes:
        pipe.send("go")
    num_tokens = sum(pipe.recv() for pipe in pipes)
    seconds = time.perf_counter() - began
    for process in processes:
        process.join()
    return num_tokens / 1e6 / seconds


def encode_alone(pipe: Connection, folder: Path, way: str, batch: int, path: Path) -> None:
    """Encode a file's documents when told to; say how many tokens they have. The life of a process."""
    encode = make_ways(folder)[way]
    with path.open(encoding="utf-8") as lines:
        batches = cut([json.loads(line)["text"] for line in lines], batch)
    pipe.send("ready")
    pipe.recv()
    num_tokens = 0
    for texts in batches:
        num_tokens += sum(map(len, encode(texts)))
    pipe.send(num_tokens)


def measure_prepare(
    work: Path, paths: list[Path], folder: Path, arguments: argparse.Namespace
) -> tuple[float, dict[str, float]]:
    """Return the million tokens a second of the command, and its tokens and bytes on disk for each."""
    out = work / "out"
    shutil.rmtree(out, ignore_errors=True)
    seconds = run_prepare(work, paths[0].parent, out, folder, arguments.processes, arguments.sentences)
    manifest = json.loads((out / "manifest.json").read_text())
    num_tokens = sum(counts["tokens"] for counts in manifest["provenance"]["counts"].values())
    num_bytes = sum(path.stat().st_size for path in out.rglob("*") if path.suffix == ".safetensors")
    return num_tokens / 1e6 / seconds, {"tokens": num_tokens, "bytes_per_token": num_bytes / num_tokens}


def run_prepare(
    work: Path, text: Path, out: Path, folder: Path, processes: int, sentences: str, *more: str
) -> float:
    """Run the command; return its seconds."""
    recipe = work / "recipe.toml"
    recipe.write_text(
        f'[corpus]\npath = "{text}"\nformat = "jsonl"\nsentences = "{sentences}"\n'
        f'[tokenizer]\npath = "{folder}"\n[shards]\nnum_processes = {processes}\n'
    )
    command = [sys.executable, "-m", "outlast", "prepare", str(recipe), "--out", str(out), *more]
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return time.perf_counter() - began


def measure_start(work: Path, documents: list[str], folder: Path, arguments: argparse.Namespace) -> float:
    """Return the seconds of the command for one short document for each process: the least of three."""
    text = work / "start" / "text"
    write_corpus(text, [document[:200] for document in documents[:20]], 200, arguments.processes)
    number = ("--set", f"shards.num_shards={arguments.processes}", "--set", "corpus.validation_fraction=0")
    seconds: list[float] = []
    for _ in range(3):
        shutil.rmtree(work / "start" / "out", ignore_errors=True)
        out = work / "start" / "out"
        seconds.append(run_prepare(work, text, out, folder, arguments.processes, "none", *number))
    return min(seconds)


if __name__ == "__main__":
    main()
