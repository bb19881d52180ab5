"""The small pure decisions: interval, deletions, configuration, sealed documents, the commit's own checks."""

import dataclasses
import json
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.checkpoint.config import CheckpointConfig
from outlast.checkpoint.format import (
    VERSION,
    ArraySlice,
    Commit,
    build_part,
    encode_commit,
    parse_commit,
    plan_parts,
    whole_arrays,
)
from outlast.checkpoint.interval import (
    FIRST_SAVE_SECONDS,
    LONGEST_SECONDS,
    SHORTEST_SECONDS,
    Life,
    mean_seconds_between_preemptions,
    seconds_to_next_save,
    young_seconds,
)
from outlast.checkpoint.lineage import CommitKey
from outlast.checkpoint.retain import Candidate, choose_deletions
from outlast.config import build
from outlast.errors import CheckpointError, ConfigError, DamagedCheckpoint
from outlast.storage.checksummed_json import seal


def life(seconds: float, *, closed: bool) -> Life:
    return Life(attempt=1, start=0.0, last_heartbeat=seconds, first_step=0, last_step=9, closed=closed)


def test_youngs_rule_gives_the_published_figures() -> None:
    """The intervals of a cost of 10 s at two hours between preemptions, and of 1 s at half an hour."""
    assert round(young_seconds(10, 7200)) == 379
    assert round(young_seconds(1, 1800)) == 60


def test_the_interval_has_bounds_and_the_first_save_comes_soon() -> None:
    assert seconds_to_next_save(save_seconds=None, seconds_between_preemptions=1e6) == FIRST_SAVE_SECONDS
    assert seconds_to_next_save(save_seconds=0.001, seconds_between_preemptions=100) == SHORTEST_SECONDS
    assert seconds_to_next_save(save_seconds=100, seconds_between_preemptions=1e6) == LONGEST_SECONDS
    assert seconds_to_next_save(save_seconds=2000, seconds_between_preemptions=1e6) == 4000


def test_preemptions_are_counted_and_endings_are_not() -> None:
    assert mean_seconds_between_preemptions([]) == 7200
    assert mean_seconds_between_preemptions([life(3600, closed=False)] * 3) == (7200 + 3 * 3600) / 4
    assert mean_seconds_between_preemptions([life(7200, closed=True)]) == 14400


_CANDIDATES = st.lists(
    st.builds(
        Candidate,
        key=st.builds(CommitKey, st.integers(1, 40), st.integers(1, 4)),
        in_line=st.booleans(),
    ),
    unique_by=lambda candidate: candidate.key,
)


@given(_CANDIDATES, st.data(), st.integers(1, 4), st.sampled_from([None, 7]), st.none() | st.integers(1, 40))
def test_deletions_spare_what_must_be_kept(
    candidates: list[Candidate], data: st.DataObject, attempt: int, every: int | None, best_step: int | None
) -> None:
    line = sorted(candidate.key for candidate in candidates if candidate.in_line)
    verified = set(data.draw(st.lists(st.sampled_from(line)))) if line else set[CommitKey]()
    restored_step = line[0].step if line else None
    deleted = choose_deletions(
        candidates,
        attempt=attempt,
        restored_step=restored_step,
        verified=verified,
        keep_newest=2,
        keep_every_steps=every,
        best_step=best_step,
    )
    left = [key for key in line if key not in deleted]
    assert all(key.attempt <= attempt for key in deleted)
    assert all(key.step != restored_step for key in deleted if key in line)
    if len(verified) < 2:
        assert deleted == []
    else:
        assert sorted(verified)[-2:] == [key for key in left if key in sorted(verified)[-2:]]
        assert all(key in left for key in line if key >= sorted(verified)[-2])
    assert all(key in left for key in line if key.step == best_step)
    if every:
        for multiple in {key.step // every for key in line} - {0}:
            assert min(key for key in line if key.step // every == multiple) in left


def test_configuration_mistakes_are_named() -> None:
    for table, message in [
        ({"keep_newest": 1}, "keep_newest"),
        ({"interval_step": 5}, "did you mean 'interval_steps'"),
        ({"heartbeat_seconds": 40.0}, "at least twice"),
        ({"part_bytes": 0}, "part_bytes"),
    ]:
        with pytest.raises(ConfigError, match=message):
            build(CheckpointConfig, table, where="test")


@pytest.fixture
def commit() -> Commit:
    slices = whole_arrays(
        {"a": np.arange(6, dtype=np.float32).reshape(3, 2), "b": np.array(1, dtype=np.int64)}
    )
    built = build_part(slices, name="data/000000000005/2-x/part-00000.safetensors", index=0)
    return Commit(
        version=VERSION,
        step=5,
        attempt=2,
        parent=None,
        identity={"seed": 1},
        mesh={},
        parts=(built.part,),
        slices=built.slices,
    )


def _with_slice(commit: Commit, **changes: object) -> Commit:
    first, *rest = commit.slices
    return dataclasses.replace(commit, slices=(dataclasses.replace(first, **changes), *rest))


Change = Callable[[Commit], Commit]
CHANGES: list[tuple[Change, str]] = [
    (lambda c: dataclasses.replace(c, step=6), "its name says otherwise"),
    (lambda c: dataclasses.replace(c, attempt=3), "its name says otherwise"),
    (lambda c: dataclasses.replace(c, version=2), "version 2"),
    (lambda c: dataclasses.replace(c, slices=c.slices[:1]), "end at byte"),
    (lambda c: dataclasses.replace(c, slices=(*c.slices, c.slices[0])), "gap or overlap"),
    (lambda c: dataclasses.replace(c, parts=(*c.parts, *c.parts)), "listed twice"),
    (lambda c: _with_slice(c, begin=c.slices[0].begin + 1), "gap or overlap"),
    (lambda c: _with_slice(c, dtype="object"), "unknown type"),
    (lambda c: _with_slice(c, shape=(7, 2)), "leaves the array"),
    (lambda c: _with_slice(c, global_shape=(4, 2)), "size than its bytes|exactly once|leaves the array"),
    (lambda c: _with_slice(c, start=(0,)), "number of axes|leaves"),
    (lambda c: _with_slice(c, part=9), "gap or overlap"),
    (
        lambda c: dataclasses.replace(c, parts=(dataclasses.replace(c.parts[0], name="../../etc/passwd"),)),
        "cannot be of this commit",
    ),
    (
        lambda c: dataclasses.replace(
            c, parts=(dataclasses.replace(c.parts[0], name="data/000000000004/2-x/p"),)
        ),
        "cannot be of this commit",
    ),
]


@pytest.mark.parametrize(("change", "message"), CHANGES)
def test_a_commit_that_cannot_be_is_refused_even_with_a_right_digest(
    commit: Commit, change: Change, message: str
) -> None:
    _, right = encode_commit(commit)
    assert parse_commit(right, name="commits/000000000005-2.json").slices == commit.slices
    _, content = encode_commit(change(commit))
    with pytest.raises(DamagedCheckpoint, match=message):
        parse_commit(content, name="commits/000000000005-2.json")


def test_unknown_and_missing_fields_are_refused(commit: Commit) -> None:
    _, content = encode_commit(commit)
    document = json.loads(content)
    for changed in (
        {**document, "extra": 1},
        {key: value for key, value in document.items() if key != "mesh"},
    ):
        with pytest.raises(DamagedCheckpoint):
            parse_commit(seal(changed), name="commits/000000000005-2.json")


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5)), min_size=1, max_size=6), st.integers(1, 200))
def test_parts_hold_every_element_once(shapes: list[tuple[int, int]], part_bytes: int) -> None:
    arrays = {
        f"x{n}": np.arange(shape[0] * shape[1], dtype=np.int32).reshape(shape)
        for n, shape in enumerate(shapes)
    }
    parts = plan_parts(whole_arrays(arrays), part_bytes)
    joined = {name: np.full_like(array, -1) for name, array in arrays.items()}
    for part in parts:
        assert len(part) == 1 or sum(piece.array.nbytes for piece in part) <= part_bytes
        for piece in part:
            first = piece.start[0]
            assert np.all(joined[piece.name][first : first + len(piece.array)] == -1)
            joined[piece.name][first : first + len(piece.array)] = piece.array
    assert all(np.array_equal(joined[name], array) for name, array in arrays.items())


def test_arrays_that_cannot_be_saved_are_named() -> None:
    for name, array in [
        ("x", np.array(["text"])),
        ("x", np.array([1j])),
        ("__metadata__", np.zeros(1)),
        ("", np.zeros(1)),
    ]:
        with pytest.raises(CheckpointError):
            build_part(whole_arrays({name: array}), name="p", index=0)
    twice = ArraySlice(name="x", global_shape=(1,), start=(0,), array=np.zeros(1))
    with pytest.raises(CheckpointError, match="one name"):
        build_part([twice, twice], name="p", index=0)


def test_byte_order_and_memory_layout_do_not_matter() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    digests = {
        build_part(whole_arrays({"x": variant}), name="p", index=0).slices[0].sha256
        for variant in (
            array,
            np.asfortranarray(array),
            array.astype(">f4"),
            np.repeat(array, 2, axis=1)[:, ::2],
        )
    }
    assert len(digests) == 1
