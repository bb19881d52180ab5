"""What a run directory says of its run: the recipe as resolved, the tokenizer (formats/run_directory.md).

In: the store of a run directory. Out: the recipe's tables, the newest checkpoint. Invariant: with these
and the checkpoints, a run is evaluated and exported from any folder.
"""

import json
from typing import Any, cast

from outlast.checkpoint.restore import Restored, restore_newest
from outlast.errors import ObjectNotFound, RunError
from outlast.storage import Store

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
