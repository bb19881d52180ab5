"""Cleaning beside the tokenizer: what it costs, what it finds, what it drops, the memory it takes.

    python benchmarks/preparation/cleaning.py DATA rates           MB/s of rules and scan beside encoding
    python benchmarks/preparation/cleaning.py DATA planted         recall and precision on planted duplicates
    python benchmarks/preparation/cleaning.py DATA counts          what a usual configuration drops
    python benchmarks/preparation/cleaning.py DATA merge 5000000   time and peak memory of merging so many

DATA is the folder of real data (OUTLAST_TEST_DATA). Rates are the best of three rounds over the same text, in
processor seconds of this process, so that other work on the machine weighs less.
"""

import argparse
import json
import os
import random
import resource
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
os.environ.setdefault("RAYON_NUM_THREADS", "1")

from outlast.cleaning.cleaner import Cleaner
from outlast.cleaning.config import CleaningConfig
from outlast.cleaning.merge import find_duplicates
from outlast.cleaning.scan import FOLDER, row_dtype
from outlast.cleaning.signatures import Signatures, line_hashes, text_hash
from outlast.corpus.config import CorpusConfig
from outlast.storage import LocalStore
from outlast.tokenizer.config import TokenizerConfig
from outlast.tokenizer.encode import load_tokenizer
from outlast.tokenizer.train import train_tokenizer
from support.cleaning import clean, edit, jaccard, write_corpus

_RATE_CHARACTERS = 1_000_000
"""Enough for a rate; what is measured does not depend on the size of the corpus."""

TOKENIZERS = (
    TokenizerConfig(library="sentencepiece", kind="unigram", vocab_size=4000, sample_bytes=400_000),
    TokenizerConfig(library="tokenizers", kind="bpe", vocab_size=4000, sample_bytes=400_000),
)
CHARACTERS = CleaningConfig(unicode_form="NFKC", remove_control_characters=True, min_characters=20)
RULES = CleaningConfig(
    unicode_form="NFKC",
    remove_control_characters=True,
    min_characters=20,
    min_letter_share=0.5,
    max_repeated_line_share=0.3,
    max_repeated_text_share=0.3,
)
USUAL = CleaningConfig(
    unicode_form="NFKC",
    remove_control_characters=True,
    min_characters=20,
    min_letter_share=0.5,
    max_repeated_line_share=0.3,
    max_repeated_text_share=0.3,
    duplicates="near",
    duplicate_lines="drop",
)


def read_corpora(data: Path) -> dict[str, list[str]]:
    """Return the documents of the real corpora by name."""
    corpora: dict[str, list[str]] = {}
    for language in ("ja", "en"):
        lines = [
            line
            for path in sorted((data / f"text-{language}-kyoto-wikipedia").glob("*.jsonl"))
            for line in path.read_text(encoding="utf-8").splitlines()
        ]
        corpora[f"kyoto-{language}"] = [json.loads(line)["text"] for line in lines]
    with tarfile.open(data / "text-ja-livedoor" / "livedoor-train.tar.gz") as archive:
        members = [m for m in archive if m.isfile() and m.name.count("/") >= 1 and "-" in Path(m.name).stem]
        files = [archive.extractfile(member) for member in members]
        corpora["livedoor-ja"] = [file.read().decode().split("\n", 2)[-1] for file in files if file]
    for part in ("train", "dev"):
        lines = (data / "cls-zh-reviews" / f"{part}.tsv").read_text(encoding="utf-8").splitlines()[1:]
        corpora.setdefault("reviews-zh", []).extend(line.split("\t")[2] for line in lines)
    wikitext = (data / "text-en-wikitext2" / "valid.txt").read_text(encoding="utf-8")
    corpora["wikitext2-en"] = [line.strip() for line in wikitext.split("\n") if line.strip()]
    return corpora


def measure(work: Callable[[], object], num_bytes: int) -> float:
    """Return the best of three rounds in MB per second of processor time."""
    times: list[float] = []
    for _ in range(3):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return num_bytes / 1e6 / min(times)


def show_rates(corpora: dict[str, list[str]]) -> None:
    """Print rates of encoding, of cleaning, and of what a scan computes."""
    works: dict[str, Callable[[Sequence[str]], object]] = {}
    for name, config in (
        ("NFC", CleaningConfig(unicode_form="NFC")),
        ("NFKC, control characters, length", CHARACTERS),
        ("the same and all rules", RULES),
        ("language", CleaningConfig(languages=("ja", "en", "zh"))),
    ):
        cleaner = Cleaner(config)
        works[name] = lambda texts, cleaner=cleaner: [cleaner.clean(text) for text in texts]
    works["hash of the text"] = lambda texts: [text_hash(text) for text in texts]
    works["hashes of the lines"] = lambda texts: [line_hashes(text, 20) for text in texts]
    signatures = Signatures(USUAL)
    works["near-duplicate signatures"] = lambda texts: [
        signatures.sign(texts[begin : begin + 64]) for begin in range(0, len(texts), 64)
    ]
    for name, texts in corpora.items():
        some = texts[: max(1, len(texts) * _RATE_CHARACTERS // sum(map(len, texts)))]
        num_bytes = sum(len(text.encode()) for text in some)
        print(f"{name}, {num_bytes / 1e6:.1f} MB in {len(some)} documents")
        for config in TOKENIZERS:
            with tempfile.TemporaryDirectory() as folder:
                store = LocalStore(Path(folder))
                train_tokenizer(config, lambda some=some: iter(some), store, "t", report=lambda _: None)
                tokenizer = load_tokenizer(store, "t")
                rate = measure(lambda some=some, t=tokenizer: t.encode_batch(some), num_bytes)
                print(f"  {rate:8.1f} MB/s  encoding, {config.library} {config.kind}", flush=True)
        for what, work in works.items():
            rate = measure(lambda some=some, work=work: work(some), num_bytes)
            print(f"  {rate:8.1f} MB/s  {what}", flush=True)


def show_planted(corpora: dict[str, list[str]]) -> None:
    """Print how many planted near duplicates are found, by true similarity, and what else was dropped."""
    rng = random.Random(0)
    for name, texts in corpora.items():
        originals = list(dict.fromkeys(text.strip() for text in texts))
        long = [text for text in originals if len(text.encode()) > 600]
        chosen = rng.sample(long, min(600, len(long)))
        copies = [edit(text, rng.randrange(1, 2 + len(text.encode()) // 150), rng) for text in chosen]
        with tempfile.TemporaryDirectory() as folder:
            path = write_corpus(Path(folder, "a.jsonl"), originals + copies)
            corpus = CorpusConfig(path=str(path), format="jsonl")
            kept = set(clean(corpus, CleaningConfig(duplicates="near"), Path(folder, "out"), 4)[0])
        found: Counter[float] = Counter()
        total: Counter[float] = Counter()
        for text, copy in zip(chosen, copies, strict=True):
            band = int(jaccard(text, copy) * 20) / 20
            total[band] += 1
            found[band] += copy not in kept
        lost = [text for text in originals if text not in kept]
        print(f"{name}: {len(originals)} documents, {len(copies)} planted, {len(lost)} others dropped")
        print(
            "  found by similarity: "
            + ", ".join(f"{band:.2f}+ {found[band]}/{total[band]}" for band in sorted(total))
        )
        nearest = sorted(round(find_nearest(text, originals), 2) for text in lost[:40])
        print(f"  others, true similarity to the nearest document: {nearest}")


def find_nearest(text: str, texts: Sequence[str]) -> float:
    """Return the similarity of the nearest other text, of those that share a piece of twelve characters."""
    pieces = [text[begin : begin + 12] for begin in range(0, len(text) - 11, max(1, len(text) // 25))]
    some = [other for other in texts if other != text and any(piece in other for piece in pieces)]
    return max((jaccard(text, other) for other in some), default=0.0)


def show_counts(corpora: dict[str, list[str]]) -> None:
    """Print what the usual configuration drops."""
    for name, texts in corpora.items():
        with tempfile.TemporaryDirectory() as folder:
            path = write_corpus(Path(folder, "a.jsonl"), texts)
            corpus = CorpusConfig(path=str(path), format="jsonl")
            kept, tally = clean(corpus, USUAL, Path(folder, "out"), 4)
        dropped = {reason: entry.documents for reason, entry in tally.dropped.items()}
        print(f"{name}: {tally.documents_in} documents, {len(kept)} kept, dropped {dropped}", end=", ")
        print(f"{tally.removed_lines} lines removed, changed {tally.changed}")
        print(f"  {tally.text_bytes_in} bytes in, {tally.text_bytes_out} out")


def show_merge(num_documents: int) -> None:
    """Print time and peak memory of merging made-up signatures, a tenth of them alike."""
    dtype = row_dtype(CleaningConfig(duplicates="near"))
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        store = LocalStore(Path(folder))
        sizes: list[tuple[int, int]] = []
        for part, begin in enumerate(range(0, num_documents, 20_000)):
            rows = np.zeros(min(20_000, num_documents - begin), dtype)
            rows["text"] = rng.integers(0, 2**63, rows["text"].shape, dtype=np.uint64)
            rows["bands"] = rng.integers(0, 2**63, rows["bands"].shape, dtype=np.uint64)
            rows["signature"] = rng.integers(0, 256, rows["signature"].shape, dtype=np.uint8)
            tenth = len(rows) // 20
            rows[:tenth] = rows[tenth : 2 * tenth]  # exact
            rows["bands"][2 * tenth : 3 * tenth] = rows["bands"][3 * tenth : 4 * tenth]
            rows["signature"][2 * tenth : 3 * tenth] = rows["signature"][3 * tenth : 4 * tenth]
            store.replace(f"{FOLDER}00000-corpus-{part:05d}", [rows.tobytes()])
            sizes.append((len(rows), 0))
        record = {
            "format": "outlast-scan",
            "version": 1,
            "piece": 0,
            "parts": {"held_out": [], "corpus": sizes},
        }
        store.replace(f"{FOLDER}00000.json", [json.dumps(record).encode()])
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.monotonic()
        merged = find_duplicates(store, CleaningConfig(duplicates="near"), 1)
        seconds = time.monotonic() - began
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        on_disk = num_documents * dtype.itemsize
    print(f"{num_documents} documents, scans of {on_disk / 1e9:.2f} GB: {seconds:.1f} s, {merged.dropped}")
    print(f"peak memory {peak / 1024:.0f} MiB, {before / 1024:.0f} MiB of it before the merge")


def main() -> None:
    """Parse and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("what", choices=["rates", "planted", "counts", "merge"])
    parser.add_argument(
        "--corpus", help="only this one: kyoto-ja, kyoto-en, livedoor-ja, reviews-zh, wikitext2-en"
    )
    parser.add_argument("num_documents", type=int, nargs="?", default=1_000_000)
    arguments = parser.parse_args()
    if arguments.what == "merge":
        show_merge(arguments.num_documents)
        return
    corpora = read_corpora(arguments.data)
    if arguments.corpus:
        corpora = {arguments.corpus: corpora[arguments.corpus]}
    {"rates": show_rates, "planted": show_planted, "counts": show_counts}[arguments.what](corpora)


if __name__ == "__main__":
    main()
