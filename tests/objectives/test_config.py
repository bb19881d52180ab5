"""The recipe's [objective] table."""

from typing import Any

import pytest

from outlast.config import build
from outlast.errors import ConfigError
from outlast.objectives.config import MlmConfig


@pytest.mark.parametrize(
    ("values", "length", "slots"),
    [
        ({}, 128, 20),
        ({}, 512, 77),
        ({}, 20, 3),
        ({"mask_probability": 0.07}, 100, 7),
        ({"max_predictions": 76}, 512, 76),
        ({"max_predictions": 76}, 32, 32),
        ({"mask_probability": 0.4}, 2, 1),
    ],
)
def test_number_of_prediction_slots(values: dict[str, Any], length: int, slots: int) -> None:
    assert build(MlmConfig, values, where="test").num_predictions(length) == slots


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"mask_probability": 0}, "mask_probability"),
        ({"mask_probability": 1}, "mask_probability"),
        ({"mask_share": 0.95}, "more than 1 together"),
        ({"max_predictions": 0}, "max_predictions"),
        ({"name": "clm"}, "name"),
        ({"mask_rate": 0.2}, "did you mean 'mask_share'"),
    ],
)
def test_mistakes_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(MlmConfig, values, where="test")
