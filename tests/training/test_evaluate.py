"""Means over several held-out sets."""

import pytest

from outlast.training.evaluate import combine


def test_a_mean_is_weighted_by_what_it_is_a_mean_of() -> None:
    one = {
        "loss": 2.0,
        "accuracy": 0.5,
        "num_predictions": 30,
        "num_examples": 4,
        "perplexity": 7.4,
        "x": 1.0,
    }
    two = {
        "loss": 4.0,
        "accuracy": 0.1,
        "num_predictions": 10,
        "num_examples": 12,
        "perplexity": 54.6,
        "x": 0.0,
    }
    both = combine([one, two])
    assert both["loss"] == 2.5
    assert both["accuracy"] == pytest.approx(0.4)
    assert both["perplexity"] == pytest.approx(12.1825, rel=1e-5)
    assert (both["num_predictions"], both["num_examples"]) == (40, 16)
    assert both["x"] == 0.25
    assert combine([one])["loss"] == 2.0
    del one["perplexity"], two["perplexity"]
    assert "perplexity" not in combine([one, two])
