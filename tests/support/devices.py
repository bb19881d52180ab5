"""A process of its own with several CPU devices: jax counts them when it starts."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def result_on_devices(num_devices: int, test_file: str, expression: str, flags: str = "") -> Any:
    """Return the value of an expression in a process with so many devices, through JSON.

    Args:
        test_file: the module whose names the expression reads; its ``__file__``.
        flags: further ones of XLA.
    """
    module = Path(test_file)
    folders = [str(module.parent), str(Path(__file__).parents[1])]  # the test's own, and that of support
    path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), *folders])
    flags = f"--xla_force_host_platform_device_count={num_devices} {flags}"
    program = f"import json; from {module.stem} import *; print(json.dumps({expression}))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": path},
        timeout=250,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])
