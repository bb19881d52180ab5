"""What a training step should cost by arithmetic: FLOPs and memory, to stand beside the compiler's counts.

In: the shape of a model and of a batch. Out: FLOPs, and the bytes of temporaries.

FLOPs count products alone, two for each multiplication and addition: once forward, twice backward, and
once more what the remat policy computes again. That is "6ND" (Kaplan et al., 2020) with attention and without
the embeddings, which are looked up.

Memory is what the backward pass finds kept: of a layer's activations Korthikanti et al. (2022, section 4)
count S * B * H * (34 + 5 * A * S / H) bytes where nothing is computed again. Here S is, in the second term,
the keys that a query sees, and the feed-forward part is counted by its own width. Layers that are computed
again keep their input, selective ones the outputs of their products besides; one whole layer lives at a
time. Besides: the gradients (4 bytes a parameter), the parameters in the dtype of the products (2), and
float32 logits with their gradient. It knows nothing of the compiler's copies, and of fusions only what the
paper says.
"""

from dataclasses import dataclass

from outlast.models.config import EncoderConfig
from outlast.models.params import count, flatten
from outlast.models.remat import Remat
from outlast.models.resnet import param_table
from outlast.models.resnet_config import ResNetConfig

_GRADIENT_BYTES, _COPY_BYTES, _LOGIT_BYTES = 4, 2, 8


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """FLOPs of a whole step and with the body of a loop counted once, as XLA does; bytes of temporaries."""

    flops: float
    flops_bodies_once: float
    temporaries: float


def estimate_encoder(
    config: EncoderConfig,
    *,
    rows: int,
    length: int,
    predictions: int,
    num_parameters: int,
    remat: Remat,
) -> Estimate:
    """Reckon a step of masked-language modelling in bfloat16.

    Args:
        predictions: slots of a row.
    """
    keys = visible_keys(config, length)
    tokens, width, inner = rows * length, config.hidden_size, config.intermediate_size
    gated = config.alternating is not None
    products = 2 * tokens * (4 * width * width + (3 if gated else 2) * width * inner)

    def flops(layer: int) -> float:
        attention = 4 * tokens * keys[layer] * width
        again = {"none": 0, "selective": attention, "layer": products + attention}[remat]
        return 3 * (products + attention) + again

    head = 3 * 2 * rows * predictions * (width * width + width * config.vocab_size)
    every = [flops(layer) for layer in range(config.num_layers)]
    once = every[:1]  # ModernBERT's first layer is global: of two branches the compiler counts the dearer one

    # Korthikanti's 34 bytes, with the feed-forward part at its own width: 18 of the stream, 4 * 4 inside.
    inside = inner * (6 if gated else 4)
    whole = [
        tokens * (18 * width + inside + 5 * config.num_heads * keys[n]) for n in range(config.num_layers)
    ]
    stored = {"layer": 2 * width, "selective": 2 * (7 * width + inner * (2 if gated else 1))}
    layers = sum(whole) if remat == "none" else config.num_layers * tokens * stored[remat] + max(whole)
    parameters = (_GRADIENT_BYTES + _COPY_BYTES) * num_parameters
    logits = _LOGIT_BYTES * rows * predictions * config.vocab_size
    return Estimate(
        flops=sum(every) + head, flops_bodies_once=sum(once) + head, temporaries=layers + parameters + logits
    )


def visible_keys(config: EncoderConfig, length: int) -> dict[int, int]:
    """Return the keys that most queries of each layer see."""
    keys = dict.fromkeys(range(config.num_layers), length)
    if config.sparse is not None:
        # Three of the window, the first and the last, and the random ones.
        few = (5 + config.sparse.num_random_blocks) * config.sparse.block_size
        keys = dict.fromkeys(keys, min(length, few))
    if config.alternating is not None:
        window = min(length, 2 * config.alternating.local_reach + 1)
        keys = {n: length if n % config.alternating.global_every == 0 else window for n in keys}
    return keys


def estimate_resnet(config: ResNetConfig, *, rows: int, image_size: int, remat: Remat) -> Estimate:
    """Reckon a step of classification in bfloat16.

    A convolution keeps its output and, behind norm and ReLU, the input of the next.
    """
    table = param_table(config)
    convolutions = {
        name.removesuffix("/kernel"): param.shape
        for name, param in flatten(table).items()
        if name.endswith("/kernel") and not name.startswith("classifier")
    }
    flops, kept, widest = 0.0, 0.0, 0.0
    for name, shape in convolutions.items():
        number = shape[0] if len(shape) == 5 else 1
        *_, height, width, inside, outside = shape
        pixels = rows * _side(config, name, image_size) ** 2
        forward = number * 2 * pixels * height * width * inside * outside
        # Nobody asks for the gradient of the pixels.
        flops += forward * (2 if name == "stem" else 3) + (forward if remat == "layer" else 0)
        kept += number * pixels * outside * 4
        widest = max(widest, pixels * outside * 4)
    if remat == "layer":  # the input of each block, and the three convolutions of one
        blocks = sum(
            depth * rows * _stage_side(config, stage, image_size) ** 2 * config.widths[stage] * 2
            for stage, depth in enumerate(config.depths)
        )
        kept = blocks + 3 * widest
    flops += 3 * 2 * rows * config.widths[-1] * config.num_classes
    parameters = (_GRADIENT_BYTES + _COPY_BYTES) * count(table)
    return Estimate(flops=flops, flops_bodies_once=flops, temporaries=kept + parameters)


def _side(config: ResNetConfig, name: str, image_size: int) -> int:
    """Return height and width of what leaves a convolution."""
    if name == "stem":
        return -(-image_size // 2) if config.stem == "large" else image_size
    _, stage, part, conv = name.split("/")
    strided = "1" if config.block == "bottleneck" else "0"
    is_before = stage != "0" and part == "first" and conv.isdecimal() and conv < strided
    return _stage_side(config, int(stage) - is_before, image_size)


def _stage_side(config: ResNetConfig, stage: int, image_size: int) -> int:
    stem = 4 if config.stem == "large" else 1
    return -(-image_size // (stem * 2**stage))
