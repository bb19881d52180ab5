"""What a file of the corpus is, by its name and its first bytes: no format is ever taken for another.

In: a name without what says that it is compressed, and the beginning of what it holds. Out: its format, or an
error that says what the file seems to be and what to do.
"""

import difflib
import json
import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from outlast.corpus.compressed import compressed_with
from outlast.errors import CorpusError

Format = Literal["text", "jsonl", "parquet", "huggingface"]

HEAD_BYTES = 2**14
JSON_LINES = (".jsonl", ".ndjson")
_PARQUET = (".parquet", ".pq")
_PARQUET_MAGIC = b"PAR1\x15"
_LEAVE_OUT = "leave it out by corpus.exclude"
_UNPACK = f"unpack it and name the folder as corpus.path, or {_LEAVE_OUT}"
_NO_TEXT = f"turn it into text or JSON lines first, or {_LEAVE_OUT}"
_SAVED = 'name the folder that `save_to_disk` wrote, with corpus.format = "huggingface"'
_BINARY = (
    (_PARQUET_MAGIC, "a Parquet file", 'set corpus.format = "parquet"'),
    (b"ARROW1", "an Arrow file", _SAVED),
    (b"PK\x03\x04", "a zip archive (.zip, .docx, .epub, .npz and others are)", _UNPACK),
    (b"Rar!\x1a\x07", "a RAR archive", _UNPACK),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", _UNPACK),
    (b"SQLite format 3\0", "an SQLite database", _NO_TEXT),
    (b"%PDF-", "a PDF document", _NO_TEXT),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "a document of Microsoft Office", _NO_TEXT),
    (b"\x89PNG\r\n", "a PNG image", _LEAVE_OUT),
    (b"\xff\xd8\xff", "a JPEG image", _LEAVE_OUT),
    (b"GIF87a", "a GIF image", _LEAVE_OUT),
    (b"GIF89a", "a GIF image", _LEAVE_OUT),
    (b"II*\0", "a TIFF image", _LEAVE_OUT),
    (b"MM\0*", "a TIFF image", _LEAVE_OUT),
    (b"\x89HDF\r\n", "an HDF5 file", _NO_TEXT),
    (b"\x93NUMPY", "an array of numpy", _NO_TEXT),
    (b"Obj\x01", "an Avro file", _NO_TEXT),
    (b"\x7fELF", "a program", _LEAVE_OUT),
)
_ARROW_STREAM = re.compile(rb"\xff{4}[\s\S]{2}\0\0")
_SAFETENSORS = re.compile(rb"[\s\S]{6}\0\0\{\s*[\"}]")
_WIDE = (
    (b"\xff\xfe\0\0", "UTF-32"),
    (b"\0\0\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
)
_JSON_OBJECT = re.compile(rb'\s*\{\s*"(?:[^"\\\n]|\\.)*"\s*:')
_MARK = b"\xef\xbb\xbf"


def is_saved_dataset(path: str) -> bool:
    """Whether a local folder is one that ``save_to_disk`` of the library datasets wrote."""
    names = ("dataset_dict.json", "dataset_info.json")
    folder = Path(path)
    return (folder / names[0]).is_file() or (
        (folder / names[1]).is_file() and (folder / "state.json").is_file()
    )


def recognize(name: str, head: bytes, *, where: str) -> Format:
    """Return the format of a file.

    Args:
        name: the end of it counts: ``a.jsonl`` of ``a.jsonl.gz``.
        head: what the file begins with, decompressed; ``HEAD_BYTES`` of it where it has as many.
        where: for messages.

    Raises:
        CorpusError: it is none of those that a corpus may have.
    """
    suffix = PurePosixPath(name).suffix.lower()
    if head.startswith(_PARQUET_MAGIC) or suffix in _PARQUET:
        return "parquet"
    refuse_binary(head, where=where)
    if suffix in JSON_LINES or holds_json_lines(head):
        return "jsonl"
    if not head:
        return "text"
    seems = _no_plain_text(suffix, head)
    if seems:
        raise CorpusError(
            f"The file seems to be {seems}.",
            where=where,
            expected="plain text, JSON lines, Parquet, or a tar of them",
            remedy=f'turn it into JSON lines, {_LEAVE_OUT}, or set corpus.format = "text" to read it so',
        )
    return "text"


def refuse_binary(head: bytes, *, where: str, encoding: str = "", allows_nul: bool = False) -> None:
    """Raise CorpusError where the first bytes are those of a format that is no text.

    Args:
        encoding: what the text is read as, where that is known; no NUL byte is looked for otherwise.
        allows_nul: whether such bytes are to be replaced.
    """
    for magic, seems, remedy in _BINARY:
        if head.startswith(magic):
            raise _binary(seems, 0, remedy, where)
    compression = compressed_with(head)
    if compression:
        remedy = "let its name end as compressed files do: .gz, .bz2, .xz or .zst"
        raise _binary(f"compressed with {compression}", 0, remedy, where)
    if _SAFETENSORS.match(head):
        raise _binary("a safetensors file", 0, _LEAVE_OUT, where)
    if _ARROW_STREAM.match(head):
        raise _binary("an Arrow stream, as the library datasets writes it", 0, _SAVED, where)
    if encoding and not encoding.startswith(("utf-16", "utf-32")) and b"\0" in head:
        for mark, name in _WIDE:
            if head.startswith(mark):
                remedy = 'set corpus.encoding = "auto", or name the encoding'
                raise _binary(f"text in {name}, and is read as {encoding}", 0, remedy, where)
        if not allows_nul:
            raise no_text(head.index(b"\0"), where=where)


def holds_json_lines(head: bytes) -> bool:
    """Whether what a file begins with is a JSON object on a line of its own."""
    line, newline, _ = head.removeprefix(_MARK).lstrip().partition(b"\n")
    if not _JSON_OBJECT.match(line):
        return False
    if not newline and len(head) >= HEAD_BYTES:
        return True  # a long line, of which this is the beginning
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def no_text(offset: int, *, where: str) -> CorpusError:
    """Return the error for a NUL byte: no text has one."""
    return CorpusError(
        "The file seems to be binary: it holds a NUL byte.",
        where=f"{where}, byte {offset}",
        expected="text",
        remedy=f"{_LEAVE_OUT}, name its corpus.encoding if it is text, "
        'or set corpus.undecodable = "replace" to have NUL bytes replaced and counted',
    )


def suggest_field(wanted: str, record: dict[str, Any]) -> str:
    """Return the remedy where a record has no text in the field that was named."""
    texts = {name: len(value) for name, value in record.items() if isinstance(value, str)}
    return nearest_field(wanted, sorted(texts, key=texts.__getitem__, reverse=True))


def nearest_field(wanted: str, fields: Sequence[str]) -> str:
    """Return the remedy where there is no such field: the nearest of those that hold text, else the first."""
    near = difflib.get_close_matches(wanted, fields, n=1) or list(fields[:1])
    return f'set corpus.text_field = "{near[0]}"' if near else "set corpus.text_field"


def _no_plain_text(suffix: str, head: bytes) -> str | None:
    start = head.removeprefix(_MARK).lstrip()
    if suffix in (".csv", ".tsv"):
        return "a table of separated values"
    if suffix == ".json":
        return "a JSON document that is no JSON lines"
    if start.startswith(b"<mediawiki"):
        return "a dump of MediaWiki, whose texts are in XML and wiki markup"
    return None


def _binary(seems: str, offset: int, remedy: str, where: str) -> CorpusError:
    return CorpusError(
        f"The file is no text: it seems to be {seems}.",
        where=f"{where}, byte {offset}",
        expected="plain text, JSON lines, Parquet, or a tar of them",
        remedy=remedy,
    )
