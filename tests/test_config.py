"""Tables: every mistake at once, the nearest names, overrides as TOML values, plain data out and in."""

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import NonNegativeInt

import outlast
from outlast.config import apply_overrides, build, checked, nearest, read_toml, table, to_dict
from outlast.errors import ConfigError

api: Any = outlast


@table
class Engine:
    power: int
    """Horses."""
    fuels: tuple[str, ...] = ()
    limit: float = math.inf


@table
class Several:
    path: str | tuple[str, ...] | None = None


@table
class Car:
    engine: Engine = Engine(power=1)
    name: str | None = None


def test_every_mistake_is_listed_with_its_key() -> None:
    data = {"engine": {"power": "many", "fules": ["oil"], "limit": "x"}, "nmae": "a", "zzz": 1}
    with pytest.raises(ConfigError) as caught:
        build(Car, data, where="car.toml")
    assert str(caught.value).splitlines() == [
        "The recipe has mistakes:",
        "  - engine.power: expected a whole number (found 'many')",
        "  - engine.limit: expected a number (found 'x')",
        "  - engine.fules: unknown key; did you mean 'fuels'?",
        "  - nmae: unknown key; did you mean 'name'?",
        "  - zzz: unknown key; known: engine, name",
        "  where:    car.toml",
    ]
    assert caught.value.exit_code == 2


def test_a_value_of_no_kind_that_fits_is_one_line_with_the_key_alone() -> None:
    with pytest.raises(ConfigError) as caught:
        build(Car, {"engine": {"power": 1, "fuels": ["oil", 5]}, "colours": 3, "name": 5}, where="here")
    assert "  - engine.fuels.1: Input should be a valid string (found 5)\n" in str(caught.value)
    assert "  - name: Input should be a valid string (found 5)\n" in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        build(Several, {"path": 5}, where="here")
    (line,) = re.findall("  - .*", str(caught.value))
    assert line.startswith(
        "  - path: Input should be a valid string (found 5); or Input should be a valid tuple"
    )


@pytest.mark.parametrize(
    ("overrides", "where"),
    [
        ([], "car.toml"),
        (["engine.fuels=[]"], "car.toml"),
        (["engine.power=many"], "--set engine.power=many, car.toml"),
        (
            ["engine.limit=1", "engine.limit=y", "engine.power=many"],
            "--set engine.power=many, --set engine.limit=y",
        ),
        (["engine.power.x=1", "engine.limit=y"], "car.toml, --set engine.power.x=1, --set engine.limit=y"),
    ],
)
def test_a_mistake_that_came_by_an_override_names_it(overrides: list[str], where: str) -> None:
    power: object = {} if "engine.power.x=1" in overrides else "some"
    data = apply_overrides({"engine": {"power": power, "limit": "x"}}, overrides)
    with pytest.raises(ConfigError) as caught:
        build(Car, data, where="car.toml", overrides=overrides)
    assert caught.value.where == where


def test_what_is_required_and_missing() -> None:
    with pytest.raises(ConfigError, match=r"engine\.power: is required"):
        build(Car, {"engine": {}}, where="car.toml")


def test_tables_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(Engine(power=3), "power", 4)  # noqa: B010


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("-5", -5),
        ("1e-3", 1e-3),
        ("inf", math.inf),
        ("true", True),
        ('"5"', "5"),
        ("'a b'", "a b"),
        ('["a", "b"]', ["a", "b"]),
        ("[1, 2]", [1, 2]),
        ("{ x = 1 }", {"x": 1}),
        ("", ""),
        ("data/manifest.json", "data/manifest.json"),
        ("gs://bucket/a=b", "gs://bucket/a=b"),
        ("**/*.py", "**/*.py"),
        ("True", "True"),
        (" spaced ", "spaced"),
        ("日本語", "日本語"),
        ("1\nx = 2", "1\nx = 2"),
        ("[unclosed", "[unclosed"),
        ("5 # five", 5),
    ],
)
def test_an_override_is_a_toml_value_or_else_a_string(text: str, value: Any) -> None:
    found = apply_overrides({}, [f"a.b={text}"])["a"]["b"]
    assert (found, type(found)) == (value, type(value))


def test_overrides_leave_their_source_alone_and_the_last_one_counts() -> None:
    source: dict[str, Any] = {"a": {"b": 1, "c": {"d": 2}}}
    assert apply_overrides(source, ["a.b=3", "a.c.d=4", "a.b=5", "e.f=6"]) == {
        "a": {"b": 5, "c": {"d": 4}},
        "e": {"f": 6},
    }
    assert source == {"a": {"b": 1, "c": {"d": 2}}}


@pytest.mark.parametrize("override", ["a", "a=1", "=1", ".b=1", "a.=1", "a..b=1", ""])
def test_an_override_that_names_no_key(override: str) -> None:
    with pytest.raises(ConfigError, match=r"Cannot read the override[\s\S]*--set table\.key=value"):
        apply_overrides({}, [override])


def test_an_override_beneath_a_value() -> None:
    with pytest.raises(ConfigError, match="'b' is a value, not a table"):
        apply_overrides({"a": {"b": 1}}, ["a.b.c=2"])


def test_plain_data_out_and_in() -> None:
    car = Car(engine=Engine(power=3, fuels=("oil", "gas")), name="a")
    plain = to_dict(car)
    assert plain == {"engine": {"power": 3, "fuels": ["oil", "gas"], "limit": "inf"}, "name": "a"}
    assert build(Car, plain, where="car.toml") == car


@pytest.mark.parametrize(
    ("name", "told"), [("toatl", "; did you mean 'total'?"), ("x", "; known: total, seed")]
)
def test_nearest_names(name: str, told: str) -> None:
    assert nearest(name, ["total", "seed"]) == told


def test_a_byte_order_mark_and_crlf(tmp_path: Path) -> None:
    path = tmp_path / "RUN.toml"
    path.write_bytes(b"[corpus]\r\npath = 'a'\r\n")
    assert read_toml(path) == {"corpus": {"path": "a"}}
    path.write_bytes("\ufeff[corpus]\r\npath = 'a'\r\n".encode())
    assert read_toml(path) == {"corpus": {"path": "a"}}


def test_a_recipe_nobody_may_read(tmp_path: Path) -> None:
    path = tmp_path / "RUN.toml"
    path.symlink_to(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_toml(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_toml(tmp_path / ("x" * 5000))


@table
class Kinds:
    whole: int = 1
    number: float = 1.0
    flag: bool = False
    several: tuple[int, ...] = ()
    shares: Mapping[str, float] | None = None
    text_or_texts: str | tuple[str, ...] = ""


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("whole", True, "a whole number"),
        ("whole", "2", "a whole number"),
        ("number", True, "a number"),
        ("number", "0.5", "a number"),
        ("flag", 1, "true or false"),
        ("flag", "yes", "true or false"),
        ("several", [1, True], "a whole number"),
        ("several", ["1"], "a whole number"),
        ("shares", {"a": "0.5"}, "a number"),
    ],
)
def test_a_value_of_another_kind_is_not_converted(key: str, value: Any, expected: str) -> None:
    with pytest.raises(ConfigError, match=f"(?m)^  - {key}.*: expected {expected}"):
        build(Kinds, {key: value}, where="here")


def test_a_float_with_a_fraction_is_no_whole_number() -> None:
    for value in (2.5, math.inf):
        with pytest.raises(ConfigError, match="expected a whole number"):
            build(Kinds, {"whole": value}, where="here")


def test_kinds_that_lose_nothing_fit() -> None:
    fits = {
        "whole": 2.0,
        "number": 1,
        "several": [1, np.int64(2)],
        "shares": {"a": 1},
        "text_or_texts": ["a"],
    }
    built = build(Kinds, fits, where="here")
    assert (built.whole, built.number, built.several, built.text_or_texts) == (2, 1.0, (1, 2), ("a",))
    assert math.isinf(build(Kinds, {"number": "inf"}, where="here").number)


def test_arguments_are_checked_as_the_keys_of_a_table() -> None:
    @checked
    def drive(car: Car, steps: NonNegativeInt, *, speed: float | None = None, path: str | Path = "") -> int:
        return steps

    assert drive(Car(), np.int64(3), speed=2, path=Path("a")) == 3  # pyright: ignore[reportArgumentType]
    for arguments, told in (
        (("car", 1), "expected a Car"),
        ((Car(), "1"), "expected a whole number"),
        ((Car(), 2.5), "expected a whole number"),
        ((Car(), True), "expected a whole number"),
        ((Car(), -1), "expected greater than or equal to 0"),
    ):
        with pytest.raises(ConfigError, match=told):
            drive(*arguments)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match=r"drive, speed"):
        drive(Car(), 1, speed="2")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="expected a valid string"):
        drive(Car(), 1, path=5)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: api.prepare_data("recipe.toml", "out"), "expected a Recipe"),
        (lambda: api.open_stream("data", global_batch_size=8, start_step="1"), "open_stream, start_step"),
        (lambda: api.open_stream("data", global_batch_size=8, seed=-1), "open_stream, seed"),
        (lambda: api.open_images("data", global_batch_size=8.5), "open_images, global_batch_size"),
        (lambda: api.export_run("run", "model", step="5"), "export_run, step"),
        (lambda: api.evaluate_run("run", best=1), "evaluate_run, best"),
        (lambda: api.read_recipe(5), "read_recipe, path"),
        (lambda: api.load_model(None), "load_model, folder"),
    ],
)
def test_the_public_functions_check_their_arguments(call: Callable[[], Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        call()
