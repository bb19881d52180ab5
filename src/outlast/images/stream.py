"""Batches of images by step: ``ImageStream`` turns a manifest, a seed and a step into arrays.

In: the URL of a manifest of images. Out: dicts of numpy arrays, ``images`` uint8 and ``labels`` int32. All
that holds for text holds here: ``batch(step)`` is a pure function, crops and mirroring included, so a resume
starts anywhere and nothing about the data needs saving.
"""

import itertools
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

from outlast.config import build
from outlast.errors import ConfigError
from outlast.images.config import ImageStreamConfig
from outlast.images.crops import draw_numbers, training_crop
from outlast.images.index import ImageIndex, open_index
from outlast.images.manifest import ImageShardEntry, read_image_manifest
from outlast.images.replacement import following_in_window
from outlast.images.rows import CropOf, ImageRows, Places
from outlast.prng import derive_key
from outlast.shards.read import map_file
from outlast.stream.blocks import Batch
from outlast.stream.examples import ExampleStream, make_order
from outlast.stream.files import OpenFiles
from outlast.stream.memory import Empty
from outlast.stream.order import ORDER_VERSION
from outlast.stream.sources import manifest_url


class ImageStream(ExampleStream):
    """The examples of one split of a data set of images.

    Args:
        config: the ``[stream]`` table, whose packing is ``images``; ``manifest`` must be set.
        seed: of the run.
        split: of the manifest.
        process_index, process_count: this process decodes its own share of every batch's rows.

    Raises:
        ConfigError: no manifest named, another packing, or a batch that does not divide.
        ShardError: a manifest, an index or a tar that is missing or damaged.
    """

    def __init__(
        self,
        config: ImageStreamConfig,
        *,
        seed: int,
        split: str = "train",
        process_index: int = 0,
        process_count: int = 1,
    ) -> None:
        self.manifest, self.store = read_image_manifest(manifest_url(config))
        if config.packing != "images":
            raise ConfigError(
                f"The data set holds images, which cannot be packed as {config.packing}.",
                where="stream.packing",
                remedy='set stream.packing to "images"',
            )
        entries = self.manifest.shards(split)
        tars = OpenFiles[memoryview](self.store, entries, config, _open_tar)
        indexes = OpenFiles[ImageIndex](
            self.store, [entry.index for entry in entries], config, partial(_open_index, entries)
        )
        self.rows = ImageRows(config.images, entries, tars.get, indexes.get)
        num_bytes = sum(entry.size_bytes for entry in entries)
        self._key = derive_key(seed, "crops")
        self._order = make_order(config, self.rows.examples_of(entries), num_bytes, seed)
        super().__init__(
            config,
            split=split,
            shards=tars,
            packing=self.rows,
            order=self._order,
            process_index=process_index,
            process_count=process_count,
        )

    @property
    def identity(self) -> dict[str, Any]:
        """What the order depends on: a resume that would change any of it is refused."""
        return {
            "manifest": self.manifest.fingerprint,
            "split": self.split,
            **self.rows.identity,
            "global_batch_size": self.config.global_batch_size,
            "num_lanes": self._order.num_lanes,
            "window_examples": self._order.window_examples,
            "order_version": ORDER_VERSION,
        }

    def _gather_steps(self, step: int, num_steps: int, empty: Empty) -> Batch:
        size = self.process_batch_size
        shards, records = self._order.rows(step, *self.own_rows, num_steps)
        self._fetch_together(shards)
        numbers = draw_numbers(self._key, step, num_steps, self.first_row, size)

        def places_of(row: int) -> Places:
            ahead, own_row = divmod(row, size)
            return itertools.chain(
                [(int(shards[row]), int(records[row]))],
                following_in_window(self._order, step + ahead, self.first_row + own_row),
            )

        def crop_of(row: int) -> CropOf:
            return partial(training_crop, config=self.rows.config, numbers=numbers[row].tolist())

        return self.rows.gather_crops(places_of, crop_of, num_steps * size, empty)


def open_images(
    manifest: str,
    *,
    global_batch_size: int,
    seed: int = 0,
    start_step: int = 0,
    image_size: int = 224,
    crop: Literal["random_resized", "padded", "center"] = "random_resized",
    flip: bool = True,
    split: str = "train",
    process_index: int = 0,
    process_count: int = 1,
) -> Iterator[Batch]:
    """Yield the batches of a data set of images from a step on, without end.

    The state of the stream is the number of the step: to resume, pass it as ``start_step``.

    Args:
        manifest: URL of the ``manifest.json`` that ``outlast shards import`` or ``images`` wrote.
        global_batch_size: examples in a step, over all processes.
        seed: of order, crops and mirroring.
        start_step: the first step to yield.
        image_size: height and width of an example.
        crop: a random region, resized; a part of the picture with a border of 4 pixels, for small images; or
            the middle.
        flip: mirror half of the examples.
        split: ``train``, ``validation`` or ``test``.
        process_index, process_count: this process's share of every batch's rows.

    Returns:
        an iterator of dicts: ``images`` uint8, (process_batch_size, image_size, image_size, 3), RGB, and
            ``labels`` int32, (process_batch_size,). A batch that is kept stays as it is; the memory of one
            that is dropped is used again.

    Raises:
        ConfigError: an argument out of its range, or a batch that does not divide.
        ShardError: a manifest, an index or a tar that is missing or damaged; too many images that do not
            decode.
    """
    fields = {
        "manifest": manifest,
        "packing": "images",
        "global_batch_size": global_batch_size,
        "images": {"image_size": image_size, "crop": crop, "flip": flip},
    }
    config = build(ImageStreamConfig, fields, where="open_images", holder="call")
    stream = ImageStream(
        config, seed=seed, split=split, process_index=process_index, process_count=process_count
    )
    return stream.batches_from(start_step)


def _open_tar(_: int, path: Path) -> memoryview:
    return memoryview(map_file(path))


def _open_index(entries: tuple[ImageShardEntry, ...], shard: int, path: Path) -> ImageIndex:
    return open_index(path, entries[shard])
