"""Learning rates in closed form; which parameters decay; AdamW against its own formula."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from outlast.config import build
from outlast.errors import ConfigError
from outlast.models import resnet
from outlast.models.bert import param_table
from outlast.models.config import ModelConfig, resolve_model
from outlast.models.params import flatten
from outlast.models.resnet_config import ResNetModelConfig, resolve_resnet
from outlast.recipe import Recipe, in_steps, read_recipe
from outlast.training.config import OptimizerConfig
from outlast.training.optimizer import decays, find_too_short, make_optimizer, make_schedule

RECIPES = Path(__file__).parents[2] / "recipes"


def rates(config: OptimizerConfig, total_steps: int) -> list[float]:
    schedule = make_schedule(config, total_steps)
    return [float(schedule(step)) for step in range(total_steps)]


def test_linear_warm_up_and_linear_decay() -> None:
    found = rates(OptimizerConfig(learning_rate=1.0, warmup_steps=4), 10)
    expected = [1 / 4, 2 / 4, 3 / 4, 4 / 4, 6 / 6, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_cosine_ends_at_its_final_fraction() -> None:
    found = rates(OptimizerConfig(learning_rate=2.0, schedule="cosine", final_fraction=0.1), 100)
    assert found[0] == pytest.approx(2.0)
    assert found[50] == pytest.approx(2.0 * 0.55)
    assert found[99] == pytest.approx(2.0 * (0.1 + 0.9 * 0.5 * (1 + np.cos(np.pi * 0.99))), rel=1e-5)


def test_constant_then_decay() -> None:
    found = rates(OptimizerConfig(learning_rate=1.0, schedule="constant", warmup_steps=2, decay_steps=4), 10)
    np.testing.assert_allclose(found, [0.5, 1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25], rtol=1e-6)
    assert rates(OptimizerConfig(learning_rate=1.0, schedule="constant"), 5) == [1.0] * 5


def test_a_decay_longer_than_the_run_begins_after_the_warm_up() -> None:
    config = OptimizerConfig(
        learning_rate=1.0, schedule="constant", warmup_steps=2, decay_steps=10, final_fraction=0.2
    )
    np.testing.assert_allclose(rates(config, 6), [0.5, 1, 1, 0.8, 0.6, 0.4], rtol=1e-6)
    told = find_too_short(config, 6)
    assert told is not None
    assert "decay_steps is 10, the run has 4 steps after the warm-up" in told
    assert find_too_short(config, 12) is None


def test_a_run_shorter_than_its_warm_up_has_the_beginning_of_it() -> None:
    config = OptimizerConfig(learning_rate=1.0, warmup_steps=6)
    np.testing.assert_allclose(rates(config, 3), [1 / 6, 2 / 6, 3 / 6], rtol=1e-6)
    told = find_too_short(config, 5)
    assert told is not None
    assert "warmup_steps is 6, the run has 5 steps" in told
    assert find_too_short(config, 6) is None


def test_step_decay_divides_by_five() -> None:
    found = rates(OptimizerConfig(learning_rate=1.0, schedule="step", decay_steps=3, warmup_steps=1), 8)
    np.testing.assert_allclose(found, [1, 1, 1, 0.2, 0.2, 0.2, 0.04, 0.04], rtol=1e-6)


def imagenet(name: str) -> Recipe:
    """A recipe of ResNet-50 in steps, for the 1,281,167 pictures of ImageNet."""
    return in_steps(read_recipe(RECIPES / f"resnet50_imagenet_{name}.toml"), 1_281_167)


def test_resnet50_by_steps_has_the_rates_of_its_source() -> None:
    """torch_xla's WarmupAndExponentialDecayScheduler: epochs are counted from the start of the run."""
    recipe = imagenet("step")
    steps_per_epoch = 1_281_167 / 1024
    schedule = make_schedule(recipe.optimizer, recipe.training.total_steps)
    assert recipe.training.total_steps == round(90 * steps_per_epoch) == 112_603
    warmup = round(0.9 * steps_per_epoch)
    for step in (0, 500, warmup - 1):
        assert float(schedule(step)) == pytest.approx(0.5 * (step + 1) / warmup, rel=1e-6)
    for division in range(1, 5):
        border = round(20 * steps_per_epoch) * division
        assert float(schedule(border - 1)) == pytest.approx(0.5 / 5 ** (division - 1), rel=1e-6)
        assert float(schedule(border)) == pytest.approx(0.5 / 5**division, rel=1e-6)
    assert float(schedule(warmup)) == 0.5
    assert float(schedule(112_602)) == pytest.approx(0.5 / 5**4, rel=1e-6)


def test_resnet50_by_cosine_has_the_rates_of_its_source() -> None:
    recipe = imagenet("cosine")
    schedule = make_schedule(recipe.optimizer, recipe.training.total_steps)
    warmup, total = round(5 * 1_281_167 / 1024), 112_603
    assert float(schedule(warmup - 1)) == pytest.approx(0.4, rel=1e-6)
    for step in (warmup, 50_000, total - 1):
        expected = 0.2 * (1 + np.cos(np.pi * (step - warmup) / (total - warmup)))
        assert float(schedule(step)) == pytest.approx(expected, rel=1e-4, abs=1e-9)


def test_the_recipes_of_resnet50_decay_what_their_sources_decay() -> None:
    table = resnet.param_table(resolve_resnet(ResNetModelConfig(), num_classes=1000))
    for name, everything in (("step", True), ("cosine", False)):
        config = imagenet(name).optimizer
        found = flatten(decays(table, biases_and_norms=config.decay_biases_and_norms))
        assert found["stem/kernel"] is True
        assert found["stages/3/rest/0/kernel"] is True
        for vector in ("stem/norm/scale", "stages/3/rest/0/norm/bias", "classifier/bias"):
            assert found[vector] is everything, (name, vector)


def test_sgd_is_that_of_pytorch() -> None:
    """Weight decay in the gradient, before the momentum (Sutskever et al., 2013, as PyTorch has it)."""
    config = OptimizerConfig(
        name="sgd",
        learning_rate=0.5,
        schedule="step",
        decay_steps=2,
        weight_decay=0.1,
        clip_norm=float("inf"),
    )
    optimizer = make_optimizer(config, make_schedule(config, 10), {"w": True})
    params: dict[str, Any] = {"w": jnp.array([2.0])}
    state = optimizer.init(params)
    weight, momentum = 2.0, 0.0
    for step, gradient in enumerate((1.0, -0.5, 0.25, 0.0)):
        params, state = advance(optimizer, {"w": jnp.array([gradient])}, state, params)
        momentum = 0.9 * momentum + gradient + 0.1 * weight
        weight -= 0.5 / 5 ** (step // 2) * momentum
    np.testing.assert_allclose(params["w"], [weight], rtol=1e-6)


def test_matrices_decay_and_vectors_do_not() -> None:
    encoder = resolve_model(
        ModelConfig(preset="tiny"), vocab_size=50, special_ids={"pad": 0}, sequence_length=8
    )
    found = flatten(decays(param_table(encoder)))
    assert {name for name, decay in found.items() if decay} == {
        name for name in found if name.endswith("kernel") or name in EMBEDDINGS
    }
    assert found["layers/attention/norm/scale"] is False
    assert found["layers/attention/query/bias"] is False


EMBEDDINGS = {"embeddings/word", "embeddings/position", "embeddings/token_type"}


def advance(
    optimizer: optax.GradientTransformation, gradients: dict[str, Any], state: Any, params: dict[str, Any]
) -> tuple[dict[str, Any], Any]:
    updates: Any
    updates, state = optimizer.update(gradients, state, params)
    return {name: params[name] + updates[name] for name in params}, state


@pytest.mark.parametrize("bias_correction", [True, False])
def test_adamw_follows_its_formula(bias_correction: bool) -> None:
    """A slow reference: Loshchilov and Hutter (2019), algorithm 2; without corrections BERT's own."""
    config = OptimizerConfig(
        learning_rate=0.1,
        schedule="constant",
        weight_decay=0.5,
        bias_correction=bias_correction,
        clip_norm=1e9,
    )
    optimizer = make_optimizer(config, make_schedule(config, 10), {"w": True, "b": False})
    params = {"w": jnp.array([1.0, -2.0]), "b": jnp.array([3.0])}
    state = optimizer.init(params)
    rng = np.random.default_rng(0)
    moments: dict[str, Any] = dict.fromkeys(params, (0.0, 0.0))
    expected = {name: np.asarray(value, np.float64) for name, value in params.items()}
    for t in range(1, 5):
        gradients = {name: jnp.float32(rng.normal(size=w.shape)) for name, w in params.items()}
        params, state = advance(optimizer, gradients, state, params)
        for name, gradient in gradients.items():
            g = np.asarray(gradient, np.float64)
            m = config.beta1 * moments[name][0] + (1 - config.beta1) * g
            v = config.beta2 * moments[name][1] + (1 - config.beta2) * g**2
            moments[name] = (m, v)
            m_hat = m / (1 - config.beta1**t) if bias_correction else m
            v_hat = v / (1 - config.beta2**t) if bias_correction else v
            decay = config.weight_decay * expected[name] if name == "w" else 0.0
            expected[name] = expected[name] - 0.1 * (m_hat / (np.sqrt(v_hat) + config.epsilon) + decay)
    for name, value in params.items():
        np.testing.assert_allclose(value, expected[name], rtol=2e-5)


def test_the_gradient_is_clipped_by_its_global_norm() -> None:
    config = OptimizerConfig(
        name="sgd", learning_rate=1.0, schedule="constant", beta1=0.0, weight_decay=0.0, clip_norm=1.0
    )
    optimizer = make_optimizer(config, make_schedule(config, 10), {"w": True})
    params = {"w": jnp.zeros(2)}
    params, _ = advance(optimizer, {"w": jnp.array([3.0, 4.0])}, optimizer.init(params), params)
    np.testing.assert_allclose(params["w"], [-0.6, -0.8], rtol=1e-6)
    start = {"w": jnp.zeros(2)}
    for gradient in ([0.3, 0.4], [0.0, 0.0]):  # shorter than the limit: as it is
        params, _ = advance(optimizer, {"w": jnp.array(gradient)}, optimizer.init(start), start)
        np.testing.assert_allclose(params["w"], -np.array(gradient), rtol=1e-6)


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd", "adafactor"])
def test_every_optimizer_lowers_a_simple_loss(name: str) -> None:
    config = build(OptimizerConfig, {"name": name, "learning_rate": 0.05, "weight_decay": 0.0}, where="test")
    optimizer = make_optimizer(config, make_schedule(config, 200), {"w": True})
    params = {"w": jnp.array([2.0, -1.0])}
    state = optimizer.init(params)
    for _ in range(100):
        params, state = advance(optimizer, {"w": 2 * params["w"]}, state, params)
    assert float(jnp.sum(params["w"] ** 2)) < 1.0


def test_meaningless_combinations_are_refused() -> None:
    with pytest.raises(ConfigError, match="needs decay_steps"):
        build(OptimizerConfig, {"schedule": "step"}, where="test")
    with pytest.raises(ConfigError, match="warmup_steps and warmup_epochs say the same thing"):
        build(OptimizerConfig, {"warmup_steps": 5, "warmup_epochs": 0.5}, where="test")
    with pytest.raises(ConfigError, match="no meaning for sgd"):
        build(OptimizerConfig, {"name": "sgd", "bias_correction": False}, where="test")
