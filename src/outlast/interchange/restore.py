"""Records of training examples become documents again, as far as they tell.

In: rows of tokens, masked or not. Out: the tokens of documents. Masks are undone, [CLS], [SEP] and padding
are taken out; each of them, and the end of a record, ends a document. Only the [SEP] between the two texts of
a pair does not, where the second continues the first.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


def restore_documents(
    batch: Mapping[str, NDArray[Any]], special_ids: Mapping[str, int]
) -> list[NDArray[np.int64]]:
    """Return the documents of some rows, none of them empty, in the order of the rows.

    A random second text (``next_sentence_label`` 1) is a document of its own: it stands elsewhere, too.

    Args:
        batch: ``input_ids``, ``attention_mask`` of shape (rows, L); ``masked_positions``, ``masked_ids``,
            ``masked_weights`` (rows, P), ``token_type_ids`` (rows, L) and ``next_sentence_label`` (rows,)
            where there are some.
        special_ids: of the tokenizer: ``cls``, ``sep`` and ``pad``.
    """
    ids = unmask(batch)
    is_real = batch["attention_mask"] != 0
    row, column = np.nonzero(is_real)
    flat = ids[row, column]
    is_frame = np.isin(flat, [special_ids[role] for role in ("cls", "sep", "pad")])
    is_end = is_frame.copy()
    if "token_type_ids" in batch and "next_sentence_label" in batch and len(flat):
        types = batch["token_type_ids"][row, column]
        continues = np.zeros(len(flat), np.bool_)
        continues[:-1] = (types[:-1] == 0) & (types[1:] == 1) & (row[:-1] == row[1:])
        is_end[continues & (batch["next_sentence_label"][row] == 0)] = False
    group = np.cumsum(is_end) + row  # a new row is a new group, too
    kept = ~is_frame
    starts = np.flatnonzero(np.diff(group[kept])) + 1
    return [document for document in np.split(flat[kept], starts) if len(document)]


def unmask(batch: Mapping[str, NDArray[Any]]) -> NDArray[np.int64]:
    """Return ``input_ids`` with what the masks hid, int64 of shape (rows, L)."""
    ids = batch["input_ids"].astype(np.int64)
    if "masked_positions" in batch:
        rows, slots = np.nonzero(batch["masked_weights"] > 0)
        ids[rows, batch["masked_positions"][rows, slots]] = batch["masked_ids"][rows, slots]
    return ids
