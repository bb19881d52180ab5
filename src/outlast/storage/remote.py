"""Object stores of the clouds through obstore: Google Cloud Storage, S3 and its kin, Azure.

In: ``gs://``, ``s3://`` or ``az://`` URLs. Out: an ``ObjectStore``. ``create`` is one conditional request.
Credentials, end points and regions come from the environment under the names the clouds' own tools use
(``AWS_ENDPOINT_URL``, ``GOOGLE_APPLICATION_CREDENTIALS``, ``AZURE_STORAGE_ACCOUNT_NAME``, ...); they are
never taken from a URL, never printed. An end point at an address that is never contacted (``addresses``) is
refused when the store is opened. Buckets that ``OUTLAST_ANONYMOUS_BUCKETS`` names, with commas between
(``s3://open-data,gs://other``), are read without any.
"""

import json
import os
import re
from contextlib import suppress
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import urlsplit

import obstore
import obstore.store
from obstore import exceptions

from outlast.errors import ConfigError, ObjectExists, ObjectNotFound, StorageError, StoreUnreachable
from outlast.storage.addresses import resolve
from outlast.storage.regular import MOST_BYTES, read_whole
from outlast.storage.store import Chunks, ObjectInfo, Store

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

_TRUE = ("1", "true", "yes", "on")
_ALLOW_HTTP = {"s3": "AWS_ALLOW_HTTP", "gs": "GOOGLE_ALLOW_HTTP", "az": "AZURE_ALLOW_HTTP"}
_END_POINTS = {
    "s3": ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL_STS"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_ENDPOINT", "AZURE_STORAGE_ENDPOINT", "AZURITE_BLOB_STORAGE_URL"),
}
_ANONYMOUS = "OUTLAST_ANONYMOUS_BUCKETS"
_METADATA_SERVER = "169.254.169.254"
_REFUSED_STATUS = re.compile(r"status(?: code)?:? (4\d\d)")
_WORTH_ASKING_AGAIN = ("408", "409", "425", "429")
_BEYOND_THE_END = "Wanted range starting at"
"""obstore's words for a range beyond the end: Azure answers it with no bytes, S3 with 416."""
_LONGEST_MESSAGE = 300
_RANGE_SECONDS = 2.0


class ObjectStore(Store):
    """Objects below a bucket prefix.

    obstore repeats a request on refused connections, time-outs and 5xx for ``retry_seconds`` before it gives
    up; ``read_range`` for two seconds, since ``retry`` is around it, which can be left.
    """

    silence_seconds: float = 60.0
    """How long a connection may stand still before the request is repeated."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._allow_http = _ALLOW_HTTP[url.partition("://")[0]]
        _check_end_points(url.partition("://")[0])
        self._store = self._open_client(self.retry_seconds)

    @cached_property
    def _impatient(self) -> "obstore.store.ObjectStore":
        return self._open_client(min(self.retry_seconds, _RANGE_SECONDS))

    def _open_client(self, retry_seconds: float) -> "obstore.store.ObjectStore":
        try:
            return obstore.store.from_url(
                self.url,
                client_options=_client_options(self._allow_http, self.silence_seconds),
                retry_config=_retry_config(retry_seconds),
                **({"skip_signature": True} if _is_anonymous(self.url) else {}),
            )
        except (exceptions.BaseError, ValueError) as error:
            raise StorageError(f"The store cannot be opened: {_first_line(error)}", where=self.url) from None

    def read(self, name: str, most_bytes: int = MOST_BYTES) -> bytes:
        try:
            found = obstore.get(self._store, name)
            if found.meta["size"] <= most_bytes:
                return bytes(found.bytes())
        except Exception as error:
            self._explain("read", name, error)
        raise self.too_large(name, most_bytes)

    def read_range(self, name: str, start: int, length: int) -> bytes:
        if length == 0:
            return b""
        try:
            content = bytes(obstore.get_range(self._impatient, name, start=start, length=length))
        except Exception as error:
            self._explain("read", name, error)
        if len(content) != length:
            raise StorageError(
                f"The object ends early: {len(content)} of {length} bytes from {start}.",
                where=f"{self.url}/{name}",
            )
        return content

    def create(self, name: str, content: Chunks) -> None:
        try:
            obstore.put(self._store, name, b"".join(content), mode="create")
        except Exception as error:
            self._explain("write", name, error)

    def replace(self, name: str, content: Chunks) -> None:
        try:
            obstore.put(self._store, name, b"".join(content), mode="overwrite", use_multipart=False)
        except Exception as error:
            self._explain("write", name, error)

    def list(self, prefix: str = "") -> list[ObjectInfo]:
        folder = prefix.rpartition("/")[0]  # a store lists by whole path segments
        found: list[ObjectInfo] = []
        try:
            for page in obstore.list(self._store, folder or None):
                found += [
                    ObjectInfo(meta["path"], meta["size"], meta["last_modified"].timestamp())
                    for meta in page
                    if meta["path"].startswith(prefix)
                ]
        except Exception as error:
            self._explain("list", prefix, error)
        return sorted(found)

    def size_bytes(self, name: str) -> int:
        try:
            return obstore.head(self._store, name)["size"]
        except Exception as error:
            self._explain("read", name, error)

    def delete(self, name: str) -> None:
        try:
            obstore.delete(self._store, name)
        except FileNotFoundError:
            return
        except Exception as error:
            self._explain("delete", name, error)

    def _explain(self, action: str, name: str, error: Exception) -> NoReturn:
        """Raise what an error of obstore says about the object; nothing, unless the store itself has
        answered.
        """
        where = f"{self.url}/{name}"
        line = _first_line(error)
        if isinstance(error, exceptions.AlreadyExistsError | exceptions.PreconditionError):
            raise ObjectExists("The object exists already.", where=where) from None
        if isinstance(error, FileNotFoundError) and action == "read":
            raise ObjectNotFound("There is no such object.", where=where) from None
        if isinstance(error, FileNotFoundError):
            raise StorageError(
                f"Cannot {action}: {line}", where=where, remedy="check that the bucket exists"
            ) from None
        if isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError):
            raise StorageError(
                f"Cannot {action}: the store denies access.",
                where=where,
                remedy="check the credentials in the environment and the rights they carry on this bucket",
            ) from None
        if "builder error" in line:
            raise StorageError(
                f"Cannot {action}: the store's address cannot be asked.",
                where=where,
                remedy=f"check the end point; for one without encryption set {self._allow_http}=true",
            ) from None
        status = _REFUSED_STATUS.search(str(error))
        refused = _BEYOND_THE_END in line or (status and status[1] not in _WORTH_ASKING_AGAIN)
        if isinstance(error, exceptions.GenericError) and not refused:
            raise StoreUnreachable(
                f"Cannot {action}: the store does not answer: {line}", where=where, remedy=_remedy(line)
            ) from None
        if isinstance(error, exceptions.BaseError | ValueError | OSError):
            raise StorageError(f"Cannot {action}: {line}", where=where, remedy=_remedy(line)) from None
        raise error


def _check_end_points(scheme: str) -> None:
    """Refuse end points that the environment puts at an address that is never contacted."""
    found = {name: text for name, text in os.environ.items() if name.upper() in _END_POINTS[scheme]}
    if scheme == "gs":
        found |= _google_end_points()
    for name, text in found.items():
        try:
            parts = urlsplit(text if "://" in text else f"//{text}")
            resolve(parts.hostname or "", parts.port or 443)
        except StorageError as error:
            raise ConfigError(error.message, where=name, expected=error.expected) from None
        except (OSError, ValueError):
            pass  # no network yet, or no URL: said when something is read


def _google_end_points() -> dict[str, str]:
    """Return the end points that files of credentials name, by the variable that names the file."""
    found: dict[str, str] = {}
    for name in ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH", "GOOGLE_SERVICE_ACCOUNT_KEY"):
        text = os.environ.get(name, "")
        with suppress(OSError, ValueError, AttributeError):  # the client says what is wrong with it
            content = json.loads(text if name.endswith("_KEY") else read_whole(text))
            found[name] = str(content.get("gcs_base_url") or "")
    return found


def _is_anonymous(url: str) -> bool:
    """Whether the environment names the bucket as one that is read without credentials."""
    scheme, _, rest = url.partition("://")
    bucket = f"{scheme}://{rest.partition('/')[0]}"
    return bucket in (name.strip().rstrip("/") for name in os.environ.get(_ANONYMOUS, "").split(","))


def _remedy(line: str) -> str | None:
    """Only a client without credentials of its own asks the machine's metadata server for some."""
    if _METADATA_SERVER not in line:
        return None
    return f"put credentials for the store into the environment, or name a public bucket in {_ANONYMOUS}"


def _client_options(allow_http: str, silence_seconds: float) -> "ClientConfig":
    options: ClientConfig = {
        "connect_timeout": timedelta(seconds=10),
        "read_timeout": timedelta(seconds=silence_seconds),
        "timeout": timedelta(minutes=10),
    }
    if os.environ.get(allow_http, "").lower() in _TRUE:
        options["allow_http"] = True
    return options


def _retry_config(seconds: float) -> "RetryConfig":
    return {
        "max_retries": 100,
        "retry_timeout": timedelta(seconds=seconds),
        "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=10), "base": 2},
    }


def _first_line(error: Exception) -> str:
    """Return an error's first line, without what follows a ``?``: signatures stand there."""
    line = str(error).strip().partition("\n")[0].partition(": <")[0]
    return re.sub(r"\?[^\s\"']+", "?***", line)[:_LONGEST_MESSAGE]
