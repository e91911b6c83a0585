"""Spaces of a Minari dataset: the leaves, and the names under which the files store the values."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.ted.keys import Key

_KINDS = frozenset({"Box", "Dict", "Discrete", "MultiBinary", "MultiDiscrete", "Text", "Tuple"})
_DEPTH_MAX = 16
_IMAGE_SIDE_MIN = 32


@dataclass(frozen=True, slots=True)
class Leaf:
    """Leaf space, which contains no other spaces."""

    names: Key
    """Path from the top space: names in Dicts, ``_index_0`` and so on in Tuples, as in the HDF5 files."""
    space: Mapping[str, Any]

    @property
    def space_type(self) -> str:
        """Name of the space's type, such as "Box"."""
        space_type: str = self.space["type"]
        return space_type

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one value."""
        if self.space_type == "Box":
            return tuple(self.space["shape"])
        if self.space_type == "MultiDiscrete":
            return _parse_shape(self.space["nvec"])
        if self.space_type == "MultiBinary":
            n = self.space["n"]
            return (n,) if isinstance(n, int) else tuple(n)
        return ()

    @property
    def image(self) -> bool:
        """Whether Minari treats the values as images, which Minari stores as JPEG."""
        shape = self.shape
        return (
            self.space_type == "Box"
            and self.space["dtype"] == "uint8"
            and len(shape) in {2, 3}
            and min(shape[:2]) >= _IMAGE_SIDE_MIN
            and _all_close(self.space["low"], 0)
            and _all_close(self.space["high"], 255)
        )


def read_space(value: Any, name: str, problems: list[str]) -> Mapping[str, Any] | None:
    """Parse a space of the metadata, which is JSON in a JSON string.

    Args:
        value: The space, as a JSON string or a parsed value.
        name: Name of the space, for messages.
        problems: List to which the problems are appended.

    Returns:
        The space, or None if the space has problems.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            problems.append(f"{name} is not valid JSON: {error}")
            return None
    before = len(problems)
    _check_space(value, name, problems, 0)
    return value if len(problems) == before else None


def _check_space(space: Any, path: str, problems: list[str], depth: int) -> None:
    kind = space.get("type") if isinstance(space, dict) else None
    if depth > _DEPTH_MAX:
        problems.append(f"{path} is nested in {depth} spaces, expected at most {_DEPTH_MAX}")
        return
    if kind not in _KINDS:
        problems.append(f"{path} is of type {kind!r:.60}, expected one of {', '.join(sorted(_KINDS))}")
        return
    if kind in {"Dict", "Tuple"}:
        inner = space.get("subspaces")
        if not isinstance(inner, dict if kind == "Dict" else list) or not inner:
            problems.append(f"{path} has the subspaces {inner!r:.60}, expected the subspaces of a {kind}")
            return
        for name, subspace in inner.items() if isinstance(inner, dict) else enumerate(inner):
            _check_space(subspace, f"{path}.{name}", problems, depth + 1)
        return
    required = {"Box": ("shape", "dtype", "low", "high"), "MultiDiscrete": ("nvec",), "MultiBinary": ("n",)}
    missing = [name for name in required.get(kind, ()) if name not in space]
    shape = space.get("shape", []) if kind == "Box" else []
    if missing or not isinstance(shape, list) or not all(isinstance(size, int) and size > 0 for size in shape):
        problems.append(f"{path} is a {kind} without {', '.join(missing) or 'a shape'}")


def leaf_spaces(space: Mapping[str, Any], names: Key = ()) -> Iterator[Leaf]:
    """Yield every leaf of a space, in order."""
    inner = space.get("subspaces")
    if space["type"] == "Dict" and isinstance(inner, Mapping):
        for name, subspace in inner.items():
            yield from leaf_spaces(subspace, (*names, name))
    elif space["type"] == "Tuple" and isinstance(inner, list):
        for number, subspace in enumerate(inner):
            yield from leaf_spaces(subspace, (*names, f"_index_{number}"))
    else:
        yield Leaf(names, space)


def spec_document(leaf: Leaf) -> dict[str, Any]:
    """Return the spec of a leaf as JSON, equal to `datasets_rl.specs.from_minari(leaf.space).to_json()`.

    Unlike that function, this function does not need torch.
    """
    space, shape = leaf.space, list(leaf.shape)
    dtype = space.get("dtype", "int8" if leaf.space_type == "MultiBinary" else "int64")
    plain = {"shape": shape, "dtype": dtype}
    start = np.asarray(space.get("start", 0))
    if leaf.space_type == "MultiBinary":
        return {"kind": "binary", **plain}
    if leaf.space_type == "Box":
        low, high = (np.asarray(space[name]) for name in ("low", "high"))
        if np.dtype(dtype).kind == "f" and np.isneginf(low).all() and np.isposinf(high).all():
            return {"kind": "unbounded", **plain}
        low, high = (bound.astype(dtype) for bound in (low, high))
    elif not start.any():
        name = "n" if leaf.space_type == "Discrete" else "nvec"
        return {"kind": "discrete" if name == "n" else "multi_discrete", **plain, name: space[name]}
    else:
        low, high = start, start + np.asarray(space.get("n", space.get("nvec"))) - 1
    return {"kind": "bounded", **plain, "low": _compact_bound(low), "high": _compact_bound(high)}


def _compact_bound(bound: NDArray[Any]) -> Any:
    for axis in range(bound.ndim):
        first = np.take(bound, [0], axis)
        bound = first if (bound == first).all() else bound
    return _infinities_as_text(bound.item() if bound.size == 1 else bound.tolist())


def _infinities_as_text(value: Any) -> Any:
    # JSON has no infinities.
    if isinstance(value, list):
        return [_infinities_as_text(item) for item in value]
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def _parse_shape(values: Any) -> tuple[int, ...]:
    return (len(values), *_parse_shape(values[0])) if isinstance(values, list) else ()


def _all_close(values: Any, expected: float) -> bool:
    if isinstance(values, list):
        return all(_all_close(value, expected) for value in values)
    return bool(math.isclose(values, expected))
