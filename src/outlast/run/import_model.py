"""The verb ``import``, wired: from a Hugging Face folder to a run directory of no steps.

In: a folder with ``config.json``, ``model.safetensors`` and a tokenizer. Out: a run directory whose one
checkpoint, of step 0, holds the parameters: what ``--initialize-from``, ``evaluate``, ``export`` and
``checkpoint`` take. Beside it ``tokenizer/``, for ``prepare``, and ``recipe.toml``, the tables that make a
run of this model. The commit is written last: the same line again goes on with a killed import.
"""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from outlast import __version__
from outlast.checkpoint.attempts import claim_attempt
from outlast.checkpoint.config import CheckpointConfig
from outlast.checkpoint.restore import list_keys
from outlast.checkpoint.save import CheckpointWriter
from outlast.config import to_dict
from outlast.errors import ConfigError
from outlast.huggingface.load import CONFIG_NAME, WEIGHTS_NAME
from outlast.huggingface.pretrained import Pretrained, read_pretrained
from outlast.logs import log
from outlast.models.describe import model_table
from outlast.recipe import make_recipe
from outlast.run.directory import PARAMS_PREFIX, RUN_NAME, TOKENIZER_FOLDER
from outlast.storage import Store, open_store
from outlast.tokenizer.importing import read_foreign
from outlast.tokenizer.manifest import TokenizerManifest, write_tokenizer

RECIPE_NAME = "recipe.toml"
_SEQUENCE_LENGTH = 512


def import_model(folder: Path, out: str, *, tokenizer: Path | None = None) -> str:
    """Import a model; return the URL of the run directory.

    Args:
        folder: as ``save_pretrained`` writes it; the weights as safetensors.
        out: folder or URL, empty or absent.
        tokenizer: a tokenizer's file or folder; None: in ``folder``.

    Raises:
        OutlastError: files that are missing, pickled, damaged or do not fit each other.
        ConfigError: a model that cannot be computed exactly, a tokenizer of another model, a place that is
        taken. TokenizerError: no tokenizer, or one without the special pieces.
    """
    pretrained = read_pretrained(folder)
    manifest, files = read_foreign(tokenizer or folder)
    table = model_table(
        pretrained.config,
        vocab_size=manifest.vocab_size,
        special_ids=manifest.special_ids,
        where=str(folder / CONFIG_NAME),
    )
    store = open_store(out)
    _check_place(store)
    attempt = claim_attempt(store, config=CheckpointConfig(), report=log.info)
    try:
        write_tokenizer(store, TOKENIZER_FOLDER, manifest, files)
        store.replace(RECIPE_NAME, [_fragment(folder, table, pretrained, store).encode()])
        identity = _identity(folder, pretrained, manifest)
        recipe = to_dict(make_recipe(_tables(table, pretrained), where=RECIPE_NAME))
        description = {"outlast": __version__, "recipe": recipe, "identity": identity}
        store.replace(RUN_NAME, [(json.dumps(description, indent=1, ensure_ascii=False) + "\n").encode()])
        attempt.record_restored(0)
        writer = CheckpointWriter(store, CheckpointConfig(), attempt, identity, {}, report=log.info)
        arrays = {f"{PARAMS_PREFIX}{name}": value for name, value in pretrained.params.items()}
        writer.save(0, {"step": np.zeros([], np.int32), **arrays}, wait=True)
        writer.close()
    finally:
        attempt.close()
    _report(pretrained)
    return store.url


def _check_place(store: Store) -> None:
    """Refuse a run or any other folder; what a killed import left is gone on with."""
    ours = (f"{TOKENIZER_FOLDER}/", "attempts/", "data/", RECIPE_NAME, RUN_NAME)
    others = [info.name for info in store.list("") if not info.name.startswith(ours)]
    if list_keys(store) or others:
        raise ConfigError(
            "The place for the import is taken.",
            where=store.url,
            expected="a folder or URL that does not exist, or holds nothing",
            remedy="choose another name, or remove what is there",
        )


def _tables(table: dict[str, Any], pretrained: Pretrained) -> dict[str, Any]:
    stream = {"sequence_length": min(_SEQUENCE_LENGTH, pretrained.config.max_positions)}
    if not pretrained.config.next_sentence:
        return {"stream": stream, "model": table}
    return {
        "stream": {**stream, "packing": "pairs"},
        "model": table,
        "objective": {"next_sentence": True},
    }


def _fragment(folder: Path, table: dict[str, Any], pretrained: Pretrained, store: Store) -> str:
    """Return the text of recipe.toml."""
    tokenizer = {"path": f"{store.url}/{TOKENIZER_FOLDER}"}
    lines = [
        f"# The model imported from {folder.name!r}. Copy these tables into a recipe; then",
        f"#   outlast train RECIPE --run-dir RUN --initialize-from {store.url} --set stream.manifest=...",
    ]
    if pretrained.config.next_sentence:
        lines += [
            '# It has a next-sentence head. To train that too: corpus.sentences, stream.packing = "pairs",',
            "# objective.next_sentence = true. Without these it is left out.",
        ]
    for name, values in {"tokenizer": tokenizer, "model": table}.items():
        lines += ["", f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"


def _toml(value: str | float | bool) -> str:
    """Write a plain value; JSON's strings, numbers and booleans are TOML's too, but for DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _identity(folder: Path, pretrained: Pretrained, manifest: TokenizerManifest) -> dict[str, Any]:
    return {
        "data": {"tokenizer": manifest.fingerprint},
        "model": asdict(pretrained.config),
        "imported": {
            name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
            for name in (CONFIG_NAME, WEIGHTS_NAME)
        },
    }


def _report(pretrained: Pretrained) -> None:
    config = pretrained.config
    log.info(
        "imported a %s: %d layers, hidden size %d, %d rows of vocabulary",
        config.architecture,
        config.num_layers,
        config.hidden_size,
        config.vocab_size,
    )
    for head in pretrained.missing:
        log.info("there is no whole %s in it: a run that needs one initialises it by training.seed", head)
    if pretrained.left_out:
        log.info("left out, for it has no place here: %s", ", ".join(pretrained.left_out))
