"""``--initialize-from``: the parameters of another run, or of an import, as the start of a new run.

In: the fresh state of a run, and a run directory. Out: the state with that directory's newest parameters.
Heads that are missing there stay as the seed made them, heads that this run does not have are left out; both
are named.
"""

from outlast.checkpoint.restore import restore_newest
from outlast.errors import CheckpointError, ConfigError
from outlast.huggingface.load import HEADS
from outlast.logs import log
from outlast.models.params import Params, flatten, unflatten
from outlast.run.directory import PARAMS_PREFIX, params_of
from outlast.run.parts import RunParts
from outlast.storage import open_store
from outlast.training.identity import Identity
from outlast.training.state import TrainState, restore_tree

_FREE = {"dropout", "attention_dropout", "initializer_range", "next_sentence"}
"""Of the model: what a new run may choose without a word."""


def initialized_from(run_dir: str, state: TrainState, parts: RunParts) -> TrainState:
    """Return the state with the parameters of a run directory's newest checkpoint.

    Raises:
        ConfigError: no checkpoint there; parameters of other shapes.
    """
    restored = restore_newest(open_store(run_dir), prefix=PARAMS_PREFIX)
    if restored is None:
        raise ConfigError(
            "There is no checkpoint to start from.",
            where=f"--initialize-from {run_dir}",
            remedy="`outlast import FOLDER OUT` makes one of a Hugging Face model",
        )
    found = unflatten(params_of(restored))
    fresh = [head for head in HEADS if head in state.params and head not in found]
    surplus = [head for head in HEADS if head in found and head not in state.params]
    log.info("starting from the parameters of step %d of %s", restored.commit.step, run_dir)
    if fresh:
        log.info("it has no %s: initialised by training.seed", " and no ".join(fresh))
    if surplus:
        log.info("left out, for this run has none: %s", ", ".join(surplus))
    _warn_of_differences(restored.commit.identity, parts)
    kept = {name: value for name, value in found.items() if name not in surplus}
    kept |= {head: state.params[head] for head in fresh}
    return state._replace(params=_fitting(kept, state.params, run_dir))


def _fitting(found: Params, template: Params, run_dir: str) -> Params:
    try:
        return restore_tree(flatten(found), template)
    except CheckpointError as error:
        raise ConfigError(
            error.message,
            where=f"--initialize-from {run_dir}",
            expected="the parameters of this recipe's model",
            remedy=f"take the [model] table from {run_dir} (an import writes it to recipe.toml), and prepare "
            f"the data with its tokenizer: --set tokenizer.path={run_dir}/tokenizer",
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
