"""A finished data set with something lost or damaged: `prepare` says so, and makes the same bytes again."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from outlast.errors import CorpusError, OutlastError, ShardError
from outlast.prepare.build import prepare_data
from outlast.recipe import read_recipe
from support.builds import PAIRED, write_lines, write_recipe


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recipe")
    corpus = write_lines(folder / "text.jsonl", 120)
    return write_recipe(folder / "run.toml", str(corpus), {**PAIRED, "shards.num_shards": 3})


@pytest.fixture(scope="module")
def whole(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole")
    assert prepare_data(read_recipe(recipe), str(out))
    return out


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


@pytest.mark.parametrize("damage", [Path.unlink, cut])
@pytest.mark.parametrize(
    "name",
    [
        "train-00001-of-00003.safetensors",
        "pairs-32/train-00002-of-00003.safetensors",
        "tokenizer/tokenizer.model",
        "tokenizer/manifest.json",
    ],
)
def test_what_is_lost_is_made_again(
    recipe: Path, whole: Path, copy: Path, name: str, damage: Callable[[Path], None]
) -> None:
    if not (copy / name).exists():
        name = "tokenizer/tokenizer.json"
    damage(copy / name)
    assert prepare_data(read_recipe(recipe), str(copy)) == f"{copy}/manifest.json"
    assert files_of(copy) == files_of(whole)


def test_a_flipped_byte_is_found_by_its_digest(recipe: Path, whole: Path, copy: Path) -> None:
    for name in ("train-00000-of-00003.safetensors", "pairs-48/train-00000-of-00003.safetensors"):
        content = bytearray((copy / name).read_bytes())
        content[-1] ^= 1
        (copy / name).write_bytes(content)
    prepare_data(read_recipe(recipe), str(copy))
    assert files_of(copy) != files_of(whole)
    prepare_data(read_recipe(recipe), str(copy), verify=True)
    assert files_of(copy) == files_of(whole)


def test_pairs_that_the_recipe_does_not_name_are_kept_and_mended(
    recipe: Path, whole: Path, copy: Path
) -> None:
    (copy / "train-00001-of-00003.safetensors").unlink()
    (copy / "pairs-32" / "train-00000-of-00003.safetensors").unlink()
    prepare_data(read_recipe(recipe, ["shards.pairs.lengths=[48]"]), str(copy))
    assert files_of(copy) == files_of(whole)


def test_a_library_that_makes_other_bytes_is_refused(
    recipe: Path, whole: Path, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "train-00001-of-00003.safetensors"
    (copy / name).unlink()
    with monkeypatch.context() as patch:
        from outlast.prepare import encode

        def other(tokenizer, texts, *rest, **values):  # type: ignore[no-untyped-def]
            return encode.encode_documents(tokenizer, [text + " more" for text in texts], *rest, **values)

        patch.setattr("outlast.prepare.portion.encode_documents", other)
        with pytest.raises(OutlastError, match=r"Made again, the file has other bytes[\s\S]*install outlast"):
            prepare_data(read_recipe(recipe), str(copy))
    assert (copy / "manifest.json").read_bytes() == (whole / "manifest.json").read_bytes()
    prepare_data(read_recipe(recipe), str(copy))
    assert files_of(copy) == files_of(whole)


def test_an_edited_manifest_is_refused_and_not_called_complete(recipe: Path, whole: Path, copy: Path) -> None:
    path = copy / "manifest.json"
    counts = json.loads(path.read_text())["provenance"]["counts"]["train"]["documents"]
    path.write_text(path.read_text().replace(f'"documents": {counts}', f'"documents": {counts + 1}', 1))
    with pytest.raises(ShardError, match=r"edited or damaged[\s\S]*delete it and give the line"):
        prepare_data(read_recipe(recipe), str(copy))
    path.unlink()
    prepare_data(read_recipe(recipe), str(copy))
    assert files_of(copy) == files_of(whole)


def test_a_changed_corpus_is_refused(recipe: Path, copy: Path, tmp_path: Path) -> None:
    (copy / "train-00001-of-00003.safetensors").unlink()
    other = write_lines(tmp_path / "text.jsonl", 121)
    with pytest.raises((ShardError, CorpusError), match="another corpus or configuration"):
        prepare_data(read_recipe(recipe, [f"corpus.path={other}"]), str(copy))
