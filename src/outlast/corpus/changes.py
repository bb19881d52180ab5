"""Whether the files of a corpus are still those that were listed: a plan names one corpus, not two.

In: ``CorpusFile``s. Out: an error for the first that has changed. Size and digest are compared, so an edit
of the same length between the digest's blocks is not seen (docs/design/building_shards.md).
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from outlast.corpus.extent import CorpusFile
from outlast.corpus.plan import REMOTE_FILES_AT_ONCE, probe
from outlast.corpus.source import file_size, is_remote, open_file
from outlast.errors import CorpusError


def check_size(file: CorpusFile) -> None:
    """Raise CorpusError where a file has another size than when it was listed."""
    try:
        size = file_size(file.path)
    except OSError as error:
        raise _unreadable(file, error) from error
    if size != file.size_bytes:
        raise _changed(file, f"{size} bytes", f"{file.size_bytes} bytes")


def check_digest(file: CorpusFile) -> None:
    """Raise CorpusError where a file has another digest than when it was listed."""
    try:
        with open_file(file.path) as content:
            size, digest = probe(content)
    except OSError as error:
        raise _unreadable(file, error) from error
    if digest != file.digest:
        raise _changed(file, f"{size} bytes, digest {digest}", f"{file.size_bytes} bytes, {file.digest}")


def check_remote(files: Sequence[CorpusFile]) -> None:
    """Check the digests of those files that lie elsewhere, several side by side. Raises CorpusError.

    Requests are dear there, so this is done once, while local files are looked at again after each reading.
    """
    remote = [file for file in files if is_remote(file.path)]
    if remote:
        with ThreadPoolExecutor(REMOTE_FILES_AT_ONCE) as readers:
            list(readers.map(check_digest, remote))


def _unreadable(file: CorpusFile, error: OSError) -> CorpusError:
    return CorpusError(
        f"The file cannot be read: {error.strerror}.", where=file.path, remedy="check it and its permissions"
    )


def _changed(file: CorpusFile, found: str, expected: str) -> CorpusError:
    return CorpusError(
        f"The file has changed: {found}.",
        where=file.path,
        expected=f"{expected}, as when the corpus was listed",
        remedy="prepare the changed corpus into another folder",
    )
