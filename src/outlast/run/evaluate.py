"""The verb ``evaluate``, wired: from a run directory to the loss on the held-out split.

In: the URL of a run directory. Out: the evaluation of its newest checkpoint, of another one, or of each new
one. It is over every held-out example: ``training.evaluation_examples`` of the run's own recipe shortens only
the evaluations during training. As an override it counts here too.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from outlast.checkpoint.restore import Restored, list_keys
from outlast.config import apply_overrides
from outlast.errors import ConfigError, ShardError
from outlast.recipe import make_run_recipe
from outlast.run.assemble import assemble_run
from outlast.run.checkpoints import NEWEST, Which, restore_run
from outlast.run.directory import find_description, read_description, read_recipe_tables
from outlast.run.held_out import open_held_out
from outlast.run.images import ImageParts, warn_of_classes
from outlast.run.parts import Parts, RunParts
from outlast.storage import open_store, place_of
from outlast.training.compilation_cache import use_compilation_cache
from outlast.training.evaluate import evaluate_sources
from outlast.training.out_of_memory import explained_memory
from outlast.training.state import TrainState, restore_tree
from outlast.training.step import make_evaluation_step

POLL_SECONDS = 5.0


def evaluate_run(
    run_dir: str | Path, overrides: Sequence[str] = (), *, step: int | None = None, best: bool = False
) -> dict[str, Any]:
    """Evaluate a checkpoint of a run on the held-out split: the newest, that of a step, or the best.

    Raises:
        RunError: there is none. ConfigError: none of that step. DamagedCheckpoint.
    """
    parts, restored = _open_run(place_of(run_dir), overrides, Which(step=step, best=best))
    return _evaluator(parts)(restored)


def follow_run(
    run_dir: str, overrides: Sequence[str] = (), *, timeout_seconds: float
) -> Iterator[dict[str, Any]]:
    """Evaluate each new checkpoint of a run until its last step, or until none came for so many seconds."""
    store = open_store(run_dir)
    opened: list[tuple[RunParts, Callable[[Restored], dict[str, Any]]]] = []

    def evaluate_newest() -> dict[str, Any]:
        parts, restored = _open_run(run_dir, overrides)
        opened[:] = opened or [(parts, _evaluator(parts))]  # compiled once
        return opened[0][1](restored)

    return follow(
        lambda: max((key.step for key in list_keys(store)), default=None),
        evaluate_newest,
        total_steps=lambda: opened[0][0].recipe.training.total_steps,
        timeout_seconds=timeout_seconds,
    )


def _evaluator(parts: RunParts) -> Callable[[Restored], dict[str, Any]]:
    """Return the function that evaluates a checkpoint, compiled at its first call."""
    use_compilation_cache(parts.recipe.training.compilation_cache_dir)
    evaluation_step = make_evaluation_step(parts.objective, seed=parts.recipe.training.seed)
    held_out = open_held_out(parts)
    if held_out is None:
        raise ShardError(
            "The data set has no held-out split.",
            remedy="name one when the data set is made: --validation SRC"
            if isinstance(parts, ImageParts)
            else "prepare it with corpus.validation_fraction > 0",
        )

    @explained_memory()
    def evaluate_checkpoint(restored: Restored) -> dict[str, Any]:
        state = _without_optimizer(parts, restored)
        step = restored.commit.step
        result = evaluate_sources(evaluation_step, state, held_out.sources(step))
        assert result is not None
        return {"step": step, **result}

    return evaluate_checkpoint


def _without_optimizer(parts: RunParts, restored: Restored) -> TrainState:
    """Return what an evaluation reads of a checkpoint; an imported one holds no more."""
    whole = jax.eval_shape(parts.initial_state)
    arrays = {name: value for name, value in restored.arrays.items() if not name.startswith("opt_state/")}
    return restore_tree(arrays, whole._replace(opt_state=()))


def _open_run(run_dir: str, overrides: Sequence[str], which: Which = NEWEST) -> tuple[RunParts, Restored]:
    """Return the parts of the run in a directory, and a checkpoint of it."""
    store = open_store(run_dir)
    tables = apply_overrides(_of_all_examples(read_recipe_tables(store)), overrides)
    where = f"{store.url}/{find_description(store)}"
    parts = assemble_run(make_run_recipe(tables, where=where, overrides=overrides))
    restored = restore_run(store, which, overrides=overrides).restored
    if isinstance(parts, ImageParts):
        _check_classes(restored, parts, run_dir)
        warn_of_classes(read_description(store).get("classes"), parts.stream.manifest.classes)
    if not isinstance(parts, Parts):
        return parts, restored
    made_with = restored.commit.identity["data"]["tokenizer"]
    if made_with != parts.stream.manifest.tokenizer.fingerprint:
        raise ConfigError(
            f"The run was trained with the tokenizer {made_with}, "
            f"the data set was made with {parts.stream.manifest.tokenizer.fingerprint}.",
            where=parts.recipe.stream.manifest,
            remedy="--set stream.manifest=URL names a data set of the run's own tokenizer",
        )
    return parts, restored


def _of_all_examples(tables: dict[str, Any]) -> dict[str, Any]:
    """Return a run's recipe without the limit of the evaluations during training."""
    training = tables.get("training")
    if not isinstance(training, dict):
        return tables
    kept = {name: value for name, value in training.items() if name != "evaluation_examples"}
    return {**tables, "training": kept}


def _check_classes(restored: Restored, parts: ImageParts, run_dir: str) -> None:
    classes, of_data = restored.commit.identity["model"]["num_classes"], parts.stream.manifest.num_classes
    if classes != of_data:
        raise ConfigError(
            f"The model has {classes} classes, the data set {of_data}.",
            where=parts.recipe.stream.manifest,
            remedy="name a data set of the model's own classes, or train on this one from the model: "
            f"--initialize-from {run_dir}",
        )


def follow(
    newest_step: Callable[[], int | None],
    evaluate_newest: Callable[[], dict[str, Any]],
    *,
    total_steps: Callable[[], int],
    timeout_seconds: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[dict[str, Any]]:
    """Yield the evaluation of each new checkpoint; those that come while one is evaluated are left out but
    the newest. It always ends: with the run's last step, or when no new checkpoint came for a while.

    Args:
        newest_step: the newest committed step, None while there is none.
        evaluate_newest: evaluates the newest checkpoint; the result names its ``step``.
        total_steps: the last step of the run; asked after an evaluation.
        timeout_seconds: how long to wait for a new checkpoint.
    """
    seen, deadline = -1, clock() + timeout_seconds
    while clock() < deadline:
        newest = newest_step()
        if newest is None or newest <= seen:
            sleep(POLL_SECONDS)
            continue
        result = evaluate_newest()
        yield result
        if result["step"] >= total_steps():
            return
        # The newest may be damaged and an older one evaluated: it is not tried again.
        seen, deadline = max(newest, result["step"]), clock() + timeout_seconds
