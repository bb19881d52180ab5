"""The ``[stream]`` table: which examples a run sees, and how they are read."""

from typing import Literal

from pydantic import NonNegativeInt, PositiveInt

from outlast.config import table


@table
class StreamConfig:
    # Identity: changing one of these makes it another run.
    manifest: str | None = None
    """URL of the manifest.json that `outlast prepare` wrote."""
    packing: Literal["blocks", "pairs"] = "blocks"
    """What an example is: a run of tokens, or two segments of text for next-sentence prediction, from the
    tables of the data set for this sequence length."""
    sequence_length: PositiveInt = 128
    """Tokens in an example, special tokens included."""
    global_batch_size: PositiveInt = 32
    """Examples in one step, over all devices."""
    special_tokens: bool = True
    """Frame every example as [CLS] tokens [SEP]; without, an example is sequence_length tokens of text."""
    num_lanes: PositiveInt | None = None
    """Independent streams the batch is woven from; derived from the manifest and the batch."""
    window_examples: PositiveInt | None = None
    """Examples that are shuffled together; derived from the manifest."""

    # Operation: free to change between attempts.
    prefetch_batches: PositiveInt = 4
    """Batches read ahead."""
    reader_threads: PositiveInt = 2
    verify: bool = True
    """Check the sha256 of every shard when it is first opened."""
    cache_dir: str | None = None
    """Folder for shards of a remote data set; default: the user's cache folder."""
    cache_bytes: NonNegativeInt = 32 * 2**30
    """The most that the cache folder may hold, in bytes."""
