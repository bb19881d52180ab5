"""The set of the image benchmark: JPEGs of 500 x 375 pixels cut from real photographs.

In: photographs (of the test data: larger ones of awkward/images). Out: a folder with the same images as loose
files by class, as tars with a manifest of this package, and as TFRecord files where TensorFlow is installed.
Each image is a random part of a photograph, from half of its width to all of it, resized and saved with
quality 97, so that it has about the bytes that ImageNet's have at this size (mean 110 kB).
"""

import io
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from outlast.images.pack import PackConfig, pack_images
from outlast.images.pixels import RawPixels
from outlast.images.repack import repack_images

PHOTOGRAPHS = (
    "exif-orientation-examples__Landscape_3.jpg",
    "exif-orientation-examples__Landscape_8.jpg",
    "exif-orientation-examples__Portrait_2.jpg",
    "exif-orientation-examples__Portrait_8.jpg",
    "jpeg-decoder__d22db5be7594c17a18a047ca9264ea0a.jpg",
    "Pillow__junk_jpeg_header.jpg",
    "jpeg-decoder__mjpeg.jpg",
    "Pillow__sugarshack_no_data.mpo",
)
WIDTH, HEIGHT, QUALITY = 500, 375, 97
NUM_CLASSES = 8
NUM_SHARDS = 8


def make_set(folder: Path, test_data: Path, num_images: int) -> None:
    """Make loose files and tars. The same images on every machine with the same Pillow."""
    paths = [test_data / "awkward" / "images" / name for name in PHOTOGRAPHS]
    with ProcessPoolExecutor() as pool:
        for number, content in enumerate(pool.map(partial(cut, paths), range(num_images), chunksize=32)):
            path = folder / "loose" / f"class{number % NUM_CLASSES}" / f"{number:06d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    config = PackConfig(most_images=-(-num_images // NUM_SHARDS))
    pack_images({"train": str(folder / "loose")}, str(folder / "tars"), config)


def cut(paths: list[Path], number: int) -> bytes:
    """Return the JPEG of a random part of a photograph."""
    rng = np.random.default_rng(number)
    with Image.open(paths[number % len(paths)]) as photograph:
        image = photograph.convert("RGB")
    width = min(int(rng.uniform(0.5, 1) * image.width), image.height * WIDTH // HEIGHT)
    height = width * HEIGHT // WIDTH
    left, top = int(rng.integers(image.width - width + 1)), int(rng.integers(image.height - height + 1))
    part = image.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS, (left, top, left + width, top + height))
    buffer = io.BytesIO()
    part.save(buffer, "JPEG", quality=QUALITY)
    return buffer.getvalue()


def files_of(folder: Path) -> list[tuple[str, int]]:
    """Return path and label of each loose file."""
    files = sorted((folder / "loose").rglob("*.jpg"))
    return [(str(path), int(path.parent.name.removeprefix("class"))) for path in files]


def tars_of(folder: Path) -> list[str]:
    return [str(path) for path in sorted((folder / "tars").glob("*.tar"))]


def records_of(folder: Path) -> list[str]:
    """Return TFRecord files of the set, which are made when they are first asked for."""
    import tensorflow as tf

    paths = [folder / f"records-{shard}.tfrecord" for shard in range(NUM_SHARDS)]
    if not paths[-1].exists():
        files = files_of(folder)
        for shard, path in enumerate(paths):
            with tf.io.TFRecordWriter(str(path)) as writer:
                for name, label in files[shard::NUM_SHARDS]:
                    writer.write(_example(tf, Path(name).read_bytes(), label))
    return list(map(str, paths))


def repacked(folder: Path) -> str:
    """Return the manifest of the set stored anew, which is made when it is first asked for."""
    pixels = RawPixels(short_side=256, max_pixels=2**26)
    return repack_images(str(folder / "tars" / "manifest.json"), str(folder / "pixels"), pixels)


def _example(tf: object, image: bytes, label: int) -> bytes:
    train = tf.train  # pyright: ignore[reportAttributeAccessIssue]
    features = {
        "image": train.Feature(bytes_list=train.BytesList(value=[image])),
        "label": train.Feature(int64_list=train.Int64List(value=[label])),
    }
    return train.Example(features=train.Features(feature=features)).SerializeToString()


def contents_of(folder: Path) -> Iterator[bytes]:
    """Yield the images, from memory after the first round."""
    held = [Path(name).read_bytes() for name, _ in files_of(folder)]
    while True:
        yield from held
