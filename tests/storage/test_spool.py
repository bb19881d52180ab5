"""Temporary files as the content of an object, whatever their size."""

import tempfile
from pathlib import Path

from outlast.storage import LocalStore
from outlast.storage.spool import Spooled


def test_head_and_files_are_one_content(tmp_path: Path) -> None:
    contents = [b"", bytes(range(256)) * 2**16 + b"end", b"last"]
    with (
        tempfile.TemporaryFile() as first,
        tempfile.TemporaryFile() as second,
        tempfile.TemporaryFile() as third,
    ):
        files = [first, second, third]
        for file, content in zip(files, contents, strict=True):
            file.write(content)
        spooled = Spooled(b"head", files)
        expected = b"head" + b"".join(contents)
        assert spooled.size_bytes == len(expected)
        assert len(spooled) == 1 + 3 + 1
        assert max(map(len, spooled)) == 8 * 2**20
        assert b"".join(spooled[1:3]) == contents[1][: 2**24]
        assert spooled[-1] == b"last"
        for _ in range(2):  # a store that does not answer is asked again
            LocalStore(tmp_path).replace("object", spooled)
            assert (tmp_path / "object").read_bytes() == expected
