"""Conversion between specs and the spaces of Gymnasium and Minari.

| space | spec |
| --- | --- |
| Box | bounded, or unbounded if the dtype is a float and no bound is finite |
| Discrete(n) | discrete, or bounded integers if `start` is not 0 |
| MultiDiscrete(nvec) | multi-discrete, or bounded integers if `start` is not 0 |
| MultiBinary | binary |
| Dict, Tuple | composite, where the keys of a Tuple are "0", "1", ... |
| Text | non-tensor, with an empty string as example |

`to_gymnasium` converts a composite to a Dict, and a one-hot spec to the space of the categories. For every spec,
`spec.encode(to_gymnasium(spec).sample())` is in the spec.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.libraries import importing
from datasets_rl.specs._document import dtype_name, is_int64
from datasets_rl.specs.base import LeafSpec, TensorSpec
from datasets_rl.specs.bounded import BoundedTensorSpec
from datasets_rl.specs.categorical import (
    BinaryDiscreteTensorSpec,
    DiscreteTensorSpec,
    FiniteSpec,
    MultiDiscreteTensorSpec,
    OneHotDiscreteTensorSpec,
)
from datasets_rl.specs.composite import CompositeSpec
from datasets_rl.specs.non_tensor import NonTensorSpec
from datasets_rl.specs.unbounded import Unbounded

if TYPE_CHECKING:
    import gymnasium

_DEPTH = 64
"""Maximum nesting depth of spaces: a document may be nested deeper than Python's recursion limit."""


def from_gymnasium(space: gymnasium.Space[Any]) -> Any:
    """Convert a Gymnasium space to the spec of samples, encoded as tensors.

    Raises:
        InvalidArgumentError: If a space is not supported. The message lists all problems.
        MissingDependencyError: If gymnasium is not installed.
    """
    return _read_space(_describe_space(space))


def from_minari(space: str | Mapping[str, Any]) -> Any:
    """Convert a space in Minari's JSON format, as in the metadata of a Minari dataset, to a spec.

    Args:
        space: JSON text or parsed JSON. The JSON is untrusted, and every field is validated.

    Raises:
        InvalidArgumentError: If the JSON is invalid, or a space is not supported. The message lists all problems.
    """
    if isinstance(space, str):
        try:
            space = json.loads(space)
        except (ValueError, RecursionError) as error:
            raise InvalidArgumentError(f"the space is not JSON: {error}") from None
    return _read_space(space)


def _read_space(space: Any) -> Any:
    problems: list[str] = []
    spec = _spec_of_space(space, "space", problems, 0)
    if problems:
        raise InvalidArgumentError(f"the space cannot be converted to a spec: {'; '.join(problems)}")
    return spec


def _describe_space(space: Any) -> dict[str, Any]:
    """Describe a Gymnasium space in Minari's format, with arrays instead of lists."""
    spaces = _gymnasium_spaces()
    if isinstance(space, spaces.Dict):
        return {"type": "Dict", "subspaces": {key: _describe_space(inner) for key, inner in space.items()}}
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "subspaces": [_describe_space(inner) for inner in space]}
    entry: dict[str, Any] = {"type": type(space).__name__, "dtype": str(space.dtype), "shape": space.shape}
    for name in ("low", "high", "start", "nvec", "n"):
        if hasattr(space, name):
            entry[name] = getattr(space, name)
    return entry


def _spec_of_space(space: Any, place: str, problems: list[str], depth: int) -> Any:
    """Convert the description of a space to a spec. For an invalid space return `None`, and append to `problems`."""
    kind = space.get("type") if isinstance(space, Mapping) else None
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        problems.append(f"{place} is a {kind or type(space).__name__}, expected one of {', '.join(_READERS)}")
    elif depth > _DEPTH:
        problems.append(f"{place} is nested in {depth} spaces, expected at most {_DEPTH}")
    elif reader is CompositeSpec:
        inner = space.get("subspaces")
        if isinstance(inner, list):
            inner = {str(number): subspace for number, subspace in enumerate(inner)}
        if isinstance(inner, dict):
            places = {name: f"{place}[{name!r:.80}]" for name in inner}
            specs = {name: _spec_of_space(inner[name], places[name], problems, depth + 1) for name in inner}
            return None if any(spec is None for spec in specs.values()) else CompositeSpec(specs)
        problems.append(f"{place}.subspaces is a {type(inner).__name__}, expected a list or an object of spaces")
    else:
        try:
            return reader(space)
        except InvalidArgumentError as error:
            problems.append(f"{place}: {error.message}")
        except (KeyError, TypeError, ValueError, RuntimeError, OverflowError, RecursionError) as error:
            problems.append(f"{place} is invalid: {error!r:.200}")
    return None


def _torch_dtype(space: Mapping[str, Any], default: str) -> torch.dtype:
    name = space.get("dtype", default)
    dtype = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(dtype, torch.dtype):
        raise InvalidArgumentError(f"dtype is {name!r:.80}, expected the name of a torch dtype")
    dtype_name(dtype)
    return dtype


def _spec_of_box(space: Mapping[str, Any]) -> LeafSpec:
    dtype, shape = _torch_dtype(space, "float32"), tuple(space["shape"])
    low, high = (np.asarray(space[name], np.float64 if dtype.is_floating_point else None) for name in ("low", "high"))
    if low.shape != shape or high.shape != shape:
        raise InvalidArgumentError(f"low and high have shapes {low.shape} and {high.shape}, expected {shape}")
    if dtype.is_floating_point and np.isneginf(low).all() and np.isposinf(high).all():
        return Unbounded(shape, dtype=dtype)
    return BoundedTensorSpec(low, high, shape, dtype=dtype)


def _spec_of_discrete(space: Mapping[str, Any]) -> LeafSpec:
    n, start, dtype = int(space["n"]), int(space.get("start", 0)), _torch_dtype(space, "int64")
    if n < 1:
        raise InvalidArgumentError(f"n is {n}, expected at least 1")
    if start:
        return BoundedTensorSpec(start, start + n - 1, (), dtype=dtype)
    return DiscreteTensorSpec(n, dtype=dtype)


def _spec_of_multi_discrete(space: Mapping[str, Any]) -> LeafSpec:
    nvec, dtype = torch.as_tensor(np.asarray(space["nvec"], np.int64)), _torch_dtype(space, "int64")
    start = torch.as_tensor(np.asarray(space.get("start", 0), np.int64))
    if bool(start.any()):
        return BoundedTensorSpec(start, start + nvec - 1, dtype=dtype)
    return MultiDiscreteTensorSpec(nvec, dtype=dtype)


def _spec_of_multi_binary(space: Mapping[str, Any]) -> LeafSpec:
    n = space["n"]
    shape = (n,) if is_int64(n) or isinstance(n, np.integer) else tuple(n)
    return BinaryDiscreteTensorSpec(shape=[int(size) for size in shape])


_READERS: dict[str, Callable[[Mapping[str, Any]], TensorSpec]] = {
    "Box": _spec_of_box,
    "Dict": CompositeSpec,
    "Discrete": _spec_of_discrete,
    "MultiBinary": _spec_of_multi_binary,
    "MultiDiscrete": _spec_of_multi_discrete,
    "Text": lambda _: NonTensorSpec((), example_data=""),
    "Tuple": CompositeSpec,
}


def to_gymnasium(spec: TensorSpec) -> gymnasium.Space[Any]:
    """Convert a spec of tensors, or a composite of such specs, to the Gymnasium space of values before encoding.

    Raises:
        InvalidArgumentError: If no space represents the spec, for example a spec with a mask. The message lists all
            problems.
        MissingDependencyError: If gymnasium is not installed.
    """
    problems: list[str] = []
    space: gymnasium.Space[Any] = _space_of_spec(spec, "", problems)
    if problems:
        raise InvalidArgumentError(f"the spec cannot be converted to a space: {'; '.join(problems)}")
    return space


def _space_of_spec(spec: Any, place: str, problems: list[str]) -> Any:
    spaces = _gymnasium_spaces()
    if isinstance(spec, CompositeSpec):
        places = {name: f"{place}.{name}" if place else name for name in spec}
        return spaces.Dict({name: _space_of_spec(inner, places[name], problems) for name, inner in spec.items()})
    if isinstance(spec, FiniteSpec):
        if spec.mask is not None:
            problems.append(f"{place or 'spec'} has a mask, which spaces do not support")
        return _finite_space(spaces, spec)
    if isinstance(spec, (BoundedTensorSpec, Unbounded)) and spec.dtype != torch.bfloat16:
        low, high = (bound.numpy(force=True) for bound in spec.space)
        if not spec.shape and spec.dtype == torch.int64 and int(high) - int(low) < 1 << 62:
            return spaces.Discrete(int(high) - int(low) + 1, start=int(low))
        if isinstance(spec, Unbounded) and spec.dtype.is_floating_point:
            low, high = np.full_like(low, -math.inf), np.full_like(high, math.inf)
        return spaces.Box(low, high, tuple(spec.shape), low.dtype.type)
    problems.append(f"{place or 'spec'} is {spec!r}, expected a composite, finite, bounded or unbounded spec")
    return spaces.Dict({})


def _finite_space(spaces: Any, spec: FiniteSpec) -> Any:
    if isinstance(spec, OneHotDiscreteTensorSpec):
        return _finite_space(spaces, spec.to_categorical_spec())
    if isinstance(spec, BinaryDiscreteTensorSpec):
        return spaces.MultiBinary(spec.shape[0] if spec.ndim == 1 else tuple(spec.shape))
    dtype = (
        torch.zeros((), dtype=spec.dtype).numpy().dtype if spec.dtype not in {torch.bool, torch.bfloat16} else np.int64
    )
    if isinstance(spec, MultiDiscreteTensorSpec):
        return spaces.MultiDiscrete(spec.nvec.numpy(force=True), dtype=dtype)
    if isinstance(spec, DiscreteTensorSpec) and spec.shape:
        return spaces.MultiDiscrete(np.full(tuple(spec.shape), spec.n), dtype=dtype)
    return spaces.Discrete(spec.cardinality())


def _gymnasium_spaces() -> Any:
    with importing("gymnasium", "gymnasium", "a space"):
        from gymnasium import spaces
    return spaces
