"""Examples of a tar by WebDataset's rules: which files belong together, which holds image or label.

In: the members of a tar, in order. Out: for each example the place of its image and its label. The files of
an example share their name up to the first dot of its last part (the key); what follows, in lower case, is
the field. They stand one behind the other, and no key stands twice in a tar.

Source: WebDataset (github.com/webdataset/webdataset, ``tariterators.group_by_keys``). Differences: a key that
comes again later in the tar is refused, where WebDataset makes an example of it that lacks a part.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Literal, NamedTuple

from outlast.corpus.tar import Member, read_members
from outlast.errors import ConfigError, ShardError

IMAGE_FIELDS = "ppm;jpg;jpeg;png"
LABEL_FIELDS = "cls;json:label"
_MOST_LABEL_BYTES = 2**20
MOST_LABEL = 2**31 - 1
MOST_IMAGE_BYTES = 2**32 - 1
_KEY_AND_FIELD = re.compile(r"((?:.*/)?[^./][^./]*)\.([^/]*)", re.DOTALL)
_HERE = re.compile(r"^(?:\./+)+")
"""In front of a name: this folder, which may be said again and with more slashes than one."""
_PRIVATE = re.compile(r"__[^/]*__(?:$|/)")

OnBad = Literal["stop", "skip"]


class Example(NamedTuple):
    """Where an image lies in its tar, and its label."""

    key: str
    offset: int
    size_bytes: int
    label: int


@dataclass(frozen=True, kw_only=True)
class FieldRules:
    """Which field of an example is what.

    Attributes:
        image: field names, the first one present counts.
        label: ``cls`` is a field that holds an integer as text; ``json:label`` the key ``label`` of a field
            that holds a JSON object. The first one present counts.
        on_bad: what becomes of an example without image or label, and of a member that is a link, a device or
            has a name that leads elsewhere: an error, or left out and counted.

    Raises:
        ConfigError: no field is named.
    """

    image: str = IMAGE_FIELDS
    label: str = LABEL_FIELDS
    on_bad: OnBad = "stop"

    def __post_init__(self) -> None:
        for name, value in (("--image", self.image), ("--label", self.label)):
            if not all(value.split(";")) or value != value.lower():
                raise ConfigError(
                    f"{value!r} names no fields.",
                    where=name,
                    expected=f"names in lower case with a semicolon between: {IMAGE_FIELDS}",
                )

    @property
    def image_fields(self) -> list[str]:
        return self.image.split(";")

    @property
    def label_fields(self) -> list[tuple[str, str]]:
        """Each field of a label with the key in it, "" where the field itself is the label."""
        return [(field, key) for field, _, key in (name.partition(":") for name in self.label.split(";"))]


@dataclass
class Tally:
    """The files of a tar that became no example, counted by reason."""

    ignored_files: int = 0
    """Files whose name has no key or no field, or is private as ``__name__`` is."""
    bad_examples: int = 0
    skipped_members: list[str] = field(default_factory=list[str])
    """Links, devices and files whose name leads elsewhere: byte, name and kind."""


def split_name(name: str) -> tuple[str, str] | None:
    """Return key and field of a file's name; None where it has none, or is private (``__name__``)."""
    name = _HERE.sub("", name)
    found = _KEY_AND_FIELD.fullmatch(name)
    if found is None or _PRIVATE.match(name):
        return None
    return found[1], found[2].lower()


def plain_members(file: BinaryIO, rules: FieldRules, tally: Tally, *, where: str) -> Iterator[Member]:
    """Yield the plain files of a tar. Links, devices and names that lead elsewhere are treated as the rules
    say.

    Raises:
        ShardError: a damaged tar; under ``stop`` also a link, a device or such a name.
    """

    def on_odd(position: int, problem: str) -> None:
        if rules.on_bad == "stop":
            raise ShardError(
                f"The member {problem}.",
                where=f"{where}, byte {position}",
                remedy="leave such members out with --on-bad skip, or write the tar again without them",
            )
        tally.skipped_members.append(f"byte {position}: {problem}")

    return read_members(file, where=where, on_odd=on_odd)


def read_examples(
    file: BinaryIO, members: Iterable[Member], rules: FieldRules, tally: Tally, *, where: str
) -> Iterator[Example]:
    """Yield the examples of a tar, in order.

    Args:
        file: the tar, for the labels.
        members: of the tar, in order.
        tally: counts what became no example.
        where: the tar's name, for messages.

    Raises:
        ShardError: a field or a key that stands twice; under ``stop`` also an example without image or label.
    """
    for key, fields in _grouped(members, tally, where):
        first = min(member.header_offset for member in fields.values())
        try:
            yield _example(file, key, fields, rules, f"{where}, byte {first}")
        except ShardError:
            if rules.on_bad == "stop":
                raise
            tally.bad_examples += 1


def _grouped(members: Iterable[Member], tally: Tally, where: str) -> Iterator[tuple[str, dict[str, Member]]]:
    """Yield each key with its fields: runs of files with the same key."""
    seen: set[str] = set()
    key, fields = "", dict[str, Member]()
    for member in members:
        found = split_name(member.name)
        if found is None:
            tally.ignored_files += 1
            continue
        if found[0] != key or not fields:
            if fields:
                yield key, fields
            key, fields = found[0], {}
            if key in seen:
                raise ShardError(
                    f"The key {key!r:.200} comes again, apart from its first files.",
                    where=f"{where}, byte {member.header_offset}",
                    expected="the files of an example one behind the other, and every key once",
                    remedy="write the tar again with its names sorted: tar --sort=name ...",
                )
            seen.add(key)
        if found[1] in fields:
            raise ShardError(
                f"The example {key!r:.200} has the field {found[1]!r:.50} twice.",
                where=f"{where}, byte {member.header_offset}",
                remedy="give every example a key of its own",
            )
        fields[found[1]] = member
    if fields:
        yield key, fields


def _example(file: BinaryIO, key: str, fields: dict[str, Member], rules: FieldRules, place: str) -> Example:
    image = next((fields[name] for name in rules.image_fields if name in fields), None)
    if image is None:
        raise ShardError(
            f"The example {key!r:.200} has no image: its fields are {', '.join(fields)[:200]}.",
            where=place,
            expected=f"one of {rules.image}",
            remedy="name the field with --image, or leave such examples out with --on-bad skip",
        )
    if not 0 < image.size_bytes <= MOST_IMAGE_BYTES:
        raise ShardError(
            f"The image of the example {key!r:.200} has {image.size_bytes} bytes.",
            where=place,
            expected=f"from 1 to {MOST_IMAGE_BYTES}",
            remedy="leave such examples out with --on-bad skip",
        )
    for name, json_key in rules.label_fields:
        if name in fields:
            label = _read_label(file, fields[name], json_key, place)
            return Example(key, image.offset, image.size_bytes, label)
    raise ShardError(
        f"The example {key!r:.200} has no label: its fields are {', '.join(fields)[:200]}.",
        where=place,
        expected=f"one of {rules.label}, beside the image in the tar",
        remedy="name the field with --label, or leave such examples out with --on-bad skip",
    )


def _read_label(file: BinaryIO, member: Member, json_key: str, place: str) -> int:
    file.seek(member.offset)
    content = file.read(member.size_bytes) if member.size_bytes <= _MOST_LABEL_BYTES else b""
    value: Any = content
    if json_key:
        try:
            value = json.loads(content).get(json_key)
        except (ValueError, RecursionError, AttributeError):
            value = None
        label = value if type(value) is int else -1
    else:
        text = content.strip()
        label = int(text) if text.isdigit() and len(text) <= 10 else -1
    if not 0 <= label <= MOST_LABEL:
        raise ShardError(
            f"The label in {member.name!r:.200} is {value!r:.50}.",
            where=place,
            expected=f"an integer from 0 to {MOST_LABEL}"
            + (f" under the key {json_key!r} of a JSON object" if json_key else ", as text"),
            remedy="name the field of the label with --label, or leave such examples out with --on-bad skip",
        )
    return label
