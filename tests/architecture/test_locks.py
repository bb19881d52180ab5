"""The locked versions are those that pyproject.toml allows, all of them, each with the digest of its file."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LINE = re.compile(r"([a-z0-9-]+)==(\S+) --hash=sha256:[0-9a-f]{64}")
LOCKS = {"test": "test", "quickstart": "train"}
LOCKED = {"python_version": "3.11", "sys_platform": "linux", "platform_machine": "x86_64"}


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_holds_what_the_extra_asks_for(lock: str, checkout: Path) -> None:
    head, *lines = (checkout / "requirements" / f"{lock}.lock").read_text().splitlines()
    assert head.startswith("# Python 3.11, linux, x86_64."), (
        "the system that scripts/environment.sh looks for"
    )
    matches = [LINE.fullmatch(line) for line in lines]
    assert all(matches), "a name, a version and a digest, and no address of anything"
    locked = {match[1]: match[2] for match in matches if match}
    document: dict[str, Any] = tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))
    project = document["project"]
    wanted = [*project["dependencies"], *document["build-system"]["requires"]]
    extras = [LOCKS[lock]]
    for extra in extras:
        for text in project["optional-dependencies"][extra]:
            if Requirement(text).name == "outlast":
                extras += sorted(Requirement(text).extras)
            else:
                wanted.append(text)
    wrong = [text for text in wanted if not is_met(Requirement(text), locked)]
    assert not wrong, f"do: run scripts/lock, for requirements/{lock}.lock has others than {wrong}"


def is_met(needed: Requirement, locked: dict[str, str]) -> bool:
    if needed.marker is not None and not needed.marker.evaluate(dict(LOCKED)):
        return True
    version = locked.get(canonicalize_name(needed.name))
    return version is not None and needed.specifier.contains(version)
