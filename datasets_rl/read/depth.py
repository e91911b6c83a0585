"""Depths as gray values of images and videos: the meaning of the values, and the codes of 12 bits that videos have."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # Listing ids imports this module, and numpy takes longer to import than all the catalogs together.
    import numpy as np
    from numpy.typing import NDArray

LAW = ("depth_min", "depth_max", "shift", "use_log")
"""Names of the parts of a law in meta/info.json, after ``video.``."""
_CODES = 1 << 12


@dataclass(frozen=True)
class Depth:
    """What the values of a depth camera mean, as lerobot 0.6.1 states, reads and writes the meaning.

    meters = low + code / 4095 * (high - low)
    meters = exp(log(low + shift) + code / 4095 * (log(high + shift) - log(low + shift))) - shift     if logarithmic
    """

    unit: str
    """``m``, which are stored as float32, or ``mm``, as integers."""
    pixel_format: str = ""
    """Of videos: ``gray12le``, for codes of 12 bits, or ``gray16le``, for values in the unit."""
    low: float = 0.01
    high: float = 10.0
    shift: float = 3.5
    logarithmic: bool = True

    def __post_init__(self) -> None:
        if self.unit not in {"m", "mm"}:
            raise ValueError(f"depth_unit is {self.unit!r:.20}, expected m or mm")

    @classmethod
    def of_law(cls, unit: str, law: Mapping[str, Any]) -> Depth:
        """Return what codes of 12 bits mean by a law with the names in `LAW`; LeRobot has defaults for missing names.

        Raises:
            ValueError: If the unit or the law is not valid.
        """
        default = cls(unit, "gray12le")
        low, high, shift, logarithmic = (law.get(name, value) for name, value in default.law.items())
        numbers = [value for value in (low, high, shift) if isinstance(value, (int, float)) and math.isfinite(value)]
        if (
            len(numbers) < 3
            or not low < high
            or not isinstance(logarithmic, bool)
            or (logarithmic and low + shift <= 0)
        ):
            raise ValueError(
                f"the depths are described by {law}, expected depth_min < depth_max, and depth_min + shift > 0"
            )
        return replace(default, low=float(low), high=float(high), shift=float(shift), logarithmic=logarithmic)

    @property
    def has_codes(self) -> bool:
        """Whether the values are codes of 12 bits."""
        return self.pixel_format == "gray12le"

    @property
    def law(self) -> dict[str, Any]:
        """The law of codes of 12 bits, with the names in `LAW`."""
        return dict(zip(LAW, (self.low, self.high, self.shift, self.logarithmic), strict=True))

    @property
    def dtype(self) -> str:
        """Dtype of the stored values."""
        if self.unit == "m":
            return "float32"
        return "int16" if self.has_codes and self.high * 1000 < 1 << 15 else "int32"

    @property
    def rule(self) -> str:
        """Description of the law, for the manifest."""
        name = {"m": "meters", "mm": "millimeters"}[self.unit]
        if not self.has_codes:
            return f"depth in {name}, with the stored values"
        law = f"logarithmically, with a shift of {self.shift:g} m" if self.logarithmic else "linearly"
        return f"depth in {name}: codes of 12 bits that divide {self.low:g} to {self.high:g} m {law}, where code 0 is {self.low:g} m"

    @cached_property
    def _depths(self) -> NDArray[Any]:
        """The depth of each code in the unit, [4096], ascending."""
        import numpy as np

        low, high = self.low, self.high
        if self.logarithmic:
            low, high = math.log(low + self.shift), math.log(high + self.shift)
        # In single precision, as in LeRobot: almost all millimeters are rounded to the same integers.
        table = np.arange(_CODES, dtype=np.float32) * np.float32((high - low) / (_CODES - 1)) + np.float32(low)
        if self.logarithmic:
            table = np.exp(table) - np.float32(self.shift)
        table = table.clip(np.float32(self.low), np.float32(self.high))
        if self.unit == "mm":
            table = np.rint(table * np.float32(1000)).clip(0, (1 << 16) - 1)
        return table.astype(self.dtype)

    @property
    def steps(self) -> tuple[float, float]:
        """The least and the greatest distance between the depths of two codes that follow each other, in meters."""
        distances = (self._depths[1:] - self._depths[:-1]) * (1 if self.unit == "m" else 0.001)
        return float(distances.min()), float(distances.max())

    def values(self, frames: NDArray[np.uint16]) -> NDArray[Any]:
        """Return the depths of frames, in the unit, of the same shape."""
        import numpy as np

        if not self.has_codes:
            return frames.astype(self.dtype)
        return self._depths[np.minimum(frames, _CODES - 1)]

    def codes(self, depths: NDArray[Any]) -> NDArray[np.uint16]:
        """Return the code of 12 bits with the nearest depth, for depths in the unit, of the same shape.

        A depth outside the range becomes the least or the greatest depth, and a value that is not a number the least depth.
        """
        import numpy as np

        table = self._depths.astype(np.float64)
        known = np.where(np.isnan(depths), table[0], depths)
        return np.searchsorted((table[1:] + table[:-1]) / 2, known, "right").astype(np.uint16)
