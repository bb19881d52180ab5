"""All keys of a recipe, said once: as a JSON schema for editors, and as ``docs/reference/recipe.md``.

In: the tables' types, defaults and docstrings. Out: plain JSON, and Markdown made of that JSON. A key
that may change while run and data set stay the same has ``x-operation`` in it, a path or URL ``x-location``.
"""

import inspect
import json
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import pydantic

from outlast.config import fields_of, tables_of
from outlast.recipe import Recipe

_REF = "#/$defs/"
_COMMAND = "outlast recipe schema --markdown"


class Key(NamedTuple):
    """A key of a recipe: its name, and what the JSON schema says of it."""

    name: str
    fields: dict[str, Any]


def recipe_schema() -> dict[str, Any]:
    """Return the JSON schema of a recipe."""
    definitions: dict[str, Any] = {}
    _define(Recipe, definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A recipe of Outlast",
        "$ref": f"{_REF}{Recipe.__name__}",
        "$defs": dict(sorted(definitions.items())),
    }


def _define(cls: Any, definitions: dict[str, Any]) -> None:
    """Add the schema of a table and of those inside it, with the keys in the order of the code. Those that a
    table has from another one are described, which the library leaves out.
    """
    if cls.__name__ not in definitions:
        schema = pydantic.TypeAdapter(cls).json_schema()
        definitions.update({**schema.pop("$defs", {}), cls.__name__: schema, **definitions})
    properties = definitions[cls.__name__]["properties"]
    written = [name for base in reversed(cls.__mro__) for name in inspect.get_annotations(base)]
    definitions[cls.__name__]["properties"] = {name: properties[name] for name in dict.fromkeys(written)}
    for name, field in fields_of(cls).items():
        properties[name]["description"] = field.description
        tables = tables_of(field.annotation)
        for inner in tables:
            _define(inner, definitions)
        if len(tables) > 1:  # any of them: which one, the library says in a way of its own
            properties[name].pop("oneOf")
            properties[name]["anyOf"] = [{"$ref": f"{_REF}{inner.__name__}"} for inner in tables]


def keys_of() -> Iterator[tuple[Key, list[Key]]]:
    """Yield the tables of a recipe in order, each with its keys; tables inside a table follow it. Those that
    are told apart have the same name.
    """
    definitions = recipe_schema()["$defs"]

    def walk(name: str, fields: dict[str, Any], table: str) -> Iterator[tuple[Key, list[Key]]]:
        keys: list[Key] = []
        inner: list[tuple[Key, str]] = []
        for key, value in definitions[table]["properties"].items():
            found = Key(f"{name}.{key}".removeprefix("."), value)
            tables = list(_inside(value))
            inner += [(found, each) for each in tables]
            keys += [] if tables else [found]
        if keys:
            yield Key(name, fields), keys
        for found, each in inner:
            yield from walk(*found, each)

    yield from walk("", {}, Recipe.__name__)


def _inside(fields: dict[str, Any]) -> Iterator[str]:
    """Yield the names of the tables that a key may be, or is an array of."""
    for each in (fields, fields.get("items", {}), *fields.get("anyOf", ())):
        if "$ref" in each:
            yield each["$ref"].removeprefix(_REF)


def reference_page() -> str:
    """Return the page of all keys in Markdown."""
    lines = [
        "# All keys of a recipe",
        "",
        f"`{_COMMAND}` prints this page from the tables in the code, and a test compares the two.",
        "`outlast recipe show RUN.toml` prints what each key is in a recipe and where that comes from;",
        "`outlast recipe schema` is this page for editors.",
        "",
        "A change of an **identity** key makes another run, or another data set (`[corpus]` to `[shards]`),",
        "and is refused where there is one already. An **operation** key may change between two attempts. A",
        "relative path in a recipe begins at the folder of its file, one of `--set` at the working folder.",
    ]
    for table, keys in keys_of():
        lines += _section(table, keys)
    return "\n".join(lines) + "\n"


def _section(table: Key, keys: list[Key]) -> list[str]:
    brackets = f"[[{table.name}]]" if "items" in table.fields else f"[{table.name}]"
    told = f" where `{keys[0].name}` is {_type(keys[0].fields)}" if "anyOf" in table.fields else ""
    lines = ["", f"## `{brackets}`{told}", "", _one_line(table.fields["description"]), ""]
    lines += ["| key | type | default | kind | meaning |", "|---|---|---|---|---|"]
    for key in keys:
        default = _toml(key.fields["default"]) if "default" in key.fields else "*required*"
        kind = "operation" if "x-operation" in key.fields else "identity"
        cells = (
            f"`{key.name.rpartition('.')[2]}`",
            _type(key.fields),
            default,
            kind,
            _one_line(key.fields["description"]),
        )
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return lines


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _toml(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, float) and math.isinf(value):
        return "`inf`"
    return f"`{json.dumps(value, ensure_ascii=False)}`"


_LIMITS = {
    "minimum": "from {}",
    "exclusiveMinimum": "above {}",
    "maximum": "to {}",
    "exclusiveMaximum": "below {}",
    "multipleOf": "a multiple of {}",
}


def _type(fields: dict[str, Any]) -> str:
    """Return the type that a JSON schema describes, in words."""
    if "anyOf" in fields:
        kinds = [_type(kind) for kind in fields["anyOf"] if kind != {"type": "null"}]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in fields or "const" in fields:
        return ", ".join(_toml(value) for value in fields.get("enum", [fields.get("const")]))
    if fields.get("type") == "array":
        items = fields.get("items") or fields["prefixItems"][0]
        number = f"{len(fields['prefixItems'])} of " if "prefixItems" in fields else "list of "
        return number + _type(items)
    name = {"integer": "integer", "number": "number", "boolean": "true or false"}.get(
        fields["type"], "string"
    )
    limits = [words.format(fields[key]) for key, words in _LIMITS.items() if key in fields]
    return " ".join([name, *limits])
