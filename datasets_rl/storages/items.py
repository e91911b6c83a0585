"""Elements as trees that a state may contain: no object needs pickle."""

from __future__ import annotations

from typing import Any

from tensordict import MemoryMappedTensor, NonTensorData, NonTensorStack, TensorDict, TensorDictBase
from torch import Tensor

from datasets_rl.errors import InvalidArgumentError


def encode_item(item: Any, place: str) -> Any:  # noqa: PLR0911 - a return per kind of item
    """Convert an element to a tree that a state may contain."""
    if item is None or isinstance(item, (bool, int, float, str)) or type(item) is Tensor:
        return item
    if isinstance(item, MemoryMappedTensor):
        return item.as_subclass(Tensor)
    if isinstance(item, NonTensorStack):
        return {"stack": [encode_item(value, f"{place}[{number}]") for number, value in enumerate(item.unbind(0))]}
    if isinstance(item, TensorDictBase):
        fields = {name: encode_item(value, f"{place}.{name}") for name, value in item.items()}
        return {"tensordict": fields, "batch_size": list(item.batch_size)}
    if isinstance(item, NonTensorData):
        return {"object": encode_item(item.data, place), "batch_size": list(item.batch_size)}
    if type(item) is dict:
        return {
            "dict": [[encode_item(key, place), encode_item(value, f"{place}[{key!r}]")] for key, value in item.items()]
        }
    if type(item) in {list, tuple}:
        return {type(item).__name__: [encode_item(value, f"{place}[{number}]") for number, value in enumerate(item)]}
    raise InvalidArgumentError(
        f"{place} is of type {type(item).__qualname__}, which cannot be saved, expected a tensor, a TensorDict, a JSON "
        "value, or a dict, list or tuple of these"
    )


def decode_item(entry: Any) -> Any:  # noqa: PLR0911 - a return per kind of item
    """Invert `encode_item`. Tensors are copied."""
    if isinstance(entry, Tensor):
        return entry.clone()
    if not isinstance(entry, dict):
        return entry
    if "tensordict" in entry:
        fields = {name: decode_item(value) for name, value in entry["tensordict"].items()}
        return TensorDict(fields, batch_size=entry["batch_size"])
    if "object" in entry:
        return NonTensorData(decode_item(entry["object"]), batch_size=entry["batch_size"])
    if "stack" in entry:
        return NonTensorStack(*map(decode_item, entry["stack"]))
    ((kind, items),) = entry.items()
    if kind == "dict":
        return {decode_item(key): decode_item(value) for key, value in items}
    return {"list": list, "tuple": tuple}[kind](map(decode_item, items))
