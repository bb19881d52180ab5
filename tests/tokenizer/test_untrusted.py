"""Tokenizer files made to harm are refused before a library loads them; those of honest makers are not."""

import base64
import io
import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from outlast.errors import TokenizerError
from outlast.storage import LocalStore
from outlast.tokenizer.importing import import_tokenizer
from outlast.tokenizer.sentencepiece_model import parse_model
from outlast.tokenizer.untrusted import check_charsmap, load_json
from support.tokenizer_files import SPECIAL, bring, dividing, document

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def replacing(*pairs: tuple[str, str]) -> dict[str, Any]:
    steps = [{"type": "Replace", "pattern": {"String": old}, "content": new} for old, new in pairs]
    return {"type": "Sequence", "normalizers": steps}


def precompiled(table: bytes) -> dict[str, Any]:
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()}


@pytest.fixture(scope="module")
def model() -> bytes:
    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["hello world a b c"] * 50),
        model_writer=file,
        vocab_size=20,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return file.getvalue()


def test_a_sound_file_is_loaded(tmp_path: Path) -> None:
    bring(tmp_path, json.dumps(document()).encode())


@pytest.mark.parametrize("table", [b"\xff", b"\x10\0\0\0" + b"\xff" * 64 + b"\0", b"\x04\0\0\0" * 3])
def test_a_damaged_table_is_refused(tmp_path: Path, table: bytes) -> None:
    with pytest.raises(TokenizerError, match="The normalisation table is damaged"):
        bring(tmp_path, json.dumps(document(normalizer=precompiled(table))).encode())


def test_the_table_of_a_sound_model_passes_and_its_damage_is_met(model: bytes) -> None:
    table = parse_model(model).charsmap
    check_charsmap(table)
    load_json(json.dumps(document(normalizer=precompiled(table))).encode())

    @given(st.lists(st.tuples(st.integers(0, len(table) - 1), st.integers(0, 255)), min_size=1, max_size=6))
    def survive(changes: list[tuple[int, int]]) -> None:
        broken = bytearray(table)
        for place, value in changes:
            broken[place] = value
        try:
            check_charsmap(bytes(broken))
        except TokenizerError:
            return
        try:
            processor = sentencepiece.SentencePieceProcessor(model_proto=model.replace(table, bytes(broken)))
        except RuntimeError:
            return  # it has rules of its own
        processor.encode("ﬁ ｶﾞ Å hello")

    survive()


def test_a_model_with_a_damaged_table_does_not_end_the_process(model: bytes, tmp_path: Path) -> None:
    table = parse_model(model).charsmap
    (tmp_path / "tokenizer.model").write_bytes(model.replace(table[4:5000], b"\xfe" * 4996))
    with pytest.raises(TokenizerError, match="table is damaged"):
        import_tokenizer(tmp_path / "tokenizer.model", LocalStore(tmp_path), "out", append_missing=True)


@pytest.mark.parametrize("number", [8, 30])
def test_replacements_that_let_a_text_grow_are_refused(tmp_path: Path, number: int) -> None:
    content = json.dumps(document(normalizer=replacing(*[("a", "aa")] * number))).encode()
    with pytest.raises(TokenizerError, match=r"normaliser (makes a text grow|or one of its patterns takes)"):
        bring(tmp_path, content)


def test_replacements_that_only_seem_to_are_not(tmp_path: Path) -> None:
    pairs = [(chr(0xF0000 + number), f"word{number}") for number in range(8)]
    bring(tmp_path, json.dumps(document(normalizer=replacing(*pairs))).encode())


def test_a_model_without_an_unknown_piece_is_refused(model: bytes) -> None:
    with pytest.raises(TokenizerError, match="no unknown piece"):
        parse_model(model.replace(b"<unk>\x15\x00\x00\x00\x00\x18\x02", b"<unk>\x15\x00\x00\x00\x00\x18\x01"))


@pytest.mark.parametrize(
    "changes",
    [
        {"added_tokens": [{**document()["added_tokens"][0], "id": 2**40}]},
        {"model": {**document()["model"], "unk_id": 2**40}},
        {"model": {"type": "WordPiece", "unk_token": "?", "vocab": {"a": 2**33}}},
        {"model": {"type": "BPE", "vocab": {"a": 2**33}, "merges": []}},
        {"model": 5},
        {"normalizer": 5},
    ],
)
def test_what_no_library_holds_is_a_typed_error(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(TokenizerError, match=r"do: "):
        bring(tmp_path, json.dumps(document(**changes)).encode())


@pytest.mark.parametrize("pre_tokenizer", [None, BYTE_LEVEL])
def test_an_id_beyond_the_vocabulary_is_refused(tmp_path: Path, pre_tokenizer: dict[str, Any] | None) -> None:
    vocab = {**dict(zip(SPECIAL, range(5), strict=True)), "a": 2**32 - 2}
    model = {"type": "BPE", "unk_token": "<unk>", "vocab": vocab, "merges": []}
    with pytest.raises(TokenizerError, match=r"'a' has the id 4294967294, and the vocabulary 6 pieces"):
        bring(tmp_path, json.dumps(document(model=model, pre_tokenizer=pre_tokenizer)).encode())


def test_a_damaged_json_is_called_one(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"not a tokenizer\.json[\s\S]*fetch the file again"):
        bring(tmp_path, b"[" * 200_000)


@pytest.mark.parametrize("pattern", ["(a+)+$", "(x+x+)+y", r"(?:\w+\s?)+!", "b*b*b*b*b*c"])
@pytest.mark.parametrize("place", ["pre_tokenizer", "normalizer"])
def test_patterns_that_never_end_are_refused_before_a_text_meets_them(
    tmp_path: Path, pattern: str, place: str
) -> None:
    step = dividing(pattern)
    if place == "normalizer":
        step = {"type": "Replace", "pattern": {"Regex": pattern}, "content": ""}
    with pytest.raises(TokenizerError, match=r"one of its patterns takes too long[\s\S]*done within"):
        bring(tmp_path, json.dumps(document(**{place: step})).encode())


GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)


@pytest.mark.parametrize("pattern", [GPT_2, LLAMA_3])
def test_patterns_of_known_tokenizers_are_taken(pattern: str) -> None:
    load_json(json.dumps(document(pre_tokenizer=dividing(pattern))).encode())
