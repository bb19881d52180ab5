"""The encoders there are, by the name a recipe gives them."""

from collections.abc import Callable
from dataclasses import dataclass

from jax import Array

from outlast.models import bert, modernbert
from outlast.models.config import ArchitectureName, EncoderConfig
from outlast.models.params import ParamTable


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A model as pure functions; their signatures are those of ``outlast.models.bert``."""

    param_table: Callable[[EncoderConfig], ParamTable]
    encode: Callable[..., Array]
    encode_all: Callable[..., Array]
    predict_tokens: Callable[..., Array]


_BERT = Architecture(
    param_table=bert.param_table,
    encode=bert.encode,
    encode_all=bert.encode_all,
    predict_tokens=bert.predict_tokens,
)

_MODERNBERT = Architecture(
    param_table=modernbert.param_table,
    encode=modernbert.encode,
    encode_all=modernbert.encode_all,
    predict_tokens=modernbert.predict_tokens,
)

ARCHITECTURES: dict[ArchitectureName, Architecture] = {
    "bert": _BERT,
    "roberta": _BERT,
    "bigbird": _BERT,
    "modernbert": _MODERNBERT,
}
