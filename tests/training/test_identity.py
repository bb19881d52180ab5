"""Which runs may go on from which checkpoints, and what they are told."""

import copy
from typing import Any

import pytest

from outlast.config import to_dict
from outlast.errors import ConfigError
from outlast.objectives.config import MlmConfig
from outlast.training.config import OptimizerConfig
from outlast.training.identity import check_identity


def make_identity(total_steps: int = 100, **optimizer: Any) -> dict[str, Any]:
    return {
        "seed": 0,
        "data": {"manifest": "5f2c", "global_batch_size": 32},
        "model": {"num_layers": 2},
        "objective": to_dict(MlmConfig()),
        "optimizer": to_dict(OptimizerConfig(**optimizer)),
        "total_steps": total_steps,
    }


def test_the_same_run_goes_on() -> None:
    check_identity(make_identity(), make_identity(), step=50, run_dir="run")


def test_a_difference_is_named_with_both_values_and_the_way_out() -> None:
    other = copy.deepcopy(make_identity())
    other["model"]["num_layers"] = 4
    other["data"]["manifest"] = "91aa"
    with pytest.raises(ConfigError) as caught:
        check_identity(make_identity(), other, step=50, run_dir="run")
    text = str(caught.value)
    assert "model.num_layers: the checkpoint has 2, the recipe 4" in text
    assert "data.manifest: the checkpoint has '5f2c', the recipe '91aa'" in text
    assert "--initialize-from run" in text


def test_a_field_that_is_new_or_gone_is_a_difference() -> None:
    other = make_identity()
    del other["data"]["global_batch_size"]
    with pytest.raises(ConfigError, match="global_batch_size: the checkpoint has 32, the recipe None"):
        check_identity(make_identity(), other, step=1, run_dir="run")


def test_a_key_of_the_optimizer_that_came_later_had_its_default() -> None:
    older = make_identity()
    del older["optimizer"]["decay_biases_and_norms"]
    check_identity(older, make_identity(), step=1, run_dir="run")
    with pytest.raises(
        ConfigError, match="decay_biases_and_norms: the checkpoint has False, the recipe True"
    ):
        check_identity(older, make_identity(decay_biases_and_norms=True), step=1, run_dir="run")


def test_an_objective_in_the_words_of_an_earlier_version_is_the_same() -> None:
    older = make_identity()
    older["objective"] = {"name": "mlm", **older["objective"]}
    del older["objective"]["kind"]
    check_identity(older, make_identity(), step=1, run_dir="run")
    older["objective"]["mask_share"] = 0.5
    with pytest.raises(ConfigError, match=r"objective\.mask_share: the checkpoint has 0\.5, the recipe 0\.8"):
        check_identity(older, make_identity(), step=1, run_dir="run")


def test_a_run_may_be_extended_where_no_past_rate_changes() -> None:
    constant = {"schedule": "constant", "decay_steps": 20}
    check_identity(make_identity(100, **constant), make_identity(500, **constant), step=80, run_dir="run")
    with pytest.raises(ConfigError, match="total_steps: the checkpoint has 100, the recipe 500"):
        check_identity(make_identity(100, **constant), make_identity(500, **constant), step=90, run_dir="run")
    with pytest.raises(ConfigError, match="'linear' schedule has other rates up to step 10"):
        check_identity(make_identity(100), make_identity(500), step=10, run_dir="run")
    check_identity(make_identity(100), make_identity(500), step=0, run_dir="run")


def test_a_run_never_ends_before_the_step_it_is_at() -> None:
    constant = {"schedule": "constant"}
    check_identity(make_identity(100, **constant), make_identity(80, **constant), step=80, run_dir="run")
    with pytest.raises(ConfigError, match="the checkpoint is of step 81, the recipe ends at 80"):
        check_identity(make_identity(100, **constant), make_identity(80, **constant), step=81, run_dir="run")
