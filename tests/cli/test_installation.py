"""Errors in words: what the installation lacks is told with the extra that brings it."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from outlast.errors import EXTRAS, explained

CHECKOUT = Path(__file__).parents[2]
REFUSING = """
import importlib.abc, sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == sys.argv[1]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from outlast.cli.main import run_command_line
sys.exit(run_command_line(sys.argv[2:]))
"""


def test_every_library_of_an_extra_is_known() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    assert set(EXTRAS.values()) <= set(extras)
    of_the_package = ("train", "parquet", "hub", "dedup", "fast", "language", "segment", "images", "ray")
    assert set(EXTRAS.values()) == set(of_the_package)
    for library, extra in EXTRAS.items():
        brought = " ".join(extras[extra]).replace("-", "_")
        named = {"cv2": "opencv_python_headless", "PIL": "pillow", "jaxlib": "jax"}.get(library, library)
        assert re.search(rf"\b{named}\b", brought), f"{library} is not brought by {extra}"


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "RUN.toml", "--run-dir", "run"],
        ["evaluate", "run"],
        ["export", "run", "model"],
        ["fill-mask", "model", "[MASK]"],
        ["import", "model", "run"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_verb_without_jax_names_the_extra(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "RUN.toml").touch()
    done = run_without("jax", *arguments, folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr == (
        "outlast: The library jax is not installed.\n"
        "  expected: what the extra `train` brings\n"
        "  do:       pip install 'outlast[train]'\n"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["RUN.toml"]


def test_a_library_that_no_extra_brings_stays_unexpected() -> None:
    assert explained(ModuleNotFoundError("No module named 'nowhere'", name="nowhere")) is None
    assert explained(RuntimeError("something else")) is None


@pytest.mark.parametrize("platform", ["cuda", "nonsense"])
def test_a_device_that_is_not_there_is_told_before_the_run_is_touched(
    platform: str, data: Path, tmp_path: Path
) -> None:
    recipe = tmp_path / "RUN.toml"
    recipe.write_text(f"[stream]\nmanifest = '{data / 'manifest.json'}'\n")
    line = [sys.executable, "-m", "outlast", "train", str(recipe), "--run-dir", str(tmp_path / "run")]
    environment = {**os.environ, "JAX_PLATFORMS": platform}
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 2
    assert f"outlast: jax finds no device of the kind '{platform}'" in done.stderr
    assert "unset JAX_PLATFORMS" in done.stderr
    assert not (tmp_path / "run").exists()


def test_the_stream_of_pictures_tells_it_before_the_first_batch() -> None:
    code = REFUSING.partition("from outlast")[0] + (
        "import outlast\n"
        "try:\n"
        "    outlast.open_images('manifest.json', global_batch_size=1)\n"
        "except outlast.ConfigError as error:\n"
        "    print(error)\n"
    )
    line = [sys.executable, "-c", code, "simplejpeg"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=True)
    assert "The library simplejpeg is not installed" in done.stdout


def run_without(library: str, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a verb in a process that does not find a library."""
    line = [sys.executable, "-c", REFUSING, library, *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=120, cwd=folder)
