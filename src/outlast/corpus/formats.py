"""Which format a file of the corpus is read as: the one that the recipe names, or the one that it has.

In: a ``CorpusConfig`` and what the file begins with. Out: a format and what a document is. Contradictions
between the two are errors, or warnings where both readings give text.
"""

from collections.abc import Sequence
from typing import Literal

from outlast.corpus.compressed import open_binary, plain_name
from outlast.corpus.config import CorpusConfig
from outlast.corpus.extent import CorpusFile
from outlast.corpus.recognize import (
    HEAD_BYTES,
    JSON_LINES,
    Format,
    holds_json_lines,
    recognize,
    refuse_binary,
)
from outlast.errors import CorpusError
from outlast.logs import log

_NAMES = {
    "text": "text",
    "jsonl": "JSON lines",
    "parquet": "Parquet",
    "huggingface": "the library datasets",
}


def format_of(config: CorpusConfig, name: str, head: bytes, *, where: str) -> Format:
    """Return the format that a file is read as.

    Args:
        name: decompressed, ``a.jsonl`` of ``a.jsonl.gz``; head: what it begins with then.

    Raises:
        CorpusError: it has none of the formats of a corpus, or another than the recipe says.
    """
    if config.format in ("parquet", "huggingface"):
        return config.format
    if config.format == "auto" and config.documents != "file":
        return recognize(name, head, where=where)
    refuse_binary(head, where=where)
    return "text" if config.format == "auto" else config.format


def documents_of(config: CorpusConfig, format: Format, *, is_member: bool) -> Literal["blank_line", "file"]:
    """Return what a document is in a file, or in a member of a tar."""
    if config.documents != "auto":
        return config.documents
    if format == "text" and (config.markup == "aozora" or (is_member and config.markup == "none")):
        return "file"
    return "blank_line"


def warn_of_json(config: CorpusConfig, files: Sequence[CorpusFile]) -> None:
    """Say so where the recipe has JSON lines read as text, judged by the first file that may hold them."""
    named = [file for file in files if plain_name(file.name).lower().endswith(JSON_LINES)]
    for file in (named or [file for file in files if not file.tar])[:1]:
        with open_binary(file.path, where=file.path) as source:
            head = source.read(HEAD_BYTES)
        if file.format == "text" and holds_json_lines(head):
            asked = "format" if config.format == "text" else "documents"
            log.warning(
                '%s: its lines are JSON objects, and corpus.%s = "%s" has them read as text, keys and braces '
                'included; for the text in them set corpus.format = "jsonl"',
                file.name,
                asked,
                getattr(config, asked),
            )


def check_formats(files: Sequence[CorpusFile], num_paths: int) -> None:
    """Raise CorpusError where one of the paths holds files of several formats.

    A README beside Parquet files is no text to train on, and nobody would notice.
    """
    first: dict[tuple[str, Format], CorpusFile] = {}
    for file in files:
        if file.size_bytes:
            path = file.name.partition("/")[0] if num_paths > 1 else ""
            first.setdefault((path, file.format), file)
    for path in dict.fromkeys(path for path, _ in first):
        found = {format: file for (other, format), file in first.items() if other == path}
        if len(found) > 1:
            listed = "; ".join(f"{_NAMES[format]}: {file.name}" for format, file in found.items())
            raise CorpusError(
                f"The corpus holds files of several formats: {listed}.",
                where="corpus.path",
                remedy="choose by corpus.include or corpus.exclude, name them as several paths, or say "
                "corpus.format",
            )


def describe_corpus(files: Sequence[CorpusFile]) -> str:
    """Return what the files are read as, for a person."""
    kinds: dict[str, int] = {}
    for file in files:
        kinds[_kind(file)] = kinds.get(_kind(file), 0) + 1
    return "; ".join(f"{count} {kind.format(s='' if count == 1 else 's')}" for kind, count in kinds.items())


def _kind(file: CorpusFile) -> str:
    if file.format == "huggingface":
        return "data set{s} of the library datasets"
    document = ""
    if file.format == "text":
        unit = "member" if file.tar else "file"
        document = (
            f" (each {unit} a document)" if file.documents == "file" else " (documents between blank lines)"
        )
    return f"{'tar' if file.tar else 'file'}{{s}} of {_NAMES[file.format]}{document}"
