"""Text, manifests and shards that are missing, damaged or not what they claim to be."""

import dataclasses
import hashlib
import json
import shutil
from pathlib import Path

import pytest

from outlast.shards.manifest import Manifest, read_manifest, write_manifest
from support.command import RECIPE
from support.command_line import DATA, Run, settings
from support.hostile import resealed

SHARD = "train-00001-of-00003.safetensors"


@pytest.fixture
def copy(data: Path, tmp_path: Path) -> Path:
    """A data set of this test's own, to be damaged."""
    return Path(shutil.copytree(data, tmp_path / "data"))


def rewrite(folder: Path, **changes: object) -> Manifest:
    """Change a manifest so that only a look at what it names can tell."""
    manifest, store = read_manifest(str(folder / "manifest.json"))
    manifest = dataclasses.replace(manifest, **changes)
    write_manifest(store, manifest)
    return manifest


@pytest.mark.parametrize(
    ("content", "message", "remedy"),
    [
        (None, "There is no such file or folder", "check corpus.path"),
        ({}, "holds no file that matches", "check corpus.include"),
        ({".hidden": b"text"}, "holds no file that matches", "check corpus.include"),
        ({"a.txt": b""}, "The corpus is empty", "check corpus.path and corpus.include"),
        ({"a.txt": b" \n\n \n"}, "The corpus holds no document to train on", "check corpus.path"),
    ],
)
def test_a_corpus_without_text(
    outlast: Run, tmp_path: Path, content: dict[str, bytes] | None, message: str, remedy: str
) -> None:
    corpus = tmp_path / "corpus"
    if content is not None:
        corpus.mkdir()
        for name, text in content.items():
            (corpus / name).write_bytes(text)
    outcome = outlast("prepare", RECIPE, "--out", tmp_path / "out", *settings(f"corpus.path={corpus}"))
    outcome.refused(1, message, remedy)
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_no_corpus_is_named(outlast: Run, tmp_path: Path) -> None:
    outlast("prepare", RECIPE, "--out", tmp_path / "out").refused(1, "names no corpus", "corpus.path")


def test_bytes_that_are_no_text_are_reported_by_file_and_offset(outlast: Run, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "good.txt").write_text("a line of good text\n" * 200)
    (corpus / "latin.txt").write_bytes(b"caf\xe9 au lait\n" * 2)
    line = ("prepare", RECIPE, "--out", tmp_path / "out", *settings(f"corpus.path={corpus}"))
    outlast(*line).refused(
        1, "2 bytes are no text in utf-8", "at byte 3, 16", "latin.txt", 'set corpus.undecodable = "replace"'
    )
    keys = settings("corpus.undecodable=replace", "tokenizer.vocab_size=280")
    outcome = outlast("prepare", RECIPE, "--out", tmp_path / "other", *line[4:], *keys)
    assert outcome.code == 0
    assert "2 undecodable bytes were replaced by U+FFFD, first: latin.txt at byte 3" in outcome.err


def test_a_folder_of_another_build_is_left_alone(outlast: Run, copy: Path) -> None:
    before = (copy / "manifest.json").read_bytes()
    line = ("prepare", RECIPE, "--out", copy, *settings(*DATA, "tokenizer.vocab_size=400"))
    outlast(*line).refused(1, "another corpus or configuration", "tokenizer.vocab_size: 500 there, 400 now")
    assert (copy / "manifest.json").read_bytes() == before


def test_a_missing_manifest(outlast: Run, train: Run, tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    for outcome in (train(manifest=path), outlast("shards", "show", path), outlast("shards", "verify", path)):
        outcome.refused(1, "There is no manifest", str(path), "outlast prepare")


def test_what_is_no_manifest_is_left_alone(outlast: Run, train: Run, data: Path, tmp_path: Path) -> None:
    recipe, table = tmp_path / "RUN.toml", tmp_path / "table.json"
    recipe.write_text("[corpus]")
    table.write_text("{}")
    for path, message, remedy in (
        (data, "This is a folder", f"name the manifest in it: {data}/manifest.json"),
        (recipe, "not JSON", "name the manifest.json of a data set"),
        (table, "no manifest", "name the manifest.json of a data set"),
    ):
        for outcome in (train(manifest=path), outlast("shards", "show", path)):
            outcome.refused(1, message, str(path), remedy)
            assert "delete" not in outcome.err


@pytest.mark.parametrize("damage", ["cut short", "edited", "another file", "a name that leads out"])
def test_a_damaged_manifest_is_refused_and_made_again(
    outlast: Run, train: Run, copy: Path, data: Path, damage: str
) -> None:
    path = copy / "manifest.json"
    document = json.loads(path.read_text())
    message = "does not match the sha256 it carries"
    if damage == "cut short":
        path.write_bytes(path.read_bytes()[:500])
        message = "not JSON"
    elif damage == "edited":
        document["tokenizer"]["vocab_size"] = 600
        path.write_text(json.dumps(document))
    elif damage == "another file":
        path.write_text('{"format": "something"}')
        message = "The file is no manifest"
    else:
        document["splits"]["train"][0]["name"] = "../secret"
        path.write_bytes(resealed(document))
        message = "splits.train.0.name is wrong"
    for outcome in (train(manifest=path), outlast("shards", "show", path), outlast("shards", "verify", path)):
        outcome.refused(1, message, str(path))
    path.unlink()  # what the message says to do
    assert outlast("prepare", RECIPE, "--out", copy, *settings(*DATA)).code == 0
    assert path.read_bytes() == (data / "manifest.json").read_bytes()


@pytest.mark.parametrize("damage", ["cut short", "missing", "one bit", "empty"])
def test_a_damaged_shard_stops_the_run_and_is_named(
    outlast: Run, train: Run, copy: Path, data: Path, damage: str
) -> None:
    shard = copy / SHARD
    content = bytearray(shard.read_bytes())
    content[-5] ^= 1
    damaged = {"cut short": bytes(content[:1000]), "one bit": bytes(content), "empty": b""}
    if damage == "missing":
        shard.unlink()
    else:
        shard.write_bytes(damaged[damage])
    outcome = train(manifest=copy / "manifest.json")
    outcome.refused(1, str(shard), "delete the folder and run `outlast prepare` again")
    assert ("is missing" if damage == "missing" else "fails the manifest's sha256") in outcome.err
    verified = outlast("shards", "verify", copy / "manifest.json")
    assert verified.code == 1
    assert {line.partition(":")[0] for line in verified.out.splitlines()} == {SHARD}
    shutil.rmtree(copy)  # what the message says to do
    assert outlast("prepare", RECIPE, "--out", copy, *settings(*DATA)).code == 0
    assert shard.read_bytes() == (data / SHARD).read_bytes()
    assert train(manifest=copy / "manifest.json").code == 0


def test_a_shard_that_names_another_tokenizer_than_the_manifest(outlast: Run, train: Run, copy: Path) -> None:
    shard = copy / SHARD
    manifest, _ = read_manifest(str(copy / "manifest.json"))
    content = shard.read_bytes().replace(manifest.tokenizer.fingerprint.encode(), b"0" * 64)
    shard.write_bytes(content)
    train_shards = tuple(
        dataclasses.replace(entry, sha256=hashlib.sha256(content).hexdigest())
        if entry.name == SHARD
        else entry
        for entry in manifest.shards("train")
    )
    rewrite(copy, splits={**manifest.splits, "train": train_shards})
    fingerprints = ("0" * 64, manifest.tokenizer.fingerprint)
    train(manifest=copy / "manifest.json").refused(1, "made with the tokenizer", str(shard), *fingerprints)
    verified = outlast("shards", "verify", copy / "manifest.json")
    assert verified.code == 1
    assert len(verified.out.splitlines()) == 1
    assert all(fingerprint in verified.out for fingerprint in fingerprints)


def test_a_manifest_beside_another_tokenizer(train: Run, copy: Path) -> None:
    manifest, _ = read_manifest(str(copy / "manifest.json"))
    rewrite(copy, tokenizer=dataclasses.replace(manifest.tokenizer, fingerprint="0" * 64))
    train(manifest=copy / "manifest.json").refused(
        1, "beside another tokenizer than the one it was made with", str(copy / "tokenizer"), "0" * 64
    )
    shutil.rmtree(copy / "tokenizer")
    train(manifest=copy / "manifest.json").refused(1, "There is no tokenizer here", str(copy / "tokenizer"))


def test_a_data_set_without_held_out_text(outlast: Run, train: Run, copy: Path, tmp_path: Path) -> None:
    manifest, _ = read_manifest(str(copy / "manifest.json"))
    rewrite(copy, splits={"train": manifest.splits["train"]})
    done = train(manifest=copy / "manifest.json")
    assert done.code == 0
    run = tmp_path / "run"
    assert done.err.endswith(f"the run is complete: {run}; next: outlast export {run} run-model\n")
    outlast("evaluate", tmp_path / "run").refused(
        1, "The data set has no held-out split", "corpus.validation_fraction > 0"
    )


@pytest.mark.parametrize(
    "line",
    [
        "init --text {} --out r.toml",
        "init --images {} --out r.toml",
        "recipe show {}",
        "prepare RECIPE --out out --set corpus.path={}",
        "prepare RECIPE --out {}",
        "shards verify {}",
        "shards images {} --out out",
        "shards images list.csv --out out",
        "shards images list.tsv --out out",
        "shards images list.jsonl --out out",
        "shards images long.csv --out out",
        "tokenizer import {} --out out",
        "stream bench {}",
        "import {} out",
        "train RECIPE --run-dir {}",
        "evaluate {}",
        "export {} out",
        "fill-mask {} text",
        "verify {}",
    ],
)
def test_a_name_that_no_file_can_have(
    line: str, outlast: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts").write_text("some words\n" * 50)
    (tmp_path / "list.csv").write_bytes(b"image,label\na\0b,1\n")
    (tmp_path / "list.tsv").write_bytes(b"image\tlabel\na\0b\t1\n")
    (tmp_path / "list.jsonl").write_text(json.dumps({"image": "a\0b", "label": 1}))
    (tmp_path / "long.csv").write_text(f"image,label\n{300 * 'a'},1\n")
    (tmp_path / "recipe.toml").write_text("[corpus]\npath = 'texts'\n[tokenizer]\nvocab_size = 300\n")
    words = line.replace("RECIPE", "recipe.toml").format(300 * "a").split()
    done = outlast(*words)
    assert done.code in (1, 2), done
    assert "outlast: " in done.err, done
    assert "unexpected" not in done.err, done


@pytest.mark.parametrize("name", ["table.csv", "table.tsv"])
@pytest.mark.parametrize("more", ['corpus.format="text"', 'corpus.undecodable="error"'])
def test_a_table_with_a_nul_is_no_corpus(name: str, more: str, outlast: Run, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"a,b\n" * 10_000 + b"x\0y,1\n")
    (tmp_path / "recipe.toml").write_text(f"[corpus]\npath = '{name}'\n[tokenizer]\nvocab_size = 300\n")
    done = outlast("prepare", tmp_path / "recipe.toml", "--out", tmp_path / "out", "--set", more)
    done.refused(1, name)
    assert "unexpected" not in done.err
