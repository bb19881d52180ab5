"""Where the bytes of a corpus file come from: a local file, an object in a bucket, a file behind http.

In: a path or a URL. Out: its size, or a stream that can be read from anywhere. A remote file is read by
ranges, so little of it is in memory, whatever its size; a store that does not answer is asked again.
"""

import io
import os
import urllib.parse

from outlast.errors import ConfigError, CorpusError, ObjectNotFound
from outlast.storage import open_store
from outlast.storage.regular import open_regular

HTTP_SCHEMES = ("http://", "https://")


def is_remote(path: str) -> bool:
    """Whether a path is the URL of something that lies elsewhere."""
    return "://" in path and not path.startswith("file://")


def local_path(path: str) -> str:
    """Return a local path as the file system takes it, without ``file://``, the home folder written out."""
    return os.path.expanduser(path.removeprefix("file://"))


def locate(url: str) -> tuple[str, str]:
    """Split the URL of a remote file into the URL of its bucket or server and its name there.

    Raises:
        ConfigError: an http URL with a query: one that signs the request would stand in messages and plans.
    """
    scheme, _, rest = url.partition("://")
    server, _, name = rest.partition("/")
    if url.startswith(HTTP_SCHEMES):
        if "?" in name or "#" in name:
            raise ConfigError(
                "The URL of a corpus file has a query.",
                where=url.partition("?")[0].partition("#")[0],
                expected="https://HOST/PATH",
                remedy="fetch the file, or put it into a bucket that the environment has credentials for",
            )
        name = urllib.parse.unquote(name)
    return f"{scheme}://{server}", name


def open_file(path: str) -> io.BufferedIOBase:
    """Open a file of the corpus for reading from anywhere.

    Raises:
        OSError: a local file cannot be read.
        CorpusError: a remote file is missing.
        StorageError: a remote file cannot be read, now or later from the stream.
    """
    if not is_remote(path):
        return open_regular(path)
    server, name = locate(path)
    try:
        return open_store(server).open(name)
    except ObjectNotFound:
        raise _missing(path) from None


def file_size(path: str) -> int:
    """Return a file's size in bytes. Raises OSError for a local file, CorpusError, StorageError."""
    if not is_remote(path):
        return os.path.getsize(path)
    server, name = locate(path)
    store = open_store(server)
    try:
        return store.retry(store.size_bytes, name)
    except ObjectNotFound:
        raise _missing(path) from None


def _missing(path: str) -> CorpusError:
    return CorpusError("The file is missing.", where=path, remedy="check corpus.path")
