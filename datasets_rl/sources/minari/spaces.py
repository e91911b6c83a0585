"""The spaces of a Minari dataset: its leaves, and where their values lie in the files."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.ted.keys import Key

__all__ = ["Leaf", "document", "leaves", "read_space"]

_KINDS = frozenset({"Box", "Dict", "Discrete", "MultiBinary", "MultiDiscrete", "Text", "Tuple"})
_DEPTH = 16
_IMAGE_LEAST = 32


@dataclass(frozen=True, slots=True)
class Leaf:
    """A space that holds no others."""

    names: Key
    """The way to it, from the top space: the names in Dicts, ``_index_0`` in Tuples, as the HDF5 files have them."""
    space: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """The name of the space's type."""
        kind: str = self.space["type"]
        return kind

    @property
    def shape(self) -> tuple[int, ...]:
        """Axes of one value."""
        if self.kind == "Box":
            return tuple(self.space["shape"])
        if self.kind == "MultiDiscrete":
            return _axes(self.space["nvec"])
        if self.kind == "MultiBinary":
            n = self.space["n"]
            return (n,) if isinstance(n, int) else tuple(n)
        return ()

    @property
    def image(self) -> bool:
        """Whether Minari counts it as an image, which it stores as JPEG."""
        shape = self.shape
        return (
            self.kind == "Box"
            and self.space["dtype"] == "uint8"
            and len(shape) in {2, 3}
            and min(shape[:2]) >= _IMAGE_LEAST
            and _all(self.space["low"], 0)
            and _all(self.space["high"], 255)
        )


def read_space(value: Any, what: str, faults: list[str]) -> Mapping[str, Any] | None:
    """Read a space of the metadata, which is JSON inside JSON; note what is wrong with it."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            faults.append(f"{what} is no JSON: {error}")
            return None
    before = len(faults)
    _check(value, what, faults, 0)
    return value if len(faults) == before else None


def _check(space: Any, what: str, faults: list[str], depth: int) -> None:
    kind = space.get("type") if isinstance(space, dict) else None
    if kind not in _KINDS or depth > _DEPTH:
        said = f"lies {depth} spaces deep" if depth > _DEPTH else f"is of type {kind!r:.60}"
        faults.append(f"{what} {said}; expected one of {', '.join(sorted(_KINDS))}")
        return
    if kind in {"Dict", "Tuple"}:
        inner = space.get("subspaces")
        if not isinstance(inner, dict if kind == "Dict" else list) or not inner:
            faults.append(f"{what} has the subspaces {inner!r:.60}")
            return
        for name, one in inner.items() if isinstance(inner, dict) else enumerate(inner):
            _check(one, f"{what}.{name}", faults, depth + 1)
        return
    wanted = {"Box": ("shape", "dtype", "low", "high"), "MultiDiscrete": ("nvec",), "MultiBinary": ("n",)}
    lacking = [name for name in wanted.get(kind, ()) if name not in space]
    shape = space.get("shape", []) if kind == "Box" else []
    if lacking or not isinstance(shape, list) or not all(isinstance(size, int) and size > 0 for size in shape):
        faults.append(f"{what} is a {kind} without {', '.join(lacking) or 'a shape'}")


def leaves(space: Mapping[str, Any], names: Key = ()) -> Iterator[Leaf]:
    """Yield every leaf of a space, in its order."""
    inner = space.get("subspaces")
    if space["type"] == "Dict" and isinstance(inner, Mapping):
        for name, one in inner.items():
            yield from leaves(one, (*names, name))
    elif space["type"] == "Tuple" and isinstance(inner, list):
        for number, one in enumerate(inner):
            yield from leaves(one, (*names, f"_index_{number}"))
    else:
        yield Leaf(names, space)


def document(leaf: Leaf) -> dict[str, Any]:
    """Describe the values of a leaf as `datasets_rl.specs.from_minari(leaf.space).to_json()` does, without torch."""
    space, shape = leaf.space, list(leaf.shape)
    dtype = space.get("dtype", "int8" if leaf.kind == "MultiBinary" else "int64")
    plain = {"shape": shape, "dtype": dtype}
    start = np.asarray(space.get("start", 0))
    if leaf.kind == "MultiBinary":
        return {"kind": "binary", **plain}
    if leaf.kind == "Box":
        low, high = (np.asarray(space[name]) for name in ("low", "high"))
        if np.dtype(dtype).kind == "f" and np.isneginf(low).all() and np.isposinf(high).all():
            return {"kind": "unbounded", **plain}
        low, high = (one.astype(dtype) for one in (low, high))
    elif not start.any():
        name = "n" if leaf.kind == "Discrete" else "nvec"
        return {"kind": "discrete" if name == "n" else "multi_discrete", **plain, name: space[name]}
    else:
        low, high = start, start + np.asarray(space.get("n", space.get("nvec"))) - 1
    return {"kind": "bounded", **plain, "low": _compact(low), "high": _compact(high)}


def _compact(bound: NDArray[Any]) -> Any:
    for axis in range(bound.ndim):
        first = np.take(bound, [0], axis)
        bound = first if (bound == first).all() else bound
    return _named(bound.item() if bound.size == 1 else bound.tolist())


def _named(value: Any) -> Any:
    # JSON has no infinities.
    if isinstance(value, list):
        return [_named(one) for one in value]
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def _axes(values: Any) -> tuple[int, ...]:
    return (len(values), *_axes(values[0])) if isinstance(values, list) else ()


def _all(values: Any, wanted: float) -> bool:
    if isinstance(values, list):
        return all(_all(one, wanted) for one in values)
    return bool(math.isclose(values, wanted))
