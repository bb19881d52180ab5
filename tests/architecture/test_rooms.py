"""The rooms of the package: no circles, no climbs, none too large; tests lie where a reader looks."""

import ast
from pathlib import Path

from architecture.rooms import ORDER, circles, read_house, read_source

LARGEST_SHARE = 1 / 8


def test_nothing_imports_in_a_circle(checkout: Path) -> None:
    house = read_source(checkout / "src")
    assert not house.file_circles(), "do: move what both files need into a third, below both"
    assert not house.room_circles(), "do: move what both rooms need to the lower one"


def test_imports_run_down(checkout: Path) -> None:
    climbs = read_source(checkout / "src").climbs()
    assert not climbs, (
        f"{climbs} climb; do: pass it in as an argument, or move it down; the order of the rooms stands in "
        "tests/architecture/rooms.py"
    )


def test_no_room_is_too_large(checkout: Path) -> None:
    rooms = read_source(checkout / "src").room_lines()
    most = LARGEST_SHARE * sum(rooms.values())
    assert not (large := {name: count for name, count in rooms.items() if count > most}), (
        f"{large} of at most {most:.0f} lines; do: find the part that stands by itself, and give it a room"
    )


def test_every_room_has_its_place_in_the_order(checkout: Path) -> None:
    rooms = set(read_source(checkout / "src").room_lines())
    assert rooms == set(ORDER), f"do: correct ORDER in rooms.py: {sorted(rooms ^ set(ORDER))}"


def test_a_circle_and_a_climb_would_be_seen() -> None:
    trees = {
        "outlast.run.train": ast.parse("def f():\n    from outlast.stream import order\n"),
        "outlast.stream.order": ast.parse("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n"
                                          "    import outlast.run.train\n"),
        "outlast.errors": ast.parse(""),
    }  # fmt: skip
    house = read_house(trees, dict.fromkeys(trees, 1))
    assert house.file_circles() == [["outlast.run.train", "outlast.stream.order"]]
    assert house.room_circles() == [["run", "stream"]]
    assert house.climbs() == [("stream", "run")]
    assert circles({"a": ["b"], "b": ["c"], "c": []}) == []


def test_tests_lie_where_the_source_does(checkout: Path) -> None:
    source = checkout / "src" / "outlast"
    told = (checkout / "CONTRIBUTING.md").read_text(encoding="utf-8")
    folders = {
        path.parent.relative_to(checkout / "tests") for path in (checkout / "tests").rglob("test_*.py")
    }
    strange = sorted(
        str(folder)
        for folder in folders
        if not (source / folder).is_dir()
        and not (source / folder).with_suffix(".py").exists()
        and f"`{folder}`" not in told
    )
    assert not strange, (
        f"tests/ has the folders {strange}; do: call them as in src/outlast, or tell in CONTRIBUTING.md what "
        "they are for"
    )
