"""An encoder as the recipe's ``[model]`` table: the inverse of ``resolve_model``.

In: an ``EncoderConfig``, such as that of an imported checkpoint. Out: the keys that resolve to it again,
checked by resolving them. No jax here.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from outlast.config import build
from outlast.errors import ConfigError
from outlast.models.config import FAMILIES, EncoderConfig, ModelConfig, resolve_model


def model_table(
    encoder: EncoderConfig, *, vocab_size: int, special_ids: Mapping[str, int], where: str
) -> dict[str, Any]:
    """Return the ``[model]`` table of an encoder.

    Args:
        vocab_size, special_ids: of the tokenizer the model is trained on with.
        where: what the encoder was read from, for the error.

    Raises:
        ConfigError: a tokenizer with more ids than the model or another pad id; numbers that no table gives,
        each
            with the value a table would give.
    """
    table: dict[str, Any] = {
        name: getattr(encoder, name)
        for name in (
            "architecture",
            "num_layers",
            "hidden_size",
            "num_heads",
            "intermediate_size",
            "max_positions",
            "dropout",
            "attention_dropout",
            "layer_norm_epsilon",
            "initializer_range",
            "activation",
        )
    }
    if encoder.vocab_size != vocab_size:
        table["vocab_size"] = encoder.vocab_size
    if encoder.type_vocab_size != FAMILIES[encoder.architecture].type_vocab_size:
        table["type_vocab_size"] = encoder.type_vocab_size
    if encoder.architecture == "bigbird":
        table |= _sparse_keys(encoder)
    if encoder.alternating is not None:
        table |= {
            "local_attention": 2 * encoder.alternating.local_reach,
            "global_every": encoder.alternating.global_every,
            "global_theta": encoder.alternating.global_theta,
            "local_theta": encoder.alternating.local_theta,
        }
    found = resolve_model(
        build(ModelConfig, table, where=where),
        vocab_size=vocab_size,
        special_ids=special_ids,
        sequence_length=1,
        next_sentence=encoder.next_sentence,
    )
    wanted, given = asdict(encoder), asdict(found)
    differing = [
        f"{name}: {wanted[name]!r}, not {given[name]!r}" for name in wanted if wanted[name] != given[name]
    ]
    if differing:
        raise ConfigError(
            "No [model] table describes the model: " + "; ".join(differing) + ".",
            where=where,
            remedy="pad_id is the tokenizer's: import the model with its own. The rest has no key",
        )
    return table


def _sparse_keys(encoder: EncoderConfig) -> dict[str, Any]:
    sparse = encoder.sparse
    if sparse is None:
        return {"attention": "full"}
    keys = asdict(sparse)
    return {"attention": "simulated_sparse" if keys.pop("simulated") else "block_sparse", **keys}
