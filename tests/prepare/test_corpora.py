"""What prepare makes of corpora as people have them, and what it says of them."""

import gzip
import io
import json
import logging
import os
import re
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from outlast.corpus.config import CorpusConfig
from outlast.errors import ConfigError, CorpusError, OutlastError, ShardError
from outlast.prepare.build import prepare_data
from outlast.recipe import Recipe
from outlast.shards.config import ShardsConfig
from outlast.shards.manifest import read_manifest
from outlast.tokenizer.config import TokenizerConfig
from support.builds import WORDS, write_lines

TOKENIZER = TokenizerConfig(vocab_size=310, keep_whitespace=True)
SHARDS = ShardsConfig(num_shards=3, num_processes=1)
TEXT = " ".join(WORDS)


def prepare(caplog: pytest.LogCaptureFixture, corpus: CorpusConfig, out: Path) -> str:
    caplog.clear()
    with caplog.at_level(logging.INFO, "outlast"):
        prepare_data(Recipe(corpus=corpus, tokenizer=TOKENIZER, shards=SHARDS), out)
    return caplog.text


def tar_of(texts: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        folder = tarfile.TarInfo("texts")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for name, content in texts.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def test_a_tar_is_read_by_members_and_told_in_whole_numbers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    texts = {
        f"texts/{number}.txt": f"{number} これはひらがなのおおい文です。the quick brown fox".encode("cp932")
        for number in range(1200)
    }
    (tmp_path / "x.tar").write_bytes(tar_of(texts))
    (tmp_path / "y.tar.gz").write_bytes(gzip.compress(tar_of(texts)))
    for name, first in (
        ("x.tar", r"corpus: 1 tar of text \(each member a document\), 1\.\d+MB, 3 shards\n"),
        ("y.tar.gz", r"corpus: 1 tar of text .*kB, 1 shard, fewer than 3: what is compressed"),
    ):
        corpus = CorpusConfig(path=str(tmp_path / name), encoding="auto")
        said = prepare(caplog, corpus, tmp_path / name.partition(".")[0])
        assert re.search(first, said)
        assert "tars: 1200 members read; passed over: 1 folder" in said
        manifest, _ = read_manifest(str(tmp_path / name.partition(".")[0] / "manifest.json"))
        counts = manifest.provenance["counts"]
        assert counts["train"]["documents"] + counts["validation"]["documents"] == 1200
        assert manifest.provenance["members"] == {"folders": 1, "read": 1200}
        assert manifest.provenance["corpus"]["encodings"] == {"cp932": 1200}
        assert manifest.provenance["corpus"]["documents"] == "file"


def test_a_build_begun_before_formats_were_told_is_gone_on_with(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its plan says what was the default then; what that makes of the corpus now decides."""
    lines = CorpusConfig(path=str(write_lines(tmp_path / "a.jsonl")), format="jsonl")
    prepare(caplog, lines, tmp_path / "lines")
    plan = json.loads((tmp_path / "lines" / "plan.json").read_text())
    assert (plan["identity"]["corpus"]["format"], plan["identity"]["corpus"]["documents"]) == (
        "jsonl",
        "blank_line",
    )
    assert "complete already" in prepare(caplog, CorpusConfig(path=lines.path), tmp_path / "lines")
    (tmp_path / "b.txt").write_text("\n\n".join(f"{number} {TEXT}" for number in range(200)))
    old = CorpusConfig(path=str(tmp_path / "b.txt"), format="text", documents="blank_line")
    prepare(caplog, old, tmp_path / "text")
    assert "complete already" in prepare(caplog, CorpusConfig(path=old.path), tmp_path / "text")
    as_text = CorpusConfig(path=lines.path, format="text")
    prepare(caplog, as_text, tmp_path / "raw")
    with pytest.raises(ShardError, match=r'corpus\.format: "text" there, "jsonl" now'):
        prepare(caplog, CorpusConfig(path=lines.path), tmp_path / "raw")


def test_a_corpus_of_one_document_is_told_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.txt").write_text("\n".join(f"{word}{n} {TEXT}" for n, word in enumerate(WORDS * 20)))
    corpus = CorpusConfig(path=str(tmp_path / "a.txt"), seed=1)
    said = prepare(caplog, corpus, tmp_path / "out")
    assert "the corpus is one document: all of it is trained on, in one shard" in said
    assert "raise corpus.validation_fraction" not in said.lower()
    assert "train: 1 documents" in said
    assert re.search(
        r"unigram by \w+ on 1 of 1 documents, 0.0 MiB of 0.0 MiB of text, peak memory.* 9\d\.\d MiB", said
    )
    held_out = CorpusConfig(path=corpus.path, validation_fraction=1 - 2**-53)
    with pytest.raises(
        CorpusError, match=r"only document of the corpus is held out[\s\S]*validation_fraction = 0"
    ):
        prepare(caplog, held_out, tmp_path / "none")


def test_a_few_documents_of_which_none_is_held_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.txt").write_text("\n\n".join(f"{number} {TEXT}" for number in range(40)))
    corpus = CorpusConfig(path=str(tmp_path / "a.txt"), validation_fraction=1e-9)
    said = prepare(caplog, corpus, tmp_path / "out")
    assert "nothing is held out: of 40 documents each had a chance of 1e-09. Raise" in said
    empty = tmp_path / "empty.txt"
    empty.write_text(" \n")
    apart = CorpusConfig(path=corpus.path, validation_path=str(empty))
    assert "corpus.validation_path hold no document" in prepare(caplog, apart, tmp_path / "apart")


@pytest.mark.skipif(sys.platform == "darwin", reason="its file system takes no such names")
def test_names_that_are_no_utf8_or_would_write_on_the_terminal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    names = ["青空".encode("cp932"), b"\x1b[31mred\n", b"a\\xff", b"a\xff", "日本.txt".encode()]
    for number, name in enumerate(names):
        text = "\n\n".join(f"{name!r} {number} {count} {TEXT}" for count in range(50))
        Path(os.fsdecode(os.fsencode(folder) + b"/" + name)).write_text(text)
    corpus = CorpusConfig(path=str(folder))
    said = prepare(caplog, corpus, tmp_path / "out")
    assert "5 files of text" in said
    plan: dict[str, Any] = json.loads((tmp_path / "out" / "plan.json").read_text())
    assert sorted(plan["identity"]["files"]) == sorted(
        [r"\x90\u008b\xf3", r"\x1b[31mred\x0a", r"a\\xff", r"a\xff", "日本.txt"]
    )
    Path(os.fsdecode(os.fsencode(folder) + b"/" + names[1])).write_bytes(b"a\0b")
    with pytest.raises(CorpusError) as caught:
        prepare(caplog, corpus, tmp_path / "other")
    assert "\x1b" not in str(caught.value)
    assert r"\x1b[31mred\n, byte 1" in str(caught.value)


@pytest.mark.parametrize("below", ["", "data"])
def test_a_result_among_the_texts_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, below: str
) -> None:
    """After a kill its files would be texts, and the way out would delete the texts themselves."""
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text("\n\n".join(f"{count} {TEXT}" for count in range(50)))
    with pytest.raises(ConfigError, match="among the texts"):
        prepare(caplog, CorpusConfig(path=str(folder)), folder / below)
    assert sorted(path.name for path in folder.iterdir()) == ["a.txt"]
    if below:
        prepare(caplog, CorpusConfig(path=str(folder), include="*.txt"), folder / "data")
        prepare(caplog, CorpusConfig(path=str(folder), exclude=("data*/**",)), folder / "data2")


def test_names_without_a_file_behind_them_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text("\n\n".join(f"{count} {TEXT}" for count in range(50)))
    (folder / "lost.txt").symlink_to("/nowhere")
    os.mkfifo(folder / "pipe.txt")
    said = prepare(caplog, CorpusConfig(path=str(folder)), tmp_path / "out")
    assert "2 names in " in said
    assert "lost.txt, pipe.txt" in said


def test_a_missing_corpus_leaves_nothing_behind(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    with pytest.raises(OutlastError, match=r"no such file or folder[\s\S]*corpus.path"):
        prepare(caplog, CorpusConfig(path=str(tmp_path / "absent")), tmp_path / "out")
    assert not (tmp_path / "out").exists()
