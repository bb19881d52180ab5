"""Existing tars become a data set: each is checked, indexed and, where it lies elsewhere, copied.

In: tars as WebDataset's writers or plain tar make them, by path or URL, in brace notation. Out: a manifest
and an index for each tar. No image is decoded and none is encoded anew. A tar that lies in the output folder
or in a store stays where it is; any other is copied there as it is, byte for byte. A killed import goes on
with the tars that are missing.
"""

import glob
import hashlib
import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

import pydantic

from outlast.build.drive import Build
from outlast.build.plan import PLAN_NAME, write_record
from outlast.build.processes import Count
from outlast.corpus.files import find_files
from outlast.errors import ConfigError, CorpusError, ObjectNotFound, ShardError, StorageError
from outlast.images.braces import expand_braces
from outlast.images.index import index_name, write_index
from outlast.images.manifest import ImageShardEntry, named_files, write_image_manifest
from outlast.images.record import COUNTED, ImageRecord, make_image_manifest, refuse_stray_labels
from outlast.images.records import FieldRules, Tally, plain_members, read_examples
from outlast.logs import format_count, log
from outlast.shards.document import MANIFEST_NAME
from outlast.shards.manifest import Name
from outlast.storage import Store, open_store, split_url
from outlast.storage.elsewhere import is_url, open_elsewhere
from outlast.storage.regular import open_regular
from outlast.storage.spool import Spooled, spool_failed

_NAME = pydantic.TypeAdapter(Name)
_MOST_NAME = 200
_MOST_NAMED = 20
_SPLITS = ("train", "validation", "test")


@dataclass(frozen=True, kw_only=True)
class TarPortion:
    """One tar."""

    number: int
    split: str
    url: str
    size_bytes: int
    stays: bool
    """The manifest names it where it lies."""


@dataclass(frozen=True, kw_only=True)
class TarJob:
    """What all tars have in common."""

    rules: FieldRules
    out: str

    def open(self) -> "TarImporter":
        """Return what indexes tars in a process."""
        return TarImporter(self)


def import_tars(
    tars: Mapping[str, Sequence[str]],
    out: str,
    rules: FieldRules,
    *,
    copy: bool = False,
    num_processes: int | None = None,
    verify: bool = False,
) -> str:
    """Make a data set of tars, or go on with what a killed import has left.

    Args:
        tars: paths or URLs of the tars of each split (train, validation, test), in order, in brace notation
            (``train-{000000..000639}.tar``) or as patterns (``train-*.tar``), but for those behind http.
        out: folder or URL for indexes and manifest, and for the tars that lie elsewhere.
        copy: those of other stores, too; else they stay, and the manifest names them by their URLs.
        num_processes: that read tars side by side; None: one for each core. A script that calls this with
            more than one needs ``if __name__ == "__main__":``.
        verify: of a data set that is complete already, compare digests and not sizes alone.

    Returns:
        the URL of the manifest.

    Raises:
        ConfigError: no tar is named, or two have the same name.
        ShardError: a tar that is missing, damaged or holds what no data set may; a folder that belongs to
            another import.
        StorageError: the data set cannot be written.
    """
    store = open_store(out)
    portions = _plan(tars, None if copy else store.url)
    staying = {split_url(portion.url)[1]: portion.url for portion in portions if portion.stays}
    store = open_elsewhere(store, staying)  # what nobody may read later is refused now
    identity = {
        "rules": asdict(rules),
        "tars": [
            [portion.split, portion.url if portion.stays else split_url(portion.url)[1], portion.size_bytes]
            for portion in portions
        ],
    }
    build = Build(store, out, MANIFEST_NAME, identity, ImageRecord)
    if build.is_complete(named_files, verify=verify):
        return build.url
    build.begin()
    log.info("%d tars, %sB", len(portions), format_count(sum(portion.size_bytes for portion in portions)))
    if staying:
        log.info("%d stay where they are, and the manifest names them there (or --copy)", len(staying))
    records = build.run("import", TarJob(rules=rules, out=out), portions, num_processes, counted=COUNTED)
    refuse_stray_labels(store, records, None)
    _tell_what_was_left_out(records)
    provenance = {"tars": identity, "versions": build.versions}
    write_image_manifest(store, make_image_manifest(records, None, provenance))
    return build.url


def _tell_what_was_left_out(records: Sequence[ImageRecord]) -> None:
    for name in ("ignored_files", "bad_examples", "skipped_members"):
        if count := sum(getattr(record, name) for record in records):
            log.warning("%d %s were left out", count, name.replace("_", " "))
    named = [name for record in records for name in record.skipped_names]
    for name in named[:_MOST_NAMED]:
        log.warning("skipped: %s", name)
    if len(named) > _MOST_NAMED:
        log.warning("and more; the first %d of each tar stand in done/*.json", _MOST_NAMED)


def _plan(tars: Mapping[str, Sequence[str]], out: str | None) -> list[TarPortion]:
    """Find the tars. Those of other stores than ``out`` are not copied; where it is None, all are."""
    urls = [(split, url) for split in _SPLITS for text in tars.get(split, ()) for url in _expand(text)]
    if not urls:
        raise ConfigError("No tar is named.", expected="outlast shards import TAR... --out DIR")
    taken: dict[str, str] = {}
    portions: list[TarPortion] = []
    for number, (split, url) in enumerate(urls):
        folder, name = split_url(url)
        _check_name(name, url)
        _take_names(name, url, taken)
        source = open_store(folder)
        path = source.local_path(name)
        if path is not None and path.is_dir():
            raise ShardError(
                "This is a folder.",
                where=url,
                expected="a tar",
                remedy=f"name the tars in it, in quotes: '{path}/*.tar'; of a folder of pictures: "
                f"`outlast shards images {path} --out DIR`",
            )
        try:
            size_bytes = source.retry(source.size_bytes, name)
        except ObjectNotFound:
            raise ShardError("There is no such tar.", where=url, remedy="check the path") from None
        stays = out is not None and source.url != out and is_url(url)
        portions.append(TarPortion(number=number, split=split, url=url, size_bytes=size_bytes, stays=stays))
    return portions


def _expand(text: str) -> Iterator[str]:
    """Yield the tars that a name stands for: each of its braces, of a pattern all that match, by name.

    Raises:
        ShardError: a pattern that nothing matches, or one on a web server, which gives no list.
    """
    for name in expand_braces(text):
        if not glob.has_magic(name):
            yield name
            continue
        try:
            found = find_files(name, "**")
        except CorpusError as error:
            remedy = "name the tars that are there, one by one or with braces: train-{000000..000639}.tar"
            raise ShardError(error.message, where=error.where, remedy=remedy) from None
        yield from (file.path for file in found)


def _take_names(name: str, url: str, taken: dict[str, str]) -> None:
    """Add the names of a tar and its index to those that are taken. Raises ConfigError where one is."""
    if name in taken:
        raise ConfigError(
            f"Two tars have the name {name!r}; the second is {url}.",
            where=taken[name],
            remedy="rename one of them: all lie in one folder in the end",
        )
    for own in (name, index_name(name)):
        if own in taken or own in (MANIFEST_NAME, PLAN_NAME):
            raise ConfigError(
                f"The tar and its index would be {name!r} and {index_name(name)!r}, but {own!r} is taken.",
                where=url,
                expected=f"names besides those of {taken.get(own, 'the data set itself')}",
                remedy="rename the tar: all lie in one folder in the end",
            )
        taken[own] = url


def _check_name(name: str, url: str) -> None:
    try:
        for own in (name, index_name(name)):
            _NAME.validate_python(own)
    except pydantic.ValidationError:
        raise ConfigError(
            f"The tar's name {name!r:.250} cannot be that of a shard.",
            where=url,
            expected="A-Z, a-z, 0-9, dots, hyphens and underscores alone, no dot in front, and not more than "
            f"{_MOST_NAME} characters with the index, {index_name('NAME.tar')}",
            remedy="rename the tar: a manifest names its files so that no name leads out of its folder",
        ) from None


class TarImporter:
    """Indexes tars, one after another."""

    def __init__(self, job: TarJob) -> None:
        self.job = job
        self.store = open_store(job.out)

    def build(self, portion: TarPortion, count: Count) -> ImageRecord:
        """Copy a tar that is not to stay elsewhere; write its index and its record.

        Raises:
            ShardError: a tar that cannot be read, with the byte at which it cannot.
            StorageError: what is to be written cannot be.
        """
        folder, name = split_url(portion.url)
        source = open_store(folder)
        tally = Tally()
        spool_folder = self.store.local_path(".")
        with opened_tar(source, name, portion.size_bytes, url=portion.url, spool_folder=spool_folder) as file:
            where = portion.url
            members = plain_members(file, self.job.rules, tally, where=where)
            examples = list(read_examples(file, members, self.job.rules, tally, where=where))
            content = Spooled(b"", [file])
            digest = hashlib.sha256()
            for chunk in content:
                digest.update(chunk)
            sha256 = digest.hexdigest()
            count(len(examples), portion.size_bytes, 0)
            shard = None
            if examples:
                if not portion.stays and source.url != self.store.url:
                    self.store.replace(name, content)
                shard = ImageShardEntry(
                    name=name,
                    size_bytes=portion.size_bytes,
                    sha256=sha256,
                    num_examples=len(examples),
                    url=portion.url if portion.stays else None,
                    index=write_index(self.store, index_name(name), examples, tar_sha256=sha256),
                )
        largest = max(examples, key=lambda example: example.label, default=None)
        record = ImageRecord(
            number=portion.number,
            split=portion.split,
            shard=shard,
            most_label=largest.label if largest else -1,
            most_label_place=f"{name}, byte {largest.offset}, {largest.key!r:.200}" if largest else "",
            image_bytes=sum(example.size_bytes for example in examples),
            ignored_files=tally.ignored_files,
            bad_examples=tally.bad_examples,
            skipped_members=len(tally.skipped_members),
            skipped_names=tuple(f"{name}, {what}" for what in tally.skipped_members[:_MOST_NAMED]),
        )
        write_record(self.store, record)
        return record


@contextmanager
def opened_tar(
    store: Store, name: str, size_bytes: int, *, url: str, spool_folder: Path | None
) -> Generator[BinaryIO]:
    """Open a local tar where it lies, a remote one as a nameless local copy in a folder.

    Raises:
        ShardError: it has another size than it had when the build began.
        StorageError: it cannot be read.
    """
    path = store.local_path(name)
    try:
        if path is not None:
            with open_regular(path) as file:
                _check_size(file.seek(0, 2), size_bytes, url)
                yield file
            return
        if spool_folder is not None:
            spool_folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=spool_folder) as copy:
            _copy(store, name, size_bytes, copy, url)
            yield copy
    except OSError as error:
        if path is not None:
            raise StorageError(f"The tar cannot be read: {error.strerror}.", where=str(path)) from error
        raise spool_failed(error) from error


def _copy(store: Store, name: str, size_bytes: int, file: BinaryIO, url: str) -> None:
    def take(start: int, content: bytes) -> None:
        if start == 0:
            file.seek(0)
            file.truncate()
        file.write(content)

    store.download(name, take)
    _check_size(file.tell(), size_bytes, url)


def _check_size(found: int, size_bytes: int, url: str) -> None:
    if found != size_bytes:
        raise ShardError(
            "The tar has changed since the build began.",
            where=url,
            expected=f"{size_bytes} bytes",
            remedy="import it when nobody writes to it",
        )
