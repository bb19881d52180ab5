"""What raw text is: its format, encoding, script and size, as the readers of the corpus find it.

In: what ``corpus.path`` may be. Out: ``TextFound``. Nothing is assumed that can be read: documents come from
the corpus' own reader, all of them where there is little text, else from places all over it.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from outlast.cleaning.language import find_language
from outlast.corpus.compressed import is_compressed, open_binary
from outlast.corpus.config import CorpusConfig
from outlast.corpus.encoding import Tally
from outlast.corpus.extent import CorpusFile
from outlast.corpus.files import FoundFile, find_files
from outlast.corpus.formats import describe_corpus
from outlast.corpus.plan import list_corpus, plan_portions
from outlast.corpus.read import read_encoded, split_chooser
from outlast.corpus.source import file_size
from outlast.errors import ConfigError, CorpusError
from outlast.logs import format_count, log

_WHOLE_BYTES = 32 * 2**20
_PLACES = 64
_PLACE_BYTES = 2**18
_OFTEN = 3
_MANY_FILES = 20
_COMPRESSION = 3
"""How many bytes of text a byte of a compressed file holds, about."""

_SCRIPTS = (
    ("Japanese", ((0x3041, 0x30FF),)),
    ("Hangul", ((0x1100, 0x11FF), (0xAC00, 0xD7A3))),
    ("Han", ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0x20000, 0x2FA1F))),
    ("Thai", ((0x0E00, 0x0E7F),)),
    ("Cyrillic", ((0x0400, 0x052F),)),
    ("Greek", ((0x0370, 0x03FF),)),
    ("Arabic", ((0x0600, 0x06FF), (0x0750, 0x077F))),
    ("Hebrew", ((0x0590, 0x05FF),)),
    ("Devanagari", ((0x0900, 0x097F),)),
    ("Latin", ((0x41, 0x5A), (0x61, 0x7A), (0xC0, 0x24F))),
)
"""Scripts by their Unicode blocks. A tenth of kana makes Han Japanese."""
_KANA_SHARE = 0.1
_UNSPACED = {"Japanese", "Han", "Thai"}


@dataclass(frozen=True, kw_only=True)
class TextFound:
    """Raw text, as it was found.

    Attributes:
        corpus: the table that reads it.
        files: what the files are, in words.
        num_documents, text_bytes: estimates where the text was not read whole.
        left_out: how many files have another ending and are not read.
        script: the most frequent one.
        language: as a code; None where the library that tells it is not installed.
        num_characters: different ones, in what was read.
        num_words: different ones between blanks that were read often enough to become a piece.
    """

    corpus: CorpusConfig
    files: str
    left_out: int
    num_documents: int
    text_bytes: int
    script: str
    language: str | None
    num_characters: int
    num_words: int
    undecodable_bytes: int

    @property
    def is_spaced(self) -> bool:
        """Whether the script puts spaces between words."""
        return self.script not in _UNSPACED

    def describe(self) -> list[str]:
        """Return what was found in lines for a person."""
        config = self.corpus
        encoding = f", {config.encoding}" if config.format in ("text", "jsonl") else ""
        lines = [
            f"{self.files}{encoding}"
            + (f"; {self.left_out} files with other endings are left out" if self.left_out else ""),
            f"about {format_count(self.text_bytes)}B of text in {format_count(self.num_documents)} documents",
            f"script: {self.script}" + (f", language: {self.language}" if self.language else ""),
        ]
        if self.undecodable_bytes:
            lines.append(f"{self.undecodable_bytes} bytes are no text in that encoding, and are replaced")
        return lines


def look_at_text(path: str, exclude: tuple[str, ...] = ()) -> TextFound:
    """Look at raw text.

    Args:
        exclude: patterns of what is none of it.

    Raises:
        CorpusError, ConfigError, StorageError: what the readers of the corpus refuse.
    """
    found = find_files(path, "**/*", exclude)
    endings: Counter[str] = Counter()
    for file in found:
        endings[_ending(file)] += file_size(file.path)
    ((ending, _),) = endings.most_common(1)
    config = CorpusConfig(
        path=path,
        include=f"**/*{ending}" if len(endings) > 1 and ending else "**/*",
        exclude=exclude,
        encoding="auto",
        undecodable="replace",
    )
    files = list_corpus(config)
    left_out = len(found) - len(files)
    config = replace(config, format=files[0].format)
    if config.format == "jsonl" and not files[0].tar:
        config = replace(config, text_field=_text_field(config, files))
    tally = Tally()
    if config.format == "text" and not files[0].tar and len(files) >= _MANY_FILES:
        config = replace(config, documents="file")
        files = list_corpus(config)
    documents = list(_documents(config, files, tally))
    if not documents:
        raise CorpusError("There is no text in it.", where=path, remedy="name another file or folder")
    encodings = {file.encoding for file in files}
    read_bytes = sum(len(content) for _, content in documents)
    whole = _text_bytes(files) <= _WHOLE_BYTES
    text_bytes = read_bytes if whole else _text_bytes(files)
    characters: Counter[str] = Counter()
    words: Counter[str] = Counter()
    for text, _ in documents:
        characters.update(text)
        words.update(text.split())
    config = replace(
        config,
        encoding="utf-8" if encodings <= {"utf-8", "", "ascii"} else "auto",
        undecodable="replace" if tally.undecodable_bytes else "error",
        validation_fraction=_held_out(config, documents, whole),
    )
    return TextFound(
        corpus=config,
        files=describe_corpus(files),
        left_out=left_out,
        num_documents=max(len(documents) * text_bytes // read_bytes, 1),
        text_bytes=text_bytes,
        script=_script(characters),
        language=_language([text for text, _ in documents]),
        num_characters=len(characters),
        num_words=sum(count >= _OFTEN and len(word) > 1 for word, count in words.items()),
        undecodable_bytes=tally.undecodable_bytes,
    )


def _ending(file: FoundFile) -> str:
    """Return the ending of a name, with that of its compression."""
    path = PurePosixPath(file.name)
    return "".join(path.suffixes[-2:]) if is_compressed(path.name) else path.suffix


def _text_bytes(files: tuple[CorpusFile, ...]) -> int:
    return sum(file.size_bytes * (_COMPRESSION if is_compressed(file.path) else 1) for file in files)


def _documents(
    config: CorpusConfig, files: tuple[CorpusFile, ...], tally: Tally
) -> Iterator[tuple[str, bytes]]:
    """Yield all documents of a small corpus, else some of each of many places."""
    if _text_bytes(files) <= _WHOLE_BYTES:
        for portion in plan_portions(files, 1):
            yield from read_encoded(config, portion, tally)
        return
    for portion in plan_portions(files, _PLACES):
        num_bytes = 0
        for text, content in read_encoded(config, portion, tally):
            yield text, content
            num_bytes += len(content)
            if num_bytes >= _PLACE_BYTES:
                break


def _text_field(config: CorpusConfig, files: tuple[CorpusFile, ...]) -> str:
    """Return the field of JSON lines that holds the most text."""
    lengths: Counter[str] = Counter()
    with open_binary(files[0].path, where=files[0].path) as source:
        for line in source.readlines(_PLACE_BYTES):
            try:
                row: Any = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict):
                lengths.update(
                    {str(name): len(value) for name, value in row.items() if isinstance(value, str)}
                )
    if not lengths:
        raise CorpusError(
            "No line has a field with text.", where=files[0].path, expected='lines such as {"text": "..."}'
        )
    return config.text_field if config.text_field in lengths else lengths.most_common(1)[0][0]


def _held_out(config: CorpusConfig, documents: list[tuple[str, bytes]], whole: bool) -> float:
    """Return the least share that holds out enough documents and leaves some to train on, 0 for none."""
    shares = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
    if not whole:
        return shares[0]
    wanted = min(20, max(len(documents) // 10, 1))
    for share in shares:
        choose = split_chooser(replace(config, validation_fraction=share))
        held_out = sum(choose(content) == "validation" for _, content in documents)
        if wanted <= held_out < len(documents):
            return share
    return 0.0


def _script(characters: Counter[str]) -> str:
    counts: Counter[str] = Counter()
    for character, count in characters.items():
        code = ord(character)
        for name, blocks in _SCRIPTS:
            if any(first <= code <= last for first, last in blocks):
                counts[name] += count
    if not counts:
        return "unknown"
    if counts["Japanese"] > _KANA_SHARE * (counts["Japanese"] + counts["Han"]):
        counts["Japanese"] += counts["Han"]
    return counts.most_common(1)[0][0]


def _language(texts: list[str]) -> str | None:
    """Return the most frequent language of up to 50 documents."""
    step = max(len(texts) // 50, 1)
    try:
        found = Counter(find_language(text) for text in texts[::step])
    except ConfigError as error:
        log.info("the language is not told: %s", error.remedy)
        return None
    return found.most_common(1)[0][0]
