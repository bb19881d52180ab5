"""Images packing: an example is a crop of an image of a tar, decoded by threads.

In: the tars of a split, their indexes, places and crops. Out: batches: ``images`` uint8 of shape (rows,
image_size, image_size, 3), RGB, and ``labels`` int32 of shape (rows,). An image whose bytes do not decode is
replaced or, in evaluation, counted out; it never shifts another row.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outlast.config import to_dict
from outlast.corpus.tar import BLOCK, member_name
from outlast.errors import ShardError
from outlast.images.config import ImagesConfig
from outlast.images.crops import Crop, evaluation_crop
from outlast.images.decode import Pixels, Undecodable, mirror, open_picture, resize_into
from outlast.images.index import ImageIndex
from outlast.images.manifest import ImageShardEntry
from outlast.images.replacement import UndecodableImages
from outlast.shards.opened import OpenedFile
from outlast.stream.blocks import Batch, Packing
from outlast.stream.memory import Empty

CropOf = Callable[[int, int], Crop]
"""The crop of a row, from the width and height of its picture."""
Places = Iterator[tuple[int, int]]

_OPERATION = ("max_undecodable", "decode_threads")
_TASKS_PER_THREAD = 4
"""Small enough that no thread is left with a long rest, large enough that handing out costs nothing."""


class ImageRows(Packing):
    """How images become batches.

    Args:
        config: the ``[stream.images]`` table.
        entries: of the split's shards.
        tar_of: a tar by the index of its shard.
        index_of: where its images lie.
    """

    def __init__(
        self,
        config: ImagesConfig,
        entries: Sequence[ImageShardEntry],
        tar_of: Callable[[int], OpenedFile],
        index_of: Callable[[int], ImageIndex],
    ) -> None:
        self.config = config
        self.undecodable = UndecodableImages(sum(self.examples_of(entries)), config.max_undecodable)
        self._entries = entries
        self._tar_of, self._index_of = tar_of, index_of
        self._num_threads = config.decode_threads or len(os.sched_getaffinity(0))
        self._pool = ThreadPoolExecutor(self._num_threads, "outlast-decoder")

    @property
    def identity(self) -> dict[str, Any]:
        """What examples depend on, beside the shards."""
        fields = to_dict(self.config)
        return {"images": {name: value for name, value in fields.items() if name not in _OPERATION}}

    def examples_of(self, shards: Sequence[ImageShardEntry]) -> tuple[int, ...]:
        """Return how many examples each shard holds."""
        return tuple(shard.num_examples for shard in shards)

    def open(self, shard: int) -> None:
        """Open what the examples of a shard need beside its tar: the index."""
        self._index_of(shard)

    def padding(self, num_rows: int) -> Batch:
        """Return padding rows: black, label 0, weight 0, so that they do not count."""
        batch = self._arrays(num_rows, np.empty)
        for array in batch.values():
            array[:] = 0
        return {**batch, "example_weights": np.zeros(num_rows, np.float32)}

    def gather(
        self,
        shards: NDArray[np.int64],
        records: NDArray[np.int64],
        shard_of: Callable[[int], Any],
        empty: Empty = np.empty,
        /,
    ) -> Batch:
        """Return examples by shard and record as evaluation sees them: the middle of each picture.

        ``example_weights`` float32 is 0 for an image that does not decode, whose pixels are black.
        """
        crop = partial(evaluation_crop, config=self.config)
        decoded = np.ones(len(shards), np.float32)

        def fill(row: int, image: Pixels) -> int:
            place = (int(shards[row]), int(records[row]))
            label = self._try(place, crop, image, is_replaced=False)
            if label is None:
                image[...] = 0
                decoded[row] = 0
                return 0
            return label

        return {**self._fill(len(shards), fill, empty), "example_weights": decoded}

    def gather_crops(
        self,
        places_of: Callable[[int], Places],
        crop_of: Callable[[int], CropOf],
        num_rows: int,
        empty: Empty,
    ) -> Batch:
        """Return training examples.

        Args:
            places_of: shard and record of a row, then of what may replace it, in order.
            crop_of: what a row shows of its picture.
            num_rows: of the batch.
            empty: where the memory of the result comes from.

        Raises:
            ShardError: too many images do not decode, or none of a window.
        """

        def fill(row: int, image: Pixels) -> int:
            crop = crop_of(row)
            for place in places_of(row):
                label = self._try(place, crop, image, is_replaced=True)
                if label is not None:
                    return label
            raise ShardError(
                "None of the images of a window of the order can be decoded.",
                where=self._entries[next(places_of(row))[0]].name,
                remedy="repair the data; the warnings above name the images",
            )

        return self._fill(num_rows, fill, empty)

    def _fill(self, num_rows: int, fill: Callable[[int, Pixels], int], empty: Empty) -> Batch:
        batch = self._arrays(num_rows, empty)
        images, labels = batch["images"], batch["labels"]

        def work(first: int, stop: int) -> None:
            for row in range(first, stop):
                labels[row] = fill(row, images[row])

        length = max(1, num_rows // (self._num_threads * _TASKS_PER_THREAD))
        starts = range(0, num_rows, length)
        stops = [min(start + length, num_rows) for start in starts]
        if self._num_threads == 1:
            work(0, num_rows)
        else:
            for _ in self._pool.map(work, starts, stops):
                pass
        return batch

    def _try(
        self, place: tuple[int, int], crop_of: CropOf, image: Pixels, *, is_replaced: bool
    ) -> int | None:
        """Fill an example with an image and return its label; None where the image does not decode."""
        if place in self.undecodable:
            return None
        shard, record = place
        try:
            show_picture(self.content(place), crop_of, image, self.config.max_pixels)
        except Undecodable as error:
            tar, offset = self._tar_of(shard), int(self._index_of(shard).offset[record])
            name = member_name(tar.read(offset - BLOCK, BLOCK))
            where = f"{self._entries[shard].name}, byte {offset}, {name!r:.200}"
            self.undecodable.add(place, where, str(error), is_replaced=is_replaced)
            return None
        return int(self._index_of(shard).label[record])

    def content(self, place: tuple[int, int]) -> memoryview:
        """Return the bytes of an image, by its shard and record."""
        shard, record = place
        tar, index = self._tar_of(shard), self._index_of(shard)
        offset = int(index.offset[record])
        return memoryview(tar.read(offset, int(index.size_bytes[record])))

    def _arrays(self, num_rows: int, empty: Empty) -> Batch:
        size = self.config.image_size
        return {"images": empty((num_rows, size, size, 3), np.uint8), "labels": empty((num_rows,), np.int32)}


def show_picture(content: memoryview, crop_of: CropOf, image: Pixels, max_pixels: int) -> None:
    """Fill an example with the crop of a picture. Raises Undecodable."""
    picture = open_picture(content, max_pixels=max_pixels)
    crop = crop_of(picture.width, picture.height)
    height, width = image.shape[:2]
    if crop.is_padded:
        image[...] = 0
        if crop.box.width and crop.box.height:
            region = picture.region(crop.box, crop.box.width, crop.box.height)
            bottom, right = crop.top + crop.box.height, crop.left + crop.box.width
            image[crop.top : bottom, crop.left : right] = region
    else:
        resize_into(picture.region(crop.box, width, height), image)
    if crop.is_mirrored:
        mirror(image)
