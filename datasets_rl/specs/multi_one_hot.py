"""Several ones, each among zeros of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs._document import KINDS, Entry
from datasets_rl.specs._finite import FiniteSpec
from datasets_rl.specs._groups import gathered, spread
from datasets_rl.specs._register import Register
from datasets_rl.specs.base import together
from datasets_rl.specs.one_hot import OneHotDiscreteTensorSpec
from datasets_rl.specs.space import BoxList, CategoricalBox, Space

if TYPE_CHECKING:
    from datasets_rl.specs.multi_discrete import MultiDiscreteTensorSpec

__all__ = ["MultiOneHotDiscreteTensorSpec"]


class MultiOneHotDiscreteTensorSpec(OneHotDiscreteTensorSpec):
    """Several values, each written as a one among zeros, side by side along the last axis.

    Args:
        nvec: How many values there are of each, at least 1.
        shape: Of every tensor of the set, the last size sum(nvec); [sum(nvec)] by default.
        device: Of the tensors that are made.
        dtype: Of every tensor of the set.
        use_register: Whether `encode` takes any whole numbers, see `OneHotDiscreteTensorSpec`; each group counts its own.
        mask: Which values may be taken, bool, expandable to the shape.

    Raises:
        InvalidArgumentError: If a number of values is below 1, or the shape or the mask does not fit.
    """

    kind = "multi_one_hot"
    _grouped = True

    def __init__(
        self,
        nvec: Sequence[int],
        shape: Sequence[int] | int | None = None,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype = torch.bool,
        use_register: bool = False,
        mask: Any = None,
    ) -> None:
        self.nvec = tuple(int(count) for count in nvec)
        if not self.nvec or min(self.nvec) < 1:
            raise InvalidArgumentError(f"nvec is {list(self.nvec)}; expected numbers from 1")
        self._register = Register([{} for _ in self.nvec]) if use_register else None
        self._begin(sum(self.nvec), shape, device, dtype, mask)

    @property
    def space(self) -> Space:
        """How many values there are of each."""
        return BoxList([CategoricalBox(count) for count in self.nvec])

    @property
    def _sizes(self) -> int | Tensor:
        return torch.tensor(self.nvec, device=self.device)

    @property
    def _places(self) -> torch.Size:
        return torch.Size((*self.shape[:-1], len(self.nvec)))

    @property
    def _allowed(self) -> Tensor | None:
        return None if self._mask is None else self._rows(self._mask)

    def _groups(self) -> list[int]:
        return list(self.nvec)

    def _rows(self, value: Tensor) -> Tensor:
        return spread(value, torch.tensor(self.nvec, device=value.device))

    def _from_index(self, index: Tensor) -> Tensor:
        rows = torch.nn.functional.one_hot(index, max(self.nvec)).to(self.dtype)
        return gathered(rows, torch.tensor(self.nvec, device=index.device))

    def _inside(self, value: Tensor) -> Tensor | None:
        inside = super()._inside(value)
        return None if inside is None else inside.all(-1)

    def _bound(self, place: tuple[int, ...]) -> str:
        del place
        bound = f"one 1 and else 0 in each group of {list(self.nvec)}"
        return bound if self.mask is None else f"{bound}, where the mask allows it"

    def _expected_values(self) -> str:
        return f"whole numbers below {list(self.nvec)}"

    def index(self, index: Tensor, tensor_to_index: Tensor) -> Tensor:
        """Take from the last axis of a tensor what the ones choose.

        Args:
            index: A member of the set, [*B, *shape].
            tensor_to_index: [..., sum(nvec)], which broadcasts to the shape of `index`.

        Returns:
            What was chosen, one entry for each group in the last axis.
        """
        chosen, rows = self.to_categorical(index), self._rows(tensor_to_index)
        lead = together(chosen.shape, rows.shape[:-1])
        return rows.expand(*lead, -1).gather(-1, chosen.expand(lead).unsqueeze(-1)).squeeze(-1)

    def to_categorical_spec(self) -> MultiDiscreteTensorSpec:
        """Return the spec of what `to_categorical` returns, with the same mask."""
        categorical: Any = KINDS["multi_discrete"]  # which is written in terms of this one
        spec: MultiDiscreteTensorSpec = categorical(self.nvec, self._places, self.device, mask=self.mask)
        return spec

    def to_json(self) -> dict[str, Any]:
        """Describe the spec as JSON that `from_json` reads; everything but the device is in it."""
        return {**FiniteSpec.to_json(self), "nvec": list(self.nvec), **self._registered()}

    @classmethod
    def read(cls, entry: Entry) -> MultiOneHotDiscreteTensorSpec | None:
        """Read a spec of this kind."""
        shape, dtype, nvec, mask = entry.shape(), entry.dtype(), entry.wholes("nvec", 1), cls._read_mask(entry)
        return cls(nvec, shape, dtype=dtype, mask=mask)._take_register(entry) if entry.sound else None  # noqa: SLF001  # its own

    def _facts(self) -> list[str]:
        return [f"nvec={list(self.nvec)}", *([] if self.mask is None else ["masked"])]
