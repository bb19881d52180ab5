"""Encoding and importing: equal to the libraries' own ids on real lines, and control ids out of the reach of
text.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as HuggingFaceTokenizer

from outlast.errors import TokenizerError
from outlast.storage import open_store
from outlast.tokenizer.config import TokenizerConfig
from outlast.tokenizer.encode import Tokenizer, load_tokenizer
from outlast.tokenizer.importing import import_tokenizer
from outlast.tokenizer.train import train_tokenizer

SENTENCEPIECE = ["spm_unigram_ja_8k", "spm_unigram_ja_8k_bytefallback", "spm_bpe_en_zh_4k"]
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def reference_lines(test_data: Path, name: str) -> list[dict[str, Any]]:
    return json.loads((test_data / f"parity/tokenizers/{name}.json").read_text())["lines"]


def import_file(file: Path, folder: str, **options: Any) -> Tokenizer:
    store = open_store(folder)
    import_tokenizer(file, store, "imported", **options)
    return load_tokenizer(store, "imported")


def byte_level_file(test_data: Path, folder: Path) -> Path:
    prefix = str(test_data / "parity/tokenizers/bytebpe_en_ja_5k")
    tokenizer = HuggingFaceTokenizer(models.BPE.from_file(f"{prefix}-vocab.json", f"{prefix}-merges.txt"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in ROBERTA])
    tokenizer.save(str(folder / "bytes.json"))
    return folder / "bytes.json"


def wordpiece_file(test_data: Path, folder: Path) -> Path:
    vocab = str(test_data / "parity/tokenizers/wordpiece_uncased_en_zh_6k-vocab.txt")
    tokenizer = HuggingFaceTokenizer(models.WordPiece.from_file(vocab, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in BERT])
    tokenizer.save(str(folder / "words.json"))
    return folder / "words.json"


@pytest.mark.parametrize("name", SENTENCEPIECE)
def test_sentencepiece_ids_are_the_reference(test_data: Path, folder: str, name: str) -> None:
    tokenizer = import_file(test_data / f"parity/tokenizers/{name}.model", folder, append_missing=True)
    lines = reference_lines(test_data, name)
    for line, ids in zip(lines, tokenizer.encode_batch([line["text"] for line in lines]), strict=True):
        assert ids.dtype == np.int32
        assert ids.tolist() == line["ids"]
        assert tokenizer.decode(ids) == line["decoded"]
    texts = [line["text"] for line in lines]
    contents = [text.encode() for text in texts]
    for line, ids in zip(lines, tokenizer.encode_utf8(texts, contents), strict=True):
        assert (ids.dtype, ids.tolist()) == (np.int32, line["ids"])


@pytest.mark.parametrize(
    ("name", "make"), [("bytebpe_en_ja_5k", byte_level_file), ("wordpiece_uncased_en_zh_6k", wordpiece_file)]
)
def test_tokenizers_ids_are_the_reference(test_data: Path, tmp_path: Path, name: str, make: Any) -> None:
    tokenizer = import_file(make(test_data, tmp_path), str(tmp_path))
    specials = set(tokenizer.manifest.special_ids.values()) - {tokenizer.manifest.special_ids["unk"]}
    for line in reference_lines(test_data, name):
        ids = tokenizer.encode(line["text"]).tolist()
        assert tokenizer.encode_utf8([line["text"]], [line["text"].encode()])[0].tolist() == ids
        if not specials & set(line["ids"]):
            assert ids == line["ids"]
        assert not specials & set(ids)


def test_missing_special_pieces_are_all_listed(test_data: Path, folder: str) -> None:
    file = test_data / "parity/tokenizers/spm_unigram_ja_8k.model"
    with pytest.raises(TokenizerError) as caught:
        import_file(file, folder)
    assert "pad (<pad> or [PAD]), mask ([MASK] or <mask>)" in caught.value.message
    assert caught.value.where == str(file)


def test_appended_pieces_get_ids_after_the_last(test_data: Path, folder: str) -> None:
    file = test_data / "parity/tokenizers/spm_unigram_ja_8k.model"
    tokenizer = import_file(file, folder, append_missing=True)
    assert tokenizer.manifest.special_ids == {"pad": 8000, "unk": 0, "cls": 1, "sep": 2, "mask": 8001}
    assert (tokenizer.piece(8000), tokenizer.piece(8001)) == ("<pad>", "[MASK]")
    assert not {8000, 8001} & set(tokenizer.encode("<pad>[MASK]").tolist())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no model at all", "not a sentencepiece model"),
        (b"", "sentencepiece model is without pieces"),
        (b'{"model": {"type": "WordLevel"}}', "not a tokenizer.json of a known kind"),
        (b"{", "not a tokenizer.json of a known kind"),
    ],
)
def test_files_that_are_no_tokenizer(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(TokenizerError, match=message):
        import_file(tmp_path / "file", str(tmp_path))


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="Cannot read the tokenizer"):
        import_file(tmp_path / "absent", str(tmp_path))


def test_a_vocabulary_whose_text_reaches_a_special_piece_is_refused(tmp_path: Path) -> None:
    vocab = {name: number for number, name in enumerate([*BERT, "word"])}
    tokenizer = HuggingFaceTokenizer(models.WordPiece(vocab=vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "leaky.json"))
    with pytest.raises(TokenizerError, match=r"text '\[PAD\]' encodes to the control piece"):
        import_file(tmp_path / "leaky.json", str(tmp_path))


@pytest.mark.parametrize("library", ["sentencepiece", "tokenizers"])
def test_half_a_surrogate_pair_and_an_id_out_of_range_are_errors(
    source_documents: list[str], folder: str, library: Any
) -> None:
    store = open_store(folder)
    config = TokenizerConfig(library=library, kind="bpe", vocab_size=700)
    train_tokenizer(config, lambda: iter(source_documents), store, "t", report=lambda line: None)
    tokenizer = load_tokenizer(store, "t")
    with pytest.raises(TokenizerError, match="half of a surrogate pair") as caught:
        tokenizer.encode_batch(["fine", "a\ud83d"])
    assert caught.value.where == "text 1 of the batch, character 1"
    for ids in ([700], [-1]):
        with pytest.raises(TokenizerError, match="outside the vocabulary"):
            tokenizer.decode(ids)
    with pytest.raises(TokenizerError, match="outside the vocabulary"):
        tokenizer.piece(-1)
    assert tokenizer.decode([0, 2, *tokenizer.encode("def").tolist(), 3]) == "def"
    assert [ids.tolist() for ids in tokenizer.encode_batch([])] == []
    assert tokenizer.encode("").tolist() == []


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            models.BPE({**{name: index for index, name in enumerate(BERT)}, "a": 5}, []),
            "has no unknown piece",
        ),
        (
            models.WordPiece({**{name: index for index, name in enumerate(BERT)}, "a": 5}, unk_token="a"),
            "unknown piece is 'a'",
        ),
        (models.Unigram([*((name, 0.0) for name in BERT), ("a", -1.0)], None), "has no unknown piece"),
        (models.Unigram([*((name, 0.0) for name in BERT), ("a", -1.0)], 5), "unknown piece is 'a'"),
    ],
)
def test_a_vocabulary_without_the_unknown_piece_is_refused(tmp_path: Path, model: Any, message: str) -> None:
    """What it lacks would vanish, or become another piece, or end the encoding."""
    HuggingFaceTokenizer(model).save(str(tmp_path / "file.json"))
    with pytest.raises(TokenizerError, match=message):
        import_file(tmp_path / "file.json", str(tmp_path))


def test_bytes_need_no_unknown_piece(test_data: Path, tmp_path: Path) -> None:
    file = byte_level_file(test_data, tmp_path)
    assert import_file(file, str(tmp_path)).unknown_piece() == (None, True)
    data = json.loads(file.read_text())
    data["pre_tokenizer"] = {"type": "Whitespace"}
    file.write_text(json.dumps(data))
    with pytest.raises(TokenizerError, match="would vanish"):
        import_file(file, str(tmp_path))
