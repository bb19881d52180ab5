"""Reading over http and https; nothing is ever written there.

In: the URL of a folder. Out: a read-only ``HttpStore``. The standard library's client is used because each
connection, the ones that follow a redirect included, must go to an address that was checked (``addresses``);
obstore cannot be told so.
"""

import http.client
import io
import logging
import socket
import ssl
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any, BinaryIO, TypeVar, TypeVarTuple, cast

from outlast.errors import ConfigError, ObjectNotFound, StorageError, StoreUnreachable
from outlast.storage.addresses import resolve
from outlast.storage.fetched import fetch, open_fetched
from outlast.storage.regular import MOST_BYTES, read_up_to
from outlast.storage.spool import spool_failed
from outlast.storage.store import Chunks, ObjectInfo, Pause, Store

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_log = logging.getLogger(__name__)

_SKIP_BYTES = 2**20
_DEFAULT_PORTS = {"http": 80, "https": 443}
_MOST_DIGITS = 20
_REDIRECTS = (301, 302, 303, 307, 308)
_UNQUOTED = "/%:@!$&'()*+,;=~"
_COMPRESSED = (".gz", ".tgz", ".bz2", ".xz", ".zst")
"""Of objects with these endings some servers call the content its encoding."""
_told: set[str] = set()
"""Servers of which it was said that they give no ranges."""
_is_repeated: ContextVar[bool] = ContextVar("is_repeated", default=False)


class _NotTaken(Exception):
    """The sink of a body raised an error: ours, not the server's."""

    def __init__(self, reason: OSError) -> None:
        super().__init__()
        self.reason = reason


class HttpStore(Store):
    """Objects below an http(s) URL."""

    silence_seconds: float = 60.0
    """How long a connection may stand still before the request is repeated."""

    def __init__(self, url: str, *, public_only: bool = False) -> None:
        self.url = url.rstrip("/")
        host, port, self._address = _parse(self.url)
        try:
            resolve(host, port, public_only=public_only)
        except StorageError as error:
            raise ConfigError(
                error.message, where=self.url, expected=error.expected, remedy=error.remedy
            ) from None
        except OSError:
            pass  # no network yet: said when something is read
        self._opener = _build_opener(public_only=public_only)
        self._has_ranges: bool | None = None
        self._learning = threading.Lock()

    def read(self, name: str, most_bytes: int = MOST_BYTES) -> bytes:
        def take(response: http.client.HTTPResponse) -> bytes | None:
            if int(response.length or 0) > most_bytes:
                return None
            return read_up_to(partial(_read, response), most_bytes)

        content = self._ask(name, {}, take)
        if content is None:
            raise self.too_large(name, most_bytes)
        return content

    def read_range(self, name: str, start: int, length: int) -> bytes:
        if length == 0:
            return b""
        if self._has_ranges is False and start + length > _SKIP_BYTES:
            return self._read_fetched(name, start, length)

        def take(response: http.client.HTTPResponse) -> bytes | None:
            if response.status == http.client.PARTIAL_CONTENT:
                _check_range(response.headers.get("Content-Range"), start, f"{self.url}/{name}")
            elif start + length > _SKIP_BYTES and start:
                self._learn(has_ranges=False)
                return None
            else:
                _skip(response, start)
            return _read(response, length)

        content = self._ask(name, {"Range": f"bytes={start}-{start + length - 1}"}, take)
        if content is None:
            return self._read_fetched(name, start, length)
        return self._of_length(content, name, start, length)

    def _of_length(self, content: bytes, name: str, start: int, length: int) -> bytes:
        if len(content) != length:
            raise StorageError(
                f"The object ends early: {len(content)} of {length} bytes from {start}.",
                where=f"{self.url}/{name}",
            )
        return content

    def _read_fetched(self, name: str, start: int, length: int) -> bytes:
        with self.open(name) as file:
            file.seek(start)
            return self._of_length(file.read(length), name, start, length)

    def size_bytes(self, name: str) -> int:
        size, _ = self._ask(name, {}, _describe, method="HEAD")
        if size is None:
            raise StorageError(
                "The server does not tell the size of the object.",
                where=f"{self.url}/{name}",
                expected="a Content-Length in its answer",
                remedy="let the server send it, or fetch the file yourself and name the local one",
            )
        return size

    def open(self, name: str) -> io.BufferedIOBase:
        """As everywhere. From a server that gives no ranges the object is fetched whole, once for all
        processes of this machine (``fetched``).
        """
        size, version = self._ask(name, {}, _describe, method="HEAD")
        if size is None or version is None:  # no way to tell an old copy from a new object
            return super().open(name) if self.gives_ranges(name) else self._fetch_for_once(name)
        version = f"{self.url}/{name}\n{version}"
        file = open_fetched(version)
        if file is None and size and self.gives_ranges(name):
            return super().open(name)
        return cast(io.BufferedIOBase, file or fetch(version, size, lambda part: self._fetch(name, part)))

    def gives_ranges(self, name: str) -> bool:
        with self._learning:
            if self._has_ranges is None:
                partial = http.client.PARTIAL_CONTENT
                found = self._ask(name, {"Range": "bytes=0-0"}, lambda response: response.status == partial)
                self._learn(has_ranges=found)
        return self._has_ranges is True

    def _learn(self, *, has_ranges: bool) -> None:
        self._has_ranges = has_ranges
        server = self._address.partition("://")[2].partition("/")[0]
        if not has_ranges and server not in _told:
            _told.add(server)
            _log.info("%s gives no ranges: each file that is read from it is fetched whole, once", server)

    def download(self, name: str, take: Callable[[int, bytes], object]) -> None:
        if self.gives_ranges(name):
            return super().download(name, take)

        def take_all(response: http.client.HTTPResponse) -> None:
            position = 0
            while content := _read(response, _SKIP_BYTES):
                try:
                    take(position, content)
                except OSError as error:
                    raise _NotTaken(error) from None  # of the taker's disk: it says nothing about the server
                position += len(content)

        try:
            self._ask(name, {}, take_all)
        except _NotTaken as failure:
            raise failure.reason from None

    def _fetch(self, name: str, file: BinaryIO) -> None:
        def take(start: int, content: bytes) -> None:
            if start == 0:
                file.seek(0)
                file.truncate()
            file.write(content)

        self.download(name, take)

    def _fetch_for_once(self, name: str) -> io.BufferedIOBase:
        _log.warning(
            "%s/%s: the server gives no ranges, and neither ETag nor Last-Modified: it is fetched whole each "
            "time it is opened",
            self.url,
            name,
        )
        file = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            self._fetch(name, file)
        except OSError as error:
            file.close()
            raise spool_failed(error) from error
        except BaseException:
            file.close()
            raise
        file.seek(0)
        return cast(io.BufferedIOBase, file)

    def retry(self, action: Callable[[*Ts], T], *arguments: *Ts, pause: Pause = time.sleep) -> T:
        """As everywhere. What repeats itself, such as ``read``, leaves that to a ``retry`` around it."""
        if _is_repeated.get():
            return action(*arguments)
        token = _is_repeated.set(True)
        try:
            return super().retry(action, *arguments, pause=pause)
        finally:
            _is_repeated.reset(token)

    def create(self, name: str, content: Chunks) -> None:
        raise self._read_only("written to")

    def replace(self, name: str, content: Chunks) -> None:
        raise self._read_only("written to")

    def delete(self, name: str) -> None:
        raise self._read_only("deleted from")

    def list(self, prefix: str = "") -> list[ObjectInfo]:
        raise self._read_only("listed")

    def _read_only(self, action: str) -> StorageError:
        return StorageError(
            f"An http store cannot be {action}.", where=self.url, expected="a path, gs://, s3:// or az://"
        )

    def _ask(
        self,
        name: str,
        headers: dict[str, str],
        take: Callable[[http.client.HTTPResponse], T],
        *,
        method: str = "GET",
    ) -> T:
        url = f"{self._address}/{urllib.parse.quote(name, errors='surrogatepass')}"

        def attempt() -> T:
            request = urllib.request.Request(url, headers=headers, method=method)
            try:
                with self._opener.open(request, timeout=self.silence_seconds) as response:
                    _check_encoding(response.headers.get("Content-Encoding"), url)
                    return take(cast(http.client.HTTPResponse, response))
            except urllib.error.HTTPError as error:
                error.close()
                raise _explain(error.code, url) from None
            except (OSError, http.client.HTTPException) as error:  # URLError, timeouts, bodies cut short
                raise StoreUnreachable(f"The server does not answer: {error}.", where=url) from None
            except ValueError as error:  # of the URL of a redirect
                raise StorageError(f"The server's answer cannot be read: {error}.", where=url) from None

        return self.retry(attempt)


def _parse(url: str) -> tuple[str, int, str]:
    """Return host, port, and the URL as it is sent: only ASCII, without blanks. Raises ConfigError."""
    try:
        parts = urllib.parse.urlsplit(url)
        if not parts.hostname or parts.query or parts.fragment:
            raise ValueError("it is to have a host and a path, and nothing else")
        if not parts.netloc.isascii():
            raise ValueError("write the host as xn--...")
        port = parts.port or _DEFAULT_PORTS[parts.scheme]
    except ValueError as error:  # of the port and of brackets, too
        raise ConfigError(
            f"The URL cannot be read from: {error}.",
            where=url.partition("?")[0],
            expected="https://HOST[:PORT]/PATH",
        ) from None
    path = urllib.parse.quote(parts.path, safe=_UNQUOTED)
    return parts.hostname, port, parts._replace(path=path).geturl()


def _check_range(found: str | None, start: int, url: str) -> None:
    """Refuse a range that begins elsewhere than asked for. Some servers do not say which one it is."""
    if found is not None and not found.startswith(f"bytes {start}-"):
        raise StoreUnreachable(
            f"The server answers with another range: {found}.",
            where=url,
            expected=f"bytes from {start}",
            remedy="ask the server without the proxy before it, or let it send the files as they are",
        )


def _check_encoding(encoding: str | None, url: str) -> None:
    """Refuse bytes that are not the object's own: what is asked for is the object without any encoding."""
    if (encoding or "identity").lower() != "identity" and not url.endswith(_COMPRESSED):
        raise StoreUnreachable(
            f"The server answers with the content encoded as {encoding}.",
            where=url,
            remedy="let the server, or the proxy before it, send the files as they are",
        )


def _describe(response: http.client.HTTPResponse) -> tuple[int | None, str | None]:
    """Return the size of an object and what changes with its content, None where the server does not say."""
    size = response.headers.get("Content-Length", "")
    marks = [response.headers.get(name) for name in ("ETag", "Last-Modified")]
    version = "\n".join([size, *(mark or "" for mark in marks)]) if any(marks) else None
    return int(size) if size.isdecimal() and len(size) < _MOST_DIGITS else None, version


def _skip(response: http.client.HTTPResponse, count: int) -> None:
    """Pass over the first bytes of a body, holding few of them."""
    while count > 0 and (content := _read(response, min(count, _SKIP_BYTES))):
        count -= len(content)


def _read(response: http.client.HTTPResponse, count: int) -> bytes:
    """Read ``count`` bytes, fewer only where the body itself ends. Raises IncompleteRead where it was cut."""
    content = response.read(count)
    if len(content) < count and response.length:  # what the headers promised and the connection did not bring
        raise http.client.IncompleteRead(content, response.length)
    return content


def _explain(status: int, url: str) -> StorageError:
    if status in (404, 410):
        return ObjectNotFound("There is no such object.", where=url)
    if status in (408, 425, 429) or status >= 500:
        return StoreUnreachable(f"The server answered with status {status}.", where=url)
    remedy = "check the URL, or fetch the file yourself and name the local one"
    if status in (401, 403):
        remedy = "only objects that need no login can be read over http"
    elif status in _REDIRECTS:
        remedy = "name the URL that the server leads to: only redirects to http and https are followed"
    return StorageError(f"The server refused with status {status}.", where=url, remedy=remedy)


def _connect(
    address: tuple[str, int], timeout: Any = None, source_address: Any = None, *, public_only: bool = False
) -> socket.socket:
    """Connect like ``socket.create_connection``, to checked addresses only."""
    host, port = address
    failure: OSError | None = None
    # Behind a proxy it is the proxy that resolves names, and it may well lie in this network.
    is_proxy = any(f"{host}:{port}" in proxy for proxy in urllib.request.getproxies().values())
    for _, numeric in resolve(host, port, public_only=public_only and not is_proxy):
        try:
            return socket.create_connection((numeric, port), timeout, source_address)
        except OSError as error:
            failure = error
    raise failure or OSError(f"{host} has no address")


class _CheckedConnection(http.client.HTTPConnection):
    def __init__(self, *args: Any, public_only: bool, **options: Any) -> None:
        super().__init__(*args, **options)
        self._create_connection = partial(_connect, public_only=public_only)


class _CheckedTlsConnection(http.client.HTTPSConnection):
    def __init__(self, *args: Any, public_only: bool, **options: Any) -> None:
        super().__init__(*args, **options)
        self._create_connection = partial(_connect, public_only=public_only)


class _CheckedHandler(urllib.request.HTTPHandler):
    def __init__(self, *, public_only: bool) -> None:
        super().__init__()
        self._public_only = public_only

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(cast(Any, partial(_CheckedConnection, public_only=self._public_only)), req)


class _CheckedTlsHandler(urllib.request.HTTPSHandler):
    def __init__(self, *, public_only: bool) -> None:
        super().__init__()
        self._public_only = public_only

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        connection = partial(_CheckedTlsConnection, public_only=self._public_only)
        return self.do_open(cast(Any, connection), req, context=ssl.create_default_context())


def _build_opener(*, public_only: bool) -> urllib.request.OpenerDirector:
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.UnknownHandler(),
        _CheckedHandler(public_only=public_only),
        _CheckedTlsHandler(public_only=public_only),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPRedirectHandler(),
        urllib.request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    return opener
