"""What lies where on a mesh, without a device: rules, the state of optimizers, and what is refused."""

import math
from typing import Any

import jax
import pytest
from jax.sharding import AbstractMesh, AxisType

from outlast.errors import ConfigError
from outlast.models.params import Param
from outlast.recipe import make_recipe
from outlast.run.assemble import make_learner
from outlast.run.kind import DataFacts, Learner
from outlast.stream.config import StreamConfig
from outlast.training.arithmetic import arithmetic, describe_promise
from outlast.training.config import MeshConfig, TrainingConfig
from outlast.training.mesh import AXES, FSDP, ONE_DEVICE, WHOLE, Layout, fsdp_by_default, make_layout
from outlast.training.phase_plan import plan_phases

SPECIAL_IDS = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}


def layout_of(data: int, fsdp: int) -> Layout:
    mesh: Any = AbstractMesh((data, fsdp), AXES, (AxisType.Auto, AxisType.Auto))
    return Layout(mesh)


def learner_of(optimizer: str) -> Learner[Any]:
    tables = {"model": {"preset": "base", "num_layers": 4}, "optimizer": {"name": optimizer}}
    facts = DataFacts(vocab_size=30_001, special_ids=SPECIAL_IDS)
    return make_learner(make_recipe(tables, where="a test"), facts)


def param(*sizes: int, axes: tuple[str, ...]) -> Param:
    return Param(shape=sizes, logical_axes=axes, init="zeros", hf="")


def test_a_rule_divides_one_axis_and_never_the_layers() -> None:
    layout = layout_of(2, 4)
    assert tuple(layout.spec_of(param(4, 8, 16, axes=("layers", "embed", "heads")))) == (None, FSDP)
    assert tuple(layout.spec_of(param(4, 6, 16, axes=("layers", "embed", "heads")))) == (None, None, FSDP)
    assert layout.spec_of(param(4, 6, axes=("layers", "embed"))) == WHOLE
    assert layout_of(8, 1).spec_of(param(8, 8, axes=("embed", "heads"))) == WHOLE
    assert ONE_DEVICE.spec_of(param(8, 8, axes=("embed", "heads"))) == WHOLE


def test_what_no_rule_divides_is_named() -> None:
    assert layout_of(1, 8).undivided(learner_of("adamw").objective.param_table) == ["head/bias"]


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor", "sgd"])
def test_the_state_of_an_optimizer_is_divided_as_its_parameters_are(optimizer: str) -> None:
    learner, layout = learner_of(optimizer), layout_of(1, 8)
    placed: Any = layout.template(jax.eval_shape(learner.initial_state), learner.objective.param_table)
    whole = divided = 0
    for leaf in jax.tree.leaves((placed.params, placed.opt_state)):
        whole += math.prod(leaf.shape)
        divided += math.prod(leaf.sharding.shard_shape(leaf.shape))
    assert divided < whole / 8 + 100_000  # the bias of 30,001 pieces, and what is kept for it
    assert placed.step.sharding.spec == WHOLE


def test_parameters_are_divided_by_default_where_they_do_not_fit() -> None:
    assert fsdp_by_default(70, 100, 8) == 1
    assert fsdp_by_default(80, 100, 8) == 8
    assert fsdp_by_default(80, None, 8) == 1


def test_a_mesh_larger_than_the_machine_is_refused() -> None:
    plan = plan_phases(TrainingConfig(), StreamConfig())
    with pytest.raises(ConfigError, match="The mesh has 64 devices, jax sees") as raised:
        make_layout(MeshConfig(data=64), plan=plan, num_microbatches=1, state_bytes=0)
    assert "xla_force_host_platform_device_count=64" in str(raised.value)


def test_the_promise_follows_from_the_topology() -> None:
    def on(layout: Layout) -> dict[str, Any]:
        return arithmetic(TrainingConfig(), layout)

    four, slices, one = on(layout_of(4, 1)), on(layout_of(2, 2)), on(ONE_DEVICE)
    assert "bit-identical" in describe_promise(four, on(layout_of(4, 1)))
    assert "mesh.data 4 -> 2, mesh.fsdp 1 -> 2" in describe_promise(four, slices)
    assert "num_devices 4 -> 1" in describe_promise(four, one)
    # Commits from before there was a mesh are of one device, and nothing else.
    assert one["num_devices"] == 1
    assert "mesh" not in one
