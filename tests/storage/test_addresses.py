"""Addresses that are never contacted: in every form, behind names, and as the end points of every store.

No packet leaves the machine: the system's resolver is the only thing replaced, and what resolves to a refused
address is never connected to.
"""

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outlast.errors import ConfigError, OutlastError, hide_secrets
from outlast.storage import open_store
from outlast.storage.addresses import is_forbidden, resolve

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
    "s3://bucket/x": ("AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL_STS"),
    "gs://bucket/x": ("GOOGLE_BASE_URL",),
    "az://bucket/x": ("AZURE_ENDPOINT", "AZURE_STORAGE_ENDPOINT"),
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
    "host", ["169.254.169.254", "0xa9fea9fe", "[fd20:ce::254]", "metadata.example", "six.example"]
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
