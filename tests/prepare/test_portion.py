"""A portion takes as much memory as a batch of documents does, however large it is."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from outlast.storage import LocalStore
from outlast.tokenizer.config import TokenizerConfig
from outlast.tokenizer.train import train_tokenizer

MIB = 2**20


def word(rng: random.Random) -> str:
    return f"{rng.randrange(10**6):06d} 京都{rng.randrange(1000)}は"


def write_corpus(path: Path, size_bytes: int) -> None:
    """Write documents of about 4 KB, a fiftieth of them held out, of words that seldom come again."""
    rng = random.Random(0)
    with path.open("w", encoding="utf-8") as file:
        while file.tell() < size_bytes:
            text = " ".join(word(rng) for _ in range(200))
            file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")


def peak_bytes(folder: Path, tokenizer: Path, size_bytes: int) -> int:
    """Return the peak resident memory of a process that prepares so much text as one portion."""
    folder.mkdir()
    write_corpus(folder / "text.jsonl", size_bytes)
    (folder / "recipe.toml").write_text(
        f'[corpus]\npath = "{folder / "text.jsonl"}"\nformat = "jsonl"\nvalidation_fraction = 0.02\n'
        f'[tokenizer]\npath = "{tokenizer}"\n[shards]\nnum_shards = 1\nnum_processes = 1\n'
    )
    command = [sys.executable, "-m", "outlast", "prepare", str(folder / "recipe.toml")]
    process = subprocess.Popen([*command, "--out", str(folder / "out")], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    counts = json.loads((folder / "out" / "manifest.json").read_text())["provenance"]["counts"]
    assert sum(split["text_bytes"] for split in counts.values()) > 0.9 * size_bytes
    return usage.ru_maxrss * 1024


@pytest.mark.long
def test_memory_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    config = TokenizerConfig(kind="bpe", vocab_size=150)
    rng = random.Random(1)
    words = [word(rng) for _ in range(20_000)]
    train_tokenizer(config, lambda: iter(words), store, "tokenizer", report=lambda line: None)
    small = peak_bytes(tmp_path / "small", tmp_path / "tokenizer", 24 * MIB)
    large = peak_bytes(tmp_path / "large", tmp_path / "tokenizer", 192 * MIB)
    assert large < small + 24 * MIB, f"{small / MIB:.0f} MiB for 24 MiB of text, {large / MIB:.0f} for 192"
    assert large < 400 * MIB
