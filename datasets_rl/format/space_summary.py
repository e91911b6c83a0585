"""What a user chooses a dataset by: figures with the way that they are known, and short descriptions of spaces."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

FIGURES = ("bytes", "steps", "episodes")
"""The figures of a catalog entry that have a `Basis`."""
ObservationKind = Literal["pixels", "state"]
ActionKind = Literal["discrete", "continuous"]
_LEAST_IMAGE_SIDE = 16
"""Smallest side of an image. Grids of symbols, such as MiniGrid's 7 x 7, are smaller."""
_IMAGE_AXES = (2, 3)


@dataclass(frozen=True, slots=True)
class Basis:
    """How well a figure is known."""

    kind: Literal["exact", "recorded", "estimated"] = "exact"
    """'exact' if the upstream states the figure for these files, 'recorded' if the figure was read once, from files or
    a document, and the upstream may have changed since, 'estimated' if the figure was computed from something else."""
    origin: str = ""
    """Where the figure is from, in a few words."""


def least_known(bases: Iterable[Basis]) -> Basis:
    """Return how well the sum of figures is known: as the least known figure."""
    order = ("exact", "recorded", "estimated")
    return Basis(max((one.kind for one in bases), key=order.index, default="exact"), "")


@dataclass(frozen=True, slots=True)
class SpaceSummary:
    """Space of the observations or the actions in short."""

    kind: str
    """'state', 'pixels', 'pixels+state', 'continuous', 'discrete' or 'continuous+discrete'."""
    shape: tuple[int, ...] | None = None
    """Shape of a value. None for several fields, or if the shape is not known."""
    n: int | None = None
    """Number of values of a discrete space."""
    low: float | None = None
    """Lower bound, if all elements have the same."""
    high: float | None = None
    """Upper bound, if all elements have the same."""

    @classmethod
    def of(cls, document: Mapping[str, Any] | None) -> SpaceSummary | None:
        """Return the space in a catalog: an object with the names of the fields above, or None."""
        if document is None:
            return None
        shape = document.get("shape")
        return cls(**{**document, "shape": None if shape is None else tuple(shape)})

    @property
    def kinds(self) -> frozenset[str]:
        """The single kinds, of which a space with several fields may have several."""
        return frozenset(self.kind.split("+"))

    @property
    def text(self) -> str:
        """Description in full, as in ``continuous [3], from -1 to 1``."""
        shape = f" {list(self.shape)}" if self.shape else ""
        values = "" if self.n is None else f", {self.n} values"
        bounds = "" if self.low is None or self.high is None else f", from {self.low:g} to {self.high:g}"
        return f"{self.kind}{shape}{values}{bounds}"

    @property
    def short(self) -> str:
        """Description for the column of a table, as in ``state[11]``, ``pixels[84x84]`` or ``disc[18]``."""
        size = "x".join(map(str, self.shape)) if self.shape else "" if self.n is None else str(self.n)
        kind = self.kind.replace("continuous", "cont").replace("discrete", "disc")
        return f"{kind}[{size}]" if size else kind


def summarize_states(fields: Iterable[Mapping[str, Any]]) -> SpaceSummary | None:
    """Return the space of the observations of a stored dataset, or None without observations.

    Args:
        fields: The entries of the dataset's schema. Observations are the fields that exist at t and at t+1, except
            ``info``.
    """
    found = [field for field in fields if field["shared"] and field["key"][0] != "info"]
    # Robots and simulators store further states beside the observation, which say little about the task.
    found = [field for field in found if field["key"][0] in {"observation", "pixels"}] or found
    kinds = sorted({"pixels" if _is_image(field) else "state" for field in found})
    if not kinds:
        return None
    return SpaceSummary("+".join(kinds), tuple(found[0]["shape"]) if len(found) == 1 else None)


def summarize_action(fields: Iterable[Mapping[str, Any]], specs: Mapping[str, Any]) -> SpaceSummary | None:
    """Return the space of the actions of a stored dataset, or None without actions."""
    found = [field for field in fields if field["key"][0] == "action"]
    kinds = sorted({"continuous" if field["dtype"][1] == "f" else "discrete" for field in found})
    if not kinds:
        return None
    spec = specs.get("action") if len(found) == 1 else None
    spec = spec if isinstance(spec, Mapping) else {}
    low, high = _bound(spec.get("low"), min), _bound(spec.get("high"), max)
    if kinds == ["discrete"]:
        n = spec.get("n")
        return SpaceSummary("discrete", _shape(found), n if isinstance(n, int) else None)
    bounded = low is not None and high is not None
    return SpaceSummary("+".join(kinds), _shape(found), None, low if bounded else None, high if bounded else None)


def _is_image(field: Mapping[str, Any]) -> bool:
    shape = field["shape"]
    sides = sorted(shape)[-2:]
    is_bytes = field["dtype"][1:] == "u1" and len(shape) in _IMAGE_AXES
    return bool(field.get("form")) or (is_bytes and min(sides) >= _LEAST_IMAGE_SIDE)


def _shape(fields: Sequence[Mapping[str, Any]]) -> tuple[int, ...] | None:
    return tuple(fields[0]["shape"]) if len(fields) == 1 else None


def _bound(value: Any, widest: Any) -> float | None:
    """Return the widest of nested bounds, or None without bounds or with an infinite bound."""
    if isinstance(value, list):
        inner = [_bound(one, widest) for one in value]
        return widest(inner) if inner and None not in inner else None
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None
