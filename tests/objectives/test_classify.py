"""Classification of images: the loss by hand, smoothing, weights, and a model that learns."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from outlast.models.params import init_params
from outlast.models.randomness import RowKeys, row_keys
from outlast.models.resnet import classify
from outlast.models.resnet_config import ResNetModelConfig, resolve_resnet
from outlast.objectives.classify import ClassifyObjective
from outlast.objectives.config import CLASSES, ClassifyConfig
from outlast.objectives.loss import LossOutput, mean_loss

CONFIG = resolve_resnet(
    ResNetModelConfig(preset="resnet18", stem="small", depths=(1, 1), widths=(8, 12)), num_classes=5
)
ROWS = 6


def make(label_smoothing: float = 0.0) -> ClassifyObjective:
    config = ClassifyConfig(label_smoothing=label_smoothing)
    return ClassifyObjective(model=CONFIG, config=config, compute_dtype=jnp.float32, remat=False)


def batch() -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {
        "images": jnp.asarray(rng.integers(0, 256, (ROWS, 8, 8, 3), np.uint8)),
        "labels": jnp.asarray(rng.integers(0, 5, ROWS, np.int32)),
    }


def loss(objective: ClassifyObjective, examples: dict[str, Array], *, train: bool) -> LossOutput:
    params, state = init_params(objective.param_table, 1), init_params(objective.state_table, 1)
    return objective.loss(params, state, examples, row_keys=keys(), train=train)


def keys() -> RowKeys:
    return row_keys(0, "train", 0, jnp.arange(ROWS))


def test_pixels_are_normalised_by_channel() -> None:
    images = jnp.asarray(np.array([[[[0, 128, 255]]]], np.uint8))
    found = make().normalise(images)[0, 0, 0]
    expected = [(0 - 0.485) / 0.229, (128 / 255 - 0.456) / 0.224, (1 - 0.406) / 0.225]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_the_cross_entropy_with_the_smoothed_labels(smoothing: float) -> None:
    examples, objective = batch(), make(smoothing)
    params, state = init_params(objective.param_table, 1), init_params(objective.state_table, 1)
    logits, _ = classify(params, state, objective.normalise(examples["images"]), config=CONFIG, train=True)
    target = np.full((ROWS, 5), smoothing / 5)
    target[np.arange(ROWS), np.asarray(examples["labels"])] += 1 - smoothing
    expected = -(target * np.asarray(jax.nn.log_softmax(logits))).sum()
    found = loss(objective, examples, train=True).terms[CLASSES]
    np.testing.assert_allclose(found.loss_sum, expected, rtol=1e-5)
    assert float(found.weight_sum) == ROWS


def test_evaluation_does_not_smooth() -> None:
    smoothed, plain = (loss(make(share), batch(), train=False).terms[CLASSES] for share in (0.3, 0.0))
    assert float(smoothed.loss_sum) == float(plain.loss_sum)


def test_rows_without_weight_count_for_nothing_in_evaluation() -> None:
    examples = batch()
    half = {name: array[:3] for name, array in examples.items()}
    weights = jnp.asarray([1.0, 1, 1, 0, 0, 0])
    found = loss(make(), examples | {"example_weights": weights}, train=False).terms[CLASSES]
    expected = (
        make()
        .loss(
            init_params(make().param_table, 1),
            init_params(make().state_table, 1),
            half,
            row_keys=keys()[:3],
            train=False,
        )
        .terms[CLASSES]
    )
    np.testing.assert_allclose(found.loss_sum, expected.loss_sum, rtol=1e-6)
    assert (float(found.weight_sum), float(found.scores["accuracy"])) == (
        3,
        float(expected.scores["accuracy"]),
    )


def test_only_training_moves_the_running_statistics() -> None:
    start = init_params(make().state_table, 1)
    after = loss(make(), batch(), train=True).model_state
    kept = loss(make(), batch(), train=False).model_state
    assert float(after["stem"]["mean"][0]) != float(start["stem"]["mean"][0])
    np.testing.assert_array_equal(kept["stem"]["mean"], start["stem"]["mean"])


def test_the_loss_falls() -> None:
    objective, examples = make(), batch()
    params, state = init_params(objective.param_table, 1), init_params(objective.state_table, 1)

    @jax.jit
    def step(params: dict[str, Array], state: dict[str, Array]) -> tuple[Array, dict[str, Array], object]:
        def mean(params: dict[str, Array]) -> tuple[Array, object]:
            output = objective.loss(params, state, examples, row_keys=keys(), train=True)
            return mean_loss(output.terms), output.model_state

        (value, after), gradients = jax.value_and_grad(mean, has_aux=True)(params)
        return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), after

    losses: list[float] = []
    for _ in range(30):
        value, params, state = step(params, state)
        losses.append(float(value))
    assert losses[-1] < 0.5 * losses[0]
