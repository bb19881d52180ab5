"""What stands in for an image that cannot be decoded, and how many such images are put up with.

In: a row of a training step. Out: the records behind its own in its window, then those from its beginning on:
the first one that decodes takes its place. That is a function of the order and the data alone, so every
process, every thread and every resume replaces alike, and no other row moves. In evaluation nothing stands
in: the row counts with weight 0.
"""

import threading
from collections.abc import Iterator

from outlast.errors import ShardError
from outlast.logs import log
from outlast.stream.order import Order


def following_in_window(order: Order, step: int, row: int) -> Iterator[tuple[int, int]]:
    """Yield shard and record of each other example of a row's window, from the one behind the row's on."""
    lane, first = divmod(row, order.lane_rows)
    (span,) = order.spans(step * order.lane_rows + first, 1)
    window = order.window(lane, span.epoch, span.window)
    length = len(window.shards)
    for ahead in range(1, length):
        place = (span.offset + ahead) % length
        yield int(window.shards[place]), int(window.records[place])


class UndecodableImages:
    """The images that could not be decoded so far in this process. Threads may share it.

    Args:
        num_examples: of the split.
        most: the largest share of them that may be undecodable; one always may.
    """

    def __init__(self, num_examples: int, most: float) -> None:
        self._found: dict[tuple[int, int], str] = {}
        self._limit = max(1, int(most * num_examples))
        self._num_examples = num_examples
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._found)

    def __contains__(self, place: tuple[int, int]) -> bool:
        return place in self._found

    def add(self, place: tuple[int, int], where: str, reason: str, *, is_replaced: bool) -> None:
        """Count an image and name it in a warning, once.

        Args:
            place: shard and record.
            where: the tar, the byte and the name of the image.
            reason: why it cannot be decoded.
            is_replaced: another takes its place, as in training; in evaluation none does.

        Raises:
            ShardError: there are more of them than the run allows.
        """
        with self._lock:
            if place in self._found:
                return
            self._found[place] = reason
            count = len(self._found)
        fate = "another takes its place" if is_replaced else "it counts with weight 0 and none in its place"
        log.warning("undecodable image %d, %s: %s: %s", count, fate, where, reason)
        if count > self._limit:
            raise ShardError(
                f"{count} of {self._num_examples} images could not be decoded. The last one: {reason}.",
                where=where,
                expected=f"at most {self._limit}: stream.images.max_undecodable",
                remedy="repair the data, or allow more with --set stream.images.max_undecodable=SHARE",
            )
