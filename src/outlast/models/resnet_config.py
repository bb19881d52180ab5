"""The shape of a ResNet: the recipe's ``[model]`` table for images and the plain numbers it resolves to.

In: a preset, what differs from it, and the number of classes, which the data says. Out: a ``ResNetConfig``,
which holds everything the model and its export need. No jax here.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pydantic import PositiveInt

from outlast.config import build, table
from outlast.errors import ConfigError

RESNET = "resnet"
BlockName = Literal["basic", "bottleneck"]
StemName = Literal["large", "small"]
ResNetPreset = Literal["resnet18", "resnet34", "resnet50"]

BOTTLENECK_REDUCTION = 4
"""Channels that leave a bottleneck, for each one inside it."""


@table
class ResNetModelConfig:
    architecture: Literal["resnet"] = "resnet"
    """The only one for images, and what they are for where it is left out."""
    preset: ResNetPreset = "resnet50"
    """Depths and widths to start from; the keys below override them."""
    stem: StemName = "large"
    """large: a convolution of 7 x 7 and a pooling, each of stride 2, as for 224 pixels; small: one of 3 x 3
    and stride 1, for pictures of 32 pixels or so."""
    depths: tuple[PositiveInt, ...] | None = None
    """Blocks of each stage."""
    widths: tuple[PositiveInt, ...] | None = None
    """Channels that leave each stage; for resnet50 multiples of 4."""
    stem_width: PositiveInt | None = None
    """Channels that leave the stem. Default: as many as are inside the first block."""


@dataclass(frozen=True, kw_only=True)
class ResNetConfig:
    """Everything a ResNet needs. Hashable, so it can be a static argument of jit."""

    architecture: Literal["resnet"] = "resnet"
    block: BlockName
    """``basic``: two convolutions of 3 x 3; ``bottleneck``: 1 x 1, 3 x 3, 1 x 1."""
    depths: tuple[int, ...]
    """Blocks of each stage."""
    widths: tuple[int, ...]
    """Channels that leave each stage."""
    stem_width: int
    stem: StemName
    """``large``: a convolution of 7 x 7 and a pooling, each of stride 2, as for 224 x 224 pixels; ``small``:
    one of 3 x 3 and stride 1, as the paper has it for CIFAR-10."""
    num_channels: int
    num_classes: int
    norm_momentum: float = 0.1
    """Share of a batch in the running statistics."""
    norm_epsilon: float = 1e-5

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as JSON has them."""
        return {**asdict(self), "depths": list(self.depths), "widths": list(self.widths)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ResNetConfig":
        """Return the configuration that ``to_dict`` wrote."""
        plain: dict[str, Any] = {
            **values,
            "depths": tuple(values["depths"]),
            "widths": tuple(values["widths"]),
        }
        return cls(**plain)


RESNET_PRESETS: dict[ResNetPreset, tuple[BlockName, tuple[int, ...], tuple[int, ...]]] = {
    "resnet18": ("basic", (2, 2, 2, 2), (64, 128, 256, 512)),
    "resnet34": ("basic", (3, 4, 6, 3), (64, 128, 256, 512)),
    "resnet50": ("bottleneck", (3, 4, 6, 3), (256, 512, 1024, 2048)),
}
"""Block, depths and widths by name (He et al., 2016, table 1)."""


def resolve_resnet(config: ResNetModelConfig, *, num_classes: int) -> ResNetConfig:
    """Combine the recipe's table with the number of classes, which the data says. Raises ConfigError."""
    block, depths, widths = RESNET_PRESETS[config.preset]
    depths, widths = config.depths or depths, config.widths or widths
    resolved = ResNetConfig(
        block=block,
        depths=depths,
        widths=widths,
        stem_width=config.stem_width
        or (widths[0] // BOTTLENECK_REDUCTION if block == "bottleneck" else widths[0]),
        stem=config.stem,
        num_channels=3,
        num_classes=num_classes,
    )
    check_resnet(resolved, where="[model]")
    return resolved


def check_resnet(config: ResNetConfig, *, where: str) -> None:
    """Check that the sizes fit together. Raises ConfigError."""
    sizes = (*config.depths, *config.widths, config.stem_width, config.num_channels, config.num_classes)
    if not config.depths or len(config.depths) != len(config.widths) or min(sizes) < 1:
        raise ConfigError(
            f"Stages of {list(config.depths)} blocks and {list(config.widths)} channels make no ResNet.",
            where=where,
            expected="as many depths as widths, each 1 or more, and at least one class",
        )
    if config.block == "bottleneck" and any(width % BOTTLENECK_REDUCTION for width in config.widths):
        raise ConfigError(
            f"The widths {list(config.widths)} do not divide by {BOTTLENECK_REDUCTION}.",
            where=where,
            expected=f"multiples of {BOTTLENECK_REDUCTION}, for the narrow middle of a bottleneck",
        )


def resnet_table(config: ResNetConfig, *, where: str) -> dict[str, Any]:
    """Return the ``[model]`` table that resolves to a configuration.

    Args:
        where: what the configuration was read from, for the error.

    Raises:
        ConfigError: numbers that no table gives.
    """
    preset: ResNetPreset = "resnet50" if config.block == "bottleneck" else "resnet18"
    for name, (block, depths, widths) in RESNET_PRESETS.items():
        if (block, depths, widths) == (config.block, config.depths, config.widths):
            preset = name
    keys: dict[str, Any] = {"architecture": RESNET, "preset": preset, "stem": config.stem}
    _, depths, widths = RESNET_PRESETS[preset]
    if config.depths != depths:
        keys["depths"] = list(config.depths)
    if config.widths != widths:
        keys["widths"] = list(config.widths)
    model = build(ResNetModelConfig, keys, where=where)
    if resolve_resnet(model, num_classes=config.num_classes).stem_width != config.stem_width:
        keys["stem_width"] = config.stem_width
        model = build(ResNetModelConfig, keys, where=where)
    wanted = config.to_dict()
    given = resolve_resnet(model, num_classes=config.num_classes).to_dict()
    differing = [
        f"{name}: {wanted[name]!r}, not {given[name]!r}" for name in wanted if wanted[name] != given[name]
    ]
    if differing:
        raise ConfigError("No [model] table describes the model: " + "; ".join(differing) + ".", where=where)
    return keys
