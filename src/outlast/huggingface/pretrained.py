"""A Hugging Face checkpoint as a start for further training.

In: a folder with ``config.json`` and ``model.safetensors`` of one of our architectures, with whatever heads.
Out: the encoder and the pre-training heads that are there, and the names of all that is not taken. Invariant:
a tensor is taken exactly or named, and nothing is made up; a run that needs a head that is missing
initialises it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from outlast.errors import OutlastError
from outlast.huggingface.load import (
    DECODERS,
    HEADS,
    check_decoder,
    naming,
    read_encoder_config,
    read_tensors,
)
from outlast.huggingface.names import NamedArrays, from_huggingface, huggingface_names
from outlast.models.architectures import ARCHITECTURES
from outlast.models.config import FAMILIES, EncoderConfig
from outlast.models.next_sentence import HEAD, POOLER
from outlast.models.params import ParamTable, flatten

_BARE = ("embeddings.", "encoder.", "pooler.", "layers.", "final_norm.")
"""How the names begin in the file of an encoder that was saved without heads."""

_SHARED = {"head.dense.weight", "head.norm.weight"}
"""Under these names ModernBERT's classifiers have a transform, trained for their classes; without the bias of
the projection onto the vocabulary it is no half of a masked-LM head."""


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """What a folder holds."""

    config: EncoderConfig
    """``next_sentence`` says whether that head is there."""
    params: NamedArrays
    """Float32, flat, by our names."""
    missing: tuple[str, ...]
    """Pre-training heads of the architecture that are not there: ``head``, ``next_sentence``."""
    left_out: tuple[str, ...]
    """Hugging Face's names of the tensors that have no place here, such as those of another head."""


def read_pretrained(folder: Path) -> Pretrained:
    """Read the encoder and what heads there are.

    Raises:
        OutlastError: files that are missing, pickled, damaged or do not fit each other; half a head.
        ConfigError: a model this package cannot compute exactly.
    """
    config = read_encoder_config(folder)
    config = replace(config, next_sentence=FAMILIES[config.architecture].has_next_sentence)
    table = ARCHITECTURES[config.architecture].param_table(config)
    with naming(folder):
        tensors = _with_prefix(read_tensors(folder), table)
        groups = {group: _found(table, group, tensors) for group in HEADS if group in table}
        if not groups.get(HEAD):
            groups[POOLER] = False  # without the head there is nothing it was trained for here
            config = replace(config, next_sentence=False)
        kept = {group: params for group, params in table.items() if groups.get(group, True)}
        check_decoder(tensors, table)
        params = from_huggingface(kept, tensors)
    taken = huggingface_names(kept)
    return Pretrained(
        config=config,
        params=params,
        missing=tuple(group for group in ("head", HEAD) if group in table and not groups[group]),
        left_out=tuple(
            sorted(name for name in tensors if name not in taken and name.rpartition(".")[0] not in DECODERS)
        ),
    )


def _found(table: ParamTable, group: str, tensors: Mapping[str, Any]) -> bool:
    """Whether a head is there. Half a head is an error: its other half would be random."""
    names = sorted(huggingface_names({group: table[group]}))
    missing = [name for name in names if name not in tensors]
    if missing and not _SHARED.issuperset(set(names).difference(missing)):
        raise OutlastError("A head is there in part; it lacks " + ", ".join(missing) + ".")
    return not missing


def _with_prefix(tensors: NamedArrays, table: ParamTable) -> NamedArrays:
    """Return the tensors under the names they have in a model with heads."""
    word = flatten(table)["embeddings/word"].hf
    prefix = word.partition(".")[0] + "."
    if word in tensors or word.removeprefix(prefix) not in tensors:
        return tensors
    return {prefix + name if name.startswith(_BARE) else name: value for name, value in tensors.items()}
