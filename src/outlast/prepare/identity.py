"""What a build depends on, for the plan that all who take part in it agree on.

In: the recipe's tables and the files of the corpus. Out: plain values; two builds with equal ones give equal
bytes.
"""

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from outlast.cleaning.config import CleaningConfig
from outlast.config import to_dict
from outlast.corpus.config import CorpusConfig
from outlast.corpus.extent import CorpusFile
from outlast.storage import open_store, split_url
from outlast.tokenizer.config import TokenizerConfig
from outlast.tokenizer.manifest import TokenizerManifest, read_tokenizer


def build_identity(
    corpus: CorpusConfig,
    cleaning: CleaningConfig,
    tokenizer: TokenizerConfig,
    num_shards: int,
    files: Sequence[CorpusFile],
    held_out: Sequence[CorpusFile],
    words: str,
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return what the result depends on, and the version of the library of its tokenizer.

    Where the corpus lies is no part of it: a copy on another machine is the same corpus. ``words`` names what
    finds words (``prepare.words.name_words``).
    """
    tokenizer_values = to_dict(tokenizer)
    library: str = tokenizer.library
    if tokenizer.path is not None:
        existing = read_existing(tokenizer.path)[0]
        tokenizer_values = {"fingerprint": existing.fingerprint}
        library = existing.library
    corpus_values = to_dict(corpus)
    corpus_values.pop("path")
    corpus_values["validation_path"] = corpus.validation_path is not None
    # As it was resolved, so that builds from before "auto" are gone on with.
    formats = {file.format for file in (*files, *held_out) if file.size_bytes}
    corpus_values["format"] = formats.pop() if len(formats) == 1 else "auto"
    units = {file.documents for file in (*files, *held_out) if file.size_bytes}
    corpus_values["documents"] = units.pop() if len(units) == 1 else "auto"
    is_mixed = corpus_values["format"] == "auto"
    identity = {
        "corpus": corpus_values,
        **({"cleaning": to_dict(cleaning)} if cleaning.is_on else {}),
        "tokenizer": {key: value for key, value in tokenizer_values.items() if key != "path"},
        "num_shards": num_shards,
        **({"words": words} if words != "none" else {}),
        "files": {file.name: _describe_file(file, is_mixed) for file in files},
        "held_out_files": {file.name: _describe_file(file, is_mixed) for file in held_out},
    }
    package = "fugashi" if library == "mecab" else library
    return identity, {package: version(package)}


def _describe_file(file: CorpusFile, is_mixed: bool) -> list[str | int]:
    """Return what identifies a file of the corpus: its size, digest and encoding, its format where files
    differ in it, and of a tar which of its members count.
    """
    values: list[str | int] = [file.size_bytes, file.digest, file.encoding]
    values += [file.format] if is_mixed else []
    values += ["tar", file.tar.folder, file.tar.taken_whole] if file.tar else []
    return values


def describe_files(files: Sequence[CorpusFile], held_out: Sequence[CorpusFile]) -> dict[str, Any]:
    """Return what the manifest says of the corpus: its files, bytes and encodings."""
    encodings = [file.encoding for file in (*files, *held_out) if file.encoding]
    return {
        "num_files": len(files) + len(held_out),
        "size_bytes": sum(file.size_bytes for file in (*files, *held_out)),
        "encodings": {name: encodings.count(name) for name in sorted(set(encodings))},
    }


def read_existing(path: str) -> tuple[TokenizerManifest, dict[str, bytes]]:
    """Return the tokenizer at a path or URL, and its files by name. Raises TokenizerError."""
    folder, name = split_url(path.rstrip("/"))
    return read_tokenizer(open_store(folder), name)
