"""The table of parameters: names, counts and initial values."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from outlast.errors import OutlastError
from outlast.models.bert import param_table
from outlast.models.config import EncoderConfig, ModelConfig, resolve_model
from outlast.models.params import (
    Param,
    abstract,
    check_shapes,
    count,
    flatten,
    init_params,
    unflatten,
)

ROBERTA_IDS = {"cls": 0, "pad": 1, "sep": 2, "unk": 3, "mask": 4}
BERT_IDS = {"pad": 0, "unk": 100, "cls": 101, "sep": 102, "mask": 103}
TINY = resolve_model(ModelConfig(preset="tiny"), vocab_size=300, special_ids=ROBERTA_IDS, sequence_length=64)


def test_counts_are_those_of_the_published_models() -> None:
    """transformers reports these numbers for RobertaForMaskedLM and BertForMaskedLM of the base size."""
    roberta = resolve_model(
        ModelConfig(architecture="roberta"), vocab_size=50265, special_ids=ROBERTA_IDS, sequence_length=512
    )
    bert = resolve_model(
        ModelConfig(architecture="bert"), vocab_size=30522, special_ids=BERT_IDS, sequence_length=512
    )
    assert count(param_table(roberta)) == 124_697_433
    assert count(param_table(bert)) == 109_514_298


def test_flatten_and_unflatten_are_inverse() -> None:
    tree = {"a": {"b": 1, "c": {"d": 2}}, "e": 3}
    flat = flatten(tree)
    assert flat == {"a/b": 1, "a/c/d": 2, "e": 3}
    assert unflatten(flat) == tree


def test_every_axis_has_a_name_and_every_hf_name_is_used_once() -> None:
    table: dict[str, Param] = flatten(param_table(TINY))
    assert all(len(param.shape) == len(param.logical_axes) for param in table.values())
    assert len({param.hf for param in table.values()}) == len(table)
    assert all(("{layer}" in param.hf) == param.stacked for param in table.values())


def test_abstract_has_the_shapes_of_the_real_parameters() -> None:
    table = param_table(TINY)
    real = jax.eval_shape(lambda: init_params(table, 0))
    assert flatten(abstract(table)) == flatten(real)


def test_initial_values_are_truncated_normals_zeros_and_ones() -> None:
    params = flatten(init_params(param_table(TINY), 0))
    word = np.asarray(params["embeddings/word"])
    assert np.abs(word).max() <= 0.04
    # A normal cut at two standard deviations keeps 0.8796 of its standard deviation.
    np.testing.assert_allclose(word.std(), 0.02 * 0.8796, rtol=0.02)
    np.testing.assert_allclose(word.mean(), 0, atol=5e-4)
    assert np.all(np.asarray(params["layers/attention/norm/scale"]) == 1)
    assert np.all(np.asarray(params["layers/attention/query/bias"]) == 0)


def test_seeds_names_and_layers_differ_and_the_same_seed_repeats() -> None:
    table = param_table(TINY)
    first, again, other = (flatten(init_params(table, seed)) for seed in (0, 0, 1))
    name = "layers/attention/query/kernel"
    np.testing.assert_array_equal(first[name], again[name])
    assert not np.array_equal(first[name], other[name])
    assert not np.array_equal(first[name], first["layers/attention/key/kernel"])
    assert not np.array_equal(first[name][0], first[name][1])


def test_another_layer_leaves_the_first_ones_as_they_were() -> None:
    deeper = dataclasses.replace(TINY, num_layers=3)
    few, many = (flatten(init_params(param_table(config), 7)) for config in (TINY, deeper))
    for name, value in few.items():
        np.testing.assert_array_equal(
            value, many[name][: len(value)] if name.startswith("layers/") else many[name]
        )


def test_initial_values_are_the_same_under_jit() -> None:
    table = param_table(TINY)
    eager, jitted = init_params(table, 3), jax.jit(lambda: init_params(table, 3))()
    for name, value in flatten(eager).items():
        np.testing.assert_allclose(value, flatten(jitted)[name], rtol=0, atol=1e-7, err_msg=name)


def test_parameters_that_do_not_fit_are_named() -> None:
    config: EncoderConfig = TINY
    params = flatten(init_params(param_table(config), 0))
    params["layers/surplus"] = params.pop("embeddings/word")
    params["head/bias"] = jnp.zeros((7,))
    with pytest.raises(OutlastError) as caught:
        check_shapes(param_table(config), unflatten(params))
    for part in ("embeddings/word is missing", "layers/surplus is not known", "head/bias is float32(7,)"):
        assert part in str(caught.value)
