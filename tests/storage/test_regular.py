"""Files from outside are plain ones, and what is read whole is small."""

import ast
import http.server
import os
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from outlast.errors import StorageError
from outlast.storage import LocalStore, open_store
from outlast.storage.regular import open_regular, read_whole
from support.files import serving


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return path


def test_a_pipe_is_not_waited_for_and_a_device_not_read(fifo: Path) -> None:
    for path in (fifo, Path("/dev/zero")):
        with pytest.raises(OSError, match="a pipe or a device, which is never read"):
            read_whole(path)
    with pytest.raises(IsADirectoryError):
        open_regular(fifo.parent)
    with pytest.raises(StorageError, match="a pipe or a device"):
        LocalStore(fifo.parent).read("fifo")


def test_no_more_than_a_size_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert read_whole(tmp_path / "file", 5) == b"12345"
    with pytest.raises(OSError, match="It has more than 4 bytes, the most that is read whole"):
        read_whole(tmp_path / "file", 4)
    with pytest.raises(StorageError, match="more than 4 bytes"):
        LocalStore(tmp_path).read("file", 4)
    os.truncate(tmp_path / "file", 2**40)
    with pytest.raises(StorageError, match="more than 268435456 bytes"):
        LocalStore(tmp_path).read("file")


def endless() -> AbstractContextManager[str]:
    """A server whose bodies have no end."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            try:
                while True:
                    self.wfile.write(b"0" * 2**16)
            except OSError:
                pass  # the reader has had enough

        def log_message(self, format: str, *args: object) -> None:
            pass

    return serving(Handler)


def test_an_endless_body_ends() -> None:
    with endless() as url, pytest.raises(StorageError, match="more than 1000000 bytes"):
        open_store(url).read("manifest.json", 1_000_000)


def test_nothing_is_opened_another_way() -> None:
    """What is opened past ``regular`` may be a pipe. But for files of our own, and of the system."""
    own = {
        *("storage/regular.py", "storage/local.py", "storage/cache_files.py", "stream/remote/cache.py"),
        *("training/arithmetic.py", "training/compilation_cache.py", "checkpoint/liveness.py"),
        *("huggingface/folder.py", "huggingface/writer_lock.py", "recipe/shipped.py", "init/write.py"),
    }
    source = Path(__file__).parents[2] / "src" / "outlast"
    found = [
        f"{path.relative_to(source)}:{node.lineno}"
        for path in source.rglob("*.py")
        if path.relative_to(source).as_posix() not in own
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and _opens(node)
    ]
    assert not found, f"open with outlast.storage.regular: {found}"


def _opens(call: ast.Call) -> bool:
    if isinstance(call.func, ast.Attribute):
        of_path = call.func.attr == "open" and any(isinstance(a, ast.Constant) for a in call.args[:1])
        return call.func.attr in ("read_text", "read_bytes") or of_path
    return isinstance(call.func, ast.Name) and call.func.id == "open"
