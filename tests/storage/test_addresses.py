"""Addresses that are never contacted: in every form, behind names, and as the end points of every store.

No packet leaves the machine: the system's resolver is the only thing replaced, and what resolves to a refused
address is never connected to.
"""

import http.server
import json
import socket
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from outlast.errors import ConfigError, OutlastError, StorageError, StoreUnreachable, hide_secrets
from outlast.storage import open_store
from outlast.storage.addresses import is_forbidden, resolve
from outlast.storage.remote import ObjectStore

FORBIDDEN = {
    "link-local": "169.254.169.254 169.254.170.2 fe80::a9fe:a9fe fe80::1%lo",
    "others": "100.100.100.200 168.63.129.16 192.0.0.192 fd00:ec2::254 fd00:ec2::23 fd20:ce::254 fd00:42::42",
    "multicast": "224.0.0.1 ff02::1",
    "mapped": "::ffff:169.254.169.254 ::ffff:168.63.129.16",
    "compatible": "::169.254.169.254 ::a9fe:a9fe",
    "translated": "::ffff:0:169.254.169.254",
    "6to4": "2002:a9fe:a9fe::1",
    "Teredo": "2001:0:a9fe:a9fe::1",
    "NAT64": "64:ff9b::169.254.169.254",
    # The layouts of /48, /56, /64 and /96 that RFC 6052 has.
    "local NAT64": "64:ff9b:1:a9fe:a9:fe00:: 64:ff9b:1:a9:fe:a9fe:: 64:ff9b:1:0:a9:fea9:fe00:: "
    "64:ff9b:1::169.254.169.254",
}
END_POINTS = {
    "s3://bucket/x": (
        *("AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL_STS"),
        *("AWS_STS_ENDPOINT", "AWS_PROXY_URL", "https_proxy"),
    ),
    "gs://bucket/x": ("GOOGLE_BASE_URL", "STORAGE_EMULATOR_HOST", "GOOGLE_PROXY_URL", "HTTPS_PROXY"),
    "az://bucket/x": (
        *("AZURE_ENDPOINT", "AZURE_STORAGE_ENDPOINT", "AZURITE_BLOB_STORAGE_URL", "AZURE_PROXY_URL"),
        *("AZURE_AUTHORITY_HOST", "AZURE_STORAGE_AUTHORITY_HOST", "AZURE_FABRIC_TOKEN_SERVICE_URL"),
    ),
}


@pytest.mark.parametrize("form", FORBIDDEN)
def test_metadata_addresses_are_known_in_every_form(form: str) -> None:
    for address in FORBIDDEN[form].split():
        assert is_forbidden(address), address


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "::1", "::ffff:127.0.0.1", "10.0.0.1", "8.8.8.8", "64:ff9b::808:808"]
)
def test_other_addresses_may_be_contacted(address: str) -> None:
    assert not is_forbidden(address)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """metadata.example resolves to what clouds use, as a name that anybody owns may."""
    look_up: Callable[..., Any] = socket.getaddrinfo

    def getaddrinfo(host: str, port: int, *options: Any, **named: Any) -> Any:
        stands_for = {"metadata.example": "169.254.169.254", "six.example": "64:ff9b:1::a9fe:a9fe"}
        return look_up(stands_for.get(host, host), port, *options, **named)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


@pytest.mark.parametrize(
    "host",
    [
        *("169.254.169.254", "0xa9fea9fe", "[fd20:ce::254]", "[::ffff:169.254.169.254]", "metadata.example"),
        *("six.example", "metadata.google.internal", "Metadata.Google.Internal.", "instance-data"),
    ],
)
@pytest.mark.parametrize("url", END_POINTS)
def test_an_end_point_at_a_metadata_address_is_refused(
    url: str, host: str, names: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in END_POINTS[url]:
        for scheme in ("http", "https"):
            monkeypatch.setenv(variable, f"{scheme}://{host}/latest")
            with pytest.raises(ConfigError, match="never contacted") as caught:
                open_store(url)
            assert variable in str(caught.value)
        monkeypatch.delenv(variable)


@pytest.mark.parametrize("variable", ["GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY"])
def test_an_end_point_in_a_file_of_credentials_is_refused(
    variable: str, names: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = json.dumps({"gcs_base_url": "http://metadata.example", "disable_oauth": True})
    (tmp_path / "account.json").write_text(content)
    monkeypatch.setenv(variable, content if variable.endswith("_KEY") else str(tmp_path / "account.json"))
    with pytest.raises(ConfigError, match="never contacted"):
        open_store("gs://bucket/x")


class Answering(http.server.BaseHTTPRequestHandler):
    """Answers each request with a redirect, or with an object."""

    def do_GET(self) -> None:
        asked, target = cast(tuple[list[str], str], self.server.asked)  # pyright: ignore
        asked.append(self.path)
        self.send_response(302 if target else 200)
        self.send_header("Location", f"{target}/secret")
        self.send_header("Content-Length", "6" if not target else "0")
        self.send_header("ETag", '"1"')
        self.send_header("Last-Modified", "Wed, 21 Oct 2015 07:28:00 GMT")
        self.end_headers()
        if not target and self.command == "GET":
            self.wfile.write(b"secret")

    do_PUT = do_HEAD = do_DELETE = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def answering(host: str, target: str = "") -> Generator[tuple[str, list[str]]]:
    """A server of this machine; its URL, and what it was asked for."""
    asked: list[str] = []
    with http.server.ThreadingHTTPServer((host, 0), Answering) as server:
        server.asked = (asked, target)  # pyright: ignore
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://{host}:{server.server_address[1]}", asked
        server.shutdown()
        thread.join()


def lead_to(end_point: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Name an end point without encryption for every cloud, with credentials in hand."""
    account = folder / "account.json"
    account.write_text(
        json.dumps(
            {
                "gcs_base_url": end_point,
                "disable_oauth": True,
                "private_key": "",
                "client_email": "",
                "private_key_id": "",
            }
        )
    )
    for name, value in {
        "AWS_ENDPOINT_URL": end_point,
        "AWS_ALLOW_HTTP": "1",
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "GOOGLE_SERVICE_ACCOUNT": str(account),
        "GOOGLE_ALLOW_HTTP": "1",
        "AZURE_STORAGE_ENDPOINT": end_point,
        "AZURE_STORAGE_ACCOUNT_NAME": "account",
        "AZURE_STORAGE_ACCOUNT_KEY": "a2V5",
        "AZURE_ALLOW_HTTP": "1",
    }.items():
        monkeypatch.setenv(name, value)


@pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2 is an address of this machine on Linux alone")
@pytest.mark.parametrize("url", END_POINTS)
def test_an_end_point_without_encryption_redirects_nowhere(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ObjectStore, "retry_seconds", 0.3)
    with answering("127.0.0.2") as (target, refused), answering("127.0.0.1", target) as (end_point, asked):
        lead_to(target, monkeypatch, tmp_path)
        assert open_store(url).read("name") == b"secret"
        refused.clear()
        lead_to(end_point, monkeypatch, tmp_path)
        store = open_store(url)
        for action in (
            lambda: store.read("name"),
            lambda: store.read_range("name", 0, 2),
            lambda: store.size_bytes("name"),
        ):
            with pytest.raises(StorageError, match="the address of another host"):
                action()
        with pytest.raises(StorageError, match="302"):
            store.create("name", [b"x"])
        assert asked
        assert refused == []


def test_an_emulator_that_nobody_would_ask_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "127.0.0.1:9")
    with pytest.raises(ConfigError, match=r"GOOGLE_BASE_URL=http://127\.0\.0\.1:9, GOOGLE_ALLOW_HTTP"):
        open_store("gs://bucket/x")
    open_store("s3://bucket/x")
    monkeypatch.setenv("GOOGLE_BASE_URL", "http://127.0.0.1:9")
    open_store("gs://bucket/x")


def test_a_store_that_does_not_answer_is_told_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The machine's metadata server, which is asked where the environment holds no key, takes its time."""
    monkeypatch.setattr(ObjectStore, "retry_seconds", 0.5)
    monkeypatch.setattr("outlast.storage.remote._TOLD_AFTER_SECONDS", 0.01)
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SKIP_SIGNATURE"):
        monkeypatch.delenv(name, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(ObjectStore, "silence_seconds", 0.5)
        monkeypatch.setenv("HOME", "/nonexistent")
        for name in ("GCE_METADATA_HOST", "GCE_METADATA_IP"):  # both are asked, one after the other
            monkeypatch.setenv(name, f"127.0.0.1:{silent.getsockname()[1]}")
        store = open_store("gs://bucket/x")
        for _ in range(2):
            with pytest.raises(StoreUnreachable):
                store.size_bytes("name")
    (line,) = [line for line in caplog.messages if "has not answered" in line]
    assert "metadata server" in line
    assert "OUTLAST_ANONYMOUS_BUCKETS" in line


def test_the_machine_itself_may_be_an_end_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    open_store("s3://bucket/x")
    assert resolve("localhost", 80)


@pytest.mark.parametrize("scheme", ["s3", "gs", "az", "https", "ftp"])
@pytest.mark.parametrize("query", ["sig=canary", "se=1&sig=canary", "X-Amz-Signature=canary", "token=canary"])
def test_a_url_with_a_query_is_refused_without_repeating_it(scheme: str, query: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_store(f"{scheme}://bucket/data?{query}")
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "Cannot read https://host/a.tar?X-Goog-Signature=canary&x=1: 403",
        "https://me:canary@host/x",
        "wasbs://canary@host/x",
        "the answer to sig=canary, and to x-amz-security-token=canary",
        'AWSAccessKeyId="canary"'.replace('"', ""),
    ],
)
def test_secrets_in_messages_are_hidden(text: str) -> None:
    error = OutlastError(text, where=text, expected=text, remedy=text)
    told = [hide_secrets(text), str(error), error.message, error.where, error.expected, error.remedy]
    assert not any("canary" in str(part) for part in told)
    assert "***" in error.message


@pytest.mark.parametrize("text", ["s3://bucket/train-0?.parquet", "tokens=5 eos_token=3 step=4", "user@host"])
def test_what_is_no_secret_stays(text: str) -> None:
    assert hide_secrets(text) == text
