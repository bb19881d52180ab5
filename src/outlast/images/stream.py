"""Batches of images by step: ``ImageStream`` turns a manifest, a seed and a step into arrays.

In: the URL of a manifest of images. Out: dicts of numpy arrays, ``images`` uint8 and ``labels`` int32. All
that holds for text holds here: ``batch(step)`` is a pure function, crops and mirroring included, so a resume
starts anywhere and nothing about the data needs saving.
"""

import itertools
from collections.abc import Iterator
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import NonNegativeInt, PositiveInt

from outlast.config import build, checked, nearest
from outlast.errors import ConfigError
from outlast.images.config import ImagesConfig, ImageStreamConfig
from outlast.images.crops import draw_numbers, training_crop
from outlast.images.decode import need_decoders
from outlast.images.index import ImageIndex, open_index
from outlast.images.manifest import ImageShardEntry, read_image_manifest
from outlast.images.replacement import following_in_window
from outlast.images.rows import CropOf, ImageRows, Places
from outlast.prng import derive_key
from outlast.shards.opened import OpenedFile
from outlast.storage import place_of
from outlast.stream.blocks import Batch
from outlast.stream.examples import DataSet, ExampleStream, make_order
from outlast.stream.files import OpenFiles
from outlast.stream.memory import Empty
from outlast.stream.order import ORDER_VERSION
from outlast.stream.sources import in_manifest_order, manifest_url


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
        need_decoders()
        self.manifest, self.store = read_image_manifest(manifest_url(config))
        if config.packing != "images":
            raise ConfigError(
                f"The data set holds images, which cannot be packed as {config.packing}.",
                where="stream.packing",
                remedy='set stream.packing to "images"',
            )
        entries = self.manifest.shards(split)
        tars = OpenFiles[OpenedFile](self.store, entries, config, lambda _, tar: tar)
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

    @property
    def data_sets(self) -> tuple[DataSet, ...]:
        """What is read."""
        return (DataSet(None, manifest_url(self.config), self.store, self.manifest.splits),)

    def content(self, index: int) -> memoryview:
        """Return the bytes of the image of an example that ``examples`` has fetched, by its number."""
        (shard,), (record,) = self._places(np.array([index]))
        return self.rows.content((int(shard), int(record)))

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


@checked
def open_images(
    manifest: str | Path,
    *,
    global_batch_size: PositiveInt,
    seed: NonNegativeInt = 0,
    start_step: NonNegativeInt = 0,
    split: str = "train",
    evaluation: bool = False,
    process_index: NonNegativeInt = 0,
    process_count: PositiveInt = 1,
    **stream: Any,
) -> Iterator[Batch]:
    """Yield the batches of a data set of images: without end, or in an evaluation until all are seen.

    The state of the stream is the number of the step: to resume, pass it as ``start_step``. The iterator is
    for one process alone; for the workers of a PyTorch DataLoader there is ``outlast.pytorch``.

    Args:
        manifest: path or URL of the ``manifest.json`` that ``outlast shards import`` or ``images`` wrote.
        global_batch_size: examples in a step, over all processes.
        seed: of order, crops and mirroring.
        start_step: the first step to yield.
        split: ``train``, ``validation`` or ``test``.
        evaluation: yield the middle of every picture of the split exactly once, in the order of the data set,
            and end. The rows that fill up the last batch are black.
        process_index, process_count: this process's share of every batch's rows.
        **stream: further keys of a recipe's tables ``[stream.images]`` and ``[stream]``: ``image_size=192``,
            ``crop="padded"``, ``flip=False``, ``decode_threads=4``, ``cache_dir=...``.

    Returns:
        an iterator of dicts: ``images`` uint8, (process_batch_size, image_size, image_size, 3), RGB, and
            ``labels`` int32, (process_batch_size,). An evaluation has ``example_weights`` float32 besides, 1
            and 0 for what fills up or does not decode, and ``example_index`` int32, the example's number in
            the split, both (process_batch_size,). A batch that is kept stays as it is; the memory of one that
            is dropped is used again.

    Raises:
        ConfigError: an argument that is not known or out of its range, a batch that does not divide, or one
            of several workers of a DataLoader.
        ShardError: a manifest, an index or a tar that is missing or damaged; too many images that do not
            decode.
    """
    opened = make_image_stream(
        manifest,
        global_batch_size=global_batch_size,
        seed=seed,
        split=split,
        evaluation=evaluation,
        process_index=process_index,
        process_count=process_count,
        **stream,
    )
    return opened.read(start_step, evaluation=evaluation)


@checked
def make_image_stream(
    manifest: str | Path,
    *,
    seed: NonNegativeInt = 0,
    split: str = "train",
    evaluation: bool = False,
    process_index: NonNegativeInt = 0,
    process_count: PositiveInt = 1,
    **stream: Any,
) -> ImageStream:
    """Return the stream that ``open_images`` reads. Arguments and errors as there."""
    of_images = {field.name for field in fields(ImagesConfig)}
    of_streams = {field.name for field in fields(ImageStreamConfig)} - {"images", "manifest", "packing"}
    tables: dict[str, Any] = {"manifest": place_of(manifest), "packing": "images", "images": {}}
    for name, value in stream.items():
        if name not in of_images | of_streams:
            known = nearest(name, sorted(of_images | of_streams))
            raise ConfigError(f"{name}: unknown argument{known}", where="open_images")
        (tables["images"] if name in of_images else tables)[name] = value
    config = build(ImageStreamConfig, tables, where="open_images", holder="call")
    return ImageStream(
        in_manifest_order(config) if evaluation else config,
        seed=seed,
        split=split,
        process_index=process_index,
        process_count=process_count,
    )


def _open_index(entries: tuple[ImageShardEntry, ...], shard: int, file: OpenedFile) -> ImageIndex:
    return open_index(file, entries[shard])
