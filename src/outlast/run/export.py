"""The verb ``export``, wired: from a run directory to a Hugging Face model folder.

In: the URL of a run directory; the data set may be gone. Out: the folder.
"""

from pathlib import Path

from outlast.config import checked
from outlast.recipe import kind_of
from outlast.run.assemble import RUN_KINDS
from outlast.run.checkpoints import Which, restore_run
from outlast.run.directory import check_same_run, find_description, read_description
from outlast.run.kind import Former
from outlast.storage import local_place, open_store
from outlast.training.ranking import read_evaluations
from outlast.version import __version__


@checked
def export_run(run_dir: str | Path, out: str | Path, *, step: int | None = None, best: bool = False) -> Path:
    """Write a checkpoint of a run, the newest, that of a step, or the best, as a Hugging Face model folder;
    return the folder.

    All it takes is in the run directory: the data set may be gone. Errors as ``restore_run``.
    """
    out = local_place(out)
    store = open_store(run_dir)
    description = read_description(store)
    kind = RUN_KINDS[kind_of(description["recipe"])]
    chosen = restore_run(store, Which(step=step, best=best), prefix=kind.prefix)
    restored = chosen.restored
    check_same_run(description, restored.commit, where=f"{store.url}/{find_description(store)}")
    provenance = {
        "outlast": __version__,
        "step": restored.commit.step,
        "checkpoint": chosen.words,
        "identity": restored.commit.identity,
        "evaluation": read_evaluations(store).get(restored.commit.step),
    }
    return kind.export(Former(store.url, restored, description), store, out, provenance)
