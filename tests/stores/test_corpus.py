"""A corpus in a bucket or behind http: what is read and built is as from the folder."""

import gzip
import io
import json
import random
import tarfile
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zstandard

from outlast.build.tasks import drive_share
from outlast.cleaning.config import CleaningConfig
from outlast.corpus.config import CorpusConfig
from outlast.corpus.encoding import Tally
from outlast.corpus.extent import CorpusFile
from outlast.corpus.files import find_files
from outlast.corpus.plan import list_corpus, plan_portions
from outlast.corpus.read import read_documents
from outlast.corpus.write import write_corpus
from outlast.errors import ConfigError, CorpusError, StorageError
from outlast.prepare import build
from outlast.prepare.build import prepare_data
from outlast.recipe import Recipe
from outlast.shards.config import ShardsConfig
from outlast.storage import Store, open_store, reader
from outlast.storage.remote import ObjectStore
from outlast.tokenizer.config import TokenizerConfig
from support.canaries import files_of, objects_of
from support.faults import Fault, FaultyProxy
from support.files import serving_folder
from support.gcs import GcsServer
from support.s3 import S3Server

WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "日本語",
    "and",
    "naïve",
    "text",
]
TOKENIZER = TokenizerConfig(vocab_size=300, keep_whitespace=True)
SHARDS = ShardsConfig(num_shards=5, num_processes=1)


def documents(seed: int, count: int = 60) -> list[str]:
    words = random.Random(seed)
    return [" ".join(words.choices(WORDS, k=40)) for _ in range(count)]


def tar_of(texts: list[str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for number, text in enumerate(texts):
            info = tarfile.TarInfo(f"{number}.txt")
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
    return buffer.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("corpus")
    files = {
        "b.txt": "\n\n".join(documents(0)).encode(),
        "a 日本.txt": "\r\n\r\n".join(documents(1)).encode(),
        "sub/c.txt.gz": gzip.compress("\n\n".join(documents(2)).encode(), mtime=0),
        "sub/deep/d.txt.zst": zstandard.compress("\n\n".join(documents(3)).encode()),
        "sub/empty.txt": b"",
        ".hidden": b"hidden",
        "sub/.git/config": b"hidden",
        "packed/z.tar": tar_of(documents(5)),
        "x.jsonl": "\n".join(json.dumps({"text": text}) for text in documents(4)).encode(),
    }
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


@pytest.fixture(params=["s3", "gs"])
def bucket(request: pytest.FixtureRequest, folder: Path) -> str:
    request.getfixturevalue("s3_environment" if request.param == "s3" else "gcs_environment")
    server: S3Server | GcsServer = request.getfixturevalue(
        "s3_server" if request.param == "s3" else "gcs_server"
    )
    return upload(folder, f"{server.new_bucket()}/corpus")


def upload(folder: Path, url: str) -> str:
    store = open_store(url)
    for name, content in files_of(folder).items():
        store.replace(Path(name).relative_to(folder).as_posix(), [content])
    return url


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_FIRST_BYTES", 100)
    monkeypatch.setattr(reader, "_LARGEST_BYTES", 3000)


def described(config: CorpusConfig) -> list[CorpusFile]:
    """The files of a corpus, whatever their place."""
    return [replace(file, path="") for file in list_corpus(config)]


def texts(config: CorpusConfig, num_portions: int) -> list[str]:
    portions = plan_portions(list_corpus(config), num_portions)
    return [text for portion in portions for text in read_documents(config, portion, Tally())]


@pytest.mark.parametrize(
    "path", ["{}", "{}/", "{}/sub", "{}/b.txt", "{}/**/*.txt*", "{}/[ab]*.txt", "{}/sub/*"]
)
def test_the_files_are_those_of_the_folder(folder: Path, bucket: str, path: str) -> None:
    here, there = (CorpusConfig(path=path.format(root), format="text") for root in (folder, bucket))
    assert described(there) == described(here)
    assert {file.path.partition("//")[0] for file in list_corpus(there)} == {bucket.partition("//")[0]}


def test_lists_and_patterns_choose_as_in_the_folder(folder: Path, bucket: str) -> None:
    def names(root: str) -> list[str]:
        paths = [f"{root}/b.txt", root, f"{root}/sub"]
        return [file.name for file in find_files(paths, "**/*.txt", ("**/deep/**", "a*"))]

    assert (
        names(bucket)
        == names(str(folder))
        == [
            "0/b.txt",
            "1/packed/z.tar",  # to be looked into
            "1/sub/empty.txt",
        ]
    )


def test_a_folder_marker_is_no_file(
    folder: Path, s3_server: S3Server, s3_environment: pytest.MonkeyPatch
) -> None:
    url = upload(folder, s3_server.new_bucket())
    marker = f"{s3_server.url}/{url.removeprefix('s3://')}/sub/"
    with urllib.request.urlopen(urllib.request.Request(marker, method="PUT", data=b"")):
        pass
    assert described(CorpusConfig(path=url, format="text")) == described(
        CorpusConfig(path=str(folder), format="text")
    )


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("num_portions", [1, 3, 40])
@pytest.mark.parametrize(
    "options",
    [
        {"exclude": ("*.jsonl",)},
        {"include": "*.jsonl", "format": "jsonl"},
        {"include": "*.txt", "encoding": "auto"},
        {"include": "**/*.txt*", "documents": "file"},
        {"include": "packed/*.tar"},
        {"include": "**/1*.txt", "encoding": "auto"},
    ],
)
def test_the_documents_are_those_of_the_folder_wherever_the_cuts_fall(
    folder: Path, bucket: str, options: dict[str, object], num_portions: int
) -> None:
    here, there = (CorpusConfig(**{"path": str(root), **options}) for root in (folder, bucket))  # pyright: ignore
    assert texts(there, num_portions) == texts(here, num_portions) != []


def test_parquet_in_a_bucket(bucket: str, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"text": documents(5, 300)}), tmp_path / "a.parquet", row_group_size=50)
    open_store(bucket).replace("tables/a.parquet", [(tmp_path / "a.parquet").read_bytes()])
    here, there = (CorpusConfig(path=path, format="parquet") for path in (str(tmp_path), f"{bucket}/tables"))
    assert described(there) == described(here)
    assert texts(there, 4) == documents(5, 300)
    open_store(bucket).replace("tables/a.parquet", [b"PAR1 no PAR1"])
    with pytest.raises(CorpusError, match=r"cannot be read[\s\S]*tables/a.parquet"):
        list_corpus(there)


def test_little_of_a_file_is_asked_for_at_a_time(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = ("word " * 200 + "\n\n").encode() * 20_000  # 20 MB
    open_store(f"{bucket}-large").replace("a.txt", [content])
    asked: list[int] = []
    read_range = ObjectStore.read_range

    def counted(store: ObjectStore, name: str, start: int, length: int) -> bytes:
        asked.append(length)
        return read_range(store, name, start, length)

    monkeypatch.setattr(ObjectStore, "read_range", counted)
    monkeypatch.setattr(ObjectStore, "read", None)
    config = CorpusConfig(path=f"{bucket}-large")
    portions = plan_portions(list_corpus(config), 2)
    assert sum(asked) < 2**20, "the digest reads little"
    asked.clear()
    assert sum(1 for _ in read_documents(config, portions[0], Tally())) == 10_000
    assert max(asked) == 2**22
    assert sum(asked) < len(content) / 2 + 2**23
    assert len(asked) < 20


@pytest.fixture(scope="module")
def built(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a build from the folder into a folder leaves, by name."""
    out = tmp_path_factory.mktemp("built") / "data"
    assert prepare_data(Recipe(corpus=corpus_at(str(folder)), tokenizer=TOKENIZER, shards=SHARDS), out)
    return contents(str(out))


def corpus_at(root: str) -> CorpusConfig:
    return CorpusConfig(path=root, validation_path=f"{root}/b.txt", exclude=("*.jsonl",))


def contents(url: str) -> dict[str, bytes]:
    found = objects_of(url) if "://" in url else files_of(Path(url))
    return {name.removeprefix(f"{url}/"): content for name, content in found.items()}


def test_a_build_from_bucket_to_bucket_by_tasks(bucket: str, built: dict[str, bytes]) -> None:
    corpus, out = corpus_at(bucket), f"{bucket}-out"
    for task in range(2):
        assert (
            prepare_data(Recipe(corpus=corpus, tokenizer=TOKENIZER, shards=SHARDS), out, task=(task, 3))
            is None
        )
    assert (
        prepare_data(Recipe(corpus=corpus, tokenizer=TOKENIZER, shards=SHARDS), out, task=(2, 3))
        == f"{out}/manifest.json"
    )
    assert contents(out) == built


def test_an_object_that_changes_during_a_build_ends_it(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"

    def change(*arguments: Any) -> None:
        drive_share(*arguments)
        store = open_store(bucket)
        store.replace("b.txt", [store.read("b.txt").swapcase()])

    monkeypatch.setattr(build, "drive_share", change)
    with pytest.raises(CorpusError, match=r"has changed[\s\S]*b\.txt[\s\S]*into another folder"):
        prepare_data(Recipe(corpus=corpus_at(bucket), tokenizer=TOKENIZER, shards=SHARDS), out)
    assert not (out / "manifest.json").exists()


def test_the_corpus_as_text(folder: Path, bucket: str, tmp_path: Path) -> None:
    write_corpus(corpus_at(str(folder)), str(tmp_path / "text"), num_files=3)
    write_corpus(corpus_at(bucket), f"{bucket}-text", num_files=3)
    assert contents(f"{bucket}-text") == contents(str(tmp_path / "text"))


@pytest.mark.parametrize("ranges", [True, False])
def test_files_behind_http(
    folder: Path, built: dict[str, bytes], tmp_path: Path, ranges: bool, gcs_server: GcsServer
) -> None:
    def check(url: str) -> None:
        for name, num_portions in (("a%20%E6%97%A5%E6%9C%AC.txt", 7), ("sub/c.txt.gz", 2), ("b.txt", 1)):
            here = CorpusConfig(path=str(folder / urllib.parse.unquote(name)))
            there = CorpusConfig(path=f"{url}/{name}")
            assert described(there) == described(here)
            assert texts(there, num_portions) == texts(here, num_portions) != []
        with pytest.raises(CorpusError, match=r"no such file[\s\S]*gives no list"):
            list_corpus(CorpusConfig(path=f"{url}/sub/"))

    if ranges:
        name = gcs_server.new_bucket().removeprefix("gs://")
        for path, content in files_of(folder).items():
            gcs_server.put(name, Path(path).relative_to(folder).as_posix(), content, None)
        check(f"{gcs_server.url}/{name}")
    else:
        with serving_folder(folder) as url:
            check(url)


def test_a_url_with_a_signature_is_refused_without_showing_it() -> None:
    with pytest.raises(ConfigError) as caught:
        list_corpus(CorpusConfig(path="https://host/a.txt?X-Amz-Signature=secret"))
    assert "https://host/a.txt\n" in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("{}/absent", "no such file, and no object below it"),
        ("{}/*.absent", "No file matches"),
        ("{}-absent/a", "no such file, and no object below it"),
    ],
)
def test_nothing_there_is_an_error(bucket: str, path: str, message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        list_corpus(CorpusConfig(path=path.format(bucket)))


@pytest.fixture
def proxy(s3_server: S3Server, s3_environment: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    """This process reaches S3 through the proxy alone, and is impatient."""
    s3_environment.setattr(Store, "first_pause_seconds", 0.01)
    s3_environment.setattr(Store, "retry_seconds", 5.0)
    s3_environment.setattr(ObjectStore, "silence_seconds", 1.0)
    with FaultyProxy(s3_server.host, s3_server.port) as between:
        s3_environment.setenv("AWS_ENDPOINT_URL", between.url)
        yield between


def of_corpus(name: str) -> Callable[[str, str], bool]:
    return lambda method, path: method in ("GET", "HEAD") and f"/corpus/{name}" in path


@pytest.mark.parametrize("fault", ["503", "429", "reset", "short"])
def test_requests_that_fail_are_repeated(
    folder: Path, s3_server: S3Server, proxy: FaultyProxy, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_LARGEST_BYTES", 2000)
    monkeypatch.setattr(reader, "_FIRST_BYTES", 1000)
    url = upload(folder, f"{s3_server.new_bucket()}/corpus")
    expected = texts(corpus_at(str(folder)), 3)
    proxy.inject(lambda number: fault if number % 6 == 0 else None, matching=of_corpus(""))
    assert texts(corpus_at(url), 3) == expected
    assert len(proxy.injected) > 10


@pytest.mark.parametrize("cleaning", [CleaningConfig(), CleaningConfig(duplicates="exact")])
@pytest.mark.parametrize(("fault", "message"), [("403", "denies access"), ("503", "does not answer")])
def test_a_file_that_cannot_be_read_is_named_and_the_rest_is_kept(
    folder: Path,
    s3_server: S3Server,
    s3_environment: pytest.MonkeyPatch,
    proxy: FaultyProxy,
    tmp_path: Path,
    cleaning: CleaningConfig,
    fault: Fault,
    message: str,
) -> None:
    bucket = s3_server.new_bucket()
    corpus = replace(corpus_at(upload(folder, f"{bucket}/corpus")), validation_path=None)
    whole = str(tmp_path / "whole")
    here = replace(corpus, path=str(folder))
    prepare_data(Recipe(corpus=here, tokenizer=TOKENIZER, shards=SHARDS, cleaning=cleaning), whole)
    existing = TokenizerConfig(path=f"{whole}/tokenizer")
    s3_environment.setattr(Store, "retry_seconds", 0.2)
    proxy.inject((), matching=of_corpus("sub/deep"))
    list_corpus(corpus)
    num_reads = len(proxy.seen)  # the file can be listed, and not read afterwards
    proxy.inject(lambda number: fault if number >= num_reads else None, matching=of_corpus("sub/deep"))
    out = f"{bucket}/out"
    with pytest.raises(
        StorageError, match=rf"1 of 5 portions failed[\s\S]*{message}[\s\S]*sub/deep/d.txt.zst"
    ):
        prepare_data(Recipe(corpus=corpus, tokenizer=existing, shards=SHARDS, cleaning=cleaning), out)
    records = "cleaning/scan/" if cleaning.needs_scan else "done/"
    done = [info for info in open_store(out).list(records) if info.name.endswith(".json")]
    assert len(done) == 4
    proxy.come_up()
    proxy.inject((), matching=lambda method, path: method == "PUT" and records in path)
    assert prepare_data(Recipe(corpus=corpus, tokenizer=existing, shards=SHARDS, cleaning=cleaning), out)
    assert len([path for _, path in proxy.seen if path.endswith(".json")]) == 1, "only what was missing"
    ours, theirs = contents(out), contents(whole)
    assert ours.pop("plan.json") != theirs.pop("plan.json"), "here the tokenizer was given"
    assert ours == {**theirs, "manifest.json": ours["manifest.json"]}
