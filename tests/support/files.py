"""A folder behind http, as the plainest of servers gives it: whole files, no ranges."""

import http.server
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path


class _Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


class _Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128  # a reader asks for many ranges at the same time


def serving_folder(folder: Path) -> AbstractContextManager[str]:
    """Serve a folder on loopback; the URL is what is entered with."""
    return serving(partial(_Handler, directory=str(folder)))


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
