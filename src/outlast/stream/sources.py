"""The data sets of a stream: opened, checked to fit together, their shards numbered one after the other.

In: the ``[stream]`` table. Out: its sources, one where it names a manifest; their files and packings joined
as if they were one data set. Invariant: a row of a batch does not tell which source it came from, so all
sources have one tokenizer, one kind of shards and the same arrays.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Generic, TypeVar

import numpy as np

from outlast.errors import ConfigError, ShardError, listed
from outlast.shards.document import MADE_BY
from outlast.shards.manifest import Manifest, ShardEntry, read_manifest
from outlast.storage import Store
from outlast.stream.blocks import Blocks
from outlast.stream.config import SourceConfig, StreamConfig
from outlast.stream.pairs import PairRows
from outlast.stream.rows import StaticRows

T = TypeVar("T")
Config = TypeVar("Config", bound=StreamConfig)
Packing = Blocks | PairRows | StaticRows


@dataclass(frozen=True)
class Source:
    """One data set of a stream.

    Attributes:
        label: what metrics and evaluations call it; None where it is the only one.
        entries: the shards of the split that is read.
    """

    label: str | None
    url: str
    manifest: Manifest
    store: Store
    entries: tuple[ShardEntry, ...]


def open_sources(config: StreamConfig, split: str) -> tuple[Source, ...]:
    """Read the manifests of a stream.

    Raises:
        ConfigError: no data named, or sources that do not fit together.
        ShardError: a manifest that is missing or damaged, or without the split.
    """
    if not config.sources:
        return (_open_source(manifest_url(config), None, split),)
    sources = tuple(_open_source(named.manifest, named.label, split) for named in config.sources)
    for index, source in enumerate(sources[1:], start=1):
        _check_fits(sources[0], source)
        for other in sources[:index]:
            if other.manifest.fingerprint == source.manifest.fingerprint:
                raise ConfigError(
                    f"{other.url} and {source.url} are the same data set.",
                    where="stream.sources",
                    remedy="name it once, with the sum of the weights",
                )
    return sources


def manifest_url(config: StreamConfig) -> str:
    """Return the URL of the one manifest. Raises ConfigError where none is named."""
    if config.manifest is None:
        raise ConfigError(
            "The recipe names no data.",
            where="stream.manifest",
            remedy=f"--set stream.manifest=DIR/manifest.json: {MADE_BY}",
        )
    return config.manifest


def config_of(config: StreamConfig, source: SourceConfig) -> StreamConfig:
    """Return the configuration of a stream over one source of a mixture alone."""
    return replace(config, manifest=source.manifest, sources=())


def in_manifest_order(config: Config) -> Config:
    """Return the configuration of an evaluation: lanes belong to training, and a small split may not fill
    them.
    """
    return replace(config, num_lanes=1, window_examples=None)


class Joined(Generic[T]):
    """What several data sets hold by the numbers of their shards, numbered one after the other.

    Args:
        getters: of each data set, from a number of its own.
        counts: shards of each.
    """

    def __init__(self, getters: Sequence[Callable[[int], T]], counts: Sequence[int]) -> None:
        self._getters = getters
        self._first = [0, *accumulate(counts)]

    def get(self, index: int) -> T:
        source = bisect_right(self._first, index) - 1
        return self._getters[source](index - self._first[source])


def join_packings(packings: Sequence[Packing], counts: Sequence[int]) -> Packing:
    """Return the packing of several data sets, whose shards are numbered one after the other.

    Args:
        counts: shards of each.
    """
    first = packings[0]
    if len(packings) == 1 or isinstance(first, Blocks | StaticRows):
        return first  # of several, these know nothing of shards
    tables = [packing.table_of for packing in packings if isinstance(packing, PairRows)]
    # The second segment of a pair may lie in any shard of its own data set.
    begins = np.repeat(np.cumsum([0, *counts[:-1]]), counts)
    return replace(first, table_of=Joined(tables, counts).get, first_shards=begins)


def _open_source(url: str, label: str | None, split: str) -> Source:
    manifest, store = read_manifest(url)
    if split not in manifest.splits:
        raise ShardError(
            f"The data set has no split {split!r}.",
            where=url,
            expected="one of " + ", ".join(manifest.splits),
        )
    return Source(label, url, manifest, store, manifest.shards(split))


def _check_fits(first: Source, other: Source) -> None:
    """Check that the examples of two sources can stand in one batch. Raises ConfigError naming both."""
    ours, theirs = first.manifest, other.manifest
    if ours.tokenizer.fingerprint != theirs.tokenizer.fingerprint:
        raise ConfigError(
            listed(
                "The sources were made with different tokenizers, so one id is two different pieces:",
                (f"    {source.url}: {source.manifest.tokenizer.fingerprint}" for source in (first, other)),
            ),
            where="stream.sources",
            remedy="prepare the second one with the first one's: --set tokenizer.path=FIRST/tokenizer",
        )
    kinds = ["token shards" if manifest.examples is None else "fixed examples" for manifest in (ours, theirs)]
    if kinds[0] != kinds[1]:
        raise ConfigError(
            f"{first.url} holds {kinds[0]}, {other.url} {kinds[1]}: what one step masks in the ones is drawn "
            "anew, in the others it was drawn before.",
            where="stream.sources",
            remedy="import the records as tokens: outlast shards import-tfrecord --as tokens",
        )
    if ours.examples != theirs.examples:
        raise ConfigError(
            listed(
                "The fixed examples of the sources differ in their shapes or arrays:",
                (f"    {source.url}: {source.manifest.examples}" for source in (first, other)),
            ),
            where="stream.sources",
            remedy="import both with the same features, length and predictions",
        )
    if ours.token_dtype != theirs.token_dtype:
        raise ConfigError(
            f"{first.url} holds {ours.token_dtype} tokens, {other.url} {theirs.token_dtype}.",
            where="stream.sources",
            remedy="prepare both with the same version of this package",
        )
