"""The stream from PyTorch: text or images, and a resume that needs one integer.

    python examples/stream_from_pytorch.py MANIFEST --steps 100
    python examples/stream_from_pytorch.py MANIFEST --steps 100 --state state.json     # the same line goes on

MANIFEST is the manifest.json of `outlast prepare` (text), `outlast shards import` or `outlast shards images`.
A real program saves the step beside its weights. Nothing else is to be saved: order, crops and mirroring are
functions of the seed and the step. A job of several processes passes its index and its count to the stream.
"""

import argparse
import hashlib
import json
import os
from pathlib import Path

import torch

import outlast


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("manifest")
    parser.add_argument("--images", type=int, metavar="SIZE", help="the data set holds images")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=10, help="to run this time")
    parser.add_argument("--state", type=Path, help="keeps the step between runs")
    arguments = parser.parse_args()

    start = json.loads(arguments.state.read_text())["step"] if has_state(arguments.state) else 0
    options = {"global_batch_size": arguments.batch, "seed": 1, "start_step": start}
    if arguments.images:
        batches = outlast.open_images(arguments.manifest, image_size=arguments.images, **options)
    else:
        batches = outlast.open_stream(arguments.manifest, sequence_length=64, **options)

    for step, batch in zip(range(start, start + arguments.steps), batches, strict=False):
        # No copy: the tensors share the batch's memory, which is used again only when they are gone.
        tensors = {name: torch.from_numpy(array) for name, array in batch.items()}
        if arguments.images:
            tensors["images"] = normalise(tensors["images"])
        print(step, *(f"{name} {tuple(tensor.shape)}" for name, tensor in tensors.items()), digest(tensors))
        if arguments.state:
            save_step(arguments.state, step + 1)


def normalise(images: torch.Tensor) -> torch.Tensor:
    """Return uint8 (batch, height, width, 3) as float32 (batch, 3, height, width), as models want it."""
    mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    return ((images.float() / 255 - mean) / deviation).permute(0, 3, 1, 2)


def digest(tensors: dict[str, torch.Tensor]) -> str:
    content = b"".join(tensor.contiguous().numpy().tobytes() for tensor in tensors.values())
    return hashlib.sha256(content).hexdigest()[:12]


def has_state(path: Path | None) -> bool:
    return path is not None and path.exists()


def save_step(path: Path, step: int) -> None:
    """Write the state whole or not at all: a kill leaves the old one."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps({"step": step}))
    os.replace(temporary, path)


if __name__ == "__main__":
    main()
