"""``--initialize-from``: the parameters of another run, or of an import, as the start of a new run.

In: the fresh state of a run, and a checkpoint of a run directory. Out: the state with that checkpoint's
parameters, and the running statistics of a model that has any. Heads that are missing there, or are for
another number of classes, stay as the seed made them, heads that this run does not have are left out; all are
named. Parameters that belong to the pieces of another tokenizer are refused unless they are asked for.
"""

from dataclasses import dataclass
from typing import Any

from outlast.checkpoint.records import list_keys
from outlast.errors import CheckpointError, ConfigError
from outlast.logs import log
from outlast.models.params import Params, flatten
from outlast.run.checkpoints import NEWEST, Which, restore_run
from outlast.run.directory import check_same_run, find_description, read_description
from outlast.run.kind import Former, Parts
from outlast.storage import open_store
from outlast.training.identity import Identity
from outlast.training.state import TrainState, restore_tree

_FREE = {"dropout", "attention_dropout", "initializer_range", "next_sentence", "num_classes"}
"""Of the model: what a new run may choose without a word."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where the parameters of a new run come from: a checkpoint of a run directory, or of an import.

    Attributes:
        other_tokenizer: whether they are taken although the data are of the pieces of another tokenizer.
    """

    run_dir: str
    which: Which = NEWEST
    other_tokenizer: bool = False


def initialized_from(source: Source, state: TrainState, parts: Parts[Any, Any]) -> TrainState:
    """Return the state with the parameters of a checkpoint.

    Raises:
        ConfigError: no such checkpoint there; parameters of other shapes, of another kind of run, or of
            another tokenizer.
        DamagedCheckpoint, RunError: as ``restore_run``.
    """
    run_dir = source.run_dir
    store = open_store(run_dir)
    if not list_keys(store):
        raise ConfigError(
            "There is no checkpoint to start from.",
            where=f"--initialize-from {run_dir}",
            remedy="`outlast import FOLDER OUT` makes one of a Hugging Face model",
        )
    kind = parts.kind
    restored = restore_run(store, source.which, prefix=kind.prefix).restored
    former = restored.commit.identity["model"].get("architecture")
    if former not in kind.architectures:
        raise ConfigError(
            f"The checkpoint is of a {former} model, the recipe of a {parts.recipe.model.architecture}.",
            where=f"--initialize-from {run_dir}",
            expected="a model among " + ", ".join(sorted(kind.architectures)),
            remedy="name a run of such a model, or an import of one",
        )
    log.info("starting from the parameters of step %d of %s", restored.commit.step, run_dir)
    description = read_description(store)
    check_same_run(description, restored.commit, where=f"{store.url}/{find_description(store)}")
    return kind.start_from(Former(run_dir, restored, description, source.other_tokenizer), state, parts)


def fitting(found: Params, template: Params, run_dir: str, more: str = "") -> Params:
    """Return arrays as a tree like the template. Raises ConfigError where names or shapes differ."""
    try:
        return restore_tree(flatten(found), template)
    except CheckpointError as error:
        raise ConfigError(
            error.message,
            where=f"--initialize-from {run_dir}",
            expected="the parameters of this recipe's model",
            remedy=f"take the [model] table from {run_dir} (an import writes it to recipe.toml){more}",
        ) from None


def warn_of_differences(former: Former, identity: Identity) -> None:
    """Say what arrays of the right shapes do not show, such as another activation."""
    model = identity["model"]
    for name, value in former.restored.commit.identity["model"].items():
        if name not in _FREE and name in model and model[name] != value:
            log.warning("its model has %s = %r, this one %r", name, value, model[name])
