"""Values of raw files: integers that torch cannot gather, numbers that are not finite, and jumps between rows.

A jump, whose next state differs from the state of the following row, is the boundary of an episode. A writer derives
both from the same state, but often rounds them differently: a difference of 1e-6 is noise, whereas a reset changes at
least one number by much more. Floats therefore count as equal if

    |a - b| <= t * (1 + min(|a|, |b|))        t = max(1e-5, 8 times the spacing of the dtype at 1)

and NaN equals NaN. Integers and booleans must be equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import ConversionError
from datasets_rl.read.images import read_header
from datasets_rl.read.streams import first_problems, refuse
from datasets_rl.ted.episode import EncodedImages
from datasets_rl.ted.keys import dotted_name

if TYPE_CHECKING:
    from datasets_rl.format.schema import Column

WIDENED: Mapping[np.dtype[Any], np.dtype[Any]] = {
    np.dtype(np.uint16): np.dtype(np.int32),
    np.dtype(np.uint32): np.dtype(np.int64),
}
"""Unsigned integer dtypes that torch cannot gather, and the signed dtypes that hold their values."""
WIDENED_INTEGERS = {
    "widened": "unsigned integers of 16 and 32 bits were converted to signed integers of 32 and 64 bits, which torch "
    "can gather"
}
"""Rule and text of the decision about `WIDENED` dtypes."""
_TOLERANCE = 1e-5
_SPACINGS = 8


def as_column(rows: NDArray[Any], column: Column) -> NDArray[Any]:
    """Return rows, [n, ...], with the shape and the dtype of a column."""
    return rows.reshape(len(rows), *column.shape).astype(column.dtype, copy=False)


def column_differences(columns: Iterable[Column], others: Iterable[Column], unit: str) -> Iterator[str]:
    """Yield how the columns of a part of the files differ from the columns of the first part.

    Args:
        columns: The columns of the part.
        others: The columns of the first part.
        unit: The kind of the parts: "file", "game", "episode".
    """
    own, first = ({column.key: column for column in group} for group in (columns, others))
    yield from (f"it has no {dotted_name(key)}, unlike the first {unit}" for key in first.keys() - own.keys())
    yield from (f"it has {dotted_name(key)}, unlike the first {unit}" for key in own.keys() - first.keys())
    for key in own.keys() & first.keys():
        if (own[key].dtype, own[key].shape, own[key].text) != (first[key].dtype, first[key].shape, first[key].text):
            found, wanted = (f"{column.dtype.name} {list(column.shape)}" for column in (own[key], first[key]))
            yield f"{dotted_name(key)} is {found}, in the first {unit} {wanted}"


def checked_images(encoded: Any, column: Column, first: int) -> EncodedImages:
    """Return images that stay encoded, after a check that their headers have the shape and the dtype of their column.

    Args:
        encoded: The PNG or JPEG file of each image, [n].
        column: The column.
        first: Number of the first image in errors.

    Raises:
        ConversionError: If images have another shape or dtype, or are damaged. The error names each image.
    """
    problems: list[str] = []
    for number, image in enumerate(encoded, first):
        name = f"{dotted_name(column.key)}: image {number:,}"
        try:
            head = read_header(image)
        except ConversionError as error:
            problems += [f"{name} {problem}" for problem in error.problems]
            continue
        if (head.shape, head.dtype) != (column.shape, column.dtype):
            found, expected = (f"{list(one.shape)} of {one.dtype}" for one in (head, column))
            problems.append(f"{name} is {found}, expected {expected}")
    refuse("", first_problems(problems, "images"))
    return EncodedImages(encoded)


def pixel_spec(shape: Sequence[int]) -> dict[str, Any]:
    """Return the spec of pixels of 8 bits, as a document of `TensorSpec.to_json`."""
    return {"kind": "bounded", "shape": list(shape), "dtype": "uint8", "low": 0, "high": 255}


def count_not_finite(array: NDArray[Any]) -> int:
    """Return the number of values that are NaN or infinite."""
    if array.dtype.kind != "f":
        return 0
    with np.errstate(all="ignore"):
        if np.isfinite(array.sum()):  # then no value is infinite, and no mask is needed
            return 0
    return int((~np.isfinite(array)).sum())


class OtherFlags:
    """Values of flags other than 0 and 1, counted in blocks of rows.

    Args:
        name: The name of the flags in their file.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._first = ""
        self._rows = 0

    def count(self, flags: NDArray[Any], start: int) -> None:
        """Count the rows of a block, [T, ...], whose first row has the number `start`."""
        other = (flags != 0) & (flags != 1)
        wrong = np.flatnonzero(other.any(axis=tuple(range(1, other.ndim))))
        if len(wrong) and not self._rows:
            self._first = f"{flags[other][0]} at row {start + wrong[0]:,}"
        self._rows += len(wrong)

    def problems(self) -> list[str]:
        """Return a sentence about the values other than 0 and 1, or nothing."""
        if not self._rows:
            return []
        rows = f"{self._rows:,} such rows" if self._rows > 1 else "1 such row"
        return [f"{self._name} is {self._first}, expected 0 or 1 ({rows})"]


def find_jumps(
    next_states: NDArray[Any], following_states: NDArray[Any]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Compare the next state of each row with the state of the following row.

    Args:
        next_states: The next state of each row, [T, ...].
        following_states: The state of the following row, [T, ...].

    Returns:
        Two masks, [T] each: the rows with different states, and the rows with states that differ only by rounding.
    """
    differ = next_states != following_states
    jumps, rounded = np.zeros(len(differ), np.bool_), np.zeros(len(differ), np.bool_)
    # Few values differ, so that searching the flat array is several times quicker than any() over the last axis.
    flat_indices = np.flatnonzero(differ)
    if not len(flat_indices):
        return jumps, rounded
    row_of = flat_indices // differ[0].size
    left, right = next_states.reshape(-1)[flat_indices], following_states.reshape(-1)[flat_indices]
    if left.dtype.kind == right.dtype.kind == "f":
        not_both_nan = ~(np.isnan(left) & np.isnan(right))
        row_of, left, right = row_of[not_both_nan], left[not_both_nan], right[not_both_nan]
        rounded[row_of] = True
        row_of = row_of[~_nearly_equal_rows(left, right)]
    jumps[row_of] = True
    return jumps, rounded & ~jumps


def _nearly_equal_rows(left: NDArray[Any], right: NDArray[Any]) -> NDArray[np.bool_]:
    spacing = max(float(np.finfo(values.dtype).eps) for values in (left, right))
    limit = max(_TOLERANCE, _SPACINGS * spacing)
    left, right = left.astype(np.float64), right.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.abs(left - right)
        close: NDArray[np.bool_] = distance <= limit * (1 + np.minimum(np.abs(left), np.abs(right)))
    return np.asarray(close & np.isfinite(distance))
