"""A storage of arbitrary objects."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from tensordict import is_tensor_collection
from torch import Tensor
from typing_extensions import override

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.format.checkpoint import check_start_method, raise_reasons
from datasets_rl.storages.base import Storage, device_of
from datasets_rl.storages.dataset import wrap_negative_rows
from datasets_rl.storages.items import decode_item, encode_item
from datasets_rl.storages.positions import Segment, counts_after_write, explicit_index, is_single_slot, written_slots


class ListStorage(Storage):
    """Arbitrary objects in a list.

    Several elements are passed as a list, tuple, range, array, tensor, TensorDict or any other sized iterable, but not
    as a dict.

        >>> from datasets_rl import ListStorage, ReplayBuffer
        >>> rb = ReplayBuffer(storage=ListStorage(100), collate_fn=list, batch_size=2)
        >>> rows = rb.extend(["pick", "place", "push"])
        >>> rb[:2]
        ['pick', 'place']

    Args:
        max_size: Maximum number of elements, unlimited if None.
        compilable: Accepted for compatibility with TorchRL. Has no effect.
        device: Device that tensors and TensorDicts are moved to when they are written. None leaves elements on their
            device.
    """

    def __init__(
        self, max_size: int | None = None, *, compilable: bool = False, device: torch.device | str | int | None = None
    ) -> None:
        del compilable
        super().__init__(sys.maxsize if max_size is None else max_size)
        self.device = None if device is None else device_of(device)
        self._items: list[Any] = []

    def __getstate__(self) -> dict[str, Any]:
        check_start_method(self, "the elements", "store tensors or TensorDicts in a LazyMemmapStorage")
        return self.__dict__.copy()

    def get(self, index: Any) -> Any:
        """Return the object at an integer index, or a list of objects.

        Raises:
            IndexError: If the index is out of range.
        """
        where = explicit_index(index, (len(self._items),))
        if isinstance(where, Tensor):
            return _select_items(self._items, wrap_negative_rows(where, len(self._items)).tolist())
        if len(where) != 1:
            raise IndexError(f"index {index!r} adds an axis, expected an index for the single axis of a ListStorage")
        return self._items[where[0]]

    def take(self, rows: Tensor) -> list[Any]:
        """Return the elements of these rows, int64 [B], as a list."""
        items: list[Any] = _select_items(self._items, wrap_negative_rows(rows, len(self._items)).tolist())
        return items

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        """Write objects into slots.

        Args:
            cursor: The slots, see `Storage.set`.
            data: An object, or n objects.
            set_cursor: Whether a write in ring order moves the write index. A list grows in either case.
        """
        single = is_single_slot(cursor)
        items = [data] if single else self._as_elements(data)
        goal = written_slots(cursor, len(items), filled=self.filled_count, slots=self.slot_count)
        numbers = (
            [(goal.first + offset) % self.slot_count for offset in range(goal.count)]
            if isinstance(goal, Segment)
            else goal.tolist()
        )
        moved = [*map(self._move_to_device, items)]
        self._items += [None] * (max(numbers, default=-1) + 1 - len(self._items))  # new slots come in any order
        for number, item in zip(numbers, moved, strict=True):
            self._items[number] = item
        held, written, rewritten = self._counted()
        after = counts_after_write((held, written, rewritten), goal, self.slot_count)
        self._count(*(after if set_cursor or after[0] > held else (held, written, rewritten + 1)))

    def _as_elements(self, data: Any) -> Sequence[Any]:
        if isinstance(data, (str, bytes, dict)) or not hasattr(data, "__iter__"):
            raise InvalidArgumentError(
                f"{type(data).__name__} does not hold several elements, expected a list, tuple, array, tensor or TensorDict",
                hint="pass a list of elements: a ListStorage does not split pytrees",
            )
        return list(data)

    @override
    def size_of(self, data: Any) -> int:
        return len(self._as_elements(data))

    def _move_to_device(self, item: Any) -> Any:
        movable = self.device is not None and (isinstance(item, Tensor) or is_tensor_collection(item))
        return item.to(self.device) if movable else item

    def state_dict(self) -> dict[str, Any]:
        """Return all elements: tensors, TensorDicts, JSON values, and dicts, lists and tuples of such values.

        Raises:
            InvalidArgumentError: If an element has another type.
        """
        if self._save_hooks:
            return self._hooked_state()
        items = [encode_item(item, f"element {number}") for number, item in enumerate(self._items)]
        return {"items": items, "slots": self.slot_count, "held": self.filled_count, "written": self.write_count}

    @override
    def state_problems(self, state_dict: dict[str, Any]) -> list[str]:
        if "hooked" in state_dict:
            return self._hooked_problems(state_dict)
        items = state_dict.get("items")
        counts: list[Any] = [state_dict.get(name) for name in ("held", "slots", "written")]
        if not isinstance(items, list) or any(type(count) is not int for count in counts):
            return [
                "the state is not the state of a list: expected `items` and the counts `held`, `slots` and `written`"
            ]
        held, slots, written = counts
        if held != len(items) or (written != held and not 0 < held == slots < written):
            return [
                f"the state has {len(items):,} items, but the counts are held {held}, slots {slots}, written {written}"
            ]
        if len(items) > self.slot_count:
            return [f"the state holds {len(items):,} elements, expected at most {self.slot_count:,}"]
        try:
            list(map(decode_item, items))
        except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
            return [f"an element cannot be read: {error}"]
        return []

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a state. A full list that is restored into a larger list starts with the oldest element."""
        if "hooked" in state_dict:
            self._load_hooked_state(state_dict)
            return
        raise_reasons(self.state_problems(state_dict))
        held, written = len(state_dict["items"]), state_dict["written"]
        if written > held and held != self.slot_count:
            state_dict = self.renumbered(state_dict, written % held, held)
            written = held
        self.empty()
        self._items = [self._move_to_device(decode_item(item)) for item in state_dict["items"]]
        self._count(held, written, self.rewrite_count)

    def renumbered(self, state_dict: dict[str, Any], shift: int, slots: int) -> dict[str, Any]:
        """Rotate a full list, so that the oldest element comes first."""
        del slots
        if "hooked" in state_dict:
            return self._renumbered_hooked_state(state_dict, shift)
        items = state_dict["items"]
        return {**state_dict, "items": items[shift:] + items[:shift], "written": len(items)}

    @override
    def empty(self) -> None:
        self._items.clear()
        self._count(0, 0, self.rewrite_count + 1)

    def __repr__(self) -> str:
        return f"ListStorage({len(self._items):,} elements)"


def _select_items(items: Sequence[Any], rows: Any) -> Any:
    return [_select_items(items, row) for row in rows] if isinstance(rows, list) else items[rows]
