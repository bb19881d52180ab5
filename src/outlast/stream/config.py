"""The ``[stream]`` table: which examples a run sees, and how they are read."""

from typing import Literal, Self

import pydantic
from pydantic import NonNegativeInt, PositiveInt

from outlast.config import Location, Operation, table


@table
class SourceConfig:
    """One of ``[[stream.sources]]``: a data set of a mixture, with its weight or with its tokens."""

    manifest: Location[str]
    """URL of the manifest.json that `outlast prepare` wrote."""
    name: str | None = pydantic.Field(default=None, min_length=1, max_length=1000)
    """What metrics and evaluations call it. Default: the folder of the manifest."""
    weight: float | None = pydantic.Field(default=None, gt=0, allow_inf_nan=False)
    """Its share of the examples, relative to the other weights; taken as the decimal number it is written
    as."""
    tokens: PositiveInt | None = None
    """The tokens that it gives over the whole run: examples times their length."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> "SourceConfig":
        if (self.weight is None) == (self.tokens is None):
            raise ValueError("a source takes either weight or tokens")
        return self

    @property
    def label(self) -> str:
        """What metrics and evaluations call it."""
        folders = self.manifest.replace("\\", "/").split("/")[:-1]
        return self.name or next((folder for folder in reversed(folders) if folder), "data")


@table
class StreamConfig:
    manifest: Location[str | None] = None
    """URL of the manifest.json that `outlast prepare` or `outlast shards` wrote. What it holds is identity,
    where it lies is not."""
    sources: tuple[SourceConfig, ...] = ()
    """Several data sets in place of `manifest`: a mixture."""
    packing: Literal["blocks", "pairs", "images"] = "blocks"
    """What an example is: a run of tokens; two segments of text for next-sentence prediction, from the
    tables of the data set for this sequence length; or an image, as `stream.images` says."""
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
    prefetch_batches: Operation[PositiveInt] = 4
    """Batches read ahead."""
    reader_threads: Operation[PositiveInt] = 2
    """Threads that gather batches."""
    verify: Operation[bool] = True
    """Check the sha256 of every shard when it is first opened."""
    cache_dir: Location[Operation[str | None]] = None
    """Folder for shards of a remote data set; default: the user's cache folder."""
    cache_bytes: Operation[NonNegativeInt] = 32 * 2**30
    """The most that the cache folder may hold, in bytes."""

    @property
    def data(self) -> Literal["text", "images"]:
        """What the examples are made of."""
        return "images" if self.packing == "images" else "text"

    @property
    def example_tokens(self) -> int | None:
        """Tokens in an example; None where an example is no sequence."""
        return self.sequence_length if self.data == "text" else None

    @pydantic.model_validator(mode="after")
    def _check_sources(self) -> Self:
        if self.sources and self.manifest is not None:
            raise ValueError("manifest names one data set, sources several: give one of the two")
        labels = [source.label for source in self.sources]
        for label in labels:
            if labels.count(label) > 1:
                raise ValueError(f"{labels.count(label)} sources are called {label!r}; give each a name")
        return self
