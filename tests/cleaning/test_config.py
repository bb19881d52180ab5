"""The table: off by default, whole or refused."""

import sys

import pytest

from outlast.cleaning.config import CleaningConfig
from outlast.cleaning.language import identifier
from outlast.cleaning.libraries import library_versions
from outlast.errors import ConfigError
from outlast.recipe import make_recipe


def test_by_default_nothing_is_done() -> None:
    assert not CleaningConfig().is_on
    assert not CleaningConfig().needs_scan
    assert library_versions(CleaningConfig()) == {}


def test_what_depends_on_other_documents_needs_a_scan() -> None:
    assert CleaningConfig(duplicates="exact").needs_scan
    assert CleaningConfig(duplicate_lines="drop").needs_scan
    assert not CleaningConfig(unicode_form="NFKC", min_characters=5).needs_scan
    assert CleaningConfig(unicode_form="NFKC").is_on


def test_limits_that_exclude_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match="max_characters is 5, below min_characters, 6"):
        make_recipe({"cleaning": {"min_characters": 6, "max_characters": 5}}, where="test")


def test_an_unknown_language_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"'jp' is not known[\s\S]*cleaning.languages"):
        library_versions(CleaningConfig(languages=("ja", "jp")))


def test_the_versions_of_what_is_used_are_told() -> None:
    assert set(library_versions(CleaningConfig(duplicates="near"))) == {"unicode", "rensa"}
    assert set(library_versions(CleaningConfig(languages=("ja",)))) == {"unicode", "py3langid"}
    assert set(library_versions(CleaningConfig(duplicates="exact"))) == {"unicode"}


@pytest.mark.parametrize(
    ("library", "config", "extra"),
    [
        ("rensa", CleaningConfig(duplicates="near"), "dedup"),
        ("py3langid.langid", CleaningConfig(languages=("ja",)), "language"),
    ],
)
def test_a_missing_library_is_named_with_its_extra(
    library: str, config: CleaningConfig, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    identifier.cache_clear()
    with pytest.raises(ConfigError, match=rf"not installed[\s\S]*cleaning\.[\s\S]*outlast\[{extra}\]"):
        library_versions(config)
