"""The checks with remedies that made training better. ``python tests/auditing/benefit.py`` measures, and writes the names."""

from __future__ import annotations

BETTER: frozenset[str] = frozenset(
    {
        "action_shift",
        "angle_wraps",
        "near_duplicates",
        "not_finite",
        "observation_shift",
        "outliers",
        "unit_changes",
    }
)
"""Names of the checks. Training after their remedies was better than without, and than without as many random steps."""


def training_with(check: str) -> str:
    """Return in words what the remedies of a check do for training."""
    return "better" if check in BETTER else "not shown to help"
