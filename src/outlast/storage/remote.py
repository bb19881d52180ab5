"""Object stores of the clouds through obstore: Google Cloud Storage, S3 and its kin, Azure.

In: ``gs://``, ``s3://`` or ``az://`` URLs. Out: an ``ObjectStore``. ``create`` is one conditional request.
Credentials, end points and regions come from the environment under the names the clouds' own tools use
(``AWS_ENDPOINT_URL``, ``GOOGLE_APPLICATION_CREDENTIALS``, ``AZURE_STORAGE_ACCOUNT_NAME``, ...); they are
never taken from a URL, never printed. An end point or proxy at an address that is never contacted
(``addresses``) is refused when the store is opened; services that give credentials lie there by their nature.
Buckets that ``OUTLAST_ANONYMOUS_BUCKETS`` names, with commas between
(``s3://open-data,gs://other``), are read without any.
"""

import json
import logging
import os
import re
import threading
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, cast
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
_EMULATOR = "STORAGE_EMULATOR_HOST"
"""Google's own libraries heed it; obstore does not, and would ask the cloud itself."""
_LOGIN_HOSTS = {
    "s3": ("AWS_STS_ENDPOINT",),
    "gs": (_EMULATOR,),
    "az": (
        "AZURE_AUTHORITY_HOST",
        "AZURE_STORAGE_AUTHORITY_HOST",
        "AZURE_FABRIC_TOKEN_SERVICE_URL",
        "AZURE_FABRIC_WORKLOAD_HOST",
    ),
}
"""What else the environment may send a client to, with secrets."""
_ANONYMOUS = "OUTLAST_ANONYMOUS_BUCKETS"
_KEY_OR_ANONYMOUS = (
    f"put credentials for the store into the environment, or name a public bucket in {_ANONYMOUS}"
)
_IN_HAND = {
    "s3": ("AWS_ACCESS_KEY_ID", "AWS_SKIP_SIGNATURE"),
    "gs": ("GOOGLE_SKIP_SIGNATURE",),
    "az": (
        "AZURE_STORAGE_ACCOUNT_KEY",
        "AZURE_STORAGE_ACCESS_KEY",
        "AZURE_STORAGE_SAS_TOKEN",
        "AZURE_STORAGE_SAS_KEY",
        "AZURE_SKIP_SIGNATURE",
    ),
}
"""What makes it unnecessary to ask another host for credentials."""
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "AWS_PROXY_URL", "GOOGLE_PROXY_URL", "AZURE_PROXY_URL")
_NOBODY = "127.0.0.1:0"
"""The proxy of hosts that are not to be asked: nobody can listen there."""
_METADATA_SERVER = "169.254.169.254"
_REFUSED_STATUS = re.compile(r"status(?: code)?:? ([34]\d\d)")
_WORTH_ASKING_AGAIN = ("408", "409", "425", "429")
_BEYOND_THE_END = "Wanted range starting at"
"""obstore's words for a range beyond the end: Azure answers it with no bytes, S3 with 416."""
_LONGEST_MESSAGE = 300
_TOLD_AFTER_SECONDS = 2.0
_log = logging.getLogger(__name__)
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
        scheme = url.partition("://")[0]
        self._allow_http = _ALLOW_HTTP[scheme]
        self._is_anonymous = _is_anonymous(url)
        end_points = _end_points(scheme)
        others = {*_LOGIN_HOSTS[scheme], *_PROXIES}
        _check_end_points(
            end_points | {name: text for name, text in os.environ.items() if name.upper() in others}
        )
        _refuse_emulator(scheme, end_points)
        self._needs_another = not (self._is_anonymous or _has_credentials(scheme))
        self._bounds: ClientConfig = {} if self._needs_another else _stay_at(end_points.values())
        self._has_answered = False
        self._store = self._open_client(self.retry_seconds)

    @cached_property
    def _impatient(self) -> "obstore.store.ObjectStore":
        return self._open_client(min(self.retry_seconds, _RANGE_SECONDS))

    def _open_client(self, retry_seconds: float) -> "obstore.store.ObjectStore":
        options: ClientConfig = {**_client_options(self._allow_http, self.silence_seconds), **self._bounds}
        try:
            return obstore.store.from_url(
                self.url,
                client_options=options,
                retry_config=_retry_config(retry_seconds),
                **({"skip_signature": True} if self._is_anonymous else {}),
            )
        except (exceptions.BaseError, ValueError) as error:
            raise StorageError(f"The store cannot be opened: {_first_line(error)}", where=self.url) from None

    def read(self, name: str, most_bytes: int = MOST_BYTES) -> bytes:
        with self._asking("read", name):
            found = obstore.get(self._store, name)
            if found.meta["size"] <= most_bytes:
                return bytes(found.bytes())
        raise self.too_large(name, most_bytes)

    def read_range(self, name: str, start: int, length: int) -> bytes:
        if length == 0:
            return b""
        with self._asking("read", name):
            content = bytes(obstore.get_range(self._impatient, name, start=start, length=length))
        if len(content) != length:
            raise StorageError(
                f"The object ends early: {len(content)} of {length} bytes from {start}.",
                where=f"{self.url}/{name}",
            )
        return content

    def create(self, name: str, content: Chunks) -> None:
        with self._asking("write", name):
            obstore.put(self._store, name, b"".join(content), mode="create")

    def replace(self, name: str, content: Chunks) -> None:
        with self._asking("write", name):
            obstore.put(self._store, name, b"".join(content), mode="overwrite", use_multipart=False)

    def list(self, prefix: str = "") -> list[ObjectInfo]:
        folder = prefix.rpartition("/")[0]  # a store lists by whole path segments
        found: list[ObjectInfo] = []
        with self._asking("list", prefix):
            for page in obstore.list(self._store, folder or None):
                found += [
                    ObjectInfo(meta["path"], meta["size"], meta["last_modified"].timestamp())
                    for meta in page
                    if meta["path"].startswith(prefix)
                ]
        return sorted(found)

    def size_bytes(self, name: str) -> int:
        with self._asking("read", name):
            return obstore.head(self._store, name)["size"]

    def delete(self, name: str) -> None:
        with self._asking("delete", name), suppress(FileNotFoundError):
            obstore.delete(self._store, name)

    @contextmanager
    def _asking(self, action: str, name: str) -> Generator[None]:
        """Explain errors; as long as the store has never answered, say soon what is waited for."""
        timer = threading.Timer(_TOLD_AFTER_SECONDS, self._tell)
        if not self._has_answered:
            timer.daemon = True
            with suppress(RuntimeError):  # no further thread: then in silence
                timer.start()
        try:
            yield
            self._has_answered = True
        except Exception as error:
            self._explain(action, name, error)
        finally:
            timer.cancel()

    def _tell(self) -> None:
        if self._has_answered:
            return
        self._has_answered = True  # said once
        waits = f"it is waited for, {self.retry_seconds:.0f} s at most"
        if self._needs_another:
            waits = (
                f"{waits}, and first for credentials: the environment holds no key, so other services are "
            )
            waits += f"asked for one, such as this machine's metadata server; {_KEY_OR_ANONYMOUS}"
        _log.warning("%s has not answered for %.0f s: %s", self.url, _TOLD_AFTER_SECONDS, waits)

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
        if _NOBODY in str(error):
            raise StorageError(
                f"Cannot {action}: the end point answers with the address of another host.",
                where=where,
                expected="its own answer: without encryption it is not followed elsewhere",
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


def _end_points(scheme: str) -> dict[str, str]:
    """Return the end points that the environment names, by the variable that does."""
    found = {name: text for name, text in os.environ.items() if name.upper() in _END_POINTS[scheme]}
    if scheme == "gs":
        found |= {
            name: str(account.get("gcs_base_url") or "") for name, account in _google_accounts().items()
        }
    return found


def _has_credentials(scheme: str) -> bool:
    """Whether the environment says all that a request needs, and no other host is asked for credentials."""
    if any(name.upper() in _IN_HAND[scheme] for name in os.environ):
        return True
    accounts = _google_accounts().values() if scheme == "gs" else ()
    return any(account.get("disable_oauth") is True for account in accounts)


def _stay_at(end_points: Iterable[str]) -> "ClientConfig":
    """Return options with which a client asks no host but those of end points without encryption.

    Such an end point may redirect anywhere, and so may who sits between. obstore follows, and cannot be told
    not to; it can be told that every other host is behind a proxy. A proxy of the user's own stays.
    """
    parts = [urlsplit(text) for text in end_points if _is_url(text)]
    if not any(part.scheme == "http" for part in parts) or any(
        name.upper() in _PROXIES for name in os.environ
    ):
        return {}
    hosts = {part.hostname for part in parts if part.hostname}
    return {"proxy_url": f"http://{_NOBODY}", "proxy_excludes": ",".join(sorted(hosts))}


def _check_end_points(end_points: Mapping[str, str]) -> None:
    """Refuse end points at an address that is never contacted."""
    for name, text in end_points.items():
        if not _is_url(text):
            continue  # said by the client
        parts = urlsplit(text if "://" in text else f"//{text}")
        try:
            resolve(parts.hostname or "", parts.port or 443)
        except StorageError as error:
            remedy = f"name the store's own end point in {name}, or unset it"
            raise ConfigError(error.message, where=name, expected=error.expected, remedy=remedy) from None
        except (OSError, ValueError):
            pass  # no network yet, or no name of a host: said when something is read


def _refuse_emulator(scheme: str, end_points: Mapping[str, str]) -> None:
    """Refuse to ask the cloud itself where the environment names an emulator in a way that nobody reads."""
    host = os.environ.get(_EMULATOR)
    if scheme == "gs" and host and not any(end_points.values()):
        raise ConfigError(
            "The emulator is not heeded: the cloud itself would be asked.",
            where=_EMULATOR,
            expected="the end point in GOOGLE_BASE_URL",
            remedy=f"set GOOGLE_BASE_URL={host if '://' in host else f'http://{host}'}, "
            f"GOOGLE_ALLOW_HTTP=true and GOOGLE_SKIP_SIGNATURE=true; or unset {_EMULATOR}",
        )


def _is_url(text: str) -> bool:
    try:
        return urlsplit(text if "://" in text else f"//{text}").port != 0
    except ValueError:
        return False


def _google_accounts() -> dict[str, dict[str, Any]]:
    """Return what files of credentials hold, by the variable that names the file."""
    found: dict[str, dict[str, Any]] = {}
    for name in ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH", "GOOGLE_SERVICE_ACCOUNT_KEY"):
        text = os.environ.get(name, "")
        with suppress(OSError, ValueError, RecursionError):  # the client says what is wrong with it
            content = json.loads(text if name.endswith("_KEY") else read_whole(text))
            if isinstance(content, dict):
                found[name] = cast(dict[str, Any], content)
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
    return _KEY_OR_ANONYMOUS


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
