"""The random blocks of a BigBird through the life of a run: those it began with, whatever the default is."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from outlast.run.directory import FORMER_NAME, read_description, read_recipe_tables
from outlast.storage import LocalStore
from support.command_line import Run

BIGBIRD = (
    "model.architecture=bigbird",
    "model.block_size=4",
    "model.num_random_blocks=1",
    "stream.sequence_length=48",
    "model.max_positions=48",
    "optimizer.warmup_steps=1",
    "optimizer.schedule=constant",
)
NAMED = ("model.random_blocks=uniform", "model.evaluation_random_blocks=same")
"""The defaults of early versions, as the descriptions of their runs have them."""


def blocks_of(run_dir: Path) -> tuple[str, str]:
    model = read_recipe_tables(LocalStore(run_dir))["model"]
    return model["random_blocks"], model["evaluation_random_blocks"]


@pytest.mark.parametrize("damaged", [False, True])
def test_a_run_goes_on_with_the_blocks_it_began_with(
    outlast: Run, train: Run, tmp_path: Path, damaged: bool
) -> None:
    run_dir = tmp_path / "run"
    done = train(*BIGBIRD, *NAMED, "training.total_steps=1", run_dir=run_dir)
    assert done.code == 0, done
    assert blocks_of(run_dir) == ("uniform", "same")
    if damaged:
        (run_dir / "attempts" / "1.run.json").write_text("{")
        refused = train(*BIGBIRD, "training.total_steps=2", run_dir=run_dir)
        refused.refused(2, "model.sparse.random_blocks: the checkpoint has 'uniform'")
        return
    again = train(*BIGBIRD, "training.total_steps=2", run_dir=run_dir)
    assert again.code == 0, again
    assert "resuming from step 1 of 2" in again.err
    assert blocks_of(run_dir) == ("uniform", "same")
    assert outlast("export", run_dir, tmp_path / "model").code == 0
    exported = json.loads((tmp_path / "model" / "config.json").read_text())["outlast_random_blocks"]
    assert exported == {
        "random_block_seed": 0,
        "random_blocks": "uniform",
        "evaluation_random_blocks": "same",
    }
    other = train(*BIGBIRD, "training.total_steps=3", "model.random_blocks=transformers", run_dir=run_dir)
    other.refused(2, "random_blocks: the checkpoint has 'uniform', the recipe 'transformers'")


def test_a_new_run_describes_the_blocks_that_transformers_has(train: Run, tmp_path: Path) -> None:
    done = train(*BIGBIRD, "training.total_steps=1", run_dir=tmp_path / "run")
    assert done.code == 0, done
    assert blocks_of(tmp_path / "run") == ("transformers", "first_block")


def test_a_run_of_another_model_from_before_is_evaluated(
    finished_run: Path, tmp_path: Path, outlast: Run
) -> None:
    """Its description names the former defaults of keys that its model does not read."""
    run_dir = Path(shutil.copytree(finished_run, tmp_path / "run"))
    described: dict[str, Any] = read_description(LocalStore(run_dir))
    described["recipe"]["model"] |= {"random_blocks": "uniform", "evaluation_random_blocks": "same"}
    (run_dir / "attempts" / "1.run.json").unlink()
    (run_dir / FORMER_NAME).write_text(json.dumps(described))
    assert outlast("evaluate", run_dir).code == 0
