"""Tar archives, read by their headers: where the bytes of each file lie. Nothing is ever extracted.

In: an open file. Out: a ``Member`` for each regular file in it: name, offset, size. Understood are v7, ustar,
GNU (long names, sizes in base 256) and pax headers. A link, a device, a sparse file, a name that leads
elsewhere, a damaged header and anything behind the archive's end are refused with the offset of the header: a
reader that passed over them would lose examples without a word. A caller who wants to hear of each may have
links, devices and such names passed over. Folders and volume labels hold no bytes and are passed over.

Sources: POSIX.1-2017, pax, "ustar Interchange Format" and "pax Interchange Format"; the GNU tar manual,
"Basic Tar Format".
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, NamedTuple

from outlast.errors import ShardError

BLOCK = 512
_MOST_MEMBERS = 2**22
_MOST_EXTENDED_BYTES = 2**20
"""Of one pax header or long name."""
_MOST_BYTES = 2**50

_REGULAR = {b"0", b"\0", b"7"}
_FOLDER, _LABEL = b"5", b"V"
_LONG_NAME, _LONG_LINK = b"L", b"K"
_PAX, _PAX_GLOBAL = b"x", b"g"
_REFUSED = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a character device",
    b"4": "a block device",
    b"6": "a named pipe",
    b"S": "a sparse file",
    b"M": "the continuation of a file from another volume",
    b"N": "a table of long names as GNU tar wrote it before 1.12",
    b"D": "a folder with a list of names",
}
_WITHOUT_CONTENT = (b"1", b"2", b"3", b"4", b"6")
"""Of what is refused: kinds that are a header and no more, so that what follows is found without a doubt."""
_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"\x1f\x9d": "compress",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
    b"\x02\x21\x4c\x18": "lz4",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
}
_PACK_AGAIN = "write the archive again with plain files alone: tar --format=pax -cf NEW.tar FILES..."


class Member(NamedTuple):
    """A regular file of an archive. ``offset`` and ``size_bytes`` say where its content lies."""

    name: str
    offset: int
    size_bytes: int
    header_offset: int


@dataclass
class _Extended:
    """What extended headers say of the file that follows them."""

    name: bytes | None = None
    size_bytes: int | None = None
    is_sparse: bool = False
    seen: bool = field(default=False, repr=False)


def read_members(
    file: BinaryIO, *, where: str, on_odd: Callable[[int, str], object] | None = None
) -> Iterator[Member]:
    """Yield the regular files of an archive, in order.

    Args:
        file: at any position; it is read and moved.
        where: the archive's name, for messages.
        on_odd: told of each link, device or pipe and of each file without a name or with one that leads
            elsewhere, by its byte and what it is; the member is passed over then. None: it is an error.

    Raises:
        ShardError: whatever is not a plain archive of regular files, with the byte at which it was found.
    """
    size = file.seek(0, 2)
    if not size:
        raise ShardError("The tar is empty: not even an end block.", where=where, remedy="write it again")
    _check_plain(file, where)
    extended = _Extended()
    position, num_headers = 0, 0
    while position < size:
        place = f"{where}, byte {position}"
        header = _read_at(file, position, BLOCK, place)
        if header.count(0) == BLOCK:
            _check_pending(extended, place)
            _check_end(file, position, size, where)
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
        if extended.size_bytes is not None:
            size_bytes = extended.size_bytes
        name = _decode(extended.name if extended.name is not None else _header_name(header))
        member = Member(name, position + BLOCK, size_bytes, position)
        if not _is_passed_over(kind, name):
            problem = _check_member(member, kind, extended, size, place)
            if problem is None:
                yield member
            elif on_odd is None:
                raise ShardError(f"The member {problem}.", where=place, remedy=_PACK_AGAIN)
            else:
                on_odd(position, problem)
        else:
            member = member._replace(size_bytes=0 if kind == _FOLDER else size_bytes)
        position = _following(position, member.size_bytes)
        extended = _Extended()
    _check_pending(extended, f"{where}, byte {position}")
    if position > size:
        raise _ends_within("a member", f"{where}, byte {size}", f"{position} bytes or more")


def member_name(header: bytes) -> str:
    """Return the name that a member's own header gives, for messages: a long one is cut short there."""
    return _decode(_header_name(header)) if len(header) == BLOCK else ""


def _is_passed_over(kind: bytes, name: str) -> bool:
    # Before there were types, a name that ends with a slash was a folder.
    return kind in (_FOLDER, _LABEL) or (kind == b"\0" and name.endswith("/"))


def _check_member(member: Member, kind: bytes, extended: _Extended, size: int, place: str) -> str | None:
    """Return why a member is none of the files that are read, None for one that is.

    Raises ShardError for what cannot be passed over either: nobody can tell where the next header is.
    """
    named = f"{member.name!r:.200}"
    if kind not in _REGULAR:
        what = _REFUSED.get(kind, f"of the unknown type {kind!r}")
        if kind in _WITHOUT_CONTENT and not member.size_bytes:
            return f"{named} is {what}"
        size_text = f" of {member.size_bytes} bytes" if kind in _WITHOUT_CONTENT else ""
        raise ShardError(f"The member {named} is {what}{size_text}.", where=place, remedy=_PACK_AGAIN)
    if extended.is_sparse:
        raise ShardError(f"The member {named} is a sparse file.", where=place, remedy=_PACK_AGAIN)
    if member.offset + member.size_bytes > size:
        expected = f"{member.size_bytes} bytes from {member.offset}, and the file has {size}"
        raise _ends_within(f"the member {named}", place, expected)
    if not member.name:
        return f"{named} has no name"
    if member.name.startswith("/"):
        return f"{named} has an absolute name"
    return f"{named} has a name with `..` in it" if ".." in member.name.split("/") else None


def _check_end(file: BinaryIO, position: int, size: int, where: str) -> None:
    """Two blocks of zeros end an archive, and nothing but zeros may follow."""
    while position < size:
        file.seek(position)
        block = file.read(min(2**20, size - position))
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


def _check_plain(file: BinaryIO, where: str) -> None:
    file.seek(0)
    start = file.read(6)
    for magic, name in _COMPRESSED.items():
        if start.startswith(magic):
            raise ShardError(
                f"The tar is compressed with {name}: its examples cannot be read one by one.",
                where=where,
                remedy="decompress it first; images hardly shrink",
            )


def _check_sum(header: bytes, position: int, place: str) -> None:
    stored = _octal(header[148:156])
    rest = header[:148] + b" " * 8 + header[156:]
    # Old writers summed signed bytes.
    if stored is not None and (
        stored == sum(rest) or stored == sum(rest) - 256 * sum(byte > 127 for byte in rest)
    ):
        return
    raise ShardError(
        "This is no tar file." if position == 0 else "The header of a member fails its checksum.",
        where=place,
        expected="a header of 512 bytes whose sum stands in it",
        remedy="fetch or write the archive again",
    )


def _read_at(file: BinaryIO, position: int, length: int, place: str) -> bytes:
    file.seek(position)
    content = file.read(length)
    if len(content) != length:
        raise _ends_within("a header", place, f"{length} bytes, and there are {len(content)}")
    return content


def _ends_within(what: str, place: str, expected: str) -> ShardError:
    return ShardError(
        f"The tar ends within {what}.",
        where=place,
        expected=expected,
        remedy="fetch or write the archive again",
    )


def _content(file: BinaryIO, position: int, size_bytes: int, size: int, place: str) -> bytes:
    if size_bytes > _MOST_EXTENDED_BYTES or position + BLOCK + size_bytes > size:
        raise ShardError(
            f"An extended header claims {size_bytes} bytes.",
            where=place,
            expected=f"at most {_MOST_EXTENDED_BYTES}, within the file",
            remedy=_PACK_AGAIN,
        )
    return _read_at(file, position + BLOCK, size_bytes, place)


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
