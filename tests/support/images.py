"""Pictures and tars of them, made here: small, different from each other, the same on every machine."""

import io
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from outlast.images.import_tars import import_tars
from outlast.images.records import FieldRules
from outlast.prng import uniform_bits


def picture(number: int, width: int = 40, height: int = 30) -> NDArray[np.uint8]:
    """Return a picture: a grid of random colours, enlarged, so that a JPEG of it is a likeness."""
    coarse = (uniform_bits(4 * 5 * 3, number) & np.uint64(255)).astype(np.uint8).reshape(4, 5, 3)
    return np.ascontiguousarray(coarse.repeat(-(-height // 4), 0).repeat(-(-width // 5), 1)[:height, :width])


def jpeg(number: int, width: int = 40, height: int = 30, **options: object) -> bytes:
    return encoded(picture(number, width, height), "JPEG", quality=90, **options)


def encoded(pixels: NDArray[np.uint8], kind: str, **options: object) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()


def write_tar(path: Path, files: Iterable[tuple[str, bytes]]) -> Path:
    """Write a tar of files by name, as WebDataset's writer does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in files:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def write_images(folder: Path, shard_examples: Sequence[int], *, broken: Iterable[int] = ()) -> str:
    """Make a data set of numbered pictures and return the URL of its manifest.

    Picture n has the label n; of the validation split, which is the last shard, as well. The broken ones are
    JPEGs cut short.
    """
    number, broken = 0, set(broken)
    tars: list[str] = []
    for shard, count in enumerate(shard_examples):
        files: list[tuple[str, bytes]] = []
        for _ in range(count):
            content = jpeg(number, width=40 + number % 7, height=30 + number % 5)
            content = content[:-30] if number in broken else content
            files += [(f"{number:06d}.jpg", content), (f"{number:06d}.cls", str(number).encode())]
            number += 1
        tars.append(str(write_tar(folder / f"shard-{shard:06d}.tar", files)))
    splits = {"train": tars[:-1], "validation": tars[-1:]}
    return import_tars(splits, str(folder), FieldRules(), num_processes=1)
