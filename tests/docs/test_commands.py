"""The commands of the documentation, run as they stand.

In: the ``sh`` blocks of README.md and docs/. Every line that starts with ``outlast`` is run by the real
command, page by page and in order, in a folder of its own. RUN.toml is the smallest recipe, or what the page
makes of TEXTS; it trains for three steps on a small corpus, which is all that is changed.
"""

import re
import shlex
import shutil
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command import RECIPE, Command
from support.command_line import DATA, settings

CHECKOUT = Path(__file__).parents[2]
PAGES = sorted([CHECKOUT / "README.md", *(CHECKOUT / "docs").rglob("*.md")])
SHORT = (*DATA, "training.total_steps=3", "training.evaluation_examples=8")
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)


def commands_of(page: Path) -> Iterator[list[str]]:
    """Yield the words of each ``outlast`` command of a page."""
    for block in BLOCK.findall(page.read_text(encoding="utf-8")):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words and words[0] == "outlast":
                yield words[1:]


def test_the_readme_shows_the_whole_journey() -> None:
    shown = [words[0] for words in commands_of(CHECKOUT / "README.md")]
    assert shown == ["init", "prepare", "train", "evaluate", "export", "fill-mask"]


@pytest.mark.docs
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if any(commands_of(page))],
    ids=lambda page: page.relative_to(CHECKOUT).as_posix(),
)
def test_every_command_of_a_page_works(
    page: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if any(words[0] == "init" for words in commands_of(page)):
        shutil.copytree(Path(sysconfig.get_path("stdlib"), "email"), "TEXTS")
    else:
        shutil.copy(RECIPE, "RUN.toml")
    command = Command(tmp_path_factory.mktemp("cache"))
    for words in commands_of(page):
        short = [*settings(*SHORT), *command.overrides] if "RUN.toml" in words else []
        command.run(*words, *short)
