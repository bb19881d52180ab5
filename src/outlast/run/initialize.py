"""``--initialize-from``: the parameters of another run, or of an import, as the start of a new run.

In: the fresh state of a run, and a checkpoint of a run directory. Out: the state with that checkpoint's
parameters, and the running statistics of a model that has any. Heads that are missing there, or are for
another number of classes, stay as the seed made them, heads that this run does not have are left out; all are
named. Parameters that belong to the pieces of another tokenizer are refused unless they are asked for.
"""

from dataclasses import dataclass

from outlast.checkpoint.records import list_keys
from outlast.checkpoint.restore import Restored
from outlast.errors import CheckpointError, ConfigError
from outlast.huggingface.load import HEADS
from outlast.logs import log
from outlast.models.params import Params, flatten, unflatten
from outlast.models.resnet import CLASSIFIER
from outlast.run.checkpoints import NEWEST, Which, restore_run
from outlast.run.directory import PARAMS_PREFIX, STATE_PREFIX, read_description
from outlast.run.images import ARCHITECTURE, ImageParts, warn_of_classes
from outlast.run.parts import RunParts
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


def initialized_from(source: Source, state: TrainState, parts: RunParts) -> TrainState:
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
    # Of images also the running statistics, so all of it.
    restored = restore_run(
        store, source.which, prefix="" if isinstance(parts, ImageParts) else PARAMS_PREFIX
    ).restored
    _check_kind(restored.commit.identity, parts, run_dir)
    log.info("starting from the parameters of step %d of %s", restored.commit.step, run_dir)
    if isinstance(parts, ImageParts):
        return _with_images(restored, state, parts, run_dir, read_description(store).get("classes"))
    _check_tokenizer(restored.commit.identity, parts, source)
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


def _check_kind(identity: Identity, parts: RunParts, run_dir: str) -> None:
    of_images = isinstance(parts, ImageParts)
    was_of_images = identity["model"].get("architecture") == ARCHITECTURE
    if was_of_images != of_images:
        kinds = {True: "images", False: "text"}
        raise ConfigError(
            f"The checkpoint is of a model of {kinds[was_of_images]}, the recipe of a run on "
            f"{kinds[of_images]}.",
            where=f"--initialize-from {run_dir}",
            remedy=f"name a run on {kinds[of_images]}, or an import of such a model",
        )


def _check_tokenizer(identity: Identity, parts: RunParts, source: Source) -> None:
    """Refuse parameters whose rows stand for other pieces: no shape tells it where there are as many."""
    former, now = (each["data"].get("tokenizer") for each in (identity, parts.identity))
    if former == now:
        return
    if source.other_tokenizer:
        log.warning("its pieces are those of the tokenizer %s, the data's those of %s", former, now)
        return
    raise ConfigError(
        f"The parameters belong to the pieces of the tokenizer {former}, the data were made with {now}.",
        where=f"--initialize-from {source.run_dir}",
        remedy=f"prepare the data with its tokenizer: --set tokenizer.path={source.run_dir}/tokenizer; "
        "or, to learn the embeddings of other pieces from these, add --other-tokenizer",
    )


def _warn_of_differences(identity: Identity, parts: RunParts) -> None:
    """Say what arrays of the right shapes do not show, such as another activation."""
    model = parts.identity["model"]
    for name, value in identity["model"].items():
        if name not in _FREE and name in model and model[name] != value:
            log.warning("its model has %s = %r, this one %r", name, value, model[name])
