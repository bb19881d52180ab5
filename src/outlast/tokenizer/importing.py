"""Make a tokenizer folder of an existing sentencepiece .model or Hugging Face tokenizer.

In: the file, or the folder it is in (``vocabulary_files``). Out: a tokenizer folder whose special ids are
found by their names. The ids of the vocabulary stay as they are, so data and models made with the file fit.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, cast

from tokenizers import AddedToken

from outlast.errors import TokenizerError
from outlast.logs import log
from outlast.storage import Store
from outlast.storage.regular import read_whole
from outlast.tokenizer.config import SPECIAL_PIECES
from outlast.tokenizer.encode import check_unknown, make_tokenizer, refuse_reachable
from outlast.tokenizer.manifest import (
    MANIFEST_NAME,
    MODEL_NAMES,
    Library,
    TokenizerManifest,
    read_tokenizer_manifest,
    write_tokenizer,
)
from outlast.tokenizer.mecab_words import MecabSubwords
from outlast.tokenizer.sentencepiece_model import append_control_pieces, parse_model
from outlast.tokenizer.untrusted import load_json
from outlast.tokenizer.vocabulary_files import find_vocabulary, read_vocabulary

SPECIAL_NAMES = {
    "pad": ("<pad>", "[PAD]"),
    "unk": ("<unk>", "[UNK]"),
    "cls": ("[CLS]", "<s>", "<cls>"),
    "sep": ("[SEP]", "</s>", "<sep>"),
    "mask": ("[MASK]", "<mask>"),
}
"""The names a role is found by, the first that is there."""

_REMEDY = "fetch the file again from where it came from, or import another tokenizer"
_KINDS: dict[str, str] = {"Unigram": "unigram", "BPE": "bpe", "WordPiece": "wordpiece"}


def import_tokenizer(
    file: Path, store: Store, prefix: str, *, append_missing: bool = False
) -> TokenizerManifest:
    """Write a tokenizer as a folder under ``<prefix>/`` of the store, its manifest last.

    Args:
        file: the vocabulary, or a folder that holds one.
        store, prefix: a place without a tokenizer, or with the same one.
        append_missing: give the roles that the file lacks new ids after its last one, instead of an error.

    Raises:
        TokenizerError: no such file, not a tokenizer, special pieces missing (all are listed), or one that
        text reaches; another tokenizer there.
    """
    manifest, files = read_foreign(file, append_missing=append_missing)
    if store.exists(f"{prefix}/{MANIFEST_NAME}"):
        found = read_tokenizer_manifest(store, prefix)
        if found.fingerprint != manifest.fingerprint:
            raise TokenizerError(
                f"There is another tokenizer already, {found.fingerprint[:12]}.",
                where=f"{store.url}/{prefix}",
                remedy="choose another place, or delete it",
            )
    write_tokenizer(store, prefix, manifest, files)
    ids = ", ".join(f"{role} {number}" for role, number in manifest.special_ids.items())
    log.info("tokenizer: %s by %s, %d pieces, %s", manifest.kind, manifest.library, manifest.vocab_size, ids)
    return manifest


def read_foreign(file: Path, *, append_missing: bool = False) -> tuple[TokenizerManifest, dict[str, bytes]]:
    """Return what ``import_tokenizer`` writes: the manifest, and the files by name."""
    file = find_vocabulary(file)
    try:
        content = read_vocabulary(file)
        if content.startswith(b'{\n"subwords"'):
            library, kind, pieces = _read_mecab(content)
        elif file.suffix == ".json" or content.lstrip()[:1] == b"{":
            library, kind, pieces, content = _read_json(content, append_missing)
        else:
            library, kind, pieces, content = _read_sentencepiece(content, append_missing)
        manifest = _make_manifest(file, library, kind, pieces, content)
        tokenizer = make_tokenizer(manifest, content)
        check_unknown(tokenizer)
        refuse_reachable(tokenizer)
    except TokenizerError as error:
        raise TokenizerError(
            error.message,
            where=error.where or str(file),
            expected=error.expected,
            remedy=error.remedy or _REMEDY,
        ) from None
    return manifest, {MODEL_NAMES[library]: content}


def _read_sentencepiece(content: bytes, append_missing: bool) -> tuple[Library, str, list[str], bytes]:
    model = parse_model(content)
    pieces = [piece.text for piece in model.pieces]
    if append_missing:
        names = _missing_names(pieces)
        content = append_control_pieces(content, names)
        pieces += names
    return "sentencepiece", model.kind, pieces, content


def _read_mecab(content: bytes) -> tuple[Library, str, list[str]]:
    subwords = MecabSubwords(content)
    return "mecab", "character" if subwords.is_character else "wordpiece", subwords.pieces


def _read_json(content: bytes, append_missing: bool) -> tuple[Library, str, list[str], bytes]:
    try:
        data: dict[str, Any] = json.loads(content)
        kind = _KINDS[data["model"].get("type") or "BPE"]
        tokenizer = load_json(content)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise TokenizerError(f"The file is not a tokenizer.json of a known kind: {error}") from None
    _check_ids(tokenizer.get_vocab())
    pieces = [tokenizer.id_to_token(index) or "" for index in range(tokenizer.get_vocab_size())]
    if append_missing:
        names = _missing_names(pieces)
        tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
        content = tokenizer.to_str().encode()
        pieces += names
    return "tokenizers", kind, pieces, content


def _check_ids(vocabulary: dict[str, int]) -> None:
    """Check that every id lies within the vocabulary: a model has no row for one beyond."""
    piece, highest = max(vocabulary.items(), key=lambda item: item[1], default=("", -1))
    size = len(vocabulary)
    if highest >= size:
        raise TokenizerError(
            f"The piece {piece!r} has the id {highest}, and the vocabulary {size} pieces.",
            expected=f"ids from 0 to {size - 1}",
            remedy="number the pieces without gaps, or use another tokenizer",
        )


def _missing_names(pieces: Sequence[str]) -> list[str]:
    known = set(pieces)
    return [SPECIAL_PIECES[role] for role, names in SPECIAL_NAMES.items() if known.isdisjoint(names)]


def _make_manifest(
    file: Path, library: Library, kind: str, pieces: list[str], content: bytes
) -> TokenizerManifest:
    missing = [
        f"{role} ({' or '.join(names)})"
        for role, names in SPECIAL_NAMES.items()
        if set(names).isdisjoint(pieces)
    ]
    if missing:
        raise TokenizerError(
            f"The tokenizer has no piece for {', '.join(missing)}.",
            remedy="give them new ids after the last one: outlast tokenizer import --append-missing",
        )
    special_pieces = {
        role: next(name for name in names if name in pieces) for role, names in SPECIAL_NAMES.items()
    }
    return TokenizerManifest(
        kind=cast(Literal["unigram", "bpe", "wordpiece", "character"], kind),
        library=library,
        vocab_size=len(pieces),
        special_ids={role: pieces.index(name) for role, name in special_pieces.items()},
        special_pieces=special_pieces,
        files={MODEL_NAMES[library]: hashlib.sha256(content).hexdigest()},
        training={"imported": file.name, "sha256": hashlib.sha256(read_whole(file)).hexdigest()},
    )
