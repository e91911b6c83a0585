"""The state of a buffer: the states of its components, and the batches that were sampled ahead of time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict, is_tensor_collection
from torch import Tensor

from datasets_rl.format.checkpoint import Stateful
from datasets_rl.storages.base import Storage

_INDEX = "index"


def document_problems(names: list[str], state: Any) -> list[str]:
    """Return what is wrong with the document of a buffer's state, before the components check the parts."""
    if not isinstance(state, dict):
        return [f"the state is a {type(state).__name__}, expected the state of a replay buffer"]
    missing = [
        name for name in names if not (isinstance(state.get(name), dict) and isinstance(state[name].get("state"), dict))
    ]
    return [f"the state has no {', no '.join(missing)}, expected the state of a replay buffer"] if missing else []


def component_problems(component: Stateful, saved: Mapping[str, Any]) -> list[str]:
    """Return all reasons why a component cannot restore a saved component."""
    saved_class, state = saved.get("kind"), saved["state"]
    reasons = component.state_problems(state)
    if state and saved_class != type(component).__name__ and not isinstance(component, Storage):
        return [f"the saved component is a {saved_class}, expected a {type(component).__name__}", *reasons]
    return reasons


def chronological_state(components: Mapping[str, Stateful], state: dict[str, Any], max_size: int) -> dict[str, Any]:
    """Rotate a full ring into chronological order for a ring of another capacity.

    Args:
        components: The components that restore the state.
        state: The states of the components by the same names. The storage accepts its state.
        max_size: Maximum number of steps of the storage.

    Returns:
        The state itself if no rotation is needed. Otherwise a state without batches sampled ahead of time.
    """
    ring = state["storage"]["state"]
    slots, written = ring.get("slots"), ring.get("written")
    if slots is None or written is None or written < slots:
        return state
    # The environment axes of an empty storage are unknown, so the saved axes are used.
    if slots == max_size // env_count(ring):
        return state
    result = {**state, "ahead": []}
    for name, part in components.items():
        result[name] = {**state[name], "state": part.renumbered(state[name]["state"], written % slots, slots)}
    return result


def env_count(storage_state: Mapping[str, Any]) -> int:
    """Return the number of steps of a slot in the state of a storage."""
    return math.prod(storage_state.get("env_shape", ()))


def batch_to_state(index: Any, info: dict[Any, Any], *, last: bool, size: int | None) -> dict[str, Any]:
    """Return a batch that was sampled ahead of time as an entry of a state.

    The info is a list of pairs: its keys may be tuples, which a state does not support as keys.
    """
    info_items = [[list(key) if isinstance(key, tuple) else key, value] for key, value in info.items() if key != _INDEX]
    return {
        "index": dict(index.items()) if is_tensor_collection(index) else index,
        "info": info_items,
        "last": last,
        "size": size,
    }


def batch_from_state(saved: Mapping[str, Any]) -> tuple[Any, dict[Any, Any], bool]:
    """Invert `batch_to_state`."""
    index = saved["index"]
    if isinstance(index, dict):
        index = TensorDict(index, [len(index["buffer_ids"])])
    return index, {tuple(key) if isinstance(key, list) else key: value for key, value in saved["info"]}, saved["last"]


def saved_batch_problems(ahead: Any, steps: int) -> list[str]:
    """Return what is wrong with the batches that were sampled ahead of time from `steps` steps."""
    if not isinstance(ahead, list):
        return [f"ahead is a {type(ahead).__name__}, expected a list of batches"]
    problems = []
    for number, saved in enumerate(ahead):
        try:
            index, info, _ = batch_from_state(saved)
            rows = index.get(_INDEX) if is_tensor_collection(index) else index
            is_size = saved.get("size") is None or (type(saved["size"]) is int and saved["size"] > 0)
            is_valid = (
                is_size
                and isinstance(saved["last"], bool)
                and all(isinstance(value, Tensor) for value in info.values())
            )
            # A custom sampler may return numbers, or an index per axis.
            per_axis = isinstance(rows, (list, tuple)) and bool(rows) and isinstance(rows[0], Tensor)
            is_valid &= all(_are_rows(axis, steps) for axis in (rows if per_axis else [rows]))
            if not is_valid:
                problems.append(f"batch {number} of ahead is not a batch of the {steps:,} steps")
        except (AttributeError, KeyError, TypeError, ValueError, RuntimeError):
            problems.append(f"batch {number} of ahead is not a batch")
    return problems


def _are_rows(index: Any, steps: int) -> bool:
    rows = torch.as_tensor(index)
    is_integer = not (rows.dtype == torch.bool or rows.is_floating_point() or rows.is_complex())
    return is_integer and bool(((rows >= 0) & (rows < steps)).all())
