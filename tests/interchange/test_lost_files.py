"""Exports and imports that are complete, with something lost: the same line makes the same bytes again."""

from pathlib import Path

import pytest

from outlast.errors import ShardError
from outlast.interchange.export_config import ExportConfig
from outlast.interchange.export_tfrecord import export_tfrecord
from outlast.interchange.import_tfrecord import ImportConfig, import_tfrecord
from outlast.run.verify import verify_anything
from outlast.storage import LocalStore
from support.datasets import VOCAB_SIZE, write_counting_data
from support.records import write_tokenizer_folder

CONFIG = ExportConfig(features="bert", sequence_length=16, records_per_shard=7)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


@pytest.mark.parametrize("damage", ["missing", "cut short", "one byte"])
def test_lost_files_are_made_again(tmp_path: Path, damage: str) -> None:
    write_counting_data(LocalStore(tmp_path / "data"), [[40, 9], [25, 100, 3], [61]])
    records, back = tmp_path / "records", tmp_path / "back"
    tokenizer = str(write_tokenizer_folder(tmp_path / "tokenizer", VOCAB_SIZE))

    def export() -> str:
        data = str(tmp_path / "data" / "manifest.json")
        return export_tfrecord(data, str(records), CONFIG, num_processes=1, verify=damage == "one byte")

    def bring_in() -> str:
        return import_tfrecord(
            [export()],
            str(back),
            ImportConfig(),
            tokenizer=tokenizer,
            num_processes=1,
            verify=damage == "one byte",
        )

    bring_in()
    expected = contents(records), contents(back)
    for path in (
        records / "dataset-00001-7.tfrecord",
        back / "train-00001-of-00003.safetensors",
        back / "tokenizer" / "tokenizer.json",
    ):
        content = path.read_bytes()
        if damage == "missing":
            path.unlink()
        else:
            path.write_bytes(content[:-1] + (b"" if damage == "cut short" else bytes([content[-1] ^ 1])))
    bring_in()
    assert (contents(records), contents(back)) == expected


def test_an_edited_manifest_of_an_export_is_refused(tmp_path: Path) -> None:
    write_counting_data(LocalStore(tmp_path / "data"), [[40, 9]])
    data, out = str(tmp_path / "data" / "manifest.json"), tmp_path / "out"
    path = Path(export_tfrecord(data, str(out), CONFIG, num_processes=1))
    path.write_text(path.read_text().replace('"num_records": 4', '"num_records": 5', 1))
    with pytest.raises(ShardError, match="edited or damaged"):
        export_tfrecord(data, str(out), CONFIG, num_processes=1)


def test_verify_names_the_file_of_an_export_that_is_not_what_was_written(tmp_path: Path) -> None:
    write_counting_data(LocalStore(tmp_path / "data"), [[40, 9], [25, 100, 3], [61]])
    out = tmp_path / "records"
    manifest = Path(
        export_tfrecord(str(tmp_path / "data" / "manifest.json"), str(out), CONFIG, num_processes=1)
    )
    assert verify_anything(str(out)) == []
    for path in (manifest, *sorted(out.glob("*.tfrecord"))):
        whole = path.read_bytes()
        path.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
        (line,) = verify_anything(str(out))
        assert path.name in line
        path.write_bytes(whole)
    sorted(out.glob("*.tfrecord"))[0].unlink()
    assert verify_anything(str(out)) == ["dataset-00000-7.tfrecord: is missing"]
