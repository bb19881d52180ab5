"""Fuzzing guided by coverage: as long as the code keeps showing new paths, the inputs get stranger."""

import subprocess
import sys
from pathlib import Path

import pytest

from outlast.storage.checksummed_json import seal
from support.hostile import to_json
from support.records import to_file_content

TARGET = Path(__file__).with_name("guided.py")
SEEDS: dict[str, bytes] = {
    "manifest": to_json({"format": "outlast-manifest", "version": 1, "splits": {}, "tokenizer": {}}),
    "shard": b"\x40\0\0\0\0\0\0\0"
    + b'{"__metadata__":{"format":"outlast-token-shard","version":"1"}}'.ljust(64),
    "commit": b'{"sha256":"","version":1}\n',
    "tokenizer": to_json({"format": "outlast-tokenizer", "version": 1, "special_ids": {"pad": 0}}),
    "sentencepiece": b"\x0a\x08\x0a\x01a\x15\0\0\0\0\x12\x02\x18\x01\x1a\x02\x18\x01",
    "sealed document": seal({"version": 1, "attempt": 2}),
    "recipe": b'[corpus]\npath = "x"\ninclude = ["**/*.txt"]\n\n[[training.phases]]\nsteps = 3\n',
    "json lines": b'{"text": "one"}\n{"text": "two \\ud83d\\ude00", "n": 1}\n',
    "portion record": to_json({"format": "outlast-piece", "version": 1, "piece": 0, "shards": {"train": {}}}),
    "tfrecord": to_file_content([b"one", b"two"]),
    "example": b"\x0a\x0c\x0a\x0a\x0a\x01a\x12\x05\x1a\x03\x0a\x01\x07",
}
RUNS = {"recipe": 40_000, "json lines": 40_000, "portion record": 40_000}
"""Of the parsers that read a file; 200,000 for the others."""


@pytest.mark.long
@pytest.mark.parametrize("parser", sorted(SEEDS))
def test_a_guided_fuzzer_finds_nothing(parser: str, tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="atheris is not installed (pip install outlast[fuzz])")
    runs = RUNS.get(parser, 200_000)
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "sound").write_bytes(SEEDS[parser])
    done = subprocess.run(
        [
            sys.executable,
            str(TARGET),
            parser,
            str(corpus),
            f"-runs={runs}",
            "-max_len=4096",
            "-rss_limit_mb=1024",
        ],
        capture_output=True,
        text=True,
        timeout=250,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"{runs}" in done.stderr
