"""A real Azure Blob Storage on this machine: Microsoft's Azurite, where it is installed.

In: ``azurite-blob`` on the PATH (npm install -g azurite). Out: ``AzureServer``. Containers are its memory; it
ends with the tests.
"""

import base64
import contextlib
import hashlib
import hmac
import os
import shutil
import signal
import subprocess
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import formatdate

import pytest

from support.s3 import free_port, wait_until_listening

ACCOUNT = "canaryaccount"
KEY = base64.b64encode(b"canary-azure-account-key-5f02").decode()
_VERSION = "2021-08-06"


@dataclass(frozen=True)
class AzureServer:
    """A running server."""

    port: int

    def new_container(self) -> str:
        """Make an empty container; return its URL.

        The request is signed as "Authorize with Shared Key" of Azure's REST reference says.
        """
        name, date = f"container-{uuid.uuid4().hex[:12]}", formatdate(usegmt=True)
        signed = (
            "PUT" + "\n" * 12 + f"x-ms-date:{date}\nx-ms-version:{_VERSION}\n"
            f"/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
        )
        signature = hmac.new(base64.b64decode(KEY), signed.encode(), hashlib.sha256).digest()
        headers = {
            "x-ms-date": date,
            "x-ms-version": _VERSION,
            "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(signature).decode()}",
        }
        url = f"http://127.0.0.1:{self.port}/{ACCOUNT}/{name}?restype=container"
        with urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers)):
            return f"az://{name}"


def azure_variables(server: AzureServer) -> dict[str, str]:
    """Return the environment variables that lead the package to the server."""
    return {
        "AZURE_ENDPOINT": f"http://127.0.0.1:{server.port}/{ACCOUNT}",
        "AZURE_ALLOW_HTTP": "true",
        "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
        "AZURE_STORAGE_ACCOUNT_KEY": KEY,
    }


@pytest.fixture(scope="session")
def azure_server() -> Iterator[AzureServer]:
    program = shutil.which("azurite-blob")
    if program is None:
        pytest.skip("azurite-blob is not on the PATH (npm install -g azurite): no Azure to test on")
    port = free_port()
    process = subprocess.Popen(
        [
            *(program, "--silent", "--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck"),
            *("--blobHost", "127.0.0.1", "--blobPort", str(port)),
        ],
        env={**os.environ, "AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_until_listening(port, process)
        yield AzureServer(port)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
