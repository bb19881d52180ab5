"""An exported model that answers: logits and hidden states for arrays, pieces for masks in a text.

In: a folder as ``outlast export`` or transformers' ``save_pretrained`` writes it. Out: numpy arrays under
transformers' names, or the likeliest pieces. Shapes are rounded up (lengths to a multiple of 32, rows to a
power of two), so varied texts compile a handful of programs; what is added is masked and cut off again. A
BigBird's attention depends on the number of its blocks, so there lengths are rounded up to whole blocks, and
texts are computed together only where each has the attention that it has alone.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from outlast.config import checked
from outlast.errors import ConfigError, OutlastError
from outlast.huggingface.digests import checking
from outlast.huggingface.japanese_text import Encoded, JapaneseText
from outlast.huggingface.load import WEIGHTS_NAME, load_weights
from outlast.models.architectures import ARCHITECTURES
from outlast.models.attention.random_blocks import is_sparse
from outlast.models.bert import EncoderInputs
from outlast.models.config import EncoderConfig
from outlast.models.next_sentence import predict_next_sentence
from outlast.models.params import Params, unflatten
from outlast.storage import local_place
from outlast.storage.regular import read_whole
from outlast.tokenizer.failures import library_failures
from outlast.tokenizer.untrusted import load_json

LENGTH_MULTIPLE = 32
BATCH_ROWS = 16
"""Texts that go through the model together."""

MASK_SPELLINGS = ("[MASK]", "<mask>")
"""What stands for a mask in a text, whatever the tokenizer calls its own."""

IntArray = NDArray[np.integer[Any]]


class Answer(TypedDict):
    """One candidate for one mask."""

    score: float
    """Probability among all pieces."""
    token: int
    token_str: str
    sequence: str
    """The text with this candidate in place of this mask."""


class Model:
    """An encoder with its heads. Made by ``load_model``."""

    def __init__(self, config: EncoderConfig, params: Params, folder: Path) -> None:
        self.config = config
        self.folder = folder
        self._params = params

    def __call__(
        self,
        input_ids: IntArray,
        attention_mask: IntArray | None = None,
        token_type_ids: IntArray | None = None,
    ) -> dict[str, NDArray[np.float32]]:
        """Return ``logits`` (rows, length, vocab_size) and ``last_hidden_state`` (rows, length, hidden_size).

        With a next-sentence head, as of transformers' BertForPreTraining, the logits are
        ``prediction_logits``, and ``seq_relationship_logits`` (rows, 2) stand beside them: index 1 for a
        second segment that does not follow the first.

        A BigBird attends as it does to sequences of this length, padding included, as in transformers: beside
        longer rows a short one may give something else than alone.

        Args:
            input_ids: integers of shape (rows, length).
            attention_mask: 1 for real tokens, 0 for padding, of the same shape; absent: all are real.
            token_type_ids: of the same shape; absent: all 0.

        Raises:
            OutlastError: arrays of another shape or kind, ids outside the vocabulary, too long a sequence.
        """
        hidden = self.encode(input_ids, attention_mask, token_type_ids)
        flat = hidden.reshape(-1, self.config.hidden_size)
        logits = self.predict(flat).reshape(*hidden.shape[:2], -1)
        if not self.config.next_sentence:
            return {"logits": logits, "last_hidden_state": hidden}
        first = np.zeros((_power_of_two(len(hidden)), self.config.hidden_size), np.float32)
        first[: len(hidden)] = hidden[:, 0]
        relation = np.asarray(_relate(self._params, jnp.asarray(first)))[: len(hidden)]
        return {
            "prediction_logits": logits,
            "seq_relationship_logits": relation,
            "last_hidden_state": hidden,
        }

    def encode(
        self,
        input_ids: IntArray,
        attention_mask: IntArray | None = None,
        token_type_ids: IntArray | None = None,
    ) -> NDArray[np.float32]:
        """Return the hidden states of the last layer, (rows, length, hidden_size). Arguments as for a
        call."""
        mask = np.ones_like(input_ids) if attention_mask is None else attention_mask
        types = np.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        self._check(input_ids, mask, types)
        rows, length = input_ids.shape
        shape = (_power_of_two(rows), _rounded_length(length, self.config))
        padded = (
            jnp.asarray(_padded(array, shape, fill))
            for array, fill in ((input_ids, self.config.pad_id), (mask, 0), (types, 0))
        )
        hidden = _encode(self._params, EncoderInputs(*padded), config=self.config)
        return np.asarray(hidden)[:rows, :length]

    def predict(self, hidden: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return logits (positions, vocab_size) of hidden states (positions, hidden_size)."""
        padded = np.zeros((_multiple(len(hidden), LENGTH_MULTIPLE), self.config.hidden_size), np.float32)
        padded[: len(hidden)] = hidden
        logits = _predict(self._params, jnp.asarray(padded)[None], config=self.config)
        return np.asarray(logits)[0, : len(hidden)]

    def _check(self, input_ids: IntArray, mask: IntArray, types: IntArray) -> None:
        limits = {
            "input_ids": (input_ids, self.config.vocab_size),
            "attention_mask": (mask, 2),
            "token_type_ids": (types, self.config.type_vocab_size),
        }
        for name, (array, limit) in limits.items():
            integers = np.issubdtype(array.dtype, np.integer) or array.dtype == np.bool_
            if not integers or array.ndim != 2 or array.shape != input_ids.shape:
                raise OutlastError(
                    f"{name} is {array.dtype} of shape {array.shape}.",
                    expected="integers of shape (rows, length), the same for all",
                )
            if array.size and not (array.min() >= 0 and array.max() < limit):
                raise OutlastError(
                    f"{name} holds values from {array.min()} to {array.max()}.", expected=f"0 to {limit - 1}"
                )
        if not input_ids.size or input_ids.shape[1] > self.config.max_positions:
            raise OutlastError(
                f"input_ids has shape {input_ids.shape}.",
                expected=f"at least one row, of 1 to {self.config.max_positions} tokens",
            )


def load_text_model(folder: Path) -> Model:
    """Load a folder with an encoder. Errors as of ``load_model``."""
    with checking(folder):
        config, params = load_weights(folder)
        return Model(config, unflatten({name: jnp.asarray(value) for name, value in params.items()}), folder)


@checked
def fill_mask(model: Model | Path | str, texts: Sequence[str], *, top: int = 5) -> list[list[list[Answer]]]:
    """Return, for each text and each mask in it, the likeliest pieces, best first.

    Args:
        model: a model or its folder.
        texts: each with at least one mask, written as the tokenizer writes it or as [MASK] or <mask>.
        top: number of answers per mask.

    Raises:
        OutlastError: a text without a mask or with too many tokens; a folder without a tokenizer; a text that
            the tokenizer's library fails at.
        ConfigError: ``top`` below 1.
    """
    texts = [texts] if isinstance(texts, str) else texts
    model = model if isinstance(model, Model) else load_text_model(local_place(model))
    if not 1 <= top <= model.config.vocab_size:
        raise ConfigError(f"Cannot give {top} answers.", expected=f"1 to {model.config.vocab_size}")
    tokenizer, mask_token, mask_id = _load_tokenizer(model)
    encodings = [_encode_text(text, tokenizer, mask_token, mask_id, model) for text in texts]
    answers: dict[int, list[list[Answer]]] = {}
    for batch in _batches([len(encoding.ids) for encoding in encodings], model.config):
        with library_failures(_name(model)):  # of decoding
            found = _answer(model, tokenizer, mask_id, [encodings[index] for index in batch], top)
        answers |= zip(batch, found, strict=True)
    return [answers[index] for index in range(len(encodings))]


@partial(jax.jit, static_argnames="config")
def _encode(params: Params, inputs: EncoderInputs, *, config: EncoderConfig) -> Array:
    return ARCHITECTURES[config.architecture].encode(params, inputs, config=config)


@partial(jax.jit, static_argnames="config")
def _predict(params: Params, hidden: Array, *, config: EncoderConfig) -> Array:
    return ARCHITECTURES[config.architecture].predict_tokens(params, hidden, config=config)


_relate = jax.jit(predict_next_sentence)


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _multiple(number: int, unit: int) -> int:
    return -(-number // unit) * unit


def _rounded_length(length: int, config: EncoderConfig) -> int:
    """The length to compute: which blocks there are, which is the last and what is drawn stay the same."""
    unit = LENGTH_MULTIPLE if config.sparse is None else config.sparse.block_size
    return min(_multiple(length, unit), config.max_positions)


def _batches(lengths: Sequence[int], config: EncoderConfig) -> Iterator[list[int]]:
    """Which texts go through the model together: of sparse attention only those with as many blocks."""
    alike: dict[int, list[int]] = defaultdict(list)
    for index, length in enumerate(lengths):
        alike[_sparse_length(length, config)].append(index)
    for indices in alike.values():
        yield from (indices[start : start + BATCH_ROWS] for start in range(0, len(indices), BATCH_ROWS))


def _sparse_length(length: int, config: EncoderConfig) -> int:
    """The length in whole blocks; 0 where attention is full, which no padding changes."""
    sparse = config.sparse
    if sparse is None or not is_sparse(
        length, block_size=sparse.block_size, num_random_blocks=sparse.num_random_blocks
    ):
        return 0
    return _multiple(length, sparse.block_size)


def _padded(array: IntArray, shape: tuple[int, int], fill: int) -> NDArray[np.int32]:
    padded = np.full(shape, fill, np.int32)
    padded[: array.shape[0], : array.shape[1]] = array
    return padded


def _read_tokenizer(folder: Path, settings: dict[str, Any]) -> Tokenizer | JapaneseText:
    if settings.get("tokenizer_class") == "BertJapaneseTokenizer":
        return JapaneseText(folder)
    tokenizer = load_json(read_whole(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _load_tokenizer(model: Model) -> tuple[Tokenizer | JapaneseText, str, int]:
    path, settings_path = model.folder / "tokenizer.json", model.folder / "tokenizer_config.json"
    try:
        with checking(model.folder, but=(WEIGHTS_NAME,)):  # those were read before
            settings = cast(dict[str, Any], dict(json.loads(read_whole(settings_path))))
            tokenizer = _read_tokenizer(model.folder, settings)
    except FileNotFoundError as error:
        raise OutlastError("There is no tokenizer beside the model.", where=str(error.filename)) from None
    except OutlastError:
        raise
    except Exception as error:  # the library raises bare Exception for what it cannot parse
        raise OutlastError(f"Cannot read the tokenizer: {error}", where=str(model.folder)) from None
    found = settings.get("mask_token")
    mask_token = cast(dict[str, Any], found).get("content") if isinstance(found, dict) else found
    mask_id = tokenizer.token_to_id(mask_token) if isinstance(mask_token, str) else None
    if not isinstance(mask_token, str) or mask_id is None:
        raise OutlastError(f"The tokenizer has no mask token: {mask_token!r}.", where=str(settings_path))
    if tokenizer.get_vocab_size() > model.config.vocab_size:
        raise OutlastError(
            f"The tokenizer has {tokenizer.get_vocab_size()} pieces, the model {model.config.vocab_size}.",
            where=str(path),
            expected="the tokenizer the model was trained with",
        )
    return tokenizer, mask_token, mask_id


def _name(model: Model) -> str:
    return str(model.folder / "tokenizer.json")


def _encode_text(
    text: str, tokenizer: Tokenizer | JapaneseText, mask_token: str, mask_id: int, model: Model
) -> Encoding | Encoded:
    for spelling in MASK_SPELLINGS:
        text = text.replace(spelling, mask_token)
    with library_failures(_name(model), [text]):
        encoding = tokenizer.encode(text)
    if mask_id not in encoding.ids:
        raise OutlastError(
            "There is no mask in the text.",
            where=repr(text),
            expected=f"{mask_token} where a piece is missing",
        )
    if len(encoding.ids) > model.config.max_positions:
        raise OutlastError(
            f"The text has {len(encoding.ids)} tokens.",
            expected=f"at most {model.config.max_positions}",
            where=repr(text[:60]),
        )
    return encoding


def _answer(
    model: Model,
    tokenizer: Tokenizer | JapaneseText,
    mask_id: int,
    encodings: list[Encoding | Encoded],
    top: int,
) -> list[list[list[Answer]]]:
    shape = (len(encodings), max(len(encoding.ids) for encoding in encodings))
    ids, mask = np.full(shape, model.config.pad_id, np.int32), np.zeros(shape, np.int32)
    for row, encoding in enumerate(encodings):
        ids[row, : len(encoding.ids)], mask[row, : len(encoding.ids)] = encoding.ids, 1
    rows, places = np.nonzero((ids == mask_id) & (mask == 1))
    logits = model.predict(model.encode(ids, mask)[rows, places]).astype(np.float64)
    probabilities = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    answers: list[list[list[Answer]]] = [[] for _ in encodings]
    for row, place, shares in zip(rows, places, probabilities, strict=True):
        best = np.argsort(-shares, kind="stable")[:top]
        answers[row].append(
            [
                Answer(
                    score=float(shares[token]),
                    token=int(token),
                    token_str=tokenizer.decode([int(token)], skip_special_tokens=False),
                    sequence=_filled(tokenizer, encodings[row], int(place), int(token), mask_id),
                )
                for token in best
            ]
        )
    return answers


def _filled(
    tokenizer: Tokenizer | JapaneseText, encoding: Encoding | Encoded, place: int, token: int, mask_id: int
) -> str:
    """The text with one mask filled; other masks stay, the tokens put around the text go."""
    added = encoding.special_tokens_mask
    kept = [
        token if index == place else piece
        for index, piece in enumerate(encoding.ids)
        if index == place or piece == mask_id or not added[index]
    ]
    return tokenizer.decode(kept, skip_special_tokens=False)
