"""Composition of transforms and functions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from tensordict import is_tensor_collection
from torch import Tensor, nn
from typing_extensions import override

from datasets_rl.errors import InvalidArgumentError, WrongTypeError
from datasets_rl.specs import CompositeSpec
from datasets_rl.ted.keys import Key
from datasets_rl.transforms.base import Transform, check_callable, update_specs_by_trial
from datasets_rl.transforms.gathered import add_gathered, own_reads


class Compose(Transform):
    """Sequence of transforms and plain functions, applied in order.

        >>> rb.append_transform(Compose(ToTensorImage(in_keys=["pixels"]), Resize(64, in_keys=["pixels"]),
        print_shapes)) >>> transform[0], transform[1:], len(transform)

    `inv` applies the inverse transforms from the last to the first, and skips functions without an `inv`.

    Args:
        *transforms: Functions of a batch that return a batch.

    Raises:
        InvalidArgumentError: If an argument is not callable.
    """

    transforms: nn.ModuleList

    def __init__(self, *transforms: Any, **keywords: Any) -> None:
        super().__init__()
        if "transforms" in keywords and not transforms:
            transforms = (list(keywords.pop("transforms")),)
        if keywords:
            raise WrongTypeError(
                f"Compose got unexpected arguments: {', '.join(keywords)}",
                hint="as in Compose(RewardScaling(0.0, 0.1), DoubleToFloat())",
            )
        listed = transforms[0] if len(transforms) == 1 and isinstance(transforms[0], list) else transforms
        self.transforms = _module_list(listed)

    def _replace(self, transforms: list[Any]) -> None:
        """Replace all transforms of the sequence."""
        self.transforms = _module_list(transforms)

    def append(self, transform: Any) -> Compose:
        """Append a transform, and return the sequence."""
        return self.insert(len(self), transform)

    def insert(self, index: int, transform: Any) -> Compose:
        """Insert a transform before an index, and return the sequence.

        Raises:
            InvalidArgumentError: If the transform is not callable, or the index is out of range.
        """
        transforms, count = list(self), len(self)
        if not -count <= index <= count:
            raise InvalidArgumentError(f"index is {index}, expected {-count} to {count}")
        transforms.insert(index, transform)
        self._replace(transforms)
        return self

    def pop(self, index: int | None = None) -> Any:
        """Remove the transform at an index, by default the last transform, and return the transform."""
        transforms = list(self)
        transform = transforms.pop(-1 if index is None else index)
        self._replace(transforms)
        return transform

    def __setitem__(self, index: Any, transform: Any) -> None:
        """Replace the transform at an index, or the transforms of a slice."""
        transforms = list(self)
        transforms[index] = transform
        self._replace(transforms)

    def __delitem__(self, index: int | slice) -> None:
        """Remove the transform at an index, or the transforms of a slice."""
        transforms = list(self)
        del transforms[index]
        self._replace(transforms)

    @override
    def clone(self) -> Compose:
        return Compose(*(item.clone() if isinstance(item, Transform) else item for item in self))

    @override
    def forward(self, data: Any) -> Any:  # type: ignore[override]  # a sequence has no entries with names
        return self.transform_batch(data.copy() if is_tensor_collection(data) else data)

    def transform_batch(self, batch: Any) -> Any:
        """Apply all transforms to a batch and return the result. The memory of its tensors must not be modified."""
        return apply_transforms(self.transforms, batch, is_own=True)

    def inv(self, data: Any) -> Any:
        """Apply the inverse transforms. Return `None`, for nothing to write, as soon as a transform does."""
        for transform in reversed(self.transforms):
            inverse = getattr(transform, "inv", None)
            if inverse is not None and data is not None:
                data = inverse(data)
        return data

    def gather(self, storage: Any, rows: Tensor, data: Any) -> Any:
        """Let each transform read other rows of the storage, see `add_gathered`."""
        return add_gathered(list(self.transforms), storage, rows, data)

    def own_reads(self, storage: Any) -> Collection[Key]:
        """Return the keys of a batch of a storage that the first transform alone reads and writes."""
        return own_reads(list(self.transforms), storage)

    def update_specs(self, spec: CompositeSpec) -> None:
        """Transform a spec in place with all transforms. Functions are applied to zeros to find the resulting spec."""
        for transform in self.transforms:
            if isinstance(transform, Transform):
                transform.bind(spec)
                transform.update_specs(spec)
            else:
                update_specs_by_trial(transform, spec)

    def __getitem__(self, index: int | slice) -> Any:
        """Return the transform at an index, or a `Compose` of the transforms in a slice."""
        return Compose(*list(self)[index]) if isinstance(index, slice) else _unwrapped(self.transforms[index])

    def __len__(self) -> int:
        return len(self.transforms)

    def __iter__(self) -> Iterator[Any]:
        return map(_unwrapped, self.transforms)

    def __repr__(self) -> str:
        return f"Compose({''.join(chr(10) + '    ' + repr(item).replace(chr(10), chr(10) + '    ') + ',' for item in self)})"


class _Function(Transform):
    """A plain function, or another callable, as a module of a `Compose`."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = check_callable(function)

    @override
    def forward(self, data: Any) -> Any:  # type: ignore[override]  # a function has no entries with names
        return self.function(data)

    @override
    def inv(self, data: Any) -> Any:
        inverse = getattr(self.function, "inv", None)
        return data if inverse is None else inverse(data)

    def gather(self, storage: Any, rows: Tensor, data: Any) -> Any:
        """Let the function read other rows of the storage, if it has a method `gather`."""
        return add_gathered([self.function], storage, rows, data)

    @override
    def update_specs(self, spec: CompositeSpec) -> None:
        update_specs_by_trial(self.function, spec)


def _module_list(transforms: Sequence[Any]) -> nn.ModuleList:
    return nn.ModuleList(item if isinstance(item, nn.Module) else _Function(item) for item in transforms)


def _unwrapped(module: nn.Module) -> Any:
    return module.function if isinstance(module, _Function) else module


def apply_transforms(transforms: Iterable[Any], batch: Any, *, is_own: bool = False) -> Any:
    """Apply transforms and plain functions to a batch, in order.

    Args:
        transforms: Transforms and functions of a batch that return a batch.
        batch: The batch, a TensorDict or other data.
        is_own: Whether no other object uses the TensorDict, so that its entries may be replaced.

    Raises:
        InvalidArgumentError: If a function returns None.
    """
    for transform in transforms:
        in_place = (
            isinstance(transform, Transform)
            and type(transform).forward in {Transform.forward, Compose.forward}
            and not (transform._forward_hooks or transform._forward_pre_hooks)  # noqa: SLF001 - of torch
            # Functions accept values that are not TensorDicts. For such values, calling a transform raises the error.
            and is_tensor_collection(batch)
        )
        batch = transform.on_own(batch if is_own else transform.own(batch)) if in_place else transform(batch)
        # A function may keep what it returns.
        is_own = in_place
        if batch is None:
            raise InvalidArgumentError(
                f"the transform {_unwrapped(transform)!r} returned None", hint="return the batch from the transform"
            )
    return batch
