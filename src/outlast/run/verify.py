"""The verb ``verify``: whether what the package wrote is still the same, byte for byte.

In: a path or URL. Out: what is wrong, a line for each file. What it is follows from what lies there: a run
or an import, a data set of text or images or a build of one, a tokenizer, an exported model, a cache of
shards. Nothing is changed. Not looked at, and named, are what nothing reads again (metrics) and what people
are to edit (model cards, ``recipe.toml``): no digest of them is kept.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, cast

from outlast.checkpoint.records import attempt_objects, list_keys
from outlast.errors import ConfigError, OutlastError, SealError, StorageError
from outlast.huggingface.digests import CARD_NAME, PROVENANCE_NAME, changed_files, read_digests
from outlast.images.manifest import is_image_set
from outlast.images.verify import verify_images
from outlast.run.directory import FORMER_NAME, RECIPE_NAME, TOKENIZER_FOLDER
from outlast.run.verify_run import check_tokenizer, told, verify_run
from outlast.shards.manifest import read_manifest
from outlast.shards.verify import verify_manifest
from outlast.storage import Store, open_store, split_url
from outlast.storage.checksummed_json import DIGEST_KEY, unseal
from outlast.tokenizer.manifest import FORMAT as TOKENIZER_FORMAT
from outlast.tokenizer.manifest import MANIFEST_NAME

_DIGEST = re.compile(r"[0-9a-f]{64}")
_PLAN_NAME = "plan.json"
_RECORDS_FORMAT = "outlast-tfrecord"
_HEADLESS = (
    (MANIFEST_NAME, "shards of a data set", r".+-\d{5}-of-\d{5}\.safetensors|.+\.index\.safetensors"),
    (MANIFEST_NAME, "TFRecord files", r".*\.tfrecord.*"),
    (PROVENANCE_NAME, "files of a model", r"model\.safetensors"),
    (MANIFEST_NAME, "files of a tokenizer", r"tokenizer\.json|.+\.model"),
)
"""What lists files, what they are, and how one of them is named."""
_DOCUMENTS = (
    (r"(?:pairs-\d{1,5}/)?plan", "outlast-plan"),
    (r"repair", "outlast-repair"),
    (r"done/(.+)", "outlast-piece"),
    (r"pairs-\d{1,5}/done/(.+)", None),
    (r"cleaning", "outlast-cleaning-report"),
    (r"cleaning/merged", "outlast-duplicates"),
    (r"cleaning/scan/(\d{5})", "outlast-scan"),
    (r"failed/(\d{5,6})", None),
)
"""The documents of a build by their names, without the ending, and their formats; what is in brackets a
document says of itself. All but ``cleaning.json`` are for a further life of the build."""


def verify_anything(place: str) -> list[str]:
    """Return what is wrong with what lies at a path or URL, a line for each file; empty: nothing is.

    Raises:
        ConfigError: nothing there that the package writes.
        StorageError: the store does not answer, or cannot tell what it holds.
    """
    store = _opened(place)
    verify = _kind_of(store)
    try:
        return list(verify(store))
    except StorageError:
        raise
    except OutlastError as error:  # so damaged that there is nothing else to be said
        return [f"{error.where or store.url}: {error.message}"]


def not_looked_at(place: str) -> list[str]:
    """Return what ``verify_anything`` knows of and does not look at. Errors as there."""
    store = _opened(place)
    return [
        name
        for name in _FREE.get(_kind_of(store), ())
        if (any(store.list(name)) if name.endswith("/") else store.exists(name))
    ]


def _opened(place: str) -> Store:
    folder, name = split_url(place.rstrip("/"))
    return open_store(folder if name == MANIFEST_NAME else place)


def _kind_of(store: Store) -> Callable[[Store], Iterator[str]]:
    if _lists_attempts(store) or store.exists(FORMER_NAME):
        return verify_run
    if store.exists(PROVENANCE_NAME):
        return _verify_export
    if store.exists(MANIFEST_NAME):
        kinds = {TOKENIZER_FORMAT: _verify_tokenizer, _RECORDS_FORMAT: _verify_records}
        manifest = store.read(MANIFEST_NAME).decode(errors="replace")
        form = re.search(r'^ {0,2}"format": "(.*)"', manifest, re.MULTILINE)
        return kinds.get(form[1] if form else "", _verify_data)
    if store.exists(_PLAN_NAME):
        return _verify_unfinished
    if _is_cache(store):
        return _verify_cache
    _refuse_headless(store)
    raise ConfigError(
        "There is nothing here that Outlast writes.",
        where=store.url,
        expected="a run or an import (attempts/), a data set of text or images (manifest.json) or a build "
        "of one (plan.json), a tokenizer or TFRecord files (manifest.json), an exported model "
        "(outlast.json), a cache of shards (files named by their sha256)",
        remedy="check the path, which is a folder's and not a file's in it; of a folder from elsewhere "
        "nothing says what it should hold",
    )


def _refuse_headless(store: Store) -> None:
    """Raise ConfigError where files lie whose list is gone."""
    names: list[str] = []
    with suppress(StorageError):  # http lists nothing
        names = [info.name for info in store.list("")]
    for head, what, pattern in _HEADLESS:
        if found := next((name for name in names if re.fullmatch(pattern, name)), None):
            raise ConfigError(
                f"{head} is missing, which alone says what the {what} here should hold.",
                where=store.url_of(head),
                expected=f"it beside {found}",
                remedy="put it back, or make the folder anew; one from elsewhere cannot be verified",
            )


def _lists_attempts(store: Store) -> bool:
    with suppress(StorageError):  # http lists nothing: there a run is not read either
        return bool(attempt_objects(store) or list_keys(store))
    return False


def _verify_data(store: Store) -> Iterator[str]:
    url = f"{store.url}/{MANIFEST_NAME}"
    if is_image_set(url):
        yield from verify_images(url)
    else:
        yield from verify_manifest(url)
        tokenizer = read_manifest(url)[0].tokenizer
        yield from check_tokenizer(store, tokenizer.path, tokenizer.fingerprint)
    yield from _verify_build(store)


def _verify_unfinished(store: Store) -> Iterator[str]:
    if store.exists(f"{TOKENIZER_FOLDER}/{MANIFEST_NAME}"):
        yield from check_tokenizer(store, TOKENIZER_FOLDER, None)
    yield from _verify_build(store, is_finished=False)


def _verify_build(store: Store, *, is_finished: bool = True) -> Iterator[str]:
    """Check the documents of a build, and what they name that no manifest names."""
    with suppress(StorageError):  # http lists nothing: what only a further build reads is not looked at
        for info in store.list(""):
            for pattern, form in _DOCUMENTS:
                if match := re.fullmatch(pattern + r"\.json", info.name):
                    files: dict[str, str] = {}
                    number = match[match.lastindex or 0]
                    yield from told(
                        info.name, partial(_check_document, store, info.name, form, number, files)
                    )
                    if not is_finished or info.name.startswith("cleaning/"):
                        yield from _check_digests(store, files)


def _check_document(store: Store, name: str, form: str | None, number: str, files: dict[str, str]) -> None:
    """Check a document of a build; add the files that it names, with their digests."""
    document = _read_document(store.read(name))
    if document.get("format") != form:
        raise SealError(f"Its format is {document.get('format')!r:.100}.")
    about = document.get("table", document)
    own = [str(about.get(key)).partition("/")[0] for key in ("number", "piece", "task", "name")]
    if number != name and number not in [one.removesuffix(".safetensors").zfill(5) for one in own]:
        raise SealError("It is another's.")
    if form != "outlast-repair":  # whose files are still to be made
        named = document.get("files")
        files.update(cast(dict[str, str], named) if isinstance(named, dict) else _named_files(document))


def _named_files(value: Any) -> Iterator[tuple[str, str]]:
    """Yield name and digest of every file that a record tells of."""
    if isinstance(value, dict):
        fields = cast(dict[str, Any], value)
        if {"name", "sha256"} <= fields.keys():
            yield fields["name"], fields["sha256"]
        value = list(fields.values())
    for item in cast(list[Any], value) if isinstance(value, list) else ():
        yield from _named_files(item)


def _read_document(content: bytes) -> dict[str, Any]:
    """Return a document sealed in one of two layouts, or of a version before, without a digest."""
    try:
        document: Any = json.loads(content)
        is_former = document.get("version") == 1 and DIGEST_KEY not in document
    except (ValueError, AttributeError, RecursionError):
        raise SealError("The file is not a JSON object.") from None
    if is_former or set(document) == _FORMER_TABLE:
        return document
    return unseal(content, where="", layout="indented" if content.startswith(b"{\n") else "line")


def _check_digests(store: Store, files: dict[str, str]) -> Iterator[str]:
    for name, digest in files.items():
        yield from told(name, partial(_check_digest, store, name, digest))


def _check_digest(store: Store, name: str, digest: str) -> None:
    found = _digest_of(store, name)
    if found != digest:
        raise SealError(f"It has sha256 {found}, the record of it says another.")


def _digest_of(store: Store, name: str) -> str:
    with store.open(name) as file:
        return hashlib.file_digest(cast(Any, file), "sha256").hexdigest()


_FORMER_TABLE = {"name", "size_bytes", "sha256", "num_examples", "num_random"}


def _verify_tokenizer(store: Store) -> Iterator[str]:
    folder, name = split_url(store.url)
    yield from check_tokenizer(open_store(folder), name, None)


def _verify_records(store: Store) -> Iterator[str]:
    files: dict[str, str] = {}
    check = partial(_check_document, store, MANIFEST_NAME, _RECORDS_FORMAT, MANIFEST_NAME, files)
    yield from told(MANIFEST_NAME, check)
    yield from _check_digests(store, files)
    yield from _verify_build(store)


def _verify_export(store: Store) -> Iterator[str]:
    digests = read_digests(store)
    yield from (f"{name}: is missing" for name in digests if not store.exists(name))
    yield from (
        f"{name}: has another sha256 than {PROVENANCE_NAME} says: one of the two is not as it was exported"
        for name in changed_files(store, digests)
    )


def _is_cache(store: Store) -> bool:
    with suppress(StorageError):
        names = [info.name.removesuffix(".part") for info in store.list("")]
        return bool(names) and all(_DIGEST.fullmatch(name) for name in names)
    return False


def _verify_cache(store: Store) -> Iterator[str]:
    for info in store.list(""):
        if _DIGEST.fullmatch(info.name):
            found = _digest_of(store, info.name)
            if found != info.name:
                yield f"{info.name}: has sha256 {found}, its name says another"


_FREE: dict[Callable[[Store], Iterator[str]], tuple[str, ...]] = {
    verify_run: ("metrics/", RECIPE_NAME),
    _verify_export: (CARD_NAME,),
}
"""What is there for people and has no digest."""
