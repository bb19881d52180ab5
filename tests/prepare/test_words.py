"""Word starts in a prepared data set: the same bytes whoever builds, agreed upon, verified, and warned of."""

import hashlib
import json
import logging
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from outlast.corpus.config import CorpusConfig
from outlast.corpus.sentences import split_sentences
from outlast.errors import ConfigError, ShardError
from outlast.prepare.build import prepare_data
from outlast.prepare.words import versions_of
from outlast.recipe import Recipe
from outlast.shards.config import ShardsConfig
from outlast.shards.describe import describe_manifest, summarize
from outlast.shards.manifest import read_manifest
from outlast.shards.read import TokenShard, open_shard
from outlast.shards.verify import verify_manifest
from outlast.storage import open_store
from outlast.storage.checksummed_json import seal
from outlast.tokenizer.config import TokenizerConfig
from outlast.tokenizer.encode import load_tokenizer
from outlast.tokenizer.mecab import mecab_segmenter
from outlast.tokenizer.words import Segmenter, make_word_marker

UNIGRAM = TokenizerConfig(vocab_size=3000)
MECAB = ShardsConfig(num_shards=4, num_processes=1, words="mecab")


@pytest.fixture(scope="module")
def japanese(test_data: Path, tmp_path_factory: pytest.TempPathFactory) -> CorpusConfig:
    """The first 60 articles on Kyoto, 200 kB."""
    source = sorted((test_data / "text-ja-kyoto-wikipedia").glob("*.jsonl"))[0]
    with source.open(encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line, _ in zip(lines, range(60), strict=False)]
    path = tmp_path_factory.mktemp("ja") / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return CorpusConfig(path=str(path), format="jsonl", sentences="rules", validation_fraction=0.1)


@pytest.fixture(scope="module")
def built(japanese: CorpusConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out") / "data"
    prepare_data(Recipe(corpus=japanese, tokenizer=UNIGRAM, shards=MECAB), out)
    return out


def shards_of(out: Path) -> list[TokenShard]:
    manifest, _ = read_manifest(str(out / "manifest.json"))
    return [open_shard(out / entry.name) for entries in manifest.splits.values() for entry in entries]


def warnings_of(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)


def test_word_starts_are_those_of_each_sentence(built: Path, japanese: CorpusConfig) -> None:
    assert verify_manifest(str(built / "manifest.json")) == []
    tokenizer = load_tokenizer(open_store(str(built)), "tokenizer")
    marker = make_word_marker(tokenizer, mecab_segmenter())
    texts = [json.loads(line)["text"] for line in Path(str(japanese.path)).read_text("utf-8").splitlines()]
    expected: dict[tuple[int, ...], list[bool]] = {}
    for text in texts:
        ids, _, starts = marker.mark(split_sentences(text))
        expected[tuple(ids.tolist())] = starts.tolist()
    num_documents = 0
    for shard in shards_of(built):
        assert shard.word_starts is not None
        bits = np.unpackbits(shard.word_starts, bitorder="little").astype(bool)
        for number in range(shard.num_documents):
            begin, end = shard.document_offsets[number : number + 2].tolist()
            assert bits[begin : end - 1].tolist() == expected[tuple(shard.document(number).tolist())]
            num_documents += 1
    assert num_documents == len(texts)


def test_another_number_of_processes_gives_the_same_bytes(
    built: Path, japanese: CorpusConfig, tmp_path: Path
) -> None:
    prepare_data(
        Recipe(corpus=japanese, tokenizer=UNIGRAM, shards=replace(MECAB, num_processes=2)), tmp_path / "again"
    )

    def digests(out: Path) -> dict[str, str]:
        files = [path for path in out.rglob("*") if path.is_file()]
        return {
            path.relative_to(out).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files
        }

    assert digests(tmp_path / "again") == digests(built)


def test_words_are_shown_with_what_found_them(built: Path) -> None:
    description = describe_manifest(str(built / "manifest.json"))
    provenance = description["provenance"]
    assert provenance["words"] == "mecab"
    assert {"fugashi", "unidic-lite"} <= set(provenance["versions"])
    train = description["splits"]["train"]
    pieces = train["tokens"] - train["documents"]
    assert 1.05 < pieces / train["words"] < 2
    lines = summarize(description)
    assert re.search(r"tokens of \S+ words \(1\.\d\d pieces each\)", lines["train"])
    assert lines["words"] == "by mecab"


def test_a_build_is_gone_on_with_by_the_same_words_alone(
    built: Path, japanese: CorpusConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ShardError, match='words: "mecab" there, "pieces" now'):
        prepare_data(Recipe(corpus=japanese, tokenizer=UNIGRAM, shards=replace(MECAB, words="pieces")), built)
    with pytest.raises(ShardError, match='words: "mecab" there, nothing now'):
        prepare_data(Recipe(corpus=japanese, tokenizer=UNIGRAM, shards=replace(MECAB, words=None)), built)
    segmenter = Segmenter(name="halves", word_starts=starts_of_halves, versions={"halves": "1"})
    plan = (built / "plan.json").read_text().replace('"words": "mecab"', '"words": "halves"')
    (tmp_path / "plan.json").write_bytes(seal(json.loads(plan), "indented"))
    with pytest.raises(ShardError, match="begun with halves None, here is 1"):
        prepare_data(
            Recipe(corpus=japanese, tokenizer=UNIGRAM, shards=replace(MECAB, words=None)),
            tmp_path,
            segmenter=segmenter,
        )
    # What is complete needs no library any more.
    monkeypatch.setattr("outlast.prepare.words.mecab_segmenter", lambda: pytest.fail("looked for"))
    assert (
        prepare_data(Recipe(corpus=japanese, tokenizer=UNIGRAM, shards=MECAB), built)
        == f"{built}/manifest.json"
    )


def starts_of_halves(text: str) -> list[int]:
    return [0, len(text) // 2] if len(text) > 1 else []


def test_a_segmenter_from_python(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abcdefgh\n\nijklmnop\n\nqq qq qq qq", encoding="utf-8")
    corpus = CorpusConfig(path=str(tmp_path / "a.txt"), validation_fraction=0)
    # The special pieces, the bytes, and "qq".
    tokenizer = TokenizerConfig(vocab_size=262, library="tokenizers", kind="bpe", byte_level=True)
    config = ShardsConfig(num_shards=1, num_processes=1)
    segmenter = Segmenter(name="halves", word_starts=starts_of_halves, versions={"halves": "1"})
    prepare_data(
        Recipe(corpus=corpus, tokenizer=tokenizer, shards=config), tmp_path / "out", segmenter=segmenter
    )
    [shard] = shards_of(tmp_path / "out")
    assert shard.word_starts is not None
    bits = np.unpackbits(shard.word_starts, count=shard.num_tokens, bitorder="little")
    assert "".join(map(str, bits)) == "100010001" * 2 + "10010001"
    provenance = read_manifest(str(tmp_path / "out" / "manifest.json"))[0].provenance
    assert (provenance["words"], provenance["versions"]["halves"]) == ("halves", "1")
    assert versions_of(segmenter) == {"halves": "1"}
    with pytest.raises(ConfigError, match="The segmenter is called 'mecab'"):
        prepare_data(
            Recipe(corpus=corpus, tokenizer=tokenizer, shards=config),
            tmp_path / "no",
            segmenter=replace(segmenter, name="mecab"),
        )


def test_the_list_of_words_in_the_documentation(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "design" / "whole_words.md").read_text(encoding="utf-8")
    (tmp_path / "example.py").write_text(page.split("```python\n")[1].split("```")[0], encoding="utf-8")
    (tmp_path / "words.txt").write_text("京都\n東京都\n東京\n", encoding="utf-8")
    (tmp_path / "a.txt").write_text("東京都と京都\n\n" * 2 + "qq qq qq qq", encoding="utf-8")
    (tmp_path / "run.toml").write_text(
        '[corpus]\npath = "a.txt"\nvalidation_fraction = 0\n[objective]\nwhole_words = true\n'
        "[shards]\nnum_shards = 1\nnum_processes = 2\n[tokenizer]\nvocab_size = 262\n"
        'library = "tokenizers"\nkind = "bpe"\nbyte_level = true\n',
        encoding="utf-8",
    )
    subprocess.run([sys.executable, "example.py"], cwd=tmp_path, check=True, timeout=120)
    [shard] = shards_of(tmp_path / "data")
    tokenizer = load_tokenizer(open_store(str(tmp_path / "data")), "tokenizer")
    assert shard.word_starts is not None
    bits = np.unpackbits(shard.word_starts, count=shard.num_tokens, bitorder="little")
    tokens = shard.document(0).tolist()
    words = np.split(tokens, np.flatnonzero(bits[: len(tokens)])[1:])
    assert [tokenizer.decode(word) for word in words] == ["東京都", "と", "京都"]


def test_text_without_spaces_marked_by_pieces_is_warned_of(
    japanese: CorpusConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = ShardsConfig(num_shards=1, num_processes=1, words="pieces")
    prepare_data(Recipe(corpus=japanese, tokenizer=UNIGRAM, shards=config), tmp_path / "out")
    assert re.search(r"words have \d+\.\d pieces on average.*mecab: Japanese", warnings_of(caplog))


def test_chinese_wordpiece_is_warned_of(
    test_data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = (test_data / "cls-zh-reviews" / "dev.tsv").read_text(encoding="utf-8").splitlines()[1:400]
    (tmp_path / "a.txt").write_text("\n\n".join(line.split("\t")[2] for line in lines), encoding="utf-8")
    corpus = CorpusConfig(path=str(tmp_path / "a.txt"), validation_fraction=0)
    tokenizer = TokenizerConfig(library="tokenizers", kind="wordpiece", vocab_size=1750)
    config = ShardsConfig(num_shards=1, num_processes=1, words="pieces")
    prepare_data(Recipe(corpus=corpus, tokenizer=tokenizer, shards=config), tmp_path / "out")
    assert "masking whole words is nearly the same as masking tokens" in warnings_of(caplog)


def test_english_is_not_warned_of(test_data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = (test_data / "text-en-gutenberg" / "1661.txt").read_text(encoding="utf-8")[:200_000]
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    corpus = CorpusConfig(path=str(tmp_path / "a.txt"), validation_fraction=0)
    config = ShardsConfig(num_shards=1, num_processes=1, words="pieces")
    prepare_data(
        Recipe(corpus=corpus, tokenizer=TokenizerConfig(vocab_size=2000), shards=config), tmp_path / "out"
    )
    assert warnings_of(caplog) == ""
