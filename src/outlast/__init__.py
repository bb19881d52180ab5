"""Outlast: train your own encoder, from raw text to a Hugging Face model, on machines that can be taken away.

    recipe = outlast.read_recipe("RUN.toml")
    manifest = outlast.prepare_data(recipe, "data")  # tokenizer, shards, manifest
    batches = outlast.open_stream(manifest, global_batch_size=32)  # numpy arrays, for any framework

    recipe = outlast.read_recipe("RUN.toml", [f"stream.manifest={manifest}"])
    outlast.train_run(recipe, "run")  # resumable at any moment
    model = outlast.load_model(outlast.export_run("run", "model"))  # from numpy arrays to numpy arrays

A name is imported when it is first used, so ``import outlast`` is free and the data half needs no jax. Which
names there are, and where each comes from, stands in ``__init__.pyi`` alone: type checkers read it, and so
does this module. docs/reference/python.md describes them.
"""

import re
from functools import cache
from importlib import import_module
from pkgutil import get_data
from typing import Any

from outlast.version import __version__ as __version__


@cache
def _modules() -> dict[str, str]:
    """Return the module of each public name, in the order of the journey."""
    text = (get_data(__name__, "__init__.pyi") or b"").decode()
    lines = re.findall(r"^from (\S+) import (\w+) as \2$", text, re.MULTILINE)
    return {name: module for module, name in lines if name != "__version__"}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return list(_modules())
    if name not in _modules():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_modules()[name]), name)
    except ModuleNotFoundError as error:
        from outlast.errors import explained

        raise explained(error) or error from None


def __dir__() -> list[str]:
    return sorted([*(name for name in globals() if name.startswith("__")), *_modules()])
