"""Pair tables for a data set that is there: a table for each shard and sequence length, then the manifest.

In: a manifest and what is asked for. Out: ``pairs-<length>/`` beside the shards, and a manifest that names
the tables. A table is a function of the manifest and of what was asked, and appears whole; its record marks
it as finished. So tables are built by any number of processes and tasks, and a build that was killed goes on
where it stopped (docs/design/pairs.md).
"""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache

import pydantic

from outlast.build.drive import Counts, Gauge, InProcesses, drive
from outlast.build.plan import PLAN_NAME, agree_on_plan, delete_leftovers, read_plan
from outlast.build.processes import Count
from outlast.build.repair import find_wrong
from outlast.errors import ObjectNotFound, SealError, ShardError
from outlast.logs import format_count, log
from outlast.shards.config import PairsConfig
from outlast.shards.manifest import Manifest, PairSet, PairTableEntry, read_manifest, write_manifest
from outlast.shards.offsets import check_digest, open_offsets
from outlast.shards.pair_table import PairTableWriter, identity_of
from outlast.shards.pairs import PAIRS_VERSION, PairCorpus, PairRules, make_pairs
from outlast.storage import Store, open_store
from outlast.storage.checksummed_json import seal, unseal
from outlast.version import __version__

_MOST_OPEN = 256
_FOLDER = re.compile(r"pairs-(\d{1,5})/" + re.escape(PLAN_NAME))


@dataclass(frozen=True, kw_only=True)
class TableJob:
    """One table: the pairs of a shard, all passes."""

    number: int
    """Its number among the tables that are asked for."""
    pair_set: PairSet
    split: str
    shard: int


@dataclass(frozen=True, kw_only=True)
class PairJob:
    """What all tables of a build have in common: where the manifest lies."""

    manifest_url: str

    def open(self) -> "PairBuilder":
        return PairBuilder(self.manifest_url)


class PairBuilder:
    """Builds tables, one after another.

    Raises:
        ShardError: the manifest is missing or damaged.
    """

    def __init__(self, manifest_url: str) -> None:
        self.manifest, self.store = read_manifest(manifest_url)
        self._corpora: dict[str, PairCorpus] = {}

    def build(self, portion: TableJob, count: Count) -> PairTableEntry:
        """Write a table and its record.

        Raises:
            ShardError: a shard is missing or damaged.
            StorageError: the table cannot be written.
        """
        pair_set, split, shard = portion.pair_set, portion.split, portion.shard
        entry = self.manifest.shards(split)[shard]
        check_digest(self.store, entry)
        corpus = self._corpus(split)
        rules = PairRules(
            sequence_length=pair_set.sequence_length,
            num_passes=pair_set.num_passes,
            short_probability=pair_set.short_probability,
            seed=pair_set.seed,
        )
        identity = identity_of(self.manifest, pair_set, split, shard)
        folder = _open_folder(self.store, pair_set.path)
        with PairTableWriter(identity, spool_folder=self.store.local_path(".")) as writer:
            for pass_index in range(rules.num_passes):
                for pairs in make_pairs(corpus, rules, shard=shard, pass_index=pass_index):
                    writer.add(pairs)
                    count(len(pairs.first_begin), 0, 0)
                writer.end_pass()
                count(0, 0, entry.num_tokens)
            table = writer.write(folder, entry.name)
        self._check_made_again(pair_set, split, shard, table)
        folder.replace(_record_name(entry.name), [seal({"table": asdict(table)})])
        return table

    def _check_made_again(self, wanted: PairSet, split: str, shard: int, table: PairTableEntry) -> None:
        """Raise ShardError where the manifest names such a table with other bytes."""
        for named in _named(self.manifest, wanted):
            expected = named.splits[split][shard]
            if expected != table:
                raise ShardError(
                    f"Made again, the table has other bytes than the manifest names: sha256 {table.sha256}.",
                    where=f"{self.store.url}/{named.path}/{table.name}",
                    expected=f"sha256 {expected.sha256}",
                    remedy="restore the file, or delete the folder of the tables and the manifest, and give "
                    "the same line again",
                )

    def _corpus(self, split: str) -> PairCorpus:
        if split not in self._corpora:
            entries = self.manifest.shards(split)
            self._corpora[split] = PairCorpus(
                split=split,
                shard_documents=tuple(entry.num_documents for entry in entries),
                offsets_of=lru_cache(_MOST_OPEN)(lambda shard: open_offsets(self.store, entries[shard])),
            )
        return self._corpora[split]


def add_pairs(
    manifest_url: str,
    config: PairsConfig,
    *,
    num_processes: int,
    task: tuple[int, int] | None = None,
    verify: bool = False,
) -> bool:
    """Build the pair tables that a data set lacks and name them in its manifest.

    With ``num_processes`` other than 1, a script that calls this needs ``if __name__ == "__main__":``.

    Args:
        config: the lengths, and how the pairs are made.
        task: (i, N): build only this share of the tables.
        verify: of tables that the manifest names already, compare digests and not sizes alone.

    Returns:
        whether all tables asked for are there; with tasks, others may still have some to build.

    Raises:
        ShardError: the data has no sentences, a split has fewer than two documents, a shard is damaged, or
            there are tables for one of the lengths that were made otherwise.
        StorageError: the tables cannot be written.
    """
    manifest, store = read_manifest(manifest_url)
    _check_can_pair(manifest, manifest_url)
    wanted = [_pair_set(config, length) for length in sorted(set(config.lengths or ()))]
    folders = [_open_folder(store, pair_set.path) for pair_set in wanted]
    jobs: list[TableJob] = []
    missing: list[TableJob] = []
    for pair_set, folder in zip(wanted, folders, strict=True):
        agree_on_plan(folder, _plan(manifest, pair_set), {"outlast": __version__})
        _withdraw_wrong(manifest, pair_set, folder, verify)
        finished = _finished(folder)
        for split, entries in manifest.splits.items():
            for shard, entry in enumerate(entries):
                job = TableJob(number=len(jobs), pair_set=pair_set, split=split, shard=shard)
                jobs.append(job)
                if entry.name not in finished:
                    missing.append(job)
    index, count = task or (0, 1)
    mine = [job for job in missing if job.number % count == index]
    if mine:
        _build(PairJob(manifest_url=manifest_url), manifest, mine, min(num_processes, len(mine)))
    if task is None:  # with tasks, another one may be writing
        for folder in folders:
            delete_leftovers(folder)
    left = {pair_set.path for pair_set in wanted} - {pair_set.path for pair_set in publish(manifest_url)}
    if left:
        log.info("tables are left to other tasks: %s", ", ".join(sorted(left)))
    return not left


def publish(manifest_url: str) -> tuple[PairSet, ...]:
    """Make the manifest name every set of tables that is complete; return them.

    Builds of two lengths may end at the same moment, and the last to write might not yet know of the other.
    Therefore each looks again after it has written: whoever is last sees the records of both.
    """
    while True:
        manifest, store = read_manifest(manifest_url)
        found = _complete_sets(store, manifest)
        if found == (manifest.pairs or ()):
            return found
        write_manifest(store, replace(manifest, pairs=found or None))
        for pair_set in found:
            log.info("%s", describe_pairs(pair_set))


def describe_pairs(pair_set: PairSet) -> str:
    """Return what a set of tables holds, in a line for a person."""
    return (
        f"pairs of {pair_set.sequence_length} tokens: {format_count(pair_set.num_examples)} examples in "
        f"{pair_set.num_passes} passes, second segment random in {pair_set.random_share:.1%}"
    )


def _pair_set(config: PairsConfig, length: int) -> PairSet:
    return PairSet(
        path=f"pairs-{length}",
        sequence_length=length,
        num_passes=config.num_passes,
        short_probability=config.short_probability,
        seed=config.seed,
        splits={},
    )


def other_pairs(manifest_url: str, lengths: Sequence[int]) -> list[PairsConfig]:
    """Return the configurations of the pairs of other lengths that a manifest names. Raises ShardError."""
    return [
        PairsConfig(
            lengths=(named.sequence_length,),
            num_passes=named.num_passes,
            short_probability=named.short_probability,
            seed=named.seed,
        )
        for named in read_manifest(manifest_url)[0].pairs or ()
        if named.sequence_length not in lengths
    ]


def _named(manifest: Manifest, wanted: PairSet) -> list[PairSet]:
    """Return the set of tables that the manifest names already, made as it is wanted now."""
    rules = replace(wanted, splits={})
    return [named for named in manifest.pairs or () if replace(named, splits={}) == rules]


def _withdraw_wrong(manifest: Manifest, wanted: PairSet, folder: Store, verify: bool) -> None:
    """Take away the records of tables that the manifest names and that are missing or damaged."""
    for named in _named(manifest, wanted):
        tables = [table for tables in named.splits.values() for table in tables]
        for name, problem in find_wrong(folder, tables, verify=verify).items():
            log.warning("%s/%s %s", named.path, name, problem)
            folder.delete(_record_name(name))


def _plan(manifest: Manifest, pair_set: PairSet) -> dict[str, str | int | float]:
    values = {key: value for key, value in asdict(pair_set).items() if key not in ("path", "splits")}
    return {"data": manifest.fingerprint, "pairs_version": PAIRS_VERSION, **values}


def _check_can_pair(manifest: Manifest, where: str) -> None:
    if not manifest.has_sentences:
        raise ShardError(
            "The data set does not know its documents' sentences, so no pairs can be made of it.",
            where=where,
            remedy="set corpus.sentences in the recipe and prepare the data into another folder",
        )
    for split, entries in manifest.splits.items():
        if sum(entry.num_documents for entry in entries) < 2:
            raise ShardError(
                f"The split {split!r} has one document, so no second segment can come from another one.",
                where=where,
                expected="two documents or more in each split",
                remedy="check corpus.documents: what ends a document? Or hold out more text",
            )


def _build(job: PairJob, manifest: Manifest, tables: Sequence[TableJob], num_processes: int) -> None:
    """Build tables. Raises the first error, once all others are finished."""

    def num_tokens(table: TableJob) -> int:
        return manifest.shards(table.split)[table.shard].num_tokens * table.pair_set.num_passes

    def done(counted: Sequence[Counts], _: set[int]) -> int:
        return sum(tokens for _, _, tokens in counted)

    def describe(totals: Counts, seconds: float) -> str:
        examples, _, tokens = totals
        return f"{format_count(examples)} examples, {format_count(tokens / max(seconds, 1e-9))} tokens/s"

    def name(table: TableJob) -> str:
        return f"the table {table.pair_set.path}/{manifest.shards(table.split)[table.shard].name}"

    gauge = Gauge("pairs", sum(map(num_tokens, tables)), done, describe)
    drive(job, tables, InProcesses(num_processes), gauge, name=name, noun="table")


def _complete_sets(store: Store, manifest: Manifest) -> tuple[PairSet, ...]:
    names = (_FOLDER.fullmatch(info.name) for info in store.list("pairs-"))
    found = [_complete_set(store, manifest, int(match[1])) for match in names if match]
    return tuple(sorted(filter(None, found), key=lambda pair_set: pair_set.sequence_length))


def _complete_set(store: Store, manifest: Manifest, length: int) -> PairSet | None:
    """Return the tables of a length as the manifest names them; None where some are missing yet."""
    folder = _open_folder(store, f"pairs-{length}")
    plan = read_plan(folder)["identity"]
    finished = _finished(folder)
    wanted = [entry.name for entries in manifest.splits.values() for entry in entries]
    if plan["data"] != manifest.fingerprint:
        return None
    config = PairsConfig(
        num_passes=plan["num_passes"], short_probability=plan["short_probability"], seed=plan["seed"]
    )
    pair_set = _pair_set(config, length)
    if named := _named(manifest, pair_set):
        return named[0]  # some of its tables may be made again just now
    if not finished.issuperset(wanted):
        return None
    return replace(
        pair_set,
        splits={
            split: tuple(_read_record(folder, entry.name) for entry in entries)
            for split, entries in manifest.splits.items()
        },
    )


def _finished(folder: Store) -> set[str]:
    """Return the names of the tables that are there, whole, with their record."""
    names = {info.name for info in folder.list()}
    return {name for name in names if _record_name(name) in names}


def _record_name(table: str) -> str:
    return f"done/{table.removesuffix('.safetensors')}.json"


def _read_record(folder: Store, table: str) -> PairTableEntry:
    name = _record_name(table)
    where = f"{folder.url}/{name}"
    try:
        content = folder.read(name)
        fields = json.loads(content)
        if "table" in fields:  # else an earlier version wrote it, unsealed
            fields = unseal(content, where=where)["table"]
        entry = pydantic.TypeAdapter(PairTableEntry).validate_python(fields)
        if entry.name != table:
            raise ValueError(f"it is that of {entry.name}")
        return entry
    except (ValueError, TypeError, RecursionError, ObjectNotFound, SealError):
        raise ShardError(
            "The record of a pair table is damaged.",
            where=where,
            remedy="delete it and run the same command again",
        ) from None


def _open_folder(store: Store, path: str) -> Store:
    return open_store(f"{store.url}/{path}")
