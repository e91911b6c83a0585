"""Conversion of specs to and from TorchRL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from datasets_rl.errors import InvalidArgumentError, MissingDependencyError
from datasets_rl.specs.base import TensorSpec
from datasets_rl.specs.bounded import BoundedTensorSpec
from datasets_rl.specs.categorical import (
    BinaryDiscreteTensorSpec,
    DiscreteTensorSpec,
    MultiDiscreteTensorSpec,
    MultiOneHotDiscreteTensorSpec,
    OneHotDiscreteTensorSpec,
)
from datasets_rl.specs.choice import ChoiceSpec
from datasets_rl.specs.composite import CompositeSpec
from datasets_rl.specs.lazy import LazyStackedCompositeSpec, LazyStackedTensorSpec
from datasets_rl.specs.non_tensor import NonTensorSpec
from datasets_rl.specs.unbounded import Unbounded

__all__ = ["as_spec", "from_torchrl", "to_torchrl"]


def to_torchrl(spec: TensorSpec) -> Any:
    """Convert a spec to the spec of TorchRL with the same shape, device, dtype, domain, mask and nested specs.

    The values that a register has assigned to categories are not converted.

    Args:
        spec: Any spec.

    Raises:
        InvalidArgumentError: If `spec` is not a spec of this package.
        MissingDependencyError: If torchrl is not installed.
    """
    lib = _import_torchrl()
    for kind, _, convert in _CONVERSIONS:
        if isinstance(spec, kind):
            return convert(spec, lib, to_torchrl)
    raise InvalidArgumentError(f"a {type(spec).__name__} cannot be converted; expected a spec of datasets_rl")


def from_torchrl(spec: Any) -> Any:
    """Convert a spec of TorchRL to the spec of this package: the inverse of `to_torchrl`.

    Args:
        spec: A spec of TorchRL.

    Raises:
        InvalidArgumentError: If `spec` is not a spec of TorchRL.
        MissingDependencyError: If torchrl is not installed.
    """
    lib = _import_torchrl()
    for _, name, convert in _CONVERSIONS:
        if isinstance(spec, getattr(lib, name)):
            return convert(spec, _OURS, from_torchrl)
    raise InvalidArgumentError(f"a {type(spec).__name__} cannot be converted; expected a spec of TorchRL")


def as_spec(spec: Any) -> Any:
    """Return a spec of this package unchanged, and a spec of TorchRL converted.

    Raises:
        InvalidArgumentError: If `spec` is neither.
    """
    if isinstance(spec, TensorSpec):
        return spec
    if type(spec).__module__.partition(".")[0] == "torchrl":
        return from_torchrl(spec)
    raise InvalidArgumentError(f"a {type(spec).__name__} is not a spec; expected a spec of datasets_rl or TorchRL")


def _import_torchrl() -> Any:
    try:
        from torchrl.data import tensor_specs
    except ImportError as error:
        missing = MissingDependencyError("torchrl", "torchrl", "a spec of TorchRL")
        missing.hint = "pip install torchrl"
        raise missing from error
    return tensor_specs


class _OURS:  # stands for the module of TorchRL
    """The classes of this package by their names in TorchRL."""

    Binary = BinaryDiscreteTensorSpec
    Bounded = BoundedTensorSpec
    Categorical = DiscreteTensorSpec
    Choice = ChoiceSpec
    Composite = CompositeSpec
    MultiCategorical = MultiDiscreteTensorSpec
    MultiOneHot = MultiOneHotDiscreteTensorSpec
    NonTensor = NonTensorSpec
    OneHot = OneHotDiscreteTensorSpec
    Stacked = LazyStackedTensorSpec
    StackedComposite = LazyStackedCompositeSpec
    Unbounded = Unbounded


Convert = Callable[[Any], Any]
"""`to_torchrl` or `from_torchrl`, for the specs inside a spec."""


# The attributes have the same names in both libraries, so that one function converts in both directions.


def _binary(spec: Any, lib: Any, _: Convert) -> Any:
    converted = lib.Binary(shape=spec.shape, device=spec.device, dtype=spec.dtype)
    converted.update_mask(spec.mask)
    return converted


def _multi_categorical(spec: Any, lib: Any, _: Convert) -> Any:
    nvec = spec.nvec
    rows = nvec.reshape(-1, nvec.shape[-1]) if nvec.ndim else nvec.reshape(1, 1)
    if len(rows) and bool((rows == rows[:1]).all()):
        nvec = rows[0].clone()  # TorchRL enumerates the outcomes of specs whose `nvec` has one axis
    return lib.MultiCategorical(
        nvec,
        spec.shape or (1,),
        spec.device,
        spec.dtype,
        mask=spec.mask,
        remove_singleton=spec.remove_singleton,
    )


def _multi_one_hot(spec: Any, lib: Any, _: Convert) -> Any:
    nvec = [int(count) for count in spec.nvec]
    return lib.MultiOneHot(nvec, spec.shape, spec.device, spec.dtype, use_register=spec.use_register, mask=spec.mask)


def _one_hot(spec: Any, lib: Any, _: Convert) -> Any:
    return lib.OneHot(spec.space.n, spec.shape, spec.device, spec.dtype, use_register=spec.use_register, mask=spec.mask)


def _categorical(spec: Any, lib: Any, _: Convert) -> Any:
    converted = lib.Categorical(spec.space.n, spec.shape, spec.device, spec.dtype, mask=spec.mask)
    if spec._provisional_n is not None:  # noqa: SLF001  # both libraries set it with a method and have no property
        converted.set_provisional_n(spec._provisional_n)  # noqa: SLF001
    return converted


def _bounded(spec: Any, lib: Any, _: Convert) -> Any:
    low, high = (bound.expand([max(size, 1) if size else 0 for size in spec.shape]).clone() for bound in spec.space)
    return lib.Bounded(low, high, spec.shape, spec.device, spec.dtype, domain=spec.domain)


def _unbounded(spec: Any, lib: Any, _: Convert) -> Any:
    return lib.Unbounded(spec.shape, spec.device, spec.dtype, domain=spec.domain)


def _non_tensor(spec: Any, lib: Any, _: Convert) -> Any:
    default = spec.batched or spec.feature_dims == len(spec.shape)
    return lib.NonTensor(
        spec.shape,
        spec.device,
        example_data=spec.example_data,
        batched=spec.batched or None,
        feature_dims=None if default else spec.feature_dims,
    )


def _choice(spec: Any, lib: Any, convert: Convert) -> Any:
    choices = spec._choices  # noqa: SLF001  # both libraries have it, and no property
    return lib.Choice([choice.clone() if _is_value(choice) else convert(choice) for choice in choices])


def _is_value(choice: Any) -> bool:
    return not hasattr(choice, "is_in")


def _stacked(spec: Any, lib: Any, convert: Convert) -> Any:
    return lib.Stacked(*[convert(member) for member in _members(spec)], dim=spec.dim)


def _stacked_composite(spec: Any, lib: Any, convert: Convert) -> Any:
    return _locked_like(spec, lib.StackedComposite(*[convert(member) for member in _members(spec)], dim=spec.dim))


def _members(spec: Any) -> tuple[Any, ...]:
    members: tuple[Any, ...] = spec.unbind(spec.dim)
    return members


def _composite(spec: Any, lib: Any, convert: Convert) -> Any:
    converted = lib.Composite(
        shape=spec.shape,
        device=spec.device,
        data_cls=spec.data_cls,
        step_mdp_static=spec.step_mdp_static,
        names=None if all(name is None for name in spec.names) else spec.names,
    )
    for name, inner in spec.items():
        converted[name] = None if inner is None else convert(inner)
    return _locked_like(spec, converted)


def _locked_like(spec: Any, converted: Any) -> Any:
    return converted.lock_() if spec.is_locked else converted


_CONVERSIONS: list[tuple[type[TensorSpec], str, Callable[[Any, Any, Convert], Any]]] = [
    (LazyStackedCompositeSpec, "StackedComposite", _stacked_composite),
    (LazyStackedTensorSpec, "Stacked", _stacked),
    (CompositeSpec, "Composite", _composite),
    (BinaryDiscreteTensorSpec, "Binary", _binary),
    (MultiDiscreteTensorSpec, "MultiCategorical", _multi_categorical),
    (MultiOneHotDiscreteTensorSpec, "MultiOneHot", _multi_one_hot),
    (OneHotDiscreteTensorSpec, "OneHot", _one_hot),
    (DiscreteTensorSpec, "Categorical", _categorical),
    (BoundedTensorSpec, "Bounded", _bounded),
    (Unbounded, "Unbounded", _unbounded),
    (NonTensorSpec, "NonTensor", _non_tensor),
    (ChoiceSpec, "Choice", _choice),
]
"""Class, name of the class in TorchRL, and function that converts in both directions; subclasses before their bases."""
