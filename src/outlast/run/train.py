"""The verb ``train``, wired: from a recipe and a run directory to a trained state.

In: a ``Recipe`` and the URL of a run directory. Out: the state after the last step. The run directory holds
all there is to know of the run: its recipe, its tokenizer, attempts, checkpoints, metrics and evaluations.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax
from pydantic import NonNegativeInt

from outlast.checkpoint.attempts import Attempt, claim_attempt
from outlast.checkpoint.records import list_keys
from outlast.checkpoint.restore import Restored, restore_newest
from outlast.checkpoint.save import CheckpointWriter
from outlast.config import checked
from outlast.errors import ConfigError
from outlast.logs import ProgressLine, format_count, log
from outlast.models.params import count
from outlast.recipe import Recipe
from outlast.run.assemble import assemble, on_devices, run_kind_of
from outlast.run.checkpoints import NEWEST, Which, ranking_of
from outlast.run.description import keep_description
from outlast.run.directory import check_place
from outlast.run.held_out import open_held_out
from outlast.run.initialize import Source, initialized_from
from outlast.run.kind import Parts
from outlast.run.opening import describe_opening
from outlast.storage import Store, open_store, place_of
from outlast.training.arithmetic import arithmetic, describe_promise, kept_arithmetic
from outlast.training.compilation_cache import use_compilation_cache
from outlast.training.evaluations import RunEvaluations
from outlast.training.identity import check_identity
from outlast.training.loop import train
from outlast.training.metrics import MetricsFile, StepMeter
from outlast.training.optimizer import find_too_short
from outlast.training.out_of_memory import explained_memory
from outlast.training.preemption import Notice
from outlast.training.saves import Saves
from outlast.training.state import TrainState, restore_state
from outlast.training.step import make_evaluation_step, make_train_step


@explained_memory()
@checked
def train_run(
    recipe: Recipe,
    run_dir: str | Path,
    *,
    initialize_from: str | Path | None = None,
    initialize_step: NonNegativeInt | None = None,
    initialize_best: bool = False,
    other_tokenizer: bool = False,
    notice: Notice | None = None,
) -> TrainState:
    """Train, or go on training, until the recipe's last step.

    Args:
        run_dir: folder or URL. Where it holds a run, that run goes on.
        initialize_from: run directory, or import, whose parameters a new run starts from. Not read on a
            resume.
        initialize_step, initialize_best: which of its checkpoints; neither: the newest.
        other_tokenizer: start from them although the data are of another tokenizer.
        notice: one that listens already; None: one of its own, which listens from here on.

    Raises:
        Preempted, Interrupted: a signal came; everything is saved.
        ConfigError: the recipe does not fit the data, or not what is in the run directory.
        RunError: another process owns the run, the loss is not finite, or the device has too little memory.
    """
    source = _source(initialize_from, Which(step=initialize_step, best=initialize_best), other_tokenizer)
    run_dir = place_of(run_dir)
    store = open_store(run_dir)
    check_place(store, recipe.objective.kind)
    use_compilation_cache(recipe.training.compilation_cache_dir)
    with ExitStack() as stack:
        if notice is None:
            notice = stack.enter_context(Notice())
        parts = on_devices(assemble(run_kind_of(recipe).as_begun(recipe, store)))
        recipe = parts.recipe
        if notice:
            raise notice.leaving("before the run began: nothing is lost.")
        parts.kind.check_exportable(parts)
        if too_short := find_too_short(recipe.optimizer, recipe.training.total_steps):
            log.warning("%s", too_short)
        for line in describe_opening(parts):
            log.info("%s", line)
        # A start that is refused leaves no trace in the run directory.
        fresh = None if source is None or list_keys(store) else _fresh(parts, source)
        attempt = claim_attempt(store, config=recipe.checkpoint, report=log.info)
        stack.callback(attempt.close)
        # How a run starts. The order matters:
        # 1. the newest committed checkpoint of this run   2. --initialize-from, parameters only   3. fresh
        # parameters
        restored = restore_newest(store, attempt_number=attempt.number)
        state = _start(parts, restored, source, fresh, run_dir=run_dir)
        attempt.record_restored(int(state.step), restored.commit.name if restored else None)
        now = arithmetic(recipe.training, parts.layout)
        kept = kept_arithmetic(now, restored.commit.mesh if restored else None)
        del restored, fresh  # as large as the state itself
        keep_description(attempt, parts)
        return _train(parts, store, attempt, state, kept, notice, stack)


def _source(initialize_from: str | Path | None, which: Which, other_tokenizer: bool) -> Source | None:
    if initialize_from is not None:
        return Source(run_dir=place_of(initialize_from), which=which, other_tokenizer=other_tokenizer)
    if which != NEWEST or other_tokenizer:
        raise ConfigError(
            "Nothing says whose parameters the run starts from.",
            where="--initialize-step, --initialize-best, --other-tokenizer",
            expected="--initialize-from RUN_DIR beside it",
        )
    return None


def _start(
    parts: Parts[Any, Any],
    restored: Restored | None,
    source: Source | None,
    fresh: TrainState | None,
    *,
    run_dir: str,
) -> TrainState:
    recipe = parts.recipe
    if restored is not None:
        check_identity(restored.commit.identity, parts.identity, step=restored.commit.step, run_dir=run_dir)
        former, now = restored.commit.mesh, arithmetic(recipe.training, parts.layout)
        log.info("resuming from step %d of %d", restored.commit.step, recipe.training.total_steps)
        log.info("%s", describe_promise(former, now))
        if source is not None:
            log.info("--initialize-from %s is not read: the run goes on from its own", source.run_dir)
        return restored_state(parts, restored)
    log.info(
        "new run of %d steps, %s parameters",
        recipe.training.total_steps,
        format_count(count(parts.learner.objective.param_table)),
    )
    return _fresh(parts, source) if fresh is None else fresh


def _fresh(parts: Parts[Any, Any], source: Source | None) -> TrainState:
    state = parts.learner.initial_state(parts.layout)
    return state if source is None else initialized_from(source, state, parts)


def _train(
    parts: Parts[Any, Any],
    store: Store,
    attempt: Attempt,
    state: TrainState,
    kept: Mapping[str, Any],
    notice: Notice,
    stack: ExitStack,
) -> TrainState:
    recipe, phases, learner, layout = parts.recipe, parts.phases, parts.learner, parts.layout
    start_step = int(state.step)
    writer = CheckpointWriter(
        store,
        recipe.checkpoint,
        attempt,
        identity=parts.identity,
        mesh=kept,
        report=log.info,
    )
    stack.callback(writer.close)
    held_out = open_held_out(parts)
    evaluations = RunEvaluations(
        store,
        commit_of=attempt.commit_of,
        total_steps=recipe.training.total_steps,
        interval_steps=recipe.training.evaluation_interval_steps,
        evaluation_step=make_evaluation_step(learner.objective, seed=recipe.training.seed, layout=layout),
        held_out=held_out.sources if held_out else None,
        ranking=ranking_of(recipe),
        stop=lambda: bool(notice),
        keep=writer.rank,
    )
    writer.rank(evaluations.best_first)
    metrics = MetricsFile(store, attempt.number)
    stack.callback(metrics.close)
    start, end = (phases.place_of(step).units for step in (start_step, recipe.training.total_steps))
    progress = stack.enter_context(ProgressLine("training", end, start=start))
    meter = StepMeter(
        metrics,
        progress,
        start_step=start_step,
        place_of=phases.place_of,
        interval_steps=recipe.training.log_interval_steps,
        report=learner.objective.report,
    )
    state = train(
        state,
        total_steps=recipe.training.total_steps,
        batches_from=lambda step: map(layout.placed, phases.batches_from(step)),
        train_step=make_train_step(
            learner.objective,
            learner.optimizer,
            learner.schedule,
            seed=recipe.training.seed,
            num_microbatches=recipe.training.num_microbatches,
            layout=layout,
        ),
        saves=Saves(
            writer,
            attempt,
            recipe.checkpoint,
            restored_step=start_step if attempt.restored_commit else None,
            stop=lambda: bool(notice),
        ),
        evaluations=evaluations,
        meter=meter,
        notice=notice,
    )
    log.info("%s", _end_in_words(parts, meter.last_loss, evaluations))
    return state


def _end_in_words(parts: Parts[Any, Any], loss: float | None, evaluations: RunEvaluations) -> str:
    """Say what came of a run, however few steps it had."""
    total, metric = parts.recipe.training.total_steps, ranking_of(parts.recipe).metric
    words = [f"all {total} steps are done" + ("" if loss is None else f": loss {loss:.4f}")]
    last, best = evaluations.made.get(total), next(iter(evaluations.best_first), total)
    if last is not None:
        words.append(f"held-out loss {last['loss']:.4f}")
    if best != total:
        words.append(f"the best by {metric} is step {best} ({evaluations.made[best][metric]:.4f}): --best")
    return ", ".join(words)


def restored_state(parts: Parts[Any, Any], restored: Restored) -> TrainState:
    """Return a checkpoint as the state of a run, on its devices, whatever mesh it was made on. Raises
    CheckpointError where it does not fit.
    """
    learner = parts.learner
    state = jax.eval_shape(learner.initial_state)
    return restore_state(restored.arrays, parts.layout.template(state, learner.objective.param_table))
