"""A model's folder: it appears whole or not at all, with the sha256 of every file in it that a reader reads.

In: tensors by their names, functions that write the other files. Out: a folder. It is written beside its
place and renamed, so what bears its name is complete, and by one process at a time.
"""

import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save_file

from outlast.errors import ConfigError, OutlastError
from outlast.huggingface.digests import PROVENANCE_NAME, write_provenance
from outlast.huggingface.load import WEIGHTS_NAME
from outlast.huggingface.writer_lock import only_writer
from outlast.storage import local_failure


def write_folder(
    folder: Path,
    tensors: Mapping[str, NDArray[Any]],
    write_files: Callable[[Path], object],
    *,
    provenance: Mapping[str, Any],
    special_ids: Mapping[str, int] | None = None,
) -> Path:
    """Write ``model.safetensors``, what ``write_files`` writes into the folder it is given, and
    ``outlast.json``; return the folder.

    What killed writers left of the same folder is taken away.

    Raises:
        OutlastError: another process writes the same folder.
        StorageError: a disk that fails.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with only_writer(folder) as delete_leftovers:
            if delete_leftovers:
                _delete_leftovers(folder)
            temporary = folder.parent / f".{folder.name}.tmp-{uuid.uuid4().hex}"
            temporary.mkdir()
            try:
                save_file(dict(tensors), temporary / WEIGHTS_NAME, metadata={"format": "pt"})
                write_files(temporary)
                ids = {} if special_ids is None else {"special_ids": dict(special_ids)}
                write_provenance(temporary, {**ids, "provenance": dict(provenance)})
                # safetensors makes files that nobody else may read
                shutil.copymode(temporary / PROVENANCE_NAME, temporary / WEIGHTS_NAME)
                _flush(temporary)
                os.rename(temporary, folder)  # replaces an empty folder, fails on any other
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise
    except OSError as error:
        raise local_failure("Cannot write the model", str(folder), error) from error
    except SafetensorError as error:
        raise local_failure("Cannot write the model", str(folder), _as_os_error(error)) from error
    return folder


def check_finite(params: Mapping[str, NDArray[Any]]) -> None:
    """Raise OutlastError where a value is not finite."""
    not_finite = [name for name, value in params.items() if not np.isfinite(value).all()]
    if not_finite:
        raise OutlastError("Some parameters are not finite: " + ", ".join(not_finite) + ".")


def check_target(folder: Path) -> None:
    """Raise ConfigError where the place is taken or has no name."""
    if not folder.name:
        raise ConfigError(
            "The folder for the model has no name.",
            where=str(folder),
            expected="a name that does not exist, or an empty folder",
            remedy="check that the shell variables of the command are set",
        )
    if folder.is_symlink() or (folder.exists() and not (folder.is_dir() and not any(folder.iterdir()))):
        raise ConfigError(
            "The place for the model is taken.",
            where=str(folder),
            expected="a name that does not exist, or an empty folder",
            remedy="choose another name, or remove what is there",
        )


def write_json(path: Path, value: object) -> None:
    """Write plain values as a JSON file."""
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _delete_leftovers(folder: Path) -> None:
    name = re.compile(rf"\.{re.escape(folder.name)}\.tmp-[0-9a-f]{{32}}")
    for path in folder.parent.iterdir():
        if name.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)


def _as_os_error(error: SafetensorError) -> OSError:
    """Return what the system said; the library puts it, with its number, into the text of its own error."""
    number = re.search(r"\(os error (\d+)\)", str(error))
    return OSError(int(number[1]), os.strerror(int(number[1]))) if number else OSError(str(error))


def _flush(folder: Path) -> None:
    for path in [*folder.iterdir(), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def training_rows(provenance: Mapping[str, Any]) -> str:
    """Return what is known of the training as the rows of a table in Markdown."""
    return "\n".join(f"| {key} | {value} |" for key, value in _flat_rows(provenance, ""))


def _flat_rows(value: Mapping[str, Any], prefix: str) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for key, item in value.items():
        if isinstance(item, Mapping):
            rows += _flat_rows(cast(Mapping[str, Any], item), f"{prefix}{key}.")
        elif item is not None:
            rows.append((f"{prefix}{key}", str(item).replace("|", "\\|").replace("\n", " ")))
    return rows
