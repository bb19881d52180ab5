"""Reading over http and https; nothing is ever written there.

In: the URL of a folder. Out: a read-only ``HttpStore``. The standard library's client is used because each
connection, the ones that follow a redirect included, must go to an address that was checked (``addresses``);
obstore cannot be told so.
"""

import http.client
import io
import socket
import ssl
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeVar, cast

from outlast.errors import ConfigError, ObjectNotFound, StorageError, StoreUnreachable
from outlast.storage.addresses import resolve
from outlast.storage.spool import spool_failed
from outlast.storage.store import Chunks, ObjectInfo, Pause, Store

T = TypeVar("T")

_SKIP_BYTES = 2**20
_DEFAULT_PORTS = {"http": 80, "https": 443}
_UNQUOTED = "/%:@!$&'()*+,;=~"
_COMPRESSED = (".gz", ".tgz", ".bz2", ".xz", ".zst")
"""Of objects with these endings some servers call the content its encoding."""
_is_repeated: ContextVar[bool] = ContextVar("is_repeated", default=False)


class HttpStore(Store):
    """Objects below an http(s) URL."""

    silence_seconds: float = 60.0
    """How long a connection may stand still before the request is repeated."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        host, port, self._address = _parse(self.url)
        try:
            resolve(host, port)
        except StorageError as error:
            raise ConfigError(error.message, where=self.url, expected=error.expected) from None
        except OSError:
            pass  # no network yet: said when something is read
        self._opener = _build_opener()

    def read(self, name: str) -> bytes:
        return self._ask(name, {}, lambda response: response.read())

    def read_range(self, name: str, start: int, length: int) -> bytes:
        if length == 0:
            return b""

        def take(response: http.client.HTTPResponse) -> bytes:
            if response.status != http.client.PARTIAL_CONTENT:
                _skip(response, start)  # a server that knows no ranges sends the whole
            else:
                _check_range(response.headers.get("Content-Range"), start, f"{self.url}/{name}")
            return _read(response, length)

        content = self._ask(name, {"Range": f"bytes={start}-{start + length - 1}"}, take)
        if len(content) != length:
            raise StorageError(
                f"The object ends early: {len(content)} of {length} bytes from {start}.",
                where=f"{self.url}/{name}",
            )
        return content

    def size_bytes(self, name: str) -> int:
        size = self._ask(name, {}, lambda response: response.headers.get("Content-Length"), method="HEAD")
        if size is None or not size.isdecimal():
            raise StorageError("The server does not tell the size of the object.", where=f"{self.url}/{name}")
        return int(size)

    def open(self, name: str) -> io.BufferedIOBase:
        """As everywhere; from a server that knows no ranges the object is fetched whole, onto the disk."""
        if self.size_bytes(name) and self._knows_ranges(name):
            return super().open(name)
        file = tempfile.TemporaryFile()  # noqa: SIM115

        def take(response: http.client.HTTPResponse) -> None:
            file.seek(0)
            file.truncate()
            while content := _read(response, _SKIP_BYTES):
                try:
                    file.write(content)
                except OSError as error:
                    raise spool_failed(error) from error

        try:
            self._ask(name, {}, take)
        except BaseException:
            file.close()
            raise
        file.seek(0)
        return cast(io.BufferedIOBase, file)

    def _knows_ranges(self, name: str) -> bool:
        partial = http.client.PARTIAL_CONTENT
        return self._ask(name, {"Range": "bytes=0-0"}, lambda response: response.status == partial)

    def retry(self, action: Callable[[], T], pause: Pause = time.sleep) -> T:
        """As everywhere. What repeats itself, such as ``read``, leaves that to a ``retry`` around it."""
        if _is_repeated.get():
            return action()
        token = _is_repeated.set(True)
        try:
            return super().retry(action, pause)
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
        url = f"{self._address}/{urllib.parse.quote(name)}"

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
    remedy = "only objects that need no login can be read over http" if status in (401, 403) else None
    return StorageError(f"The server refused with status {status}.", where=url, remedy=remedy)


def _connect(address: tuple[str, int], timeout: Any = None, source_address: Any = None) -> socket.socket:
    """Connect like ``socket.create_connection``, to checked addresses only."""
    host, port = address
    failure: OSError | None = None
    for _, numeric in resolve(host, port):
        try:
            return socket.create_connection((numeric, port), timeout, source_address)
        except OSError as error:
            failure = error
    raise failure or OSError(f"{host} has no address")


class _CheckedConnection(http.client.HTTPConnection):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._create_connection = _connect


class _CheckedTlsConnection(http.client.HTTPSConnection):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._create_connection = _connect


class _CheckedHandler(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_CheckedConnection, req)


class _CheckedTlsHandler(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_CheckedTlsConnection, req, context=ssl.create_default_context())


def _build_opener() -> urllib.request.OpenerDirector:
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.UnknownHandler(),
        _CheckedHandler(),
        _CheckedTlsHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPRedirectHandler(),
        urllib.request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    return opener
