"""How likely something happens by chance alone."""

from __future__ import annotations

from math import exp


def at_least(count: int, expected: float) -> float:
    """Return the probability of so many independent events, or more, where some are expected (Poisson)."""
    if count <= 0:
        return 1.0
    terms = [exp(-expected)]
    for number in range(1, count):
        terms.append(terms[-1] * expected / number)
    return max(0.0, 1 - sum(terms))
