"""A corpus written as text is the same corpus: N documents in, N documents out, in both directions."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest

from outlast.config import build
from outlast.corpus.config import CorpusConfig
from outlast.corpus.encoding import Tally
from outlast.corpus.plan import list_corpus, plan_portions
from outlast.corpus.read import read_documents
from outlast.corpus.write import write_corpus
from outlast.errors import CorpusError

DOCUMENTS = [
    "一つ。「二つ。三つ。」と。\n\n\n四つ？五つ",
    "Mr. A came. He left.\n",
    " \n",
    "六つ。\n　七つ。",
]
LINES = [
    ["一つ。", "「二つ。三つ。」と。", "四つ？", "五つ"],
    ["Mr. A came.", "He left."],
    ["六つ。", "七つ。"],
]


def corpus_of(folder: Path, documents: Sequence[str], **values: Any) -> CorpusConfig:
    path = folder / "corpus.jsonl"
    path.write_text("\n".join(json.dumps({"text": text}) for text in documents), encoding="utf-8")
    shared = {"path": str(path), "format": "jsonl", "validation_fraction": 0.0}
    return build(CorpusConfig, {**shared, **values}, where="test")


def read(path: str) -> list[str]:
    config = CorpusConfig(path=path, sentences="lines")
    return list(read_documents(config, plan_portions(list_corpus(config), 1)[0], Tally()))


def test_one_sentence_a_line_and_one_blank_line_between_documents(tmp_path: Path) -> None:
    write_corpus(corpus_of(tmp_path, DOCUMENTS, sentences="rules"), str(tmp_path / "out"))
    text = (tmp_path / "out" / "train.00000").read_text(encoding="utf-8")
    assert text == "\n".join("".join(f"{line}\n" for line in lines) for lines in LINES)
    assert [document.split("\n") for document in read(str(tmp_path / "out"))] == LINES


@hypothesis.given(
    documents=st.lists(st.text(st.sampled_from("あ。!「」 \n\u3000\x1c\u2028ab."), max_size=30), max_size=12),
    sentences=st.sampled_from(["none", "lines", "rules"]),
    num_files=st.integers(1, 5),
    by=st.sampled_from(["documents", "bytes"]),
)
def test_documents_in_are_documents_out(
    tmp_path_factory: pytest.TempPathFactory, documents: list[str], sentences: str, num_files: int, by: Any
) -> None:
    folder = tmp_path_factory.mktemp("corpus")
    kept = ["first", *(document for document in documents if document.strip())]
    config = corpus_of(folder, ["first", *documents], sentences=sentences)
    write_corpus(config, str(folder / "out"), num_files=num_files, by=by)
    parts = sorted((folder / "out").iterdir())
    assert [path.name for path in parts] == [f"train.{part:05d}" for part in range(num_files)]
    found = read(str(folder / "out"))
    assert ["".join(document.split()) for document in found] == [
        "".join(document.split()) for document in kept
    ]
    if by == "documents":
        counts = [len(read(str(path))) if path.stat().st_size else 0 for path in parts]
        assert max(counts) - min(counts) <= 1

    again = CorpusConfig(path=str(folder / "out"), sentences="lines", validation_fraction=0.0)
    write_corpus(again, str(folder / "again"), num_files=num_files, by="documents")
    assert read(str(folder / "again")) == found
    if by == "documents":
        assert [(folder / "again" / path.name).read_bytes() for path in parts] == [
            path.read_bytes() for path in parts
        ]


def test_files_of_equal_bytes(tmp_path: Path) -> None:
    config = corpus_of(tmp_path, ["x" * 1000, *["y" * 10] * 100])
    write_corpus(config, str(tmp_path / "bytes"), num_files=2, by="bytes")
    assert [len(read(str(tmp_path / "bytes" / f"train.0000{part}"))) for part in range(2)] == [1, 100]
    write_corpus(config, str(tmp_path / "documents"), num_files=2)
    assert [len(read(str(tmp_path / "documents" / f"train.0000{part}"))) for part in range(2)] == [51, 50]


def test_held_out_documents_have_files_of_their_own(tmp_path: Path) -> None:
    documents = [f"document {number}" for number in range(200)]
    config = corpus_of(tmp_path, documents, validation_fraction=0.2)
    write_corpus(config, str(tmp_path / "out"), num_files=3)
    train, validation = read(str(tmp_path / "out" / "train.*")), read(str(tmp_path / "out" / "validation.*"))
    assert sorted(train + validation) == sorted(documents)
    assert 20 < len(validation) < 60
    assert train == [document for document in documents if document in train]


def test_files_of_another_division_are_refused(tmp_path: Path) -> None:
    config = corpus_of(tmp_path, DOCUMENTS)
    write_corpus(config, str(tmp_path / "out"), num_files=3)
    with pytest.raises(CorpusError, match=r"another division: train.00002[\s\S]*another --out"):
        write_corpus(config, str(tmp_path / "out"), num_files=2)
    write_corpus(config, str(tmp_path / "out"), num_files=3)
    with pytest.raises(CorpusError, match="0 files cannot be written"):
        write_corpus(config, str(tmp_path / "out"), num_files=0)


def test_articles_in_are_articles_out(test_data: Path, tmp_path: Path) -> None:
    path = test_data / "text-ja-kyoto-wikipedia" / "train-00.jsonl"
    config = CorpusConfig(path=str(path), format="jsonl", sentences="rules", validation_fraction=0.0)
    write_corpus(config, str(tmp_path / "out"), num_files=4)
    with path.open(encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in lines]
    found = read(str(tmp_path / "out"))
    assert ["".join(text.split()) for text in found] == ["".join(text.split()) for text in texts]
