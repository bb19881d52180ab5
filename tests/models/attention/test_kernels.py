"""A model by the kernels that a GPU or a TPU has equals the model by the plain formulas.

On a CPU no kernel is taken, so here the one that is meant for the other device is put in its place, and the
interpreter runs it.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from outlast.models.architectures import ARCHITECTURES
from outlast.models.attention import block_sparse, full, fused, kernels, local, splash
from outlast.models.attention.kernels import Attend, alternatives
from outlast.models.bert import EncoderInputs
from outlast.models.config import ArchitectureName, ModelConfig, resolve_model
from outlast.models.params import init_params
from outlast.models.randomness import row_keys

SPECIAL_IDS = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}


def one() -> Array:
    return jnp.ones(())


def test_what_stands_in_on_which_platform() -> None:
    assert alternatives("auto", tpu=one, cuda=one) == {"tpu": one}
    assert alternatives("fused", tpu=one, cuda=one) == {"tpu": one, "cuda": one}
    assert alternatives("plain", tpu=one, cuda=one) == {}
    assert alternatives("fused", tpu=None, cuda=None) == {}


def test_sizes_that_the_gpus_kernel_takes() -> None:
    assert kernels.fits_triton(64, 64)
    assert not kernels.fits_triton(48)
    assert not kernels.fits_triton(256)
    assert not kernels.fits_triton(64, 24)


def put_in_place(monkeypatch: pytest.MonkeyPatch, platform: str, taken: list[Attend]) -> None:
    """Let a CPU take a platform's kernel, by the interpreter."""

    def chosen(kernel: str, *, tpu: Attend | None, cuda: Attend | None) -> dict[str, Attend]:
        del kernel
        found = tpu if platform == "tpu" else cuda
        if found is None:
            return {}
        taken.append(found)
        return {"cpu": found}

    for module in (full, local, block_sparse):
        monkeypatch.setattr(module, "alternatives", chosen)
    monkeypatch.setattr(full, "_SPLASH_FROM", 0)
    for module, name in (
        (fused, "fused_attend"),
        (fused, "fused_blocks"),
        (splash, "splash_attend"),
        (block_sparse, "attend_on_tpu"),
    ):
        monkeypatch.setattr(module, name, partial(getattr(module, name), interpret=True))


@pytest.mark.parametrize(
    ("platform", "architecture", "length"),
    [
        ("cuda", "bert", 100),
        ("cuda", "bigbird", 220),
        ("cuda", "modernbert", 100),
        ("tpu", "bigbird", 768),
        ("tpu", "modernbert", 100),
    ],
)
def test_a_model_by_its_kernels(
    monkeypatch: pytest.MonkeyPatch, platform: str, architecture: ArchitectureName, length: int
) -> None:
    """With dropout where the model has it, padding on either side, and documents apart for ModernBERT."""
    own: dict[str, dict[str, Any]] = {
        "bigbird": {"block_size": 16 if platform == "cuda" else 64, "num_random_blocks": 2},
        "modernbert": {"local_attention": 32, "global_every": 2},
    }
    config = ModelConfig(
        architecture=architecture,
        preset="tiny",
        num_layers=2,
        hidden_size=32,
        num_heads=2,
        intermediate_size=32,
        max_positions=length,
        **own.get(architecture, {}),
    )
    encoder = resolve_model(config, vocab_size=64, special_ids=SPECIAL_IDS, sequence_length=length)
    functions = ARCHITECTURES[architecture]
    params = init_params(functions.param_table(encoder), 0)
    place = jnp.arange(length)[None]
    real = jnp.concatenate([place < length - 23, place >= 17])
    segments = jnp.cumsum(place % 41 == 40, axis=1, dtype=jnp.int32).repeat(2, 0)
    inputs = EncoderInputs(
        jnp.where(real, place % 59 + 5, 0),
        real.astype(jnp.int8),
        segment_ids=segments if architecture == "modernbert" else None,
    )
    weight = jnp.sin(jnp.arange(2 * length * 32, dtype=jnp.float32)).reshape(2, length, 32)

    def loss(params: Any) -> Array:
        keys = row_keys(0, "train", 1, jnp.arange(2))
        hidden = functions.encode(params, inputs, config=encoder, dropout_keys=keys)
        return jnp.sum(hidden * weight * real.astype(jnp.float32)[:, :, None])

    expected = jax.jit(jax.value_and_grad(loss))(params)
    taken: list[Attend] = []
    put_in_place(monkeypatch, platform, taken)
    found = jax.jit(jax.value_and_grad(lambda params: loss(params)))(params)
    assert taken
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        scale = max(1.0, float(jnp.max(jnp.abs(other))))
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-5 * scale)
