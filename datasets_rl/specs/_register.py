"""Which category a number has that is none: the order in which numbers were met."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from datasets_rl.errors import InvalidArgumentError

__all__ = ["Register", "read_register"]


@dataclass
class Register:
    """The numbers that were met, by groups; those of a group are counted from 0, the first one first.

    Specs are the same whatever their registers have met.
    """

    groups: list[dict[int, int]] = field(compare=False)

    def numbered(self, values: Tensor, sizes: Sequence[int]) -> Tensor:
        """Return the categories of numbers [..., G], int64 of the same shape; new numbers get the next ones.

        Raises:
            InvalidArgumentError: If a group has more numbers than categories; nothing was registered then.
        """
        columns, grown = values.reshape(-1, len(self.groups)).T.tolist(), []
        for seen, met, size in zip(self.groups, columns, sizes, strict=True):
            new = [value for value in dict.fromkeys(met) if value not in seen]
            if len(seen) + len(new) > size:
                raise InvalidArgumentError(
                    f"{new[size - len(seen)]} is one number too many: the register has {size} categories",
                    hint="make the spec with as many categories as there are numbers",
                )
            grown.append(seen | {value: len(seen) + place for place, value in enumerate(new)})
        self.groups[:] = grown
        found = [[seen[value] for value in met] for seen, met in zip(grown, columns, strict=True)]
        return torch.tensor(found, dtype=torch.int64, device=values.device).T.reshape(values.shape)

    def values(self, categories: Tensor) -> Tensor:
        """Return the numbers that have these categories, [..., G]: what `numbered` was given.

        Raises:
            InvalidArgumentError: If no number has one of them yet.
        """
        columns, found = categories.reshape(-1, len(self.groups)).T.tolist(), []
        for seen, met in zip(self.groups, columns, strict=True):
            listed = list(seen)
            if met and max(met) >= len(listed):
                raise InvalidArgumentError(
                    f"category {max(met)} stands for no number: the register has met {len(listed)}",
                    hint="`encode` puts numbers into it",
                )
            found.append([listed[category] for category in met])
        return torch.tensor(found, dtype=torch.int64).T.reshape(categories.shape)

    def to_json(self) -> list[list[int]]:
        """Return the numbers of each group, in their order."""
        return [list(seen) for seen in self.groups]


def read_register(document: Any, sizes: Sequence[int]) -> Register | None:
    """Read what `Register.to_json` wrote; None if it is none of groups of these sizes."""
    if not isinstance(document, list) or len(document) != len(sizes):
        return None
    for met, size in zip(document, sizes, strict=True):
        whole = isinstance(met, list) and all(type(value) is int for value in met)
        if not whole or len(met) > size or len(set(met)) != len(met):
            return None
    return Register([{value: place for place, value in enumerate(met)} for met in document])
