"""An import as a run directory: one checkpoint of step 0, a description, and the tables of a recipe.

In: arrays by their names in a checkpoint, and what the run would be. Out: the directory. The commit is
written last: the same line again goes on with a killed import.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outlast.checkpoint.attempts import claim_attempt
from outlast.checkpoint.config import CheckpointConfig
from outlast.checkpoint.restore import list_keys
from outlast.checkpoint.save import CheckpointWriter
from outlast.errors import ConfigError
from outlast.huggingface.load import CONFIG_NAME, WEIGHTS_NAME
from outlast.logs import log
from outlast.run.directory import FORMER_NAME, RECIPE_NAME, TOKENIZER_FOLDER, write_description
from outlast.storage import Store
from outlast.storage.regular import open_regular
from outlast.training.identity import Identity


def check_place(store: Store) -> None:
    """Refuse a run or any other folder; what a killed import left is gone on with. Raises ConfigError."""
    ours = (f"{TOKENIZER_FOLDER}/", "attempts/", "data/", RECIPE_NAME, FORMER_NAME)
    others = [info.name for info in store.list("") if not info.name.startswith(ours)]
    if list_keys(store) or others:
        raise ConfigError(
            "The place for the import is taken.",
            where=store.url,
            expected="a folder or URL that does not exist, or holds nothing",
            remedy="choose another name, or remove what is there",
        )


def write_import(
    folder: Path,
    store: Store,
    *,
    comments: Sequence[str] = (),
    fragment: Mapping[str, Mapping[str, Any]],
    described: Mapping[str, Any],
    data: Mapping[str, Any],
    model: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]],
    write_more: Callable[[], object] = lambda: None,
) -> None:
    """Write the directory.

    Args:
        folder: that the model comes from.
        comments, fragment: what recipe.toml says of it, and its tables.
        described: what the description says beside version and identity, ``recipe`` among it.
        data, model: of the identity.
        arrays: of the checkpoint, without ``step``.
        write_more: writes what else belongs there, before the commit.
    """
    head = [
        f"# The model imported from {folder.name!r}. Copy these tables into a recipe; then",
        f"#   outlast train RECIPE --run-dir RUN --initialize-from {store.url} --set stream.manifest=...",
    ]
    identity: Identity = {"data": data, "model": model, "imported": _digests_of(folder)}
    attempt = claim_attempt(store, config=CheckpointConfig(), report=log.info)
    try:
        write_more()
        store.replace(RECIPE_NAME, [_toml_tables([*head, *comments], fragment).encode()])
        write_description(attempt, {**described, "identity": identity})
        attempt.record_restored(0)
        writer = CheckpointWriter(store, CheckpointConfig(), attempt, identity, {}, report=log.info)
        writer.save(0, {"step": np.zeros([], np.int32), **arrays}, wait=True)
        writer.close()
    finally:
        attempt.close()


def _digests_of(folder: Path) -> dict[str, str]:
    """Return the sha256 of the files that an import came from, by name."""
    found: dict[str, str] = {}
    for name in (CONFIG_NAME, WEIGHTS_NAME):
        with open_regular(folder / name) as file:
            found[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def _toml_tables(comments: Sequence[str], tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Return tables of plain values as TOML, below some comments."""
    lines = list(comments)
    for name, values in tables.items():
        lines += ["", f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    """Write a plain value; JSON's texts, numbers, booleans and lists of them are TOML's too, but for DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
