"""Columns of LeRobot datasets as a TensorDict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import NestedKey, NonTensorStack, TensorDict, is_tensor_collection
from torch import Tensor

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.ted.keys import NEXT
from datasets_rl.vla.layout import ACTION_KEY, INSTRUCTION_KEY, STATE_KEY

_KEYS: dict[str, NestedKey] = {
    "action": ACTION_KEY,
    "observation.state": STATE_KEY,
    "episode_index": "episode",
    "frame_index": "frame",
    "task": INSTRUCTION_KEY,
}
_IMAGES = "observation.images."


def lerobot_columns_to_tensordict(
    columns: Mapping[str, Any], *, key_map: Mapping[str, NestedKey] | None = None
) -> TensorDict:
    """Convert the columns of a LeRobot dataset to a TensorDict of N steps in the layout of `validate_vla_tensordict`.

    ``observation.images.top`` gets the key ``("observation", "image", "top")``, ``task`` becomes
    ``language_instruction`` and ``episode_index`` ``episode``. Dots in other names separate nested keys. A column below
    ``next``, such as ``next.reward``, has shape [N, 1], as in TED.

    Args:
        columns: Columns by name: tensors or arrays [N, ...], lists of N texts or numbers, or other collections of
            tensors with batch size [N].
        key_map: Keys of columns that differ from these rules.

    Raises:
        InvalidArgumentError: If `columns` is empty, the columns have different lengths, or a column has texts and other
            values.
    """
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) != 1:
        raise InvalidArgumentError(
            f"the columns have the lengths {lengths}, expected columns of the same number of frames"
        )
    steps = TensorDict(batch_size=[next(iter(lengths.values()))])
    for name, column in columns.items():
        key = _key(name, {**_KEYS, **(key_map or {})})
        value = _value(name, column)
        below_next = isinstance(key, tuple) and key[0] == NEXT
        steps.set(key, value.unsqueeze(-1) if below_next and isinstance(value, Tensor) and value.ndim == 1 else value)
    return steps


def _key(name: str, keys: Mapping[str, NestedKey]) -> NestedKey:
    if name in keys:
        return keys[name]
    if name.startswith(_IMAGES):
        return ("observation", "image", name.removeprefix(_IMAGES))
    return tuple(name.split(".")) if "." in name else name


def _value(name: str, column: Any) -> Any:
    if isinstance(column, Tensor) or is_tensor_collection(column):
        return column
    texts = {isinstance(item, str) for item in column} if isinstance(column, (list, tuple)) else {False}
    if texts == {True}:
        return NonTensorStack.from_list(list(column))
    if True in texts:
        raise InvalidArgumentError(f"column {name!r} has texts and other values, expected values of the same type")
    return torch.as_tensor(column)
