"""The line rule and the names it works on."""

from outlast.checkpoint.lineage import (
    UNREADABLE,
    CommitKey,
    Start,
    history_of,
    ignored_because,
    line_of,
    parse_commit_name,
    parse_data_name,
)


def test_names_go_there_and_back() -> None:
    key = CommitKey(1200, 3)
    assert key.name == "commits/000000001200-3.json"
    assert parse_commit_name(key.name) == key
    assert parse_data_name(f"{key.data_prefix}abc/part-00000.safetensors") == key


def test_other_names_are_not_commits() -> None:
    for name in (
        "commits/12-3.json",
        "commits/000000000012-03.json",
        "commits/000000000012-3.json.x",
        "x/000000000012-3.json",
    ):
        assert parse_commit_name(name) is None


NEW = Start(0, None)


def test_a_late_commit_of_a_replaced_attempt_is_ignored() -> None:
    recorded = {1: NEW, 2: Start(100, CommitKey(100, 1))}
    assert (
        ignored_because(CommitKey(110, 1), recorded)
        == "attempt 2, the newest, descends from step 100 of attempt 1"
    )
    assert ignored_because(CommitKey(100, 1), recorded) is None
    assert ignored_because(CommitKey(110, 2), recorded) is None


def test_a_commit_that_was_stepped_back_over_is_ignored_for_good() -> None:
    recorded = {
        1: NEW,
        2: Start(100, CommitKey(100, 1)),
        3: Start(90, CommitKey(90, 1)),
        4: Start(120, CommitKey(120, 3)),
    }
    line = line_of(
        [CommitKey(80, 1), CommitKey(90, 1), CommitKey(100, 1), CommitKey(105, 2), CommitKey(120, 3)],
        recorded,
    )
    assert line == [CommitKey(120, 3), CommitKey(90, 1), CommitKey(80, 1)]


def test_a_late_record_of_a_replaced_attempt_changes_nothing() -> None:
    """Attempt 2 looked before step 3 was committed, slept, and recorded after attempt 3 had begun."""
    recorded = {1: NEW, 2: NEW, 3: Start(3, CommitKey(3, 1))}
    assert line_of([CommitKey(3, 1)], recorded) == [CommitKey(3, 1)]


def test_an_attempt_that_began_anew_has_no_history_before_it() -> None:
    assert (
        ignored_because(CommitKey(10, 1), {1: NEW, 2: NEW})
        == "attempt 2, the newest, does not descend from attempt 1"
    )


def test_without_any_record_all_commits_count() -> None:
    assert line_of([CommitKey(100, 1), CommitKey(90, 2)], {}) == [CommitKey(100, 1), CommitKey(90, 2)]


def test_a_damaged_record_ends_the_history() -> None:
    recorded = {1: NEW, 2: UNREADABLE}
    assert history_of(recorded) == {2: None}
    assert line_of([CommitKey(100, 1), CommitKey(120, 2)], recorded) == [CommitKey(120, 2)]


def test_records_in_a_circle_end() -> None:
    assert history_of({1: Start(5, CommitKey(5, 2)), 2: Start(5, CommitKey(5, 1))}) == {2: None, 1: 5}
