"""Http as it is met: addresses of every spelling, proxies that answer beside the question, outages."""

import gzip
import http.server
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outlast.errors import ConfigError, ObjectNotFound, StorageError, StoreUnreachable
from outlast.storage import Store, open_store
from outlast.storage import remote as remote_module
from support.files import serving, serving_folder

CONTENT = bytes(range(256)) * 8
Answer = tuple[int, bytes, dict[str, str]]


def answering(answers: list[Answer], paths: list[str] | None = None) -> Callable[..., Any]:
    """Return a handler that gives these answers, the last one again and again."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if paths is not None:
                paths.append(self.path)
            status, body, headers = answers.pop(0) if len(answers) > 1 else answers[0]
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


def part(start: int, length: int) -> Answer:
    where = {"Content-Range": f"bytes {start}-{start + length - 1}/{len(CONTENT)}"}
    return 206, CONTENT[start : start + length], where


PACKED: Answer = (200, gzip.compress(CONTENT), {"Content-Encoding": "gzip"})


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "first_pause_seconds", 0.001)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:abc/d",
        "http://[::1/d",
        "http://127.0.0.1:99999/d",
        "http:///d",
        "http://日本.example/d",
    ],
)
def test_an_address_that_cannot_be_read_is_a_named_error(url: str) -> None:
    with pytest.raises(ConfigError, match="cannot be read from"):
        open_store(url)


@pytest.mark.parametrize(("folder", "written"), [("日本 語", "日本 語"), ("a b", "a%20b")])
def test_a_path_may_hold_any_character(tmp_path: Path, folder: str, written: str) -> None:
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "shard").write_bytes(CONTENT)
    with serving_folder(tmp_path) as url:
        assert open_store(f"{url}/{written}").read("shard") == CONTENT


def test_a_range_from_elsewhere_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(answering([part(0, 20), part(300, 20)])) as url:
        assert open_store(url).read_range("name", 300, 20) == CONTENT[300:320]
    monkeypatch.setattr(Store, "retry_seconds", 0.0)
    with serving(answering([part(0, 20)])) as url, pytest.raises(StoreUnreachable, match="bytes 0-19"):
        open_store(url).read_range("name", 300, 20)


def test_an_encoded_answer_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(answering([PACKED, (200, CONTENT, {})])) as url:
        assert open_store(url).read("name") == CONTENT
    monkeypatch.setattr(Store, "retry_seconds", 0.0)
    with serving(answering([PACKED])) as url:
        store = open_store(url)
        for ask in (store.read, store.size_bytes, store.open):
            with pytest.raises(StoreUnreachable, match="encoded as gzip"):
                ask("name")
        # Servers say this of files that lie there compressed, too: then these bytes are the object.
        assert store.read("name.gz") == PACKED[1]


class Left(Exception):
    """The caller of ``retry`` lost interest."""


def leave(seconds: float) -> None:
    raise Left


@pytest.mark.parametrize("scheme", ["http", "s3"])
def test_an_outage_is_waited_for_in_one_place_which_can_be_left(
    monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    """A ``retry`` around a read is the only one: it hears of the first failure, or soon after."""
    asked: list[str] = []
    monkeypatch.setattr(remote_module, "_RANGE_SECONDS", 0.05)
    with serving(answering([(503, b"", {})], asked)) as url:
        if scheme == "s3":
            names = {"AWS_ENDPOINT_URL": url, "AWS_ALLOW_HTTP": "true", "AWS_ACCESS_KEY_ID": "id"}
            for name, value in {**names, "AWS_SECRET_ACCESS_KEY": "key", "AWS_REGION": "us-east-1"}.items():
                monkeypatch.setenv(name, value)
        store = open_store("s3://bucket/data" if scheme == "s3" else url)
        asks: list[Callable[[], object]] = [lambda: store.read_range("name", 0, 5)]
        if scheme == "http":
            asks += [lambda: store.read("name"), lambda: store.size_bytes("name"), lambda: store.open("name")]
        for ask in asks:
            asked.clear()
            with pytest.raises(Left):
                store.retry(ask, pause=leave)
            assert 1 <= len(asked) <= (1 if scheme == "http" else 3)


@pytest.mark.parametrize(
    "place", ["http://[bad", "http://\xff.\xad/x", "ftp://127.0.0.1/x", "file:///etc/passwd"]
)
def test_a_redirect_to_what_is_no_address_is_an_error_in_words(
    monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr(Store, "retry_seconds", 0.0)
    with serving(answering([(302, b"", {"Location": place})])) as url, pytest.raises(StorageError):
        open_store(url).read("name")


def test_a_size_of_thousands_of_digits_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "retry_seconds", 0.0)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "9" * 5000)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with serving(Handler) as url, pytest.raises(StorageError, match=r"the size[\s\S]*name the local one"):
        open_store(url).size_bytes("name")


def test_a_name_that_is_no_unicode_is_not_there() -> None:
    with serving(answering([(404, b"", {})])) as url, pytest.raises(ObjectNotFound):
        open_store(url).read("\ud800")


@pytest.mark.parametrize(
    ("answer", "message", "remedy"),
    [
        ((302, b"", {"Location": "file:///etc/passwd"}), "status 302", "only redirects to http"),
        ((403, b"", {}), "status 403", "need no login"),
        ((418, b"", {}), "status 418", "check the URL"),
    ],
)
def test_a_refusal_has_a_remedy(answer: Answer, message: str, remedy: str) -> None:
    with serving(answering([answer])) as url, pytest.raises(StorageError, match=message) as caught:
        open_store(url).size_bytes("name")
    assert remedy in str(caught.value.remedy)
