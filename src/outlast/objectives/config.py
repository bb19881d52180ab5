"""The recipe's ``[objective]`` table. No jax here."""

import math
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, PositiveFloat, model_validator

from outlast.config import table
from outlast.objectives.report import LOSS, Metric, Report, mean_of, perplexity_of

MASKED, NEXT_SENTENCE, CLASSES = "mlm", "next_sentence", "classes"
"""The terms of the losses, by name."""


_FORMER_NAMES = {"mlm": "masked_lm", "classify": "classification"}


def in_todays_words(objective: Mapping[str, Any]) -> dict[str, Any]:
    """Return an ``[objective]`` table with ``kind`` where versions before it wrote ``name``."""
    kind = _FORMER_NAMES.get(str(objective.get("name")))
    if kind is None or "kind" in objective:
        return dict(objective)
    return {"kind": kind, **{key: value for key, value in objective.items() if key != "name"}}


@table
class MlmConfig:
    kind: Literal["masked_lm"] = "masked_lm"
    """Masked language modelling (Devlin et al., 2019, section 3.1)."""
    mask_probability: float | None = Field(default=None, gt=0, lt=1)
    """Share of the eligible tokens of an example that are predicted. 0.3 for modernbert, 0.15 for others
    where not given."""
    mask_share: float = Field(default=0.8, ge=0, le=1)
    """Share of the predicted tokens that the mask piece replaces."""
    random_share: float = Field(default=0.1, ge=0, le=1)
    """Share that a random piece replaces; the rest stays as it is."""
    max_predictions: int | None = Field(default=None, ge=1)
    """Most predictions per example; mask_probability * sequence_length, rounded up, where not given."""
    whole_words: bool = False
    """Predict all tokens of a word or none. The data set must tell where words begin: shards.words."""
    separate_documents: bool = False
    """Keep documents that share an example apart: a token attends to its own alone. For modernbert, with
    stream.packing = "blocks"."""
    next_sentence: bool = False
    """Also predict whether the second segment of a pair follows the first (Devlin et al., 2019); the loss is
    the sum of the two means. For bert and bigbird, with stream.packing = "pairs"."""

    @model_validator(mode="after")
    def _shares_fit(self) -> "MlmConfig":
        if self.mask_share + self.random_share > 1:
            raise ValueError("mask_share and random_share are more than 1 together")
        return self

    @property
    def probability(self) -> float:
        """``mask_probability``, BERT's where neither the recipe nor its architecture has said."""
        return 0.15 if self.mask_probability is None else self.mask_probability

    def num_predictions(self, sequence_length: int) -> int:
        """Return the fixed number of prediction slots per example."""
        # The subtraction keeps a product that is whole but for float error from being rounded up: 0.07 * 100.
        derived = math.ceil(self.probability * sequence_length - 1e-9)
        return min(self.max_predictions or derived, sequence_length)

    @property
    def report(self) -> Report:
        """What is reported; accuracy and perplexity are of the masked tokens."""
        pairs = (
            Metric("mlm_loss", mean_of(MASKED)),
            Metric("next_sentence_loss", mean_of(NEXT_SENTENCE)),
            Metric("next_sentence_accuracy", mean_of(NEXT_SENTENCE, "accuracy")),
        )
        metrics = (
            LOSS,
            Metric("accuracy", mean_of(MASKED, "accuracy")),
            *(pairs if self.next_sentence else ()),
            Metric("perplexity", perplexity_of(MASKED), of_evaluations=True),
        )
        return Report(unit="tokens", predictions=MASKED, metrics=metrics, best="loss")


@table
class ClassifyConfig:
    kind: Literal["classification"] = "classification"
    """One label for each image. What an objective is where architecture is resnet."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """Share of each label that is spread over all classes, in training (Szegedy et al., 2016)."""
    pixel_mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    """Of red, green and blue, from 0 to 1; taken off. The defaults are ImageNet's."""
    pixel_deviation: tuple[PositiveFloat, PositiveFloat, PositiveFloat] = (0.229, 0.224, 0.225)
    """The standard deviations that pixels are divided by."""

    @property
    def report(self) -> Report:
        """What is reported. A class has no perplexity."""
        metrics = (LOSS, Metric("accuracy", mean_of(CLASSES, "accuracy")))
        return Report(unit="images", predictions=CLASSES, metrics=metrics, best="accuracy")
