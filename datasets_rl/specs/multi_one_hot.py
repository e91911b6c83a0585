"""Spec of concatenated one-hot vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from typing_extensions import override

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs._document import KINDS, Entry
from datasets_rl.specs._finite import FiniteSpec
from datasets_rl.specs._groups import concatenate_groups, pad_groups
from datasets_rl.specs._register import Register
from datasets_rl.specs.base import broadcast_shapes
from datasets_rl.specs.one_hot import OneHotDiscreteTensorSpec
from datasets_rl.specs.space import BoxList, CategoricalBox, Space

if TYPE_CHECKING:
    from datasets_rl.specs.multi_discrete import MultiDiscreteTensorSpec

__all__ = ["MultiOneHotDiscreteTensorSpec"]


class MultiOneHotDiscreteTensorSpec(OneHotDiscreteTensorSpec):
    """Spec of several categorical variables, encoded as one-hot vectors that are concatenated along the last axis.

    Args:
        nvec: Number of categories of each variable, each at least 1.
        shape: Shape of every tensor of the set, [..., sum(nvec)]; [sum(nvec)] by default.
        device: Device of the tensors that the spec creates; torch's default device by default.
        dtype: Dtype of every tensor of the set.
        use_register: Whether `encode` accepts arbitrary integers, see `OneHotDiscreteTensorSpec`; each variable has a
            separate register.
        mask: Which categories are allowed, bool, expandable to the shape; `None` allows all.

    Raises:
        InvalidArgumentError: If an entry of `nvec` is below 1, or the shape or the mask does not fit.
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
            raise InvalidArgumentError(f"nvec is {list(self.nvec)}; expected integers >= 1")
        self._register = Register([{} for _ in self.nvec]) if use_register else None
        self._initialize(sum(self.nvec), shape, device, dtype, mask)

    @property
    @override
    def space(self) -> Space:
        return BoxList([CategoricalBox(count) for count in self.nvec])

    @property
    def _sizes(self) -> int | Tensor:
        return torch.tensor(self.nvec, device=self.device)

    @property
    def _index_shape(self) -> torch.Size:
        return torch.Size((*self.shape[:-1], len(self.nvec)))

    @property
    def _allowed(self) -> Tensor | None:
        return None if self._mask is None else self._rows(self._mask)

    def _groups(self) -> list[int]:
        return list(self.nvec)

    def _rows(self, value: Tensor) -> Tensor:
        return pad_groups(value, torch.tensor(self.nvec, device=value.device))

    def _from_index(self, index: Tensor) -> Tensor:
        rows = torch.nn.functional.one_hot(index, max(self.nvec)).to(self.dtype)
        return concatenate_groups(rows, torch.tensor(self.nvec, device=index.device))

    def _inside(self, value: Tensor) -> Tensor | None:
        inside = super()._inside(value)
        return None if inside is None else inside.all(-1)

    def _bound(self, place: tuple[int, ...]) -> str:
        del place
        bound = f"concatenated one-hot vectors of sizes {list(self.nvec)}"
        return bound if self.mask is None else f"{bound} with each 1 where the mask allows it"

    def _expected_values(self) -> str:
        return f"non-negative integers below {list(self.nvec)}"

    def index(self, index: Tensor, tensor_to_index: Tensor) -> Tensor:
        """Select the entries of the last axis of a tensor at the positions of the ones.

        Args:
            index: A member of the set, [*B, *shape].
            tensor_to_index: Tensor [..., sum(nvec)] that broadcasts to the shape of `index`.

        Returns:
            The selected entries, one for each variable along the last axis.
        """
        chosen, rows = self.to_categorical(index), self._rows(tensor_to_index)
        lead = broadcast_shapes(chosen.shape, rows.shape[:-1])
        return rows.expand(*lead, -1).gather(-1, chosen.expand(lead).unsqueeze(-1)).squeeze(-1)

    @override
    def to_categorical_spec(self) -> MultiDiscreteTensorSpec:
        categorical: Any = KINDS["multi_discrete"]  # its module imports this one
        spec: MultiDiscreteTensorSpec = categorical(self.nvec, self._index_shape, self.device, mask=self.mask)
        return spec

    @override
    def to_json(self) -> dict[str, Any]:
        return {**FiniteSpec.to_json(self), "nvec": list(self.nvec), **self._register_json()}

    @classmethod
    @override
    def read(cls, entry: Entry) -> MultiOneHotDiscreteTensorSpec | None:
        shape, dtype, nvec, mask = entry.shape(), entry.dtype(), entry.integers("nvec", 1), cls._read_mask(entry)
        return cls(nvec, shape, dtype=dtype, mask=mask)._read_register(entry) if entry.valid else None  # noqa: SLF001  # same class

    def _repr_arguments(self) -> list[str]:
        return [f"nvec={list(self.nvec)}", *([] if self.mask is None else ["masked"])]
