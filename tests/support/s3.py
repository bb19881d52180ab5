"""A real S3 server (moto) in a process of its own, and the environment in which programs find it.

In: nothing. Out: ``S3Server``. Buckets are its memory; it ends with the tests.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

ACCESS_KEY = "canary-access-key-7c1d"
SECRET_KEY = "canary-secret-key-93ab"


@dataclass(frozen=True)
class S3Server:
    """A running server. ``host`` and ``port`` are where it listens."""

    host: str
    port: int

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def new_bucket(self) -> str:
        """Make an empty bucket; return its URL."""
        name = f"bucket-{uuid.uuid4().hex[:12]}"
        with urllib.request.urlopen(urllib.request.Request(f"{self.url}/{name}", method="PUT")):
            return f"s3://{name}"


def s3_variables(endpoint: str) -> dict[str, str]:
    """Return the environment variables that lead the package to an S3 server at an address."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_REGION": "us-east-1",
    }


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    pytest.importorskip("moto.server", reason="moto is not installed: no S3 server to test on")
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_until_listening(port, process)
        yield S3Server("127.0.0.1", port)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture
def s3_environment(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """This process finds the server, too."""
    for name, value in s3_variables(s3_server.url).items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def free_port() -> int:
    """Return a port on which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def wait_until_listening(port: int, process: subprocess.Popen[bytes]) -> None:
    """Return when a server that was started listens on its port."""
    deadline = time.monotonic() + 120
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), 1):
                return
        except OSError:
            assert process.poll() is None, "the server has ended"
            assert time.monotonic() < deadline, "the server does not listen"
            time.sleep(0.05)
