"""Token shards: what is written is read back, other libraries read it too, and damage is always an error."""

import hashlib
import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from safetensors.numpy import load as safetensors_load

from outlast.errors import ShardError, StorageError
from outlast.shards.array_file import MAX_HEADER_BYTES
from outlast.shards.manifest import ShardEntry
from outlast.shards.read import open_shard, open_tokens, read_shard_bytes
from outlast.shards.token_format import make_header, parse_header
from outlast.shards.write import TokenShardWriter
from outlast.storage import LocalStore
from outlast.storage.spool import Spool
from support.datasets import opened
from support.files import from_hexdump

SEPARATOR = 3
NAME = "train-00000-of-00001.safetensors"


def write(folder: Path, documents: Sequence[Sequence[int]], vocab_size: int = 100) -> ShardEntry:
    with TokenShardWriter(
        vocab_size=vocab_size, separator_id=SEPARATOR, tokenizer_fingerprint="f" * 64, spool_folder=folder
    ) as writer:
        for document in documents:
            writer.add(np.asarray(document, np.int32))
        return writer.write(LocalStore(folder), NAME)


def write_sentences(folder: Path, documents: Sequence[Sequence[Sequence[int]]]) -> ShardEntry:
    with TokenShardWriter(
        vocab_size=300, separator_id=SEPARATOR, tokenizer_fingerprint="ab12", has_sentences=True
    ) as writer:
        for document in documents:
            writer.add(np.concatenate(document), np.array([len(sentence) for sentence in document]))
        return writer.write(LocalStore(folder), NAME)


@hypothesis.given(
    documents=st.lists(
        st.lists(st.lists(st.integers(0, 299), min_size=1, max_size=5), min_size=1, max_size=6),
        min_size=1,
        max_size=8,
    )
)
def test_sentences_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[list[int]]]
) -> None:
    folder = tmp_path_factory.mktemp("shard")
    entry = write_sentences(folder, documents)
    content = (folder / NAME).read_bytes()
    shard = read_shard_bytes(content, where=NAME)
    for number, sentences in enumerate(documents):
        assert [part.tolist() for part in shard.sentences(number)] == sentences
        assert shard.document(number).tolist() == [token for sentence in sentences for token in sentence]
    counts = [len(sentences) for sentences in documents]
    assert np.diff(shard.first_sentences()).tolist() == counts
    assert entry.num_sentences == shard.num_sentences == sum(counts) == shard.first_sentences()[-1]
    header = shard.header
    assert header.sentence_offsets is not None
    assert (header.tokens.begin % 64, header.document_offsets.begin % 8) == (0, 0)
    assert header.sentence_offsets.begin % 4 == 0
    arrays = safetensors_load(content)
    assert arrays["sentence_offsets"].dtype == np.uint32
    assert shard.sentence_offsets is not None
    assert np.array_equal(arrays["sentence_offsets"], shard.sentence_offsets)


@hypothesis.given(
    documents=st.lists(st.lists(st.booleans(), min_size=1, max_size=40), min_size=1, max_size=8),
)
def test_word_starts_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[bool]]
) -> None:
    folder = tmp_path_factory.mktemp("shard")
    expected: list[bool] = []
    with TokenShardWriter(
        vocab_size=300, separator_id=SEPARATOR, tokenizer_fingerprint="ab12", has_words=True
    ) as writer:
        for starts in documents:
            starts[0] = True
            writer.add(np.arange(len(starts)), None, np.array(starts))
            expected += [*starts, True]
        entry = writer.write(LocalStore(folder), NAME)
    content = (folder / NAME).read_bytes()
    shard = read_shard_bytes(content, where=NAME)
    assert shard.word_starts is not None
    assert shard.header.tokens.begin % 64 == 0
    bits = np.unpackbits(shard.word_starts, bitorder="little").astype(bool).tolist()
    assert bits == expected + [False] * (-len(expected) % 8)
    assert entry.num_words == shard.count_words() == sum(map(sum, documents))
    np.testing.assert_array_equal(safetensors_load(content)["word_starts"], shard.word_starts)


def test_words_that_do_not_fit_the_document_are_refused(tmp_path: Path) -> None:
    def start(*, has_words: bool) -> TokenShardWriter:
        return TokenShardWriter(vocab_size=10, separator_id=3, tokenizer_fingerprint="", has_words=has_words)

    ids = np.array([5, 6, 7])
    with start(has_words=True) as writer:
        for starts in (np.array([True, True]), np.array([False, True, True])):
            with pytest.raises(ShardError, match="word starts have shape"):
                writer.add(ids, None, starts)
        with pytest.raises(ShardError, match="Either all documents of a shard have words or none"):
            writer.add(ids)
    with start(has_words=False) as writer, pytest.raises(ShardError, match="Either all documents"):
        writer.add(ids, None, np.ones(3, np.bool_))


def test_a_wrong_array_of_word_starts_is_refused() -> None:
    header = make_header(
        num_tokens=9, num_documents=1, has_words=True, vocab_size=10, separator_id=3, tokenizer_fingerprint=""
    )
    arrays = bytes(8) + (9).to_bytes(8, "little") + np.array([5, 6, 7, 8, 5, 6, 7, 8, 3], "<u2").tobytes()
    shard = read_shard_bytes(header + arrays + b"\xff\x01", where=NAME)
    assert shard.count_words() == 8
    for wrong in (b'"U8","shape":[1,2]', b'"U16","shape":[1]  '):
        changed = header.replace(b'"U8","shape":[2]', wrong)
        changed = (len(changed) - 8).to_bytes(8, "little") + changed[8:]
        with pytest.raises(ShardError, match="word_starts"):
            read_shard_bytes(changed + arrays + b"\xff\x01", where=NAME)


def test_sentences_that_do_not_make_up_the_document_are_refused(tmp_path: Path) -> None:
    def start(*, has_sentences: bool) -> TokenShardWriter:
        return TokenShardWriter(
            vocab_size=10, separator_id=3, tokenizer_fingerprint="", has_sentences=has_sentences
        )

    with start(has_sentences=True) as writer:
        for lengths in ([1], [2, 1], [2, 0], []):
            with pytest.raises(ShardError, match=r"sentences have \d tokens[\s\S]*2, as the document"):
                writer.add(np.array([1, 2]), np.array(lengths, np.int64))
        with pytest.raises(ShardError, match="all documents of a shard have sentences or none"):
            writer.add(np.array([1, 2]))
    with (
        start(has_sentences=False) as writer,
        pytest.raises(ShardError, match="all documents of a shard have sentences or none"),
    ):
        writer.add(np.array([1, 2]), np.array([2]))


def test_a_shard_without_sentences_says_so(tmp_path: Path) -> None:
    write(tmp_path, [[1, 2], [4]])
    shard = open_shard(tmp_path / NAME)
    assert shard.num_sentences is None
    for read in (shard.first_sentences, lambda: shard.sentences(0)):
        with pytest.raises(ShardError, match=r"does not know[\s\S]*corpus.sentences"):
            read()


@pytest.mark.parametrize(
    "sentences",
    [[0, 2, 3], [1, 3, 5], [0, 2, 5], [0, 3, 3, 5], [0, 2, 3, 4, 5], [0, 3, 2, 5], [0, 9, 3, 5], [5]],
)
def test_offsets_of_sentences_that_do_not_fit_are_an_error(sentences: list[int]) -> None:
    """The documents are (a b) and (c), each with its separator: 0, 3, 5."""
    head = make_header(
        num_tokens=5,
        num_documents=2,
        num_sentences=len(sentences) - 1,
        vocab_size=9,
        separator_id=3,
        tokenizer_fingerprint="",
    )
    rest = np.array([0, 3, 5], "<i8").tobytes() + np.array([1, 2, 3, 4, 3], "<u2").tobytes()
    with pytest.raises(ShardError, match="sentence_offsets are wrong"):
        read_shard_bytes(head + np.array(sentences, "<u4").tobytes() + rest, where=NAME)


@hypothesis.given(
    documents=st.lists(st.lists(st.integers(0, 65_535), min_size=1, max_size=30), min_size=1, max_size=20),
    vocab_size=st.sampled_from([65_536, 65_537]),
)
def test_what_is_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[int]], vocab_size: int
) -> None:
    folder = tmp_path_factory.mktemp("shard")
    entry = write(folder, documents, vocab_size)
    content = (folder / NAME).read_bytes()
    assert (entry.size_bytes, entry.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    for shard in (open_shard(folder / NAME), read_shard_bytes(content, where=NAME)):
        assert shard.tokens.dtype == (np.uint16 if vocab_size == 65_536 else np.uint32)
        assert [shard.document(index).tolist() for index in range(shard.num_documents)] == documents
        assert (shard.tokens[shard.document_offsets[1:] - 1] == SEPARATOR).all()
        assert shard.header.tokens.begin % 64 == 0
        assert shard.header.document_offsets.begin % 8 == 0
        assert (entry.num_documents, entry.num_tokens) == (shard.num_documents, shard.num_tokens)
        assert not shard.tokens.flags.writeable
    arrays = safetensors_load(content)
    assert np.array_equal(arrays["tokens"], shard.tokens)
    assert np.array_equal(arrays["document_offsets"], shard.document_offsets)


def test_the_worked_example_of_the_format_page(tmp_path: Path) -> None:
    with TokenShardWriter(vocab_size=300, separator_id=3, tokenizer_fingerprint="ab12") as writer:
        writer.add(np.array([17, 258]))
        writer.add(np.array([5]))
        writer.write(LocalStore(tmp_path), NAME)
    content = (tmp_path / NAME).read_bytes()
    page = (Path(__file__).parents[2] / "docs" / "formats" / "token_shard.md").read_text(encoding="utf-8")
    assert from_hexdump(page, 1) == content
    write_sentences(tmp_path, [[[17], [258]], [[5]]])
    assert from_hexdump(page, 2) == (tmp_path / NAME).read_bytes()
    with TokenShardWriter(
        vocab_size=300, separator_id=SEPARATOR, tokenizer_fingerprint="ab12", has_words=True
    ) as writer:
        writer.add(np.array([17, 258]), None, np.array([True, False]))
        writer.add(np.array([5]), None, np.array([True]))
        writer.write(LocalStore(tmp_path), NAME)
    assert from_hexdump(page, 3) == (tmp_path / NAME).read_bytes()


@pytest.mark.parametrize("dtype", [np.int32, np.uint16, np.int64])
def test_how_many_documents_are_written_together_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: type[np.integer[Any]]
) -> None:
    rng = np.random.default_rng(0)
    documents = [rng.integers(0, 60_000, rng.integers(1, 40)).astype(dtype) for _ in range(200)]
    contents: set[bytes] = set()
    for together in (1, 7, 100, 10**6):
        monkeypatch.setattr("outlast.shards.write._TOGETHER", together)
        with TokenShardWriter(vocab_size=60_000, separator_id=3, tokenizer_fingerprint="") as writer:
            for document in documents:
                writer.add(document)
            writer.write(LocalStore(tmp_path), NAME)
        contents.add((tmp_path / NAME).read_bytes())
    assert len(contents) == 1
    shard = open_shard(tmp_path / NAME)
    assert [shard.document(number).tolist() for number in range(200)] == [ids.tolist() for ids in documents]


def test_a_document_without_tokens_and_an_id_outside_the_vocabulary_are_refused(tmp_path: Path) -> None:
    with TokenShardWriter(vocab_size=10, separator_id=3, tokenizer_fingerprint="") as writer:
        with pytest.raises(ShardError, match="without tokens"):
            writer.add(np.array([], np.int32))
        with pytest.raises(ShardError, match="without documents"):
            writer.write(LocalStore(tmp_path), NAME)
    for wrong in (-1, 10):
        with TokenShardWriter(vocab_size=10, separator_id=3, tokenizer_fingerprint="") as writer:
            writer.add(np.array([1, wrong], np.int32))
            writer.add(np.array([1, 2], np.int32))
            with pytest.raises(ShardError, match=rf"id {wrong} is outside[\s\S]*0 to 9"):
                writer.write(LocalStore(tmp_path), NAME)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("has_sentences", [False, True])
def test_every_cut_is_an_error(tmp_path: Path, has_sentences: bool) -> None:
    write_sentences(tmp_path, [[[1], [2]], [[4]]]) if has_sentences else write(tmp_path, [[1, 2], [4]])
    content = (tmp_path / NAME).read_bytes()
    for length in range(len(content)):
        with pytest.raises(ShardError):
            read_shard_bytes(content[:length], where=NAME)
    with pytest.raises(ShardError, match=rf"{len(content) + 1} bytes"):
        read_shard_bytes(content + b"\0", where=NAME)


@pytest.mark.parametrize("has_sentences", [False, True])
def test_every_flipped_bit_is_an_error_or_a_shard_that_fits_itself(
    tmp_path: Path, has_sentences: bool
) -> None:
    """Bits of the arrays are the digest's business; but nothing comes out that does not fit itself."""
    write_sentences(tmp_path, [[[1], [2]], [[4]]]) if has_sentences else write(tmp_path, [[1, 2], [4]])
    content = (tmp_path / NAME).read_bytes()
    for place in range(len(content) * 8):
        damaged = bytearray(content)
        damaged[place // 8] ^= 1 << place % 8
        try:
            shard = read_shard_bytes(bytes(damaged), where=NAME)
        except ShardError:
            continue
        assert shard.document_offsets.tolist() in ([0, 2, 5], [0, 3, 5])
        assert shard.num_tokens == 5
        if shard.sentence_offsets is not None:
            assert shard.sentence_offsets.tolist() == [0, 1, *shard.document_offsets[1:].tolist()]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": {"dtype": "F64", "shape": [5], "data_offsets": [24, 64]}}, "header entry 'tokens'"),
        ({"tokens": {"dtype": "I16", "shape": [5], "data_offsets": [24, 34]}}, "uint16 or uint32"),
        ({"tokens": {"dtype": "U16", "shape": [-5], "data_offsets": [24, 34]}}, "header entry"),
        ({"tokens": {"dtype": "U16", "shape": [True], "data_offsets": [24, 26]}}, "header entry"),
        ({"tokens": {"dtype": "U16", "shape": [2**62], "data_offsets": [24, 2**63 + 24]}}, "by its header"),
        ({"tokens": {"dtype": "U16", "shape": [5], "data_offsets": [20, 30]}}, "overlaps"),
        ({"more": {"dtype": "U8", "shape": [4], "data_offsets": [30, 34]}}, "overlaps"),
        ({"document_offsets": None}, "gap"),
        (
            {"sentence_offsets": {"dtype": "U16", "shape": [0], "data_offsets": [0, 0]}},
            "flat array of uint32",
        ),
        (
            {"sentence_offsets": {"dtype": "U32", "shape": [0], "data_offsets": [0, 0]}},
            "flat array of uint32",
        ),
        ({"document_offsets": {"dtype": "I64", "shape": [0], "data_offsets": [0, 0]}}, "overlaps|gap"),
        ({"__metadata__": {"format": "pt"}}, "no token shard"),
        ({"__metadata__": {"format": "outlast-token-shard", "version": "9"}}, "version '9'"),
    ],
)
def test_a_header_that_lies_is_an_error(change: dict[str, object], message: str) -> None:
    data = np.array([0, 3, 5], "<i8").tobytes() + np.array([1, 2, 3, 4, 3], "<u2").tobytes()
    header = json.loads(
        make_header(num_tokens=5, num_documents=2, vocab_size=9, separator_id=3, tokenizer_fingerprint="")[8:]
    )
    header = {key: value for key, value in {**header, **change}.items() if value is not None}
    text = json.dumps(header).encode()
    with pytest.raises(ShardError, match=message):
        read_shard_bytes(len(text).to_bytes(8, "little") + text + data, where=NAME)


@hypothesis.given(text=st.binary(max_size=200), length=st.integers(0, 2**64 - 1))
def test_no_bytes_upset_the_parser(text: bytes, length: int) -> None:
    for head in (len(text).to_bytes(8, "little") + text, length.to_bytes(8, "little") + text):
        with pytest.raises(ShardError):
            parse_header(head, file_size=len(head), where=NAME)


def test_a_header_of_brackets_or_of_gigabytes_is_an_error() -> None:
    deep = b"[" * 100_000
    for head in (
        len(deep).to_bytes(8, "little") + deep,
        (MAX_HEADER_BYTES + 1).to_bytes(8, "little"),
        b"\x0a\0\0\0\0\0\0\0" + b'{"a":' + b"9" * 5,
    ):
        with pytest.raises(ShardError):
            parse_header(head, file_size=2**40, where=NAME)


@pytest.mark.parametrize("offsets", [[0, 3, 4], [1, 3, 5], [0, 4, 5], [0, 0, 5], [0, 7, 5], [0, -1, 5]])
def test_offsets_that_do_not_fit_are_an_error(offsets: list[int]) -> None:
    head = make_header(num_tokens=5, num_documents=2, vocab_size=9, separator_id=3, tokenizer_fingerprint="")
    data = np.array(offsets, "<i8").tobytes() + np.array([1, 2, 3, 4, 3], "<u2").tobytes()
    with pytest.raises(ShardError, match="document_offsets are wrong"):
        read_shard_bytes(head + data, where=NAME)


def test_a_shard_that_is_not_the_manifests(tmp_path: Path) -> None:
    entry = write(tmp_path, [[1, 2], [4]])
    file = opened(tmp_path / NAME)
    made_with = "f" * 64
    tokens, words = open_tokens(file, entry, tokenizer_fingerprint=made_with)
    assert (tokens.read(0, len(tokens)).tolist(), words) == ([1, 2, 3, 4, 3], None)
    with pytest.raises(ShardError, match=f"made with the tokenizer {made_with}"):
        open_tokens(file, entry, tokenizer_fingerprint="0" * 64)
    write(tmp_path, [[1, 2, 4]])
    with pytest.raises(ShardError, match=r"holds 4 tokens in 1 documents[\s\S]*5 tokens in 2 documents"):
        open_tokens(opened(tmp_path / NAME), entry, tokenizer_fingerprint=made_with)


def test_a_disk_that_cannot_be_written_to_is_told(tmp_path: Path, tiny_disk: Path) -> None:
    with closing(Spool(1, tiny_disk)) as spool, pytest.raises(StorageError, match="free space in the output"):
        spool.write(b"x" * 2_000_000)
    with pytest.raises(StorageError, match=r"temporary files: No such file[\s\S]*absent"):
        TokenShardWriter(
            vocab_size=9, separator_id=3, tokenizer_fingerprint="", spool_folder=tmp_path / "absent"
        )
