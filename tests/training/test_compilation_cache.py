"""The folder of compiled programs: what a kill left half-written goes, what is whole stays; jax agrees."""

import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
import zstandard

from outlast.training.compilation_cache import delete_broken_entries

# One process that compiles one small program with the cache in a folder, through the package.
PROGRAM = """
import sys
import jax
from outlast.training.compilation_cache import use_compilation_cache
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
use_compilation_cache(sys.argv[1])
assert jax.jit(lambda x: x + 1)(1) == 2
"""
TEXT = b"a compiled program" * 1000
FORMS = {"zlib": zlib.compress(TEXT), "zstandard": zstandard.ZstdCompressor().compress(TEXT)}


def compile_in(folder: Path) -> str:
    """Run the program; return its warnings."""
    line = [sys.executable, "-c", PROGRAM, str(folder)]
    return subprocess.run(line, check=True, capture_output=True, text=True).stderr


def entries(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*-cache")}


def test_an_entry_that_jax_did_not_finish_is_made_anew(tmp_path: Path) -> None:
    """With jax itself: the test notices when jax changes the names or the form of its entries."""
    compile_in(tmp_path)
    whole = entries(tmp_path)
    assert whole, "jax wrote no entry: it keeps them elsewhere now"
    for name, content in whole.items():
        (tmp_path / name).write_bytes(content[: len(content) // 2])
    assert compile_in(tmp_path) == ""
    assert entries(tmp_path).keys() == whole.keys()
    again = entries(tmp_path)
    assert all(len(again[name]) > len(whole[name]) // 2 for name in whole)
    assert delete_broken_entries(tmp_path) == []
    compile_in(tmp_path)
    assert entries(tmp_path) == again  # read, not written again


@pytest.mark.parametrize("form", FORMS)
def test_what_is_cut_short_goes_and_what_is_whole_stays(tmp_path: Path, form: str) -> None:
    content = FORMS[form]
    (tmp_path / "whole-cache").write_bytes(content)
    for length in (0, 1, 3, 4, 5, len(content) // 2, len(content) - 1):
        (tmp_path / f"cut-{length}-cache").write_bytes(content[:length])
    (tmp_path / "longer-cache").write_bytes(content + content)
    deleted = {path.name for path in delete_broken_entries(tmp_path)}
    assert len(deleted) == 8
    assert entries(tmp_path) == {"whole-cache": content}


def test_another_form_and_other_files_stay(tmp_path: Path) -> None:
    (tmp_path / "entry-cache").write_bytes(b"a form of the future")
    (tmp_path / "entry-atime").write_bytes(b"")
    assert delete_broken_entries(tmp_path) == []
    assert (tmp_path / "entry-cache").exists()
    assert (tmp_path / "entry-atime").exists()


def test_each_entry_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "old-cache").write_bytes(FORMS["zlib"])
    assert delete_broken_entries(tmp_path) == []
    # Damage that does not show in the time of the file: it is older than the check, so nobody looks.
    (tmp_path / "old-cache").write_bytes(FORMS["zlib"][:10])
    os.utime(tmp_path / "old-cache", (1, 1))
    assert delete_broken_entries(tmp_path) == []
    # A writer that was killed after the check has left a file younger than the check.
    (tmp_path / "new-cache").write_bytes(FORMS["zlib"][:10])
    assert [path.name for path in delete_broken_entries(tmp_path)] == ["new-cache"]


def test_a_folder_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    assert delete_broken_entries(tmp_path / "new") == []
    assert not (tmp_path / "new").exists()
