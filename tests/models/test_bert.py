"""The encoder as a whole: remat, dropout, precision, shapes. Parity with transformers is in tests/parity."""

import dataclasses
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from outlast.errors import ConfigError
from outlast.models.architectures import ARCHITECTURES
from outlast.models.attention.random_blocks import RandomBlocks
from outlast.models.bert import EncoderInputs, encode, param_table, position_ids, predict_tokens
from outlast.models.config import EncoderConfig, ModelConfig, resolve_model
from outlast.models.params import Params, abstract, flatten, init_params
from outlast.models.randomness import row_keys
from outlast.models.remat import Remat

IDS = {"cls": 0, "pad": 3, "sep": 2, "unk": 1, "mask": 4}
CONFIG = resolve_model(
    ModelConfig(preset="tiny", hidden_size=64, num_layers=3, dropout=0.2, attention_dropout=0.2),
    vocab_size=211,
    special_ids=IDS,
    sequence_length=32,
)
PARAMS = init_params(param_table(CONFIG), 0)
TOKENS = jax.random.randint(jax.random.key(1), (4, 32), 5, 211, dtype=jnp.int32).at[1, 20:].set(3)
INPUTS = EncoderInputs(TOKENS, (TOKENS != 3).astype(jnp.int8))
KEYS = row_keys(0, "train", 0, jnp.arange(4))
run = jax.jit(encode, static_argnames=("config", "compute_dtype", "remat"))


def loss(params: Params, remat: Remat, inputs: EncoderInputs = INPUTS, keys: Array | None = KEYS) -> Array:
    hidden = encode(params, inputs, config=CONFIG, dropout_keys=keys, remat=remat)
    return jnp.sum(jnp.square(predict_tokens(params, hidden, config=CONFIG)))


@pytest.mark.parametrize("remat", ["selective", "layer"])
def test_remat_changes_no_gradient_with_dropout_on(remat: Remat) -> None:
    plain = jax.jit(jax.grad(partial(loss, remat="none")))(PARAMS)
    saved = jax.jit(jax.grad(partial(loss, remat=remat)))(PARAMS)
    for name, gradient in flatten(plain).items():
        found = flatten(saved)[name]
        # 1e-9: the gradient of a key's bias is zero but for rounding.
        scale = float(jnp.max(jnp.abs(gradient)))
        np.testing.assert_allclose(found, gradient, rtol=1e-4, atol=1e-9 + 1e-5 * scale, err_msg=name)


def temporary_bytes(config: EncoderConfig, remat: Remat, length: int) -> int:
    """What XLA sets aside for a gradient, by its own account; nothing is run."""

    def squares(params: Params, ids: Array) -> Array:
        keys = row_keys(0, "train", 0, jnp.arange(1))
        hidden = encode(params, EncoderInputs(ids), config=config, dropout_keys=keys, remat=remat)
        return jnp.sum(jnp.square(hidden))

    ids = jax.ShapeDtypeStruct((1, length), jnp.int32)
    compiled = jax.jit(jax.grad(squares)).lower(abstract(param_table(config)), ids).compile()
    analysis = compiled.memory_analysis()
    assert analysis is not None
    return analysis.temp_size_in_bytes


@pytest.mark.parametrize(("architecture", "same"), [("roberta", True), ("bert", False)])
def test_the_head_of_roberta_has_gelu_whatever_its_layers_have(architecture: str, same: bool) -> None:
    table = ModelConfig(architecture=architecture, preset="tiny", hidden_size=16, activation="gelu_new")
    config = resolve_model(table, vocab_size=30, special_ids={"pad": 1}, sequence_length=8)
    params = init_params(param_table(config), 0)
    hidden = 10 * jax.random.normal(jax.random.key(0), (1, 8, 16))
    found, plain = (
        predict_tokens(params, hidden, config=each)
        for each in (config, dataclasses.replace(config, activation="gelu"))
    )
    assert bool(jnp.array_equal(found, plain)) == same


def bigbird(num_layers: int, block_size: int, random_blocks: RandomBlocks | None = None) -> EncoderConfig:
    model = ModelConfig(
        architecture="bigbird",
        preset="tiny",
        hidden_size=64,
        num_layers=num_layers,
        block_size=block_size,
        random_blocks=random_blocks,
        max_positions=4096,
    )
    return resolve_model(model, vocab_size=211, special_ids=IDS, sequence_length=4096)


def test_bigbirds_memory_grows_with_the_length_and_not_with_its_square() -> None:
    config = bigbird(num_layers=2, block_size=16)
    assert temporary_bytes(config, "selective", 4096) < 4.6 * temporary_bytes(config, "selective", 1024)


def test_evaluating_as_the_library_draws_no_table() -> None:
    """Of blocks of 256 tokens at 3,072 the library has none to train with, and evaluates all the same."""
    config = bigbird(num_layers=1, block_size=256, random_blocks="uniform")
    assert config.sparse is not None
    sparse = dataclasses.replace(
        config.sparse,
        num_random_blocks=2,
        random_blocks="transformers",
        evaluation_random_blocks="first_block",
    )
    config = dataclasses.replace(config, sparse=sparse)
    arguments = abstract(param_table(config)), EncoderInputs(jnp.zeros((1, 3072), jnp.int32))
    found = jax.eval_shape(partial(encode, config=config), *arguments)
    assert found.shape == (1, 3072, 64)
    keys = row_keys(0, "train", 0, jnp.arange(1))
    with pytest.raises(ConfigError, match="random blocks"):
        jax.eval_shape(partial(encode, config=config, dropout_keys=keys), *arguments)


def test_remat_saves_memory() -> None:
    config = bigbird(num_layers=12, block_size=64)
    none, selective, layer = (
        temporary_bytes(config, remat, 4096) for remat in ("none", "selective", "layer")
    )
    assert selective < 0.7 * none
    assert layer < 0.7 * none
    assert layer < selective


def test_a_row_is_the_same_in_a_microbatch_with_dropout_on() -> None:
    whole = run(PARAMS, INPUTS, config=CONFIG, dropout_keys=KEYS)
    rows = jnp.array([3, 1])
    part = EncoderInputs(TOKENS[rows], (TOKENS[rows] != 3).astype(jnp.int8))
    found = run(PARAMS, part, config=CONFIG, dropout_keys=row_keys(0, "train", 0, rows))
    np.testing.assert_allclose(found, whole[rows], atol=2e-5)
    without = run(PARAMS, INPUTS, config=CONFIG)
    assert float(jnp.max(jnp.abs(whole - without))) > 0.1


def test_dropout_differs_between_steps_and_layers_and_is_gone_without_keys() -> None:
    other = run(PARAMS, INPUTS, config=CONFIG, dropout_keys=row_keys(0, "train", 1, jnp.arange(4)))
    assert not np.allclose(other, run(PARAMS, INPUTS, config=CONFIG, dropout_keys=KEYS), atol=1e-2)
    first, second = (run(PARAMS, INPUTS, config=CONFIG) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_dropout_zero_costs_nothing() -> None:
    config = dataclasses.replace(CONFIG, dropout=0.0, attention_dropout=0.0)

    def program(keys: Array | None) -> Any:
        lowered = run.lower(PARAMS, INPUTS, config=config, dropout_keys=keys)
        return cast(Any, lowered.compile().cost_analysis())["flops"]

    assert program(KEYS) == program(None)


def test_bfloat16_is_near_float32_and_keeps_float32_logits() -> None:
    wide = predict_tokens(PARAMS, run(PARAMS, INPUTS, config=CONFIG), config=CONFIG)
    hidden = run(PARAMS, INPUTS, config=CONFIG, compute_dtype=jnp.bfloat16)
    assert hidden.dtype == jnp.bfloat16
    half = predict_tokens(PARAMS, hidden, config=CONFIG)
    assert half.dtype == jnp.float32
    np.testing.assert_allclose(half, wide, atol=0.03 * float(jnp.max(jnp.abs(wide))))
    gradients = jax.grad(
        lambda params: jnp.sum(
            run(params, INPUTS, config=CONFIG, compute_dtype=jnp.bfloat16).astype(jnp.float32)
        )
    )(PARAMS)
    assert {str(gradient.dtype) for gradient in flatten(gradients).values()} == {"float32"}


def test_padding_changes_nothing_at_real_positions_on_either_side() -> None:
    short = TOKENS[:1, :20]
    expected = run(PARAMS, EncoderInputs(short), config=CONFIG)
    for start in (0, 7, 12):
        padded = jnp.full((1, 32), 3, jnp.int32).at[:, start : start + 20].set(short)
        mask = (padded != 3).astype(jnp.int8)
        found = run(PARAMS, EncoderInputs(padded, mask), config=CONFIG)
        np.testing.assert_allclose(found[:, start : start + 20], expected, atol=1e-5)


def test_positions() -> None:
    ids = jnp.array([[3, 3, 7, 8, 9], [7, 8, 3, 9, 3]])
    assert position_ids(ids, CONFIG).tolist() == [[3, 3, 4, 5, 6], [4, 5, 3, 6, 3]]
    bert = dataclasses.replace(CONFIG, architecture="bert", position_rule="index")
    assert position_ids(ids, bert).tolist() == [[0, 1, 2, 3, 4]] * 2


def test_a_batch_of_padding_only_gives_finite_gradients() -> None:
    ids = jnp.full((2, 32), 3, jnp.int32)
    inputs = EncoderInputs(ids, jnp.zeros((2, 32), jnp.int8))
    gradients = jax.grad(partial(loss, remat="selective", inputs=inputs, keys=None))(PARAMS)
    assert all(bool(jnp.all(jnp.isfinite(gradient))) for gradient in flatten(gradients).values())


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_every_architecture_builds_and_runs(name: Any) -> None:
    config = resolve_model(
        ModelConfig(architecture=name, preset="tiny"), vocab_size=50, special_ids=IDS, sequence_length=8
    )
    architecture = ARCHITECTURES[config.architecture]
    params = init_params(architecture.param_table(config), 0)
    ids = jnp.ones((2, 8), jnp.int32)
    types = jnp.zeros((2, 8), jnp.int32)
    hidden = architecture.encode(params, EncoderInputs(ids, token_type_ids=types), config=config)
    assert architecture.predict_tokens(params, hidden[:, :3], config=config).shape == (2, 3, 50)
