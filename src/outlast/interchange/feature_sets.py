"""The sets of features that encoders are trained from, and how each becomes the arrays of a batch.

In: the features of records, or the arrays of a batch. Out: the other of the two. A set fixes names, types and
sizes: L tokens, P predictions or one value. Every record of a data set has the same L and P.

Sources: bert: ``create_pretraining_data.py`` of google-research/bert, whose files ``run_pretraining.py``
reads; bigbird: what google-research/bigbird's ``run_pretraining.py`` reads of them; tokens: transformers'
TPU example ``prepare_tfrecord_shards.py``; classifier: ``run_classifier.py`` of google-research/bert.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from outlast.errors import ShardError, listed
from outlast.interchange.tf_example import Feature, Kind, encode_rows, kind_of, values_of

Size = Literal["L", "P", "1"]
Batch = dict[str, NDArray[Any]]
FeatureSet = Literal["bert", "bigbird", "tokens", "classifier"]


class Column(NamedTuple):
    """A feature and the array of a batch that holds it: shape (rows, L), (rows, P), or (rows,) for "1"."""

    feature: str
    array: str
    kind: Kind
    size: Size


_IDS = Column("input_ids", "input_ids", "int64", "L")
_MASK = Column("input_mask", "attention_mask", "int64", "L")
_TYPES = Column("segment_ids", "token_type_ids", "int64", "L")
_PREDICTIONS = (
    Column("masked_lm_positions", "masked_positions", "int64", "P"),
    Column("masked_lm_ids", "masked_ids", "int64", "P"),
    Column("masked_lm_weights", "masked_weights", "float", "P"),
)
_NEXT = Column("next_sentence_labels", "next_sentence_label", "int64", "1")

FEATURE_SETS: dict[FeatureSet, tuple[Column, ...]] = {
    "bert": (_IDS, _MASK, _TYPES, *_PREDICTIONS, _NEXT),
    "bigbird": (_IDS, _TYPES, *_PREDICTIONS, _NEXT),
    "classifier": (
        _IDS,
        _MASK,
        _TYPES,
        Column("label_ids", "labels", "int64", "1"),
        Column("is_real_example", "example_weights", "int64", "1"),
    ),
    "tokens": (_IDS, Column("attention_mask", "attention_mask", "int64", "L")),
}
"""In the order in which a record is recognised: the first set whose features it all has."""


class Shape(NamedTuple):
    """What all records of a data set have in common. ``num_predictions`` is 0 where there are no masks."""

    features: FeatureSet
    sequence_length: int
    num_predictions: int

    @property
    def columns(self) -> tuple[Column, ...]:
        return FEATURE_SETS[self.features]

    def length(self, size: Size) -> int:
        """Return the number of values of a list."""
        return {"L": self.sequence_length, "P": self.num_predictions, "1": 1}[size]


def has_masks(features: FeatureSet) -> bool:
    """Whether a set holds which tokens are predicted."""
    return any(column.size == "P" for column in FEATURE_SETS[features])


def has_pairs(features: FeatureSet) -> bool:
    """Whether the records of a feature set are pairs of texts, with whether the second follows the first."""
    return _NEXT in FEATURE_SETS[features]


def recognise(record: Mapping[str, Feature], features: FeatureSet | None, where: str) -> Shape:
    """Return the shape of a data set by its first record.

    Args:
        record: the features of the record.
        features: the set it must have; None: the first that fits.

    Raises:
        ShardError: features that are missing, of another type, or of sizes that do not fit each other.
    """
    if features is None:
        features = next(
            (name for name, columns in FEATURE_SETS.items() if {c.feature for c in columns} <= set(record)),
            None,
        )
        if features is None:
            raise ShardError(
                f"The first record has the features {_list(record)}.",
                where=where,
                expected=listed(
                    "those of one of the sets",
                    (
                        f"    {name}: {', '.join(column.feature for column in columns)}"
                        for name, columns in FEATURE_SETS.items()
                    ),
                ),
            )
    columns = FEATURE_SETS[features]
    check_features(record, columns, features, where)
    lengths = {"L": 0, "P": 0}
    for column in reversed(columns):
        if column.size != "1":
            lengths[column.size] = len(values_of(record[column.feature]))
    shape = Shape(features, lengths["L"], lengths["P"])
    for column in columns:
        found = len(values_of(record[column.feature]))
        if found != shape.length(column.size) or not found:
            expected = shape.length(column.size) or "at least 1"
            raise ShardError(
                f"The first record has {found} values of {column.feature}.",
                where=where,
                expected=f"{expected}, as its other features have",
            )
    return shape


def check_features(
    record: Mapping[str, Feature], columns: Sequence[Column], features: FeatureSet, where: str
) -> None:
    """Check that a record has a set's features, each of its type. Raises ShardError."""
    missing = [column.feature for column in columns if column.feature not in record]
    if missing:
        raise ShardError(
            f"The record lacks {', '.join(missing)} of the feature set {features!r}; it has {_list(record)}.",
            where=where,
            remedy="name the set the files were written with: --features",
        )
    for column in columns:
        kind = kind_of(record[column.feature])
        if kind != column.kind:
            raise ShardError(
                f"The feature {column.feature} is {kind or 'empty'}.", where=where, expected=column.kind
            )


def to_batch(
    records: Sequence[Mapping[str, Feature]], shape: Shape, places: Sequence[str], *, pad_id: int
) -> Batch:
    """Return the arrays of some records, int64 and float32, unchecked but for their sizes.

    ``attention_mask`` is added where the set has none: BigBird's reader takes what is not padding as real.

    Args:
        places: where each record stands, for messages.

    Raises:
        ShardError: a record without one of the features, or with another number of values.
    """
    for record, where in zip(records, places, strict=True):
        check_features(record, shape.columns, shape.features, where)
    batch: Batch = {}
    for column in shape.columns:
        length = shape.length(column.size)
        rows = [values_of(record[column.feature]) for record in records]
        for row, where in zip(rows, places, strict=True):
            if len(row) != length:
                raise ShardError(
                    f"The feature {column.feature} holds {len(row)} values instead of {length}.",
                    where=where,
                    expected="records of the same length, as the first one",
                    remedy="import files of different lengths into folders of their own",
                )
        dtype = np.float32 if column.kind == "float" else np.int64
        values = np.array(rows, dtype).reshape(len(rows), length)
        batch[column.array] = values[:, 0] if column.size == "1" else values
    if "attention_mask" not in batch:
        batch["attention_mask"] = (batch["input_ids"] != pad_id).astype(np.int64)
    return batch


def to_messages(batch: Mapping[str, NDArray[Any]], shape: Shape) -> list[bytes]:
    """Return a batch as messages, one for each row.

    What a batch does not have is what its trainers expect in that case: all tokens in the first text, the
    second text following the first, a real example.

    Raises:
        ShardError: an array without which a record means nothing, such as the labels of a classifier.
    """
    num_rows = len(batch["input_ids"])
    absent: dict[str, NDArray[Any]] = {
        "token_type_ids": np.zeros((num_rows, shape.sequence_length), np.int64),
        "next_sentence_label": np.zeros(num_rows, np.int64),
        "example_weights": np.ones(num_rows, np.int64),
    }
    columns: dict[str, tuple[Kind, NDArray[Any]]] = {}
    for column in shape.columns:
        values = batch.get(column.array, absent.get(column.array))
        if values is None:
            raise ShardError(
                f"The data set has no {column.array} for the feature {column.feature}.",
                remedy=f"export another set of features than {shape.features!r}",
            )
        columns[column.feature] = (column.kind, values.reshape(num_rows, shape.length(column.size)))
    return encode_rows(columns)


def _list(record: Mapping[str, Feature]) -> str:
    names = sorted(record)
    return ", ".join(f"{name:.60}" for name in names[:12]) + (" ..." if len(names) > 12 else "") or "none"
