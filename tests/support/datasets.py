"""Small data sets: made by the real command from real text, or of counting tokens that tell their place."""

import hashlib
import itertools
import random
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from outlast.shards.manifest import FileEntry, Manifest, ShardEntry, TokenizerEntry, write_manifest
from outlast.shards.opened import OpenedFile
from outlast.shards.write import TokenShardWriter
from outlast.storage import Store
from support.command import RECIPE, Command

SPECIAL_IDS = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
VOCAB_SIZE = 60_000

STEPS = 30
TINY = (
    f"training.total_steps={STEPS}",
    "training.evaluation_interval_steps=15",
    "training.evaluation_examples=16",
    "checkpoint.interval_steps=3",
)
"""A run of a few seconds: the smallest that saves, evaluates and ends."""

CORPUS = (
    f"corpus.path={Path(sysconfig.get_path('stdlib'), 'email')}",
    "corpus.include=**/*.py",
    "shards.num_shards=3",
)


class CloudCommand(Command):
    """The real command, led to a store by the environment.

    Args:
        patience_seconds: how long it asks a store that does not answer; None: as long as anybody's.
    """

    def __init__(
        self, cache: Path, variables: Mapping[str, str], *, patience_seconds: float | None = None
    ) -> None:
        super().__init__(cache)
        self.environment |= variables
        if patience_seconds is not None:
            self.launcher = (
                "-c",
                f"from outlast.storage.store import Store; Store.retry_seconds = {patience_seconds};"
                "from outlast.__main__ import main; main()",
            )

    def prepare(self, out: str) -> str:
        """Make a small data set from the source of a standard library package; return its manifest."""
        keys = [part for key in CORPUS for part in ("--set", key)]
        self.run("prepare", RECIPE, "--out", out, *keys)
        return f"{out}/manifest.json"


@pytest.fixture(scope="session")
def compilation_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def local_command(compilation_cache: Path) -> CloudCommand:
    return CloudCommand(compilation_cache, {})


@pytest.fixture(scope="session")
def local_manifest(local_command: CloudCommand, tmp_path_factory: pytest.TempPathFactory) -> str:
    return local_command.prepare(str(tmp_path_factory.mktemp("data")))


@pytest.fixture(scope="session")
def unbroken(
    local_command: CloudCommand, local_manifest: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[int, str]:
    """Step and digest of a run on local folders that nobody disturbed."""
    run_dir = tmp_path_factory.mktemp("runs") / "unbroken"
    local_command.train(local_manifest, run_dir, *TINY)
    return local_command.digest(run_dir)


def opened(path: Path, content: bytes | None = None) -> OpenedFile:
    """Open a file, which is written where its content is given, with the entry that a manifest has of it."""
    if content is not None:
        path.write_bytes(content)
    content = path.read_bytes()
    sha256 = hashlib.sha256(content).hexdigest()
    return OpenedFile(path, FileEntry(name=path.name, size_bytes=len(content), sha256=sha256))


def counting_words(tokens: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
    """Which of a document's counting tokens begin a word: words have one or two."""
    starts = tokens % 3 != 0
    starts[0] = True
    return starts


def write_counting_shards(
    store: Store,
    lengths: Sequence[Sequence[int]],
    *,
    first_token: int = 5,
    split: str = "train",
    has_words: bool = False,
) -> list[ShardEntry]:
    """Write a shard for each list of document lengths; its tokens count up from shard to shard."""
    token = itertools.count(first_token)
    entries: list[ShardEntry] = []
    for index, documents in enumerate(lengths):
        with TokenShardWriter(
            vocab_size=VOCAB_SIZE, separator_id=3, tokenizer_fingerprint="f", has_words=has_words
        ) as writer:
            for length in documents:
                ids = np.array(list(itertools.islice(token, length)), np.int32)
                writer.add(ids, None, counting_words(ids) if has_words else None)
            entries.append(writer.write(store, f"{split}-{index:05d}.safetensors"))
    return entries


def write_counting_data(
    store: Store, lengths: Sequence[Sequence[int]], *, first_token: int = 5, has_words: bool = False
) -> Manifest:
    """Write a whole data set of such shards; return its manifest."""
    entries = write_counting_shards(store, lengths, first_token=first_token, has_words=has_words)
    return _write_data(store, {"train": entries})


def write_sentence_data(
    store: Store, splits: Mapping[str, Sequence[Sequence[Sequence[int]]]], *, has_words: bool = False
) -> Manifest:
    """Write a data set whose shards tell their sentences, from the lengths of the sentences of each document
    of each shard of each split. Its tokens count up from 5 in each split.
    """
    entries: dict[str, list[ShardEntry]] = {}
    for split, shards in splits.items():
        token = 5
        entries[split] = []
        for index, documents in enumerate(shards):
            with TokenShardWriter(
                vocab_size=VOCAB_SIZE,
                separator_id=3,
                tokenizer_fingerprint="f",
                has_sentences=True,
                has_words=has_words,
            ) as writer:
                for sentences in documents:
                    ids = np.arange(token, token + sum(sentences))
                    writer.add(ids, np.array(sentences), counting_words(ids) if has_words else None)
                    token += sum(sentences)
                name = f"{split}-{index:05d}-of-{len(shards):05d}.safetensors"
                entries[split].append(writer.write(store, name))
    return _write_data(store, entries)


def draw_documents(seed: int, num_documents: int, *, most_sentences: int = 12) -> list[list[int]]:
    """Return documents as the lengths of their sentences, 1 to 14 tokens each."""
    rng = random.Random(seed)
    return [[rng.randint(1, 14) for _ in range(rng.randint(1, most_sentences))] for _ in range(num_documents)]


def _write_data(store: Store, splits: Mapping[str, Sequence[ShardEntry]]) -> Manifest:
    manifest = Manifest(
        token_dtype="uint16",
        tokenizer=TokenizerEntry(
            path="tokenizer", fingerprint="f", vocab_size=VOCAB_SIZE, special_ids=SPECIAL_IDS
        ),
        splits={split: tuple(entries) for split, entries in splits.items()},
        provenance={},
    )
    write_manifest(store, manifest)
    return manifest
