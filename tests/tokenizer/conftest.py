"""Text to train on that every machine has: the source of standard modules, and some Japanese."""

import inspect
import json
import textwrap
import typing
from pathlib import Path

import pytest

JAPANESE = (
    "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。"
    "何でも薄暗いじめじめした所でニャーニャー泣いていた事だけは記憶している。"
)


@pytest.fixture(scope="session")
def source_documents() -> list[str]:
    text = [inspect.getsource(module) for module in (json, json.decoder, textwrap, typing)]
    parts = [text_of[start : start + 4000] for text_of in text for start in range(0, len(text_of), 4000)]
    return [*parts, *[JAPANESE * 3] * 4]


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path)
