"""The options of an export, and what follows from them: packing, length and predictions of its records.

In: the options of an export and the manifest of the data set. Out: each choice, the defaults resolved; what
does not fit the data set is refused, naming the option.
"""

from dataclasses import dataclass
from typing import Literal

from outlast.config import build
from outlast.errors import ConfigError, ShardError
from outlast.interchange.feature_sets import FeatureSet, has_masks, has_pairs
from outlast.interchange.tfrecord import Compression
from outlast.objectives.config import MlmConfig
from outlast.shards.manifest import Manifest

_DEFAULT_LENGTH = 128

Packing = Literal["blocks", "pairs"]


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """What the records depend on.

    Attributes:
        features: bert, bigbird, tokens or classifier.
        split: of the data set.
        packing: runs of tokens, or the data set's pairs, every pass of them; None: pairs where there are some
            and the features have a place for them.
        sequence_length: tokens of a record (L); None: that of static examples or of the pairs, else 128.
        special_tokens: whether examples are framed as [CLS] tokens [SEP].
        mask_probability: share of a record's tokens that are predicted.
        max_predictions: most predictions of a record (P); None: mask_probability * L, rounded up, or what
            static examples have.
        whole_words: whether all tokens of a word are predicted or none.
        random_special_ids: whether a random replacement may be a special id, as in BERT's own code.
        seed: of masks and order.
        shuffle: records in the order in which training with this seed sees the first epoch; else as in the
            manifest.
        compression: none, gzip or zlib.
        records_per_shard: of every file but the last.
    """

    features: FeatureSet
    split: str = "train"
    packing: Packing | None = None
    sequence_length: int | None = None
    special_tokens: bool = True
    mask_probability: float = 0.15
    max_predictions: int | None = None
    whole_words: bool = False
    random_special_ids: bool = False
    seed: int = 0
    shuffle: bool = True
    compression: Compression = "none"
    records_per_shard: int = 10_000


def choose_packing(manifest: Manifest, config: ExportConfig) -> Packing:
    """Return what a record is made of. Raises ConfigError."""
    if manifest.examples is not None:
        if config.packing is not None:
            raise ConfigError(
                "The data set holds fixed examples, which are exported as they are.",
                where=f"--packing {config.packing}",
                remedy="leave it out",
            )
        return "blocks"
    if config.packing is None:
        return "pairs" if manifest.pairs and has_pairs(config.features) else "blocks"
    if config.packing == "pairs" and not has_pairs(config.features):
        raise ConfigError(
            f"{config.features!r} has no place for whether the second text follows the first.",
            where="--packing pairs",
            expected="--features bert or bigbird",
        )
    return config.packing


def choose_sequence_length(manifest: Manifest, config: ExportConfig, packing: Packing) -> int:
    """Return the tokens of a record. Raises ConfigError where the data set has no records of that length."""
    if packing == "pairs":
        return _pair_length(manifest, config)
    if manifest.examples is None:
        return config.sequence_length or _DEFAULT_LENGTH
    found = manifest.examples.sequence_length
    if config.sequence_length not in (None, found):
        raise ConfigError(
            f"The examples are {found} tokens long and cannot be cut anew.",
            where=f"--sequence-length {config.sequence_length}",
            remedy=f"leave it out, or set --sequence-length {found}",
        )
    return found


def _pair_length(manifest: Manifest, config: ExportConfig) -> int:
    """Return the tokens of a pair, which the data set has for certain lengths only. Raises ConfigError."""
    if not config.special_tokens:
        raise ConfigError(
            "Pairs are told apart by their special tokens.",
            where="--no-special-tokens",
            remedy="leave it out, or export runs of tokens with --packing blocks",
        )
    lengths = [pair_set.sequence_length for pair_set in manifest.pairs or ()]
    if config.sequence_length in lengths:
        return config.sequence_length
    if config.sequence_length is None and len(lengths) == 1:
        return lengths[0]
    wanted = config.sequence_length
    shown = ", ".join(map(str, lengths))
    raise ConfigError(
        f"The data set has pairs of {shown} tokens." if lengths else "The data set has no pairs.",
        where="--packing pairs" if wanted is None else f"--sequence-length {wanted}",
        expected=f"one of {shown}" if lengths else None,
        remedy=(f"set --sequence-length to one of {shown}, " if lengths else "")
        + f"make others with `outlast shards pair MANIFEST --length {wanted or _DEFAULT_LENGTH}`, "
        "or export runs of tokens with --packing blocks",
    )


def choose_num_predictions(manifest: Manifest, config: ExportConfig, length: int) -> int:
    """Return the prediction slots of a record, 0 where it has none. Raises ConfigError."""
    if not has_masks(config.features):
        return 0
    found = manifest.examples.num_predictions if manifest.examples else 0
    if found and config.max_predictions not in (None, found):
        raise ConfigError(
            f"The examples have {found} predictions each and are masked already.",
            where=f"--max-predictions {config.max_predictions}",
            remedy=f"leave it out, or set --max-predictions {found}",
        )
    return found or masking_of(config).num_predictions(length)


def masking_of(config: ExportConfig) -> MlmConfig:
    """Return the rules of masking, as training has them. Raises ConfigError."""
    values = {"mask_probability": config.mask_probability, "max_predictions": config.max_predictions}
    return build(MlmConfig, values, where="--mask-probability, --max-predictions")


def check_padding(manifest: Manifest, config: ExportConfig) -> None:
    """Raise ShardError where a reader of the records would take padding for tokens."""
    pad = manifest.tokenizer.special_ids["pad"]
    if config.features == "bigbird" and pad != 0:
        raise ShardError(
            f"The tokenizer pads with {pad}, and BigBird's reader takes every id but 0 as a real token.",
            expected="a tokenizer whose padding is 0",
            remedy="export --features bert, which says what is padding, or prepare with such a tokenizer",
        )
