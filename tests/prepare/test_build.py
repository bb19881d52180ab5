"""From raw text to a manifest: the same bytes whoever builds, however often it is killed."""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from outlast.corpus.aozora import read_aozora
from outlast.corpus.config import CorpusConfig
from outlast.corpus.sentences import split_sentences
from outlast.errors import ConfigError, CorpusError, ShardError, TokenizerError
from outlast.prepare.build import prepare_data
from outlast.recipe import Recipe
from outlast.shards.config import ShardsConfig, resolve_num_shards
from outlast.shards.manifest import read_manifest
from outlast.shards.read import open_shard
from outlast.shards.verify import verify_manifest
from outlast.storage import LocalStore
from outlast.tokenizer.config import TokenizerConfig
from outlast.tokenizer.encode import load_tokenizer

TOKENIZER = TokenizerConfig(vocab_size=310, keep_whitespace=True)
ONE_PROCESS = ShardsConfig(num_shards=5, num_processes=1)
TEXT = "the quick brown fox jumps over a lazy dog while seven wizards quietly mix 日本語 and naïve text"
WORDS = TEXT.split()
BOOK = "3786_ruby_27249.txt"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> CorpusConfig:
    folder = tmp_path_factory.mktemp("corpus")
    random_words = random.Random(5)
    for number in range(3):
        documents = [" ".join(random_words.choices(WORDS, k=40)) for _ in range(200)]
        (folder / f"{number}.txt").write_text("\n\n".join(documents), encoding="utf-8")
    return CorpusConfig(path=str(folder), validation_fraction=0.1)


def recipe(
    corpus: CorpusConfig, tokenizer: TokenizerConfig = TOKENIZER, shards: ShardsConfig = ONE_PROCESS
) -> Recipe:
    return Recipe(corpus=corpus, tokenizer=tokenizer, shards=shards)


@pytest.fixture(scope="module")
def built(corpus: CorpusConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out") / "data"
    assert prepare_data(recipe(corpus), out) == f"{out}/manifest.json"
    return out


def files_of(folder: Path) -> dict[str, str]:
    """The digest of every file, the leftovers of killed writers aside."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(".tmp-")
    }


def documents_of(out: Path, split: str) -> list[str]:
    manifest, store = read_manifest(str(out / "manifest.json"))
    tokenizer = load_tokenizer(store, "tokenizer")
    shards = [open_shard(out / entry.name) for entry in manifest.shards(split)]
    return [tokenizer.decode(shard.document(d)) for shard in shards for d in range(shard.num_documents)]


def test_every_document_arrives_once_and_held_out_ones_stay_apart(corpus: CorpusConfig, built: Path) -> None:
    assert verify_manifest(str(built / "manifest.json")) == []
    texts = [path.read_text(encoding="utf-8") for path in sorted(Path(str(corpus.path)).iterdir())]
    expected = [document for text in texts for document in text.split("\n\n")]
    train, validation = documents_of(built, "train"), documents_of(built, "validation")
    assert sorted(train + validation) == sorted(expected)
    assert 30 <= len(validation) <= 90
    manifest, _ = read_manifest(str(built / "manifest.json"))
    assert manifest.provenance["counts"]["train"]["text_bytes"] == sum(len(text.encode()) for text in train)
    assert manifest.tokenizer.special_ids["sep"] == 3
    assert str(built) not in (built / "manifest.json").read_text()
    assert str(corpus.path) not in (built / "manifest.json").read_text() + (built / "plan.json").read_text()


def test_sentences_are_encoded_apart_and_told_by_the_shards(
    corpus: CorpusConfig, built: Path, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("one line\nanother line\n\nthe next document", encoding="utf-8")
    config = CorpusConfig(path=str(tmp_path / "a.txt"), sentences="lines", validation_fraction=0)
    one_shard = ShardsConfig(num_shards=1, num_processes=1)
    prepare_data(recipe(config, TokenizerConfig(path=str(built / "tokenizer")), one_shard), tmp_path / "out")
    manifest, store = read_manifest(str(tmp_path / "out" / "manifest.json"))
    [entry] = manifest.shards("train")
    assert (manifest.has_sentences, entry.num_sentences, entry.num_documents) == (True, 3, 2)
    tokenizer = load_tokenizer(store, "tokenizer")
    shard = open_shard(tmp_path / "out" / entry.name)
    found = [[tokenizer.decode(sentence) for sentence in shard.sentences(d)] for d in range(2)]
    assert found == [["one line\n", "another line"], ["the next document"]]
    alone = [tokenizer.encode(sentence).tolist() for sentence in found[0]]
    assert [part.tolist() for part in shard.sentences(0)] == alone
    assert verify_manifest(str(tmp_path / "out" / "manifest.json")) == []
    assert not read_manifest(str(built / "manifest.json"))[0].has_sentences


@pytest.mark.parametrize("encoding", ["cp932", "euc_jp", "utf-16", "utf-8-sig"])
def test_books_in_old_encodings_become_sentences(
    built: Path, tmp_path: Path, test_data: Path, encoding: str
) -> None:
    source = test_data / "text-ja-aozora-sjis" / "akutagawa" / BOOK
    text = source.read_bytes().decode("cp932")
    (tmp_path / "book.txt").write_bytes(text.encode(encoding))
    config = CorpusConfig(
        path=str(tmp_path / "book.txt"),
        encoding="auto",
        documents="file",
        markup="aozora",
        keep_titles=False,
        sentences="rules",
        validation_fraction=0,
    )
    one_shard = ShardsConfig(num_shards=1, num_processes=1)
    prepare_data(recipe(config, TokenizerConfig(path=str(built / "tokenizer")), one_shard), tmp_path / "out")
    manifest, store = read_manifest(str(tmp_path / "out" / "manifest.json"))
    tokenizer = load_tokenizer(store, "tokenizer")
    shard = open_shard(tmp_path / "out" / manifest.shards("train")[0].name)
    expected = read_aozora(text.replace("\r\n", "\n"), keep_titles=False, ruby="base")
    assert [tokenizer.decode(part) for part in shard.sentences(0)] == split_sentences(expected)
    assert shard.num_sentences == len(split_sentences(expected)) > 10


def test_the_number_of_processes_changes_nothing(corpus: CorpusConfig, built: Path, tmp_path: Path) -> None:
    prepare_data(recipe(corpus, shards=ShardsConfig(num_shards=5, num_processes=3)), tmp_path / "out")
    assert files_of(tmp_path / "out") == files_of(built)


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1)])
def test_tasks_share_the_work_and_the_last_one_finishes(
    corpus: CorpusConfig, built: Path, tmp_path: Path, order: tuple[int, ...]
) -> None:
    urls = [prepare_data(recipe(corpus), tmp_path, task=(task, 3)) for task in order]
    assert urls == [None, None, f"{tmp_path}/manifest.json"]
    assert files_of(tmp_path) == files_of(built)


def test_a_task_waits_for_the_tokenizer_and_gives_up(corpus: CorpusConfig, tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"no tokenizer after 0 seconds[\s\S]*--task 0/2"):
        prepare_data(
            recipe(corpus),
            tmp_path,
            task=(1, 2),
            tokenizer_wait_seconds=0.01,
        )


def test_finished_portions_are_not_built_again(corpus: CorpusConfig, built: Path, tmp_path: Path) -> None:
    prepare_data(recipe(corpus), tmp_path)
    (tmp_path / "manifest.json").unlink()
    (tmp_path / "done" / "00002.json").unlink()
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.safetensors")}
    prepare_data(recipe(corpus), tmp_path)
    changed = {path.name for path, time_ns in kept.items() if path.stat().st_mtime_ns != time_ns}
    assert changed == {"train-00002-of-00005.safetensors", "validation-00002-of-00005.safetensors"}
    assert files_of(tmp_path) == files_of(built)


def test_an_existing_tokenizer_is_copied(corpus: CorpusConfig, built: Path, tmp_path: Path) -> None:
    path = TokenizerConfig(path=str(built / "tokenizer"))
    prepare_data(recipe(corpus, path), tmp_path / "out")
    ours, theirs = files_of(tmp_path / "out"), files_of(built)
    assert ours.pop("plan.json") != theirs.pop("plan.json")
    assert ours == {**theirs, "manifest.json": ours["manifest.json"]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: ({"seed": 1}, ONE_PROCESS, TOKENIZER), "corpus.seed: 0 there, 1 now"),
        (
            lambda c: ({}, ShardsConfig(num_shards=6, num_processes=1), TOKENIZER),
            "num_shards: 5 there, 6 now",
        ),
        (
            lambda c: ({}, ONE_PROCESS, TokenizerConfig(vocab_size=400)),
            "tokenizer.vocab_size: 310 there, 400 now",
        ),
        (
            lambda c: ({"path": f"{c.path}/0.txt"}, ONE_PROCESS, TOKENIZER),
            r"files\.1\.txt: .* there, nothing now",
        ),
    ],
)
def test_another_corpus_or_configuration_is_refused(
    corpus: CorpusConfig,
    built: Path,
    change: Callable[[CorpusConfig], tuple[dict[str, object], ShardsConfig, TokenizerConfig]],
    message: str,
) -> None:
    before = files_of(built)
    different, shards, tokenizer = change(corpus)
    config = CorpusConfig(**{"path": corpus.path, "validation_fraction": 0.1, **different})  # pyright: ignore
    with pytest.raises(
        ShardError,
        match=message + r"[\s\S]*choose another --out, or delete the folder; where",
    ):
        prepare_data(recipe(config, tokenizer, shards), built)
    assert files_of(built) == before


def test_a_copy_of_the_corpus_elsewhere_is_the_same_corpus(
    corpus: CorpusConfig, built: Path, tmp_path: Path
) -> None:
    for path in Path(str(corpus.path)).iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = CorpusConfig(path=str(tmp_path), validation_fraction=0.1)
    assert prepare_data(recipe(config), built) == f"{built}/manifest.json"


@pytest.mark.parametrize("num_processes", [1, 2])
def test_a_failed_portion_is_named_and_the_others_are_kept(
    corpus: CorpusConfig, built: Path, tmp_path: Path, num_processes: int
) -> None:
    lines = [json.dumps({"text": f"line {number} " + " ".join(WORDS)}) for number in range(60)]
    lines[33] = '{"text": 5}'
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(lines))
    config = CorpusConfig(path=str(path), format="jsonl")
    tokenizer = TokenizerConfig(path=str(built / "tokenizer"))
    shards = ShardsConfig(num_shards=5, num_processes=num_processes)
    message = r"1 of 5 portions failed \(2\)[\s\S]*'text' is int[\s\S]*line 34[\s\S]*same command again"
    with pytest.raises(CorpusError, match=message):
        prepare_data(recipe(config, tokenizer, shards), tmp_path / "out")
    assert sorted(os.listdir(tmp_path / "out" / "done")) == [
        f"0000{portion}.json" for portion in (0, 1, 3, 4)
    ]
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_an_exchanged_tokenizer_is_refused(corpus: CorpusConfig, tmp_path: Path) -> None:
    prepare_data(recipe(corpus), tmp_path, task=(0, 2))
    for path in (tmp_path / "tokenizer").iterdir():
        path.unlink()
    other = CorpusConfig(path=str(Path(str(corpus.path)) / "0.txt"))
    prepare_data(recipe(other), tmp_path / "other")
    for path in (tmp_path / "other" / "tokenizer").iterdir():
        (tmp_path / "tokenizer" / path.name).write_bytes(path.read_bytes())
    with pytest.raises(ShardError, match="was made with the tokenizer"):
        prepare_data(recipe(corpus), tmp_path, task=(1, 2))


def test_a_held_out_corpus_of_its_own(corpus: CorpusConfig, tmp_path: Path) -> None:
    (tmp_path / "held.txt").write_text("one held-out text\n\nanother held-out text")
    config = CorpusConfig(path=corpus.path, validation_path=str(tmp_path / "held.txt"))
    prepare_data(recipe(config), tmp_path / "out")
    assert documents_of(tmp_path / "out", "validation") == ["one held-out text", "another held-out text"]
    assert len(documents_of(tmp_path / "out", "train")) == 600


def test_a_corpus_of_blank_lines_is_refused(built: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(" \n\n\t\n" * 10)
    tokenizer = TokenizerConfig(path=str(built / "tokenizer"))
    with pytest.raises(CorpusError, match="no document to train on"):
        prepare_data(recipe(CorpusConfig(path=str(tmp_path / "a.txt")), tokenizer), tmp_path / "out")


def test_replaced_bytes_are_counted_and_listed(built: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"good text\n\nbad \xff\xfe text\n\nmore \xc3")
    config = CorpusConfig(path=str(tmp_path / "a.txt"), undecodable="replace", validation_fraction=0)
    prepare_data(recipe(config, TokenizerConfig(path=str(built / "tokenizer"))), tmp_path / "out")
    manifest, _ = read_manifest(str(tmp_path / "out" / "manifest.json"))
    assert manifest.provenance["undecodable_bytes"] == 3
    assert manifest.provenance["undecodable"] == [["a.txt", 15, 1], ["a.txt", 16, 1], ["a.txt", 29, 1]]


RUN = """
import sys
from outlast.corpus.config import CorpusConfig
from outlast.prepare.build import prepare_data
from outlast.recipe import Recipe
from outlast.shards.config import ShardsConfig
from outlast.tokenizer.config import TokenizerConfig

if __name__ == "__main__":
    path, out, num_processes = sys.argv[1:]
    recipe = Recipe(
        corpus=CorpusConfig(path=path, validation_fraction=0.1),
        tokenizer=TokenizerConfig(vocab_size=310, keep_whitespace=True),
        shards=ShardsConfig(num_shards=5, num_processes=int(num_processes)),
    )
    prepare_data(recipe, out)
"""


@pytest.mark.parametrize(("num_processes", "num_kills"), [(1, 6), (2, 4)])
def test_killed_at_random_moments_it_ends_with_the_same_bytes(
    corpus: CorpusConfig, built: Path, tmp_path: Path, num_processes: int, num_kills: int
) -> None:
    script = tmp_path / "run.py"
    script.write_text(RUN)
    out = tmp_path / "out"
    command = [sys.executable, str(script), str(corpus.path), str(out), str(num_processes)]
    moments = random.Random(num_processes)
    num_killed = 0
    for number in range(num_kills):
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        wait_for_progress(process, out, moments.randrange(len(files_of(built))), number)
        process.send_signal(signal.SIGKILL)
        num_killed += process.wait() == -signal.SIGKILL
    assert num_killed
    assert subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0
    assert files_of(out) == files_of(built)
    assert not list(out.rglob(".tmp-*"))


def wait_for_progress(process: subprocess.Popen[bytes], out: Path, num_files: int, number: int) -> None:
    """Wait until the build has got so far, or has ended; then a little, so that kills fall within a write
    too."""
    while process.poll() is None and (len(list(out.rglob("*"))) if out.exists() else 0) < num_files:
        time.sleep(0.001)
    time.sleep(0.003 * number)


def test_the_children_die_with_their_parent(corpus: CorpusConfig, tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(RUN)
    command = [sys.executable, str(script), str(corpus.path), str(tmp_path / "out"), "2"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    children: set[int] = set()
    while process.poll() is None and not children:
        children = {pid for pid in all_processes() if parent_of(pid) == process.pid}
    process.kill()
    process.wait()
    deadline = time.monotonic() + 60
    while any(is_alive(child) for child in children):
        assert time.monotonic() < deadline, "a child outlived its parent"
        time.sleep(0.05)


def all_processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def parent_of(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ((0, 2), r"all portions by itself[\s\S]*leave out --task"),
        (None, r"ray is not installed[\s\S]*outlast\[ray\]"),
    ],
)
def test_ray_shares_out_alone_and_must_be_there(
    corpus: CorpusConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    task: tuple[int, int] | None,
    message: str,
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=message):
        prepare_data(recipe(corpus), tmp_path, task=task, ray="auto")


def test_the_default_number_of_shards() -> None:
    sizes = {1: 1, 2**20: 1, 3 * 2**20: 3, 10**8: 16, 2**32: 16, 2**33: 32}
    assert {size: resolve_num_shards(ShardsConfig(), size) for size in sizes} == sizes
    assert resolve_num_shards(ShardsConfig(num_shards=7), 1) == 7


def test_a_real_japanese_corpus(test_data: Path, tmp_path: Path) -> None:
    path = test_data / "text-ja-kyoto-wikipedia" / "train-00.jsonl"
    config = CorpusConfig(path=str(path), format="jsonl")
    tokenizer = TokenizerConfig(vocab_size=3000, sample_bytes=300_000)
    url = prepare_data(recipe(config, tokenizer, ShardsConfig(num_processes=1)), tmp_path)
    assert url is not None
    assert verify_manifest(url) == []
    manifest, _ = read_manifest(url)
    texts = [json.loads(line)["text"] for line in path.read_text(encoding="utf-8").splitlines()]
    counts = manifest.provenance["counts"]
    assert sum(counts[split]["documents"] for split in counts) == len(texts) == 638
    assert sum(counts[split]["text_bytes"] for split in counts) == sum(len(text.encode()) for text in texts)
    assert len(manifest.shards("train")) == 3
    LocalStore(tmp_path).read("tokenizer/manifest.json")
