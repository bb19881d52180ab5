"""The message that TFRecords usually hold: ``tf.train.Example``, a map from names to lists of numbers.

In: the bytes of a message. Out: its features; and the other way, from columns of arrays. Protocol Buffers
reads and writes it, by a description of our own, so that no other package's idea of the message is met. The
bytes are those of a deterministic serialisation: names sorted, lists packed (docs/formats/tfrecord.md).
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from outlast.errors import ShardError

Kind = Literal["bytes", "float", "int64"]
Feature = Any
"""One list, a message: see ``kind_of`` and ``values_of``."""

_TYPES: dict[Kind, str] = {"bytes": "TYPE_BYTES", "float": "TYPE_FLOAT", "int64": "TYPE_INT64"}
_KINDS: dict[str | None, Kind] = {f"{kind}_list": kind for kind in _TYPES}
_PACKAGE = "outlast.tfrecord"


def decode_example(payload: bytes, where: str) -> Mapping[str, Feature]:
    """Return the features of a message.

    Raises:
        ShardError: bytes that are no such message; ``where`` names the record.
    """
    from google.protobuf.message import DecodeError

    try:
        return example_class().FromString(payload).features.feature
    except DecodeError as error:
        raise ShardError(
            f"The record is no tf.train.Example: {error}.",
            where=where,
            remedy="read files that hold such messages, or restore the file",
        ) from None


def encode_rows(columns: Mapping[str, tuple[Kind, NDArray[Any]]]) -> list[bytes]:
    """Return one message for each row of some columns.

    Args:
        columns: the kind of each feature and its values of shape (rows, length): integers for int64,
            anything that casts to float32 for float.
    """
    rows = {
        name: (f"{kind}_list", values.astype(np.float32 if kind == "float" else np.int64).tolist())
        for name, (kind, values) in columns.items()
    }
    messages: list[bytes] = []
    for row in range(len(next(iter(columns.values()))[1])):
        example = example_class()()
        for name, (which, values) in rows.items():
            numbers = getattr(example.features.feature[name], which)
            numbers.SetInParent()  # a list without values, too
            numbers.value.extend(values[row])
        messages.append(example.SerializeToString(deterministic=True))
    return messages


def kind_of(feature: Feature) -> Kind | None:
    """Return which of the three lists a feature is; None where the message gives the name without a list."""
    return _KINDS.get(feature.WhichOneof("kind"))


def values_of(feature: Feature) -> Sequence[Any]:
    """Return the values of a list."""
    which: str | None = feature.WhichOneof("kind")
    return getattr(feature, which).value if which else ()


@cache
def example_class() -> Any:
    """Return the class of the message, in a pool that no other library looks into.

    Source: TensorFlow, ``tensorflow/core/example/example.proto`` and ``feature.proto``.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    field_type = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package=_PACKAGE, syntax="proto3")

    def add(message: Any, number: int, name: str, kind: str, *, repeated: bool = False, **more: Any) -> None:
        types = {"type": getattr(field_type, kind)} if kind.startswith("TYPE_") else {}
        named = {} if types else {"type": field_type.TYPE_MESSAGE, "type_name": f".{_PACKAGE}.{kind}"}
        label = field_type.LABEL_REPEATED if repeated else field_type.LABEL_OPTIONAL
        message.field.add(name=name, number=number, label=label, **types, **named, **more)

    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (kind, value) in enumerate(_TYPES.items(), 1):
        add(file.message_type.add(name=f"{kind}_list"), 1, "value", value, repeated=True)
        add(feature, number, f"{kind}_list", f"{kind}_list", oneof_index=0)
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    add(entry, 1, "key", "TYPE_STRING")
    add(entry, 2, "value", "Feature")
    add(features, 1, "feature", "Features.FeatureEntry", repeated=True)
    add(file.message_type.add(name="Example"), 1, "features", "Features")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Example"))
