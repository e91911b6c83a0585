"""Base classes of the specs: a spec describes the set of tensors that an entry of a TensorDict may hold."""

from __future__ import annotations

import copy
import math
import operator
from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Generator, Tensor
from typing_extensions import Self, override

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs._document import KINDS, SpecDocument, dtype_name
from datasets_rl.specs._errors import AxisError, NotInSpecError, NotSupportedBySpecError, WrongDtypeError
from datasets_rl.specs._numbers import without_repeats
from datasets_rl.specs.space import BinaryBox, BoxList, CategoricalBox, ContinuousBox, Space

DEVICE_TYPING = torch.device | str | int
"""A device, its name, or the number of a GPU."""

Rearrange = Callable[[Any], Any]
"""A shape operation on a tensor, which changes the axes of the spec and leaves all later axes unchanged."""
_Function = TypeVar("_Function", bound=Callable[..., Any])
Lead = int | Sequence[int] | None
"""Extra leading axes of a tensor, or `None` for no extra axes."""


class _SpecType(ABCMeta):
    """Metaclass of the specs: `TensorSpec(...)` returns a spec of the class that fits the space."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Return an instance of the class, or for `TensorSpec` itself of the class that fits the space."""
        return _spec_of_space(*args, **kwargs) if cls is TensorSpec else super().__call__(*args, **kwargs)


class TensorSpec(metaclass=_SpecType):
    """Base class of all specs: a set of valid values.

    A spec has the shape of the valid tensors, and supports shape operations of tensors: reshaping, indexing and
    stacking. Every operation returns a new spec. Only the entries of a composite, the mask of categories and the shape
    can be set.

    A size of -1 in the shape stands for any number of elements: tensors of every size along this axis are in the set,
    and the tensors that the spec creates have size 1 along this axis.

    Calling this class returns a spec of the class that fits the space:

        ContinuousBox     numbers between bounds
        CategoricalBox    a category, or a one-hot vector if the dtype is bool and the last axis has n elements
        BinaryBox         zeros and ones
        BoxList           several categories, or concatenated one-hot vectors if the dtype is bool and the last axis has
                          an element for each category
        None              any number

        >>> from datasets_rl import Bounded
        >>> spec = Bounded(-1, 1, (2,))
        >>> spec.rand([8]).shape
        torch.Size([8, 2])

    Args:
        shape: Shape of every tensor of the set.
        space: The values that each element may have.
        device: Device of the tensors that the spec creates, by default torch's default device.
        dtype: Dtype of every tensor of the set, by default the dtype of the space.
        domain: "continuous" or "discrete", by default the domain of the dtype. Only numbers can have another domain.
    """

    domain: str = ""
    """"continuous" or "discrete"."""
    device: torch.device | None
    """Device of the tensors that `rand`, `zero` and `encode` return. Tensors on other devices may be in the set too."""

    kind: ClassVar[str] = ""
    """Identifier of the spec class in a JSON document."""
    torch_functions: ClassVar[dict[Any, Callable[..., Any]]] = {}
    """Implementations of torch functions for specs, by torch function."""

    @classmethod
    def implements_for_spec(cls, torch_function: Callable[..., Any]) -> Callable[[_Function], _Function]:
        """Return a decorator for the implementation of a torch function for specs, such as `torch.stack`."""

        def register(function: _Function) -> _Function:
            cls.torch_functions[torch_function] = function
            return function

        return register

    def __init_subclass__(cls) -> None:
        """Register the kind for `from_json`."""
        super().__init_subclass__()
        if cls.kind:
            KINDS[cls.kind] = cls

    def __init__(self, shape: Sequence[int] | int, device: torch.device | str | int | None) -> None:
        self._shape = _checked_shape(shape)
        self.device = None if device is None else as_device(device)

    @property
    def shape(self) -> torch.Size:
        """Shape of every tensor of the set, where -1 stands for any number of elements."""
        return self._shape

    @shape.setter
    def shape(self, shape: Sequence[int]) -> None:
        self.__dict__.update(self._resized(_checked_shape(shape)).__dict__)

    def _resized(self, shape: torch.Size) -> Self:
        """Return the spec with another shape."""
        raise InvalidArgumentError(
            f"the shape of {self._named()} cannot be set to {list(shape)}", hint="`expand` or `reshape` the spec"
        )

    def make_neg_dim(self, dim: int) -> None:
        """Set the size of an axis to -1, so that any number of elements is valid along the axis.

        Raises:
            AxisError: If there is no such axis.
            InvalidArgumentError: If the elements of the spec differ along the axis.
        """
        axis = self._axis(dim)
        self.shape = torch.Size([*self.shape[:axis], -1, *self.shape[axis + 1 :]])

    @property
    def ndim(self) -> int:
        """Number of axes of the shape."""
        return len(self.shape)

    def ndimension(self) -> int:
        """Return the number of axes of the shape."""
        return len(self.shape)

    def numel(self) -> int:
        """Return the number of elements of a tensor of the set."""
        return math.prod(self.shape)

    # --- the set

    def rand(self, shape: Lead = None, *, generator: Generator | None = None) -> Any:
        """Draw uniformly from the set.

        Args:
            shape: Extra leading axes. Every element along these axes is drawn independently.
            generator: Source of randomness, by default torch's global generator.
        """
        lead = parse_shape(shape)
        return self._filled(lambda spec: spec.rand(lead, generator=generator), lead)

    def zero(self, shape: Lead = None) -> Any:
        """Return zeros of shape `[*shape, *self.shape]`, regardless of whether 0 is in the set."""
        lead = parse_shape(shape)
        return self._filled(lambda spec: spec.zero(lead), lead)

    def one(self, shape: Lead = None) -> Any:
        """Return ones of shape `[*shape, *self.shape]`, regardless of whether 1 is in the set."""
        lead = parse_shape(shape)
        return self._filled(lambda spec: spec.one(lead), lead)

    def _filled(self, fill: Callable[[Any], Any], lead: torch.Size) -> Any:
        """Return a value with extra leading axes, composed of `fill(spec)` for each nested spec."""
        raise NotImplementedError

    def sample(self, shape: Lead = None, *, generator: Generator | None = None) -> Any:
        """Draw from the set, as `rand`."""
        return self.rand(shape, generator=generator)

    def zeros(self, shape: Lead = None) -> Any:
        """Return zeros, as `zero`."""
        return self.zero(shape)

    def ones(self, shape: Lead = None) -> Any:
        """Return ones, as `one`."""
        return self.one(shape)

    @abstractmethod
    def problems(self, value: Any, place: str = "value") -> list[str]:
        """Return the reasons why a value is not in the set, or an empty list for a value in the set.

        Args:
            value: Any object. A tensor may have extra leading axes.
            place: Name of the value in the reasons.
        """

    def is_in(self, value: Any) -> bool:
        """Return whether a value, which may have extra leading axes, is in the set."""
        return not self.problems(value)

    def contains(self, item: Any) -> bool:
        """Return whether a value is in the set, as `is_in`."""
        return self.is_in(item)

    def assert_is_in(self, value: Any) -> None:
        """Raise an error if a value is not in the set.

        Raises:
            NotInSpecError: An `AssertionError`, if the value is not in the set. For each leaf, the message shows the
                key, the first invalid element with its index, and the valid range.
        """
        reasons = self.problems(value)
        if reasons:
            raise NotInSpecError(f"not in the spec: {'; '.join(reasons)}", hint="`project` moves a value into the spec")

    def project(self, value: Any) -> Any:
        """Return the member of the set nearest to a value, or the value itself if the value is in the set.

        Unlike in TorchRL, the argument does not change.

        Raises:
            InvalidArgumentError: If the value has another shape than the spec.
        """
        return value if self.is_in(value) else self._projected(value)

    @abstractmethod
    def _projected(self, value: Any) -> Any:
        """Return the member of the set nearest to a value that is not in the set."""

    @abstractmethod
    def type_check(self, value: Any, key: Any = None) -> None:
        """Raise an error if a value has another dtype than the spec.

        Args:
            value: The value.
            key: Name of the value in the message, or for a composite, the key or keys to check.

        Raises:
            WrongDtypeError: A `TypeError`, if the dtype differs.
        """

    def cardinality(self) -> float:
        """Return the number of outcomes, including masked outcomes, or infinity if the outcomes cannot be enumerated."""
        return math.inf

    def enumerate(self, use_mask: bool = False) -> Any:
        """Return all outcomes, stacked along a new first axis.

        Args:
            use_mask: Whether to leave out the masked outcomes.

        Raises:
            InvalidArgumentError: If the outcomes cannot be enumerated, or differ between elements.
        """
        del use_mask
        raise NotSupportedBySpecError(f"the outcomes of {type(self).__name__} cannot be enumerated")

    def index(self, index: Tensor, tensor_to_index: Tensor) -> Tensor:
        """Select the entries of the last axis of a tensor that a member of the set refers to.

        Raises:
            InvalidArgumentError: If members of the set are not indices.
        """
        del index, tensor_to_index
        raise NotSupportedBySpecError(
            f"members of {type(self).__name__} cannot be used as indices",
            hint="only categorical and one-hot specs support `index`",
        )

    # --- conversion to and from Python and NumPy values

    @abstractmethod
    def encode(self, val: Any, *, ignore_device: bool = False) -> Any:
        """Convert numbers, lists and arrays to a tensor of the spec's shape, dtype and device.

        A tensor that already fits is returned unchanged, and a list with a single value stands for the value. `encode`
        does not check whether the result is in the set.

        Args:
            val: A value from an environment or a file, which may have extra leading axes.
            ignore_device: Whether to leave the tensor on its current device.

        Raises:
            InvalidArgumentError: If the value cannot be converted to the shape.
        """

    def to_numpy(self, val: Any, safe: bool | None = None) -> Any:
        """Convert a tensor to an array: the inverse of `encode`.

        Args:
            val: A member of the set.
            safe: Whether to raise an error if `val` is not in the set. False by default.
        """
        if safe:
            self.assert_is_in(val)
        return self._to_numpy(val)

    @abstractmethod
    def _to_numpy(self, val: Any) -> Any:
        """Convert a member of the set."""

    def memoize_encode(self, mode: bool = True) -> None:
        """Do nothing: `encode` has no intermediate results worth caching."""

    def memoize_cardinality(self, mode: bool = True) -> None:
        """Do nothing: `cardinality` is cheap."""

    def erase_memoize_cache(self) -> None:
        """Do nothing: this class has no cache."""

    # --- shapes

    @abstractmethod
    def rearranged(self, rearrange: Rearrange) -> Self:
        """Apply a shape operation to the spec. Every other shape operation is implemented with this method.

        Args:
            rearrange: Function on tensors, which changes the first `self.ndim` axes and leaves all later axes unchanged.
        """

    def _rearranged_shape(self, rearrange: Rearrange) -> torch.Size:
        try:
            moved: torch.Size = rearrange(meta_tensor(self.shape)).shape
        except (RuntimeError, TypeError) as error:
            raise InvalidArgumentError(f"{self._named()}: {error}") from None
        return torch.Size([-1 if _is_any(size) else size for size in moved])

    def expand(self, *shape: Any) -> Self:
        """Repeat along axes of size 1 and new leading axes.

        A new axis, or an axis of size 1, may get the size -1, which stands for any size. For other axes, the size -1 keeps
        the size.

        Raises:
            InvalidArgumentError: If an axis with another size than 1 would change.
        """
        ndim, new_shape = self.ndim, parse_shape(*shape)
        extra = len(new_shape) - ndim
        pairs = zip(new_shape[max(extra, 0) :], self.shape, strict=False)
        if extra < 0 or any(new not in {-1, old} and old != 1 for new, old in pairs):
            raise InvalidArgumentError(
                f"The last {ndim} of the expanded shape {list(new_shape)} do not fit {self._named()}, expected the "
                "same sizes, except for axes of size 1"
            )
        old_shape = (*(1,) * extra, *self.shape)
        sizes = [_ANY_SIZE if new == -1 and old == 1 else new for new, old in zip(new_shape, old_shape, strict=True)]
        return self.rearranged(lambda tensor: tensor.expand((*sizes, *tensor.shape[ndim:])))

    def squeeze(self, dim: int | None = None) -> Self:
        """Remove an axis of size 1, or all such axes."""
        dims = [axis for axis, size in enumerate(self._indexed_shape() if dim is None else self.shape) if size == 1]
        if dim is not None:
            dims = [axis for axis in dims if axis == self._axis(dim)]
        index = tuple(0 if axis in dims else slice(None) for axis in range(self.ndim))
        return self.rearranged(lambda tensor: tensor[index]) if dims else self

    def unsqueeze(self, dim: int) -> Self:
        """Insert an axis of size 1."""
        axis = self._axis(dim, self.ndim + 1)
        return self.rearranged(lambda tensor: tensor.unsqueeze(axis))

    def reshape(self, *shape: Any) -> Self:
        """Arrange the same elements in another shape, as `Tensor.reshape` does."""
        ndim, new_shape = self.ndim, parse_shape(*shape)
        try:
            new_shape = meta_tensor(self.shape).reshape(new_shape).shape
        except RuntimeError as error:
            raise InvalidArgumentError(f"{self._named()} cannot be reshaped to {list(new_shape)}: {error}") from None
        return self.rearranged(lambda tensor: tensor.reshape((*new_shape, *tensor.shape[ndim:])))

    def view(self, *shape: Any) -> Self:
        """Arrange the same elements in another shape, as `reshape`."""
        return self.reshape(*shape)

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Self:
        """Merge consecutive axes into a single axis, as `Tensor.flatten` does."""
        return self.reshape(meta_tensor(self.shape).flatten(start_dim, end_dim).shape)

    def unflatten(self, dim: int, sizes: Sequence[int]) -> Self:
        """Split an axis into several, as `Tensor.unflatten` does."""
        axis = self._axis(dim)
        return self.reshape([*self.shape[:axis], *sizes, *self.shape[axis + 1 :]])

    def unbind(self, dim: int = 0) -> tuple[Any, ...]:
        """Remove an axis and return a spec for each entry along the axis, as `Tensor.unbind` does."""
        axis = self._selectable_axis(dim)
        if self.shape[axis] == -1:
            raise InvalidArgumentError(f"{self._named()} cannot be unbound along axis {axis}, which has any size")

        def select(number: int) -> Rearrange:
            return lambda tensor: tensor[(*(slice(None),) * axis, number)]

        return tuple(self.rearranged(select(number)) for number in range(self.shape[axis]))

    def index_select(self, dim: int, index: Tensor) -> Self:
        """Select entries along an axis, as `torch.index_select` does."""
        axis = self._selectable_axis(dim)
        return self.rearranged(lambda tensor: tensor[(*(slice(None),) * axis, index)])

    def __getitem__(self, index: Any) -> Any:
        shape = self._indexed_shape()
        entries = without_ellipsis(index, len(shape))
        _check_slices(entries, shape)
        # Outside of `moved`, so that an index out of range raises IndexError, which ends iteration.
        _ = select(meta_tensor(shape), entries)
        return self.rearranged(lambda tensor: select(tensor, entries))

    def _indexed_shape(self) -> Sequence[int]:
        """Return the sizes of the axes that `__getitem__` can index."""
        return self.shape

    def _selectable_axis(self, dim: int) -> int:
        """Return the non-negative index of an axis along which entries can be selected."""
        return self._axis(dim)

    def _axis(self, dim: int, ndim: int | None = None) -> int:
        """Return the non-negative index of an axis."""
        ndim = self.ndim if ndim is None else ndim
        if not -ndim <= dim < ndim:
            raise AxisError(f"{self._named()} has no axis {dim}, expected one of {-ndim} to {ndim - 1}")
        return dim % ndim

    # --- copies

    @abstractmethod
    def to(self, dest: Any) -> Any:
        """Return a copy of the spec with another dtype or device."""

    def cpu(self) -> Any:
        """Return a copy of the spec on the CPU."""
        return self.to("cpu")

    def cuda(self, device: int | None = None) -> Any:
        """Return a copy of the spec on a GPU, by default the current GPU."""
        return self.to("cuda" if device is None else f"cuda:{device}")

    def clone(self) -> Self:
        """Return a deep copy."""
        return copy.deepcopy(self)

    def clear_device_(self) -> Self:
        """Return the spec itself: only a composite can have no device."""
        return self

    def _changed(self, **attributes: Any) -> Self:
        spec = copy.copy(self)
        spec.__dict__.update(attributes)
        return spec

    # --- JSON

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Describe the spec as JSON that `from_json` reads. The description omits the device."""

    @classmethod
    @abstractmethod
    def read(cls, document: SpecDocument) -> Self | None:
        """Read a spec from a JSON object. For an invalid object return `None`, and add the problems to `document`."""

    @staticmethod
    def from_json(document: Any, device: torch.device | str | int | None = None) -> Any:
        """Read a spec from the output of `to_json`. The document is untrusted, and every field is validated.

        Args:
            document: Parsed JSON.
            device: Device of the spec, by default torch's default device.

        Raises:
            InvalidArgumentError: If the document does not describe a spec. The message lists all problems.
        """
        problems: list[str] = []
        spec = SpecDocument(document, "spec", problems).spec()
        if problems or not isinstance(spec, TensorSpec):
            raise InvalidArgumentError(f"the document does not describe a spec: {'; '.join(problems)}")
        return spec if device is None else spec.to(device)

    # --- Python and torch protocols

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self) or other.__dict__.keys() != self.__dict__.keys():
            return False
        return all(are_equal(value, other.__dict__[name]) for name, value in self.__dict__.items())

    def __hash__(self) -> int:
        # Equal specs must have equal hashes, and hashes must be constant. The mask and the entries of a composite can
        # change, and are excluded.
        return hash((type(self), self.shape))

    def _named(self) -> str:
        return f"{type(self).__name__} of shape {list(self.shape)}"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Dispatch torch functions, such as `torch.stack`, to the implementations for specs."""
        handler = TensorSpec.torch_functions.get(func)
        if handler is None or not all(issubclass(kind, TensorSpec) for kind in types):
            return NotImplemented
        return handler(*args, **(kwargs or {}))


def _spec_method(name: str) -> Callable[..., Any]:
    return lambda spec, *args, **kwargs: getattr(spec, name)(*args, **kwargs)


TensorSpec.torch_functions |= {
    getattr(torch, name): _spec_method(name) for name in ("index_select", "squeeze", "unsqueeze")
}


class LeafSpec(TensorSpec):
    """Base class of the specs of single tensors.

    Args:
        shape: Shape of every tensor of the set.
        device: Device of the tensors that the spec creates, by default torch's default device.
        dtype: Dtype of every tensor of the set, by default torch's default dtype.
    """

    device: torch.device
    dtype: torch.dtype

    def __init__(
        self,
        shape: Sequence[int] | int,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(shape, torch.get_default_device() if device is None else device)
        self.dtype = dtype or torch.get_default_dtype()
        dtype_name(self.dtype)

    @property
    @abstractmethod
    def space(self) -> Space:
        """The values that each element of a tensor may have."""

    @abstractmethod
    def _inside(self, value: Tensor) -> Tensor | None:
        """Return which elements of a tensor of the right shape and dtype are valid, or `None` if all are valid.

        The result, bool, has the shape of the value. For one-hot vectors, the result has no last axis.
        """

    @abstractmethod
    def _nearest(self, value: Tensor) -> Tensor:
        """Return the member of the set nearest to a value of the right shape and of any dtype."""

    @abstractmethod
    def _bound(self, place: tuple[int, ...]) -> str:
        """Describe the valid values of the element at an index, such as "a number in [0, 1]"."""

    @override
    def is_in(self, value: Any) -> bool:
        if not isinstance(value, Tensor) or value.dtype != self.dtype or not self._suits(value.shape):
            return False
        inside = self._inside(value)
        return inside is None or bool(inside.all())

    @override
    def problems(self, value: Any, place: str = "value") -> list[str]:
        if not isinstance(value, Tensor):
            return [f"{place} is a {type(value).__name__}, expected a tensor"]
        reasons = []
        if not self._suits(value.shape):
            reasons.append(f"{place} has shape {list(value.shape)}, expected [..., {', '.join(map(str, self.shape))}]")
        if value.dtype != self.dtype:
            reasons.append(f"{place} has dtype {value.dtype}, expected {self.dtype}")
        inside = None if reasons else self._inside(value)
        if inside is not None and not bool(inside.all()):
            invalid = (~inside).nonzero()
            first = tuple(invalid[0].tolist())
            bound = self._bound(first[value.ndim - self.ndim :])
            more = f" (and {len(invalid) - 1} more of {inside.numel()})" if len(invalid) > 1 else ""
            index = f" at {list(first)}" if first else ""
            reasons.append(f"{place} is {value[first].tolist()}{index}{more}, expected {bound}")
        return reasons

    def _projected(self, value: Any) -> Tensor:
        if not isinstance(value, Tensor) or not self._suits(value.shape):
            hint = "`project` corrects elements, not types or shapes: `encode` the value first"
            raise InvalidArgumentError("; ".join(self.problems(value)), hint=hint)
        return self._nearest(value)

    @override
    def zero(self, shape: Lead = None) -> Tensor:
        return torch.zeros((*parse_shape(shape), *created_shape(self.shape)), dtype=self.dtype, device=self.device)

    @override
    def one(self, shape: Lead = None) -> Tensor:
        return torch.ones((*parse_shape(shape), *created_shape(self.shape)), dtype=self.dtype, device=self.device)

    @override
    def type_check(self, value: Any, key: Any = None) -> None:
        if value.dtype != self.dtype:
            raise WrongDtypeError(f"{'value' if key is None else key} has dtype {value.dtype}, expected {self.dtype}")

    @override
    def encode(self, val: Any, *, ignore_device: bool = False) -> Tensor:
        tensor = self._as_tensor(val, self.dtype, ignore_device=ignore_device)
        if self._suits(tensor.shape):
            return tensor
        try:
            return tensor.reshape(self.shape)
        except RuntimeError:
            raise InvalidArgumentError(
                f"a value of shape {list(tensor.shape)} cannot be encoded, expected {list(self.shape)}"
            ) from None

    def _as_tensor(self, val: Any, dtype: torch.dtype | None, *, ignore_device: bool) -> Tensor:
        if isinstance(val, Tensor):
            return val
        if isinstance(val, list):
            # Older versions of Gym return lists with a single observation.
            val = val[0] if len(val) == 1 else np.array(val)
        if isinstance(val, Tensor):
            return val
        if isinstance(val, np.ndarray) and any(stride < 0 for stride in val.strides):
            val = val.copy()
        try:
            return torch.as_tensor(val, dtype=dtype, device=None if ignore_device else self.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InvalidArgumentError(f"a {type(val).__name__} cannot be encoded as {self.dtype}: {error}") from None

    def _to_numpy(self, val: Tensor) -> Any:
        return val.detach().cpu().numpy()

    @override
    def rearranged(self, rearrange: Rearrange) -> Self:
        return self._moved(self._rearranged_shape(rearrange), lambda tensor: self._moved_tensor(rearrange, tensor))

    def _moved(self, shape: torch.Size, move: Callable[[Tensor], Tensor]) -> Self:
        """Return the spec with another shape, after the operation `move` on each tensor of the spec."""
        return self._changed(_shape=shape, **{name: move(tensor) for name, tensor in self._tensors().items()})

    def _tensors(self) -> dict[str, Tensor]:
        return {name: value for name, value in self.__dict__.items() if isinstance(value, Tensor)}

    def _moved_tensor(self, rearrange: Rearrange, tensor: Tensor) -> Tensor:
        """Apply a shape operation to a tensor that begins with the axes of the spec, with size 1 in place of -1."""
        if -1 not in self.shape:
            moved: Tensor = rearrange(tensor)
            return moved
        sizes = [_ANY_SIZE if size == -1 else size for size in self.shape]
        repeated: Tensor = rearrange(tensor.expand(*sizes, *tensor.shape[self.ndim :]))
        return repeated[tuple(slice(0, 1) if _is_any(size) else slice(None) for size in repeated.shape)]

    @override
    def _resized(self, shape: torch.Size) -> Self:
        return self._moved(
            shape, lambda tensor: resized_tensor(tensor, torch.Size((*shape, *tensor.shape[self.ndim :])))
        )

    def to(self, dest: torch.dtype | torch.device | str | int | None) -> Any:
        """Return a copy with another dtype or device, or the spec itself if nothing changes."""
        if dest is None:
            return self
        if isinstance(dest, torch.dtype):
            return self if dest == self.dtype else self._to_dtype(dest)
        device = as_device(dest)
        return self if device == self.device else self._to_device(device)

    def _to_dtype(self, dtype: torch.dtype) -> Any:
        dtype_name(dtype)
        return self._changed(dtype=dtype)

    def _to_device(self, device: torch.device) -> Self:
        return self._changed(device=device, **{name: tensor.to(device) for name, tensor in self._tensors().items()})

    def _suits(self, shape: torch.Size) -> bool:
        """Return whether a shape ends with the shape of the spec."""
        last = shape[max(len(shape) - self.ndim, 0) :]
        if last == self.shape or -1 not in self.shape:
            return last == self.shape
        pairs = zip(last, self.shape, strict=False)
        return len(last) == self.ndim and all(size in {-1, own} or own == -1 for size, own in pairs)

    def _frame(self) -> dict[str, Any]:
        """Return the JSON fields that every leaf has."""
        return {"kind": self.kind, "shape": list(self.shape), "dtype": dtype_name(self.dtype)}

    @override
    def to_json(self) -> dict[str, Any]:
        return self._frame()

    def __repr__(self) -> str:
        arguments = [*self._repr_arguments(), f"shape={list(self.shape)}", f"dtype={self.dtype}"]
        if self.device.type != "cpu":
            arguments.append(f"device={self.device}")
        return f"{type(self).__name__}({', '.join(arguments)})"

    def _repr_arguments(self) -> list[str]:
        """Return the arguments that `repr` shows before shape and dtype."""
        return []


def check_domain(dtype: torch.dtype, domain: str | None = None) -> str:
    """Return the domain, by default the domain of the dtype, after checking the name."""
    if domain not in {None, "continuous", "discrete"}:
        raise InvalidArgumentError(f"domain is {domain!r}, expected 'continuous' or 'discrete'")
    return domain or ("continuous" if dtype.is_floating_point else "discrete")


def parse_shape(*shape: Any) -> torch.Size:
    """Return a shape from integers, from a sequence of integers, or from `None` for no axes."""
    if len(shape) == 1 and not isinstance(shape[0], int):
        shape = () if shape[0] is None else tuple(shape[0])
    return torch.Size([operator.index(size) for size in shape])


def broadcast_shapes(*shapes: torch.Size) -> torch.Size:
    """Return the shape to which shapes broadcast."""
    broadcast: torch.Size = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return broadcast


def as_device(device: torch.device | str | int) -> torch.device:
    """Return a device. A GPU without an index is the current GPU."""
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


_ANY_SIZE = 1_000_003
"""A prime that replaces the size -1 in a trial of a shape operation. Multiples of the prime then become the size -1."""


def _is_any(size: int) -> bool:
    return size > 0 and size % _ANY_SIZE == 0


def meta_tensor(shape: Sequence[int]) -> Tensor:
    """Return a tensor without memory, to try shape operations on a shape."""
    sizes = tuple(_ANY_SIZE if size == -1 else size for size in shape)
    return torch.zeros((), dtype=torch.bool, device="cpu").expand(sizes)


def resized_tensor(tensor: Tensor, shape: torch.Size) -> Tensor:
    """Return a tensor of another shape. Only sizes of axes along which the tensor is constant may differ."""
    stored = without_repeats(tensor)
    stored = stored.reshape(()) if stored.numel() == 1 else stored
    try:
        return stored.expand(created_shape(shape))
    except RuntimeError as error:
        raise InvalidArgumentError(
            f"elements of shape {list(tensor.shape)} do not fit {list(shape)}: {error}"
        ) from None


def created_shape(shape: Sequence[int]) -> torch.Size:
    """Return the shape of the tensors that a spec creates: a size of -1 becomes 1."""
    return torch.Size([1 if size == -1 else size for size in shape])


def _checked_shape(shape: Any) -> torch.Size:
    parsed = parse_shape(shape)
    if any(size < -1 for size in parsed):
        raise InvalidArgumentError(
            f"shape is {list(parsed)}, expected sizes >= 0, or -1 for any size",
            hint="to combine specs of different shapes, stack them with torch.stack",
        )
    return parsed


def _spec_of_space(
    shape: Sequence[int] | int,
    space: Space,
    device: DEVICE_TYPING | None = None,
    dtype: torch.dtype | None = None,
    domain: str | None = None,
) -> Any:
    """Return the spec of a space, as `TensorSpec` documents."""
    sizes = parse_shape(shape)
    if space is None:
        return KINDS["unbounded"](sizes, device, dtype, domain=domain)
    if isinstance(space, ContinuousBox):
        low, high = space
        device = low.device if device is None else device
        return KINDS["bounded"](low, high, sizes, device, dtype or low.dtype, domain=domain)
    if isinstance(space, BinaryBox):
        return KINDS["binary"](space.n, sizes, device, dtype or torch.int8)
    if isinstance(space, CategoricalBox):
        one_hot = dtype == torch.bool and sizes[-1:] == (space.n,)
        return KINDS["one_hot" if one_hot else "discrete"](space.n, sizes, device, dtype or torch.int64)
    if isinstance(space, BoxList):
        nvec = space.nvec()
        one_hot = dtype == torch.bool and nvec.ndim == 1 and sizes[-1:] == (int(nvec.sum()),)
        return KINDS["multi_one_hot" if one_hot else "multi_discrete"](nvec, sizes, device, dtype or torch.int64)
    raise InvalidArgumentError(
        f"space is a {type(space).__name__}, expected a ContinuousBox, CategoricalBox, BinaryBox, BoxList or None"
    )


def without_ellipsis(index: Any, ndim: int) -> tuple[Any, ...]:
    """Return an index as a tuple with slices in place of an ellipsis, for tensors with extra axes at the end."""
    entries = index if isinstance(index, tuple) else (index,)
    entries = tuple(torch.as_tensor(item) if isinstance(item, (list, range, np.ndarray)) else item for item in entries)
    entries = tuple(int(item) if isinstance(item, np.integer) else item for item in entries)
    ellipses = [number for number, item in enumerate(entries) if item is Ellipsis]
    if len(ellipses) > 1:
        raise IndexError(f"the index has {len(ellipses)} ellipses, expected at most one")
    if not ellipses:
        return entries
    missing = ndim - sum(_axes(item) for item in entries)
    return (*entries[: ellipses[0]], *(slice(None),) * missing, *entries[ellipses[0] + 1 :])


def select(tensor: Any, entries: tuple[Any, ...]) -> Any:
    """Index a tensor. Unlike in torch, the step of a slice may be negative."""
    axis, positive = 0, list(entries)
    for number, entry in enumerate(entries):
        if isinstance(entry, slice) and entry.step is not None and entry.step < 0:
            backwards = torch.tensor(range(*entry.indices(tensor.shape[axis])), dtype=torch.int64)
            tensor = tensor[(*(slice(None),) * axis, backwards)]
            positive[number] = slice(None)
        axis += _axes(entry)
    return tensor[tuple(positive)]


def _check_slices(entries: tuple[Any, ...], shape: Sequence[int]) -> None:
    """Raise an error if an axis of any size is sliced, or a step is 0."""
    axis = 0
    for entry in entries:
        if isinstance(entry, slice) and entry.step == 0:
            raise InvalidArgumentError("slice step cannot be zero")
        if isinstance(entry, slice) and entry != slice(None) and shape[axis : axis + 1] == (-1,):
            raise IndexError(
                f"the dynamic axis {axis} has any size and cannot be sliced with {entry}, expected a slice of the whole axis"
            )
        axis += _axes(entry)


def _axes(entry: Any) -> int:
    """Return the number of axes that an entry of an index consumes."""
    if entry is None or entry is Ellipsis:
        return 0
    return entry.ndim if isinstance(entry, Tensor) and entry.dtype == torch.bool else 1


def are_equal(left: Any, right: Any) -> bool:
    """Return whether two attributes are equal. Equal tensors have the same dtype and the same elements."""
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    return type(left) is type(right) and bool(left == right)
