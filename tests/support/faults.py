"""A proxy between the package and a store, which answers as stores do on a bad day.

In: the address of a real server and, for each request that matches, a fault. Out: ``FaultyProxy``. Requests
without a fault pass through unchanged.
"""

import contextlib
import http.client
import http.server
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Literal

Fault = Literal[
    "503",
    "500",
    "429",
    "403",
    "409",
    "reset",
    "stall",
    "short",
    "delayed",
    "wrong",
    "lost",
    "down",
    "late",
    "twice",
    "held",
    "unanswered",
]
"""What happens to a request.

503, 500, 429, 403, 409: this answer, the server never asked. reset, down: the connection is cut before
anything is said. stall: half a body, then silence. short: half a body, then the end. delayed: the right
answer, late. wrong: the right length, other bytes. lost: the server acts, its answer is cut off. late: the
connection is cut, and the server gets the request a few requests later, or when ``land`` is called. twice: it
gets the request now, and once more like that. held: the server hears of it when the test lets go. unanswered:
the server acts, its answer waits until the test lets go.
"""

TRANSIENT: tuple[Fault, ...] = ("503", "500", "429", "reset", "short", "delayed")
_RESET = struct.pack("ii", 1, 0)
_DELAY_SECONDS = 0.3
_LATE_REQUESTS = 5

Request = tuple[str, str, bytes, dict[str, str]]

Matches = Callable[[str, str], bool]


class FaultyProxy:
    """A server on loopback in front of another.

    Attributes:
        stalled: set to let stalled connections go; ``close`` sets it.
        seen: method and path of each request that matched, in order.
        injected: the faults that took place.
        holding: set while a request is held.
        holds: late requests wait for ``land``, however many follow.
    """

    def __init__(self, host: str, port: int) -> None:
        self.upstream = (host, port)
        self.seen: list[tuple[str, str]] = []
        self.injected: list[Fault] = []
        self.stalled = threading.Event()
        self.holding = threading.Event()
        self._released = threading.Event()
        self.holds = False
        self._late: list[tuple[int, Request]] = []
        self._num_requests = 0
        self._faults: Callable[[int], Fault | None] = lambda _: None
        self._matches: Matches = lambda method, path: True
        self._lock = threading.Lock()
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def __enter__(self) -> "FaultyProxy":
        return self

    def __exit__(self, *_: object) -> None:
        self.stalled.set()
        self.let_go()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def inject(
        self,
        faults: Iterable[Fault | None] | Callable[[int], Fault | None],
        *,
        matching: Matches = lambda method, path: True,
    ) -> None:
        """From now on give the n-th matching request the n-th fault, or what ``faults(n)`` says."""
        if not callable(faults):
            remaining = iter(faults)
            faults = lambda _: next(remaining, None)  # noqa: E731
        with self._lock:
            self._faults, self._matches = faults, matching
            self.seen.clear()
            self.injected.clear()
            self.holding.clear()
            self._released.clear()

    def go_down(self) -> None:
        self.inject(lambda _: "down")

    def come_up(self) -> None:
        self.inject(())

    def hold(self) -> None:
        """Keep a request where it is until ``let_go``."""
        self.holding.set()
        self._released.wait(120)

    def let_go(self) -> None:
        self._released.set()

    def keep_back(self, request: Request) -> None:
        """Keep a request that the server is to get late."""
        with self._lock:
            self._late.append((self._num_requests, request))

    def land(self) -> None:
        """Let the server have every late request."""
        self._send_late(before=None)

    def count(self) -> None:
        """Note a request; those that it is late enough for reach the server before it."""
        with self._lock:
            self._num_requests += 1
            before = self._num_requests - _LATE_REQUESTS
        if not self.holds:
            self._send_late(before=before)

    def ask(self, request: Request) -> tuple[int, bytes, dict[str, str]]:
        """Return the server's status, body and headers."""
        method, path, body, headers = request
        with contextlib.closing(http.client.HTTPConnection(*self.upstream, timeout=60)) as connection:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read(), dict(answer.getheaders())

    def _send_late(self, *, before: int | None) -> None:
        with self._lock:
            due = [request for sent, request in self._late if before is None or sent <= before]
            self._late = self._late[len(due) :]
        for request in due:
            self.ask(request)

    def fault_of(self, method: str, path: str) -> Fault | None:
        with self._lock:
            if not self._matches(method, path):
                return None
            self.seen.append((method, path))
            fault = self._faults(len(self.seen) - 1)
            if fault:
                self.injected.append(fault)
            return fault


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that was cut off, or that gave up


class _Handler(http.server.BaseHTTPRequestHandler):
    owner: FaultyProxy
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet, or each answer waits for an acknowledgement

    def _handle(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        if len(body) < length:
            self.close_connection = True
            return
        self.owner.count()
        fault = self.owner.fault_of(self.command, self.path)
        if fault == "held":
            self.owner.hold()
        request = (self.command, self.path, body, dict(self.headers.items()))
        if fault in ("late", "twice"):
            self.owner.keep_back(request)
        if fault in ("reset", "down", "late"):
            self._cut()
        elif fault in ("503", "500", "429", "403", "409"):
            self._send(int(fault), b"<Error><Code>Injected</Code></Error>", {})
        else:
            self._forward(request, fault)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _handle

    def _forward(self, request: Request, fault: Fault | None) -> None:
        status, content, headers = self.owner.ask(request)
        if fault == "lost":
            return self._cut()
        if fault == "unanswered":
            self.owner.hold()
        if fault == "delayed":
            time.sleep(_DELAY_SECONDS)
        if fault == "wrong":
            content = bytes(byte ^ 0x5A for byte in content)
        return self._send(status, content, headers, fault)

    def _send(self, status: int, content: bytes, headers: dict[str, str], fault: Fault | None = None) -> None:
        self.send_response_only(status)
        length = headers.get("Content-Length") if self.command == "HEAD" else str(len(content))
        for name, value in headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        if length is not None and status != 204:
            self.send_header("Content-Length", length)
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault in ("short", "stall"):
            self.wfile.write(content[: len(content) // 2])
            self.wfile.flush()
            self.close_connection = True
            if fault == "stall":
                self.owner.stalled.wait(120)
            return
        self.wfile.write(content)

    def _cut(self) -> None:
        """End the connection by a reset."""
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.connection.shutdown(socket.SHUT_RD)
            self.connection.close()

    def log_message(self, format: str, *args: object) -> None:
        pass
