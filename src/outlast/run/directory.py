"""What a run directory says of its run: the recipe as resolved, the tokenizer (formats/run_directory.md).

In: the store of a run directory. Out: the recipe's tables. Invariant: with these
and the checkpoints, a run is evaluated and exported from any folder. Each attempt says it under a name of its
own, once, and the newest one that said it is believed: an attempt that was replaced changes nothing.
"""

import json
from collections.abc import Mapping
from typing import Any, cast

from outlast.checkpoint.attempts import Attempt
from outlast.checkpoint.format import Commit
from outlast.checkpoint.lineage import claim_name, description_name
from outlast.checkpoint.records import attempt_objects, belongs_to, read_sealed
from outlast.config import differences
from outlast.errors import ConfigError, ObjectNotFound, RunError, SealError
from outlast.recipe import RECIPE_KINDS, kind_of
from outlast.storage import Store
from outlast.storage.checksummed_json import seal, unseal
from outlast.version import __version__

FORMER_NAME = "run.json"
"""Where earlier versions said it, without a digest. Read where no attempt has said it under its own name."""
TOKENIZER_FOLDER = "tokenizer"
RECIPE_NAME = "recipe.toml"
"""Of an import alone: tables for a recipe."""
PARAMS_PREFIX = "params/"
STATE_PREFIX = "model_state/"
_REMEDY = "run the line that trains it again: it writes the description anew"
_CHANGING = {"total_steps", "phases", "objective", "optimizer"}
"""Of an identity: what a later attempt may have otherwise, or an older version in other words."""


def read_recipe_tables(store: Store) -> dict[str, Any]:
    """Return the recipe of a run as tables of plain values. Raises RunError where there is no sound one."""
    return dict(read_description(store)["recipe"])


def check_place(store: Store, kind: str) -> None:
    """Check that a run of a kind may begin or go on in a directory. A damaged description is no obstacle:
    training writes it anew.

    Raises:
        ConfigError: an import lies there, a run of the other kind, a data set or a model.
    """
    is_run = store.retry(store.exists, find_description(store))
    for name, what in (("manifest.json", "a data set"), ("outlast.json", "an exported model")):
        if not is_run and store.retry(store.exists, name):
            raise ConfigError(
                f"This is {what}, and a run wants a folder of its own.",
                where=f"--run-dir {store.url}",
                remedy="name a folder that does not exist, or that holds a run",
            )
    try:
        description = read_description(store)
    except RunError:
        return
    if "imported" in description.get("identity", {}):
        raise ConfigError(
            "This is an import, which stays as it is.",
            where=f"--run-dir {store.url}",
            remedy=f"start a run from it: --run-dir NEW --initialize-from {store.url}",
        )
    former = kind_of(description["recipe"])
    if former != kind:
        raise ConfigError(
            f"The run is one on {RECIPE_KINDS[former].data}, the recipe of {RECIPE_KINDS[kind].data}.",
            where=f"--run-dir {store.url}",
            remedy="name another folder, or the recipe of this run",
        )


def write_description(attempt: Attempt, described: Mapping[str, Any]) -> None:
    """Write what an attempt says of its run, unless it is there: a late write changes nothing."""
    ids = {"attempt": attempt.number, "claim": attempt.claim_id, "outlast": __version__}
    attempt.store.create_or_confirm(
        description_name(attempt.number), [seal({**ids, **described}, "indented")]
    )


def find_description(store: Store) -> str:
    """Return the name of the description that counts: that of the newest attempt that wrote one."""
    attempts = (number for number, kind in attempt_objects(store) if kind == "run.json")
    newest = max(attempts, default=None)
    return FORMER_NAME if newest is None else description_name(newest)


def read_description(store: Store) -> dict[str, Any]:
    """Return all that the run directory says of its run. Raises RunError where that is not sound."""
    name = find_description(store)
    try:
        content = store.retry(store.read, name)
        if name == FORMER_NAME:
            description = json.loads(content)
        else:
            description = unseal(content, where=name, layout="indented")
            if description_name(description["attempt"]) != name:
                raise SealError(f"It is that of attempt {description['attempt']}.")
            claim = read_sealed(store, claim_name(description["attempt"]))
            if not belongs_to(description, claim):
                raise SealError("It is that of another run, and does not belong to the attempt's claim.")
        dict(description["recipe"])
        return cast(dict[str, Any], description)
    except ObjectNotFound:
        raise RunError(
            "There is no run.", where=store.url, remedy="check the path, or train it first"
        ) from None
    except (SealError, ValueError, KeyError, TypeError, RecursionError) as error:
        reason = error.message if isinstance(error, SealError) else repr(error)
        raise RunError(
            f"The run's description is damaged: {reason}",
            where=f"{store.url}/{name}",
            remedy=_REMEDY,
        ) from None


def check_same_run(description: Mapping[str, Any], commit: Commit, *, where: str) -> None:
    """Check that a description is of the run that a checkpoint is of, as far as both tell their identity.

    Raises:
        RunError: it is another run's. Names what differs.
    """
    ours, theirs = description.get("identity", {}), commit.identity
    common = (ours.keys() & theirs.keys()) - _CHANGING
    found = [each for key in sorted(common) for each in differences(theirs[key], ours[key], key)]
    for name, checkpoint, described in found[:1]:
        raise RunError(
            f"The description is of another run than the checkpoint of step {commit.step}: of {name} the "
            f"checkpoint says {checkpoint!r:.200}, the description {described!r:.200}.",
            where=where,
            remedy=f"restore what was changed (`outlast verify` looks at all of it); or {_REMEDY}",
        )
