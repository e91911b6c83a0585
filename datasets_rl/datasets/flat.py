"""Datasets as flat dicts of whole arrays, with the keys that training programs expect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.libraries import importing
from datasets_rl.storages.view import View
from datasets_rl.ted.keys import (
    ACTION,
    NEXT,
    NEXT_MASK,
    NEXT_REWARD,
    NEXT_TERMINATED,
    NEXT_TRUNCATED,
    OBSERVATION,
    Key,
    dotted_name,
)

FlatLayout = Literal["d4rl", "corl", "ogbench", "rlpd"]
Framework = Literal["numpy", "torch", "jax"]

_ACTION_LIMIT = 1 - 1e-5
_REPAIRED = "repaired"
_BLOCK_BYTES = 64 << 20


def flat_dict(
    storage: Any, layout: FlatLayout, framework: Framework = "numpy", device: Any = None, *, compact: bool = False
) -> dict[str, Any]:
    """Return all transitions of a storage of episodes as a dict of arrays, see `BaseDatasetExperienceReplay.as_dict`.

    Raises:
        InvalidArgumentError: If the layout, the framework or the device does not exist, or a compact layout is not
            possible.
        UnknownKeyError: If the data has no observation, action or reward.
    """
    if layout not in get_args(FlatLayout) or framework not in get_args(Framework):
        raise InvalidArgumentError(
            f"layout is {layout!r} and framework is {framework!r}, expected one of {', '.join(get_args(FlatLayout))}, and "
            f"one of {', '.join(get_args(Framework))}"
        )
    if compact and layout != "ogbench":
        raise InvalidArgumentError(
            f"compact is True and layout is {layout!r}, expected 'ogbench', the only layout with a compact form"
        )
    convert = _converter(framework, device)
    if compact:
        return {name: _mapped(value, convert) for name, value in _compact_columns(storage).items()}
    columns: dict[str, Any] = {
        "observations": _floats(_column(storage, OBSERVATION)),
        "actions": _floats(_column(storage, ACTION)),
        "rewards": storage.column(NEXT_REWARD)[:, 0].float(),
    }
    terminated = storage.column(NEXT_TERMINATED)[:, 0]
    if layout == "d4rl":
        columns |= {"terminals": terminated, "timeouts": _timeouts(View.of(storage))}
        return {name: _mapped(value, convert) for name, value in columns.items()}
    columns["next_observations"] = _floats(_column(storage, (NEXT, *OBSERVATION)))
    ends = _ends(storage)
    if layout == "corl":
        columns["terminals"] = 1 - _masks(storage)
    else:
        columns["masks"] = _masks(storage)
    if layout == "ogbench":
        columns["terminals"] = ends.float()
        columns["actions"] = _mapped(columns["actions"], _numbers_of_actions)
    elif layout == "rlpd":
        columns["dones"] = ends
        columns["actions"] = _mapped(columns["actions"], _clipped)
    return {name: _mapped(value, convert) for name, value in columns.items()}


def _timeouts(view: View) -> Tensor:
    """Return the flags of time-outs without the flags that the conversion of a D4RL file added, [N].

    The flags of a whole file are the file's flags. In a part of a file, or a derived dataset, an added flag separates
    an episode from the next episode, which need not follow in the file: only the added flag of the last row is left
    out. In a file without time-outs, an added flag at the time limit is kept.
    """
    timeouts, episodes, manifest = view.column(NEXT_TRUNCATED)[:, 0], view.episodes, view.dataset.stored.manifest
    if _REPAIRED not in episodes.names:
        return timeouts
    counts = {decision.rule: decision.count for decision in manifest.decisions}
    ends = torch.from_numpy(episodes.stops - 1)
    stored = view.dataset.pick(NEXT_TRUNCATED, torch.from_numpy(view.rows_of(ends.numpy())))[:, 0]
    # Where the view has cut an episode, the flag is that of the view.
    added = torch.from_numpy(episodes[_REPAIRED].astype(np.bool_)) & stored
    if "no-timeouts-column" in counts and manifest.time_limit is not None:
        added &= torch.from_numpy(episodes.lengths != manifest.time_limit)
    if manifest.history or counts.get("same-row") != len(view):
        added[:-1] = False
    timeouts[ends[added]] = False  # a private mapping, or a copy
    return timeouts


def _compact_columns(storage: Any) -> dict[str, Any]:
    """Return the arrays of OGBench's compact layout, [N + E, ...], with a row for each state.

    row            0    1    2    3       stop - 1 twice: the last step, and the final state
    observations   s_0  s_1  s_2  s_3
    actions        a_0  a_1  a_2  a_2
    terminals      0    0    1    1
    valids         1    1    1    0
    """
    stops, ends = storage.episodes.stops, _ends(storage)
    rows = torch.from_numpy(np.insert(np.arange(len(storage)), stops, stops - 1))
    final = torch.from_numpy(np.insert(np.zeros(len(storage), np.bool_), stops, values=True))
    steps = {
        "actions": _mapped(_floats(_column(storage, ACTION)), _numbers_of_actions),
        "rewards": storage.column(NEXT_REWARD)[:, 0].float(),
        "masks": _masks(storage),
        "terminals": ends.float(),
    }
    columns = {name: _mapped(value, lambda part: part.index_select(0, rows)) for name, value in steps.items()}
    return {"observations": _states(storage, OBSERVATION, rows, final), **columns, "valids": (~final).float()}


def _states(storage: Any, key: Key, rows: Tensor, final: Tensor) -> Any:
    """Return a field of rows, or its value under "next" where `final` is True, or a dict of the fields below the key."""
    names = _names_below(storage, key)
    if names:
        return {name: _states(storage, (*key, name), rows, final) for name in names}
    stored = View.of(storage).names.get(key, key)
    if not storage.schema[stored].shared:
        raise InvalidArgumentError(
            f"compact is True, but {dotted_name((NEXT, *key))} is stored for each row, because this field is not the "
            f"{dotted_name(key)} of the next row",
            hint="omit compact, for an array of next observations",
        )
    first = _floats(storage.pick_states(key, rows[:1], final[:1]))
    states = first.new_empty((len(rows), *first.shape[1:]))
    block = max(1, _BLOCK_BYTES // max(first.nbytes, 1))
    for start in range(0, len(rows), block):
        part = slice(start, start + block)
        states[part] = storage.pick_states(key, rows[part], final[part])
    return states


def _masks(storage: Any) -> Tensor:
    """Return the factors of the values of next states, [N]: the dataset's, such as a task's, or 1 - terminated."""
    has_masks = NEXT_MASK in storage.keys() and storage.schema[NEXT_MASK].shape == (1,)  # noqa: SIM118 - not a dict
    masks: Tensor = storage.column(NEXT_MASK) if has_masks else ~storage.column(NEXT_TERMINATED)
    return masks[:, 0].float()


def _ends(storage: Any) -> Tensor:
    """Return the mask of the last row of each episode, [N]."""
    ends = torch.zeros(len(storage), dtype=torch.bool)
    ends[torch.from_numpy(storage.episodes.stops - 1)] = True
    return ends


def gather(arrays: Any, rows: Any) -> Any:
    """Return the given rows of arrays: a batch of a whole dataset that is in memory.

        >>> data = dataset.as_dict("corl", "torch", "cuda")
        >>> batch = gather(data, torch.randint(len(dataset), (256,), device="cuda"))

    A pure function without a Python loop over rows and without a decision on values, for programs that compile their
    whole step. The function runs in ``torch.compile(fullgraph=True)``, in a CUDA graph and in `jax.jit`.

    Args:
        arrays: Arrays of numpy, torch or jax, [N, ...] each, or a nested dict of arrays, as from `as_dict`.
        rows: Rows, integers [...] in [0, N), an array of the same library on the same device. A row that is out of range
            raises an error on the CPU. jax returns the nearest row instead.

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
    names = _names_below(storage, key)
    return {name: _column(storage, (*key, name)) for name in names} if names else storage.column(key)


def _names_below(storage: Any, key: Key) -> list[str]:
    below = (field for field in storage.keys() if field[: len(key)] == key and field != key)  # noqa: SIM118 - a storage is not a dict
    return list(dict.fromkeys(field[len(key)] for field in below))


def _mapped(value: Any, function: Callable[[Tensor], Any]) -> Any:
    """Apply a function to a tensor, or to all tensors of a nested dict."""
    if isinstance(value, dict):
        return {name: _mapped(part, function) for name, part in value.items()}
    return function(value)


def _floats(value: Any) -> Any:
    return _mapped(value, lambda part: part.float() if part.is_floating_point() else part)


def _numbers_of_actions(value: Tensor) -> Tensor:
    """Return discrete actions [N, 1] as [N], as OGBench has them: its agents take the logits of a batch [B]."""
    return value if value.is_floating_point() or value.ndim != 2 or value.shape[1] != 1 else value[:, 0]


def _clipped(value: Tensor) -> Tensor:
    return value.clamp(-_ACTION_LIMIT, _ACTION_LIMIT) if value.is_floating_point() else value


def _converter(framework: Framework, device: Any) -> Callable[[Tensor], Any]:
    """Return the function that converts a tensor in main memory."""
    if framework == "torch":
        return lambda value: value if device is None else value.to(device)
    if framework == "numpy":
        if device not in {None, "cpu"}:
            raise InvalidArgumentError(
                f"device is {device!r}, expected None, because arrays of numpy are in main memory"
            )
        return lambda value: value.numpy()
    with importing("jax", "jax", "as_dict(framework='jax')"):
        import jax

    target = jax.devices(device)[0] if isinstance(device, str) else device
    return lambda value: jax.device_put(np.ascontiguousarray(value.numpy()), target)
