"""The tokenizer's manifest: the one place where special ids, vocabulary size and identity are written down.

In: ``<prefix>/manifest.json`` beside the tokenizer's files (docs/formats/tokenizer.md). Out: a frozen
``TokenizerManifest``. Every later stage reads special ids from it and from nowhere else. It is written last,
so where there is a manifest there is a whole tokenizer.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from outlast.errors import ObjectNotFound, TokenizerError
from outlast.storage import Store
from outlast.storage.checksummed_json import DIGEST_KEY, Kind, encode, parse, validate

FORMAT = "outlast-tokenizer"
_KIND = Kind(
    FORMAT, (1, 2), "tokenizer's manifest", "restore the file, or make the tokenizer again", TokenizerError
)
MANIFEST_NAME = "manifest.json"
SPECIAL_ROLES = ("pad", "unk", "cls", "sep", "mask")

Library = Literal["sentencepiece", "tokenizers", "mecab"]
MODEL_NAMES: dict[Library, str] = {
    "sentencepiece": "tokenizer.model",
    "tokenizers": "tokenizer.json",
    "mecab": "mecab.json",
}
"""The file that holds the vocabulary, by library."""


@dataclass(frozen=True, kw_only=True)
class TokenizerManifest:
    """What a tokenizer is.

    Attributes:
        kind: unigram, bpe, wordpiece or character.
        special_ids: ids by role: pad, unk, cls, sep, mask. All differ.
        special_pieces: their names, by role.
        files: sha256 of each file, by its name within the folder.
        training: configuration, counts and versions; what produced the files, no part of the identity.
    """

    kind: Literal["unigram", "bpe", "wordpiece", "character"]
    library: Library
    vocab_size: int
    special_ids: dict[str, int]
    special_pieces: dict[str, str]
    files: dict[str, str]
    training: dict[str, Any]

    @property
    def fingerprint(self) -> str:
        """The identity of the tokenizer: sha256 over everything but ``training``."""
        identity = {key: value for key, value in asdict(self).items() if key != "training"}
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def write_tokenizer(
    store: Store, prefix: str, manifest: TokenizerManifest, files: Mapping[str, bytes]
) -> None:
    """Write the files under ``<prefix>/``, then the manifest that names them."""
    check_special_ids(manifest, where=_object_url(store, prefix, MANIFEST_NAME))
    for name, content in files.items():
        store.replace(f"{prefix}/{name}", [content])
    content = encode(_KIND, {"fingerprint": manifest.fingerprint, **asdict(manifest)})
    store.replace(f"{prefix}/{MANIFEST_NAME}", [content])


def read_tokenizer_manifest(store: Store, prefix: str) -> TokenizerManifest:
    """Read a tokenizer's manifest and verify the hash of every file it names.

    Raises:
        TokenizerError: no manifest, not one, damaged or of another version; a file that is missing or was
        changed.
    """
    return read_tokenizer(store, prefix)[0]


def holds_tokenizer(store: Store, prefix: str, fingerprint: str) -> bool:
    """Whether the tokenizer of that fingerprint is there, whole."""
    try:
        return read_tokenizer_manifest(store, prefix).fingerprint == fingerprint
    except TokenizerError:
        return False


def read_tokenizer(store: Store, prefix: str) -> tuple[TokenizerManifest, dict[str, bytes]]:
    """Read a tokenizer's manifest and the verified bytes of its files. Raises TokenizerError."""
    where = _object_url(store, prefix, MANIFEST_NAME)
    try:
        text = store.read(f"{prefix}/{MANIFEST_NAME}")
    except ObjectNotFound:
        raise TokenizerError(
            "There is no tokenizer here.",
            where=where,
            remedy="train one with `outlast prepare`, or import a file",
        ) from None
    manifest = parse_tokenizer_manifest(text, where=where)
    files: dict[str, bytes] = {}
    for name, digest in manifest.files.items():
        url = _object_url(store, prefix, name)
        try:
            files[name] = store.read(f"{prefix}/{name}")
        except ObjectNotFound:
            raise TokenizerError(
                f"The tokenizer's file {name} is missing.", where=url, remedy="restore the folder"
            ) from None
        if hashlib.sha256(files[name]).hexdigest() != digest:
            raise TokenizerError(
                f"The tokenizer's file {name} was changed after the tokenizer was made.",
                where=url,
                expected=f"sha256 {digest}",
                remedy="restore the file; data made with the old one does not fit a new one",
            )
    return manifest, files


def parse_tokenizer_manifest(text: bytes, *, where: str) -> TokenizerManifest:
    """Parse and check a manifest's bytes. Raises TokenizerError."""
    fields = parse(text, _KIND, where=where)
    fields.pop(DIGEST_KEY, None)
    fingerprint = fields.pop("fingerprint", None)
    manifest = validate(TokenizerManifest, fields, _KIND, where=where)
    if manifest.fingerprint != fingerprint:
        raise TokenizerError(
            "The fingerprint of the tokenizer's manifest does not match its content.",
            where=where,
            remedy="restore the file: special ids and file hashes are not to be edited by hand",
        )
    check_special_ids(manifest, where=where)
    return manifest


def check_special_ids(manifest: TokenizerManifest, *, where: str) -> None:
    """Check that every role has an id of its own within the vocabulary, and that the files are the library's.

    Raises:
        TokenizerError: a role without an id, an id outside the vocabulary or given twice (an unknown
        character whose
            id is that of padding would be left out of attention), or a file that no tokenizer has.
    """
    ids = manifest.special_ids
    if sorted(ids) != sorted(SPECIAL_ROLES) or sorted(manifest.special_pieces) != sorted(SPECIAL_ROLES):
        raise TokenizerError(
            f"The special ids are {', '.join(ids)}.", where=where, expected=", ".join(SPECIAL_ROLES)
        )
    for role, special_id in ids.items():
        if not 0 <= special_id < manifest.vocab_size:
            raise TokenizerError(
                f"The id of {role}, {special_id}, is outside the vocabulary.",
                where=where,
                expected=f"0 to {manifest.vocab_size - 1}",
            )
        shared = [other for other in ids if other != role and ids[other] == special_id]
        if shared:
            raise TokenizerError(
                f"{role} and {shared[0]} share the id {special_id}.",
                where=where,
                expected="one id for each role",
            )
    if list(manifest.files) != [MODEL_NAMES[manifest.library]]:
        raise TokenizerError(
            f"The tokenizer's files are {', '.join(manifest.files) or 'none'}.",
            where=where,
            expected=f"{MODEL_NAMES[manifest.library]} for the library {manifest.library}",
        )


def _object_url(store: Store, prefix: str, name: str) -> str:
    return f"{store.url}/{prefix}/{name}"
