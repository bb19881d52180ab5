"""Tar archives, read by their headers: where the bytes of each file lie. Nothing is ever extracted.

In: an open file, or a stream that comes once, such as what is decompressed. Out: a ``Member`` for each
regular file in it: name, offset, size. Understood are v7, ustar, GNU (long names, sizes in base 256) and pax
headers. A sparse file, a damaged header and anything behind the archive's end are refused with the offset of
the header: a reader that passed over them would lose examples without a word. Folders and volume labels hold
no bytes. Links, devices and names that lead elsewhere are refused in a data set, and told of in a corpus.

Sources: POSIX.1-2017, pax, "ustar Interchange Format" and "pax Interchange Format"; the GNU tar manual,
"Basic Tar Format".
"""

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, NamedTuple

from outlast.corpus.compressed import compressed_with, plain_name
from outlast.errors import ShardError

BLOCK = 512
_MOST_MEMBERS = 2**22
_MOST_EXTENDED_BYTES = 2**20
"""Of one pax header or long name."""
_MOST_BYTES = 2**50
_NO_SIZE = 2**62
"""In place of the size of a stream, which nobody knows."""
_SKIP_BYTES = 2**20

_REGULAR = {b"0", b"\0", b"7"}
_LONG_NAME, _LONG_LINK = b"L", b"K"
_PAX, _PAX_GLOBAL = b"x", b"g"
_FOLDERS_AND_LABELS = {b"5": "a folder", b"V": "a volume label"}
_WITHOUT_BYTES = {
    **_FOLDERS_AND_LABELS,
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a character device",
    b"4": "a block device",
    b"6": "a named pipe",
}
_NO_PLAIN_FILE = {
    b"S": "a sparse file",
    b"M": "the continuation of a file from another volume",
    b"N": "a table of long names as GNU tar wrote it before 1.12",
    b"D": "a folder with a list of names",
}
_PACK_AGAIN = "write the archive again with plain files alone: tar --format=pax -cf NEW.tar FILES..."


class Member(NamedTuple):
    """A regular file of an archive. ``offset`` and ``size_bytes`` say where its content lies."""

    name: str
    offset: int
    size_bytes: int
    header_offset: int


class Entry(NamedTuple):
    """A member of any kind. ``begin`` is where its first header lies, extended ones included; ``kind`` is ""
    for a regular file, else what it is: "a symbolic link".
    """

    member: Member
    begin: int
    kind: str


class ForwardReader:
    """A stream that comes once, as ``read_entries`` reads it: it can be sought forwards alone."""

    def __init__(self, source: io.BufferedIOBase) -> None:
        self._source = source
        self._position = 0

    def seekable(self) -> bool:
        return False

    def read(self, size: int, /) -> bytes:
        content = self._source.read(size)
        self._position += len(content)
        return content

    def seek(self, position: int, /) -> int:
        """Read on to a position, or to the end of the stream; return where that is."""
        while self._position < position and self.read(min(position - self._position, _SKIP_BYTES)):
            pass
        return self._position


TarFile = BinaryIO | io.BufferedIOBase | ForwardReader


@dataclass
class _Extended:
    """What extended headers say of the file that follows them."""

    name: bytes | None = None
    size_bytes: int | None = None
    is_sparse: bool = False
    seen: bool = field(default=False, repr=False)


def read_members(
    file: TarFile, *, where: str, on_odd: Callable[[int, str], object] | None = None
) -> Iterator[Member]:
    """Yield the regular files of a data set's archive, in order.

    Args:
        file: at any position; it is read and moved.
        where: the archive's name, for messages.
        on_odd: told of each link, device or pipe and of each file without a name or with one that leads
            elsewhere, by its byte and what it is; the member is passed over then. None: it is an error.

    Raises:
        ShardError: whatever is not a plain archive of regular files, with the byte at which it was found.
    """
    for member, _, kind in read_entries(file, where=where):
        if kind in _FOLDERS_AND_LABELS.values():
            continue
        problem = f"is {kind}" if kind else _odd_name(member.name)
        if problem is None:
            yield member
        elif on_odd is None:
            raise _odd_member(member, problem, f"{where}, byte {member.header_offset}")
        else:
            on_odd(member.header_offset, f"{member.name!r:.200} {problem}")


def _odd_name(name: str) -> str | None:
    if not name:
        return "has no name"
    if name.startswith("/"):
        return "has an absolute name"
    return "has a name with `..` in it" if ".." in name.split("/") else None


def read_entries(file: TarFile, *, where: str, start: int = 0, end: int | None = None) -> Iterator[Entry]:
    """Yield the members of an archive, whatever they are, in order.

    Args:
        file: at any position; it is read and moved. A ``ForwardReader`` must be at its beginning.
        where: the archive's name, for messages.
        start, end: only the members whose ``begin`` lies there; ``start`` is one, or 0.

    Raises:
        ShardError: a damaged archive, or a member whose bytes are no plain file, with the byte of it.
    """
    size = _NO_SIZE if isinstance(file, ForwardReader) else file.seek(0, 2)
    if not size:
        raise ShardError("The tar is empty: not even an end block.", where=where, remedy="write it again")
    extended = _Extended()
    position = begin = start
    num_headers = 0
    while position < size:
        begin = begin if extended.seen else position
        if end is not None and begin >= end:
            return
        place = f"{where}, byte {position}"
        header = _read_header(file, position, where)
        if not header:
            size = position  # of a stream, which ends without a block of zeros
            break
        if header.count(0) == BLOCK:
            _check_pending(extended, place)
            _check_end(file, position, where)
            return
        num_headers += 1
        if num_headers > _MOST_MEMBERS:
            raise ShardError(
                "The tar has more members than any shard needs.", where=place, expected=f"<= {_MOST_MEMBERS}"
            )
        _check_sum(header, position, place)
        kind = header[156:157]
        size_bytes = _number(header[124:136], "size", place)
        if kind in (_PAX, _PAX_GLOBAL, _LONG_NAME, _LONG_LINK):
            _read_extended(_content(file, position, size_bytes, size, place), kind, extended, place)
            position = _following(position, size_bytes)
            continue
        entry = _entry(header, kind, size_bytes, position, begin, extended, place)
        if not entry.kind and entry.member.offset + entry.member.size_bytes > size:
            expected = f"{entry.member.size_bytes} bytes from {entry.member.offset}, and the file has {size}"
            raise _ends_within(f"the member {entry.member.name!r:.200}", place, expected)
        yield entry
        position = _following(position, entry.member.size_bytes)
        extended = _Extended()
    _check_pending(extended, f"{where}, byte {position}")
    if position > size:
        raise _ends_within("a member", f"{where}, byte {size}", f"{position} bytes or more")


def has_tar_name(path: str) -> bool:
    """Whether the name says that the file is a tar, plain or compressed."""
    return plain_name(path).lower().endswith(".tar")


def is_tar(head: bytes) -> bool:
    """Whether a file begins with a header of a tar, by its checksum."""
    return len(head) >= BLOCK and any(head[:BLOCK]) and _has_right_sum(head[:BLOCK])


def member_name(header: bytes) -> str:
    """Return the name that a member's own header gives, for messages: a long one is cut short there."""
    return _decode(_header_name(header)) if len(header) == BLOCK else ""


def _entry(
    header: bytes, kind: bytes, size_bytes: int, position: int, begin: int, extended: _Extended, place: str
) -> Entry:
    """Return the member that a header describes. Raises ShardError where its bytes are no plain file."""
    name = _decode(extended.name if extended.name is not None else _header_name(header))
    if extended.size_bytes is not None:
        size_bytes = extended.size_bytes
    what = _WITHOUT_BYTES.get(kind, "")
    if kind == b"\0" and name.endswith("/"):  # before there were types
        what = _FOLDERS_AND_LABELS[b"5"]
    member = Member(name, position + BLOCK, 0 if what else size_bytes, position)
    problem = None
    if what and size_bytes and what not in _FOLDERS_AND_LABELS.values():
        problem = f"is {what} of {size_bytes} bytes"  # nobody can tell where the next header is
    elif not what and kind not in _REGULAR:
        problem = f"is {_NO_PLAIN_FILE.get(kind, f'of the unknown type {kind!r}')}"
    elif extended.is_sparse:
        problem = "is a sparse file"
    if problem:
        raise _odd_member(member, problem, place)
    return Entry(member, begin, what)


def _odd_member(member: Member, problem: str, place: str) -> ShardError:
    return ShardError(f"The member {member.name!r:.200} {problem}.", where=place, remedy=_PACK_AGAIN)


def _read_header(file: TarFile, position: int, where: str) -> bytes:
    """Return the block at a position; of a stream that ends there b""."""
    place = f"{where}, byte {position}"
    reached = file.seek(position)
    if reached < position:  # a stream
        raise _ends_within("a member", f"{where}, byte {reached}", f"{position} bytes or more")
    header = file.read(BLOCK)
    if position == 0 and (compression := compressed_with(header)):
        raise ShardError(
            f"The tar is compressed with {compression}: its examples cannot be read one by one.",
            where=where,
            remedy="decompress it first; images hardly shrink",
        )
    if len(header) == BLOCK or (not header and position and isinstance(file, ForwardReader)):
        return header
    raise _ends_within("a header", place, f"{BLOCK} bytes, and there are {len(header)}")


def _check_end(file: TarFile, position: int, where: str) -> None:
    """Two blocks of zeros end an archive, and nothing but zeros may follow."""
    file.seek(position + BLOCK)
    position += BLOCK
    while block := file.read(_SKIP_BYTES):
        rest = block.lstrip(b"\0")
        if rest:
            raise ShardError(
                "There is more behind the end of the archive, which no reader of tar files would see.",
                where=f"{where}, byte {position + len(block) - len(rest)}",
                remedy="if two archives were joined, name each of them by itself; or cut the file there",
            )
        position += len(block)


def _check_pending(extended: _Extended, place: str) -> None:
    if extended.seen:
        raise ShardError("An extended header is followed by no member.", where=place, remedy=_PACK_AGAIN)


def _check_sum(header: bytes, position: int, place: str) -> None:
    if _has_right_sum(header):
        return
    raise ShardError(
        "This is no tar file." if position == 0 else "The header of a member fails its checksum.",
        where=place,
        expected="a header of 512 bytes whose sum stands in it",
        remedy="fetch or write the archive again",
    )


def _has_right_sum(header: bytes) -> bool:
    stored = _octal(header[148:156])
    rest = header[:148] + b" " * 8 + header[156:]
    # Old writers summed signed bytes.
    return stored is not None and stored in (sum(rest), sum(rest) - 256 * sum(byte > 127 for byte in rest))


def _ends_within(what: str, place: str, expected: str) -> ShardError:
    return ShardError(
        f"The tar ends within {what}.",
        where=place,
        expected=expected,
        remedy="fetch or write the archive again",
    )


def _content(file: TarFile, position: int, size_bytes: int, size: int, place: str) -> bytes:
    if size_bytes > _MOST_EXTENDED_BYTES or position + BLOCK + size_bytes > size:
        raise ShardError(
            f"An extended header claims {size_bytes} bytes.",
            where=place,
            expected=f"at most {_MOST_EXTENDED_BYTES}, within the file",
            remedy=_PACK_AGAIN,
        )
    file.seek(position + BLOCK)
    content = file.read(size_bytes)
    if len(content) != size_bytes:  # of a stream
        raise _ends_within("an extended header", place, f"{size_bytes} bytes, and there are {len(content)}")
    return content


def _read_extended(content: bytes, kind: bytes, extended: _Extended, place: str) -> None:
    """Take from an extended header what matters here: the name, the size, whether the file is sparse."""
    if kind == _LONG_NAME:
        extended.name = content.split(b"\0", 1)[0]
    if kind in (_PAX, _PAX_GLOBAL):
        for key, value in _pax_records(content, place):
            if kind == _PAX_GLOBAL:
                if key in (b"path", b"size") or key.startswith(b"GNU.sparse."):
                    raise ShardError(
                        f"A global header sets {key.decode()} for all members.",
                        where=place,
                        remedy=_PACK_AGAIN,
                    )
            elif key == b"path":
                extended.name = value
            elif key == b"size":
                extended.size_bytes = _pax_number(value, place)
            elif key.startswith(b"GNU.sparse."):
                extended.is_sparse = True
    extended.seen = extended.seen or kind != _PAX_GLOBAL


def _pax_records(content: bytes, place: str) -> Iterator[tuple[bytes, bytes]]:
    """Yield key and value of each record ``<length> <key>=<value>\\n``; the length counts all of it."""
    position = 0
    while position < len(content):
        digits, space, _ = content[position : position + 20].partition(b" ")
        length = int(digits) if digits.isdigit() else 0
        record = content[position : position + length]
        key, equals, value = record[len(digits) + 1 : -1].partition(b"=")
        if not space or not equals or len(record) != length or record[-1:] != b"\n" or b"\0" in key:
            raise ShardError(
                f"A pax header is malformed at its byte {position}.",
                where=place,
                expected="records <length> <key>=<value> and a newline",
                remedy=_PACK_AGAIN,
            )
        yield key, value
        position += length


def _pax_number(value: bytes, place: str) -> int:
    if not value.isdigit() or len(value) > 16 or int(value) > _MOST_BYTES:
        raise ShardError(f"A pax header says size={value!r:.50}.", where=place, remedy=_PACK_AGAIN)
    return int(value)


def _number(text: bytes, what: str, place: str) -> int:
    """Return a number of a header: octal digits, or base 256 where the first bit is set."""
    if text[0] & 0x80:
        # The bit below the marker is the sign, and a file has no negative size.
        value = -1 if text[0] & 0x40 else int.from_bytes(bytes([text[0] & 0x7F]) + text[1:], "big")
    else:
        value = _octal(text)
    if value is None or not 0 <= value <= _MOST_BYTES:
        raise ShardError(
            f"A header's {what} is {text!r}.", where=place, expected="a number from 0", remedy=_PACK_AGAIN
        )
    return value


def _octal(text: bytes) -> int | None:
    digits = text.split(b"\0", 1)[0].strip()
    if not digits:
        return 0
    return int(digits, 8) if all(byte in b"01234567" for byte in digits) else None


def _header_name(header: bytes) -> bytes:
    name = header[:100].split(b"\0", 1)[0]
    # GNU tar's own format has other things where ustar keeps the front of a long name.
    prefix = header[345:500].split(b"\0", 1)[0] if header[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _decode(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _following(position: int, size_bytes: int) -> int:
    return position + BLOCK + -(-size_bytes // BLOCK) * BLOCK
