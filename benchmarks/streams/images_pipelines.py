"""The pipelines that the image benchmark compares: this package's stream and its peers.

In: the folder of the set (``images_set``), a batch size, the workers. Out: batches without end: uint8 images
of (batch, 224, 224, 3) after a random-resized crop and a flip, and labels. Each peer is set up as its
documentation advises.
"""

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from images_set import contents_of, files_of, records_of, repacked, tars_of

from outlast.images.config import ImagesConfig, ImageStreamConfig
from outlast.images.crops import draw_numbers, training_crop
from outlast.images.decode import Box, open_picture, resize_into
from outlast.images.stream import ImageStream

SIZE = 224
_SHUFFLED = 1000
_CONFIG = ImagesConfig()

Batches = Iterator[Any]


def outlast(folder: Path, batch: int, workers: int) -> Batches:
    """This package's stream: tars, order, crops, decoding in threads, checked digests."""
    return _outlast(str(folder / "tars" / "manifest.json"), batch, workers)


def outlast_pixels(folder: Path, batch: int, workers: int) -> Batches:
    """The same, the set repacked as pixels, its shorter side 256: `outlast shards repack`."""
    return _outlast(repacked(folder), batch, workers)


def _outlast(manifest: str, batch: int, workers: int) -> Batches:
    config = ImageStreamConfig(
        manifest=manifest,
        packing="images",
        global_batch_size=batch,
        images=ImagesConfig(decode_threads=workers),
    )
    return ImageStream(config, seed=0).batches_from(0)


def bare_decode(folder: Path, batch: int, workers: int) -> Batches:
    """The limit: images in memory, decoded at the scale that a crop needs, in threads; nothing else."""
    return _in_threads(folder, batch, workers, resize=False)


def bare_crop(folder: Path, batch: int, workers: int) -> Batches:
    """The limit with the crop resized as well."""
    return _in_threads(folder, batch, workers, resize=True)


def _in_threads(folder: Path, batch: int, workers: int, *, resize: bool) -> Batches:
    contents = contents_of(folder)
    numbers = itertools.cycle(draw_numbers(0, 0, 16, 0, 256).tolist())
    part = 16

    def work(images: list[bytes], rows: list[list[int]]) -> int:
        target = np.empty((SIZE, SIZE, 3), np.uint8)
        for content, row in zip(images, rows, strict=True):
            picture = open_picture(memoryview(content), max_pixels=2**26)
            box: Box = training_crop(picture.width, picture.height, _CONFIG, row).box
            region = picture.region(box, SIZE, SIZE)
            if resize:
                resize_into(region, target)
        return len(images)

    with ThreadPoolExecutor(workers) as pool:
        ahead: deque[Future[int]] = deque()
        while True:
            done = 0
            while done < batch:
                while len(ahead) < 2 * workers + 2:
                    images = list(itertools.islice(contents, part))
                    ahead.append(pool.submit(work, images, list(itertools.islice(numbers, part))))
                done += ahead.popleft().result()
            yield None


def webdataset_pillow(folder: Path, batch: int, workers: int) -> Batches:
    """WebDataset's usual form: Pillow and torchvision's transforms in DataLoader workers."""
    from torchvision import transforms

    crop = transforms.Compose([transforms.RandomResizedCrop(SIZE), transforms.RandomHorizontalFlip()])
    return _webdataset(folder, batch, workers, "pil", lambda image: np.asarray(crop(image)))


def webdataset_opencv(folder: Path, batch: int, workers: int) -> Batches:
    """WebDataset with OpenCV instead."""
    return _webdataset(folder, batch, workers, None, opencv_crop)


def opencv_crop(content: bytes) -> Any:
    """Return a random crop of a JPEG, decoded and resized by OpenCV."""
    import cv2

    cv2.setNumThreads(0)
    image: Any = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR_RGB)
    row = np.random.default_rng().integers(0, 2**64, 23, np.uint64).tolist()
    crop = training_crop(image.shape[1], image.shape[0], _CONFIG, row)
    left, top, width, height = crop.box
    image = cv2.resize(image[top : top + height, left : left + width], (SIZE, SIZE))
    return cv2.flip(image, 1) if crop.is_mirrored else image


def _webdataset(
    folder: Path, batch: int, workers: int, decoder: str | None, crop: Callable[[Any], Any]
) -> Batches:
    import torch
    import webdataset

    dataset = webdataset.WebDataset(tars_of(folder), shardshuffle=100, empty_check=False).repeat()
    dataset = dataset.shuffle(_SHUFFLED)
    dataset = dataset.decode(decoder) if decoder else dataset
    dataset = dataset.to_tuple("jpg", "cls").map_tuple(crop, int).batched(batch, collation_fn=_stack)
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=workers, prefetch_factor=2)
    return iter(loader)


def _stack(examples: list[tuple[Any, int]]) -> tuple[Any, Any]:
    return np.stack([image for image, _ in examples]), np.array([label for _, label in examples])


def torch_loose_files(folder: Path, batch: int, workers: int) -> Batches:
    """Loose files by torchvision's ImageFolder, Pillow, in DataLoader workers."""
    import torch
    from torchvision import datasets, transforms

    crop = transforms.Compose(
        [transforms.RandomResizedCrop(SIZE), transforms.RandomHorizontalFlip(), transforms.PILToTensor()]
    )
    dataset = datasets.ImageFolder(str(folder / "loose"), crop)
    loader = torch.utils.data.DataLoader(
        dataset, batch, shuffle=True, drop_last=True, num_workers=workers, persistent_workers=workers > 0
    )
    while True:
        yield from loader


def tf_data(folder: Path, batch: int, workers: int) -> Batches:
    """tf.data over TFRecord files: only the crop is decoded, then resized; as many threads as workers."""
    import tensorflow as tf

    schema = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}

    def show(record: Any) -> Any:
        example = tf.io.parse_single_example(record, schema)
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            tf.io.extract_jpeg_shape(example["image"]),
            tf.zeros([1, 0, 4]),
            min_object_covered=0.0,
            aspect_ratio_range=(3 / 4, 4 / 3),
            area_range=(0.08, 1.0),
            use_image_if_no_bounding_boxes=True,
        )
        window = tf.stack([begin[0], begin[1], size[0], size[1]])
        image = tf.image.decode_and_crop_jpeg(example["image"], window, channels=3)
        image = tf.image.resize(image, (SIZE, SIZE))
        return tf.cast(tf.image.random_flip_left_right(image), tf.uint8), example["label"]

    dataset = tf.data.TFRecordDataset(records_of(folder), num_parallel_reads=workers).repeat()
    dataset = dataset.shuffle(_SHUFFLED).map(show, num_parallel_calls=tf.data.AUTOTUNE, deterministic=False)
    dataset = dataset.batch(batch, drop_remainder=True).prefetch(2)
    options = tf.data.Options()
    options.threading.private_threadpool_size = workers
    return iter(dataset.with_options(options).as_numpy_iterator())


def grain_opencv(folder: Path, batch: int, workers: int) -> Batches:
    """Grain over loose files with OpenCV in threads, shuffled over the whole set."""
    import grain

    files = files_of(folder)

    def show(example: tuple[str, int]) -> tuple[Any, int]:
        return opencv_crop(Path(example[0]).read_bytes()), example[1]

    dataset = grain.MapDataset.source(files).shuffle(seed=0).repeat().map(show)
    options = grain.ReadOptions(num_threads=2 * workers, prefetch_buffer_size=500)
    return iter(dataset.to_iter_dataset(options).batch(batch, batch_fn=_stack))


@dataclass(frozen=True)
class Pipeline:
    batches: Callable[[Path, int, int], Batches]
    module: str | None = None


PIPELINES = {
    "bare decode": Pipeline(bare_decode),
    "bare decode, crop, resize": Pipeline(bare_crop),
    "outlast": Pipeline(outlast),
    "outlast, pixels of 256": Pipeline(outlast_pixels),
    "tf.data": Pipeline(tf_data, "tensorflow"),
    "Grain, OpenCV": Pipeline(grain_opencv, "grain"),
    "WebDataset, OpenCV": Pipeline(webdataset_opencv, "webdataset"),
    "WebDataset, Pillow": Pipeline(webdataset_pillow, "webdataset"),
    "loose files, torchvision": Pipeline(torch_loose_files, "torchvision"),
}
