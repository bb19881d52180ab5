"""A batch norm on several devices: statistics of the whole batch, and the update of one device."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from outlast.models.params import flatten
from outlast.models.resnet_config import ResNetModelConfig, resolve_resnet
from outlast.objectives.classify import ClassifyObjective
from outlast.objectives.config import CLASSES, ClassifyConfig
from outlast.training.config import OptimizerConfig
from outlast.training.optimizer import decays, make_optimizer, make_schedule
from outlast.training.state import initial_state
from outlast.training.step import make_train_step
from support.devices import result_on_devices

NUM_DEVICES, ROWS = 4, 8


def step_on(num_devices: int) -> dict[str, Any]:
    """Return state and loss after one step on a batch that is divided among so many devices."""
    model = resolve_resnet(ResNetModelConfig(preset="resnet18", depths=(1, 1), widths=(8, 16)), num_classes=5)
    objective = ClassifyObjective(
        model=model, config=ClassifyConfig(), compute_dtype=jnp.float32, remat=False
    )
    config = OptimizerConfig(name="sgd", learning_rate=0.1, clip_norm=float("inf"))
    schedule = make_schedule(config, 10)
    optimizer = make_optimizer(config, schedule, decays(objective.param_table))
    step: Any = make_train_step(objective, optimizer, schedule, seed=0, num_microbatches=1)
    mesh = jax.make_mesh((num_devices,), ("data",), devices=jax.devices()[:num_devices])

    def placed(tree: Any, *axes: str) -> Any:
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))
        return jax.tree.map(lambda x: jax.device_put(x, sharding), tree)

    # Each device's rows are of a brightness of their own, so their own statistics would be far off.
    rng = np.random.default_rng(0)
    bright = np.repeat(np.arange(NUM_DEVICES) * 40, ROWS // NUM_DEVICES)[:, None, None, None]
    images = (rng.integers(0, 80, (ROWS, 32, 32, 3)) + bright).astype(np.uint8)
    batch = {"images": images, "labels": (np.arange(ROWS) % 5).astype(np.int32)}
    state = initial_state(objective.param_table, optimizer, 0, objective.state_table)
    state, measured = step(placed(state), placed(batch, "data"))
    arrays = flatten({"params": state.params, "statistics": state.model_state})
    return {"loss": float(measured.terms[CLASSES].loss_sum)} | {
        name: np.asarray(x).tolist() for name, x in arrays.items()
    }


def test_four_devices_make_the_step_of_one() -> None:
    divided, whole = result_on_devices(NUM_DEVICES, __file__, "step_on(NUM_DEVICES)"), step_on(1)
    assert divided.keys() == whole.keys()
    for name, value in whole.items():
        np.testing.assert_allclose(divided[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
