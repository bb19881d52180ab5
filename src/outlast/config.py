"""Recipes: one TOML file, tables of plain values, every mistake reported at once.

In: a TOML file or a dict, and ``table.key=value`` overrides. Out: frozen dataclasses. A table's dataclass
lives in its own package (``corpus/config.py``, ...); this module knows none of them. Unknown keys are errors
and the nearest known name is offered, so a misspelt setting never turns into a silent default.
"""

import dataclasses
import difflib
import functools
import inspect
import math
import os
import tomllib
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import (
    Annotated,
    Any,
    NamedTuple,
    ParamSpec,
    TypeVar,
    Union,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import pydantic
import pydantic.dataclasses
from pydantic.fields import FieldInfo

from outlast.errors import ConfigError, explained, listed
from outlast.storage.regular import read_whole

T = TypeVar("T")
P = ParamSpec("P")

Operation = Annotated[T, pydantic.Field(json_schema_extra={"x-operation": True})]
"""The type of a key that may change between the attempts of a run, or the builds of a data set. Every other
key is identity: changing it makes another run, or another data set."""

Location = Annotated[T, pydantic.Field(json_schema_extra={"x-location": True})]
"""The type of a key that says where something lies, as paths or URLs: ``resolve_locations``."""


@dataclasses.dataclass(frozen=True)
class ToldApart:
    """The type of a key whose tables are told apart by one of their own keys:
    ``Annotated[One | Other, ToldApart("kind", {One: ("a", "b"), Other: ("c",)})]``. Left out, it is "a".

    Attributes:
        key: that tells them apart.
        values: of the key, for each table.
    """

    key: str
    values: Mapping[type, Sequence[str]]

    @property
    def tables(self) -> dict[str, type]:
        """The table of each value."""
        return {value: cls for cls, values in self.values.items() for value in values}

    def __get_pydantic_core_schema__(self, source: Any, handler: pydantic.GetCoreSchemaHandler) -> Any:
        schemas = {cls: handler.generate_schema(cls) for cls in self.values}
        choices = {value: schemas[cls] for value, cls in self.tables.items()}
        return {"type": "tagged-union", "choices": choices, "discriminator": self._value_of}

    def _value_of(self, data: Any) -> str:
        first = next(iter(self.tables))
        given = data.get(self.key, first) if isinstance(data, dict) else getattr(data, self.key, first)
        return given if isinstance(given, str) else repr(given)


@dataclass_transform(
    kw_only_default=True, frozen_default=True, field_specifiers=(dataclasses.field, pydantic.Field)
)
def table(cls: type[T]) -> type[T]:
    """Make a class the schema of one TOML table: frozen, keyword-only, closed to unknown keys."""
    config = pydantic.ConfigDict(extra="forbid", use_attribute_docstrings=True)
    cls._check_kinds = pydantic.field_validator("*", mode="before")(_check_kind)  # pyright: ignore[reportAttributeAccessIssue]
    decorated = pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config=config)(cls)
    # The library reads the docstrings of a class's own fields alone.
    for base in reversed(cls.__mro__[1:]):
        for name, field in getattr(base, "__pydantic_fields__", {}).items():
            inherited = fields_of(decorated)[name]
            inherited.description = inherited.description or field.description
    return cast(type[T], decorated)


def read_toml(path: str | Path) -> dict[str, Any]:
    """Read a TOML file. Raises ConfigError with the line of the mistake."""
    try:
        return tomllib.loads(read_whole(path).decode("utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError("There is no such recipe.", where=str(path), remedy="check the path") from None
    except IsADirectoryError:
        raise ConfigError("This is a folder.", where=str(path), expected="a TOML file") from None
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, absurd numbers or depths
        raise ConfigError(f"The recipe is not valid TOML: {error}", where=str(path)) from None
    except OSError as error:
        raise ConfigError(f"The recipe cannot be read: {error.strerror}.", where=str(path)) from None


def apply_overrides(data: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return a copy of the data with each ``table.key=value`` set. A value that is no TOML is a string."""
    try:
        result = _copy(data)
    except RecursionError:
        raise ConfigError("The recipe is nested too deeply.", expected="tables of plain values") from None
    for override in overrides:
        name, equals, text = override.partition("=")
        keys = name.strip().split(".")
        if not equals or len(keys) < 2 or not all(keys):
            raise ConfigError(f"Cannot read the override {override!r}.", expected="--set table.key=value")
        target = result
        for key in keys[:-1]:
            target = target.setdefault(key, {})
            if not isinstance(target, dict):
                raise ConfigError(f"{key!r} is a value, not a table.", where=f"--set {override}")
        target[keys[-1]] = _parse_value(text.strip())
    return result


def resolve_locations(cls: Any, data: Any, folder: Path) -> Any:
    """Return data of a table with every ``Location`` in it absolute: a relative path begins at the folder,
    ``~`` is the home folder. URLs stay, and so does what can be no path.
    """
    if isinstance(data, str):
        return data if "://" in data or not data else os.path.abspath(folder / Path(data).expanduser())
    if isinstance(data, list):
        return [resolve_locations(cls, item, folder) for item in cast(list[Any], data)]
    if not isinstance(data, dict) or not dataclasses.is_dataclass(cls):
        return data
    result = dict(cast(dict[str, Any], data))
    for name, field in fields_of(cls).items():
        extra = field.json_schema_extra
        is_location = isinstance(extra, dict) and "x-location" in extra
        inner = (None,) if is_location else tables_of(field.annotation)
        for each in inner if name in result else ():
            result[name] = resolve_locations(each, result[name], folder)
    return result


def fields_of(cls: Any) -> dict[str, FieldInfo]:
    """Return the keys of a table by name."""
    return cast(dict[str, FieldInfo], cls.__pydantic_fields__)


def tables_of(annotation: Any) -> tuple[Any, ...]:
    """Return the tables that a key may be, or each item of an array of tables; of a plain value none."""
    return tuple(kind for kind in (annotation, *get_args(annotation)) if dataclasses.is_dataclass(kind))


def build(
    cls: type[T],
    data: Mapping[str, Any],
    *,
    where: str,
    overrides: Sequence[str] = (),
    holder: str = "recipe",
) -> T:
    """Validate data against a table's dataclass.

    Args:
        where: the data comes from.
        overrides: what ``apply_overrides`` has set in it; a mistake that came by one names it.
        holder: what the data stand in, for the message.

    Raises:
        ConfigError: listing every mistake with its key; unknown keys with the nearest known name.
    """
    try:
        return pydantic.TypeAdapter(cls).validate_python(data)
    except pydantic.ValidationError as error:
        messages: dict[str, list[str]] = {}
        for mistake in error.errors():
            key, message = _describe(cls, mistake)
            messages.setdefault(key, []).append(message)
        lines = [f"  - {key}: {'; or '.join(several)}" for key, several in messages.items()]
        places = dict.fromkeys(place for key in messages for place in origins(key, where, overrides))
        raise ConfigError(listed(f"The {holder} has mistakes:", lines), where=", ".join(places)) from None


def checked(function: Callable[P, T]) -> Callable[P, T]:
    """Make a function raise ConfigError for an argument of another kind than its annotation: as in a table,
    nothing is converted. An annotation that is no plain value and no table is not checked. What the
    installation lacks, a library or a device, is ConfigError too, as is a path that no file can have.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        place = function.__qualname__.removesuffix(".__init__")
        given = inspect.signature(function).bind(*args, **kwargs).arguments
        hints = get_type_hints(function, include_extras=True)
        for name, value in given.items():
            problem = _argument_problem(hints[name], value) if name in hints else None
            if problem:
                raise ConfigError(f"{problem} (found {value!r:.200})", where=f"{place}, {name}")
        try:
            return function(*args, **kwargs)
        except (ModuleNotFoundError, OSError, RuntimeError, AssertionError) as error:
            if known := explained(error):
                raise known from error
            raise

    return call


_NUMBERS = {bool: "true or false", int: "a whole number", float: "a number"}


def _check_kind(cls: Any, value: Any, info: pydantic.ValidationInfo) -> Any:
    problem = _wrong_kind(fields_of(cls)[str(info.field_name)].annotation, value)
    if problem:
        raise ValueError(problem)
    return value


def _wrong_kind(annotation: Any, value: Any) -> str | None:
    """Return what is wrong with a value, or an item of it, that the library would convert although it is of
    another kind: ``true`` for 1, a text for a number, 2.5 for a whole number. What it refuses is left to it.
    """
    members = list(_members(annotation))
    if isinstance(value, list | tuple | Mapping):
        keyed = isinstance(value, Mapping)
        items = list(cast(Mapping[Any, Any], value).values() if keyed else cast(Sequence[Any], value))
        holders = [get_args(kind) for kind in members if get_args(kind)]
        inner = Union[tuple(holder[-1 if keyed else 0] for holder in holders)] if holders else Any  # noqa: UP007
        return next(filter(None, (_wrong_kind(inner, item) for item in items)), None)
    wanted = [kind for kind in members if kind in _NUMBERS]
    if isinstance(value, str):
        fits = str in members or (float in members and value.lower().lstrip("-") in ("inf", "nan"))
    elif isinstance(value, bool):
        fits = bool in members
    elif isinstance(value, Integral):
        fits = wanted != [bool]
    elif isinstance(value, Real):
        fits = float in members or (int in members and float(value).is_integer())
    else:
        return None
    if fits or not wanted:
        return None
    return f"expected {' or '.join(_NUMBERS[kind] for kind in wanted)}"


def _members(annotation: Any) -> Iterator[Any]:
    """Yield the types of which a value may be one."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _members(get_args(annotation)[0])
    elif origin in (Union, types.UnionType):
        for kind in get_args(annotation):
            yield from _members(kind)
    else:
        yield annotation


def _argument_problem(annotation: Any, value: Any) -> str | None:
    members = set(_members(annotation))
    tables: tuple[Any, ...] = tuple(kind for kind in members if dataclasses.is_dataclass(kind))
    if tables and not members - {*tables, type(None)}:
        fits = isinstance(value, tables) or (value is None and type(None) in members)
        return None if fits else f"expected a {tables[0].__name__}"
    if any(kind not in (str, Path, type(None), *_NUMBERS) for kind in members):
        return None
    try:
        if not (problem := _wrong_kind(annotation, value)):
            pydantic.TypeAdapter(annotation).validate_python(value)
        return problem
    except pydantic.ValidationError as error:
        return str(error.errors()[0]["msg"]).replace("Input should be", "expected")


def origins(key: str, where: str, overrides: Sequence[str]) -> list[str]:
    """Return where a key came from: the last override that set it, else ``where`` and those below it."""
    places: list[str] = []
    for override in reversed(overrides):
        name = override.partition("=")[0].strip()
        if f"{key}.".startswith(f"{name}."):
            return [*places, f"--set {override}"]
        if name.startswith(f"{key}."):
            places.append(f"--set {override}")
    return [where, *places]


def to_dict(config: Any) -> dict[str, Any]:
    """Return a config as plain dicts, lists and scalars, ready for JSON. Infinity is a string, which
    ``build`` takes back.
    """
    return cast(dict[str, Any], _plain(pydantic.TypeAdapter(type(config)).dump_python(config, mode="json")))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in cast(dict[str, Any], value).items()}
    if isinstance(value, list):
        return [_plain(item) for item in cast(list[Any], value)]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def nearest(name: str, known: Sequence[str]) -> str:
    """Return ``; did you mean 'x'?`` for the nearest known name, or a list of what is known."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"


def _copy(value: Any) -> Any:
    return {key: _copy(item) for key, item in value.items()} if isinstance(value, dict) else value


def differences(old: Any, new: Any, prefix: str = "") -> list[tuple[str, Any, Any]]:
    """Return (dotted name, old value, new value) of each plain value in which two tables differ."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        names = list(dict.fromkeys([*old, *new]))
        pairs = [
            differences(old.get(name), new.get(name), f"{prefix}.{name}" if prefix else name)
            for name in names
        ]
        return [difference for found in pairs for difference in found]
    return [] if old == new else [(prefix, old, new)]


def _parse_value(text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return parsed["value"] if len(parsed) == 1 else text


def _describe(cls: type, mistake: Any) -> tuple[str, str]:
    """Return the key of a mistake and what is wrong there."""
    location, known, kind = _locate(cls, mistake["loc"])
    key = ".".join(location)
    if mistake["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        return key, _unknown(location[-1], known, kind)
    if mistake["type"] == "union_tag_invalid" and isinstance(kind, ToldApart):
        value = mistake["ctx"]["tag"]
        expected = ", ".join(map(repr, kind.tables))
        return f"{key}.{kind.key}", f"expected one of {expected} (found {value!r})"
    if mistake["type"] == "missing":
        return key, "is required"
    message = str(mistake["msg"]).removeprefix("Value error, ")
    found = mistake["input"]
    return key, message + (f" (found {found!r})" if not isinstance(found, Mapping) else "")


def _unknown(name: str, known: Sequence[str], kind: Any) -> str:
    """Return what is wrong with an unknown key; of tables that are told apart, of which the key is."""
    if not isinstance(kind, _Chosen):
        return "unknown key" + nearest(name, known)
    others = [other for other, cls in kind.union.tables.items() if name in fields_of(cls)]
    belongs = f"; it belongs to {', '.join(map(repr, others))}" if others else nearest(name, known)
    return f"unknown key with {kind.union.key} = {kind.value!r}{belongs}"


class _Chosen(NamedTuple):
    """One of the tables that are told apart, by the value of their key."""

    union: ToldApart
    value: str


def _locate(
    cls: Any, location: Sequence[str | int]
) -> tuple[list[str], list[str], ToldApart | _Chosen | None]:
    """Return the keys that lead to a mistake, the names known where the last of them stands, and which of
    several tables that is.

    The library's location also names the kinds of value that it tried; those are left out.
    """
    keys: list[str] = []
    known: list[str] = []
    kind: ToldApart | _Chosen | None = None
    for part in location:
        if isinstance(kind, ToldApart):
            kind = _Chosen(kind, str(part))
            cls = kind.union.tables[kind.value]
        elif dataclasses.is_dataclass(cls):
            fields = fields_of(cls)
            known = list(fields)
            keys.append(str(part))
            field = fields.get(str(part))
            cls = field.annotation if field else None
            told = [mark for mark in field.metadata if isinstance(mark, ToldApart)] if field else []
            kind = told[0] if told else kind
        elif isinstance(part, int):
            keys.append(str(part))
            cls = next(iter(get_args(cls)), None)  # an array of tables
    return keys, known, kind
