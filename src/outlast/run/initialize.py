"""``--initialize-from``: the parameters of another run, or of an import, as the start of a new run.

In: the fresh state of a run, and a run directory. Out: the state with that directory's newest parameters,
and the running statistics of a model that has any. Heads that are missing there, or are for another number
of classes, stay as the seed made them, heads that this run does not have are left out; all are named.
"""

from outlast.checkpoint.restore import Restored, restore_newest
from outlast.errors import CheckpointError, ConfigError
from outlast.huggingface.load import HEADS
from outlast.logs import log
from outlast.models.params import Params, flatten, unflatten
from outlast.models.resnet import CLASSIFIER
from outlast.run.directory import PARAMS_PREFIX, STATE_PREFIX, read_description
from outlast.run.images import ImageParts, warn_of_classes
from outlast.run.parts import RunParts
from outlast.storage import open_store
from outlast.training.identity import Identity
from outlast.training.state import TrainState, restore_tree

_FREE = {"dropout", "attention_dropout", "initializer_range", "next_sentence", "num_classes"}
"""Of the model: what a new run may choose without a word."""


def initialized_from(run_dir: str, state: TrainState, parts: RunParts) -> TrainState:
    """Return the state with the parameters of a run directory's newest checkpoint.

    Raises:
        ConfigError: no checkpoint there; parameters of other shapes.
    """
    of_images = isinstance(parts, ImageParts)
    store = open_store(run_dir)
    # Of images also the running statistics, so all of it.
    restored = restore_newest(store, prefix="" if of_images else PARAMS_PREFIX)
    if restored is None:
        raise ConfigError(
            "There is no checkpoint to start from.",
            where=f"--initialize-from {run_dir}",
            remedy="`outlast import FOLDER OUT` makes one of a Hugging Face model",
        )
    log.info("starting from the parameters of step %d of %s", restored.commit.step, run_dir)
    if of_images:
        return _with_images(restored, state, parts, run_dir, read_description(store).get("classes"))
    found = unflatten(restored.under(PARAMS_PREFIX))
    fresh = [head for head in HEADS if head in state.params and head not in found]
    surplus = [head for head in HEADS if head in found and head not in state.params]
    if fresh:
        log.info("it has no %s: initialised by training.seed", " and no ".join(fresh))
    if surplus:
        log.info("left out, for this run has none: %s", ", ".join(surplus))
    _warn_of_differences(restored.commit.identity, parts)
    kept = {name: value for name, value in found.items() if name not in surplus}
    kept |= {head: state.params[head] for head in fresh}
    return state._replace(
        params=_fitting(
            kept,
            state.params,
            run_dir,
            f", and prepare the data with its tokenizer: --set tokenizer.path={run_dir}/tokenizer",
        )
    )


def _with_images(
    restored: Restored, state: TrainState, parts: ImageParts, run_dir: str, classes: list[str] | None
) -> TrainState:
    """Return the state with a ResNet's parameters and statistics, and its classifier where it fits."""
    found, statistics = (unflatten(restored.under(prefix)) for prefix in (PARAMS_PREFIX, STATE_PREFIX))
    manifest = parts.stream.manifest
    former = restored.commit.identity["model"].get("num_classes")
    if former != manifest.num_classes:
        found[CLASSIFIER] = state.params[CLASSIFIER]
        log.info(
            "its classifier has %s classes, the data %d: initialised by training.seed",
            former,
            manifest.num_classes,
        )
    else:
        warn_of_classes(classes, manifest.classes)
    _warn_of_differences(restored.commit.identity, parts)
    return state._replace(
        params=_fitting(found, state.params, run_dir),
        model_state=_fitting(statistics, state.model_state, run_dir),
    )


def _fitting(found: Params, template: Params, run_dir: str, more: str = "") -> Params:
    try:
        return restore_tree(flatten(found), template)
    except CheckpointError as error:
        raise ConfigError(
            error.message,
            where=f"--initialize-from {run_dir}",
            expected="the parameters of this recipe's model",
            remedy=f"take the [model] table from {run_dir} (an import writes it to recipe.toml){more}",
        ) from None


def _warn_of_differences(identity: Identity, parts: RunParts) -> None:
    """Say what arrays of the right shapes do not show: another activation, other pieces."""
    former, now = (each["data"].get("tokenizer") for each in (identity, parts.identity))
    if former != now:
        log.warning("its pieces are those of the tokenizer %s, the data's those of %s", former, now)
    model = parts.identity["model"]
    for name, value in identity["model"].items():
        if name not in _FREE and name in model and model[name] != value:
            log.warning("its model has %s = %r, this one %r", name, value, model[name])
