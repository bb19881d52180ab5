"""Files that other processes change, truncate, touch or replace while a stream reads them: of every kind,
beside their manifest and in the cache. What is handed on is what was verified; no reader dies of a signal.
"""

import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from outlast.interchange.import_tfrecord import ImportConfig, import_tfrecord
from outlast.prepare.pairs import add_pairs
from outlast.shards.config import PairsConfig
from outlast.storage import LocalStore
from support.datasets import draw_documents, write_counting_data, write_sentence_data
from support.files import serving_folder
from support.images import write_images
from support.records import masked_rows, write_bert_file, write_tokenizer_folder

LENGTHS = [[4000, 1500], [2500, 3000], [5500]]
KINDS = {
    "tokens": "train-00001.safetensors",
    "words": "train-00001.safetensors",
    "examples": "train-00000-*.safetensors",
    "pairs": "train-00001-of-00003.safetensors",
    "pair table": "pairs-*/train-00001-*.safetensors",
    "images": "shard-000001.tar",
    "image index": "shard-000001.index.safetensors",
}
"""For each kind of data set the file of it that is changed."""

CHANGES = {
    "changed": "file = open(path, 'r+b'); file.seek(size * 2 // 3); was = file.read(64); "
    "file.seek(size * 2 // 3); file.write(bytes(byte ^ 85 for byte in was))",
    "truncated": "os.truncate(path, size // 3)",
    "emptied": "open(path, 'wb')",
    "replaced": "open(path + '.new', 'wb').write(os.urandom(size)); os.replace(path + '.new', path)",
    "touched": "os.utime(path)",
    "deleted": "os.remove(path)",
}
IN_PLACE = {
    **CHANGES,
    "changed, its times kept": "was = os.stat(path); kept = (was.st_atime_ns, was.st_mtime_ns); "
    f"{CHANGES['changed']}; file.close(); os.utime(path, ns=kept)",
}
"""Of a file beside its manifest; as some tools copy."""
STAYS_READABLE = ("replaced", "touched", "deleted")
"""To whom has it open."""


def by_another_process(change: str, path: Path) -> None:
    code = f"import os, sys; path = sys.argv[1]; size = os.path.getsize(path); {IN_PLACE[change]}"
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)


def make_data(kind: str, folder: Path) -> None:
    if kind in ("tokens", "words"):
        write_counting_data(LocalStore(folder), LENGTHS, has_words=kind == "words")
    elif kind in ("pairs", "pair table"):
        write_sentence_data(LocalStore(folder), {"train": [draw_documents(seed, 40) for seed in range(3)]})
        add_pairs(str(folder / "manifest.json"), PairsConfig(lengths=(24,)), num_processes=1)
    elif kind == "examples":
        source = folder.with_name("records")
        source.mkdir()
        write_bert_file(source / "a.tfrecord", masked_rows(120))
        tokenizer = str(write_tokenizer_folder(folder.with_name("tokenizer")))
        files = [str(source / "a.tfrecord")]
        import_tfrecord(files, str(folder), ImportConfig(), tokenizer=tokenizer, num_processes=1)
    else:
        write_images(folder, (20, 20, 20, 4))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Path], Path]:
    """Returns a function that puts a data set of a kind into a folder."""
    whole: dict[str, Path] = {}

    def copy_to(kind: str, folder: Path) -> Path:
        if kind not in whole:
            whole[kind] = tmp_path_factory.mktemp("whole") / "data"
            make_data(kind, whole[kind])
        shutil.copytree(whole[kind], folder)
        return next(folder.glob(KINDS[kind]))

    return copy_to


READER = """
import hashlib, sys
from outlast.errors import ShardError
from outlast.images.stream import make_image_stream
from outlast.stream.loader import make_stream

kind, manifest, cache, sequence_length = sys.argv[1:]
options = {"global_batch_size": 16, "cache_dir": cache}
if kind == "words":
    options["word_starts"] = True
if kind.startswith("pair"):
    options["packing"] = "pairs"


def open_stream():
    if kind.startswith("image"):
        return make_image_stream(manifest, image_size=16, max_undecodable=0.0, **options)
    return make_stream(manifest, sequence_length=int(sequence_length), **options)


def say(batch):
    digest = hashlib.sha256()
    for name in sorted(batch):
        digest.update(batch[name].tobytes())
    print(digest.hexdigest(), flush=True)


stream = open_stream()
print("ready", flush=True)
for command in map(str.strip, sys.stdin):
    try:
        if command == "again":
            stream = open_stream()
        if command == "run":
            for _ in stream.batches_from(0):
                pass
        for step in range(-(-stream.num_examples // 16)):
            say(stream.batch(step))
        print("done", flush=True)
    except ShardError as error:
        print("ShardError:", str(error).replace(chr(10), " "), flush=True)
"""


class Reader:
    """A process that reads a data set, an epoch whenever it is told to."""

    def __init__(self, kind: str, manifest: str, cache: Path) -> None:
        length = {"examples": "32", "pairs": "24", "pair table": "24"}.get(kind, "64")
        self._process = subprocess.Popen(
            [sys.executable, "-c", READER, kind, manifest, str(cache), length],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._line() == "ready"

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert line, f"the reader died: exit status {self._process.wait()}"
        return line

    def ask(self, command: str) -> tuple[list[str], str]:
        """Return the digests of the batches that came, and what was said last."""
        self.tell(command)
        said: list[str] = []
        while True:
            line = self._line()
            if line.startswith(("done", "ShardError")):
                return said, line
            said.append(line)

    def tell(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_changes_while_it_is_read(
    kind: str, made: Callable[[str, Path], Path], tmp_path: Path
) -> None:
    file = made(kind, tmp_path / "data")
    content = file.read_bytes()
    with Reader(kind, str(tmp_path / "data" / "manifest.json"), tmp_path / "cache") as reader:
        whole, _ = reader.ask("epoch")
        for change in IN_PLACE:
            file.with_suffix(".whole").write_bytes(content)
            file.with_suffix(".whole").replace(file)
            assert reader.ask("again") == (whole, "done"), change
            by_another_process(change, file)
            found, end = reader.ask("epoch")
            assert found == whole[: len(found)], change
            # An index is in memory as a whole.
            if change in STAYS_READABLE or kind == "image index":
                assert (len(found), end) == (len(whole), "done"), change
            else:
                assert str(file) in end
                assert "restore the file" in end
            # Who opens the file now sees what lies there, and has to say what is wrong with it.
            found, end = reader.ask("again")
            assert found == whole[: len(found)], change
            assert (end == "done") == (change == "touched"), change


@pytest.mark.parametrize("kind", ["tokens", "images"])
def test_a_file_that_changes_in_the_cache(
    kind: str, made: Callable[[str, Path], Path], tmp_path: Path
) -> None:
    file = made(kind, tmp_path / "data")
    cached = tmp_path / "cache" / sha256(file.read_bytes()).hexdigest()
    with (
        serving_folder(tmp_path / "data") as url,
        Reader(kind, f"{url}/manifest.json", tmp_path / "cache") as reader,
    ):
        whole, _ = reader.ask("epoch")
        for change in CHANGES:
            by_another_process(change, cached)
            found, end = reader.ask("epoch")
            assert found == whole[: len(found)], change
            assert end == "done" if change in STAYS_READABLE else str(cached) in end
            assert reader.ask("again") == (whole, "done"), "what is damaged is fetched anew"


@pytest.mark.parametrize("kind", ["tokens", "pairs", "examples", "images"])
def test_a_file_that_shrinks_at_any_moment_is_no_signal(
    kind: str, made: Callable[[str, Path], Path], tmp_path: Path
) -> None:
    chance = random.Random(kind)
    for life in range(2):
        file = made(kind, tmp_path / str(life))
        with Reader(kind, str(file.parent / "manifest.json"), tmp_path / "cache") as reader:
            reader.tell("run")
            time.sleep(chance.uniform(0.0, 0.3))  # any moment will do
            by_another_process(("truncated", "emptied")[life], file)
            _, end = reader.ask("")
            assert str(file) in end
