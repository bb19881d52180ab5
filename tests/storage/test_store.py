"""Stores: one contract for folders, S3 and Azure, and what each kind owes beyond it."""

import http.client
import http.server
import ipaddress
import socket
import threading
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from outlast.errors import (
    ConfigError,
    ObjectExists,
    ObjectNotFound,
    StorageError,
    StoreUnreachable,
)
from outlast.storage import Chunks, LocalStore, Store, local_place, open_store, place_of, split_url
from outlast.storage.addresses import is_forbidden, resolve
from outlast.storage.http import HttpStore
from outlast.storage.remote import ObjectStore
from support.azure import AzureServer, azure_variables
from support.files import serving

SECRET = "canary-secret-key"


@pytest.fixture(scope="module")
def s3_endpoint() -> Iterator[str]:
    moto_server = pytest.importorskip("moto.server", reason="moto is not installed: no S3 server to test on")
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    with urllib.request.urlopen(urllib.request.Request(f"{url}/bucket", method="PUT")):
        pass
    yield url
    server.stop()


@pytest.fixture
def s3_environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name, value in {
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "canary-id",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


@pytest.fixture(params=["local", "s3", "azure"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    if request.param == "local":
        return LocalStore(tmp_path / "run")
    if request.param == "azure":
        server: AzureServer = request.getfixturevalue("azure_server")
        for name, value in azure_variables(server).items():
            monkeypatch.setenv(name, value)
        return open_store(f"{server.new_container()}/run")
    request.getfixturevalue("s3_environment").setenv(
        "AWS_ENDPOINT_URL", request.getfixturevalue("s3_endpoint")
    )
    return open_store(f"s3://bucket/{tmp_path.name}")


def test_what_was_written_is_read(store: Store) -> None:
    store.create("a/b.json", [b"hello ", memoryview(b"world")])
    assert store.read("a/b.json") == b"hello world"
    assert store.read_range("a/b.json", 6, 5) == b"world"
    assert store.read_range("a/b.json", 6, 0) == b""
    assert store.size_bytes("a/b.json") == 11
    assert store.exists("a/b.json")


def test_create_never_overwrites_and_replace_does(store: Store) -> None:
    store.create("name", [b"first"])
    with pytest.raises(ObjectExists):
        store.create("name", [b"second"])
    assert store.read("name") == b"first"
    store.replace("name", [b"third"])
    assert store.read("name") == b"third"


def test_an_absent_object_is_said_to_be_absent(store: Store) -> None:
    for ask in (store.read, store.size_bytes, lambda name: store.read_range(name, 0, 1)):
        with pytest.raises(ObjectNotFound):
            ask("absent")
    assert not store.exists("absent")
    store.delete("absent")


def test_a_short_object_is_no_answer_to_a_range(store: Store) -> None:
    store.create("short", [b"12345"])
    for start in (3, 5, 50):
        with pytest.raises(StorageError) as caught:
            store.read_range("short", start, 10)
        assert not isinstance(caught.value, StoreUnreachable)


def test_list_is_sorted_and_by_prefix(store: Store) -> None:
    for name in ("data/1/7-b/part", "data/1/12-a/part", "data/2/7-c/part", "commits/x"):
        store.create(name, [name.encode()])
    assert [info.name for info in store.list()] == [
        "commits/x",
        "data/1/12-a/part",
        "data/1/7-b/part",
        "data/2/7-c/part",
    ]
    assert [info.name for info in store.list("data/1/")] == ["data/1/12-a/part", "data/1/7-b/part"]
    assert [info.name for info in store.list("data/1/7-")] == ["data/1/7-b/part"]
    assert store.list("absent/") == []
    assert store.list("data/2/")[0].size_bytes == len("data/2/7-c/part")


def test_names_do_not_leave_the_url(store: Store) -> None:
    with pytest.raises(StorageError):
        store.create("../outside", [b"x"])
    with pytest.raises(StorageError):
        store.read("../outside")


def test_create_or_confirm_tells_its_own_write_from_anothers(store: Store) -> None:
    store.create_or_confirm("claim", [b"mine ", b"alone"])
    store.create_or_confirm("claim", [b"mine alone"])
    for other in (b"mine alonE", b"mine", b"mine alone too"):
        with pytest.raises(ObjectExists):
            store.create_or_confirm("claim", [other])
    store.create_or_confirm("empty", [])
    store.create_or_confirm("empty", [])


def test_one_of_many_creators_wins(store: Store) -> None:
    winners: list[int] = []

    def create(number: int) -> None:
        try:
            store.create_or_confirm("claim", [str(number).encode()])
            winners.append(number)
        except ObjectExists:
            pass

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if isinstance(store, ObjectStore):
        assert store.read("claim").decode() in {str(number) for number in winners}
    else:
        assert [store.read("claim").decode()] == [str(number) for number in winners]


class LosingStore(LocalStore):
    """Loses the answer of a write, with or without the write."""

    retry_seconds = 5.0
    first_pause_seconds = 0.001
    answers: list[str]

    def create(self, name: str, content: Chunks) -> None:
        fate = self.answers.pop(0) if self.answers else "ok"
        if fate != "not written":
            super().create(name, content)
        if fate != "ok":
            raise StoreUnreachable("the answer was lost")


@pytest.mark.parametrize("answers", [["written"], ["not written"], ["not written", "not written", "written"]])
def test_a_lost_answer_is_no_failure(tmp_path: Path, answers: list[str]) -> None:
    store = LosingStore(tmp_path)
    store.answers = list(answers)
    store.create_or_confirm("name", [b"content"])
    assert store.read("name") == b"content"


def test_a_store_that_stays_away_is_unreachable(tmp_path: Path) -> None:
    store = LosingStore(tmp_path)
    store.answers = ["not written"] * 100_000
    store.retry_seconds = 0.05
    with pytest.raises(StoreUnreachable):
        store.create_or_confirm("name", [b"content"])


def test_s3_down_is_unreachable_and_no_secret_is_printed(s3_environment: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        s3_environment.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free.getsockname()[1]}")
    s3_environment.setattr(ObjectStore, "retry_seconds", 0.2)
    store = open_store("s3://bucket/run")
    for ask in (store.read, store.delete, store.list, lambda name: store.create(name, [b"x"])):
        with pytest.raises(StoreUnreachable) as caught:
            ask("name")
        assert SECRET not in str(caught.value)


def test_an_outage_delays_and_does_not_fail(s3_endpoint: str, s3_environment: pytest.MonkeyPatch) -> None:
    """The first answers are 503; the same call goes on to succeed."""
    s3_environment.setattr(ObjectStore, "retry_seconds", 20.0)
    host, _, port = s3_endpoint.removeprefix("http://").partition(":")
    failures = iter([503, 500, 429])

    class Proxy(http.server.BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status, tag = next(failures, None), ""
            if status is None:
                connection = http.client.HTTPConnection(host, int(port))
                connection.request("PUT", self.path, body, dict(self.headers.items()))
                answer = connection.getresponse()
                status, tag = answer.status, answer.headers.get("ETag", "")
                connection.close()
            self.send_response(status)
            self.send_header("ETag", tag)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with serving(Proxy) as url:
        s3_environment.setenv("AWS_ENDPOINT_URL", url)
        open_store("s3://bucket/outage").create_or_confirm("name", [b"content"])
    s3_environment.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    assert open_store("s3://bucket/outage").read("name") == b"content"
    assert next(failures, None) is None


def test_a_missing_bucket_is_named(s3_endpoint: str, s3_environment: pytest.MonkeyPatch) -> None:
    s3_environment.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    with pytest.raises(StorageError, match="check that the bucket exists") as caught:
        open_store("s3://no-such-bucket/run").create("name", [b"x"])
    assert not isinstance(caught.value, ObjectNotFound | StoreUnreachable)


class QuietFiles(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


def test_http_reads_and_never_writes(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "shard one").write_bytes(bytes(range(256)) * 4)
    with serving(partial(QuietFiles, directory=str(tmp_path))) as url:
        store = open_store(f"{url}/data")
        assert store.read("shard one") == bytes(range(256)) * 4
        assert store.read_range("shard one", 250, 10) == bytes([250, 251, 252, 253, 254, 255, 0, 1, 2, 3])
        assert store.size_bytes("shard one") == 1024
        with pytest.raises(ObjectNotFound):
            store.read("absent")
        with pytest.raises(StorageError, match="ends early"):
            store.read_range("shard one", 1020, 10)
        for act in (store.delete, store.list, lambda name: store.create(name, [b""])):
            with pytest.raises(StorageError, match="An http store cannot be"):
                act("shard one")


class Awkward(QuietFiles):
    """Fails first, cuts bodies short, redirects to where nobody may go."""

    failures: Iterator[int]

    def do_GET(self) -> None:
        if self.path == "/redirect":
            self.send_response(302)
            self.send_header("Location", "http://[::ffff:169.254.169.254]/latest/meta-data")
            self.end_headers()
            return
        status = next(self.failures, 200)
        self.send_response(status)
        self.send_header("Content-Length", "10")
        self.end_headers()
        self.wfile.write(b"0123456789" if status == 200 and next(self.failures, 0) == 0 else b"012")


def test_http_repeats_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HttpStore, "first_pause_seconds", 0.001)
    monkeypatch.setattr(Awkward, "failures", iter([503, 429, 200, 1, 200]), raising=False)
    with serving(Awkward) as url:
        assert open_store(url).read("name") == b"0123456789"


def test_a_redirect_to_a_metadata_server_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HttpStore, "retry_seconds", 0.0)
    with serving(Awkward) as url, pytest.raises(StorageError, match="never contacted"):
        open_store(url).read("redirect")


@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254",
        "169.254.0.1",
        "2852039166",
        "0251.0376.0251.0376",
        "0xa9fea9fe",
        "0xa9.254.43518",
        "[::ffff:169.254.169.254]",
        "[::ffff:a9fe:a9fe]",
        "[fe80::1]",
        "[fd00:ec2::254]",
        "[64:ff9b::169.254.169.254]",
        "[2002:a9fe:a9fe::1]",
        "100.100.100.200",
    ],
)
def test_metadata_addresses_are_refused_in_every_spelling(host: str) -> None:
    for scheme in ("http", "https"):
        with pytest.raises(ConfigError, match="never contacted"):
            open_store(f"{scheme}://{host}/latest")


def test_a_name_that_stands_for_a_metadata_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the name was harmless when it was first looked up."""
    answers = iter(["127.0.0.1", "169.254.169.254"])

    def lookup(host: str, port: int, **_: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (next(answers), port))]

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    store = open_store("http://rebinding.example/data")
    with pytest.raises(StorageError, match="never contacted"):
        store.read("name")


def test_loopback_is_allowed() -> None:
    assert resolve("127.0.0.1", 80)
    assert not is_forbidden("::1")
    assert is_forbidden(str(ipaddress.ip_address("224.0.0.1")))


@pytest.mark.parametrize(
    "url",
    ["ftp://host/x", "ftp://user:canary@host/x", "https://user:canary@host/x", "https://host/x?sig=canary"],
)
def test_urls_that_cannot_be_opened_are_refused_without_repeating_a_password(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_store(url)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("url", ["", "file://"])
def test_an_empty_name_is_not_the_current_folder(url: str) -> None:
    with pytest.raises(ConfigError, match=r"is empty[\s\S]*shell variables"):
        open_store(url)


def test_a_pipe_is_only_a_path() -> None:
    assert isinstance(open_store("pipe:ls"), LocalStore)


def test_split_url() -> None:
    assert split_url("s3://bucket/data/manifest.json") == ("s3://bucket/data", "manifest.json")
    assert split_url("manifest.json") == (".", "manifest.json")


def test_a_path_that_was_a_url_is_refused() -> None:
    """A Path makes one / of two: what it names is a local folder called "s3:"."""
    for place in (Path("s3://bucket/data"), Path("https://host/data")):
        with pytest.raises(ConfigError, match=r"A Path cannot hold a URL[\s\S]*as text: (s3|https)://"):
            open_store(place)
    assert place_of(Path("s3/data")) == "s3/data"
    assert place_of("s3://bucket/data") == "s3://bucket/data"


def test_what_must_be_local_is_no_url() -> None:
    with pytest.raises(ConfigError, match=r"must lie on this machine[\s\S]*s3://bucket/model"):
        local_place("s3://bucket/model")
    assert local_place("file:///models/a") == local_place(Path("/models/a")) == Path("/models/a")
