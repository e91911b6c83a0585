"""Mapping of arbitrary integers to categories, numbered in the order of first appearance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs._document import SpecDocument


@dataclass
class Register:
    """Category of every registered value, by group: the first value of a group gets category 0, the next value 1.

    All registers compare equal, so that specs that differ only in registered values are equal.
    """

    groups: list[dict[int, int]] = field(compare=False)

    def numbered(self, values: Tensor, sizes: Sequence[int]) -> Tensor:
        """Return the categories of values [..., G], int64 of the same shape, after registering new values.

        Args:
            values: Integers [..., G], a column for each group.
            sizes: Number of categories of each group.

        Raises:
            InvalidArgumentError: If a group would have more values than categories. No value is registered.
        """
        columns, updated = values.reshape(-1, len(self.groups)).T.tolist(), []
        for group, column, size in zip(self.groups, columns, sizes, strict=True):
            new = [value for value in dict.fromkeys(column) if value not in group]
            if len(group) + len(new) > size:
                raise InvalidArgumentError(
                    f"value {new[size - len(group)]} cannot be registered: all {size} categories are in use",
                    hint="create the spec with as many categories as there are different values",
                )
            updated.append(group | {value: len(group) + number for number, value in enumerate(new)})
        self.groups[:] = updated
        categories = [[group[value] for value in column] for group, column in zip(updated, columns, strict=True)]
        return torch.tensor(categories, dtype=torch.int64, device=values.device).T.reshape(values.shape)

    def values(self, categories: Tensor) -> Tensor:
        """Return the values of categories [..., G], int64 of the same shape: the inverse of `numbered`.

        Raises:
            InvalidArgumentError: If a category has no value yet.
        """
        columns, values = categories.reshape(-1, len(self.groups)).T.tolist(), []
        for group, column in zip(self.groups, columns, strict=True):
            by_category = list(group)
            if column and max(column) >= len(by_category):
                raise InvalidArgumentError(
                    f"category {max(column)} has no value, and {len(by_category)} values are registered",
                    hint="`encode` registers values",
                )
            values.append([by_category[category] for category in column])
        return torch.tensor(values, dtype=torch.int64).T.reshape(categories.shape)

    def to_json(self) -> list[list[int]]:
        """Return the values of each group, ordered by category."""
        return [list(group) for group in self.groups]

    @classmethod
    def read(cls, document: SpecDocument, sizes: Sequence[int]) -> Register | None:
        """Read the output of `to_json`. Return `None` if the field `register` is missing or does not fit the sizes."""

        def valid(value: Any) -> bool:
            return value is None or (
                isinstance(value, list)
                and len(value) == len(sizes)
                and all(
                    isinstance(values, list)
                    and all(type(item) is int for item in values)
                    and len(set(values)) == len(values) <= size
                    for values, size in zip(value, sizes, strict=True)
                )
            )

        groups = document.field("register", valid, f"lists of distinct integers of lengths up to {list(sizes)}")
        if groups is None:
            return None
        return cls([{value: number for number, value in enumerate(group)} for group in groups])
