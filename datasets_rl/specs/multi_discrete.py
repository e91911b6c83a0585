"""Several numbers, each one of n of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs._document import Entry, compact
from datasets_rl.specs._finite import FiniteSpec
from datasets_rl.specs._groups import gathered, spread
from datasets_rl.specs.base import Lead, LeafSpec, Move, sizes
from datasets_rl.specs.discrete import DiscreteTensorSpec
from datasets_rl.specs.multi_one_hot import MultiOneHotDiscreteTensorSpec
from datasets_rl.specs.space import BoxList, CategoricalBox, Space

__all__ = ["MultiDiscreteTensorSpec"]


class MultiDiscreteTensorSpec(DiscreteTensorSpec):
    """Whole numbers in [0, nvec), place by place; an outcome is a vector along the last axis.

    Args:
        nvec: How many values each place has, at least 1; it may have several axes.
        shape: Of every tensor of the set, to which `nvec` is repeated; that of `nvec` by default.
        device: Of the tensors that are made.
        dtype: Of every tensor of the set.
        mask: Which values may be taken, bool, those of the places of the last axis one after the other: expandable to
            [*shape[:-1], sum(nvec)]. It wants an `nvec` that is the same along the leading axes.
        remove_singleton: Whether what is drawn has no last axis if the shape is [1], as in TorchRL: one number is drawn
            for `nvec` 5 or [5]. Members of such a spec may have that axis or not; `zero`, `one` and `enumerate` have it.

    Raises:
        InvalidArgumentError: If a number of values is below 1, or the shape or the mask does not fit.
    """

    kind = "multi_discrete"
    _grouped = True

    def __init__(
        self,
        nvec: Sequence[int] | Tensor | int,
        shape: Sequence[int] | int | None = None,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype = torch.int64,
        mask: Any = None,
        remove_singleton: bool = True,
    ) -> None:
        self.remove_singleton = remove_singleton
        counts = torch.as_tensor(nvec, dtype=torch.int64)
        counts = counts.reshape(1) if shape is None and not counts.ndim else counts
        LeafSpec.__init__(self, counts.shape if shape is None else sizes(shape), device, dtype)
        if bool((counts < 1).any()):
            raise InvalidArgumentError(f"nvec is {counts.tolist()}; expected numbers from 1")
        if counts.shape[-1:] != self.shape[-1:]:
            raise InvalidArgumentError(
                f"nvec has {counts.shape[-1:].numel()} entries; expected one for each of the last axis of {list(self.shape)}"
            )
        try:
            self.nvec = counts.to(self.device).expand(self.shape)
        except RuntimeError as error:
            raise InvalidArgumentError(
                f"nvec of shape {list(counts.shape)} does not fit {list(self.shape)}: {error}"
            ) from None
        self.update_mask(mask)

    def _wide(self, value: Any) -> Any:
        """Return a value with the last axis that it may lack."""
        lacks = self.remove_singleton and self.shape == (1,) and isinstance(value, Tensor)
        return value.unsqueeze(-1) if lacks and not self._suits(value.shape) else value

    def rand(self, shape: Lead = None, *, generator: Generator | None = None) -> Tensor:
        """Draw a tensor of shape [*shape, *self.shape]; [*shape] if a last axis of size 1 is removed."""
        drawn = super().rand(shape, generator=generator)
        return drawn.squeeze(-1) if self.remove_singleton and self.shape == (1,) else drawn

    def is_in(self, value: Any) -> bool:
        """Say whether a tensor, which may have further leading axes, is in the set: shape, dtype and numbers."""
        return super().is_in(self._wide(value))

    def misfits(self, value: Any, place: str = "value") -> list[str]:
        """Say why a value is not in the set: its type, shape, dtype, or the first number and how many more."""
        return super().misfits(self._wide(value), place)

    def encode(self, val: Any, *, ignore_device: bool = False) -> Tensor:
        """Turn numbers, lists and arrays into a tensor of the spec's shape, dtype and device."""
        tensor = self._as_tensor(val, self.dtype, ignore_device=ignore_device)
        return super().encode(self._wide(tensor), ignore_device=ignore_device)

    def project(self, value: Any) -> Tensor:
        """Return the nearest member of the set, of the shape of the value; the value itself if it is one.

        Raises:
            InvalidArgumentError: If it is no tensor, or has another shape.
        """
        if self.is_in(value):
            given: Tensor = value
            return given
        nearest = super().project(self._wide(value))
        return nearest.reshape(value.shape)

    @property
    def space(self) -> Space:
        """How many values each place has."""
        return _boxes(self.nvec.tolist())

    @property
    def _sizes(self) -> int | Tensor:
        return self.nvec

    @property
    def widths(self) -> Tensor:
        """How many values each place of the last axis has, int64.

        Raises:
            InvalidArgumentError: If that differs along the leading axes.
        """
        rows = self.nvec.reshape(-1, *self.shape[-1:]) if self.ndim else self.nvec.reshape(1, 1)
        if not len(rows) or bool((rows != rows[:1]).any()):
            raise InvalidArgumentError(
                f"nvec of {self._named()} differs along the leading axes", hint="`unbind` it first"
            )
        return rows[0].reshape(-1)

    def _groups(self) -> list[int]:
        counts: list[int] = self.widths.tolist()
        return counts

    # The mask moves as [*shape, N], N the greatest number of values, False from nvec on; it is shown as it is given.

    @property
    def mask(self) -> Tensor | None:
        """Which values may be taken, [*shape[:-1], sum(nvec)]; None allows all. Set it with `update_mask`."""
        return None if self._mask is None else gathered(self._mask if self.ndim else self._mask[None], self.widths)

    def _mask_from(self, mask: Tensor) -> Tensor:
        widths = self.widths
        mask = spread(mask.expand(*self.shape[:-1], int(widths.sum())), widths)
        return mask if self.ndim else mask[0]

    def _size_at(self, place: tuple[int, ...]) -> int:
        return int(self.nvec[place])

    def index(self, index: Tensor, tensor_to_index: Tensor) -> Tensor:
        """Take from the last axis of a tensor what the values choose.

        Args:
            index: A member of the set, [*B, *shape].
            tensor_to_index: Entries for the values of all places of the last axis, one after the other: [..., sum(nvec)].

        Returns:
            What was chosen, of the shape of `index`.
        """
        given, index = index.shape, self._wide(index)
        index = index.long() + (self.widths.cumsum(0) - self.widths)
        chosen = tensor_to_index.gather(-1, index.expand(*tensor_to_index.shape[:-1], -1))
        return chosen if index.shape == given else chosen.squeeze(-1)

    def to_one_hot(self, val: Tensor, safe: bool | None = None) -> Tensor:
        """Write values as ones among zeros, bool [*B, *shape[:-1], sum(nvec)].

        Args:
            val: A member of the set, [*B, *shape].
            safe: Whether to refuse it if it is not one; not by default.

        Raises:
            InvalidArgumentError: If `nvec` differs along the leading axes.
        """
        if safe:
            self.assert_is_in(val)
        widths, val = self.widths, self._wide(val)
        return gathered(torch.nn.functional.one_hot(val.long(), int(widths.max())).bool(), widths)

    def to_one_hot_spec(self) -> MultiOneHotDiscreteTensorSpec:
        """Return the spec of what `to_one_hot` returns, with the same mask."""
        widths = self.widths.tolist()
        return MultiOneHotDiscreteTensorSpec(widths, (*self.shape[:-1], sum(widths)), self.device, mask=self.mask)

    def moved(self, move: Move) -> MultiDiscreteTensorSpec:
        """Do to the spec what `move` does to tensors of its shape; `nvec` and the mask move along."""
        spec = super().moved(move)
        spec.nvec = move(self.nvec)
        return spec

    def __eq__(self, other: object) -> bool:
        if isinstance(other, MultiDiscreteTensorSpec):
            other = other._changed(remove_singleton=self.remove_singleton)  # does not count, as in TorchRL
        return super().__eq__(other)

    __hash__ = DiscreteTensorSpec.__hash__

    def to_json(self) -> dict[str, Any]:
        """Describe the spec as JSON that `from_json` reads; everything but the device is in it."""
        document = {**FiniteSpec.to_json(self), "nvec": compact(self.nvec)}
        return document if self.remove_singleton else {**document, "remove_singleton": False}

    @classmethod
    def read(cls, entry: Entry) -> MultiDiscreteTensorSpec | None:
        """Read a spec of this kind."""
        shape, dtype = entry.shape(), entry.dtype()
        nvec, mask = entry.tensor("nvec", torch.int64), cls._read_mask(entry)
        remove = entry.field("remove_singleton", lambda value: isinstance(value, bool), "true or false", True)
        if nvec is None or not entry.sound:
            return None
        if nvec.shape[-1:] in {(), (1,)}:
            nvec = nvec.expand((*nvec.shape[:-1], *shape[-1:]))
        return cls(nvec, shape, dtype=dtype, mask=mask, remove_singleton=remove)

    def _facts(self) -> list[str]:
        return [f"nvec={self.nvec.tolist()}", *([] if self._mask is None else ["masked"])]


def _boxes(counts: Any) -> BoxList | CategoricalBox:
    return BoxList([_boxes(count) for count in counts]) if isinstance(counts, list) else CategoricalBox(counts)
