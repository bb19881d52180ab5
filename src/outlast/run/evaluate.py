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
from outlast.config import apply_overrides, checked
from outlast.errors import DamagedCheckpoint, ShardError
from outlast.logs import log
from outlast.recipe import make_recipe
from outlast.run.assemble import assemble
from outlast.run.checkpoints import NEWEST, Which, restore_run
from outlast.run.directory import (
    check_same_run,
    find_description,
    read_description,
    read_recipe_tables,
)
from outlast.run.held_out import open_held_out
from outlast.run.kind import Former, Parts
from outlast.storage import open_store, place_of
from outlast.training.compilation_cache import use_compilation_cache
from outlast.training.evaluate import evaluate_sources
from outlast.training.out_of_memory import explained_memory
from outlast.training.state import TrainState, restore_tree
from outlast.training.step import make_evaluation_step

POLL_SECONDS = 5.0


@checked
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
    opened: list[tuple[Parts[Any, Any], Callable[[Restored], dict[str, Any]]]] = []

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


def _evaluator(parts: Parts[Any, Any]) -> Callable[[Restored], dict[str, Any]]:
    """Return the function that evaluates a checkpoint, compiled at its first call."""
    use_compilation_cache(parts.recipe.training.compilation_cache_dir)
    evaluation_step = make_evaluation_step(parts.learner.objective, seed=parts.recipe.training.seed)
    held_out = open_held_out(parts)
    if held_out is None:
        raise ShardError(
            "The data set has no held-out split.",
            remedy=parts.kind.held_out_remedy,
        )

    @explained_memory()
    def evaluate_checkpoint(restored: Restored) -> dict[str, Any]:
        state = _without_optimizer(parts, restored)
        step = restored.commit.step
        result = evaluate_sources(evaluation_step, state, held_out.sources(step))
        assert result is not None
        return {"step": step, **result}

    return evaluate_checkpoint


def _without_optimizer(parts: Parts[Any, Any], restored: Restored) -> TrainState:
    """Return what an evaluation reads of a checkpoint; an imported one holds no more."""
    whole = jax.eval_shape(parts.learner.initial_state)
    arrays = {name: value for name, value in restored.arrays.items() if not name.startswith("opt_state/")}
    return restore_tree(arrays, whole._replace(opt_state=()))


def _open_run(
    run_dir: str, overrides: Sequence[str], which: Which = NEWEST
) -> tuple[Parts[Any, Any], Restored]:
    """Return the parts of the run in a directory, and a checkpoint of it."""
    store = open_store(run_dir)
    tables = apply_overrides(_of_all_examples(read_recipe_tables(store)), overrides)
    where = f"{store.url}/{find_description(store)}"
    parts = assemble(make_recipe(tables, where=where, overrides=overrides))
    restored = restore_run(store, which, overrides=overrides).restored
    description = read_description(store)
    check_same_run(description, restored.commit, where=where)
    parts.kind.check_same_labels(Former(run_dir, restored, description), parts)
    return parts, restored


def _of_all_examples(tables: dict[str, Any]) -> dict[str, Any]:
    """Return a run's recipe without the limit of the evaluations during training."""
    training = tables.get("training")
    if not isinstance(training, dict):
        return tables
    kept = {name: value for name, value in training.items() if name != "evaluation_examples"}
    return {**tables, "training": kept}


def follow(
    newest_step: Callable[[], int | None],
    evaluate_newest: Callable[[], dict[str, Any]],
    *,
    total_steps: Callable[[], int],
    timeout_seconds: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[dict[str, Any]]:
    """Yield the evaluation of each new checkpoint; of those that come while one is evaluated only the newest
    is. It always ends: with the run's last step, or when no new checkpoint came for a while.

    Args:
        newest_step: the newest committed step, None while there is none.
        evaluate_newest: evaluates the newest checkpoint; the result names its ``step``. One that is damaged
            is told and left out; it is an error where no other comes.
        total_steps: the last step of the run; asked after an evaluation.
        timeout_seconds: how long to wait for a new checkpoint.
    """
    seen, deadline = -1, clock() + timeout_seconds
    damaged: DamagedCheckpoint | None = None
    while clock() < deadline:
        newest = newest_step()
        if newest is None or newest <= seen:
            sleep(POLL_SECONDS)
            continue
        try:
            result = evaluate_newest()
        except DamagedCheckpoint as error:
            log.warning("%s", error)
            seen, damaged = newest, error
            continue
        yield result
        if result["step"] >= total_steps():
            return
        seen, damaged, deadline = max(newest, result["step"]), None, clock() + timeout_seconds
    if damaged is not None:
        raise damaged
