"""Sums that steps measured, and the means they come to: one rule for metrics and evaluations.

In: what each step measured, fetched from the device. Out: ``loss``, ``accuracy`` and, where the loss has
further terms, those of each. Sums are float64, so the order of many steps does not show.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_FIRST = "mlm"


class Sums:
    """Summed loss, weight and right answers of every term of the loss."""

    def __init__(self) -> None:
        self._terms: dict[str, NDArray[np.float64]] = {}

    def add(self, measured: Any) -> None:
        """Add a ``Measured``; its values may be of the host or of the device."""
        first = (measured.loss_sum, measured.weight_sum, measured.correct)
        for name, term in {_FIRST: first, **measured.further}.items():
            values = np.array([float(value) for value in term])
            self._terms[name] = self._terms.get(name, 0.0) + values

    @property
    def weight_sum(self) -> float:
        """Predicted tokens."""
        return float(self._terms[_FIRST][1]) if self._terms else 0.0

    def mean_fields(self) -> dict[str, float]:
        """Return ``loss``, the sum of the means, and ``accuracy`` over predicted tokens.

        With further terms also ``mlm_loss``, and ``<term>_loss`` and ``<term>_accuracy`` of each.
        """
        terms = self._terms or {_FIRST: np.zeros(3)}
        means = {
            name: (loss / max(weight, 1.0), correct / max(weight, 1.0))
            for name, (loss, weight, correct) in ((name, term.tolist()) for name, term in terms.items())
        }
        total = sum((loss for loss, _ in means.values()), 0.0)
        fields: dict[str, float] = {"loss": total, "accuracy": means[_FIRST][1]}
        if len(means) > 1:
            fields[f"{_FIRST}_loss"] = means[_FIRST][0]
        for name, (loss, accuracy) in means.items():
            if name != _FIRST:
                fields |= {f"{name}_loss": loss, f"{name}_accuracy": accuracy}
        return fields
