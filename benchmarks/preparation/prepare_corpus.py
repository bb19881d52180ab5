"""The corpora and tokenizers of the benchmarks of ``outlast prepare``.

In: the folder of real data and a size. Out: JSON lines of real documents. A corpus larger than the real one
repeats it, each time with the documents in another order and the lines of each in another order.
"""

import json
import random
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from outlast.storage import LocalStore
from outlast.tokenizer.config import TokenizerConfig
from outlast.tokenizer.train import train_tokenizer

CORPORA = ("ja", "en", "zh", "python")
VOCAB_SIZE = 16_000
TOKENIZERS = {
    "sentencepiece unigram": TokenizerConfig(kind="unigram", vocab_size=VOCAB_SIZE, sample_bytes=6 * 2**20),
    "sentencepiece bpe": TokenizerConfig(kind="bpe", vocab_size=VOCAB_SIZE, sample_bytes=6 * 2**20),
    "tokenizers byte-level bpe": TokenizerConfig(
        library="tokenizers", kind="bpe", byte_level=True, vocab_size=VOCAB_SIZE, sample_bytes=6 * 2**20
    ),
    "tokenizers wordpiece": TokenizerConfig(
        library="tokenizers", kind="wordpiece", vocab_size=VOCAB_SIZE, sample_bytes=6 * 2**20
    ),
}


def read_documents(data: Path, corpus: str) -> list[str]:
    """Return the documents of a corpus: Kyoto articles (ja, en), reviews (zh), standard modules (python)."""
    if corpus == "python":
        modules = sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py"))
        modules = [path for path in modules if not {"site-packages", "test", "tests"} & set(path.parts)]
        return [path.read_text(encoding="utf-8", errors="replace") for path in modules]
    if corpus == "zh":
        lines = (data / "cls-zh-reviews" / "train.tsv").read_text(encoding="utf-8").splitlines()[1:]
        return [line.split("\t")[2] for line in lines]
    paths = sorted((data / f"text-{corpus}-kyoto-wikipedia").glob("*.jsonl"))
    lines = [line for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
    return [json.loads(line)["text"] for line in lines]


def repeat(documents: list[str], size_bytes: int) -> Iterator[str]:
    """Yield documents of so many UTF-8 bytes in all, repeated in other orders where need be."""
    left = size_bytes
    rng = random.Random(0)
    documents = list(documents)
    first = True
    while True:
        for document in documents:
            text = document if first else "\n".join(rng.sample(lines := document.split("\n"), len(lines)))
            left -= len(text.encode())
            yield text
            if left <= 0:
                return
        rng.shuffle(documents)
        first = False


def write_corpus(folder: Path, documents: list[str], size_bytes: int, num_files: int) -> list[Path]:
    """Write documents in turn to so many files of JSON lines; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"part-{number}.jsonl" for number in range(num_files)]
    files = [path.open("w", encoding="utf-8") for path in paths]
    for number, text in enumerate(repeat(documents, size_bytes)):
        files[number % num_files].write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
    for file in files:
        file.close()
    return paths


def train(folder: Path, name: str, documents: list[str]) -> Path:
    """Train a tokenizer of ``TOKENIZERS`` unless it is there; return its folder."""
    path = folder / name.replace(" ", "-")
    if not (path / "manifest.json").exists():
        path.mkdir(parents=True, exist_ok=True)
        train_tokenizer(
            TOKENIZERS[name], lambda: iter(documents), LocalStore(folder), path.name, report=lambda line: None
        )
    return path
