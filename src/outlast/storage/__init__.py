"""Objects by name under a URL: the one door to local folders and object stores.

In: a URL (``/path``, ``file://``, ``gs://``, ``s3://``, ``az://``, ``http(s)://``). Out: a ``Store``, whose
names are relative to that URL. Writing is atomic everywhere: an object is there whole or not at all, and
``create`` never overwrites. Locally every file and its folder are flushed before ``create`` or ``replace``
returns.

An error tells what is known. ``ObjectNotFound`` and ``ObjectExists`` are statements about the object;
``StoreUnreachable`` is none, and nothing may be concluded from it (docs/design/storage.md).
"""

from pathlib import Path

from outlast.errors import ConfigError
from outlast.storage.local import LocalStore, local_failure
from outlast.storage.store import Chunks, ObjectInfo, Pause, Store

__all__ = [
    "Chunks",
    "LocalStore",
    "ObjectInfo",
    "Pause",
    "Store",
    "local_failure",
    "local_place",
    "open_store",
    "place_of",
    "split_url",
]

_CLOUD_SCHEMES = ("gs", "s3", "az")
_HTTP_SCHEMES = ("http", "https")
_SCHEMES = ("file", *_CLOUD_SCHEMES, *_HTTP_SCHEMES)


def open_store(url: str | Path) -> Store:
    """Open the folder or bucket prefix that a URL names.

    Credentials come from the environment alone, under the names the clouds' own tools use.

    Raises:
        ConfigError: an empty name, a scheme that is not known, a URL with a password in it or made a Path, an
        address that is never contacted.
    """
    text = place_of(url)
    scheme = text.partition("://")[0] if "://" in text else "file"
    if scheme == "file":
        path = text.removeprefix("file://")
        if not path:
            raise ConfigError(
                "The name of a folder is empty.",
                where=repr(text),
                expected='a path or URL; "." is the current folder',
                remedy="check that the shell variables of the command are set",
            )
        return LocalStore(Path(path).expanduser())
    authority = text.partition("://")[2].partition("/")[0]
    if "@" in authority:
        raise ConfigError(
            "The URL holds a user name or password.",
            where=f"{scheme}://***@{authority.rpartition('@')[2]}",
            remedy="put credentials into the environment",
        )
    if scheme in _CLOUD_SCHEMES:
        if "?" in text and "=" in text.partition("?")[2]:
            raise ConfigError(
                "The URL holds a query.", where=text, remedy="put signatures and tokens into the environment"
            )
        from outlast.storage.remote import ObjectStore  # loads a client library that local runs do not need

        return ObjectStore(text)
    if scheme in _HTTP_SCHEMES:
        from outlast.storage.http import HttpStore

        return HttpStore(text)
    raise ConfigError(
        f"The URL scheme {scheme!r} is not known.",
        where=text,
        expected="a path, or one of " + ", ".join(_SCHEMES),
    )


def place_of(url: str | Path) -> str:
    """Return a path or URL as text. Raises ConfigError for a URL made a Path, which has lost a slash."""
    text = str(url)
    scheme, colon, rest = text.partition(":/")
    if isinstance(url, Path) and colon and not rest.startswith("/") and scheme in _SCHEMES:
        raise ConfigError(
            "A Path cannot hold a URL.",
            where=repr(url),
            expected=f"a Path of a local folder, or the URL as text: {scheme}://{rest}",
        )
    return text


def local_place(place: str | Path) -> Path:
    """Return the Path of a local file or folder. Raises ConfigError for a URL, which no Path can hold."""
    text = place_of(place)
    if "://" in text.removeprefix("file://"):
        raise ConfigError("This must lie on this machine.", where=text, expected="the path of a local folder")
    return Path(text.removeprefix("file://")).expanduser()


def split_url(url: str | Path) -> tuple[str, str]:
    """Split the URL of an object into the URL of its folder and its name."""
    folder, _, name = place_of(url).rpartition("/")
    return folder or ".", name
