"""Brace notation, as bash expands it."""

import pytest

from outlast.errors import ConfigError
from outlast.images.braces import expand_braces


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("plain.tar", ["plain.tar"]),
        ("{08..11}", ["08", "09", "10", "11"]),
        ("{3..1}", ["3", "2", "1"]),
        ("{1..10..3}", ["1", "4", "7", "10"]),
        ("{-02..1}", ["-02", "-01", "000", "001"]),
        ("x{1..2}{a,b}", ["x1a", "x1b", "x2a", "x2b"]),
        ("{a,b{1..2}}.tar", ["a.tar", "b1.tar", "b2.tar"]),
        ("{a,{b,c}}{,z}", ["a", "az", "b", "bz", "c", "cz"]),
        ("{x} {} a{b", ["{x} {} a{b"]),
        ("{a{1..2}", ["{a1", "{a2"]),
    ],
)
def test_patterns(pattern: str, expected: list[str]) -> None:
    assert expand_braces(pattern) == expected


def test_the_shards_of_a_large_set() -> None:
    names = expand_braces("s3://bucket/{train,val}/shard-{000000..000639}.tar")
    assert len(names) == 2 * 640
    assert names[0] == "s3://bucket/train/shard-000000.tar"
    assert names[-1] == "s3://bucket/val/shard-000639.tar"


@pytest.mark.parametrize("pattern", ["{0..1000000}", "{0..99999999999999999999}", "{0..9999}{0..9999}"])
def test_too_many_names_are_refused_before_they_are_made(pattern: str) -> None:
    with pytest.raises(ConfigError, match="more names"):
        expand_braces(pattern)
