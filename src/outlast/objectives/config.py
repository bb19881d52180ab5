"""The recipe's ``[objective]`` table. No jax here."""

import math
from typing import Literal

from pydantic import Field, model_validator

from outlast.config import table


@table
class MlmConfig:
    name: Literal["mlm"] = "mlm"
    """Masked language modelling (Devlin et al., 2019, section 3.1)."""
    mask_probability: float = Field(default=0.15, gt=0, lt=1)
    """Share of the eligible tokens of an example that are predicted."""
    mask_share: float = Field(default=0.8, ge=0, le=1)
    """Share of the predicted tokens that the mask piece replaces."""
    random_share: float = Field(default=0.1, ge=0, le=1)
    """Share that a random piece replaces; the rest stays as it is."""
    max_predictions: int | None = Field(default=None, ge=1)
    """Most predictions per example; mask_probability * sequence_length, rounded up, where not given."""
    separate_documents: bool = False
    """Keep documents that share an example apart: a token attends to its own alone. For modernbert, with
    stream.packing = "blocks"."""

    @model_validator(mode="after")
    def _shares_fit(self) -> "MlmConfig":
        if self.mask_share + self.random_share > 1:
            raise ValueError("mask_share and random_share are more than 1 together")
        return self

    def num_predictions(self, sequence_length: int) -> int:
        """Return the fixed number of prediction slots per example."""
        # The subtraction keeps a product that is whole but for float error from being rounded up: 0.07 * 100.
        derived = math.ceil(self.mask_probability * sequence_length - 1e-9)
        return min(self.max_predictions or derived, sequence_length)
