"""Datasets as flat dicts of whole arrays, with the keys that training programs expect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from datasets_rl.errors import InvalidArgumentError, MissingDependencyError
from datasets_rl.ted.keys import ACTION, NEXT, NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, OBSERVATION, Key

FlatLayout = Literal["d4rl", "corl", "ogbench", "rlpd"]
Framework = Literal["numpy", "torch", "jax"]

_ACTION_LIMIT = 1 - 1e-5


def flat_dict(storage: Any, layout: FlatLayout, framework: Framework = "numpy", device: Any = None) -> dict[str, Any]:
    """Return all transitions of a storage of episodes as a dict of arrays, see `BaseDatasetExperienceReplay.as_dict`.

    Raises:
        InvalidArgumentError: If the layout, the framework or the device does not exist.
        UnknownKeyError: If the data has no observation, action or reward.
    """
    if layout not in get_args(FlatLayout) or framework not in get_args(Framework):
        raise InvalidArgumentError(
            f"layout is {layout!r} and framework is {framework!r}; expected one of {', '.join(get_args(FlatLayout))}, and "
            f"one of {', '.join(get_args(Framework))}"
        )
    convert = _converter(framework, device)
    columns: dict[str, Any] = {
        "observations": _floats(_column(storage, OBSERVATION)),
        "actions": _floats(_column(storage, ACTION)),
        "rewards": storage.column(NEXT_REWARD)[:, 0].float(),
    }
    terminated = storage.column(NEXT_TERMINATED)[:, 0]
    if layout == "d4rl":
        columns |= {"terminals": terminated, "timeouts": storage.column(NEXT_TRUNCATED)[:, 0]}
        return {name: _mapped(value, convert) for name, value in columns.items()}
    columns["next_observations"] = _floats(_column(storage, (NEXT, *OBSERVATION)))
    ends = torch.zeros(len(storage), dtype=torch.bool)
    ends[torch.from_numpy(storage.episodes.stops - 1)] = True
    if layout == "corl":
        columns["terminals"] = terminated.float()
    else:
        columns["masks"] = (~terminated).float()
    if layout == "ogbench":
        columns["terminals"] = ends.float()
    elif layout == "rlpd":
        columns["dones"] = ends
        columns["actions"] = _mapped(columns["actions"], _clipped)
    return {name: _mapped(value, convert) for name, value in columns.items()}


def gather(arrays: Any, rows: Any) -> Any:
    """Return the given rows of arrays: a batch of a whole dataset that is in memory.

        >>> data = dataset.as_dict("corl", "torch", "cuda")
        >>> batch = gather(data, torch.randint(len(dataset), (256,), device="cuda"))

    A pure function without a Python loop over rows and without a decision on values, for programs that compile their
    whole step: it runs in ``torch.compile(fullgraph=True)``, in a CUDA graph and in `jax.jit`.

    Args:
        arrays: Arrays of numpy, torch or jax, [N, ...] each, or a nested dict of them, as `as_dict` returns them.
        rows: Rows, integers [...] in [0, N), an array of the same library on the same device. A row that is out of range
            raises an error on the CPU; jax returns the nearest row instead.

    Returns:
        The rows, [*rows, ...], in the structure of `arrays`.
    """
    if isinstance(arrays, Mapping):
        return {name: gather(value, rows) for name, value in arrays.items()}
    if isinstance(arrays, Tensor):
        return arrays.index_select(0, rows.reshape(-1)).reshape(*rows.shape, *arrays.shape[1:])
    return arrays[rows]


def _column(storage: Any, key: Key) -> Any:
    """Return a field, [N, ...], or a dict of the fields below a key."""
    names = dict.fromkeys(field[len(key)] for field in storage.keys() if field[: len(key)] == key and field != key)  # noqa: SIM118 - a storage is not a dict
    return {name: _column(storage, (*key, name)) for name in names} if names else storage.column(key)


def _mapped(value: Any, function: Callable[[Tensor], Any]) -> Any:
    """Apply a function to a tensor, or to all tensors of a nested dict."""
    if isinstance(value, dict):
        return {name: _mapped(part, function) for name, part in value.items()}
    return function(value)


def _floats(value: Any) -> Any:
    return _mapped(value, lambda part: part.float() if part.is_floating_point() else part)


def _clipped(value: Tensor) -> Tensor:
    return value.clamp(-_ACTION_LIMIT, _ACTION_LIMIT) if value.is_floating_point() else value


def _converter(framework: Framework, device: Any) -> Callable[[Tensor], Any]:
    """Return the function that converts a tensor in main memory."""
    if framework == "torch":
        return lambda value: value if device is None else value.to(device)
    if framework == "numpy":
        if device not in {None, "cpu"}:
            raise InvalidArgumentError(
                f"device is {device!r}; expected None, because arrays of numpy are in main memory"
            )
        return lambda value: value.numpy()
    try:
        import jax
    except ImportError as error:
        raise MissingDependencyError("jax", "jax", "as_dict(framework='jax')") from error

    target = jax.devices(device)[0] if isinstance(device, str) else device
    return lambda value: jax.device_put(np.ascontiguousarray(value.numpy()), target)
