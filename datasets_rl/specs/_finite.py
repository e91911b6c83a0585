"""What the specs of categories have in common, whether a category is a number or a one among zeros."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

import torch
from torch import Generator, Tensor

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs import _categories
from datasets_rl.specs._document import Entry, compact
from datasets_rl.specs.base import Lead, LeafSpec, Move, sizes

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["FiniteSpec"]


class FiniteSpec(LeafSpec):
    """Places that each hold one of n categories, some of which may be masked.

    A kind says how the index of a category is written as a value, and how its mask is laid out.
    """

    domain = "discrete"
    _mask: Tensor | None = None
    """In a layout whose leading axes are those of the shape, so that it moves as they do."""
    _grouped: bool = False
    """Whether the last axis of the places is one outcome, so that each combination is another."""

    # --- what a kind says

    @property
    @abstractmethod
    def _sizes(self) -> int | Tensor:
        """How many categories each place has."""

    @property
    def _places(self) -> torch.Size:
        """The shape of the indices of the categories."""
        return self.shape

    @property
    def _allowed(self) -> Tensor | None:
        """Which categories each place allows, [*places, N]."""
        return self._mask

    @abstractmethod
    def _groups(self) -> list[int]:
        """Return how many categories each entry of an outcome has.

        Raises:
            InvalidArgumentError: If that differs from place to place.
        """

    @abstractmethod
    def _mask_from(self, mask: Tensor) -> Tensor:
        """Bring a mask into the layout in which it moves.

        Raises:
            RuntimeError: If it has another shape.
        """

    # --- the mask

    @property
    def mask(self) -> Tensor | None:
        """Which categories may be taken; None allows all. Set it with `update_mask`."""
        return self._mask

    def update_mask(self, mask: Any) -> None:
        """Say which categories may be taken.

        Args:
            mask: True for each that may, of a shape that can be expanded to that of the one-hot tensors; None allows
                all.

        Raises:
            InvalidArgumentError: If it is no mask, or of another shape; nothing has changed then.
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
        """Write categories as a value."""

    def rand(self, shape: Lead = None, *, generator: Generator | None = None) -> Tensor:
        """Draw each category that is allowed with the same chance.

        Raises:
            InvalidArgumentError: If the mask allows none.
        """
        shape = (*sizes(shape), *self._places)
        return self._from_index(_categories.draw(self._sizes, self._allowed, shape, self.device, generator))

    def cardinality(self) -> int:
        """Return how many outcomes there are at a place, masked ones too; leading axes repeat them."""
        count = 1
        for size in self._groups():
            count *= size
        return count

    def enumerate(self, use_mask: bool = False) -> Tensor:
        """Return all outcomes, along a new first axis; each is repeated along the leading axes.

        Args:
            use_mask: Whether to leave out those that are masked.

        Raises:
            InvalidArgumentError: If they differ along the leading axes.
        """
        choices = [torch.arange(size, device=self.device) for size in self._groups()]
        if use_mask and self._allowed is not None:
            allowed = self._allowed.reshape(-1, len(choices), self._allowed.shape[-1])
            if bool((allowed != allowed[:1]).any()):
                raise InvalidArgumentError(
                    f"the mask of {self._named()} differs from place to place: no outcome is for all"
                )
            choices = [choice[kept[: len(choice)]] for choice, kept in zip(choices, allowed[0], strict=True)]
        outcomes = torch.cartesian_prod(*choices).reshape(-1, len(choices))
        last = outcomes.shape[1:] if self._grouped and self._places else ()
        ones = (1,) * (len(self._places) - len(last))
        return self._from_index(outcomes.reshape(-1, *ones, *last).expand(-1, *self._places))

    def _nearest(self, value: Tensor) -> Tensor:
        index = _categories.nearest(self._index_near(value), self._sizes, self._allowed)
        return self._from_index(index)

    @abstractmethod
    def _index_near(self, value: Tensor) -> Tensor:
        """Return whole numbers near the categories that a value stands for."""

    # --- shapes and documents

    def moved(self, move: Move) -> Self:
        """Do to the spec what `move` does to tensors of its shape; the mask moves along."""
        mask = self._mask
        return self._changed(_shape=self._moved_shape(move), _mask=None if mask is None else move(mask))

    def to_json(self) -> dict[str, Any]:
        """Describe the spec as JSON that `from_json` reads; everything but the device is in it."""
        masked = {} if self.mask is None else {"mask": compact(self.mask)}
        return {**self._frame(), **masked}

    @staticmethod
    def _read_mask(entry: Entry) -> Tensor | None:
        return entry.tensor("mask", torch.bool) if entry.has("mask") else None
