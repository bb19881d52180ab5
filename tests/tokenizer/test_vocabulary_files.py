"""Vocabularies as Hugging Face folders hold them: the ids are those of the reference on real lines."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outlast.errors import TokenizerError
from outlast.storage import open_store
from outlast.tokenizer.encode import Tokenizer, load_tokenizer
from outlast.tokenizer.importing import import_tokenizer
from outlast.tokenizer.vocabulary_files import find_vocabulary, read_vocabulary
from support.pretrained import write_byte_level, write_wordpiece

CLS, SEP = 2, 3


def imported(folder: Path, name: str = "imported") -> Tokenizer:
    store = open_store(str(folder))
    import_tokenizer(folder, store, name)
    return load_tokenizer(store, name)


def reference(test_data: Path, name: str) -> list[dict[str, Any]]:
    lines = json.loads((test_data / f"parity/tokenizers/{name}.json").read_text())["lines"]
    return [line for line in lines if "[CLS]" not in line["text"]]  # a control id is out of the reach of text


@pytest.mark.parametrize(
    ("write", "name", "framed"),
    [(write_wordpiece, "wordpiece_uncased_en_zh_6k", True), (write_byte_level, "bytebpe_en_ja_5k", False)],
)
def test_a_folder_without_tokenizer_json_gives_the_reference_ids(
    test_data: Path, tmp_path: Path, write: Callable[[Path, Path], None], name: str, framed: bool
) -> None:
    write(test_data, tmp_path)
    tokenizer = imported(tmp_path)
    lines = reference(test_data, name)
    for line, found in zip(lines, tokenizer.encode_batch([line["text"] for line in lines]), strict=True):
        expected = line["ids"][1:-1] if framed else line["ids"]
        np.testing.assert_array_equal(found, expected, err_msg=line["text"])


def test_settings_decide_case_and_accents(test_data: Path, tmp_path: Path) -> None:
    write_wordpiece(test_data, tmp_path)
    texts = ["The café", "the cafe"]
    lower = imported(tmp_path).encode_batch(texts)
    np.testing.assert_array_equal(lower[0], lower[1])
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    as_it_is = imported(tmp_path, "as_it_is").encode_batch(texts)
    assert list(as_it_is[0]) != list(as_it_is[1])


def test_tokenizer_json_goes_before_the_older_files(test_data: Path, tmp_path: Path) -> None:
    write_wordpiece(test_data, tmp_path)
    (tmp_path / "tokenizer.json").write_bytes(read_vocabulary(tmp_path / "vocab.txt"))
    assert find_vocabulary(tmp_path) == tmp_path / "tokenizer.json"
    assert find_vocabulary(tmp_path / "vocab.txt") == tmp_path / "vocab.txt"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "There is no tokenizer here"),
        ({"vocab.txt": "[UNK]\nthe\nthe\n"}, r"The vocabulary repeats \['the'\]"),
        ({"vocab.txt": "a\nb\n"}, r"has no \[UNK\]"),
        ({"vocab.txt": "[UNK]\n"}, "no piece for pad"),
        ({"vocab.txt": "[UNK]\n", "tokenizer_config.json": '{"do_lower_case": 1}'}, "do_lower_case is 1"),
        ({"vocab.txt": "[UNK]\n", "tokenizer_config.json": "[" * 9000}, "tokenizer's settings"),
        ({"vocab.json": "{}"}, "Cannot read the tokenizer: No such file"),
        ({"vocab.json": '{"a": "b"}', "merges.txt": ""}, "The vocabulary is damaged"),
        ({"vocab.json": '{"a": 0}', "merges.txt": "a b\n"}, "The vocabulary is damaged"),
        ({"vocab.json": '{"a": 0}', "merges.txt": "a\n"}, "The vocabulary is damaged"),
    ],
)
def test_files_that_make_no_tokenizer(tmp_path: Path, files: dict[str, str], message: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(TokenizerError, match=message):
        imported(tmp_path)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes(b"[UNK]\n\xff\xfe")
    with pytest.raises(TokenizerError, match="no UTF-8 text"):
        imported(tmp_path)
