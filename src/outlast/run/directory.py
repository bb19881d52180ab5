"""What a run directory says of its run: the recipe as resolved, the tokenizer (formats/run_directory.md).

In: the store of a run directory. Out: the recipe's tables, the newest checkpoint. Invariant: with these
and the checkpoints, a run is evaluated and exported from any folder.
"""

import json
from typing import Any, cast

from outlast import __version__
from outlast.checkpoint.restore import Restored, restore_newest
from outlast.config import to_dict
from outlast.errors import ObjectNotFound, RunError, ShardError
from outlast.run.images import ImageParts, describe_images
from outlast.run.parts import Parts, RunParts
from outlast.shards.manifest import Manifest
from outlast.storage import Store, split_url
from outlast.tokenizer.manifest import read_tokenizer, write_tokenizer

RUN_NAME = "run.json"
TOKENIZER_FOLDER = "tokenizer"
PARAMS_PREFIX = "params/"
STATE_PREFIX = "model_state/"


def read_recipe_tables(store: Store) -> dict[str, Any]:
    """Return the recipe of a run as tables of plain values. Raises RunError where there is no sound one."""
    return dict(read_description(store)["recipe"])


def restore_run(store: Store, *, prefix: str = "") -> Restored:
    """Return the newest checkpoint, or its arrays of a prefix. Raises RunError where there is none."""
    restored = restore_newest(store, prefix=prefix)
    if restored is None:
        raise RunError("The run has no checkpoint yet.", where=store.url, remedy="train it first")
    return restored


def read_description(store: Store) -> dict[str, Any]:
    """Return all that the run directory says of its run. Raises RunError where that is not sound."""
    try:
        description = json.loads(store.read(RUN_NAME))
        dict(description["recipe"])
        return cast(dict[str, Any], description)
    except ObjectNotFound:
        raise RunError(
            "There is no run.", where=store.url, remedy="check the path, or train it first"
        ) from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RunError(
            f"The run's description is damaged: {error!r}",
            where=f"{store.url}/{RUN_NAME}",
            remedy="run the line that trains it again: it writes the description anew",
        ) from None


def keep_description(store: Store, parts: RunParts) -> None:
    """Write the recipe and the tokenizer into the run directory. Only the owner of the run comes here."""
    if isinstance(parts, ImageParts):
        described = describe_images(parts)
    else:
        assert isinstance(parts, Parts)
        described = {"recipe": _describe_text(parts)}
        _copy_tokenizer(parts.stream.manifest, parts.stream.store, store)
    description = {"outlast": __version__, **described, "identity": parts.identity}
    store.replace(RUN_NAME, [(json.dumps(description, indent=1, ensure_ascii=False) + "\n").encode()])


def _describe_text(parts: Parts) -> dict[str, Any]:
    recipe = to_dict(parts.recipe)
    # Whole, so that the run can be evaluated from any folder.
    urls = [f"{source.store.url}/{split_url(source.url)[1]}" for source in parts.stream.sources]
    if parts.recipe.stream.sources:
        for fields, url in zip(recipe["stream"]["sources"], urls, strict=True):
            fields["manifest"] = url
    else:
        recipe["stream"]["manifest"] = urls[0]
    return recipe


def _copy_tokenizer(manifest: Manifest, data: Store, run: Store) -> None:
    tokenizer, files = read_tokenizer(data, manifest.tokenizer.path)
    if tokenizer.fingerprint != manifest.tokenizer.fingerprint:
        raise ShardError(
            "The data set lies beside another tokenizer than the one it was made with.",
            where=f"{data.url}/{manifest.tokenizer.path}",
            expected=manifest.tokenizer.fingerprint,
            remedy="restore the folder, or prepare the data again",
        )
    write_tokenizer(run, TOKENIZER_FOLDER, tokenizer, files)
