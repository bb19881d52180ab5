"""The exceptions a user can meet, and the exit code of each.

Every message says what was found and, where it helps, where (file, line, key), what was expected and what to
do. The command line prints the message alone; ``--debug`` adds the traceback.

    OutlastError
    ├── ConfigError            a recipe, a flag or a combination of values
    ├── CorpusError            raw text that cannot be read
    ├── TokenizerError         training or loading a tokenizer
    ├── ShardError             a shard or a manifest that is damaged or does not fit
    ├── StorageError
    │   ├── ObjectNotFound
    │   ├── ObjectExists       a create-if-absent found the name taken
    │   └── StoreUnreachable   timeouts, refused connections, 5xx: says nothing about the object
    ├── SealError              JSON that fails its own digest; who reads it makes it an error of its own
    ├── CheckpointError
    │   ├── DamagedCheckpoint  bytes that fail their digest
    │   └── Fenced             this attempt owns the run no more
    ├── RunError               a run that cannot start or go on
    └── Preempted              asked to leave; everything is saved (exit code 75)
"""

import errno
import os
import re
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager

EXIT_DONE = 0
EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_PREEMPTED = 75  # 76 is kept for a run that hangs; nothing returns it yet
EXIT_INTERRUPTED = 130


_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_IN_NAMES = re.compile(rf"{_UNPRINTABLE.pattern}|[\t\n]|\\(?=\\*(?:[xu\t\n]|{_UNPRINTABLE.pattern}))")


_SECRETS = (
    (re.compile(r"(\w://)[^\s/?#@\"'<>]+@"), r"\1***@"),
    # A "?" alone may be of a pattern of names.
    (re.compile(r"(\w://[^\s?\"'<>]*)\?[^\s=\"'<>]*=[^\s\"'<>]*"), r"\1?***"),
    (
        re.compile(
            r"(?i)\b((?:x-(?:amz|goog)-)?(?:signature|credential|security-token)|sig|token|password|"
            r"(?:aws)?(?:secret)?_?access_?key(?:_?id)?)=[^\s&\"'<>,;]+"
        ),
        r"\1=***",
    ),
)


def printable(name: str) -> str:
    """Return a name as it may stand in a message, a plan or a terminal: bytes that are no UTF-8, control
    characters and marks that turn the direction of writing are written as ``\\xff`` or ``\\u202e``.

    Different names stay different: a backslash that could be taken for one of ours becomes two.
    """
    return _IN_NAMES.sub(_escape, name)


def printable_text(text: str) -> str:
    """Return a message as it may reach a terminal: as ``printable``, but tabs, line ends and backslashes
    stay; without secrets.
    """
    return _UNPRINTABLE.sub(_escape, hide_secrets(text))


def hide_secrets(text: str) -> str:
    """Return a message without what may be secret in it: users, passwords and queries of URLs, where
    signatures stand, and values that follow the name of a secret.
    """
    shown = str(text)
    for pattern, hidden in _SECRETS:
        shown = pattern.sub(hidden, shown)
    return Lines(shown) if isinstance(text, Lines) else shown


def printable_json(text: str) -> str:
    """Return JSON that stands for the same values, as it may reach a terminal."""
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


class Lines(str):
    """A text whose line ends were put there on purpose (``listed``)."""


def listed(head: str, items: Iterable[str]) -> Lines:
    """Return a message of several lines, one for each item; a line end in an item is shown as ``\\n``."""
    return Lines("\n".join(map(one_line, (head, *items))))


def one_line(text: str) -> str:
    """Return a text as ``printable_text`` and as one line; ``Lines`` stay several."""
    shown = printable_text(text)
    return shown if isinstance(text, Lines) else shown.replace("\n", "\\n")


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if match[0] == "\\":
        return "\\\\"
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is no UTF-8, as Python has it in names
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}"


class OutlastError(Exception):
    """An error with a message for a person.

    Args:
        message: what was found, one sentence; with a list below it, ``listed``.
        where: file, line, key or URL it was found at.
        expected: what would have been right.
        remedy: what to do about it.
    """

    exit_code = EXIT_FAILURE

    def __init__(
        self,
        message: str,
        *,
        where: str | None = None,
        expected: str | None = None,
        remedy: str | None = None,
    ) -> None:
        message = hide_secrets(message)
        where, expected, remedy = (text and hide_secrets(text) for text in (where, expected, remedy))
        self.message = message
        self.where = where
        self.expected = expected
        self.remedy = remedy
        parts = (("where:    ", where), ("expected: ", expected), ("do:       ", remedy))
        lines = [one_line(message), *(f"  {name}{one_line(text)}" for name, text in parts if text)]
        super().__init__("\n".join(lines))

    @property
    def line(self) -> str:
        """What was found, where, and what was expected, as one line: for lists of what is wrong, and inside
        another message.
        """
        place = f"{self.where}: " if self.where else ""
        return f"{place}{self.message}" + (f" Expected: {self.expected}." if self.expected else "")


class ConfigError(OutlastError):
    exit_code = EXIT_USAGE


class CorpusError(OutlastError):
    pass


class TokenizerError(OutlastError):
    pass


class ShardError(OutlastError):
    pass


class StorageError(OutlastError):
    pass


class ObjectNotFound(StorageError):
    pass


class ObjectExists(StorageError):
    pass


class StoreUnreachable(StorageError):
    pass


class SealError(OutlastError):
    pass


class CheckpointError(OutlastError):
    pass


class DamagedCheckpoint(CheckpointError):
    pass


class Fenced(CheckpointError):
    pass


class RunError(OutlastError):
    pass


class Preempted(OutlastError):
    exit_code = EXIT_PREEMPTED


class Interrupted(OutlastError):
    exit_code = EXIT_INTERRUPTED


EXTRAS = {
    **dict.fromkeys(("jax", "jaxlib", "jaxtyping", "optax"), "train"),
    "pyarrow": "parquet",
    "datasets": "hub",
    "rensa": "dedup",
    "fastokens": "fast",
    "py3langid": "language",
    **dict.fromkeys(("fugashi", "unidic_lite"), "segment"),
    **dict.fromkeys(("cv2", "PIL", "pillow", "simplejpeg"), "images"),
    "ray": "ray",
}
"""The extra that brings a library, by the name that is imported, or asked for its version."""


def explained(error: BaseException) -> OutlastError | None:
    """Return an error of those that may arise anywhere in words for a person: a missing library of an extra,
    a device that jax does not find, a path that no file can have, a limit of the machine. None for any other.
    """
    if limit := _limit_reached(error):
        return limit
    if isinstance(error, OSError) and error.errno in (errno.ENAMETOOLONG, errno.ELOOP) and error.filename:
        return ConfigError(f"No file can have this path: {error.strerror}.", where=str(error.filename))
    if isinstance(error, ModuleNotFoundError):
        library = (error.name or "").partition(".")[0]
        extra = EXTRAS.get(library)
        if extra is None:
            return None
        return ConfigError(
            f"The library {library} is not installed.",
            expected=f"what the extra `{extra}` brings",
            remedy=f"pip install 'outlast[{extra}]'",
        )
    platforms = os.environ.get("JAX_PLATFORMS")
    if platforms and isinstance(error, RuntimeError | AssertionError):
        return _missing_device(platforms)
    return None


@contextmanager
def explained_limits() -> Generator[None]:
    """Raise OutlastError where the machine gives no memory, descriptor or thread. Also a decorator."""
    try:
        yield
    except (MemoryError, OSError, RuntimeError) as error:
        limit = _limit_reached(error)
        if limit is None:
            raise
        raise limit from error


def _limit_reached(error: BaseException) -> OutlastError | None:
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, MemoryError) or number == errno.ENOMEM:
        said = f": {error}" if str(error) else ""
        return OutlastError(
            f"There is not enough memory{said}.",
            remedy="end what else uses it, or raise the limit (ulimit -v, the container's)",
        )
    if number in (errno.EMFILE, errno.ENFILE):
        return OutlastError(
            f"No further file can be opened: {os.strerror(number)}.",
            remedy="raise the limit (ulimit -n), or end what else has many files open",
        )
    if isinstance(error, RuntimeError) and str(error) == "can't start new thread":
        return OutlastError(
            "The system starts no further thread.",
            remedy="allow more threads (ulimit -u, the container's limit of pids) or more memory",
        )
    return None


def _missing_device(platforms: str) -> OutlastError | None:
    """Return jax's reason why a device is missing: asked anew, since each kind of device raises another
    error.
    """
    jax = sys.modules.get("jax")
    try:
        if jax is not None:
            jax.devices()
    except (RuntimeError, AssertionError) as error:
        return ConfigError(
            f"jax finds no device of the kind {platforms!r}" + (f": {error}" if str(error) else "."),
            where="the environment variable JAX_PLATFORMS",
            expected="a kind of device that this machine has and this installation drives",
            remedy="unset JAX_PLATFORMS, or install what drives the device: pip install 'outlast[cuda]' "
            "for NVIDIA, 'outlast[tpu]' for TPU",
        )
    return None
