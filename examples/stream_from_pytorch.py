"""The stream from PyTorch: text or images, workers, and a resume that needs one integer.

    python examples/stream_from_pytorch.py MANIFEST --steps 100 --workers 3
    python examples/stream_from_pytorch.py MANIFEST --steps 100 --state state.json     # the same line goes on
    torchrun --nproc-per-node 2 examples/stream_from_pytorch.py MANIFEST              # each has half the rows
    python examples/stream_from_pytorch.py MANIFEST --evaluate validation              # every example once

MANIFEST is the manifest.json of `outlast prepare` (text), `outlast shards import` or `outlast shards images`.
A real program saves the step beside its weights. Nothing else is to be saved: order, crops and mirroring are
functions of the seed and the step.
"""

import argparse
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from outlast.pytorch import ImageDataset, StreamDataset


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("manifest")
    parser.add_argument("--images", type=int, metavar="SIZE", help="the data set holds images")
    parser.add_argument("--batch", type=int, default=32, help="rows of a batch, over all processes")
    parser.add_argument("--steps", type=int, default=10, help="to run this time")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--state", type=Path, help="keeps the step between runs")
    parser.add_argument("--evaluate", metavar="SPLIT", help="read a split once and count its examples")
    arguments = parser.parse_args()
    if "RANK" in os.environ:
        torch.distributed.init_process_group("gloo")

    options: dict[str, Any] = {"global_batch_size": arguments.batch, "seed": 1}
    options |= {"image_size": arguments.images} if arguments.images else {"sequence_length": 64}
    make = ImageDataset if arguments.images else StreamDataset
    if arguments.evaluate:
        held_out = make(arguments.manifest, split=arguments.evaluate, evaluation=True, **options)
        batches = DataLoader(held_out, batch_size=None, num_workers=arguments.workers)
        print(int(sum(batch["example_weights"].sum() for batch in batches)), "examples")
        return

    start = json.loads(arguments.state.read_text())["step"] if has_state(arguments.state) else 0
    dataset = make(arguments.manifest, start_step=start, stop_step=start + arguments.steps, **options)
    for batch in DataLoader(dataset, batch_size=None, num_workers=arguments.workers):
        if arguments.images:
            batch["images"] = normalise(batch["images"])
        shapes = (f"{name} {tuple(tensor.shape)}" for name, tensor in batch.items())
        print(batch.step, *shapes, digest(batch))
        if arguments.state:
            save_step(arguments.state, batch.step + 1)


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
