"""ResNet (He et al., 2016), with the stride of a bottleneck in its 3 x 3 convolution ("version 1.5").

In: normalised images (b, height, width, channel). Out: logits over the classes, and the running statistics of
the batch norms, which are the model's only state. Checked against transformers' ``modeling_resnet.py``
(tests/parity). The statistics of a training batch are means over all of it, whatever devices it lies on.

Letters: b row, h and w pixel, c channel, k class, n block.
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float

from outlast.models.layers import dense
from outlast.models.params import LAYERS_AXIS, Param, Params, ParamTable
from outlast.models.remat import all_but_gathered
from outlast.models.resnet_config import BOTTLENECK_REDUCTION, ResNetConfig
from outlast.models.slices import in_slices, mean_over_devices, num_row_devices, whole_layer

CLASSIFIER = "classifier"
"""The group of parameters whose shapes depend on the number of classes."""

ModelState = dict[str, Any]
"""Nested dicts of running statistics, with the keys of ``state_table``."""


class _Conv(NamedTuple):
    """A convolution and the norm behind it: kernel size, channels in and out, stride."""

    size: int
    inside: int
    outside: int
    stride: int = 1


def param_table(config: ResNetConfig) -> ParamTable:
    """Declare the parameters. Kernels are (height, width, in, out)."""
    stages = {
        f"{stage}": {
            part: {name: _conv_norm(conv, hf, number) for name, (conv, hf) in convs.items()}
            for part, (convs, number) in _parts(config, stage).items()
        }
        for stage in range(len(config.depths))
    }
    last, classes = config.widths[-1], config.num_classes
    return {
        "stem": _conv_norm(_stem(config), "resnet.embedder.embedder", None),
        "stages": stages,
        CLASSIFIER: {
            "kernel": Param(
                shape=(last, classes),
                logical_axes=("channels", "classes"),
                init="normal",
                scale=0.01,
                hf="classifier.1.weight",
                hf_transposed=True,
            ),
            "bias": Param(shape=(classes,), logical_axes=("classes",), init="zeros", hf="classifier.1.bias"),
        },
    }


def state_table(config: ResNetConfig) -> ParamTable:
    """Declare the running statistics: ``mean`` and ``variance`` beside every norm."""

    def statistics(tree: ParamTable) -> ParamTable:
        if "norm" not in tree:
            return {name: statistics(branch) for name, branch in tree.items()}
        scale: Param = tree["norm"]["scale"]
        return {
            name: Param(
                shape=scale.shape,
                logical_axes=scale.logical_axes,
                init=init,
                hf=scale.hf.removesuffix("weight") + hf,
                first_layer=scale.first_layer,
            )
            for name, init, hf in _STATISTICS
        }

    table = param_table(config)
    return statistics({"stem": table["stem"], "stages": table["stages"]})


_STATISTICS: tuple[tuple[str, Literal["zeros", "ones"], str], ...] = (
    ("mean", "zeros", "running_mean"),
    ("variance", "ones", "running_var"),
)


def classify(
    params: Params,
    state: ModelState,
    images: Float[Array, "b h w c"],
    *,
    config: ResNetConfig,
    train: bool,
    compute_dtype: DTypeLike = jnp.float32,
    remat: bool = False,
) -> tuple[Float[Array, "b k"], ModelState]:
    """Return float32 logits, and the running statistics after the batch.

    Args:
        images: normalised.
        train: norms use the statistics of the batch and move the running ones; otherwise they use these.
        compute_dtype: of convolutions and activations; norms and logits are computed in float32.
        remat: compute each block again in the backward pass.
    """
    hidden, after = _run(params, state, images, config, train, compute_dtype, remat)
    with jax.named_scope("classifier"):
        last = hidden[-1].astype(params[CLASSIFIER]["kernel"].dtype)
        pooled = jnp.mean(last, axis=(1, 2))
        return dense(pooled, params[CLASSIFIER]), after


def stage_outputs(
    params: Params, state: ModelState, images: Float[Array, "b h w c"], *, config: ResNetConfig
) -> list[Float[Array, "b h w c"]]:
    """Return what leaves the stem and each stage, in evaluation."""
    return _run(params, state, images, config, False, jnp.float32, False)[0]


def _run(
    params: Params,
    state: ModelState,
    images: Array,
    config: ResNetConfig,
    train: bool,
    compute_dtype: DTypeLike,
    remat: bool,
) -> tuple[list[Array], ModelState]:
    norms = _Norms(config, train)
    after: ModelState = {"stages": {}}
    with jax.named_scope("stem"):
        x = images.astype(compute_dtype)
        x, after["stem"] = norms.convolve(x, params["stem"], state["stem"], _stem(config).stride)
        x = jax.nn.relu(x)
        if config.stem == "large":
            x = _max_pool(x)
    hidden = [x]
    for number in range(len(config.depths)):
        name = f"{number}"
        with jax.named_scope(f"stage {name}"):
            x, after["stages"][name] = _stage(
                x, params["stages"][name], state["stages"][name], norms, _stride(number), remat
            )
        hidden.append(x)
    return hidden, after


def _stage(
    x: Array, params: Params, state: ModelState, norms: "_Norms", stride: int, remat: bool
) -> tuple[Array, ModelState]:
    """The first block of a stage changes size and channels; the others are alike."""

    def block(x: Array, params: Params, state: ModelState, stride: int) -> tuple[Array, ModelState]:
        return _block(x, whole_layer(params, x.dtype), state, norms, stride)

    if remat or in_slices(params):
        block = jax.checkpoint(block, static_argnums=3, policy=None if remat else all_but_gathered)
    x, first = block(x, params["first"], state["first"], stride)
    if "rest" not in params:
        return x, {"first": first}
    # Unrolled: XLA on CPU computes a convolution in a loop by its slowest code, twenty times slower.
    x, rest = jax.lax.scan(
        lambda x, each: block(x, *each, 1), x, (params["rest"], state["rest"]), unroll=True
    )
    return x, {"first": first, "rest": rest}


def _block(
    x: Array, params: Params, state: ModelState, norms: "_Norms", stride: int
) -> tuple[Array, ModelState]:
    after: ModelState = {}
    convs = sorted(name for name in params if name != "shortcut")
    strided = "1" if len(convs) == 3 else "0"
    y = x
    for name in convs:
        y = jax.nn.relu(y) if name != convs[0] else y
        y, after[name] = norms.convolve(y, params[name], state[name], stride if name == strided else 1)
    if "shortcut" in params:
        x, after["shortcut"] = norms.convolve(x, params["shortcut"], state["shortcut"], stride)
    return jax.nn.relu(x + y), after


class _Norms(NamedTuple):
    """Convolution and batch norm (Ioffe and Szegedy, 2015)."""

    config: ResNetConfig
    train: bool

    def convolve(self, x: Array, params: Params, state: ModelState, stride: int) -> tuple[Array, ModelState]:
        kernel = params["kernel"].astype(x.dtype)
        margin = kernel.shape[0] // 2
        y = jax.lax.conv_general_dilated(
            x,
            kernel,
            window_strides=(stride, stride),
            padding=((margin, margin), (margin, margin)),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        return self.normalise(y, params["norm"], state)

    def normalise(self, x: Array, params: Params, state: ModelState) -> tuple[Array, ModelState]:
        """Normalise each channel, in the dtype of the statistics (float32), returned in the dtype of x.

        The running variance takes the batch's without bias, as PyTorch does.
        """
        wide = x.astype(state["mean"].dtype)
        mean, variance = state["mean"], state["variance"]
        if self.train:
            mean = mean_over_devices(jnp.mean(wide, axis=(0, 1, 2)))
            squares = jnp.square(wide - mean[None, None, None, :])
            variance = mean_over_devices(jnp.mean(squares, axis=(0, 1, 2)))
            count = wide.size // wide.shape[-1] * num_row_devices()
            unbiased = variance * (count / max(count - 1, 1))
            share = self.config.norm_momentum
            state = {
                "mean": (1 - share) * state["mean"] + share * mean,
                "variance": (1 - share) * state["variance"] + share * unbiased,
            }
            state = jax.lax.stop_gradient(state)
        factor = params["scale"] * jax.lax.rsqrt(variance + self.config.norm_epsilon)
        shift = params["bias"] - mean * factor
        return (wide * factor[None, None, None, :] + shift[None, None, None, :]).astype(x.dtype), state


def _max_pool(x: Array) -> Array:
    # A plain float: by it jax knows the reduction, and its gradient.
    return jax.lax.reduce_window(
        x, -float("inf"), jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (1, 1), (0, 0))
    )


def _stem(config: ResNetConfig) -> _Conv:
    size, stride = (7, 2) if config.stem == "large" else (3, 1)
    return _Conv(size, config.num_channels, config.stem_width, stride)


def _stride(stage: int) -> int:
    return 1 if stage == 0 else 2


_Convs = dict[str, tuple[_Conv, str]]


def _parts(config: ResNetConfig, stage: int) -> dict[str, tuple[_Convs, int | None]]:
    """Return the convolutions of a stage by name: of its first block, and of the stacked rest."""
    prefix = f"resnet.encoder.stages.{stage}.layers"
    inside = config.widths[stage - 1] if stage else config.stem_width
    outside = config.widths[stage]
    first = _block_convs(config, inside, outside, f"{prefix}.0")
    if inside != outside or _stride(stage) != 1:
        first["shortcut"] = (_Conv(1, inside, outside), f"{prefix}.0.shortcut")
    parts: dict[str, tuple[_Convs, int | None]] = {"first": (first, None)}
    if config.depths[stage] > 1:
        rest = _block_convs(config, outside, outside, f"{prefix}.{{layer}}")
        parts["rest"] = (rest, config.depths[stage] - 1)
    return parts


def _block_convs(config: ResNetConfig, inside: int, outside: int, prefix: str) -> _Convs:
    if config.block == "basic":
        convs = [_Conv(3, inside, outside), _Conv(3, outside, outside)]
    else:
        narrow = outside // BOTTLENECK_REDUCTION
        convs = [_Conv(1, inside, narrow), _Conv(3, narrow, narrow), _Conv(1, narrow, outside)]
    return {f"{number}": (conv, f"{prefix}.layer.{number}") for number, conv in enumerate(convs)}


def _conv_norm(conv: _Conv, hf: str, num_blocks: int | None) -> ParamTable:
    """Declare a convolution without bias and its norm, once for each block where they are stacked.

    Kernels start from He et al. (2015): the variance is 2 / (kernel area * channels out). A normal cut at two
    standard deviations has 0.8796 of the deviation it was made with.
    """
    leading = () if num_blocks is None else (num_blocks,)
    axes = () if num_blocks is None else (LAYERS_AXIS,)
    first_layer = 0 if num_blocks is None else 1

    def vector(init: Literal["zeros", "ones"], name: str) -> Param:
        return Param(
            shape=(*leading, conv.outside),
            logical_axes=(*axes, "channels"),
            init=init,
            hf=f"{hf}.normalization.{name}",
            first_layer=first_layer,
        )

    return {
        "kernel": Param(
            shape=(*leading, conv.size, conv.size, conv.inside, conv.outside),
            logical_axes=(*axes, "height", "width", "channels_in", "channels"),
            init="normal",
            scale=(2 / (conv.size**2 * conv.outside)) ** 0.5 / 0.87962566,
            hf=f"{hf}.convolution.weight",
            hf_transposed=True,
            first_layer=first_layer,
        ),
        "norm": {"scale": vector("ones", "weight"), "bias": vector("zeros", "bias")},
    }
