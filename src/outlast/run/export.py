"""The verb ``export``, wired: from a run directory to a Hugging Face model folder.

In: the URL of a run directory; the data set may be gone. Out: the folder.
"""

from pathlib import Path

from outlast.errors import RunError
from outlast.models.config import EncoderConfig
from outlast.models.params import flatten
from outlast.run.checkpoints import Which, restore_run
from outlast.run.directory import (
    PARAMS_PREFIX,
    TOKENIZER_FOLDER,
    find_description,
    is_of_images,
    read_description,
)
from outlast.run.images import export_images
from outlast.run.parts import Parts, RunParts
from outlast.storage import local_place, open_store
from outlast.training.ranking import read_evaluations
from outlast.version import __version__


def export_run(run_dir: str | Path, out: str | Path, *, step: int | None = None, best: bool = False) -> Path:
    """Write a checkpoint of a run, the newest, that of a step, or the best, as a Hugging Face model folder;
    return the folder.

    All it takes is in the run directory: the data set may be gone. Errors as ``restore_run``.
    """
    from outlast.huggingface.export import check_exportable, export_model
    from outlast.huggingface.tokenizer_files import write_tokenizer_files
    from outlast.tokenizer.encode import load_tokenizer

    out = local_place(out)
    store = open_store(run_dir)
    description = read_description(store)
    of_images = is_of_images(description)
    which = Which(step=step, best=best)
    chosen = restore_run(store, which, prefix="" if of_images else PARAMS_PREFIX)
    restored = chosen.restored
    identity = restored.commit.identity
    evaluations = read_evaluations(store)
    provenance = {
        "outlast": __version__,
        "step": restored.commit.step,
        "checkpoint": chosen.words,
        "identity": identity,
        "evaluation": evaluations.get(restored.commit.step),
    }
    if of_images:
        where = f"{store.url}/{find_description(store)}"
        return export_images(restored, description, out, where=where, provenance=provenance)
    encoder = EncoderConfig.from_dict(identity["model"])
    tokenizer = load_tokenizer(store, TOKENIZER_FOLDER)
    _check_own_tokenizer(tokenizer.manifest.fingerprint, identity["data"]["tokenizer"], store.url)
    params = restored.under(PARAMS_PREFIX)
    check_exportable(encoder, params, tokenizer)
    return export_model(
        params,
        encoder,
        out,
        special_ids=tokenizer.manifest.special_ids,
        write_tokenizer=lambda folder: write_tokenizer_files(
            tokenizer,
            folder,
            max_length=encoder.max_positions,
            type_vocab_size=encoder.type_vocab_size,
        ),
        provenance=provenance,
    )


def _check_own_tokenizer(found: str, trained_with: str, run: str) -> None:
    """Refuse a tokenizer that a process left there which had the run before, with other data."""
    if found != trained_with:
        raise RunError(
            "The tokenizer in the run is not the one that it was trained with.",
            where=f"{run}/{TOKENIZER_FOLDER}",
            expected=f"fingerprint {trained_with}, it has {found}",
            remedy="run the line that trains it again: it writes the tokenizer anew",
        )


def check_before_training(parts: RunParts) -> None:
    """Refuse a run that ``export_run`` would refuse when it is trained. A ResNet is always exported.

    Raises:
        ConfigError, TokenizerError: as ``check_exportable``.
    """
    from outlast.huggingface.export import check_exportable
    from outlast.tokenizer.encode import load_tokenizer

    if isinstance(parts, Parts):
        tokenizer = load_tokenizer(parts.stream.store, parts.stream.manifest.tokenizer.path)
        check_exportable(parts.encoder, flatten(parts.objective.param_table), tokenizer)
