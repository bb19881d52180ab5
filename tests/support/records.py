"""TFRecord files and a tokenizer to import them with, made of a seed."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outlast.interchange.feature_sets import FEATURE_SETS, Shape, to_messages
from outlast.interchange.static_masks import StaticMasks
from outlast.interchange.tfrecord import Compression, frame, make_compressor
from outlast.storage import LocalStore
from outlast.tokenizer.manifest import TokenizerManifest, write_tokenizer
from support.datasets import SPECIAL_IDS

VOCAB_SIZE = 1000
Batch = dict[str, NDArray[Any]]

MASKS = StaticMasks(
    num_predictions=5,
    vocab_size=VOCAB_SIZE,
    mask_id=SPECIAL_IDS["mask"],
    special_ids=tuple(sorted(SPECIAL_IDS.values())),
    mask_probability=0.15,
    mask_share=0.8,
    random_share=0.1,
)


def pair_rows(num_rows: int, length: int = 32, seed: int = 0) -> Batch:
    """Rows of [CLS] A [SEP] B [SEP] and padding, with the second text random in about half of them."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(5, VOCAB_SIZE, (num_rows, length)).astype(np.int32)
    types = np.zeros((num_rows, length), np.int8)
    mask = np.ones((num_rows, length), np.int8)
    ids[:, 0] = SPECIAL_IDS["cls"]
    for row in range(num_rows):
        middle = int(rng.integers(2, length - 4))
        end = int(rng.integers(middle + 2, length))
        ids[row, [middle, end]] = SPECIAL_IDS["sep"]
        ids[row, end + 1 :] = SPECIAL_IDS["pad"]
        types[row, middle + 1 : end + 1] = 1
        mask[row, end + 1 :] = 0
    label = rng.integers(0, 2, num_rows).astype(np.int32)
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "token_type_ids": types,
        "next_sentence_label": label,
    }


def masked_rows(num_rows: int, length: int = 32, seed: int = 0) -> Batch:
    """The same, with static masks of at most 5 predictions."""
    return MASKS.apply(pair_rows(num_rows, length, seed), np.arange(num_rows))


def to_file_content(messages: Sequence[bytes], compression: Compression = "none") -> bytes:
    """Return a TFRecord file."""
    content = b"".join(frame(message) for message in messages)
    compressor = make_compressor(compression)
    return content if compressor is None else compressor.compress(content) + compressor.flush()


def write_bert_file(path: Path, batch: Batch, compression: Compression = "none") -> None:
    """Write rows with static masks as records of BERT's seven features."""
    length, slots = batch["input_ids"].shape[1], batch["masked_ids"].shape[1]
    path.write_bytes(to_file_content(to_messages(batch, Shape("bert", length, slots)), compression))


def write_tokenizer_folder(folder: Path, vocab_size: int = VOCAB_SIZE) -> Path:
    """Write a tokenizer of which only the ids count; return its folder."""
    content = b"{}"
    manifest = TokenizerManifest(
        kind="wordpiece",
        library="tokenizers",
        vocab_size=vocab_size,
        special_ids=SPECIAL_IDS,
        special_pieces={role: f"[{role}]" for role in SPECIAL_IDS},
        files={"tokenizer.json": hashlib.sha256(content).hexdigest()},
        training={},
    )
    write_tokenizer(LocalStore(folder.parent), folder.name, manifest, {"tokenizer.json": content})
    return folder


FEATURES_OF = {name: {column.feature for column in columns} for name, columns in FEATURE_SETS.items()}
