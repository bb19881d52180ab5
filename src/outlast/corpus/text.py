"""Documents from text files: blocks between blank lines, marked articles, whole files, or JSON lines.

In: an ``Extent`` of a file. Out: the documents whose first byte lies in it, each with its place. The reader
begins at any byte: it looks back to learn whether it stands inside a document, and reads its last document
to the end even where that lies beyond the extent. Memory is bounded by ``max_document_bytes``, whatever the
lines are like.
"""

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Literal, cast

import orjson

from outlast.corpus.compressed import open_binary
from outlast.corpus.config import CorpusConfig
from outlast.corpus.encoding import Decoder, Tally, is_byte_aligned
from outlast.corpus.extent import Extent
from outlast.corpus.markup import ARTICLE
from outlast.corpus.recognize import Format, suggest_field
from outlast.errors import CorpusError

_BLOCK_BYTES = 2**16
_LINE_END = 2
_MARK = "\ufeff"
_ARTICLE = ARTICLE.encode()

Place = Callable[[], str]


def read_text(config: CorpusConfig, extent: Extent, tally: Tally) -> Iterator[tuple[str, str]]:
    """Yield (document, place) of a text or jsonl file's extent. Raises CorpusError."""
    file = extent.file
    decoder = Decoder(file.name, file.encoding, config.undecodable, tally)
    start, end = (0, None) if file.unit_bytes else (extent.start, extent.end)
    with open_binary(file.path, where=file.path) as source:
        yield from read_stream(
            config,
            source,
            decoder,
            format=file.format,
            documents=file.documents,
            where=file.path,
            start=start,
            end=end,
        )


def read_stream(
    config: CorpusConfig,
    source: io.BufferedIOBase,
    decoder: Decoder,
    *,
    format: Format,
    documents: Literal["blank_line", "file"],
    where: str,
    start: int = 0,
    end: int | None = None,
) -> Iterator[tuple[str, str]]:
    """Yield (document, place) of the documents of a stream that begin at ``start`` to ``end``.

    Args:
        decoder: names the stream as it stands in a document's place; where: as it stands in errors.

    Raises:
        CorpusError: what is no text, no JSON, or too long.
    """
    name = decoder.file
    if not is_byte_aligned(decoder.encoding):
        source = decoder.stream(source)
        decoder = replace(decoder, encoding="utf-8")
    lines = _Lines(source, start, config.max_document_bytes, where)
    if format == "jsonl":
        yield from _read_json_lines(config, lines, end, decoder)
    elif documents == "file":
        content = lines.rest()
        yield _text(decoder, content, 0), name
    else:
        find = _articles if config.markup == "wiki40b" else _blocks
        for offset, content in find(lines, end):
            yield _text(decoder, content, offset), f"{name}, byte {offset}"


class _Lines:
    """Lines of a stream, each with its place, none longer than a document may be.

    Args:
        source: the bytes; seekable where start is not 0.
        start: first byte to read.
        limit: most bytes of a document.
        where: file for messages.
    """

    def __init__(self, source: io.BufferedIOBase, start: int, limit: int, where: str) -> None:
        self.source = source
        self.position = start
        self.limit = limit
        self.where = where
        if start:
            source.seek(start)

    def next(self, already: int = 0) -> bytes:
        """Return the next line with its end, b"" at the end of the file.

        Raises:
            CorpusError: it would make a document, of which ``already`` bytes are read, too long.
        """
        longest = max(self.limit - already, 0) + 3  # the line's end, and one byte that tells a longer line
        line = self.source.readline(longest)
        if len(line) + already > self.limit:  # with its end; seldom, so the rest of the check may cost
            is_cut = len(line) == longest and not line.endswith(b"\n")
            if is_cut or (line.strip() and len(line.rstrip(b"\r\n")) + already > self.limit):
                raise too_long(self.limit, f"{self.where}, byte {self.position - already}")
        self.position += len(line)
        return line

    def skip(self) -> bool:
        """Skip to the end of the line, however long; return whether what was skipped is more than white
        space.
        """
        is_text = False
        while part := self.source.readline(_BLOCK_BYTES):
            self.position += len(part)
            is_text = is_text or bool(part.strip())
            if part.endswith(b"\n"):
                break
        return is_text

    def rest(self) -> bytes:
        """Return all that follows. Raises CorpusError where it is longer than a document may be."""
        content = self.source.read(self.limit + 1)
        self.position += len(content)
        if len(content) > self.limit:
            raise too_long(self.limit, self.where)
        return content


def _blocks(lines: _Lines, end: int | None) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, bytes) of the blocks between blank lines that begin before ``end``."""
    in_document = _begins_inside(lines)
    while in_document and _before(lines, end):
        in_document = lines.skip()
    while _before(lines, end):
        offset = lines.position
        line = lines.next()
        if not line:
            return
        if line.isspace():
            continue
        block = [line]
        size = len(line)
        while (line := lines.next(size)) and not line.isspace():
            block.append(line)
            size += len(line)
        yield offset, _without_line_end(b"".join(block))


def _articles(lines: _Lines, end: int | None) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, bytes) of the articles whose first line, the mark, begins before ``end``.

    What stands before the first mark of a file is an article too, where it is more than white space.
    """
    if lines.position:
        _to_article(lines, end)
    offset, size = lines.position, 0
    article: list[bytes] = []
    while size or _before(lines, end):
        begin = lines.position
        line = lines.next()
        if not line or line.lstrip().startswith(_ARTICLE):
            if b"".join(article).strip():
                yield offset, b"".join(article)
            if not line or not _is_before(begin, end):
                return
            offset, size, article = begin, 0, []
        article.append(line)
        size += len(line)
        if size > lines.limit + _LINE_END and line.strip():
            raise too_long(lines.limit, f"{lines.where}, byte {offset}")


def _to_article(lines: _Lines, end: int | None) -> None:
    """Go on to the next line that begins an article, or to ``end``."""
    _to_line(lines)
    while _before(lines, end):
        begin = lines.position
        head = lines.source.readline(_BLOCK_BYTES)
        if not head or head.lstrip().startswith(_ARTICLE):
            lines.source.seek(begin)
            return
        lines.position += len(head)
        if not head.endswith(b"\n"):
            lines.skip()


def _to_line(lines: _Lines) -> None:
    """Go on from anywhere in a line to the next one; the beginning of a line is where it is."""
    if lines.position:
        lines.source.seek(lines.position - 1)
        if lines.source.read(1) != b"\n":
            lines.skip()


def _begins_inside(lines: _Lines) -> bool:
    """Return whether the line at the position goes on with a document that began before it.

    A position inside a line is first moved to the next line.
    """
    start = lines.position
    if not start:
        return False
    num_newlines, is_text = _look_back(lines.source, start)
    lines.source.seek(start - 1)
    at_line = lines.source.read(1) == b"\n"
    if at_line:
        return num_newlines == 1 and is_text
    return lines.skip() or (num_newlines == 0 and is_text)


def _look_back(source: io.BufferedIOBase, start: int) -> tuple[int, bool]:
    """Return how many newlines, counted to 2, stand between ``start`` and the text before it, and if there
    is text.
    """
    num_newlines = 0
    while start:
        begin = max(start - _BLOCK_BYTES, 0)
        source.seek(begin)
        block = source.read(start - begin)
        rest = block.rstrip()
        num_newlines += block[len(rest) :].count(b"\n")
        if rest or num_newlines >= 2:
            return min(num_newlines, 2), bool(rest)
        start = begin
    return num_newlines, False


def _read_json_lines(
    config: CorpusConfig, lines: _Lines, end: int | None, decoder: Decoder
) -> Iterator[tuple[str, str]]:
    _to_line(lines)
    number = 0
    begin = lines.position
    while _before(lines, end):
        offset = lines.position
        line = lines.next()
        if not line:
            return
        number += 1
        if not line.isspace():
            place = _line_place(decoder.file, lines, begin, number)
            text = _json_text(_json_record(decoder, line, offset, place), config.text_field, place)
            yield text, f"{decoder.file}, byte {offset}"


def _json_record(decoder: Decoder, line: bytes, offset: int, place: Place) -> Any:
    """Parse a line, by orjson where it can and else by json.

    orjson is faster, for it takes bytes, and stricter: it refuses half of a surrogate pair, NaN, a byte order
    mark and bytes that are no UTF-8. What it accepts it reads as json does.
    """
    if decoder.encoding == "utf-8":
        try:
            return orjson.loads(line)
        except orjson.JSONDecodeError:
            pass
    try:
        return json.loads(_text(decoder, line, offset))
    except (ValueError, RecursionError) as error:
        raise CorpusError(
            f"The line is not valid JSON: {error}", where=place(), remedy="repair or remove it"
        ) from None


def _json_text(record: Any, field: str, place: Place) -> str:
    if not isinstance(record, dict):
        raise CorpusError("The line holds no JSON object.", where=place(), expected=f'{{"{field}": "..."}}')
    record = cast(dict[str, Any], record)
    if field not in record:
        raise CorpusError(
            f"The line has no field {field!r}; it has {', '.join(map(repr, list(record)[:20])) or 'none'}.",
            where=place(),
            remedy=suggest_field(field, record),
        )
    if not isinstance(record[field], str):
        raise CorpusError(
            f"The field {field!r} is {type(record[field]).__name__}, not text.",
            where=place(),
            remedy=suggest_field(field, record),
        )
    return record[field]


def _line_place(file: str, lines: _Lines, begin: int, number: int) -> Place:
    """Return a function that tells file and line; only an error is worth counting the lines before the
    extent.
    """

    def place() -> str:
        before = 0
        if begin:
            lines.source.seek(0)
            left = begin
            while left and (block := lines.source.read(min(left, _BLOCK_BYTES))):
                before += block.count(b"\n")
                left -= len(block)
        return f"{file}, line {before + number}"

    return place


def _text(decoder: Decoder, content: bytes, offset: int) -> str:
    text = decoder.decode(content, offset)
    if "\0" in text:
        text = decoder.without_nul(text, content, offset)
    return text if offset else text.removeprefix(_MARK)


def _before(lines: _Lines, end: int | None) -> bool:
    return _is_before(lines.position, end)


def _is_before(position: int, end: int | None) -> bool:
    return end is None or position < end


def _without_line_end(block: bytes) -> bytes:
    return block.removesuffix(b"\n").removesuffix(b"\r")


def too_long(limit: int, where: str) -> CorpusError:
    """Return the error for a document that is longer than the limit."""
    return CorpusError(
        f"A document is longer than {limit} bytes.",
        where=where,
        remedy="check corpus.format and corpus.documents; for a document that is right raise "
        "corpus.max_document_bytes",
    )
