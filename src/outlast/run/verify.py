"""The verb ``verify``: whether every byte of whatever the package wrote is still the one that was written.

In: a path or URL. Out: what is wrong, a line for each file. What it is follows from what lies there: a run
or an import, a data set of text or images, a tokenizer, an exported model, a cache of shards. Nothing is
changed. Not looked at are what nothing reads again (metrics) and what people are to edit (model cards,
``recipe.toml``).
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, cast

from outlast.checkpoint.format import parse_commit
from outlast.checkpoint.inspect import verify_run as verify_checkpoints
from outlast.checkpoint.lineage import (
    COMMITS,
    DATA,
    CommitKey,
    is_list_name,
    parse_attempt_name,
    parse_commit_name,
    parse_data_name,
)
from outlast.checkpoint.records import attempt_objects, list_keys
from outlast.errors import ConfigError, ObjectNotFound, OutlastError, SealError, StorageError
from outlast.huggingface.digests import PROVENANCE_NAME, changed_files, read_digests
from outlast.images.manifest import is_image_set
from outlast.images.verify import verify_images
from outlast.run.directory import FORMER_NAME, TOKENIZER_FOLDER, read_description
from outlast.shards.manifest import read_manifest
from outlast.shards.verify import verify_manifest
from outlast.storage import Store, open_store, split_url
from outlast.storage.checksummed_json import unseal
from outlast.tokenizer.manifest import FORMAT as TOKENIZER_FORMAT
from outlast.tokenizer.manifest import MANIFEST_NAME, read_tokenizer_manifest
from outlast.training.ranking import FOLDER as EVALUATIONS
from outlast.training.ranking import parse_evaluation

_DIGEST = re.compile(r"[0-9a-f]{64}")
_BUILD = re.compile(r"(pairs-\d{1,5}/)?(plan|repair|done/[^/]+)\.json")


def verify_anything(place: str) -> list[str]:
    """Return what is wrong with what lies at a path or URL, a line for each file; empty: nothing is.

    Raises:
        ConfigError: nothing there that the package writes.
        StorageError: the store does not answer, or cannot tell what it holds.
    """
    folder, name = split_url(place.rstrip("/"))
    if name == MANIFEST_NAME:
        place = folder
    store = open_store(place)
    verify = _kind_of(store)
    try:
        return list(verify(store))
    except StorageError:
        raise
    except OutlastError as error:  # so damaged that there is nothing else to be said
        return [f"{error.where or store.url}: {error.message}"]


def _kind_of(store: Store) -> Callable[[Store], Iterator[str]]:
    if _lists_attempts(store) or store.exists(FORMER_NAME):
        return _verify_run
    if store.exists(PROVENANCE_NAME):
        return _verify_export
    if store.exists(MANIFEST_NAME):
        is_tokenizer = f'"{TOKENIZER_FORMAT}"'.encode() in store.read(MANIFEST_NAME)
        return _verify_tokenizer if is_tokenizer else _verify_data
    if _is_cache(store):
        return _verify_cache
    raise ConfigError(
        "There is nothing here that Outlast writes.",
        where=store.url,
        expected="a run or an import (attempts/), a data set of text or images (manifest.json), a tokenizer "
        "(manifest.json), an exported model (outlast.json), a cache of shards (files named by their sha256)",
        remedy="check the path; of a folder from elsewhere nothing says what it should hold",
    )


def _lists_attempts(store: Store) -> bool:
    with suppress(StorageError):  # http lists nothing: there a run is not read either
        return bool(attempt_objects(store) or list_keys(store))
    return False


def _verify_run(store: Store) -> Iterator[str]:
    try:
        yield from verify_checkpoints(store.url)
    except OutlastError as error:  # there is none
        yield f"{store.url}: {error.message}"
    for info in store.list("attempts/"):
        yield from _told(info.name, lambda name=info.name: _check_attempt(store, name))
    for info in store.list(EVALUATIONS):
        yield from _told(info.name, lambda name=info.name: _check_evaluation(store, name))
    for info in store.list(DATA):
        key = parse_data_name(info.name)
        if key is not None and is_list_name(info.name):
            check = partial(_check_list, store, info.name, key)
            yield from _told(info.name, check)
    tokenizer: list[str] = []
    try:
        tokenizer += [read_description(store)["identity"]["data"].get("tokenizer")]
    except KeyError:
        pass
    except OutlastError as error:
        yield f"{error.where}: {error.message}"
    if store.exists(f"{TOKENIZER_FOLDER}/{MANIFEST_NAME}") or any(tokenizer):
        yield from _check_tokenizer(store, TOKENIZER_FOLDER, next(filter(None, tokenizer), None))


def _check_list(store: Store, name: str, key: CommitKey) -> None:
    parse_commit(store.read(name), name=key.name)


def _check_attempt(store: Store, name: str) -> None:
    parsed = parse_attempt_name(name)
    if parsed is None:
        return
    number, kind = parsed
    document = unseal(store.read(name), where=name, layout="indented" if kind == "run.json" else "line")
    if document.get("attempt") != number:
        raise SealError(f"It is that of attempt {document.get('attempt')}.")


def _check_evaluation(store: Store, name: str) -> None:
    commit = parse_commit_name(COMMITS + name.removeprefix(EVALUATIONS))
    if commit is not None:
        parse_evaluation(store.read(name), commit)


def _verify_data(store: Store) -> Iterator[str]:
    url = f"{store.url}/{MANIFEST_NAME}"
    if is_image_set(url):
        yield from verify_images(url)
    else:
        yield from verify_manifest(url)
        tokenizer = read_manifest(url)[0].tokenizer
        yield from _check_tokenizer(store, tokenizer.path, tokenizer.fingerprint)
    with suppress(StorageError):  # http lists nothing: what only a further build reads is not looked at
        for info in store.list(""):
            if _BUILD.fullmatch(info.name):
                yield from _told(info.name, lambda name=info.name: _check_build(name, store.read(name)))


def _check_build(name: str, content: bytes) -> None:
    """Check a plan or a record: sealed in one of two layouts, or of a version before, without a digest."""
    try:
        document: Any = json.loads(content)
        is_former = document.get("version") == 1 or set(document) == _FORMER_TABLE
    except (ValueError, AttributeError, RecursionError):
        raise SealError("The file is not a JSON object.") from None
    if not is_former:
        unseal(content, where="", layout="indented" if content.startswith(b"{\n") else "line")
    *_, folder, stem = ["", *name.removesuffix(".json").split("/")]
    told = document if is_former else document.get("table", document)
    its_own = f"{told.get('piece', -1):05d}", told.get("name", "").removesuffix(".safetensors")
    if stem not in its_own if folder == "done" else document.get("format") != f"outlast-{stem}":
        raise SealError("It is another's.")


_FORMER_TABLE = {"name", "size_bytes", "sha256", "num_examples", "num_random"}


def _verify_tokenizer(store: Store) -> Iterator[str]:
    folder, name = split_url(store.url)
    yield from _check_tokenizer(open_store(folder), name, None)


def _check_tokenizer(store: Store, path: str, fingerprint: str | None) -> Iterator[str]:
    def check() -> None:
        found = read_tokenizer_manifest(store, path).fingerprint
        if fingerprint not in (None, found):
            raise SealError(f"It has the fingerprint {found}, the manifest beside it says {fingerprint}.")

    yield from _told(path, check)


def _verify_export(store: Store) -> Iterator[str]:
    digests = read_digests(store)
    yield from (f"{name}: is missing" for name in digests if not store.exists(name))
    yield from (
        f"{name}: has another sha256 than when it was exported" for name in changed_files(store, digests)
    )


def _is_cache(store: Store) -> bool:
    with suppress(StorageError):
        names = [info.name.removesuffix(".part") for info in store.list("")]
        return bool(names) and all(_DIGEST.fullmatch(name) for name in names)
    return False


def _verify_cache(store: Store) -> Iterator[str]:
    for info in store.list(""):
        if _DIGEST.fullmatch(info.name):
            with store.open(info.name) as file:
                found = hashlib.file_digest(cast(Any, file), "sha256").hexdigest()
            if found != info.name:
                yield f"{info.name}: has sha256 {found}, its name says another"


def _told(name: str, check: Callable[[], object]) -> Iterator[str]:
    try:
        check()
    except ObjectNotFound:
        yield f"{name}: is missing"
    except StorageError:
        raise
    except OutlastError as error:
        place = "" if error.where in (None, "", name) else f"{error.where}: "
        yield f"{name}: {place}{error.message}"
