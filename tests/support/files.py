"""A folder behind http, as the plainest of servers gives it, whole files and no ranges; or by ranges."""

import http.server
import re
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path


class _Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


class _RangesHandler(_Handler):
    def do_GET(self) -> None:
        span = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        path = Path(self.translate_path(self.path))
        if span is None or not path.is_file():
            super().do_GET()
            return
        content, start = path.read_bytes(), int(span[1])
        part = content[start : int(span[2]) + 1]
        self.send_response(http.HTTPStatus.PARTIAL_CONTENT)
        self.send_header("Content-Range", f"bytes {start}-{start + len(part) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)


class _Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128  # a reader asks for many ranges at the same time


def serving_folder(folder: Path) -> AbstractContextManager[str]:
    """Serve a folder on loopback; the URL is what is entered with."""
    return serving(partial(_Handler, directory=str(folder)))


def serving_ranges(folder: Path) -> AbstractContextManager[str]:
    """Serve a folder by ranges, as most servers do."""
    return serving(partial(_RangesHandler, directory=str(folder)))


@contextmanager
def counting(folder: Path) -> Generator[tuple[str, list[str]]]:
    """Serve a folder on loopback; yield the URL, and the names of the files whose bytes were asked for."""
    asked: list[str] = []

    class Handler(_Handler):
        def do_GET(self) -> None:
            asked.append(self.path.lstrip("/"))
            super().do_GET()

    with serving(partial(Handler, directory=str(folder))) as url:
        yield url, asked


@contextmanager
def serving(handler: Callable[..., http.server.BaseHTTPRequestHandler]) -> Generator[str]:
    """Answer requests on loopback; yield the URL."""
    server = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def from_hexdump(page: str, number: int) -> bytes:
    lines = page.split("```hexdump\n")[number].split("\n```")[0].splitlines()
    return bytes.fromhex("".join(line[10:58] for line in lines))
