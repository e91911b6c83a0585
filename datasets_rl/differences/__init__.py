"""Differences of two datasets: what is only in the first or the second, what is in both, and which values of what is in both differ."""

from datasets_rl.differences.difference import Change, Difference, FieldDifference, Place, Side
from datasets_rl.differences.run import compare, diff

__all__ = ["Change", "Difference", "FieldDifference", "Place", "Side", "compare", "diff"]
