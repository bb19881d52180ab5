"""The Hugging Face files of a tokenizer give our ids: by the tokenizers library here, by transformers among
the peers.

Where a converted Unigram model differs from sentencepiece, the two segmentations have the same score up to
the rounding of float32 sums; docs/design/tokenizers.md says why.
"""

import inspect
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from outlast.config import build
from outlast.huggingface.export import export_model
from outlast.huggingface.tokenizer_files import tokenizer_json, write_tokenizer_files
from outlast.models.architectures import ARCHITECTURES
from outlast.models.config import ArchitectureName, ModelConfig, resolve_model
from outlast.models.params import flatten, init_params
from outlast.storage import open_store
from outlast.tokenizer.config import TokenizerConfig
from outlast.tokenizer.encode import Tokenizer, load_tokenizer
from outlast.tokenizer.importing import import_tokenizer
from outlast.tokenizer.sentencepiece_model import parse_model
from outlast.tokenizer.train import train_tokenizer

REFERENCES = ["spm_unigram_ja_8k", "spm_unigram_ja_8k_bytefallback", "spm_bpe_en_zh_4k"]
KINDS: list[dict[str, Any]] = [
    {},
    {"kind": "bpe"},
    {"kind": "bpe", "lowercase": True, "byte_fallback": True},
    {"kind": "bpe", "normalization": "identity"},
    {"keep_whitespace": True},
    {"keep_whitespace": True, "kind": "bpe"},
    {"library": "tokenizers", "kind": "bpe"},
    {"library": "tokenizers", "kind": "bpe", "byte_level": True},
    {"library": "tokenizers", "kind": "wordpiece", "lowercase": True},
]
ODD = [
    *("", " ", "   ", "▁", "▁a", " ▁a ▁", "a  b", " a ", "\t\n\r\n x", "[CLS] a<unk>[MASK]", "<s><0x41>"),
    *("_NEW_", "_NEW_a", " _NEW_ a", "a _NEW_ _NEW_b", "ｶﾞｷﾞﾊﾟ ｶ", "か\u3099 は\u309c", "ｄ\u0301 ①\u0301"),
    *("é e\u0301", "\u1100\u1161\u11a8", "㍿ﬁⅧ½", "a\u200b\u200d\ufeff\u00adb", "👨\u200d👩\u200d👧"),
    *("\x00\x01\x7f", "～〜－", "İẞß", "ＡＢＣ\u3000ａｂｃ", "\ufffd", "a" * 40),
]


def imported(test_data: Path, name: str, folder: Path) -> Tokenizer:
    store = open_store(folder)
    import_tokenizer(test_data / f"parity/tokenizers/{name}.model", store, name, append_missing=True)
    return load_tokenizer(store, name)


def trained(folder: Path, options: dict[str, Any]) -> Tokenizer:
    sources = [inspect.getsource(module) for module in (json, json.decoder, random, inspect)]
    documents = [*sources, "国境の長いトンネルを抜けると雪国であった。夜の底が白くなった。" * 20]
    values = {"vocab_size": 900, "control_symbols": ["[X]"], "user_defined_symbols": ["_NEW_"], **options}
    config = build(TokenizerConfig, values, where="test")
    store = open_store(folder)
    train_tokenizer(config, lambda: iter(documents), store, "trained", report=lambda line: None)
    return load_tokenizer(store, "trained")


def exported_ids(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    """The ids of tokenizer.json, special tokens in text left alone (``split_special_tokens=True``)."""
    text = json.dumps(tokenizer_json(tokenizer, type_vocab_size=2), ensure_ascii=False)
    converted = tokenizers.Tokenizer.from_str(text)
    converted.encode_special_tokens = True
    return [encoding.ids for encoding in converted.encode_batch(texts, add_special_tokens=False)]


def differing(tokenizer: Tokenizer, texts: list[str]) -> list[str]:
    ours = [ids.tolist() for ids in tokenizer.encode_batch(texts)]
    pairs = zip(texts, ours, exported_ids(tokenizer, texts), strict=True)
    return [text for text, mine, theirs in pairs if mine != theirs]


def is_tie(tokenizer: Tokenizer, text: str) -> bool:
    """Whether our pieces and the exported file's have the same text and the same sum of scores."""
    if tokenizer.manifest.library != "sentencepiece" or tokenizer.manifest.kind != "unigram":
        return False
    scores = [piece.score for piece in parse_model(tokenizer.model).pieces]
    ours, theirs = tokenizer.encode(text).tolist(), exported_ids(tokenizer, [text])[0]
    our_score, their_score = (sum(scores[index] for index in ids) for ids in (ours, theirs))
    return tokenizer.decode(theirs) == tokenizer.decode(ours) and abs(our_score / their_score - 1) < 1e-5


def real_lines(test_data: Path) -> Iterator[str]:
    with (test_data / "text-ja-kyoto-wikipedia/train-03.jsonl").open() as file:
        lines = (line for row in file for line in json.loads(row)["text"].split("\n"))
        yield from (line for line, _ in zip(lines, range(2000), strict=False))
    yield from (test_data / "text-en-wikitext2/valid.txt").read_text().split("\n")[:2000]
    reviews = (test_data / "cls-zh-reviews/dev.tsv").read_text().split("\n")[1:2001]
    yield from (row.split("\t")[-1] for row in reviews)
    yield from inspect.getsource(inspect).split("\n")


@pytest.mark.parametrize("name", REFERENCES)
def test_converted_models_give_the_reference_ids(test_data: Path, tmp_path: Path, name: str) -> None:
    tokenizer = imported(test_data, name, tmp_path)
    lines = json.loads((test_data / f"parity/tokenizers/{name}.json").read_text())["lines"]
    assert exported_ids(tokenizer, [line["text"] for line in lines]) == [line["ids"] for line in lines]
    assert differing(tokenizer, [*real_lines(test_data), *ODD]) == []


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_trained_tokenizers_give_the_same_ids(tmp_path: Path, options: dict[str, Any]) -> None:
    tokenizer = trained(tmp_path, options)
    lines = [*inspect.getsource(json).split("\n"), *inspect.getsource(inspect.signature).split("\n")]
    symbols = [line.replace(" ", " _NEW_") for line in lines]
    whole = [inspect.getsource(json.decoder)]
    texts = [*lines, *symbols, *ODD] + (whole if options.get("kind") == "bpe" else [])
    assert [text for text in differing(tokenizer, texts) if not is_tie(tokenizer, text)] == []


def test_chinese_characters_stay_apart_in_the_exported_file(test_data: Path, tmp_path: Path) -> None:
    """WordPiece as BERT's: no piece holds a Chinese character beside another one."""
    with (test_data / "cls-zh-reviews/dev.tsv").open(encoding="utf-8") as rows:
        reviews = [row.rstrip("\n").split("\t")[2] for row in rows][1:]
    values = {"library": "tokenizers", "kind": "wordpiece", "lowercase": True, "vocab_size": 3500}
    config = build(TokenizerConfig, values, where="test")
    train_tokenizer(config, lambda: iter(reviews), open_store(tmp_path), "zh", report=lambda line: None)
    tokenizer = load_tokenizer(open_store(tmp_path), "zh")
    chinese = re.compile("[\u3400-\u4dbf\u4e00-\u9fff]")
    pieces = [piece for piece in tokenizer.pieces if chinese.search(piece)]
    assert len(pieces) > 1500
    assert all(len(piece) == 1 for piece in pieces)
    assert differing(tokenizer, reviews[:1000]) == []
    for text in reviews[:200]:
        found = [tokenizer.piece(number) for number in tokenizer.encode(text)]
        unknown = found.count("<unk>")
        assert len(chinese.findall("".join(found))) + unknown >= len(chinese.findall(text))
    assert '"handle_chinese_chars": true' in json.dumps(tokenizer_json(tokenizer, type_vocab_size=2))


def test_a_unigram_model_differs_in_ties_only(tmp_path: Path) -> None:
    tokenizer = trained(tmp_path, {"keep_whitespace": True})
    rng = random.Random(3)
    texts = ["".join(rng.choice("0 -=a#") * rng.randint(1, 60) for _ in range(40)) for _ in range(200)]
    different = differing(tokenizer, texts)
    assert different, "no tie among these texts: the documented difference is gone, or the texts are too tame"
    assert all(is_tie(tokenizer, text) for text in different)


def test_known_differences_in_normalization(test_data: Path, tmp_path: Path) -> None:
    """Each of these is named in docs/design/tokenizers.md."""
    tokenizer = imported(test_data, "spm_unigram_ja_8k_bytefallback", tmp_path)
    reordered, expanded, joined, separator = "x\u0301\u3099", "Ⅷ\u0301", "Å\u0301", "x\ufdd0y"
    texts = [reordered, expanded, joined, separator]
    assert differing(tokenizer, texts) == texts


def test_special_tokens_in_text_and_the_template(tmp_path: Path) -> None:
    tokenizer = trained(tmp_path, {"kind": "bpe"})
    write_tokenizer_files(tokenizer, tmp_path / "out", max_length=128, type_vocab_size=2)
    converted = tokenizers.Tokenizer.from_file(str(tmp_path / "out/tokenizer.json"))
    ids = tokenizer.manifest.special_ids
    a, b = tokenizer.encode("one two").tolist(), tokenizer.encode("three").tolist()
    pair = converted.encode("one two", "three")
    assert pair.ids == [ids["cls"], *a, ids["sep"], *b, ids["sep"]]
    assert pair.type_ids == [0] * (len(a) + 2) + [1] * (len(b) + 1)
    masked = converted.encode("one [MASK]two")
    assert masked.ids[0] == ids["cls"]
    assert ids["mask"] in masked.ids
    config = json.loads((tmp_path / "out/tokenizer_config.json").read_text())
    assert (config["model_max_length"], config["mask_token"]) == (128, "[MASK]")
    assert "token_type_ids" in config["model_input_names"]


def test_a_model_with_one_token_type_gets_no_other(tmp_path: Path) -> None:
    tokenizer = trained(tmp_path, {"kind": "bpe"})
    write_tokenizer_files(tokenizer, tmp_path / "out", max_length=128, type_vocab_size=1)
    converted = tokenizers.Tokenizer.from_file(str(tmp_path / "out/tokenizer.json"))
    pair = converted.encode("one two", "three")
    assert pair.type_ids == [0] * len(pair.ids)
    config = json.loads((tmp_path / "out/tokenizer_config.json").read_text())
    assert config["model_input_names"] == ["input_ids", "attention_mask"]


@pytest.mark.peers
@pytest.mark.parametrize("options", [*KINDS, {"library": "tokenizers"}], ids=str)
def test_transformers_loads_the_files(tmp_path: Path, options: dict[str, Any]) -> None:
    from transformers import AutoTokenizer

    tokenizer = trained(tmp_path, options)
    write_tokenizer_files(tokenizer, tmp_path / "out", max_length=128, type_vocab_size=2)
    loaded: Any = AutoTokenizer.from_pretrained(str(tmp_path / "out"))
    ids = tokenizer.manifest.special_ids
    assert loaded.is_fast
    assert loaded.model_max_length == 128
    assert len(loaded) == tokenizer.manifest.vocab_size
    found = {role: getattr(loaded, f"{role}_token_id") for role in ids}
    assert found == ids
    for text in [*inspect.getsource(json).split("\n")[:200], "国境の長いトンネル ｶﾞ"]:
        assert loaded(text)["input_ids"] == [ids["cls"], *tokenizer.encode(text).tolist(), ids["sep"]]
    pair = loaded("def f(x):", "return 1")
    assert set(pair) == {"input_ids", "token_type_ids", "attention_mask"}
    assert pair["token_type_ids"][-1] == 1
    assert ids["mask"] in loaded(f"def {loaded.mask_token}(x):")["input_ids"]


@pytest.mark.peers
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_transformers_runs_the_exported_model_on_one_text_and_on_a_pair(
    tmp_path: Path, architecture: ArchitectureName
) -> None:
    import torch
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    tokenizer = trained(tmp_path, {"library": "tokenizers"})
    special_ids, vocab_size = tokenizer.manifest.special_ids, tokenizer.manifest.vocab_size
    sizes: dict[str, Any] = {"preset": "tiny", "hidden_size": 32, "num_heads": 4, "max_positions": 64}
    encoder = resolve_model(
        ModelConfig(architecture=architecture, **sizes),
        vocab_size=vocab_size,
        special_ids=special_ids,
        sequence_length=64,
    )
    params = flatten(init_params(ARCHITECTURES[architecture].param_table(encoder), 0))
    out = export_model(
        {name: np.asarray(value) for name, value in params.items()},
        encoder,
        tmp_path / "out",
        special_ids=special_ids,
        write_tokenizer=lambda folder: write_tokenizer_files(
            tokenizer, folder, max_length=64, type_vocab_size=encoder.type_vocab_size
        ),
        provenance={},
    )
    loaded: Any = AutoTokenizer.from_pretrained(str(out))
    model: Any = AutoModelForMaskedLM.from_pretrained(str(out)).eval()
    for texts in (("def f(x):",), ("def f(x):", "return 1")):
        given = loaded(*texts, return_tensors="pt")
        with torch.no_grad():
            logits = model(**given).logits
        assert logits.shape == (1, given["input_ids"].shape[1], vocab_size)
        assert bool(torch.isfinite(logits).all())
    assert ("token_type_ids" in given) == (encoder.type_vocab_size > 1)
