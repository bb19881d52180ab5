"""Damaged checkpoints: every flipped bit, cut, missing, exchanged or renamed file is noticed, and the older
one taken.
"""

import hashlib
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from outlast.checkpoint.lineage import CommitKey, record_name
from outlast.checkpoint.restore import digest_arrays, list_commits, read_commit, restore_newest, verify_commit
from outlast.errors import DamagedCheckpoint
from outlast.storage import LocalStore, Store

State = dict[str, NDArray[np.generic]]


@pytest.fixture
def run(tmp_path: Path, save_steps: Callable[[Store, Sequence[int]], None]) -> Path:
    save_steps(LocalStore(tmp_path / "run"), [10, 20])
    return tmp_path / "run"


def parts_of(run: Path, step: int) -> list[Path]:
    return sorted((run / "data" / f"{step:012d}").rglob("*.safetensors"))


def commit_of(run: Path, step: int) -> Path:
    return run / CommitKey(step, 1).name


def flip(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def cut(path: Path, rng: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: rng.randrange(len(content))])


def lengthen(path: Path, rng: random.Random) -> None:
    path.write_bytes(path.read_bytes() + rng.randbytes(rng.randint(1, 50)))


def exchange(run: Path, rng: random.Random) -> None:
    first, second = rng.sample(parts_of(run, 20), 2)
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)


def damage(run: Path, rng: random.Random) -> str:
    """Damage the checkpoint of step 20 in one random way; return which."""
    target = rng.choice([commit_of(run, 20), *parts_of(run, 20)])
    kind = rng.choice(
        ["flip", "flip", "flip", "cut", "lengthen", "missing", "exchange", "older part", "older commit"]
    )
    match kind:
        case "flip":
            flip(target, rng)
        case "cut":
            cut(target, rng)
        case "lengthen":
            lengthen(target, rng)
        case "missing":
            rng.choice(parts_of(run, 20)).unlink()
        case "exchange":
            exchange(run, rng)
        case "older part":
            index = rng.randrange(len(parts_of(run, 20)))
            shutil.copyfile(parts_of(run, 10)[index], parts_of(run, 20)[index])
        case _:
            shutil.copyfile(commit_of(run, 10), commit_of(run, 20))
    return kind


def check_many(run: Path, state: Callable[[int], State], seeds: range) -> None:
    kinds: set[str] = set()
    for seed in seeds:
        broken = run.with_name(f"broken-{seed}")
        shutil.copytree(run, broken)
        kind = damage(broken, random.Random(seed))
        store = LocalStore(broken)
        assert verify_commit(store, CommitKey(20, 1).name), f"seed {seed}: {kind} was not noticed"
        restored = restore_newest(store, report=lambda _: None)
        assert restored is not None
        assert restored.commit.step == 10, f"seed {seed}: {kind}"
        assert [name for name, _ in restored.skipped] == [CommitKey(20, 1).name]
        assert all(np.array_equal(restored.arrays[name], array) for name, array in state(10).items())
        assert commit_of(broken, 20).exists(), "a restore deletes nothing"
        shutil.rmtree(broken)
        kinds.add(kind)
    assert len(kinds) == 7


def test_damage_is_noticed_and_the_older_one_taken(run: Path, state: Callable[[int], State]) -> None:
    check_many(run, state, range(300))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_damage_is_noticed_two_thousand_times(run: Path, state: Callable[[int], State]) -> None:
    check_many(run, state, range(300, 2300))


def test_every_single_byte_is_covered(run: Path) -> None:
    store = LocalStore(run)
    for path in [commit_of(run, 20), *parts_of(run, 20)]:
        content = path.read_bytes()
        for position in range(0, len(content), 7):
            changed = bytearray(content)
            changed[position] ^= 0x10
            path.write_bytes(changed)
            assert verify_commit(store, CommitKey(20, 1).name), f"{path.name}, byte {position}"
        path.write_bytes(content)
    assert verify_commit(store, CommitKey(20, 1).name) == []


def test_where_nothing_is_usable_nobody_starts_anew_by_accident(run: Path) -> None:
    for step in (10, 20):
        parts_of(run, step)[0].unlink()
    with pytest.raises(DamagedCheckpoint, match="None of the 2 checkpoints"):
        restore_newest(LocalStore(run), report=lambda _: None)


def test_a_damaged_record_is_named(run: Path, start: Callable[[Store, str], object]) -> None:
    store = LocalStore(run)
    start(store, "second")
    path = run / record_name(2)
    path.write_bytes(path.read_bytes().replace(b"20", b"21"))
    with pytest.raises(DamagedCheckpoint, match=r"attempts/2\.from\.json is damaged"):
        restore_newest(store, attempt_number=3, report=lambda _: None)


def test_a_commit_of_another_version_is_not_guessed_at(run: Path) -> None:
    path = commit_of(run, 20)
    path.write_bytes(path.read_bytes().replace(b'"version":1', b'"version":2'))
    row = list_commits(LocalStore(run))[-1]
    assert not row.in_line
    assert row.reason is not None
    assert row.reason.startswith("damaged")


def test_restoring_a_prefix_reads_only_that(run: Path, state: Callable[[int], State]) -> None:
    store = LocalStore(run)
    flip_outside = next(
        entry for entry in read_commit(store, CommitKey(20, 1).name).slices if entry.name == "opt_state/flags"
    )
    path = run / read_commit(store, CommitKey(20, 1).name).parts[flip_outside.part].name
    content = bytearray(path.read_bytes())
    content[flip_outside.begin] ^= 1
    path.write_bytes(content)
    restored = restore_newest(store, prefix="params/", report=lambda _: None)
    assert restored is not None
    assert restored.commit.step == 20
    assert sorted(restored.arrays) == sorted(name for name in state(20) if name.startswith("params/"))
    everything = restore_newest(store, report=lambda _: None)
    assert everything is not None
    assert everything.commit.step == 10


def test_the_digest_does_not_depend_on_how_arrays_were_cut(
    tmp_path: Path, run: Path, state: Callable[[int], State]
) -> None:

    store = LocalStore(run)
    expected = hashlib.sha256()
    for name, array in sorted(state(20).items()):
        if name.startswith("params/"):
            shape = ",".join(str(length) for length in array.shape)
            expected.update(f'["{name}","{array.dtype.name}",[{shape}]]\n'.encode() + array.tobytes())
    assert digest_arrays(store, read_commit(store, CommitKey(20, 1).name)) == expected.hexdigest()
