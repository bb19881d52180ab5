"""Pair tables: what is written is read back, other libraries read it too, damage and lies are errors."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load as safetensors_load

from outlast.errors import ShardError
from outlast.shards.manifest import PAIR_BYTES, PairTableEntry
from outlast.shards.pair_table import PairTableWriter, TableIdentity, read_pair_table
from outlast.shards.pairs import Pairs
from outlast.storage import LocalStore
from support.files import from_hexdump

IDENTITY = TableIdentity(
    data="ab12", split="train", shard=0, sequence_length=8, num_passes=2, short_probability=0.1, seed=0
)
SHARD_TOKENS = (10, 7)
NAME = "train-00000-of-00002.safetensors"
FIRST_PASS = Pairs(
    np.array([0, 5], np.uint32),
    np.array([2, 1], np.uint16),
    np.array([0, 1], np.uint32),
    np.array([2, 0], np.uint32),
    np.array([3, 4], np.uint16),
    np.array([0, 1], np.uint8),
)
SECOND_PASS = Pairs(*(column[:1] for column in FIRST_PASS))


def write_table(folder: Path, *passes: Pairs) -> PairTableEntry:
    with PairTableWriter(IDENTITY) as writer:
        for pairs in passes:
            writer.add(pairs)
            writer.end_pass()
        return writer.write(LocalStore(folder), NAME)


def open_table(folder: Path, entry: PairTableEntry, identity: TableIdentity = IDENTITY) -> Pairs:
    content = (folder / NAME).read_bytes()
    return read_pair_table(
        content, entry, identity=identity, shard_tokens=SHARD_TOKENS, where=str(folder / NAME)
    )


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    entry = write_table(tmp_path, FIRST_PASS, SECOND_PASS)
    assert (entry.num_examples, entry.num_random) == (3, 1)
    for found, first, second in zip(open_table(tmp_path, entry), FIRST_PASS, SECOND_PASS, strict=True):
        assert found.tolist() == [*first, *second]
        assert found.dtype == first.dtype
        assert not found.flags.writeable


def test_any_safetensors_library_reads_it(tmp_path: Path) -> None:
    entry = write_table(tmp_path, FIRST_PASS, SECOND_PASS)
    arrays = safetensors_load((tmp_path / NAME).read_bytes())
    assert arrays["pass_offsets"].tolist() == [0, 2, 3]
    assert {name: arrays[name].tolist() for name in Pairs._fields} == {
        name: [*first, *second]
        for name, first, second in zip(Pairs._fields, FIRST_PASS, SECOND_PASS, strict=True)
    }
    rows = sum(array.nbytes for array in arrays.values()) - arrays["pass_offsets"].nbytes
    assert rows == PAIR_BYTES * entry.num_examples


def test_the_worked_example_is_what_is_written(tmp_path: Path, docs: Path) -> None:
    write_table(tmp_path, FIRST_PASS, SECOND_PASS)
    page = (docs / "formats" / "pair_table.md").read_text(encoding="utf-8")
    assert from_hexdump(page, 1) == (tmp_path / NAME).read_bytes()


@pytest.fixture
def docs() -> Path:
    return Path(__file__).parents[2] / "docs"


def test_a_table_without_pairs_is_a_table(tmp_path: Path) -> None:
    empty = Pairs(*(column[:0] for column in FIRST_PASS))
    entry = write_table(tmp_path, empty, empty)
    assert len(open_table(tmp_path, entry).first_begin) == 0


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"first_begin": 9}, "first segment lies beyond"),
        ({"second_begin": 8}, "second segment lies beyond"),
        ({"second_shard": 1, "second_begin": 5}, "second segment lies beyond"),
        ({"second_shard": 2}, "second_shard holds 2, and the split has 2 shards"),
        ({"first_length": 0}, "no tokens"),
        ({"second_length": 0}, "no tokens"),
        ({"second_length": 4}, "6 tokens, too many for a sequence of 8"),
        ({"next_sentence_label": 2}, "next_sentence_label holds 2"),
    ],
)
def test_a_row_that_leads_out_is_an_error(tmp_path: Path, row: dict[str, int], message: str) -> None:
    columns = {name: column.copy() for name, column in SECOND_PASS._asdict().items()}
    for name, value in row.items():
        columns[name][0] = value
    entry = write_table(tmp_path, FIRST_PASS, Pairs(**columns))
    with pytest.raises(ShardError, match=message):
        open_table(tmp_path, entry)


def test_passes_that_do_not_add_up_are_an_error(tmp_path: Path) -> None:
    entry = write_table(tmp_path, FIRST_PASS, SECOND_PASS)
    content = bytearray((tmp_path / NAME).read_bytes())
    place = content.index(np.array([0, 2, 3], "<i8").tobytes())
    content[place + 8] = 4
    (tmp_path / NAME).write_bytes(content)
    with pytest.raises(ShardError, match="pass_offsets"):
        open_table(tmp_path, entry)


@pytest.mark.parametrize(
    "change", [{"data": "cd34"}, {"split": "validation"}, {"shard": 1}, {"num_passes": 1}, {"seed": 3}]
)
def test_the_table_of_something_else_is_refused(tmp_path: Path, change: dict[str, int]) -> None:
    entry = write_table(tmp_path, FIRST_PASS, SECOND_PASS)
    name = next(iter(change))
    with pytest.raises(ShardError, match=rf"pair table's {name} is[\s\S]*by the manifest"):
        open_table(tmp_path, entry, replace(IDENTITY, **change))


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "cut short": lambda content: content[:-1],
    "empty": lambda content: b"",
    "a token shard": lambda content: content.replace(b"outlast-pair-table", b"outlast-token-shd!"),
    "no columns": lambda content: content.replace(b"first_length", b"first_breadt"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_an_error(tmp_path: Path, kind: str) -> None:
    entry = write_table(tmp_path, FIRST_PASS, SECOND_PASS)
    (tmp_path / NAME).write_bytes(DAMAGE[kind]((tmp_path / NAME).read_bytes()))
    with pytest.raises(ShardError, match=re.escape(str(tmp_path / NAME))):
        open_table(tmp_path, entry)


def test_every_flipped_bit_of_the_head_is_an_error_or_harmless(tmp_path: Path) -> None:
    entry = write_table(tmp_path, FIRST_PASS, SECOND_PASS)
    content = (tmp_path / NAME).read_bytes()
    whole = [column.tolist() for column in open_table(tmp_path, entry)]
    head = 8 + int.from_bytes(content[:8], "little")
    assert json.loads(content[8:head])
    for place in range(0, 8 * head, 7):
        flipped = bytearray(content)
        flipped[place // 8] ^= 1 << place % 8
        (tmp_path / NAME).write_bytes(flipped)
        try:
            found = [column.tolist() for column in open_table(tmp_path, entry)]
        except ShardError:
            continue
        assert found == whole
