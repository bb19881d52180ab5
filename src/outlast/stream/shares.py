"""The shares of a mixture: weights and budgets of tokens as exact fractions. No numpy, no data.

In: ``[[stream.sources]]``, and the tokens of the run where a source has a budget. Out: a fraction for each
source; they add up to 1. A token of a budget is a place of an example: an example of sequence length L is L
tokens, special tokens and padding included, as everywhere in a run's rates.
"""

from collections.abc import Sequence
from fractions import Fraction

from outlast.errors import ConfigError
from outlast.stream.config import SourceConfig

_WHERE = "stream.sources"


def shares_of(
    sources: Sequence[SourceConfig], *, total_tokens: int | None = None, step_tokens: int = 0
) -> tuple[Fraction, ...]:
    """Return each source's share of the examples.

    A source with a budget has the share ``tokens / total_tokens``; what the budgets leave is divided among
    the others by weight. Where every source has a budget, their sum must be the run's total to within one
    step, and the shares are those of the sum.

    Args:
        total_tokens: of the whole run; None where there is no run.
        step_tokens: of the run's longest step.

    Raises:
        ConfigError: budgets without a run, or that do not fit its total.
    """
    budgets = sum(source.tokens or 0 for source in sources)
    weights = [Fraction(repr(source.weight)) if source.weight else Fraction(0) for source in sources]
    if not budgets:
        return tuple(weight / sum(weights) for weight in weights)
    if total_tokens is None:
        raise ConfigError(
            "A budget of tokens is a share of a run, and there is none.",
            where=_WHERE,
            remedy="give every source a weight",
        )
    if not sum(weights):
        _check_sum(budgets, total_tokens, step_tokens)
        return tuple(Fraction(source.tokens or 0, budgets) for source in sources)
    if budgets >= total_tokens:
        raise ConfigError(
            f"The run reads {total_tokens:,} tokens, the budgets alone are {budgets:,}: "
            "nothing is left for the sources with a weight.",
            where=_WHERE,
            remedy="lower the budgets, or set training.total_steps higher",
        )
    rest = Fraction(total_tokens - budgets) / sum(weights)
    return tuple(
        Fraction(source.tokens) / total_tokens if source.tokens else weight * rest / total_tokens
        for source, weight in zip(sources, weights, strict=True)
    )


def _check_sum(budgets: int, total_tokens: int, step_tokens: int) -> None:
    if abs(budgets - total_tokens) < step_tokens:
        return
    difference = "more" if budgets > total_tokens else "fewer"
    raise ConfigError(
        f"The budgets of the sources come to {budgets:,} tokens, {difference} than the {total_tokens:,} that "
        "the run reads.",
        where=_WHERE,
        expected="the same to within one step",
        remedy=f"set training.total_steps to {round(Fraction(budgets, step_tokens))} (the steps of phases "
        "together), or give one source a weight in place of its tokens",
    )
