"""What a spec is: the set of the tensors that may stand somewhere."""

from __future__ import annotations

import copy
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Generator, Tensor

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs._document import KINDS, Entry, dtype_name
from datasets_rl.specs.space import Space

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["LeafSpec", "TensorSpec"]

Move = Callable[[Any], Any]
"""What an operation on shapes does to a tensor: it acts on the leading axes of the spec and leaves those behind alone."""
Lead = int | Sequence[int] | None
"""Further leading axes of a tensor; none by default."""


class TensorSpec(ABC):
    """The set of tensors that may stand somewhere.

    A spec has the shape of its tensors, and is reshaped, indexed and stacked as they are. It does not change, apart
    from the entries of a composite and the mask of categories: every operation returns another spec.
    """

    domain: str = ""
    """"continuous" or "discrete"."""
    device: torch.device | None
    """Where `rand`, `zero` and `encode` put their tensors. Tensors of other devices may be in the set."""

    kind: ClassVar[str] = ""
    """The name in a document."""
    torch_functions: ClassVar[dict[Any, Callable[..., Any]]] = {}
    """What functions of torch do with specs."""

    def __init_subclass__(cls) -> None:
        """Make the kind known to `from_json`."""
        super().__init_subclass__()
        if cls.kind:
            KINDS[cls.kind] = cls

    def __init__(self, shape: Sequence[int] | int, device: torch.device | str | int | None) -> None:
        self._shape = sizes(shape)
        if any(size < 0 for size in self._shape):
            raise InvalidArgumentError(
                f"shape is {list(self._shape)}; expected sizes from 0",
                hint="stack specs of the shapes that there are with torch.stack",
            )
        self.device = None if device is None else as_device(device)

    @property
    def shape(self) -> torch.Size:
        """Of every tensor of the set."""
        return self._shape

    @property
    def ndim(self) -> int:
        """How many axes the shape has."""
        return len(self.shape)

    def ndimension(self) -> int:
        """Return how many axes the shape has."""
        return len(self.shape)

    def numel(self) -> int:
        """Return how many numbers a tensor of the set has."""
        return math.prod(self.shape)

    # --- the set

    @abstractmethod
    def rand(self, shape: Lead = None, *, generator: Generator | None = None) -> Any:
        """Draw from the set, each member with the same chance.

        Args:
            shape: Further leading axes; every element is drawn by itself.
            generator: Where the randomness comes from; torch's global generator by default.
        """

    @abstractmethod
    def zero(self, shape: Lead = None) -> Any:
        """Return zeros with further leading axes, whether zero is in the set or not."""

    @abstractmethod
    def one(self, shape: Lead = None) -> Any:
        """Return ones with further leading axes, whether one is in the set or not."""

    def sample(self, shape: Lead = None, *, generator: Generator | None = None) -> Any:
        """Draw from the set: the same as `rand`."""
        return self.rand(shape, generator=generator)

    def zeros(self, shape: Lead = None) -> Any:
        """Return zeros: the same as `zero`."""
        return self.zero(shape)

    def ones(self, shape: Lead = None) -> Any:
        """Return ones: the same as `one`."""
        return self.one(shape)

    @abstractmethod
    def misfits(self, value: Any, place: str = "value") -> list[str]:
        """Say why a value, which may have further leading axes, is not in the set; empty if it is.

        Args:
            value: Anything.
            place: What the value is called in the reasons.
        """

    def is_in(self, value: Any) -> bool:
        """Say whether a value, which may have further leading axes, is in the set."""
        return not self.misfits(value)

    def contains(self, item: Any) -> bool:
        """Say whether a value is in the set: the same as `is_in`."""
        return self.is_in(item)

    def assert_is_in(self, value: Any) -> None:
        """Refuse a value that is not in the set.

        Raises:
            InvalidArgumentError: With the place, the value and the bound of the first offender of every leaf.
        """
        reasons = self.misfits(value)
        if reasons:
            raise InvalidArgumentError(
                f"not in the spec: {'; '.join(reasons)}", hint="`project` moves a value into the spec"
            )

    @abstractmethod
    def project(self, value: Any) -> Any:
        """Return the member of the set that is nearest to a value, or the value itself if it is one.

        Raises:
            InvalidArgumentError: If the value has another shape, so that no member is near.
        """

    @abstractmethod
    def type_check(self, value: Any, key: Any = None) -> None:
        """Refuse a value of another dtype.

        Args:
            value: The value.
            key: What to call it; in a composite, the key or keys to look at.

        Raises:
            InvalidArgumentError: If the dtype differs.
        """

    def cardinality(self) -> float:
        """Return how many outcomes there are, masked ones too; infinity if they cannot be counted."""
        return math.inf

    def enumerate(self, use_mask: bool = False) -> Any:
        """Return all outcomes, along a new first axis.

        Args:
            use_mask: Whether to leave out those that are masked.

        Raises:
            InvalidArgumentError: If they cannot be counted, or differ from place to place.
        """
        del use_mask
        raise InvalidArgumentError(f"the outcomes of {type(self).__name__} cannot be enumerated")

    def index(self, index: Tensor, tensor_to_index: Tensor) -> Tensor:
        """Take from the last axis of a tensor what a member of the set chooses.

        Raises:
            InvalidArgumentError: If members of the set choose nothing.
        """
        del index, tensor_to_index
        raise InvalidArgumentError(
            f"members of {type(self).__name__} are no indices", hint="categorical specs have `index`"
        )

    # --- values from outside

    @abstractmethod
    def encode(self, val: Any, *, ignore_device: bool = False) -> Any:
        """Turn numbers, lists and arrays into a tensor of the spec's shape, dtype and device.

        A tensor that fits already is returned as it is. Whether it is in the set is not looked at.

        Args:
            val: As an environment or a file gives it; it may have further leading axes.
            ignore_device: Whether the tensor is left where it is.

        Raises:
            InvalidArgumentError: If the shape cannot be had.
        """

    @abstractmethod
    def to_numpy(self, val: Any, safe: bool | None = None) -> Any:
        """Undo `encode`.

        Args:
            val: A member of the set.
            safe: Whether to refuse it if it is not one; not by default.
        """

    def memoize_encode(self, mode: bool = True) -> None:
        """Do nothing: `encode` works nothing out that a second call could reuse."""

    def memoize_cardinality(self, mode: bool = True) -> None:
        """Do nothing: `cardinality` is no work."""

    def erase_memoize_cache(self) -> None:
        """Do nothing: there is no cache."""

    # --- shapes

    @abstractmethod
    def moved(self, move: Move) -> Self:
        """Do to the spec what `move` does to tensors of its shape. Every operation on shapes is this one.

        Args:
            move: Acts on the leading axes of a tensor, as many as the spec has, and leaves those behind alone.
        """

    def expand(self, *shape: Any) -> Self:
        """Repeat along axes of size 1 and new leading axes, as `Tensor.expand` does."""
        ndim, wanted = self.ndim, sizes(*shape)
        return self.moved(lambda tensor: tensor.expand((*wanted, *tensor.shape[ndim:])))

    def squeeze(self, dim: int | None = None) -> Self:
        """Remove an axis of size 1, or all of them."""
        dims = [axis for axis, size in enumerate(self.shape) if size == 1]
        if dim is not None:
            dims = [axis for axis in dims if axis == self._axis(dim)]
        index = tuple(0 if axis in dims else slice(None) for axis in range(self.ndim))
        return self.moved(lambda tensor: tensor[index]) if dims else self

    def unsqueeze(self, dim: int) -> Self:
        """Insert an axis of size 1."""
        axis = self._axis(dim, self.ndim + 1)
        return self.moved(lambda tensor: tensor.unsqueeze(axis))

    def reshape(self, *shape: Any) -> Self:
        """Arrange the same elements in another shape, as `Tensor.reshape` does."""
        ndim, wanted = self.ndim, sizes(*shape)
        try:
            wanted = probe(self.shape).reshape(wanted).shape
        except RuntimeError as error:
            raise InvalidArgumentError(f"{self._named()} has no shape {list(wanted)}: {error}") from None
        return self.moved(lambda tensor: tensor.reshape((*wanted, *tensor.shape[ndim:])))

    def view(self, *shape: Any) -> Self:
        """Arrange the same elements in another shape: the same as `reshape`."""
        return self.reshape(*shape)

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Self:
        """Make one axis of several, as `Tensor.flatten` does."""
        return self.reshape(probe(self.shape).flatten(start_dim, end_dim).shape)

    def unflatten(self, dim: int, sizes: Sequence[int]) -> Self:
        """Make several axes of one, as `Tensor.unflatten` does."""
        axis = self._axis(dim)
        return self.reshape([*self.shape[:axis], *sizes, *self.shape[axis + 1 :]])

    def unbind(self, dim: int = 0) -> tuple[Any, ...]:
        """Return the specs along an axis, without it."""
        axis = self._axis(dim)

        def at(number: int) -> Move:
            return lambda tensor: tensor[(*(slice(None),) * axis, number)]

        return tuple(self.moved(at(number)) for number in range(self.shape[axis]))

    def index_select(self, dim: int, index: Tensor) -> Self:
        """Take places along an axis, as `torch.index_select` does."""
        axis = self._axis(dim)
        return self.moved(lambda tensor: tensor[(*(slice(None),) * axis, index)])

    def __getitem__(self, index: Any) -> Any:
        shape = self._indexed_shape()
        entries = without_ellipsis(index, len(shape))
        # Outside of `moved`, so that what is out of range is an IndexError, which ends iteration.
        _ = probe(shape)[entries]
        return self.moved(lambda tensor: tensor[entries])

    def _indexed_shape(self) -> Sequence[int]:
        """Return the axes that an index may name."""
        return self.shape

    def _axis(self, dim: int, ndim: int | None = None) -> int:
        """Count an axis from the front.

        Raises:
            IndexError: If there is none.
        """
        ndim = self.ndim if ndim is None else ndim
        if not -ndim <= dim < ndim:
            raise IndexError(f"{self._named()} has no axis {dim}; expected one of {-ndim} to {ndim - 1}")
        return dim % ndim

    # --- copies

    @abstractmethod
    def to(self, dest: Any) -> Any:
        """Return the spec for a dtype or a device."""

    def cpu(self) -> Any:
        """Return the spec for the CPU."""
        return self.to("cpu")

    def cuda(self, device: int | None = None) -> Any:
        """Return the spec for a GPU."""
        return self.to("cuda" if device is None else f"cuda:{device}")

    def clone(self) -> Self:
        """Return a copy that shares nothing with this one."""
        return copy.deepcopy(self)

    def clear_device_(self) -> Self:
        """Return the spec itself: only composites can be without a device."""
        return self

    def _changed(self, **fields: Any) -> Self:
        twin = copy.copy(self)
        twin.__dict__.update(fields)
        return twin

    # --- as a document

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Describe the spec as JSON that `from_json` reads; everything but the device is in it."""

    @classmethod
    @abstractmethod
    def read(cls, entry: Entry) -> Self | None:
        """Read a spec of this kind; None, and a fault in the entry, if it is none."""

    @staticmethod
    def from_json(document: Any, device: torch.device | str | int | None = None) -> Any:
        """Read what `to_json` wrote, trusting nothing in it.

        Args:
            document: Parsed JSON.
            device: Of the spec; the default device otherwise.

        Raises:
            InvalidArgumentError: If it describes no spec; all faults at once.
        """
        faults: list[str] = []
        spec = Entry(document, "spec", faults).spec()
        if faults or not isinstance(spec, TensorSpec):
            raise InvalidArgumentError(f"the document describes no spec: {'; '.join(faults)}")
        return spec if device is None else spec.to(device)

    # --- the language

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self) or other.__dict__.keys() != self.__dict__.keys():
            return False
        return all(same(mine, other.__dict__[name]) for name, mine in self.__dict__.items())

    def __hash__(self) -> int:
        # A mask and the entries of a composite can change, and equal specs have equal hashes: they are not in it.
        return hash((type(self), self.shape))

    def _named(self) -> str:
        return f"{type(self).__name__} of shape {list(self.shape)}"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Answer `torch.stack` and the functions of torch that have a method here."""
        handler = TensorSpec.torch_functions.get(func)
        if handler is None or not all(issubclass(kind, TensorSpec) for kind in types):
            return NotImplemented
        return handler(*args, **(kwargs or {}))


def _method(name: str) -> Callable[..., Any]:
    return lambda spec, *args, **kwargs: getattr(spec, name)(*args, **kwargs)


TensorSpec.torch_functions |= {getattr(torch, name): _method(name) for name in ("index_select", "squeeze", "unsqueeze")}


class LeafSpec(TensorSpec):
    """The set of tensors of a dtype whose numbers obey a rule.

    Args:
        shape: Of every tensor of the set.
        device: Of the tensors that are made; torch's default device by default.
        dtype: Of every tensor of the set.
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
        """What each number may be."""

    @abstractmethod
    def _inside(self, value: Tensor) -> Tensor | None:
        """Say of each place of a value that fits whether it is in the set; None if all are.

        Its shape is that of the value, or that without the last axis where that axis is one place.
        """

    @abstractmethod
    def _nearest(self, value: Tensor) -> Tensor:
        """Return the nearest member to a value of the right shape, of any dtype."""

    @abstractmethod
    def _bound(self, place: tuple[int, ...]) -> str:
        """Say what a number at a place may be, as in "a number in [0, 1]"."""

    def is_in(self, value: Any) -> bool:
        """Say whether a tensor, which may have further leading axes, is in the set: shape, dtype and numbers."""
        if not isinstance(value, Tensor) or value.dtype != self.dtype or not self._suits(value.shape):
            return False
        inside = self._inside(value)
        return inside is None or bool(inside.all())

    def misfits(self, value: Any, place: str = "value") -> list[str]:
        """Say why a value is not in the set: its type, shape, dtype, or the first number and how many more."""
        if not isinstance(value, Tensor):
            return [f"{place} is a {type(value).__name__}; expected a tensor"]
        reasons = []
        if not self._suits(value.shape):
            reasons.append(f"{place} has shape {list(value.shape)}; expected [..., {', '.join(map(str, self.shape))}]")
        if value.dtype != self.dtype:
            reasons.append(f"{place} has dtype {value.dtype}; expected {self.dtype}")
        inside = None if reasons else self._inside(value)
        if inside is not None and not bool(inside.all()):
            wrong = (~inside).nonzero()
            first = tuple(wrong[0].tolist())
            bound = self._bound(first[value.ndim - self.ndim :])
            more = f" (and {len(wrong) - 1} more of {inside.numel()})" if len(wrong) > 1 else ""
            at = f" at {list(first)}" if first else ""
            reasons.append(f"{place} is {value[first].tolist()}{at}{more}; expected {bound}")
        return reasons

    def project(self, value: Any) -> Tensor:
        """Return the nearest member of the set, or the value itself if it is one.

        Raises:
            InvalidArgumentError: If it is no tensor, or has another shape.
        """
        if self.is_in(value):
            given: Tensor = value
            return given
        if not isinstance(value, Tensor) or not self._suits(value.shape):
            raise InvalidArgumentError("; ".join(self.misfits(value)), hint="only numbers can be projected, not shapes")
        return self._nearest(value)

    def zero(self, shape: Lead = None) -> Tensor:
        """Return zeros with further leading axes, whether zero is in the set or not."""
        return torch.zeros((*sizes(shape), *self.shape), dtype=self.dtype, device=self.device)

    def one(self, shape: Lead = None) -> Tensor:
        """Return ones with further leading axes, whether one is in the set or not."""
        return torch.ones((*sizes(shape), *self.shape), dtype=self.dtype, device=self.device)

    def type_check(self, value: Any, key: Any = None) -> None:
        """Refuse a value of another dtype.

        Raises:
            InvalidArgumentError: If the dtype differs.
        """
        if value.dtype != self.dtype:
            raise InvalidArgumentError(
                f"{'value' if key is None else key} has dtype {value.dtype}; expected {self.dtype}"
            )

    def encode(self, val: Any, *, ignore_device: bool = False) -> Tensor:
        """Turn numbers, lists and arrays into a tensor of the spec's shape, dtype and device."""
        tensor = self._as_tensor(val, self.dtype, ignore_device=ignore_device)
        if self._suits(tensor.shape):
            return tensor
        try:
            return tensor.reshape(self.shape)
        except RuntimeError:
            raise InvalidArgumentError(
                f"a value of shape {list(tensor.shape)} cannot be encoded; expected {list(self.shape)}"
            ) from None

    def _as_tensor(self, val: Any, dtype: torch.dtype | None, *, ignore_device: bool) -> Tensor:
        if isinstance(val, Tensor):
            return val
        if isinstance(val, list):
            val = np.array(val)
        if isinstance(val, np.ndarray) and any(stride < 0 for stride in val.strides):
            val = val.copy()
        try:
            return torch.as_tensor(val, dtype=dtype, device=None if ignore_device else self.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InvalidArgumentError(f"a {type(val).__name__} cannot be encoded as {self.dtype}: {error}") from None

    def to_numpy(self, val: Tensor, safe: bool | None = None) -> Any:
        """Undo `encode`: the values as an array."""
        if safe:
            self.assert_is_in(val)
        return val.detach().cpu().numpy()

    def moved(self, move: Move) -> Self:
        """Do to the spec what `move` does to tensors of its shape."""
        return self._changed(_shape=self._moved_shape(move))

    def _moved_shape(self, move: Move) -> torch.Size:
        try:
            shape: torch.Size = move(probe(self.shape)).shape
        except (RuntimeError, TypeError) as error:
            raise InvalidArgumentError(f"{self._named()}: {error}") from None
        return shape

    def to(self, dest: torch.dtype | torch.device | str | int | None) -> Any:
        """Return the spec for a dtype or a device; the spec itself if it has it."""
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
        moved = {name: part.to(device) for name, part in self.__dict__.items() if isinstance(part, Tensor)}
        return self._changed(device=device, **moved)

    def _suits(self, shape: torch.Size) -> bool:
        """Return whether a shape ends with this one."""
        return shape[max(len(shape) - self.ndim, 0) :] == self.shape

    def _frame(self) -> dict[str, Any]:
        """Return what every document of a leaf has."""
        return {"kind": self.kind, "shape": list(self.shape), "dtype": dtype_name(self.dtype)}

    def to_json(self) -> dict[str, Any]:
        """Describe the spec as JSON that `from_json` reads; everything but the device is in it."""
        return self._frame()

    def __repr__(self) -> str:
        facts = [*self._facts(), f"shape={list(self.shape)}", f"dtype={self.dtype}"]
        if self.device.type != "cpu":
            facts.append(f"device={self.device}")
        return f"{type(self).__name__}({', '.join(facts)})"

    def _facts(self) -> list[str]:
        """Return what `repr` shows of the rule."""
        return []


def domain_of(dtype: torch.dtype, given: str | None = None) -> str:
    """Return the domain that was given for numbers of a dtype, or that of the dtype.

    Raises:
        InvalidArgumentError: If there is no such domain.
    """
    if given not in {None, "continuous", "discrete"}:
        raise InvalidArgumentError(f"domain is {given!r}; expected 'continuous' or 'discrete'")
    return given or ("continuous" if dtype.is_floating_point else "discrete")


def sizes(*shape: Any) -> torch.Size:
    """Read a shape from numbers, from a sequence of them, from one number, or from None for none."""
    if len(shape) == 1 and not isinstance(shape[0], int):
        shape = () if shape[0] is None else tuple(shape[0])
    return torch.Size([operator.index(size) for size in shape])


def together(*shapes: torch.Size) -> torch.Size:
    """Return the shape to which shapes broadcast.

    Raises:
        RuntimeError: If they do not.
    """
    broadcast: torch.Size = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return broadcast


def as_device(device: torch.device | str | int) -> torch.device:
    """Read a device; a GPU without a number is the current one."""
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def probe(shape: Sequence[int]) -> Tensor:
    """Return a tensor of a shape that takes no memory."""
    return torch.zeros((), dtype=torch.bool, device="cpu").expand(tuple(shape))


def without_ellipsis(index: Any, ndim: int) -> tuple[Any, ...]:
    """Return an index as a tuple with slices in place of an ellipsis, so that it means the same before further axes."""
    entries = index if isinstance(index, tuple) else (index,)
    entries = tuple(torch.as_tensor(one) if isinstance(one, (list, range, np.ndarray)) else one for one in entries)
    entries = tuple(int(one) if isinstance(one, np.integer) else one for one in entries)
    dots = [number for number, one in enumerate(entries) if one is Ellipsis]
    if len(dots) > 1:
        raise IndexError("an index has one ellipsis at most")
    if not dots:
        return entries
    missing = ndim - sum(_axes(one) for one in entries)
    return (*entries[: dots[0]], *(slice(None),) * missing, *entries[dots[0] + 1 :])


def _axes(entry: Any) -> int:
    """Return how many axes an entry of an index takes up."""
    if entry is None or entry is Ellipsis:
        return 0
    return entry.ndim if isinstance(entry, Tensor) and entry.dtype == torch.bool else 1


def same(mine: Any, other: Any) -> bool:
    """Compare two attributes, tensors as wholes."""
    if isinstance(mine, Tensor) and isinstance(other, Tensor):
        return mine.dtype == other.dtype and torch.equal(mine, other)
    return type(mine) is type(other) and bool(mine == other)
