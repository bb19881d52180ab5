"""The functions of the encoders, by the name a recipe gives them; ``families.py`` says in which file they
are."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from importlib import import_module

from jax import Array

from outlast.models.config import EncoderConfig
from outlast.models.families import FAMILIES
from outlast.models.params import ParamTable


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A model as pure functions; their signatures are those of ``outlast.models.bert``."""

    param_table: Callable[[EncoderConfig], ParamTable]
    encode: Callable[..., Array]
    encode_all: Callable[..., Array]
    predict_tokens: Callable[..., Array]


def _load(module: str) -> Architecture:
    functions = import_module(f"{__package__}.{module}")
    return Architecture(**{field.name: getattr(functions, field.name) for field in fields(Architecture)})


ARCHITECTURES: dict[str, Architecture] = {name: _load(family.module) for name, family in FAMILIES.items()}
