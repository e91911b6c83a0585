"""The state of a buffer: that of its parts, and the batches that were chosen ahead of time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict, is_tensor_collection
from torch import Tensor

from datasets_rl.checkpoint import Stateful
from datasets_rl.storages.base import Storage

__all__ = ["form_problems", "misfits_of", "read_batch", "saved_batch", "saved_batch_problems", "turned"]

_INDEX = "index"


def form_problems(names: list[str], state: Any) -> list[str]:
    """Say what is wrong with the state of a buffer as a document, before the parts look at theirs."""
    if not isinstance(state, dict):
        return [f"it is a {type(state).__name__}; expected the state of a replay buffer"]
    missing = [
        name for name in names if not (isinstance(state.get(name), dict) and isinstance(state[name].get("state"), dict))
    ]
    return [f"it has no {', no '.join(missing)}; expected the state of a replay buffer"] if missing else []


def misfits_of(part: Stateful, saved: Mapping[str, Any]) -> list[str]:
    """Say why a part cannot take over what was saved of one, all reasons at once."""
    kind, state = saved.get("kind"), saved["state"]
    reasons = part.misfits(state)
    if state and kind != type(part).__name__ and not isinstance(part, Storage):
        return [f"a {kind} was saved, and there is a {type(part).__name__} here", *reasons]
    return reasons


def turned(parts: Mapping[str, Stateful], state: dict[str, Any], max_size: int) -> dict[str, Any]:
    """Put a ring that has wrapped into chronological order if it comes into one of another size.

    Args:
        parts: The parts that will take the state over.
        state: Their states by the same names; that of the storage fits.
        max_size: Steps that fit.

    Returns:
        The state itself if there is nothing to turn; else one in which nothing was chosen ahead of time.
    """
    ring = state["storage"]["state"]
    slots, written = ring.get("slots"), ring.get("written")
    if slots is None or written is None or written < slots:
        return state
    # An empty storage does not know its lanes yet.
    if slots == max_size // math.prod(ring.get("lanes", ())):
        return state
    result = {**state, "ahead": []}
    for name, part in parts.items():
        result[name] = {**state[name], "state": part.renumbered(state[name]["state"], written % slots, slots)}
    return result


def saved_batch(index: Any, info: dict[Any, Any], *, last: bool) -> dict[str, Any]:
    """Return a batch that was chosen ahead of time as a part of a state.

    What a sampler says stands in a list: its keys may be tuples, which a state has no room for.
    """
    said = [[list(key) if isinstance(key, tuple) else key, value] for key, value in info.items() if key != _INDEX]
    return {"index": dict(index.items()) if is_tensor_collection(index) else index, "info": said, "last": last}


def read_batch(saved: Mapping[str, Any]) -> tuple[Any, dict[Any, Any], bool]:
    """Undo `saved_batch`."""
    index = saved["index"]
    if isinstance(index, dict):
        index = TensorDict(index, [len(index["buffer_ids"])])
    return index, {tuple(key) if isinstance(key, list) else key: value for key, value in saved["info"]}, saved["last"]


def saved_batch_problems(ahead: Any, steps: int) -> list[str]:
    """Say what is wrong with the batches that were chosen ahead of time from so many steps."""
    if not isinstance(ahead, list):
        return ["what was chosen ahead of time is no list"]
    problems = []
    for number, saved in enumerate(ahead):
        try:
            index, info, _ = read_batch(saved)
            rows = index.get(_INDEX) if is_tensor_collection(index) else index
            right = isinstance(saved["last"], bool) and all(isinstance(value, Tensor) for value in info.values())
            if isinstance(rows, Tensor):
                right &= rows.dtype == torch.int64 and bool(((rows >= 0) & (rows < steps)).all())
            if not right:
                problems.append(f"batch {number} that was chosen ahead of time is none of {steps:,} steps")
        except (AttributeError, KeyError, TypeError, ValueError, RuntimeError):
            problems.append(f"batch {number} that was chosen ahead of time is none")
    return problems
