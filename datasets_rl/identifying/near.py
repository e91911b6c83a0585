"""Whether two episodes are near copies: equal up to rounding and an affine change of each element, at some steps of each.

    one       | s_0  s_1  s_2  s_3  s_4 |
    other          | s_1' s_2' s_3' |            shift -1: step t of one is step t - 1 of the other

An element tells copies apart if it moves by more than a rounding, and not along a line or a parabola, as the time does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = Mapping[str, NDArray[np.float64]]
"""Values of an episode by dotted key, [T, D] each."""
FEWEST = 12
"""Steps that two near copies have in common, at least."""
_ROUNDED = 2.0**-10
_HALF_ULP, _SMALLEST = 1.001 * 2.0**-11, 2.0**-24
"""What a rounding to float16 changes at most, of the number, and of numbers near zero."""
_ROWS = 0.98
_MOVES = 16
_COVERED = 0.85
_ALIKE = 0.5
_FIELD = 0.8
_PLAIN = 0.4
_SAMPLE = 12
_SAMPLE_ROWS = 0.7
_UNCHANGED = 1e-6


@dataclass(frozen=True, slots=True)
class NearCopy:
    """How an episode is a near copy of another episode."""

    steps: int
    """Number of steps that both have."""
    shift: int
    """The step in the other episode of step 0 of this episode."""
    equal: tuple[str, ...]
    """Dotted keys of fields whose values are equal up to rounding."""
    scaled: tuple[str, ...]
    """Dotted keys of fields whose elements are scaled or moved."""


def may_be_near(one: Values, other: Values, shift: int) -> bool:
    """Return whether some steps of two episodes are so much alike at a shift that all steps are worth a comparison."""
    lengths = [len(next(iter(values.values()), ())) for values in (one, other)]
    start, stop = max(0, -shift), min(lengths[0], lengths[1] - shift)
    if stop - start < max(FEWEST, _COVERED * min(lengths)):
        return False
    steps = np.linspace(start, stop - 1, _SAMPLE).astype(int)
    if not all(name in other and other[name].shape[1] == values.shape[1] for name, values in one.items()):
        return True  # the fields have other names, and are compared as a whole
    mine = np.hstack([values[steps] for values in one.values()])
    theirs = np.hstack([other[name][steps + shift] for name in one])
    near = np.abs(mine - theirs) <= 2 * _ROUNDED * np.maximum(np.abs(mine), np.abs(theirs)).max(axis=0)
    moving = np.ptp(mine, axis=0) > 0
    return bool((near[:, moving].mean(axis=0) >= _SAMPLE_ROWS).mean() >= _PLAIN / 2) if moving.any() else False


def near_copy(one: Values, other: Values, shift: int) -> NearCopy | None:
    """Compare two episodes at a shift, and return how one is a near copy of the other, or None.

    A field is common if 80% of its elements that tell copies apart agree in 98% of the common steps. A near copy has at least half of these
    elements in common fields, and 40% in fields without another scale. The common steps are at least 85% of the shorter episode.

    Args:
        one: The values of an episode.
        other: The values of another episode.
        shift: The step in the other episode of step 0 of the one.
    """
    lengths = [len(next(iter(values.values()), ())) for values in (one, other)]
    start, stop = max(0, -shift), min(lengths[0], lengths[1] - shift)
    if stop - start < max(FEWEST, _COVERED * min(lengths)):
        return None
    equal, scaled, alike, plain, telling = [], [], 0, 0, 0
    for name, values in one.items():
        mine = values[start:stop]
        moving = _moves(mine)
        theirs = _counterpart(name, mine, other, start + shift, stop + shift)
        if theirs is None or not moving.any():
            continue
        same, changed = _fit(mine[:, moving], theirs[:, moving])
        count = int(moving.sum())
        telling += count
        if (same & ~changed).mean() >= _FIELD:
            plain += count
            equal.append(name)
        elif same.mean() >= _FIELD:
            alike += count
            scaled.append(name)
    # Motions without noise have the same shape after any start, and another scale.
    if not telling or alike + plain < _ALIKE * telling or plain < _PLAIN * telling:
        return None
    return NearCopy(stop - start, shift, tuple(equal), tuple(scaled))


def _counterpart(
    name: str, mine: NDArray[np.float64], other: Values, start: int, stop: int
) -> NDArray[np.float64] | None:
    """Return the field of the other episode with this name, or with as many elements and the most similar changes."""
    if name in other and other[name].shape[1] == mine.shape[1]:
        return other[name][start:stop]
    fields = [values[start:stop] for values in other.values() if values.shape[1] == mine.shape[1]]
    scores = [float(_fit(mine, field)[0].mean()) for field in fields]
    return fields[int(np.argmax(scores))] if fields else None


def _moves(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which elements move by more than a rounding from every parabola, [D]."""
    time = np.linspace(-1, 1, len(values))
    basis = np.stack([np.ones_like(time), time, time**2], axis=1)
    finite = np.isfinite(values).all(axis=0)
    clean = np.where(finite, values, 0)
    rest = clean - basis @ np.linalg.lstsq(basis, clean, rcond=None)[0]
    moves: NDArray[np.bool_] = finite & (rest.std(axis=0) > _MOVES * _ROUNDED * np.abs(clean).max(axis=0))
    return moves


def _fit(mine: NDArray[np.float64], theirs: NDArray[np.float64]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which elements are affine images of each other, and which of them are changed, [D] each."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        mean, other_mean = mine.mean(axis=0), theirs.mean(axis=0)
        centered, other_centered = mine - mean, theirs - other_mean
        factor = (centered * other_centered).sum(axis=0) / (other_centered**2).sum(axis=0)
        offset = mean - factor * other_mean
        error = np.abs(mine - factor * theirs - offset)
        scale = np.abs(factor) * np.abs(theirs).max(axis=0)
        tolerance = _ROUNDED * np.maximum(np.abs(mine).max(axis=0), scale)
        fits = error <= tolerance
        moving = np.abs(np.diff(mine, axis=0, prepend=mine[:1])) > tolerance
        same = np.isfinite(factor) & (fits.mean(axis=0) >= _ROWS)
        # An element that rests is equal in most steps of any two episodes.
        same &= (fits & moving).sum(axis=0) >= _ROWS * moving.sum(axis=0)
        # Not of the greatest value: motions without noise from other states come close to each other.
        rounding = _HALF_ULP * np.maximum(np.abs(mine), np.abs(theirs)) + _SMALLEST
        plain = (np.abs(mine - theirs) <= rounding).mean(axis=0) >= _ROWS
    return same, same & ~plain
