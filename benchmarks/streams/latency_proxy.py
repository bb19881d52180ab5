"""A proxy that makes a web server on this machine a distant one: every request waits before it is passed on.

In: the port of a server on loopback and a latency. Out: the port of the proxy, printed. Only GET and HEAD;
bodies go from socket to socket within the kernel, so that the proxy costs next to no processor time.

    python benchmarks/streams/latency_proxy.py 8080 0.02
"""

import os
import socket
import sys
import threading
import time

_PIECE = 2**20


def pass_on(client: socket.socket, port: int, latency_seconds: float) -> None:
    """Serve one connection until either side ends it."""
    reader, writer = os.pipe()
    with client, socket.create_connection(("127.0.0.1", port)) as server:
        try:
            while request := _read_head(client):
                time.sleep(latency_seconds)
                server.sendall(request)
                head = _read_head(server)
                client.sendall(head)
                if not request.startswith(b"HEAD"):
                    _splice(server, client, reader, writer, _body_length(head))
        except OSError:
            return
        finally:
            os.close(reader)
            os.close(writer)


def _read_head(connection: socket.socket) -> bytes:
    """Read up to the empty line, a byte too many never; nothing where the connection has ended."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        seen = connection.recv(2**16, socket.MSG_PEEK)
        end = (head + seen).find(b"\r\n\r\n", max(0, len(head) - 3))
        wanted = len(seen) if end < 0 else end + 4 - len(head)
        if not seen:
            return b""
        head += connection.recv(wanted)
    return head


def _body_length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


def _splice(source: socket.socket, target: socket.socket, reader: int, writer: int, length: int) -> None:
    while length:
        moved = os.splice(source.fileno(), writer, min(length, _PIECE))
        if not moved:
            raise ConnectionResetError
        length -= moved
        while moved:
            moved -= os.splice(reader, target.fileno(), moved)


def main() -> None:
    port, latency_seconds = int(sys.argv[1]), float(sys.argv[2])
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listening:
        print(listening.getsockname()[1], flush=True)
        while True:
            client, _ = listening.accept()
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=pass_on, args=(client, port, latency_seconds), daemon=True).start()


if __name__ == "__main__":
    main()
