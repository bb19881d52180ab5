"""Which checkpoint of a run a verb reads: the newest, the one of a step, or the best; and what there is.

In: the store of a run directory, and what was asked for. Out: that checkpoint, or an error that names those
there are. Invariant: that one is read or refused; another is never taken in its place, for a script would not
notice. (Training alone falls back to an older one.) This module is free of jax.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from outlast.checkpoint.inspect import describe_commits
from outlast.checkpoint.lineage import CommitKey, ignored_because, line_of
from outlast.checkpoint.records import list_keys, newest_known, read_recorded
from outlast.checkpoint.restore import (
    Restored,
    digest_arrays,
    read_commit,
    refuse_lost,
    refuse_unusable,
    restore_commit,
)
from outlast.checkpoint.retain import best_committed, reasons_to_keep
from outlast.config import apply_overrides
from outlast.errors import (
    CheckpointError,
    ConfigError,
    DamagedCheckpoint,
    ObjectNotFound,
    OutlastError,
    RunError,
)
from outlast.logs import log
from outlast.recipe import Recipe, make_recipe
from outlast.run.directory import find_description, read_recipe_tables
from outlast.storage import Store, open_store
from outlast.training.phase_plan import plan_phases
from outlast.training.ranking import Ranking, read_evaluations


@dataclass(frozen=True, kw_only=True)
class Which:
    """What was asked for: a step, or the best; neither: the newest."""

    step: int | None = None
    best: bool = False

    def __post_init__(self) -> None:
        if self.best and self.step is not None:
            raise ConfigError(
                f"The checkpoint of step {self.step} and the best one are both asked for.",
                remedy="give a step or the best, or neither for the newest",
            )


NEWEST = Which()
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A restored checkpoint, and in words which one it is."""

    restored: Restored
    words: str


def restore_run(
    store: Store, which: Which = NEWEST, *, prefix: str = "", overrides: Sequence[str] = ()
) -> Chosen:
    """Restore a checkpoint of a run, or its arrays of a prefix.

    Args:
        overrides: of the run's recipe, which says what the best is.

    Raises:
        RunError: there is no checkpoint, or no evaluation tells which is the best.
        ConfigError: there is none of that step.
        CheckpointError: the newest that the run is known to have is gone.
        DamagedCheckpoint: the one that was asked for is damaged.
    """

    def restore(key: CommitKey, words: str) -> Chosen:
        restored = restore_commit(store, key, prefix=prefix)
        if which.best:
            log.info("the checkpoint of step %d: %s", key.step, words)
        return Chosen(restored=restored, words=words)

    return _read(store, which, overrides, restore)


def digest_run(run_dir: str, *, step: int | None = None, best: bool = False) -> dict[str, Any]:
    """Return the ``step`` of a checkpoint, the newest by default, and the ``sha256`` over its parameters in
    name order. Errors as ``restore_run``.
    """
    store = open_store(run_dir)

    def digest(key: CommitKey, words: str) -> dict[str, Any]:
        return {"step": key.step, "sha256": digest_arrays(store, read_commit(store, key.name))}

    return _read(store, Which(step=step, best=best), (), digest)


def _read(store: Store, which: Which, overrides: Sequence[str], read: Callable[[CommitKey, str], T]) -> T:
    """Return what is read of the checkpoint that was asked for. Where it goes while it is read, because a
    later one has come, that one is read.
    """
    key, words = _find(store, which, overrides)
    while True:
        try:
            return read(key, words)
        except (DamagedCheckpoint, ObjectNotFound) as error:
            missed, (key, words) = key, _find(store, which, overrides)
            if key != missed:
                continue
            raise DamagedCheckpoint(
                f"The checkpoint of step {key.step}, {words}, is damaged: {error.message}",
                where=f"{store.url}/{error.where or key.name}",
                remedy=f"no other is taken in its place: `outlast checkpoint list {store.url}` shows them, "
                "and --step N (of a start --initialize-step N) takes one; training the run again goes on "
                "from the newest that is whole",
            ) from None


def list_checkpoints(run_dir: str) -> list[dict[str, Any]]:
    """Return the committed checkpoints, newest first.

    Returns:
        of each ``step``, ``attempt``, ``size_bytes``, ``state``; ``metric``, the name of the one that ranks,
        and ``evaluation``, all of them, None where it was not evaluated; whether it is the ``newest`` and
        the ``best``; and ``kept_because``, the reasons of retention.

    Raises:
        CheckpointError: nobody ever began a run there.
    """
    store = open_store(run_dir)
    known = newest_known(store)
    rows = describe_commits(run_dir)
    try:
        refuse_lost(store, known, line_of(list_keys(store), read_recorded(store)))
    except CheckpointError as error:
        log.warning("%s", error)
    try:
        recipe = _recipe(store, ())
    except OutlastError as error:
        log.warning("%s\nso neither metrics nor reasons are shown", error)
        recipe = None
    evaluations = read_evaluations(store)
    line = sorted(CommitKey(row["step"], row["attempt"]) for row in rows if row["state"] == "committed")
    steps = [key.step for key in line]
    best = best_committed(ranking_of(recipe).best_first(evaluations), steps) if recipe else None
    reasons = _reasons(store, line, recipe, best) if recipe else {}
    for row in rows:
        key = CommitKey(row["step"], row["attempt"])
        row |= {
            "metric": recipe.checkpoint.best_metric if recipe else None,
            "evaluation": evaluations.get(key.step) if key in line else None,
            "newest": key in line[-1:],
            "best": key in line and key.step == best,
            "kept_because": reasons.get(key, []),
        }
    return rows


def commands_behind(run_dir: str) -> list[tuple[str, ...]]:
    """Return the commands that may follow a run, each the words behind ``outlast``: it is evaluated where it
    has held-out data, and the best of its checkpoints is exported.
    """
    store = open_store(run_dir)
    evaluations = read_evaluations(store)
    steps = [key.step for key in line_of(list_keys(store), read_recorded(store))]
    best = best_committed(ranking_of(_recipe(store, ())).best_first(evaluations), steps)
    of_best = () if best in (None, max(steps, default=None)) else ("--best",)
    model = f"{run_dir.rstrip('/').rpartition('/')[2]}-model"
    lines = [("export", run_dir, model, *of_best)]
    return [("evaluate", run_dir, *of_best), *lines] if evaluations else lines


def _reasons(
    store: Store, line: list[CommitKey], recipe: Recipe, best: int | None
) -> dict[CommitKey, list[str]]:
    if not line:
        return {}
    recorded = read_recorded(store)
    started = recorded[max(recorded)] if recorded else None
    return reasons_to_keep(
        line,
        newest_from=line[-recipe.checkpoint.keep_newest :][0],
        restored_step=started.step if started and started.commit else None,
        keep_every_steps=recipe.checkpoint.keep_every_steps,
        best_step=best if recipe.checkpoint.keep_best else None,
    )


def ranking_of(recipe: Recipe) -> Ranking:
    """Return the rule that says which of a run's evaluated states is the best."""
    assert recipe.checkpoint.best_metric is not None, "make_recipe chooses one"
    return Ranking(recipe.checkpoint.best_metric, plan_phases(recipe.training, recipe.stream))


def _find(store: Store, which: Which, overrides: Sequence[str]) -> tuple[CommitKey, str]:
    """Return the commit that was asked for, and in words which one it is."""
    known = newest_known(store)
    keys, recorded = list_keys(store), read_recorded(store)
    line = {key.step: key for key in reversed(line_of(keys, recorded))}
    if which == NEWEST or not line:
        refuse_lost(store, known, line_of(keys, recorded))
    if not line:
        refuse_unusable(store, keys, recorded)
        raise _no_checkpoint(store)
    if which.best:
        return _find_best(store, line, overrides)
    if which.step is None:
        return line[max(line)], "the newest"
    if which.step not in line:
        ignored = [ignored_because(key, recorded) for key in keys if key.step == which.step]
        raise ConfigError(
            f"The run has no checkpoint of step {which.step}"
            + (f" that counts: {ignored[-1]}." if ignored else "."),
            where=store.url,
            expected=f"one of the steps {', '.join(map(str, sorted(line)))}",
            remedy="name one of them, or the best one, or none for the newest",
        )
    return line[which.step], "named by its step"


def _find_best(store: Store, line: dict[int, CommitKey], overrides: Sequence[str]) -> tuple[CommitKey, str]:
    ranking = ranking_of(_recipe(store, overrides))
    evaluations = read_evaluations(store)
    ranked = ranking.best_first(evaluations)
    best = best_committed(ranked, line)
    if best is None:
        raise RunError(
            "No evaluation says which checkpoint is the best.",
            where=store.url,
            expected=f"a checkpoint whose evaluation has {ranking.metric!r}; "
            f"those that are there are of step {', '.join(map(str, sorted(line)))}",
            remedy="name one by its step; runs on data with a held-out split are evaluated every "
            "training.evaluation_interval_steps",
        )
    if best != ranked[0]:
        log.warning(
            "the best by %s was that of step %d, which was not kept: this is the best that is there",
            *(ranking.metric, ranked[0]),
        )
    found = evaluations[best]
    over = f" over {found['num_examples']} examples" if "num_examples" in found else ""
    return line[best], f"the best by {ranking.metric} ({found[ranking.metric]:.4f}{over})"


def _recipe(store: Store, overrides: Sequence[str]) -> Recipe:
    tables = apply_overrides(read_recipe_tables(store), overrides)
    return make_recipe(tables, where=f"{store.url}/{find_description(store)}", overrides=overrides)


def _no_checkpoint(store: Store) -> RunError:
    return RunError("The run has no checkpoint yet.", where=store.url, remedy="train it first")
