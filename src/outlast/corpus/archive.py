"""Documents from tars: every member that belongs to the corpus is read as a file would be, where it lies.

In: a ``CorpusFile`` that is a tar, plain or compressed, and an ``Extent`` of it. Out: how it can be cut, and
the documents of its members, in their order. Nothing is extracted. What is no file (folders, links, devices)
and what the recipe's patterns leave out is passed over and counted. A plain tar is cut between members, a
compressed one is read whole.
"""

import io
import tempfile
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import cast

from outlast.corpus.compressed import decompressed, is_compressed, open_binary, plain_name, reading
from outlast.corpus.config import CorpusConfig
from outlast.corpus.encoding import Decoder, Tally, canonical, detect
from outlast.corpus.extent import CorpusFile, Extent
from outlast.corpus.files import is_member
from outlast.corpus.formats import documents_of, format_of
from outlast.corpus.recognize import HEAD_BYTES, Format, refuse_binary
from outlast.corpus.tar import Entry, ForwardReader, Member, TarFile, has_tar_name, is_tar, read_entries
from outlast.corpus.text import read_stream
from outlast.errors import CorpusError, ShardError, printable
from outlast.storage.spool import spool_failed

_MOST_UNITS = 2**14
"""Places at which a tar may be cut: they are sent to the processes with every portion."""
_IN_MEMORY_BYTES = 2**24
_READ_BYTES = 2**16
_COUNTED_AS = {"a folder": "folders", "a symbolic link": "links", "a hard link": "links"}


def describe_tar(config: CorpusConfig, file: CorpusFile) -> CorpusFile | None:
    """Return a tar with its number of units and its format, the one of its first member. None: the tar was
    found in a folder and holds nothing of the corpus.

    Raises:
        CorpusError: a damaged tar; one that was named and holds nothing; a member that is no text.
    """
    assert file.tar is not None
    cuts = [0]
    format: Format | None = None
    with _open_tar(file) as tar:
        for entry in read_entries(tar, where=file.path):
            if entry.begin - cuts[-1] >= max(file.size_bytes // _MOST_UNITS, 1):
                cuts.append(entry.begin)
            if format is None and _is_wanted(config, file, entry):
                with _open_member(tar, entry.member, _place(file.path, entry.member)) as (head, _):
                    format = _format(config, entry.member, head, _place(file.path, entry.member))
                if isinstance(tar, ForwardReader):
                    break
    if format is None:
        if file.tar.folder and not file.tar.taken_whole:
            return None
        raise CorpusError(
            f"The tar holds no file that matches {config.include!r}.",
            where=file.path,
            remedy="check corpus.include and corpus.exclude",
        )
    if is_compressed(file.path):
        cuts = [0]
    units = tuple(end - begin for begin, end in zip(cuts, [*cuts[1:], file.size_bytes], strict=True))
    return replace(
        file,
        encoding="auto" if config.encoding == "auto" else canonical(config.encoding),
        format=format,
        documents=documents_of(config, format, is_member=True),
        num_units=len(units),
        unit_bytes=units,
    )


def read_tar(config: CorpusConfig, extent: Extent, tally: Tally) -> Iterator[tuple[str, str]]:
    """Yield (document, place) of the members whose first header lies in the extent. Raises CorpusError."""
    file = extent.file
    start, end = (sum(file.unit_bytes[:unit]) for unit in (extent.start, extent.end))
    with _open_tar(file) as tar:
        last = extent.end == file.num_units
        for entry in read_entries(tar, where=file.path, start=start, end=None if last else end):
            if entry.kind:
                tally.add_member(_COUNTED_AS.get(entry.kind, "devices"))
            elif not _is_wanted(config, file, entry):
                tally.add_member("left_out")
            else:
                tally.add_member("read")
                yield from _read_member(config, file, entry.member, tar, tally)


def _read_member(
    config: CorpusConfig, file: CorpusFile, member: Member, tar: TarFile, tally: Tally
) -> Iterator[tuple[str, str]]:
    where = _place(file.path, member)
    with reading(where), _open_member(tar, member, where) as (head, source), ExitStack() as spool:
        format = _format(config, member, head, where)
        if head and format != file.format:
            raise CorpusError(
                f"The tar holds members of several formats: this one seems to be {format}, "
                f"the first one is {file.format}.",
                where=where,
                remedy="choose by corpus.include or corpus.exclude, or say corpus.format",
            )
        encoding = file.encoding
        if encoding == "auto":
            source = spool.enter_context(_spooled(source))
            encoding = detect(source, where=where)
            source.seek(0)
            tally.encodings[encoding] = tally.encodings.get(encoding, 0) + 1
        refuse_binary(head, where=where, encoding=encoding, allows_nul=config.undecodable == "replace")
        decoder = Decoder(_place(file.name, member), encoding, config.undecodable, tally)
        yield from read_stream(
            config, source, decoder, format=file.format, documents=file.documents, where=where
        )


def _format(config: CorpusConfig, member: Member, head: bytes, where: str) -> Format:
    inner = plain_name(member.name)
    if is_tar(head) or has_tar_name(inner):
        seems = "a tar"
    else:
        format = format_of(config, inner, head, where=where)
        if format in ("text", "jsonl"):
            return format
        seems = "a Parquet file"
    raise CorpusError(
        f"The member seems to be {seems}, which cannot be read within a tar.",
        where=where,
        remedy="unpack the outer tar and name the folder, or leave the member out by corpus.exclude",
    )


def _is_wanted(config: CorpusConfig, file: CorpusFile, entry: Entry) -> bool:
    assert file.tar is not None
    return not entry.kind and is_member(entry.member.name, file.tar, config.include, config.exclude)


def _place(tar: str, member: Member) -> str:
    return f"{tar}: {printable(member.name)}"


@contextmanager
def _open_tar(file: CorpusFile) -> Generator[TarFile]:
    try:
        with open_binary(file.path, where=file.path) as source:
            yield ForwardReader(source) if is_compressed(file.path) else source
    except ShardError as error:  # as pictures have it, whose tars are shards
        raise CorpusError(
            error.message, where=error.where, expected=error.expected, remedy=error.remedy
        ) from None


@contextmanager
def _open_member(tar: TarFile, member: Member, where: str) -> Generator[tuple[bytes, io.BufferedIOBase]]:
    """Open a member, decompressed; yield its first bytes, and a stream of all of them."""
    raw = io.BufferedReader(_Content(tar, member, where), _READ_BYTES)
    with decompressed(raw, member.name) as source:
        head = source.read(HEAD_BYTES)
        yield head, io.BufferedReader(_Replayed(head, source), _READ_BYTES)


@contextmanager
def _spooled(source: io.BufferedIOBase) -> Generator[io.BufferedIOBase]:
    """Yield the same bytes as a file that can be read twice, in memory where it is small."""
    with tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES) as spool:
        while block := source.read(_READ_BYTES):
            try:
                spool.write(block)
            except OSError as error:
                raise spool_failed(error) from error
        spool.seek(0)
        yield cast(io.BufferedIOBase, spool)


class _Content(io.RawIOBase):
    """What a member of a tar holds, from its beginning to its end."""

    def __init__(self, tar: TarFile, member: Member, where: str) -> None:
        self._tar = tar
        self._position = member.offset
        self._end = member.offset + member.size_bytes
        self._where = where

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = cast(memoryview, buffer)
        wanted = min(len(view), self._end - self._position)
        if wanted:
            self._tar.seek(self._position)
            content = self._tar.read(wanted)
            if len(content) < wanted:
                raise CorpusError(
                    "The tar ends within the member.",
                    where=f"{self._where}, byte {self._position + len(content)} of the tar",
                    remedy="fetch or write the archive again",
                )
            view[:wanted] = content
            self._position += wanted
        return wanted


class _Replayed(io.RawIOBase):
    """A stream, with its beginning that was read already."""

    def __init__(self, head: bytes, source: io.BufferedIOBase) -> None:
        self._head = head
        self._source = source

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = cast(memoryview, buffer)
        content = self._head[: len(view)] or self._source.read(len(view))
        self._head = self._head[len(view) :]
        view[: len(content)] = content
        return len(content)
