"""The one rule of what is right: numpy's argmax, which a collapsed model does not pass."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from outlast.models.params import init_params
from outlast.models.randomness import row_keys
from outlast.models.resnet_config import ResNetModelConfig, resolve_resnet
from outlast.objectives.classify import ClassifyObjective
from outlast.objectives.config import CLASSES, ClassifyConfig
from outlast.objectives.loss import is_right

NUM_CLASSES = 4


def test_it_is_numpys_argmax_of_equal_scores_too() -> None:
    rng = np.random.default_rng(0)
    logits = rng.integers(-2, 3, (500, 3, 7)).astype(np.float32)  # few values, so that many are equal
    labels = rng.integers(0, 7, (500, 3), np.int32)
    found = jax.jit(is_right)(jnp.asarray(logits), jnp.asarray(labels))
    np.testing.assert_array_equal(found, (logits.argmax(axis=-1) == labels).astype(np.float32))
    ties = (logits == logits.max(axis=-1, keepdims=True)).sum(axis=-1) > 1
    assert 100 < ties.sum() < 1400


@pytest.mark.parametrize("value", [0.0, -3.5, np.inf, -np.inf])
def test_a_collapsed_model_is_right_as_often_as_the_first_answer_is(value: float) -> None:
    labels = jnp.asarray([0, 1, 2, 3, 0, 2], jnp.int32)
    right = is_right(jnp.full((6, NUM_CLASSES), value), labels)
    np.testing.assert_array_equal(right, [1, 0, 0, 0, 1, 0])


def test_where_a_score_is_no_number_nothing_is_right() -> None:
    logits = jnp.asarray([[np.nan, 1.0], [2.0, np.nan], [np.nan, np.nan]])
    for label in (0, 1):
        assert not is_right(logits, jnp.full(3, label, jnp.int32)).any()


def test_a_resnet_of_nothing_but_zeros_is_not_always_right() -> None:
    model = resolve_resnet(
        ResNetModelConfig(preset="resnet18", stem="small", depths=(1,), widths=(4,)), num_classes=NUM_CLASSES
    )
    objective = ClassifyObjective(
        model=model, config=ClassifyConfig(), compute_dtype=jnp.float32, remat=False
    )
    params = jax.tree.map(jnp.zeros_like, init_params(objective.param_table, 0))
    batch = {"images": jnp.zeros((8, 4, 4, 3), jnp.uint8), "labels": jnp.arange(8) % NUM_CLASSES}
    found = objective.loss(
        params,
        init_params(objective.state_table, 0),
        batch,
        row_keys=row_keys(0, "evaluate", 0, jnp.arange(8)),
        train=False,
    ).terms[CLASSES]
    assert float(found.scores["accuracy"]) / float(found.weight_sum) == 1 / NUM_CLASSES
