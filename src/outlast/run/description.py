"""What the owner of a run writes into its directory at the start: recipe and tokenizer.

In: the parts of a run. Out: what ``directory`` reads (formats/run_directory.md).
"""

from typing import Any

from outlast.checkpoint.attempts import Attempt
from outlast.config import to_dict
from outlast.errors import ShardError
from outlast.run.directory import TOKENIZER_FOLDER, write_description
from outlast.run.images import ImageParts, describe_images
from outlast.run.parts import Parts, RunParts
from outlast.shards.manifest import Manifest
from outlast.storage import Store, split_url
from outlast.tokenizer.manifest import read_tokenizer, write_tokenizer


def keep_description(attempt: Attempt, parts: RunParts) -> None:
    """Write the recipe and the tokenizer into the run directory.

    Raises:
        Fenced: a later attempt has claimed the run.
    """
    attempt.check_owned()
    if isinstance(parts, ImageParts):
        described = describe_images(parts)
    else:
        assert isinstance(parts, Parts)
        described = {"recipe": _describe_text(parts)}
        _copy_tokenizer(parts.stream.manifest, parts.stream.store, attempt.store)
    write_description(attempt.store, attempt.number, {**described, "identity": parts.identity})


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
