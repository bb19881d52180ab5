"""A data set is described by its manifest, and every damaged byte of it is found and named."""

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from outlast.errors import ShardError
from outlast.shards.describe import describe_manifest, summarize
from outlast.shards.manifest import (
    Manifest,
    ShardEntry,
    TokenizerEntry,
    parse_manifest,
    read_manifest,
    write_manifest,
)
from outlast.shards.verify import verify_manifest
from outlast.shards.write import TokenShardWriter
from outlast.storage import LocalStore
from support.hostile import resealed

SPECIAL_IDS = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}


def build(folder: Path, *, vocab_size: int = 50, fingerprint: str = "t1") -> tuple[Manifest, str]:
    store = LocalStore(folder)
    entries: list[ShardEntry] = []
    for number in range(2):
        with TokenShardWriter(
            vocab_size=vocab_size, separator_id=3, tokenizer_fingerprint=fingerprint
        ) as writer:
            writer.add(np.arange(5, 15))
            writer.add(np.arange(20, 20 + 10 * (number + 1)))
            entries.append(writer.write(store, f"train-{number:05d}-of-00002.safetensors"))
    manifest = Manifest(
        token_dtype="uint16",
        tokenizer=TokenizerEntry(path="tokenizer", fingerprint="t1", vocab_size=50, special_ids=SPECIAL_IDS),
        splits={"train": tuple(entries)},
        provenance={"counts": {"train": {"text_bytes": 100}}},
    )
    write_manifest(store, manifest)
    return manifest, str(folder / "manifest.json")


def rewrite(folder: Path, index: int, change: bytes, place: int) -> None:
    path = sorted(folder.glob("*.safetensors"))[index]
    content = bytearray(path.read_bytes())
    content[place : place + len(change) or None] = change
    path.write_bytes(bytes(content))


def test_a_sound_data_set_has_no_problems(tmp_path: Path) -> None:
    _, url = build(tmp_path)
    assert verify_manifest(url) == []


def test_a_data_set_is_described(tmp_path: Path) -> None:
    manifest, url = build(tmp_path)
    description = describe_manifest(url)
    assert description["fingerprint"] == manifest.fingerprint
    train = description["splits"]["train"]
    assert (train["shards"], train["documents"], train["tokens"]) == (2, 4, 54)
    assert train["text_bytes_per_token"] == round(100 / 54, 3)
    assert train["size_bytes"] == sum(path.stat().st_size for path in tmp_path.glob("*.safetensors"))


def test_every_flipped_byte_is_found(tmp_path: Path) -> None:
    _, url = build(tmp_path)
    path = tmp_path / "train-00001-of-00002.safetensors"
    content = path.read_bytes()
    for place in range(0, len(content), 7):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :])
        problems = verify_manifest(url)
        assert problems
        assert all(problem.startswith(path.name) for problem in problems)


def test_sentences_are_counted_and_checked(tmp_path: Path) -> None:
    plain, _ = build(tmp_path)
    name = plain.splits["train"][1].name
    with TokenShardWriter(
        vocab_size=50, separator_id=3, tokenizer_fingerprint="t1", has_sentences=True
    ) as writer:
        writer.add(np.arange(5, 15), np.array([4, 6]))
        entry = writer.write(LocalStore(tmp_path), name)
    manifest = replace(plain, splits={"train": (entry,)})
    write_manifest(LocalStore(tmp_path), manifest)
    url = str(tmp_path / "manifest.json")
    assert (read_manifest(url)[0], manifest.has_sentences, plain.has_sentences) == (manifest, True, False)
    assert verify_manifest(url) == []
    assert describe_manifest(url)["splits"]["train"]["sentences"] == 2
    write_manifest(
        LocalStore(tmp_path), replace(manifest, splits={"train": (replace(entry, num_sentences=3),)})
    )
    [problem] = verify_manifest(url)
    assert "with 2 sentences" in problem
    assert "with 3 sentences by the manifest" in problem
    write_manifest(
        LocalStore(tmp_path), replace(manifest, splits={"train": (plain.splits["train"][0], entry)})
    )
    with pytest.raises(ShardError, match="some shards have num_sentences, others have not"):
        verify_manifest(url)


def test_words_are_counted_and_checked(tmp_path: Path) -> None:
    plain, _ = build(tmp_path)
    name = plain.splits["train"][1].name

    def rewrite_words(starts: list[int], **changes: int) -> list[str]:
        with TokenShardWriter(
            vocab_size=50, separator_id=3, tokenizer_fingerprint="t1", has_sentences=True, has_words=True
        ) as writer:
            writer.add(np.arange(5, 15), np.array([4, 6]), np.array(starts, np.bool_))
            entry = replace(writer.write(LocalStore(tmp_path), name), **changes)
        write_manifest(LocalStore(tmp_path), replace(plain, splits={"train": (entry,)}))
        return verify_manifest(url)

    url = str(tmp_path / "manifest.json")
    assert rewrite_words([1, 0, 1, 0, 1, 0, 0, 0, 0, 1]) == []
    train = describe_manifest(url)["splits"]["train"]
    assert (train["words"], train["documents"], train["tokens"]) == (4, 1, 11)
    assert "11 tokens of 4 words (2.50 pieces each)" in summarize(describe_manifest(url))["train"]
    assert rewrite_words([1, 0, 1, 0, 0, 0, 0, 0, 0, 1]) == [
        f"{name}: the sentence at token 4 begins no word"
    ]
    assert rewrite_words([1] * 10, num_words=9) == [f"{name}: has 10 words, the manifest says 9"]
    rewrite_words([1] * 10)
    path = tmp_path / name
    content = bytearray(path.read_bytes())
    assert content[-2:] == b"\xff\x07"
    content[-2:] = b"\xfe\x1b"
    path.write_bytes(bytes(content))
    problems = [problem.removeprefix(f"{name}: ") for problem in verify_manifest(url)]
    assert problems[1:] == [
        "the separator at token 10 begins no word",
        "the document at token 0 begins no word",
        "the sentence at token 0 begins no word",
        "has word starts behind its last token",
    ]
    entry = read_manifest(url)[0].splits["train"][0]
    mixed = replace(plain, splits={"train": (plain.splits["train"][0], entry)})
    write_manifest(LocalStore(tmp_path), replace(mixed, splits={"train": mixed.splits["train"][::-1]}))
    with pytest.raises(ShardError, match="some shards have num_"):
        verify_manifest(url)


def test_a_missing_and_a_cut_shard_are_named(tmp_path: Path) -> None:
    _, url = build(tmp_path)
    first, second = sorted(tmp_path.glob("*.safetensors"))
    first.unlink()
    second.write_bytes(second.read_bytes()[:-3])
    problems = verify_manifest(url)
    assert f"{first.name}: is missing" in problems
    assert any(problem.startswith(f"{second.name}: has ") for problem in problems)


def test_what_a_right_digest_does_not_show_is_found(tmp_path: Path) -> None:
    """A shard whose manifest was made for wrong content: tokens out of range, no separators, another
    tokenizer."""
    manifest, url = build(tmp_path, vocab_size=60, fingerprint="t2")
    rewrite(tmp_path, 0, (55).to_bytes(2, "little") * 2, -4)
    path = sorted(tmp_path.glob("*.safetensors"))[0]
    entry = replace(
        manifest.splits["train"][0],
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        size_bytes=path.stat().st_size,
    )
    write_manifest(
        LocalStore(tmp_path), replace(manifest, splits={"train": (entry, *manifest.splits["train"][1:])})
    )
    problems = "\n".join(problem for problem in verify_manifest(url) if problem.startswith(path.name))
    assert "was made with the tokenizer t2" in problems
    assert "is 55, outside the vocabulary of 50" in problems
    assert "does not end with the separator 3" in problems


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('"num_tokens": 22', '"num_tokens": 24', "fingerprint does not match"),
        ('"num_tokens": 22', '"num_tokens": -1', "num_tokens"),
        ('"version": 2', '"version": 3', "version 1 or 2"),
        ('"name": "train-00000', '"name": "../train-00000', "name"),
        ("{", "", "not JSON"),
    ],
)
def test_a_damaged_manifest_is_an_error(tmp_path: Path, before: str, after: str, message: str) -> None:
    _, url = build(tmp_path)
    text = Path(url).read_text()
    assert before in text
    edited = text.replace(before, after, 1)
    Path(url).write_bytes(edited.encode() if message == "not JSON" else resealed(json.loads(edited)))
    with pytest.raises(ShardError, match=message):
        read_manifest(url)


def test_an_edit_of_any_count_is_refused(tmp_path: Path) -> None:
    """The fingerprint does not cover the provenance; the digest covers every byte."""
    _, url = build(tmp_path)
    text = Path(url).read_text()
    Path(url).write_text(text.replace('"text_bytes": 100', '"text_bytes": 101'))
    with pytest.raises(ShardError, match=r"edited or damaged[\s\S]*restore the file, or delete it"):
        read_manifest(url)
    for changed in (text.replace("\n ", "\n  "), text.replace(' "sha256"', ' "sha257"'), text + "\n"):
        Path(url).write_text(changed)
        with pytest.raises(ShardError, match="edited or damaged"):
            read_manifest(url)


def test_a_manifest_of_an_earlier_version_is_read_and_called_unsealed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manifest, url = build(tmp_path)
    document = json.loads(Path(url).read_text())
    fingerprint = document["fingerprint"]
    del document["sha256"]
    Path(url).write_text(json.dumps({**document, "version": 1}, indent=1))
    with caplog.at_level("INFO", logger="outlast"):
        assert [read_manifest(url)[0] for _ in range(3)] == [manifest] * 3
    assert [url in record.message for record in caplog.records if "carries no digest" in record.message] == [
        True
    ]
    assert manifest.fingerprint == fingerprint, "what runs keep of a data set does not change"


def test_a_missing_manifest_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ShardError, match=r"no manifest[\s\S]*outlast prepare"):
        verify_manifest(str(tmp_path / "manifest.json"))


def test_the_worked_example_of_the_format_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "formats" / "manifest.md").read_text(encoding="utf-8")
    text = page.split("```json\n")[1].split("```")[0].encode()
    manifest = parse_manifest(text, where="manifest.md")
    assert manifest.num_tokens("train") == 5
    assert resealed(json.loads(text)) == text, "the example is sealed as a writer seals it"


def test_a_pipe_or_a_device_is_no_manifest(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "manifest.json")
    for url in (str(tmp_path / "manifest.json"), "/dev/zero"):
        with pytest.raises(ShardError, match="a pipe or a device"):
            verify_manifest(url)
