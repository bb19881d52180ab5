"""Characters per second of dividing text into sentences, beside the tokenizer and beside sentencex.

The same documents go, in turn and round after round, through: the splitter alone; the tokenizer on whole
documents; the way ``prepare`` goes with sentences (divide, encode each by itself, join). One process, one
thread; the median of the rounds counts. sentencex (pip install sentencex) is left out, and said so, where
it is not installed.

    outlast prepare RUN.toml --out data
    python benchmarks/preparation/sentences.py data corpus.jsonl --language ja --rounds 5
"""

import argparse
import importlib
import importlib.util
import itertools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from outlast.corpus.sentences import split_lines, split_sentences
from outlast.prepare.encode import encode_documents
from outlast.storage import open_store
from outlast.tokenizer.encode import load_tokenizer

_BATCH = 256


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", help="what outlast prepare wrote; its tokenizer is used")
    parser.add_argument("corpus", type=Path, help="JSON lines with a field text")
    parser.add_argument("--language", default="ja", help="for sentencex")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--characters", type=int, default=2_000_000)
    arguments = parser.parse_args()
    tokenizer = load_tokenizer(open_store(arguments.data), "tokenizer")
    documents = read(arguments.corpus, arguments.characters)
    batches = [documents[begin : begin + _BATCH] for begin in range(0, len(documents), _BATCH)]

    def encode(split: Callable[[str], list[str]] | None) -> None:
        for batch in batches:
            encode_documents(tokenizer, batch, split)

    ways: dict[str, Callable[[], object]] = {
        "split by rules": lambda: [split_sentences(document) for document in documents],
        "split into lines": lambda: [split_lines(document) for document in documents],
        "encode documents": lambda: encode(None),
        "encode lines": lambda: encode(split_lines),
        "encode sentences": lambda: encode(split_sentences),
    }
    if importlib.util.find_spec("sentencex"):
        segment = importlib.import_module("sentencex").segment
        ways["sentencex"] = lambda: [list(segment(arguments.language, document)) for document in documents]
    else:
        print("sentencex: not installed")
    num_characters = sum(map(len, documents))
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(arguments.rounds):
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - began)
    reference = statistics.median(seconds["encode documents"])
    for name, found in seconds.items():
        rates = sorted(num_characters / 1e6 / value for value in found)
        print(
            f"{name:20s} {statistics.median(rates):7.2f} M characters/s ({rates[0]:.2f} to {rates[-1]:.2f}), "
            f"{reference / statistics.median(found):6.2f} times the tokenizer on documents"
        )
    num_sentences = sum(len(split_sentences(document)) for document in documents)
    print(f"{len(documents)} documents, {num_characters} characters, {num_sentences} sentences")


def read(path: Path, num_characters: int) -> list[str]:
    """Return the first documents of a file that have so many characters together."""
    with path.open(encoding="utf-8") as lines:
        texts = [str(json.loads(line)["text"]) for line in lines]
    totals = itertools.accumulate(map(len, texts))
    return [text for text, total in zip(texts, totals, strict=True) if total <= num_characters]


if __name__ == "__main__":
    main()
