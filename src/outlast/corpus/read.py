"""The documents of a portion of the corpus, and the split each belongs to.

In: a ``CorpusConfig`` and ``Extent``s. Out: text, each document once, in a fixed order; "\\r\\n" has become
"\\n", marks are read where there are some, nothing else is changed. Empty documents are left out and counted.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator

from outlast.corpus.archive import read_tar
from outlast.corpus.changes import check_digest, check_size
from outlast.corpus.config import CorpusConfig
from outlast.corpus.encoding import Tally, Undecodable
from outlast.corpus.extent import Extent
from outlast.corpus.markup import markup_reader
from outlast.corpus.source import is_remote
from outlast.corpus.text import read_text, too_long
from outlast.errors import CorpusError
from outlast.prng import derive_key


def read_documents(config: CorpusConfig, extents: Iterable[Extent], tally: Tally) -> Iterator[str]:
    """Yield the documents that begin in the extents, as ``read_encoded``."""
    return (document for document, _ in read_encoded(config, extents, tally))


def read_encoded(
    config: CorpusConfig, extents: Iterable[Extent], tally: Tally
) -> Iterator[tuple[str, bytes]]:
    """Yield the documents that begin in the extents, each with its UTF-8; count them in the tally.

    A local file is looked at again once it is read, so what was made of it before counts only where no error
    follows; of remote ones, ``check_remote`` is the check.

    Raises:
        CorpusError: a file that is missing, damaged or changed since it was listed, bytes that are no text
            (unless they are to be replaced), a record without text, a document that is too long.
        StorageError: a store that cannot be read from.
    """
    read_marks = markup_reader(config)
    for extent in extents:
        for text, place in _read_extent(config, extent, tally):
            whole = text.replace("\r\n", "\n") if "\r" in text else text
            try:
                content = whole.encode()
            except UnicodeEncodeError:
                whole = _without_surrogates(config, whole, extent.file.name, place, tally)
                content = whole.encode()
            if len(content) > config.max_document_bytes:
                raise too_long(config.max_document_bytes, place)
            for document in read_marks(whole) if read_marks else (whole,):
                if not document.strip():
                    tally.empty_documents += 1
                    continue
                content = document.encode() if read_marks else content
                tally.documents += 1
                tally.text_bytes += len(content)
                yield document, content
        if extent.file.format != "huggingface" and not is_remote(extent.file.path):
            check_digest(extent.file)


def read_splits(
    config: CorpusConfig, extents: Iterable[Extent], held_out: Iterable[Extent], tally: Tally
) -> Iterator[tuple[str, str]]:
    """Yield (split, document) of extents of ``path``, then of ``validation_path``. Raises CorpusError."""
    choose = split_chooser(config)
    for document, content in read_encoded(config, extents, tally):
        yield choose(content), document
    for document in read_documents(config, held_out, tally):
        yield "validation", document


def split_chooser(config: CorpusConfig) -> Callable[[bytes], str]:
    """Return the function that says to which split, train or validation, a document of ``path`` belongs,
    given as UTF-8.

    It is a function of the text and the seed alone, so that of two equal documents never one is held out
    and one trained on.
    """
    if config.validation_path is not None or not config.validation_fraction:
        return lambda _: "train"
    key = derive_key(config.seed, "validation").to_bytes(8, "little")
    keyed = hashlib.blake2b(digest_size=8, key=key)
    limit = int(config.validation_fraction * 2**64)

    def choose(content: bytes) -> str:
        hashed = keyed.copy()
        hashed.update(content)
        return "validation" if int.from_bytes(hashed.digest(), "little") < limit else "train"

    return choose


def nothing_to_train_on(num_held_out: int) -> CorpusError:
    """Return the error for a corpus of which every document is held out."""
    if num_held_out:
        found = (
            "The only document of the corpus is" if num_held_out == 1 else f"All {num_held_out} documents are"
        )
        return CorpusError(
            f"{found} held out, and none is left to train on.",
            remedy="set corpus.validation_fraction = 0; or, if there are more documents in the text, say "
            "what ends one (corpus.documents)",
        )
    return CorpusError(
        "The corpus holds no document to train on.",
        expected="text that is more than white space",
        remedy="check corpus.path, corpus.format and corpus.include",
    )


def _read_extent(config: CorpusConfig, extent: Extent, tally: Tally) -> Iterator[tuple[str, str]]:
    if extent.file.format == "huggingface":
        from outlast.corpus.tables import read_dataset

        return read_dataset(config, extent)
    check_size(extent.file)
    if extent.file.tar:
        return read_tar(config, extent, tally)
    if extent.file.format == "parquet":
        from outlast.corpus.tables import read_parquet

        return read_parquet(config, extent, tally)
    return read_text(config, extent, tally)


def _without_surrogates(config: CorpusConfig, document: str, file: str, place: str, tally: Tally) -> str:
    """Replace halves of surrogate pairs, which a JSON escape can smuggle in and no encoding can express."""
    if config.undecodable == "error":
        raise CorpusError(
            "The text holds half of a surrogate pair, which is no character.",
            where=place,
            remedy='repair the JSON escape (they come in pairs), or set corpus.undecodable = "replace"',
        )
    clean = document.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    lost = clean.count("\ufffd") - document.count("\ufffd")
    tally.add_undecodable(Undecodable(place, 0, lost))
    return clean
