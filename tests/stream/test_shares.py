"""Weights and budgets of tokens become exact shares, or an error says what does not add up."""

from fractions import Fraction
from typing import Any

import pytest

from outlast.config import build
from outlast.errors import ConfigError
from outlast.stream.config import SourceConfig, StreamConfig
from outlast.stream.shares import shares_of


def sources_of(*values: dict[str, Any]) -> tuple[SourceConfig, ...]:
    return tuple(SourceConfig(manifest=f"{i}/manifest.json", **value) for i, value in enumerate(values))


def test_weights_are_the_decimals_they_are_written_as() -> None:
    shares = shares_of(sources_of({"weight": 0.7}, {"weight": 0.2}, {"weight": 0.1}))
    assert shares == (Fraction(7, 10), Fraction(1, 5), Fraction(1, 10))
    assert shares_of(sources_of({"weight": 3}, {"weight": 1})) == (Fraction(3, 4), Fraction(1, 4))


def test_budgets_are_shares_of_the_run() -> None:
    sources = sources_of({"tokens": 250}, {"weight": 2}, {"weight": 1})
    shares = shares_of(sources, total_tokens=1000, step_tokens=100)
    assert shares == (Fraction(1, 4), Fraction(1, 2), Fraction(1, 4))
    sources = sources_of({"tokens": 250}, {"tokens": 760})
    assert shares_of(sources, total_tokens=1000, step_tokens=100) == (Fraction(25, 101), Fraction(76, 101))


def test_budgets_that_do_not_fit_the_run_are_refused() -> None:
    sources = sources_of({"tokens": 3000}, {"tokens": 1000})
    with pytest.raises(
        ConfigError, match=r"come to 4,000 tokens, more than the 1,000[\s\S]*total_steps to 40"
    ):
        shares_of(sources, total_tokens=1000, step_tokens=100)
    with pytest.raises(ConfigError, match=r"fewer than the 9,000"):
        shares_of(sources, total_tokens=9000, step_tokens=100)
    with pytest.raises(ConfigError, match=r"reads 1,000 tokens, the budgets alone are 1,000"):
        shares_of(sources_of({"tokens": 1000}, {"weight": 1}), total_tokens=1000, step_tokens=100)
    with pytest.raises(ConfigError, match=r"share of a run[\s\S]*every source a weight"):
        shares_of(sources)


def make(**values: Any) -> StreamConfig:
    return build(StreamConfig, values, where="here")


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ([{"manifest": "a/m.json"}], "either weight or tokens"),
        ([{"manifest": "a/m.json", "weight": 1, "tokens": 5}], "either weight or tokens"),
        ([{"manifest": "a/m.json", "weight": 0}], r"sources.0.weight: Input should be greater than 0"),
        ([{"manifest": "a/m.json", "wieght": 1}], r"sources.0.wieght: unknown key; did you mean 'weight'"),
        ([{"weight": 1}], "sources.0.manifest: is required"),
        (
            [{"manifest": "x/a/m.json", "weight": 1}, {"manifest": "y/a/m.json", "weight": 1}],
            "2 sources are called 'a'",
        ),
    ],
)
def test_sources_that_make_no_sense(sources: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(sources=sources)


def test_one_data_set_or_several() -> None:
    with pytest.raises(ConfigError, match="one of the two"):
        make(manifest="a/m.json", sources=[{"manifest": "b/m.json", "weight": 1}])


def test_labels_are_folders_or_names() -> None:
    def label(manifest: str, **values: Any) -> str:
        return SourceConfig(manifest=manifest, weight=1, **values).label

    assert label("s3://bucket/ja/manifest.json") == "ja"
    assert label("manifest.json") == "data"
    assert label("ja//manifest.json", name="Japanese") == "Japanese"
