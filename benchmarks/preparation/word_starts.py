"""What it costs to find words while text is encoded: none, by the pieces, by MeCab, in turn in one process.

    python benchmarks/preparation/word_starts.py DATA CORPUS.jsonl --rounds 5

DATA is a prepared data set, whose tokenizer is taken; CORPUS.jsonl has the text in the field "text". Printed
are the medians in MB of UTF-8 per second, whole documents, and the ratios to encoding alone.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

from outlast.prepare.encode import encode_documents
from outlast.storage import open_store
from outlast.tokenizer.encode import load_tokenizer
from outlast.tokenizer.mecab import mecab_segmenter
from outlast.tokenizer.words import WordMarker, make_word_marker


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    tokenizer = load_tokenizer(open_store(arguments.data), "tokenizer")
    lines = arguments.corpus.read_text(encoding="utf-8").splitlines()
    documents = [str(json.loads(line)["text"]) for line in lines]
    num_bytes = sum(len(document.encode()) for document in documents)
    markers: dict[str, WordMarker | None] = {
        "none": None,
        "pieces": make_word_marker(tokenizer, "pieces"),
        "mecab": make_word_marker(tokenizer, mecab_segmenter()),
    }
    seconds: dict[str, list[float]] = {name: [] for name in markers}
    for _ in range(arguments.rounds):
        for name, marker in markers.items():
            began = time.perf_counter()
            for first in range(0, len(documents), 256):
                encode_documents(tokenizer, documents[first : first + 256], None, marker)
            seconds[name].append(time.perf_counter() - began)
    for name, times in seconds.items():
        ratios = [time / alone for time, alone in zip(times, seconds["none"], strict=True)]
        print(
            f"{name}: {num_bytes / 1e6 / statistics.median(times):.1f} MB/s, "
            f"{statistics.median(ratios):.2f} times the time ({min(ratios):.2f}-{max(ratios):.2f})"
        )


if __name__ == "__main__":
    main()
