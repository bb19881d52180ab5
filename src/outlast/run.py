"""The training half, wired: from a recipe and a run directory to a trained state, an evaluation, an artifact.

In: a ``Recipe`` and the URL of a run directory. Out: what the verbs ``train``, ``evaluate`` and ``export``
do. The run directory holds all there is to know of a run (docs/formats/run_directory.md): its recipe as
resolved, its tokenizer, attempts, checkpoints, metrics and evaluations.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from numpy.typing import NDArray

from outlast import __version__
from outlast.checkpoint.attempts import Attempt, claim_attempt
from outlast.checkpoint.restore import Restored, list_keys, restore_newest
from outlast.checkpoint.save import CheckpointWriter
from outlast.config import apply_overrides, to_dict
from outlast.errors import ConfigError, ObjectNotFound, RunError, ShardError
from outlast.logs import ProgressLine, format_count, log
from outlast.models.config import EncoderConfig, resolve_model
from outlast.models.params import count
from outlast.objectives.mlm import MlmObjective, make_objective
from outlast.recipe import Recipe, make_recipe
from outlast.shards.manifest import Manifest
from outlast.storage import Store, open_store, split_url
from outlast.stream.loader import TokenStream
from outlast.tokenizer.manifest import read_tokenizer, write_tokenizer
from outlast.training.compilation_cache import use_compilation_cache
from outlast.training.evaluate import evaluate
from outlast.training.evaluations import RunEvaluations, read_evaluations
from outlast.training.follow import follow
from outlast.training.identity import Identity, arithmetic, check_identity, describe_promise
from outlast.training.loop import train
from outlast.training.metrics import MetricsFile, StepMeter
from outlast.training.optimizer import Schedule, decays, make_optimizer, make_schedule
from outlast.training.preemption import Notice
from outlast.training.saves import Saves
from outlast.training.state import TrainState, initial_state, restore_state, restore_tree
from outlast.training.step import make_evaluation_step, make_train_step

RUN_NAME = "run.json"
TOKENIZER_FOLDER = "tokenizer"
PARAMS_PREFIX = "params/"


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a recipe and its data come to, before any array is made."""

    recipe: Recipe
    stream: TokenStream
    encoder: EncoderConfig
    objective: MlmObjective
    schedule: Schedule
    optimizer: optax.GradientTransformation
    identity: Identity


def assemble(recipe: Recipe) -> Parts:
    """Check a recipe against its data and make the parts of the run. Raises ConfigError, ShardError."""
    stream = TokenStream(recipe.stream, seed=recipe.training.seed)
    tokenizer = stream.manifest.tokenizer
    encoder = resolve_model(
        recipe.model,
        vocab_size=tokenizer.vocab_size,
        special_ids=tokenizer.special_ids,
        sequence_length=recipe.stream.sequence_length,
    )
    objective = make_objective(
        encoder,
        recipe.objective,
        special_ids=tokenizer.special_ids,
        compute_dtype=jnp.dtype(recipe.training.compute_dtype),
        remat=recipe.training.remat,
    )
    schedule = make_schedule(recipe.optimizer, recipe.training.total_steps)
    return Parts(
        recipe=recipe,
        stream=stream,
        encoder=encoder,
        objective=objective,
        schedule=schedule,
        optimizer=make_optimizer(recipe.optimizer, schedule, decays(objective.param_table)),
        identity={
            "seed": recipe.training.seed,
            "data": {**stream.identity, "tokenizer": tokenizer.fingerprint},
            "model": asdict(encoder),
            "objective": to_dict(recipe.objective),
            "optimizer": to_dict(recipe.optimizer),
            "total_steps": recipe.training.total_steps,
        },
    )


def train_run(recipe: Recipe, run_dir: str, *, initialize_from: str | None = None) -> TrainState:
    """Train, or go on training, until the recipe's last step.

    Args:
        run_dir: folder or URL. Where it holds a run, that run goes on.
        initialize_from: run directory whose newest parameters a new run starts from. Ignored on a resume.

    Raises:
        Preempted, Interrupted: a signal came; everything is saved.
        ConfigError: the recipe does not fit the data, or not the run that is there.
        RunError: another process owns the run, or the loss is not finite.
    """
    use_compilation_cache(recipe.training.compilation_cache_dir)
    with ExitStack() as stack:
        notice = stack.enter_context(Notice())
        parts = assemble(recipe)
        store = open_store(run_dir)
        attempt = claim_attempt(store, config=recipe.checkpoint, report=log.info)
        stack.callback(attempt.close)
        # How a run starts. The order matters:
        # 1. the newest committed checkpoint of this run   2. --initialize-from, parameters only   3. fresh
        # parameters
        restored = restore_newest(store, attempt_number=attempt.number)
        state = _start(parts, restored, run_dir=run_dir, initialize_from=initialize_from)
        attempt.record_restored(int(state.step), restored.commit.name if restored else None)
        del restored  # as large as the state itself
        _keep_description(store, parts)
        return _train(parts, store, attempt, state, notice, stack)


def evaluate_run(run_dir: str, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Evaluate the newest checkpoint of a run on the held-out split. Raises RunError where there is none."""
    parts, restored = _open_run(run_dir, overrides)
    return _evaluator(parts)(restored)


def follow_run(
    run_dir: str, overrides: Sequence[str] = (), *, timeout_seconds: float
) -> Iterator[dict[str, Any]]:
    """Evaluate each new checkpoint of a run until its last step, or until none came for so many seconds."""
    store = open_store(run_dir)
    opened: list[tuple[Parts, Callable[[Restored], dict[str, Any]]]] = []

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


def _evaluator(parts: Parts) -> Callable[[Restored], dict[str, Any]]:
    """Return the function that evaluates a checkpoint, compiled at its first call."""
    use_compilation_cache(parts.recipe.training.compilation_cache_dir)
    evaluation_step = make_evaluation_step(parts.objective, seed=parts.recipe.training.seed)
    batches = _held_out(parts)
    if batches is None:
        raise ShardError(
            "The data set has no held-out split.", remedy="prepare it with corpus.validation_fraction > 0"
        )
    limit = parts.recipe.training.evaluation_examples

    def evaluate_checkpoint(restored: Restored) -> dict[str, Any]:
        state = _restored_state(parts, restored)
        result = evaluate(evaluation_step, state, batches.evaluation_batches(limit))
        assert result is not None
        return {"step": restored.commit.step, **result}

    return evaluate_checkpoint


def export_run(run_dir: str, out: Path) -> Path:
    """Write the newest checkpoint of a run as a Hugging Face model folder; return the folder.

    All it takes is in the run directory: the data set may be gone.
    """
    from outlast.huggingface.export import export_model
    from outlast.huggingface.tokenizer_files import write_tokenizer_files
    from outlast.tokenizer.encode import load_tokenizer

    store = open_store(run_dir)
    _read_recipe(store)
    restored = _restore(store, prefix=PARAMS_PREFIX)
    identity = restored.commit.identity
    encoder = EncoderConfig.from_dict(identity["model"])
    tokenizer = load_tokenizer(store, TOKENIZER_FOLDER)
    evaluations = read_evaluations(store)
    provenance = {
        "outlast": __version__,
        "step": restored.commit.step,
        "identity": identity,
        "evaluation": evaluations.get(restored.commit.step),
    }
    return export_model(
        _params_of(restored),
        encoder,
        out,
        special_ids=tokenizer.manifest.special_ids,
        write_tokenizer=lambda folder: write_tokenizer_files(
            tokenizer, folder, max_length=encoder.max_positions
        ),
        provenance=provenance,
    )


def _start(
    parts: Parts, restored: Restored | None, *, run_dir: str, initialize_from: str | None
) -> TrainState:
    recipe = parts.recipe
    if restored is not None:
        check_identity(restored.commit.identity, parts.identity, step=restored.commit.step, run_dir=run_dir)
        former, now = restored.commit.mesh, arithmetic(recipe.training)
        log.info("resuming from step %d of %d", restored.commit.step, recipe.training.total_steps)
        log.info("%s", describe_promise(former, now))
        return _restored_state(parts, restored)
    state = initial_state(parts.objective.param_table, parts.optimizer, recipe.training.seed)
    if initialize_from is not None:
        state = _with_params_of(state, initialize_from, parts)
    log.info(
        "new run of %d steps, %s parameters",
        recipe.training.total_steps,
        format_count(count(parts.objective.param_table)),
    )
    return state


def _train(
    parts: Parts,
    store: Store,
    attempt: Attempt,
    state: TrainState,
    notice: Notice,
    stack: ExitStack,
) -> TrainState:
    recipe, stream = parts.recipe, parts.stream
    start_step = int(state.step)
    writer = CheckpointWriter(
        store,
        recipe.checkpoint,
        attempt,
        identity=parts.identity,
        mesh=arithmetic(recipe.training),
        report=log.info,
    )
    stack.callback(writer.close)
    held_out = _held_out(parts)
    evaluations = RunEvaluations(
        store,
        total_steps=recipe.training.total_steps,
        interval_steps=recipe.training.evaluation_interval_steps,
        evaluation_step=make_evaluation_step(parts.objective, seed=recipe.training.seed),
        batches=None
        if held_out is None
        else lambda: held_out.evaluation_batches(recipe.training.evaluation_examples),
        stop=lambda: bool(notice),
        keep=writer.rank,
    )
    writer.rank(evaluations.ranking)
    metrics = MetricsFile(store, attempt.number)
    stack.callback(metrics.close)
    progress = stack.enter_context(ProgressLine("training", recipe.training.total_steps, start=start_step))
    batch_examples = recipe.stream.global_batch_size
    meter = StepMeter(
        metrics,
        progress,
        start_step=start_step,
        batch_examples=batch_examples,
        batch_tokens=batch_examples * recipe.stream.sequence_length,
        epoch_of=stream.order.epoch_of,
        interval_steps=recipe.training.log_interval_steps,
    )
    return train(
        state,
        total_steps=recipe.training.total_steps,
        batches_from=stream.batches_from,
        train_step=make_train_step(
            parts.objective,
            parts.optimizer,
            parts.schedule,
            seed=recipe.training.seed,
            num_microbatches=recipe.training.num_microbatches,
        ),
        saves=Saves(writer, attempt, restored_step=start_step if attempt.restored_commit else None),
        evaluations=evaluations,
        meter=meter,
        notice=notice,
    )


def _open_run(run_dir: str, overrides: Sequence[str] = ()) -> tuple[Parts, Restored]:
    """Return the parts of the run in a directory, and its newest checkpoint."""
    store = open_store(run_dir)
    parts = assemble(
        make_recipe(apply_overrides(_read_recipe(store), overrides), where=f"{run_dir}/{RUN_NAME}")
    )
    restored = _restore(store)
    made_with = restored.commit.identity["data"]["tokenizer"]
    if made_with != parts.stream.manifest.tokenizer.fingerprint:
        raise ConfigError(
            f"The run was trained with the tokenizer {made_with}, "
            f"the data set was made with {parts.stream.manifest.tokenizer.fingerprint}.",
            where=parts.recipe.stream.manifest,
            remedy="--set stream.manifest=URL names a data set of the run's own tokenizer",
        )
    return parts, restored


def _restore(store: Store, *, prefix: str = "") -> Restored:
    restored = restore_newest(store, prefix=prefix)
    if restored is None:
        raise RunError("The run has no checkpoint yet.", where=store.url, remedy="train it first")
    return restored


def _read_recipe(store: Store) -> dict[str, Any]:
    try:
        return dict(json.loads(store.read(RUN_NAME))["recipe"])
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


def _restored_state(parts: Parts, restored: Restored) -> TrainState:
    template = jax.eval_shape(
        lambda: initial_state(parts.objective.param_table, parts.optimizer, parts.recipe.training.seed)
    )
    return restore_state(restored.arrays, template)


def _with_params_of(state: TrainState, run_dir: str, parts: Parts) -> TrainState:
    """Return the state with the parameters of another run's newest checkpoint."""
    restored = restore_newest(open_store(run_dir), prefix=PARAMS_PREFIX)
    if restored is None:
        raise ConfigError("There is no checkpoint to start from.", where=f"--initialize-from {run_dir}")
    params = restore_tree(_params_of(restored), state.params)
    former, now = restored.commit.identity["data"]["tokenizer"], parts.identity["data"]["tokenizer"]
    if former != now:
        log.warning("its pieces are those of the tokenizer %s, the data's those of %s", former, now)
    log.info("starting from the parameters of step %d of %s", restored.commit.step, run_dir)
    return state._replace(params=params)


def _params_of(restored: Restored) -> dict[str, NDArray[Any]]:
    return {
        name.removeprefix(PARAMS_PREFIX): value
        for name, value in restored.arrays.items()
        if name.startswith(PARAMS_PREFIX)
    }


def _held_out(parts: Parts) -> TokenStream | None:
    """Return the stream of the held-out split, None where the data set has none."""
    if "validation" not in parts.stream.manifest.splits:
        return None
    # Evaluation reads in manifest order: lanes belong to training, and a small split may not fill them.
    config = replace(parts.recipe.stream, num_lanes=1, window_examples=None)
    return TokenStream(config, seed=parts.recipe.training.seed, split="validation")


def _keep_description(store: Store, parts: Parts) -> None:
    """Write the recipe and the tokenizer into the run directory. Only the owner of the run comes here."""
    recipe = to_dict(parts.recipe)
    # Whole, so that the run can be evaluated from any folder.
    recipe["stream"]["manifest"] = f"{parts.stream.store.url}/{split_url(recipe['stream']['manifest'])[1]}"
    description = {"outlast": __version__, "recipe": recipe, "identity": parts.identity}
    store.replace(RUN_NAME, [(json.dumps(description, indent=1, ensure_ascii=False) + "\n").encode()])
    _copy_tokenizer(parts.stream.manifest, parts.stream.store, store)


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
