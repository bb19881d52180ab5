"""A real nginx before a folder: ranges, connections that are kept, bodies by sendfile.

In: a folder. Out: its URL. The program is Debian's ``nginx-light``, which scripts/test installs where it may;
without it a test skips.
"""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.s3 import free_port

_SETTINGS = """
daemon off;
master_process off;
pid {work}/pid;
error_log {work}/error.log;
events {{ worker_connections 256; }}
http {{
    access_log off;
    sendfile on;
    client_body_temp_path {work}/a; proxy_temp_path {work}/b; fastcgi_temp_path {work}/c;
    uwsgi_temp_path {work}/d; scgi_temp_path {work}/e;
    server {{ listen 127.0.0.1:{port}; root {folder}; }}
}}
"""


@contextmanager
def serving_by_nginx(folder: Path) -> Generator[str]:
    """Serve a folder on loopback; yield its URL."""
    program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        pytest.skip("nginx is not installed: no real web server to test on")
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="outlast-nginx-") as work:
        settings = Path(work, "nginx.conf")
        settings.write_text(_SETTINGS.format(work=work, port=port, folder=folder))
        process = subprocess.Popen(
            [program, "-p", work, "-c", str(settings), "-e", f"{work}/error.log"], stderr=subprocess.DEVNULL
        )
        try:
            _wait_until_listening(port, process, Path(work, "error.log"))
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait()


def _wait_until_listening(port: int, process: subprocess.Popen[bytes], errors: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), 1):
                return
        except OSError:
            assert process.poll() is None, f"nginx has ended: {errors.read_text()}"
            assert time.monotonic() < deadline, "nginx does not listen"
            time.sleep(0.02)
