"""Bytes to text, with every undecodable byte accounted for.

In: bytes of a file and the name of an encoding. Out: text, and a ``Tally`` of what could not be decoded, by
file and byte offset (for compressed files: the offset in the decompressed bytes). Encodings in which a
newline is not always the single byte 0x0A are turned into UTF-8 as a stream, so that all readers work on
one kind of bytes.
"""

import codecs
import io
import threading
from dataclasses import dataclass, field
from typing import NamedTuple, cast

from outlast.corpus.recognize import no_text
from outlast.errors import CorpusError

MAX_LISTED = 100
_LISTED_IN_ERROR = 10
_READ_BYTES = 2**16
_HANDLER = "outlast-collect"
_EVIDENCE_BYTES = 2**18
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_SINGLE_BYTE = ("ascii", "iso8859-", "cp125", "koi8-")


class Undecodable(NamedTuple):
    """A run of bytes that is no text."""

    file: str
    offset: int
    num_bytes: int


@dataclass
class Tally:
    """What reading a part of the corpus came across. ``undecodable`` lists the first ``MAX_LISTED``
    places; ``members`` counts those of tars by what became of them, ``encodings`` those that were detected.
    """

    documents: int = 0
    text_bytes: int = 0
    empty_documents: int = 0
    undecodable_bytes: int = 0
    undecodable: list[Undecodable] = field(default_factory=list[Undecodable])
    members: dict[str, int] = field(default_factory=dict[str, int])
    encodings: dict[str, int] = field(default_factory=dict[str, int])

    def add_member(self, became: str) -> None:
        """Count a member of a tar."""
        self.members[became] = self.members.get(became, 0) + 1

    def add_undecodable(self, place: Undecodable) -> None:
        """Count a place, and list it while there is room."""
        self.undecodable_bytes += place.num_bytes
        if len(self.undecodable) < MAX_LISTED:
            self.undecodable.append(place)


class _Collector(threading.local):
    """Where the error handler below puts what it meets; the codec machinery knows handlers by name only."""

    def __init__(self) -> None:
        self.file = ""
        self.base = 0
        self.tally = Tally()

    def __call__(self, error: UnicodeError) -> tuple[str, int]:
        if not isinstance(error, UnicodeDecodeError):
            raise error
        self.tally.add_undecodable(Undecodable(self.file, self.base + error.start, error.end - error.start))
        return "\ufffd", error.end


_collector = _Collector()
codecs.register_error(_HANDLER, _collector)


@dataclass(frozen=True)
class Decoder:
    """Decodes the bytes of one file.

    Args:
        file: name for messages.
        encoding: a text encoding.
        undecodable: ``error`` or ``replace``.
        tally: where undecodable bytes are counted.
    """

    file: str
    encoding: str
    undecodable: str
    tally: Tally

    def decode(self, content: bytes, offset: int) -> str:
        """Return the text of bytes that begin at an offset of the file. Raises CorpusError."""
        try:
            return content.decode(self.encoding)
        except UnicodeDecodeError:
            found = self.collect(offset)
            text = content.decode(self.encoding, _HANDLER)
            self.settle(found)
            return text

    def without_nul(self, text: str, content: bytes, offset: int) -> str:
        """Return the text of bytes that begin at an offset without the NUL in it: each becomes U+FFFD and is
        counted, or CorpusError is raised.
        """
        width = 4 if self.encoding.startswith("utf-32") else 2 if self.encoding.startswith("utf-16") else 1
        for place in range(0, len(content), width):
            if not any(content[place : place + width]):
                if self.undecodable == "error":
                    raise no_text(offset + place, where=self.file)
                self.tally.add_undecodable(Undecodable(self.file, offset + place, width))
        return text.replace("\0", "\ufffd")

    def stream(self, source: io.BufferedIOBase) -> io.BufferedReader:
        """Return the whole file as UTF-8. Reading raises CorpusError."""
        return io.BufferedReader(_Transcoded(source, self), _READ_BYTES)

    def collect(self, offset: int) -> Tally:
        """Make the error handler count into a new tally, for bytes that begin at an offset of the file."""
        found = Tally()
        _collector.file, _collector.base, _collector.tally = self.file, offset, found
        return found

    def settle(self, found: Tally) -> None:
        """Count what the error handler found, or raise CorpusError."""
        if found.undecodable and self.undecodable == "error":
            offsets = ", ".join(str(place.offset) for place in found.undecodable[:_LISTED_IN_ERROR])
            more = ", ..." if len(found.undecodable) > _LISTED_IN_ERROR else ""
            raise CorpusError(
                f"{found.undecodable_bytes} bytes are no text in {self.encoding}, at byte {offsets}{more}.",
                where=self.file,
                expected=f"text encoded as {self.encoding}",
                remedy='name the right corpus.encoding (or "auto"), leave the file out by corpus.include, '
                'or set corpus.undecodable = "replace"',
            )
        self.tally.undecodable_bytes += found.undecodable_bytes
        self.tally.undecodable += found.undecodable[: MAX_LISTED - len(self.tally.undecodable)]


class _Transcoded(io.RawIOBase):
    """A stream of bytes in any encoding, read as UTF-8."""

    def __init__(self, source: io.BufferedIOBase, decoder: Decoder) -> None:
        self._source = source
        self._decoder = decoder
        self._codec = codecs.getincrementaldecoder(decoder.encoding)(_HANDLER)
        self._consumed = 0
        self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = cast(memoryview, buffer)
        while not self._ready:
            content = self._source.read(_READ_BYTES)
            # The codec's own buffer holds the beginning of a character that the last read cut in two.
            pending = cast(tuple[bytes, object], self._codec.getstate())[0]
            found = self._decoder.collect(self._consumed - len(pending))
            text = self._decode(content)
            self._decoder.settle(found)
            if "\0" in text:
                text = self._decoder.without_nul(text, pending + content, self._consumed - len(pending))
            self._consumed += len(content)
            self._ready = text.encode("utf-8", "surrogatepass")
            if not content:
                break
        count = min(len(view), len(self._ready))
        view[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def _decode(self, content: bytes) -> str:
        try:
            return self._codec.decode(content, final=not content)
        except UnicodeError as error:  # UTF-16 and UTF-32 insist on their mark
            raise CorpusError(
                f"The file cannot be decoded: {error}.",
                where=self._decoder.file,
                expected=f"text encoded as {self._decoder.encoding}",
                remedy='name the byte order too: corpus.encoding = "utf-16-le" or "utf-16-be"',
            ) from None


def canonical(encoding: str) -> str:
    """Return Python's own name of an encoding; UTF-8 with a byte order mark is plain UTF-8 (the mark is
    dropped).
    """
    name = codecs.lookup(encoding).name
    return "utf-8" if name == "utf-8-sig" else name


def is_byte_aligned(encoding: str) -> bool:
    """Whether a newline is the byte 0x0A and nothing else is, so that reading can begin at any byte."""
    return encoding == "utf-8" or encoding.startswith(_SINGLE_BYTE)


def detect(source: io.BufferedIOBase, *, where: str) -> str:
    """Return the encoding of a stream: UTF-8 where the bytes are valid, else the best guess.

    The whole stream is read. It counts as UTF-8 with flaws where at most one of twenty characters beyond
    ASCII is broken; otherwise the lines that are not ASCII decide: Japanese is known by its hiragana, the
    rest is left to charset-normalizer.

    Raises:
        CorpusError: nothing fits.
    """
    head = source.read(_READ_BYTES)
    for mark, name in _MARKS:
        if head.startswith(mark):
            return name
    if head.count(0) * 5 > len(head):  # UTF-16 without a mark: every byte of it may be valid UTF-8
        return _guess(head, where)
    utf8 = codecs.getincrementaldecoder("utf-8")(_HANDLER)
    found = _collector.tally = Tally()
    num_characters = 0
    evidence = _Evidence()
    content = head
    while content:
        text = utf8.decode(content)
        if not content.isascii():
            num_characters += len(text) - sum(map(str.isascii, text))
        evidence.add(content)
        content = source.read(_READ_BYTES)
    utf8.decode(b"", final=True)
    if found.undecodable_bytes * 20 <= num_characters:
        return "utf-8"
    return _guess(evidence.finish(), where)


class _Evidence:
    """Whole lines that hold bytes beyond ASCII, the first 256 KiB of them: the others tell nothing."""

    def __init__(self) -> None:
        self._lines = bytearray()
        self._begun = b""

    def add(self, content: bytes) -> None:
        if len(self._lines) < _EVIDENCE_BYTES:
            *lines, self._begun = (self._begun + content).split(b"\n")
            for line in lines:
                self._add_line(line)
            if len(self._begun) > _EVIDENCE_BYTES:  # a file without lines
                self._add_line(self._begun)
                self._begun = b""

    def finish(self) -> bytes:
        self._add_line(self._begun)
        return bytes(self._lines)

    def _add_line(self, line: bytes) -> None:
        if not line.isascii():
            self._lines += line + b"\n"


def _guess(evidence: bytes, where: str) -> str:
    for encoding in ("cp932", "euc_jp"):
        if _is_japanese(evidence, encoding):
            return encoding
    from charset_normalizer import from_bytes

    best = from_bytes(evidence).best()
    if best is None:
        raise CorpusError(
            "The encoding cannot be detected.",
            where=where,
            remedy="name it as corpus.encoding, or leave the file out by corpus.include",
        )
    return canonical(best.encoding)


def _is_japanese(evidence: bytes, encoding: str) -> bool:
    """Whether bytes are nearly flawless in an encoding and a fifth of the text is hiragana.

    charset-normalizer takes EUC-JP for Chinese, and gives up on one byte in a book that no encoding has.
    """
    text = evidence.decode(encoding, "replace")
    beyond_ascii = [character for character in text if not character.isascii()]
    num_hiragana = sum("\u3041" <= character <= "\u3096" for character in beyond_ascii)
    num_broken = beyond_ascii.count("\ufffd")
    return num_hiragana * 5 > len(beyond_ascii) and num_broken * 100 <= len(beyond_ascii)
