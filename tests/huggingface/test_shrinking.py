"""Weights that are cut short while they are read are an error, not a signal."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

READER = """
import sys, threading
from pathlib import Path
import outlast.huggingface.load as load
from outlast.errors import OutlastError

folder = Path(sys.argv[1])
whole = (folder / "model.safetensors").stat().st_size

def opened(path, *arguments, _open=load.open_regular):
    file = _open(path, *arguments)
    file.peek(1)
    import os
    os.truncate(path, whole // 3)
    return file

load.open_regular = opened
try:
    load.read_tensors(folder)
except OutlastError as error:
    sys.exit(f"refused: {error}")
"""


@pytest.mark.parametrize("size", [1000, 3_000_000])
def test_a_file_cut_short_is_refused(tmp_path: Path, size: int) -> None:
    save_file({"a": np.ones(size, np.float32), "b": np.ones(9, np.float32)}, tmp_path / "model.safetensors")
    done = subprocess.run(
        [sys.executable, "-c", READER, str(tmp_path)], env=os.environ, capture_output=True, text=True
    )
    assert done.returncode == 1, done
    assert "refused: Cannot read the weights" in done.stderr
