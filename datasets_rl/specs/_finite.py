"""Base class of the categorical specs, whether a category is encoded as an integer or as a one-hot vector."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Generator, Tensor
from typing_extensions import Self, override

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs import _categories
from datasets_rl.specs._document import Entry, compact_values
from datasets_rl.specs.base import Lead, LeafSpec, Rearrange, created_shape, parse_shape, resized_tensor

__all__ = ["FiniteSpec"]


class FiniteSpec(LeafSpec):
    """Base class of specs in which each element is one of n categories; a mask may exclude categories.

    A subclass defines the encoding of a category index as a value, and the layout of the mask.
    """

    domain = "discrete"
    _mask: Tensor | None = None
    """Mask whose leading axes are the axes of the spec, so that shape operations of the spec apply to it."""
    _grouped: bool = False
    """Whether the last axis of the indices forms one outcome, so that the outcomes are all combinations along it."""

    # --- defined by subclasses

    @property
    @abstractmethod
    def _sizes(self) -> int | Tensor:
        """Number of categories of each element."""

    @property
    def _index_shape(self) -> torch.Size:
        """Shape of the tensor of category indices."""
        return self.shape

    @property
    def _allowed(self) -> Tensor | None:
        """Which categories each element may have, bool [*_index_shape, N]; `None` for all."""
        return self._mask

    @abstractmethod
    def _groups(self) -> list[int]:
        """Return the number of categories of each entry of an outcome.

        Raises:
            InvalidArgumentError: If the numbers differ between elements.
        """

    @abstractmethod
    def _mask_from(self, mask: Tensor) -> Tensor:
        """Convert a mask to the layout of `_mask`.

        Raises:
            RuntimeError: If the shape of the mask does not fit.
        """

    # --- the mask

    @property
    def mask(self) -> Tensor | None:
        """Which categories are allowed, bool; `None` allows all. Set it with `update_mask`."""
        return self._mask

    def update_mask(self, mask: Any) -> None:
        """Set which categories are allowed.

        Args:
            mask: Bool, True for each allowed category, expandable to the shape of the one-hot encoding; `None` allows
                all.

        Raises:
            InvalidArgumentError: If the dtype of the mask is not bool, or its shape does not fit. The spec is unchanged
                then.
        """
        if mask is None:
            self._mask = None
            return
        mask = torch.as_tensor(mask, device=self.device)
        if mask.dtype != torch.bool:
            raise InvalidArgumentError(f"the mask has dtype {mask.dtype}; expected torch.bool")
        try:
            self._mask = self._mask_from(mask)
        except RuntimeError as error:
            raise InvalidArgumentError(
                f"a mask of shape {list(mask.shape)} does not fit {self._named()}: {error}"
            ) from None

    # --- the set

    @abstractmethod
    def _from_index(self, index: Tensor) -> Tensor:
        """Encode category indices [..., *_index_shape] as a value of the spec."""

    def rand(self, shape: Lead = None, *, generator: Generator | None = None) -> Tensor:
        """Draw uniformly from the allowed categories.

        Args:
            shape: Extra leading axes; every element along them is drawn independently.
            generator: Source of randomness; torch's global generator by default.

        Raises:
            InvalidArgumentError: If the mask allows no category for an element.
        """
        shape = (*parse_shape(shape), *created_shape(self._index_shape))
        return self._from_index(_categories.draw_categories(self._sizes, self._allowed, shape, self.device, generator))

    def cardinality(self) -> int:
        """Return the number of outcomes of one element, including masked ones; leading axes do not multiply it."""
        count = 1
        for size in self._groups():
            count *= size
        return count

    def enumerate(self, use_mask: bool = False) -> Tensor:
        """Return all outcomes, stacked along a new first axis; each is repeated along the leading axes.

        Args:
            use_mask: Whether to leave out the masked outcomes.

        Raises:
            InvalidArgumentError: If the outcomes differ along the leading axes.
        """
        choices = [torch.arange(size, device=self.device) for size in self._groups()]
        if use_mask and self._allowed is not None:
            allowed = self._allowed.reshape(-1, len(choices), self._allowed.shape[-1])
            if bool((allowed != allowed[:1]).any()):
                raise InvalidArgumentError(
                    f"the outcomes of {self._named()} cannot be enumerated: its mask differs along the leading axes",
                    hint="`unbind` it first",
                )
            choices = [choice[mask[: len(choice)]] for choice, mask in zip(choices, allowed[0], strict=True)]
        outcomes = torch.cartesian_prod(*choices).reshape(-1, len(choices))
        sizes = created_shape(self._index_shape)
        last = outcomes.shape[1:] if self._grouped and sizes else ()
        ones = (1,) * (len(sizes) - len(last))
        return self._from_index(outcomes.reshape(-1, *ones, *last).expand(-1, *sizes))

    def _nearest(self, value: Tensor) -> Tensor:
        index = _categories.nearest_allowed(self._index_near(value), self._sizes, self._allowed)
        return self._from_index(index)

    @abstractmethod
    def _index_near(self, value: Tensor) -> Tensor:
        """Return the category indices nearest to a value, int64; they may be out of range."""

    # --- shapes and JSON

    @override
    def rearranged(self, rearrange: Rearrange) -> Self:
        mask = self._mask
        return self._changed(
            _shape=self._rearranged_shape(rearrange),
            _mask=None if mask is None else self._moved_tensor(rearrange, mask),
        )

    @override
    def _resized(self, shape: torch.Size) -> Self:
        mask = self._mask
        if mask is not None:
            mask = resized_tensor(mask, torch.Size((*shape, *mask.shape[self.ndim :])))
        return self._changed(_shape=shape, _mask=mask)

    @override
    def to_json(self) -> dict[str, Any]:
        masked = {} if self.mask is None else {"mask": compact_values(self.mask)}
        return {**self._frame(), **masked}

    @staticmethod
    def _read_mask(entry: Entry) -> Tensor | None:
        return entry.tensor("mask", torch.bool) if entry.has("mask") else None
