"""A small Google Cloud Storage: the part of its XML interface that obstore's client speaks, in this process.

In: nothing. Out: ``GcsServer``, and the environment in which programs find it. Faithful where it matters to a
store: an object appears whole or not at all, ``x-goog-if-generation-match: 0`` creates and answers 412 where
the name is taken, ranges are answered with 206 and what there is, 416 beyond the end, listing is by pages.
Written from the requests that obstore makes; no real GCS
has been asked beside it, and there is no multipart upload, which the package does not use.
"""

import base64
import hashlib
import http.server
import json
import re
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

import pytest

_PAGE = 100


class _Object(NamedTuple):
    content: bytes
    generation: int

    @property
    def etag(self) -> str:
        return f'"{hashlib.md5(self.content, usedforsecurity=False).hexdigest()}"'


class GcsServer:
    """Buckets in memory. ``requests`` is what was asked, as (method, path)."""

    def __init__(self) -> None:
        self.buckets: dict[str, dict[str, _Object]] = {}
        self.requests: list[tuple[str, str]] = []
        self._generation = 0
        self._lock = threading.Lock()
        server = self

        class Handler(_Handler):
            gcs = server

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def new_bucket(self) -> str:
        """Make an empty bucket; return its URL."""
        name = f"bucket-{len(self.buckets)}"
        self.buckets[name] = {}
        return f"gs://{name}"

    def put(self, bucket: str, name: str, content: bytes, if_generation: str | None) -> _Object | None:
        """Write an object; return None where the condition does not hold."""
        with self._lock:
            objects = self.buckets[bucket]
            present = objects[name].generation if name in objects else 0
            if if_generation is not None and int(if_generation) != present:
                return None
            self._generation += 1
            objects[name] = _Object(content, self._generation)
            return objects[name]

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    gcs: GcsServer
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet, or each answer waits for an acknowledgement

    def do_PUT(self) -> None:
        bucket, name = self._place()
        length = int(self.headers["Content-Length"])
        content = self.rfile.read(length)
        if len(content) < length:  # the client died: nothing has been written
            self.close_connection = True
            return None
        if self.gcs.buckets.get(bucket) is None:
            return self._refuse(404, "NoSuchBucket")
        written = self.gcs.put(bucket, name, content, self.headers.get("x-goog-if-generation-match"))
        if written is None:
            return self._refuse(412, "PreconditionFailed")
        return self._answer(200, b"", self._headers_of(written))

    def do_GET(self) -> None:
        bucket, name = self._place()
        objects = self.gcs.buckets.get(bucket)
        if objects is None:
            return self._refuse(404, "NoSuchBucket")
        if not name:
            return self._list(objects, bucket)
        found = objects.get(name)
        if found is None:
            return self._refuse(404, "NoSuchKey")
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if span is None:
            return self._answer(200, found.content, self._headers_of(found))
        size, start = len(found.content), int(span[1])
        stop = min(int(span[2]) + 1 if span[2] else size, size)
        if start >= size:
            return self._refuse(416, "InvalidRange")
        headers = {**self._headers_of(found), "Content-Range": f"bytes {start}-{stop - 1}/{size}"}
        return self._answer(206, found.content[start:stop], headers)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_DELETE(self) -> None:
        bucket, name = self._place()
        if self.gcs.buckets.get(bucket, {}).pop(name, None) is None:
            return self._refuse(404, "NoSuchKey")
        return self._answer(204, b"", {})

    def _list(self, objects: dict[str, _Object], bucket: str) -> None:
        query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query))
        assert query.get("list-type") == "2", self.path
        prefix, after = query.get("prefix", ""), query.get("continuation-token", "")
        names = sorted(name for name in list(objects) if name.startswith(prefix) and name > after)
        more = names[_PAGE - 1] if len(names) > _PAGE else ""
        contents = "".join(
            f"<Contents><Key>{escape(name)}</Key><Generation>{entry.generation}</Generation>"
            f"<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>{escape(entry.etag)}</ETag>"
            f"<Size>{len(entry.content)}</Size></Contents>"
            for name in names[:_PAGE]
            if (entry := objects.get(name))
        )
        token = f"<NextContinuationToken>{escape(more)}</NextContinuationToken>" if more else ""
        text = (
            '<?xml version="1.0" encoding="UTF-8"?>'
            '<ListBucketResult xmlns="http://doc.s3.amazonaws.com/2006-03-01">'
            f"<Name>{bucket}</Name><Prefix>{escape(prefix)}</Prefix>"
            f"<IsTruncated>{str(bool(more)).lower()}</IsTruncated>{token}{contents}</ListBucketResult>"
        )
        self._answer(200, text.encode(), {"Content-Type": "application/xml"})

    def _place(self) -> tuple[str, str]:
        self.gcs.requests.append((self.command, self.path))
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        bucket, _, name = path.lstrip("/").partition("/")
        return bucket, name

    def _headers_of(self, entry: _Object) -> dict[str, str]:
        digest = base64.b64encode(hashlib.md5(entry.content, usedforsecurity=False).digest()).decode()
        return {
            "ETag": entry.etag,
            "x-goog-generation": str(entry.generation),
            "x-goog-hash": f"md5={digest}",
            "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT",
            "Content-Type": "application/octet-stream",
        }

    def _refuse(self, status: int, code: str) -> None:
        text = f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code></Error>"
        self._answer(status, text.encode(), {"Content-Type": "application/xml"})

    def _answer(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


def gcs_variables(endpoint: str, folder: Path) -> dict[str, str]:
    """Return the environment variables that lead the package to a GCS at an address.

    A service account without OAuth is how the client is told another address for reading and writing.
    """
    account = folder / "service-account.json"
    fields = {"gcs_base_url": endpoint, "disable_oauth": True}
    fields |= {"client_email": "", "private_key": "", "private_key_id": ""}
    account.write_text(json.dumps(fields))
    return {"GOOGLE_SERVICE_ACCOUNT": str(account), "GOOGLE_ALLOW_HTTP": "true"}


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[GcsServer]:
    server = GcsServer()
    yield server
    server.close()


@pytest.fixture
def gcs_environment(
    gcs_server: GcsServer, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> pytest.MonkeyPatch:
    """This process finds the server, too."""
    for name, value in gcs_variables(gcs_server.url, tmp_path_factory.mktemp("gcs")).items():
        monkeypatch.setenv(name, value)
    return monkeypatch
