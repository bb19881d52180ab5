"""Text to ids and back, the same for all libraries.

In: the folder of a tokenizer and strings. Out: int32 arrays of ids without [CLS] and [SEP]. No text encodes
to a control id: "[CLS]" in a document is six characters. Encoding is single-threaded, because building runs
one process per core.
"""

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import sentencepiece
import tokenizers
from numpy.typing import NDArray

from outlast.errors import TokenizerError
from outlast.storage import Store
from outlast.tokenizer.failures import library_failures
from outlast.tokenizer.fast_bpe import fast_encoder
from outlast.tokenizer.manifest import MODEL_NAMES, Library, TokenizerManifest, read_tokenizer
from outlast.tokenizer.mecab_words import CONTINUATION, MecabSubwords
from outlast.tokenizer.sentencepiece_model import parse_model
from outlast.tokenizer.untrusted import check_charsmap, load_json

_NO_IDS = np.zeros(0, np.int32)
_BYTE_LETTERS = set(tokenizers.pre_tokenizers.ByteLevel.alphabet())
_ONE_THREAD = {"TOKENIZERS_PARALLELISM": "false"}


class Tokenizer(ABC):
    """A trained or imported tokenizer.

    Attributes:
        manifest: special ids, vocabulary size, identity.
        model: the bytes of the vocabulary file (``MODEL_NAMES[manifest.library]``).
    """

    def __init__(self, manifest: TokenizerManifest, model: bytes) -> None:
        self.manifest = manifest
        self.model = model

    @property
    def name(self) -> str:
        """The tokenizer as messages name it: its kind, its library, its file where it was imported."""
        source = self.manifest.training.get("imported")
        made = f"imported from {source}" if source else "trained here"
        return f"{self.manifest.fingerprint[:12]} ({self.manifest.kind} by {self.manifest.library}, {made})"

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        """Return the ids of each text, int32 of shape (num_tokens,), perhaps read-only, without special ids.

        Raises:
            TokenizerError: a text holds half of a surrogate pair, which no encoding can express; the library
            fails at a text.
        """
        try:
            with library_failures(self.name, texts, lambda text: self._encode([text])):
                return self._encode(list(texts))
        except TypeError:  # both libraries': what they cannot write as UTF-8 is no string to them
            check_text(texts)
            raise

    def encode_utf8(self, texts: Sequence[str], contents: Sequence[bytes]) -> list[NDArray[np.int32]]:
        """Return what ``encode_batch`` does, for texts whose UTF-8 is there already."""
        del contents
        return self.encode_batch(texts)

    def encode_joined(self, texts: Sequence[str]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return the ids of all texts end to end, int32 of shape (num_tokens,), and how many each text has,
        int64 of shape (num_texts,). Raises TokenizerError.
        """
        encoded = self.encode_batch(texts)
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        return np.concatenate([*encoded, _NO_IDS]), lengths

    def encode_spans(self, texts: Sequence[str]) -> list[tuple[list[int], NDArray[np.int64]]]:
        """Return the ids of each text and the characters of the text that each comes from.

        The characters are those of the text as it was given, whatever normalisation made of them: int64 of
        shape (num_tokens, 2), begin and end; nothing where a piece has none, such as a "▁" at the beginning.
        Raises TokenizerError.
        """
        with library_failures(self.name, texts, lambda text: self._encode_spans([text])):
            found = self._encode_spans(texts)
        return [(ids, np.array(spans, np.int64).reshape(len(ids), 2)) for ids, spans in found]

    def encode(self, text: str) -> NDArray[np.int32]:
        """Return the ids of one text, int32 of shape (num_tokens,)."""
        return self.encode_batch([text])[0]

    @abstractmethod
    def _encode(self, texts: list[str]) -> list[NDArray[np.int32]]: ...

    @abstractmethod
    def _encode_spans(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]]]]: ...

    @abstractmethod
    def decode(self, ids: Sequence[int] | NDArray[np.integer[Any]]) -> str:
        """Return the text of the ids; control ids give nothing. An id out of range: TokenizerError."""

    def piece(self, piece_id: int) -> str:
        """Return the piece with this id, as the vocabulary writes it."""
        return self.pieces[self._checked([piece_id])[0]]

    @cached_property
    def pieces(self) -> list[str]:
        """All pieces, by id."""
        return self._list_pieces()

    @abstractmethod
    def _list_pieces(self) -> list[str]: ...

    @abstractmethod
    def unknown_piece(self) -> tuple[str | None, bool]:
        """Return the piece that the library gives for what the vocabulary lacks, None where it has none, and
        whether each of the 256 bytes has a piece.
        """

    @cached_property
    def control_names(self) -> frozenset[str]:
        """The names of the pieces that no text encodes to, that of unknown text included."""
        return frozenset(self.manifest.special_pieces.values()) | self._list_control()

    @abstractmethod
    def _list_control(self) -> set[str]: ...

    def _checked(self, ids: Sequence[int] | NDArray[np.integer[Any]]) -> list[int]:
        plain = [int(piece_id) for piece_id in ids]
        wrong = [piece_id for piece_id in plain if not 0 <= piece_id < self.manifest.vocab_size]
        if wrong:
            raise TokenizerError(
                f"The id {wrong[0]} is outside the vocabulary.",
                expected=f"0 to {self.manifest.vocab_size - 1}",
            )
        return plain


class SentencePieceTokenizer(Tokenizer):
    """Encodes with a sentencepiece model; the library itself keeps control pieces apart from text."""

    def __init__(self, manifest: TokenizerManifest, model: bytes) -> None:
        super().__init__(manifest, model)
        check_charsmap(parse_model(model).charsmap)
        try:
            self.processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise TokenizerError(f"sentencepiece cannot read the model: {error}") from None
        _check_size(manifest, self.processor.get_piece_size())

    def _encode(self, texts: list[str]) -> list[NDArray[np.int32]]:
        # Arrays, because making a Python integer of every id takes a fifth of the library's own time.
        return self.processor.encode(texts, return_type="numpy", num_threads=1)

    def encode_utf8(self, texts: Sequence[str], contents: Sequence[bytes]) -> list[NDArray[np.int32]]:
        """Return what ``encode_batch`` does, for texts whose UTF-8 is there already."""
        del texts
        return self.processor.encode(list(contents), return_type="numpy", num_threads=1)

    def _encode_spans(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        check_text(texts)
        found: Any = self.processor.encode(list(texts), return_type="offset_mapping", num_threads=1)
        return [(mapping["ids"], mapping["offsets"]) for mapping in found]

    def decode(self, ids: Sequence[int] | NDArray[np.integer[Any]]) -> str:
        return self.processor.decode(self._checked(ids))

    def _list_pieces(self) -> list[str]:
        return [self.processor.id_to_piece(index) for index in range(self.manifest.vocab_size)]

    def unknown_piece(self) -> tuple[str | None, bool]:
        return self.pieces[self.processor.unk_id()], any(map(self.processor.is_byte, range(len(self.pieces))))

    def _list_control(self) -> set[str]:
        return {piece for index, piece in enumerate(self.pieces) if self.processor.is_control(index)}


class TokenizersTokenizer(Tokenizer):
    """Encodes with a ``tokenizers`` JSON file, whose special tokens are taken out of the reach of text."""

    def __init__(self, manifest: TokenizerManifest, model: bytes) -> None:
        super().__init__(manifest, model)
        for name, value in _ONE_THREAD.items():
            os.environ.setdefault(name, value)
        self.processor = load_json(model)
        with library_failures(self.name):
            self._encoder = tokenizers.Tokenizer.from_str(hide_special_tokens(model))
        self._encoder.encode_special_tokens = True
        self._encoder.no_truncation()
        self._encoder.no_padding()
        _check_size(manifest, self.processor.get_vocab_size(with_added_tokens=True))
        self._encode_fast = fast_encoder(model, self.encode_by_tokenizers)

    def _encode(self, texts: list[str]) -> list[NDArray[np.int32]]:
        return (self._encode_fast or self.encode_by_tokenizers)(texts)

    @property
    def is_fast(self) -> bool:
        """Whether another library, which gives the same ids, encodes (outlast/tokenizer/fast_bpe.py)."""
        return self._encode_fast is not None

    def encode_by_tokenizers(self, texts: list[str]) -> list[NDArray[np.int32]]:
        """Return the ids of texts by the library tokenizers itself. Raises TypeError for what is no text."""
        encodings = self._encoder.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, np.int32) for encoding in encodings]

    def _encode_spans(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        check_text(texts)
        encodings = self._encoder.encode_batch(list(texts), add_special_tokens=False)
        return [(encoding.ids, encoding.offsets) for encoding in encodings]

    def decode(self, ids: Sequence[int] | NDArray[np.integer[Any]]) -> str:
        with library_failures(self.name):
            return self.processor.decode(self._checked(ids), skip_special_tokens=True)

    def _list_pieces(self) -> list[str]:
        return [self.processor.id_to_token(index) or "" for index in range(self.manifest.vocab_size)]

    def unknown_piece(self) -> tuple[str | None, bool]:
        data: dict[str, Any] = json.loads(self.model)
        model, pieces = data["model"], set(self.pieces)
        if model.get("type") == "Unigram":
            number = model.get("unk_id")
            found = None if number is None else self.pieces[number]
        else:
            found = model.get("unk_token")
        names = {f"<0x{byte:02X}>" for byte in range(256)} if model.get("byte_fallback") else _BYTE_LETTERS
        is_bytes = model.get("byte_fallback") or '"ByteLevel"' in json.dumps(
            [data.get("normalizer"), data.get("pre_tokenizer")]
        )
        return (found if found in pieces else None), bool(is_bytes and names <= pieces)

    def _list_control(self) -> set[str]:
        added = self.processor.get_added_tokens_decoder().values()
        return {token.content for token in added if token.special}


class MecabTokenizer(Tokenizer):
    """Encodes the words that MeCab finds in Japanese, as ``BertJapaneseTokenizer`` of transformers does."""

    def __init__(self, manifest: TokenizerManifest, model: bytes) -> None:
        super().__init__(manifest, model)
        self._subwords = MecabSubwords(model)
        _check_size(manifest, len(self._subwords.pieces))

    def _encode(self, texts: list[str]) -> list[NDArray[np.int32]]:
        check_text(texts)
        return [np.array(self._subwords.encode(text), np.int32) for text in texts]

    def _encode_spans(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        check_text(texts)
        return [self._subwords.encode_spans(text) for text in texts]

    def decode(self, ids: Sequence[int] | NDArray[np.integer[Any]]) -> str:
        control = set(self.manifest.special_ids.values()) - {self.manifest.special_ids["unk"]}
        pieces = [self.pieces[number] for number in self._checked(ids) if number not in control]
        return " ".join(pieces).replace(f" {CONTINUATION}", "").strip()

    def _list_pieces(self) -> list[str]:
        return self._subwords.pieces

    def unknown_piece(self) -> tuple[str | None, bool]:
        return "[UNK]", False

    def _list_control(self) -> set[str]:
        return set()


def load_tokenizer(store: Store, prefix: str) -> Tokenizer:
    """Load the tokenizer in the folder ``<prefix>/`` of a store, every file verified.

    Raises:
        TokenizerError: no tokenizer there, or a damaged one.
    """
    manifest, files = read_tokenizer(store, prefix)
    return make_tokenizer(manifest, files[MODEL_NAMES[manifest.library]])


def make_tokenizer(manifest: TokenizerManifest, model: bytes) -> Tokenizer:
    """Return the tokenizer of a manifest and the bytes of its vocabulary file."""
    return _BACKENDS[manifest.library](manifest, model)


_BACKENDS: dict[Library, type[Tokenizer]] = {
    "sentencepiece": SentencePieceTokenizer,
    "tokenizers": TokenizersTokenizer,
    "mecab": MecabTokenizer,
}


def hide_special_tokens(model: bytes) -> str:
    """Return a tokenizer.json in which no text reaches a special token.

    ``encode_special_tokens`` stops the search for special tokens in the text, but the models know no control
    pieces: "[CLS]" in a Unigram vocabulary matches the text "[CLS]", and with the score 0 it always wins; so
    does a BPE piece that is a whole word where ``ignore_merges`` is set. A name with a space matches nothing,
    since spaces have become "▁" or "Ġ" by then.
    """
    data: dict[str, Any] = json.loads(model)
    special = {token["content"] for token in data["added_tokens"] if token["special"]}

    def hidden(piece: str) -> str:
        return f" {piece}" if piece in special else piece

    vocabulary = data["model"]
    if vocabulary.get("type") == "Unigram":
        vocabulary["vocab"] = [[hidden(piece), score] for piece, score in vocabulary["vocab"]]
    elif vocabulary.get("ignore_merges"):
        vocabulary["vocab"] = {hidden(piece): number for piece, number in vocabulary["vocab"].items()}
        vocabulary["unk_token"] = vocabulary["unk_token"] and hidden(vocabulary["unk_token"])
    else:
        return model.decode()
    for token in data["added_tokens"]:
        token["content"] = hidden(token["content"])
    data["post_processor"] = None  # it names the special tokens
    return json.dumps(data, ensure_ascii=False)


def refuse_reachable(tokenizer: Tokenizer, control_symbols: Sequence[str] = ()) -> None:
    """Check that special ids and names agree and that no control symbol's own name encodes to its id.

    Raises:
        TokenizerError: naming the piece. Such an id in a document would look like the end of a segment or a
        mask.
    """
    manifest = tokenizer.manifest
    for role, name in manifest.special_pieces.items():
        found = tokenizer.piece(manifest.special_ids[role])
        if found != name:
            raise TokenizerError(
                f"The piece of {role}, id {manifest.special_ids[role]}, is {found!r}.", expected=repr(name)
            )
    for name in (*manifest.special_pieces.values(), *control_symbols):
        reached = {tokenizer.pieces[piece_id] for piece_id in tokenizer.encode(name)}
        if name in reached and name != manifest.special_pieces["unk"]:
            raise TokenizerError(
                f"The text {name!r} encodes to the control piece of that name.",
                remedy="choose another name for the symbol, or train the vocabulary without it in the text",
            )


def check_unknown(tokenizer: Tokenizer) -> None:
    """Check that what the vocabulary lacks becomes the unknown piece of the manifest, or bytes.

    Raises:
        TokenizerError: it would vanish, become another piece, or end the encoding.
    """
    wanted = tokenizer.manifest.special_pieces["unk"]
    found, spells_bytes = tokenizer.unknown_piece()
    if found != wanted and not (found is None and spells_bytes):
        raise TokenizerError(
            "The vocabulary has no unknown piece: what it lacks would vanish from the text."
            if found is None
            else f"The vocabulary's unknown piece is {found!r}.",
            expected=f"{wanted!r} for what the vocabulary lacks, or a piece for each of the 256 bytes",
        )


def check_text(texts: Sequence[str]) -> None:
    """Check that every text can be written as UTF-8. Raises TokenizerError with the place."""
    for number, text in enumerate(texts):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TokenizerError(
                f"The text holds half of a surrogate pair, {text[error.start]!a}, which is no character.",
                where=f"text {number} of the batch, character {error.start}",
                remedy="clean the corpus: JSON escapes such as \\ud83d come in pairs",
            ) from None


def _check_size(manifest: TokenizerManifest, found: int) -> None:
    if found != manifest.vocab_size:
        raise TokenizerError(
            f"The vocabulary has {found} pieces.",
            expected=f"{manifest.vocab_size} as in the manifest",
            remedy="restore the tokenizer's folder, or make the tokenizer again",
        )
