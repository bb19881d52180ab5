"""The examples run as their heads say, and a resume goes on with the very batches.

PyTorch's runs wherever PyTorch is installed, which the continuous integration sees to; TensorFlow's with the
peers.
"""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from outlast.storage import LocalStore
from support.datasets import write_counting_data
from support.images import write_images

EXAMPLES = Path(__file__).parents[2] / "examples"


def needs(library: str, extra: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        importlib.util.find_spec(library) is None,
        reason=f"{library} is not installed (pip install outlast[{extra}])",
    )


@pytest.fixture(scope="module")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, ...]]:
    """The arguments that name each data set."""
    folder = tmp_path_factory.mktemp("data")
    write_counting_data(LocalStore(folder / "text"), [[900, 400], [700]])
    images = write_images(folder / "images", [20, 20, 5])
    return {"text": (str(folder / "text" / "manifest.json"),), "images": (images, "--images", "32")}


def run(example: str, *arguments: str) -> list[str]:
    command = [sys.executable, str(EXAMPLES / example), *arguments, "--batch", "4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@needs("torch", "examples")
@pytest.mark.parametrize("kind", ["text", "images"])
def test_pytorch(manifests: dict[str, tuple[str, ...]], tmp_path: Path, kind: str) -> None:
    whole = run("stream_from_pytorch.py", *manifests[kind], "--steps", "9", "--workers", "2")
    assert len(set(whole)) == 9
    assert "images (4, 3, 32, 32) labels (4,)" in whole[0] or "input_ids (4, 64)" in whole[0]
    state = ("--state", str(tmp_path / "state.json"))
    lives = [
        run("stream_from_pytorch.py", *manifests[kind], "--steps", count, *state) for count in ("4", "5")
    ]
    assert lives[0] + lives[1] == whole
    [counted] = run("stream_from_pytorch.py", *manifests[kind], "--evaluate", "train", "--workers", "2")
    assert counted == ("33 examples" if kind == "text" else "40 examples")


@pytest.mark.peers
@needs("tensorflow", "peers")
@pytest.mark.parametrize("kind", ["text", "images"])
def test_tensorflow(manifests: dict[str, tuple[str, ...]], kind: str) -> None:
    whole = run("stream_from_tensorflow.py", *manifests[kind], "--steps", "9")
    assert len(set(whole)) == 9
    assert "images (4, 32, 32, 3) labels (4,)" in whole[0] or "input_ids (4, 64)" in whole[0]
    assert (
        run("stream_from_tensorflow.py", *manifests[kind], "--steps", "4", "--start-step", "5") == whole[5:]
    )
