"""Read first by every Python process that a test starts: it is watched like the suite's own."""

import importlib.util
import os
import sys

_spec = importlib.util.spec_from_file_location(
    "outlast_test_watch",
    os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "watch.py"),
)
if _spec and _spec.loader:
    _module = importlib.util.module_from_spec(_spec)
    sys.modules[_spec.name] = _module
    _spec.loader.exec_module(_module)
    vars(_module)["WATCH"] = _module.watch_this_process()
