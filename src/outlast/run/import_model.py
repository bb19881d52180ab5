"""The verb ``import``, wired: from a Hugging Face folder to a run directory of no steps.

In: a folder with ``config.json``, ``model.safetensors`` and a tokenizer, or an image model's. Out: a run
directory whose one checkpoint, of step 0, holds the parameters: what ``--initialize-from``, ``evaluate``,
``export`` and ``checkpoint`` take. Beside it ``tokenizer/``, for ``prepare``, and ``recipe.toml``, the tables
that make a run of this model.
"""

from functools import partial
from pathlib import Path
from typing import Any, cast

from outlast.config import checked
from outlast.errors import ConfigError
from outlast.huggingface.digests import check_tokenizer, checking
from outlast.huggingface.images import MODEL_TYPES as IMAGE_MODEL_TYPES
from outlast.huggingface.load import CONFIG_NAME, read_config
from outlast.huggingface.pretrained import Pretrained, read_pretrained
from outlast.logs import log
from outlast.models.describe import model_table
from outlast.models.next_sentence import HEAD
from outlast.recipe import make_recipe, plain_tables
from outlast.run.directory import PARAMS_PREFIX, TOKENIZER_FOLDER
from outlast.run.import_directory import RECIPE_NAME, check_place, write_import
from outlast.run.import_images import import_image_model
from outlast.storage import local_place, open_store, place_of
from outlast.tokenizer.importing import read_foreign
from outlast.tokenizer.manifest import write_tokenizer

_SEQUENCE_LENGTH = 512
_NEXT_SENTENCE_COMMENTS = (
    '# It has a next-sentence head. To train that too: corpus.sentences, stream.packing = "pairs",',
    "# objective.next_sentence = true. Without these it is left out.",
)


@checked
def import_model(folder: str | Path, out: str | Path, *, tokenizer: str | Path | None = None) -> str:
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
    folder, out = local_place(folder), place_of(out)
    if read_config(folder).get("model_type") in IMAGE_MODEL_TYPES:
        if tokenizer is not None:
            raise ConfigError(
                "A model of images has no tokenizer.", where="--tokenizer", remedy="leave it out"
            )
        return import_image_model(folder, out)
    with checking(folder):
        pretrained = read_pretrained(folder)
    if tokenizer is not None:
        check_tokenizer(local_place(tokenizer))
    manifest, files = read_foreign(local_place(tokenizer or folder))
    table = model_table(
        pretrained.config,
        vocab_size=manifest.vocab_size,
        special_ids=manifest.special_ids,
        where=str(folder / CONFIG_NAME),
    )
    store = open_store(out)
    check_place(store)
    write_import(
        folder,
        store,
        comments=_NEXT_SENTENCE_COMMENTS if pretrained.config.next_sentence else (),
        fragment={"tokenizer": {"path": f"{store.url}/{TOKENIZER_FOLDER}"}, "model": table},
        described={"recipe": plain_tables(make_recipe(_tables(table, pretrained), where=RECIPE_NAME))},
        data={"tokenizer": manifest.fingerprint},
        model=pretrained.config.to_dict(),
        arrays={f"{PARAMS_PREFIX}{name}": value for name, value in pretrained.params.items()},
        write_more=partial(write_tokenizer, store, TOKENIZER_FOLDER, manifest, files),
    )
    _report(folder, pretrained)
    return store.url


def _tables(table: dict[str, Any], pretrained: Pretrained) -> dict[str, Any]:
    stream = {"sequence_length": min(_SEQUENCE_LENGTH, pretrained.config.max_positions)}
    if not pretrained.config.next_sentence:
        return {"stream": stream, "model": table}
    return {
        "stream": {**stream, "packing": "pairs"},
        "model": table,
        "objective": {"next_sentence": True},
    }


def _report(folder: Path, pretrained: Pretrained) -> None:
    """Say what was taken and what was not, by name."""
    config = pretrained.config
    classes = read_config(folder).get("architectures")
    log.info(
        "imported a %s (%s): %d layers, hidden size %d, %d rows of vocabulary",
        config.architecture,
        ", ".join(map(str, cast(list[Any], classes))) if isinstance(classes, list) else "no class is named",
        config.num_layers,
        config.hidden_size,
        config.vocab_size,
    )
    heads = {"head": "masked-LM head", HEAD: "next-sentence head with its pooler"}
    there = [
        words for group, words in heads.items() if any(n.startswith(f"{group}/") for n in pretrained.params)
    ]
    log.info("kept: the encoder%s", "".join(f", the {words}" for words in there))
    if pretrained.left_out:
        log.info("left out, for it has no place here: %s", ", ".join(pretrained.left_out))
    for head in pretrained.missing:
        log.info("there is no whole %s in it: a run that needs one initialises it by training.seed", head)
    if "head" in pretrained.missing:
        log.warning(
            "without a masked-LM head the import itself cannot be exported: further training makes a head, "
            "and the classes of a classifier do not come back"
        )
