"""Batches by step: ``TokenStream`` turns a manifest, a seed and a step into arrays, read ahead by threads.

In: the URL of a manifest, or of several with their weights. Out: dicts of numpy arrays, ``input_ids`` int32
and ``attention_mask`` int8 of shape (process_batch_size, sequence_length), and what pairs and static examples
have besides. Invariant: ``batch(step)`` is a pure function, so any thread may make any batch, a resume starts
anywhere, and nothing about the data needs saving.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import NonNegativeInt, PositiveInt

from outlast.config import build, checked
from outlast.errors import ConfigError
from outlast.shards.example_shard import open_examples
from outlast.shards.manifest import Manifest, ShardEntry
from outlast.shards.opened import OpenedFile
from outlast.shards.read import open_tokens
from outlast.storage import Store, place_of
from outlast.stream.blocks import Batch, Blocks, Packing
from outlast.stream.config import StreamConfig
from outlast.stream.examples import DataSet, ExampleStream, make_order
from outlast.stream.files import JoinedFiles, OpenFiles
from outlast.stream.mixture import MIXTURE_VERSION, Mixture, source_seed
from outlast.stream.order import ORDER_VERSION, Order
from outlast.stream.pairs import PairRows, open_pairs
from outlast.stream.rows import StaticRows
from outlast.stream.shares import shares_of
from outlast.stream.sources import Source, in_manifest_order, join_packings, open_sources
from outlast.stream.words import WordRows

_GATHERED_BYTES = 8 * 2**20
_GATHERED_STEPS = 32


class TokenStream(ExampleStream):
    """The examples of one split of a data set of text, or of a mixture of several.

    Args:
        config: the ``[stream]`` table; ``manifest`` or ``sources`` must be set.
        seed: of the run.
        split: of the manifest.
        process_index, process_count: this process reads its own share of every batch's rows.
        word_starts: whether batches tell where words begin: ``word_starts`` int8 of the shape of
            ``input_ids``, 1 where a word begins and for what is no text. A word that an example cuts begins
            at the border.
        shares: of the sources of a mixture; None: by their weights.

    Raises:
        ConfigError: no manifest named, sources that do not fit together, a batch that does not divide, or
            word starts of a data set that has none.
        ShardError: a manifest or a shard that is missing, damaged or empty.
    """

    def __init__(
        self,
        config: StreamConfig,
        *,
        seed: int,
        split: str = "train",
        process_index: int = 0,
        process_count: int = 1,
        word_starts: bool = False,
        shares: Sequence[Fraction] | None = None,
    ) -> None:
        self.sources = open_sources(config, split)
        # What all sources share, such as the tokenizer, is said by the first.
        self.manifest, self.store = self.sources[0].manifest, self.sources[0].store
        files = [_open_files(source, config, word_starts) for source in self.sources]
        packings = [_make_packing(source.manifest, source.store, config, split) for source in self.sources]
        counts = [len(source.entries) for source in self.sources]
        self._packing_identities = [packing.identity for packing in packings]
        examples = [
            packing.examples_of(source.entries)
            for packing, source in zip(packings, self.sources, strict=True)
        ]
        super().__init__(
            config,
            split=split,
            shards=files[0] if len(files) == 1 else JoinedFiles(files, counts),
            packing=self._with_words(join_packings(packings, counts), word_starts),
            order=_make_joint_order(config, self.sources, examples, seed, shares),
            process_index=process_index,
            process_count=process_count,
        )

    def _with_words(self, packing: Blocks | PairRows | StaticRows, word_starts: bool) -> Packing:
        if not word_starts:
            return packing
        for source in self.sources:
            _check_words(source)
        assert not isinstance(packing, StaticRows), "they have no word starts"
        entries = [entry for source in self.sources for entry in source.entries]
        return WordRows(packing, np.array([entry.num_tokens for entry in entries], np.int64))

    @property
    def identity(self) -> dict[str, Any]:
        """What the order depends on: a resume that would change any of it is refused."""
        common = {
            "split": self.split,
            "sequence_length": self.config.sequence_length,
            "special_tokens": self.config.special_tokens,
            "global_batch_size": self.config.global_batch_size,
            "num_lanes": self.order.num_lanes,
            "order_version": ORDER_VERSION,
        }
        orders = [self.order] if isinstance(self.order, Order) else self.order.orders
        own = [
            {"manifest": source.manifest.fingerprint, "window_examples": order.window_examples, **packing}
            for source, order, packing in zip(self.sources, orders, self._packing_identities, strict=True)
        ]
        if isinstance(self.order, Order):
            return {**common, **own[0]}
        mixed = zip(own, self.order.shares, strict=True)
        sources = {str(i): {**fields, "share": str(share)} for i, (fields, share) in enumerate(mixed)}
        return {**common, "sources": sources, "mixture_version": MIXTURE_VERSION}

    @property
    def data_sets(self) -> tuple[DataSet, ...]:
        """What is read."""
        return tuple(DataSet(each.label, each.url, each.store, each.manifest.splits) for each in self.sources)

    def epochs_of(self, step: int) -> dict[str, float]:
        """Return how many epochs of each source of a mixture are consumed before a step; else nothing."""
        if isinstance(self.order, Order):
            return {}
        labels = [source.label or "" for source in self.sources]
        return dict(zip(labels, self.order.source_epochs(step), strict=True))

    def _steps_together(self) -> int:
        """Return how many steps a reader gathers at once, sharing what a visit to the shards costs."""
        batch_bytes = self.process_batch_size * self.config.sequence_length * np.dtype(np.int32).itemsize
        return max(1, min(_GATHERED_STEPS, _GATHERED_BYTES // batch_bytes))


@checked
def open_stream(
    manifest: str | Path | Mapping[str, float] | None = None,
    *,
    global_batch_size: PositiveInt,
    seed: NonNegativeInt = 0,
    start_step: NonNegativeInt = 0,
    split: str = "train",
    evaluation: bool = False,
    process_index: NonNegativeInt = 0,
    process_count: PositiveInt = 1,
    word_starts: bool = False,
    **stream: Any,
) -> Iterator[Batch]:
    """Yield the batches of a data set from a step on: without end, or in an evaluation until all are seen.

    The state of the stream is the number of the step: to resume, pass it as ``start_step``. The iterator is
    for one process alone; for the workers of a PyTorch DataLoader there is ``outlast.pytorch``.

    Args:
        manifest: path or URL of the ``manifest.json`` that ``outlast prepare`` wrote; or of several, each
            with its weight, for a mixture.
        global_batch_size: examples in a step, over all processes.
        seed: of the order.
        start_step: the first step to yield.
        split: ``train`` or ``validation``.
        evaluation: yield every example of the split exactly once, in the order of the data set, and end. The
            rows that fill up the last batch are padding.
        process_index, process_count: this process's share of every batch's rows.
        word_starts: also yield ``word_starts`` int8, (process_batch_size, sequence_length): 1 where a word
            begins and for what is no text. The data sets must be prepared with ``shards.words``.
        **stream: further keys of a recipe's ``[stream]`` table: ``sequence_length=512``, ``packing="pairs"``,
            ``cache_dir=...``.

    Returns:
        an iterator of dicts: ``input_ids`` int32 and ``attention_mask`` int8, (process_batch_size,
            sequence_length); with pairs also ``token_type_ids`` int8 of that shape and
            ``next_sentence_label`` int32, (process_batch_size,); static examples have further arrays
            (docs/formats/example_shard.md). An evaluation has ``example_weights`` float32 besides, 0 for
            padding and 1 else, and ``example_index`` int32, the example's number in the split, both
            (process_batch_size,). A batch that is kept stays as it is; the memory of one that is dropped is
            used again.

    Raises:
        ConfigError: an argument that is not known or out of its range, a batch that does not divide, sources
            that do not fit together, word starts of a data set that has none, or one of several workers of a
            DataLoader.
        ShardError: a manifest or a shard that is missing or damaged.
    """
    opened = make_stream(
        manifest,
        global_batch_size=global_batch_size,
        seed=seed,
        split=split,
        evaluation=evaluation,
        process_index=process_index,
        process_count=process_count,
        word_starts=word_starts,
        **stream,
    )
    return opened.read(start_step, evaluation=evaluation)


@checked
def make_stream(
    manifest: str | Path | Mapping[str, float] | None = None,
    *,
    seed: NonNegativeInt = 0,
    split: str = "train",
    evaluation: bool = False,
    process_index: NonNegativeInt = 0,
    process_count: PositiveInt = 1,
    word_starts: bool = False,
    **stream: Any,
) -> TokenStream:
    """Return the stream that ``open_stream`` reads. Arguments and errors as there."""
    named: dict[str, Any] = {}
    if isinstance(manifest, Mapping):
        if "sources" in stream:
            raise ConfigError("The sources are given twice.", where="open_stream", remedy="give them once")
        named["sources"] = _sources_of(manifest)
    elif manifest is not None:
        named["manifest"] = place_of(manifest)
    config = build(StreamConfig, named | stream, where="open_stream", holder="call")
    return TokenStream(
        in_manifest_order(config) if evaluation else config,
        seed=seed,
        split=split,
        process_index=process_index,
        process_count=process_count,
        word_starts=word_starts,
    )


def _sources_of(weights: Mapping[str, float]) -> list[dict[str, Any]]:
    """Return sources named by their URLs, which differ where their folders may not."""
    for url, weight in weights.items():
        if not 0 < weight < math.inf:
            raise ConfigError(f"The weight of {url} is {weight}.", expected="a number above 0")
    return [{"manifest": url, "name": url, "weight": weight} for url, weight in weights.items()]


def _open_files(source: Source, config: StreamConfig, with_words: bool) -> OpenFiles[Any]:
    entries = source.entries
    open_file = partial(_open_shard, source.manifest, entries, with_words)
    return OpenFiles(source.store, entries, config, open_file)


def _open_shard(
    manifest: Manifest, entries: Sequence[ShardEntry], with_words: bool, index: int, file: OpenedFile
) -> Any:
    """Open a token shard as its tokens, or with the words; an example shard as its arrays by name."""
    if manifest.examples is not None:
        return open_examples(file, entries[index], manifest.examples, manifest.tokenizer)
    shard = open_tokens(file, entries[index], tokenizer_fingerprint=manifest.tokenizer.fingerprint)
    return shard if with_words else shard.tokens


def _make_packing(
    manifest: Manifest, store: Store, config: StreamConfig, split: str
) -> Blocks | PairRows | StaticRows:
    if config.packing == "images":
        raise ConfigError(
            "The data set holds text.",
            where="stream.packing",
            remedy="leave stream.packing out, or name the manifest of a data set of images",
        )
    special_ids = manifest.tokenizer.special_ids
    if manifest.examples is not None:
        return StaticRows(manifest.examples, config, special_ids["pad"])
    if config.packing == "pairs":
        return open_pairs(manifest, store, config, split)
    return Blocks(config.sequence_length, config.special_tokens, special_ids)


def _make_joint_order(
    config: StreamConfig,
    sources: Sequence[Source],
    examples: Sequence[tuple[int, ...]],
    seed: int,
    shares: Sequence[Fraction] | None,
) -> Order | Mixture:
    """Return the order of one data set, or of a mixture; all sources of one have the same lanes."""

    def make(config: StreamConfig, source: int, seed: int) -> Order:
        token_bytes = sources[source].manifest.dtype.itemsize
        num_bytes = token_bytes * sum(entry.num_tokens for entry in sources[source].entries)
        return make_order(config, examples[source], num_bytes, seed)

    orders = [make(config, source, seed) for source in range(len(sources))]
    if not config.sources:
        return orders[0]
    num_lanes = max(order.num_lanes for order in orders)
    of_lanes = replace(config, global_batch_size=num_lanes, num_lanes=num_lanes)
    return Mixture(
        [make(of_lanes, source, source_seed(seed, source)) for source in range(len(sources))],
        shares_of(config.sources) if shares is None else shares,
        config.global_batch_size,
    )


def _check_words(source: Source) -> None:
    """Raise ConfigError where a data set does not tell its words."""
    if source.manifest.has_words:
        return
    is_static = source.manifest.examples is not None
    raise ConfigError(
        "Whole words are to be masked, and the data set does not tell where words begin"
        + (": it holds fixed examples." if is_static else "."),
        where=source.url,
        remedy="prepare the data from text"
        if is_static
        else 'prepare it again into another folder with shards.words = "pieces", or "mecab" for Japanese',
    )
