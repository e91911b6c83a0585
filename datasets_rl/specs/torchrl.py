"""Conversion of specs to and from TorchRL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.libraries import importing
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


def to_torchrl(spec: TensorSpec) -> Any:
    """Convert a spec to the spec of TorchRL with the same shape, device, dtype, domain, mask and nested specs.

    The values that a register has assigned to categories are not converted.

    Raises:
        InvalidArgumentError: If `spec` is not a spec of this package.
        MissingDependencyError: If torchrl is not installed.
    """
    lib = _import_torchrl()
    for kind, name, convert in _CONVERSIONS:
        if isinstance(spec, kind):
            return convert(spec, getattr(lib, name), to_torchrl)
    raise InvalidArgumentError(f"a {type(spec).__name__} cannot be converted, expected a spec of datasets_rl")


def from_torchrl(spec: Any) -> Any:
    """Convert a spec of TorchRL to the spec of this package: the inverse of `to_torchrl`.

    Raises:
        InvalidArgumentError: If `spec` is not a spec of TorchRL.
        MissingDependencyError: If torchrl is not installed.
    """
    lib = _import_torchrl()
    for kind, name, convert in _CONVERSIONS:
        if isinstance(spec, getattr(lib, name)):
            return convert(spec, kind, from_torchrl)
    raise InvalidArgumentError(f"a {type(spec).__name__} cannot be converted, expected a spec of TorchRL")


def as_spec(spec: Any) -> Any:
    """Return a spec of this package unchanged, and a spec of TorchRL converted.

    Raises:
        InvalidArgumentError: If `spec` is another object.
    """
    if isinstance(spec, TensorSpec):
        return spec
    if type(spec).__module__.partition(".")[0] == "torchrl":
        return from_torchrl(spec)
    raise InvalidArgumentError(f"a {type(spec).__name__} is not a spec, expected a spec of datasets_rl or TorchRL")


def _import_torchrl() -> Any:
    with importing("torchrl", "torchrl", "a spec of TorchRL"):
        from torchrl.data import tensor_specs
    return tensor_specs


# The attributes have the same names in both libraries, so that a function converts in both directions. `make` is the
# class of the other library, and `inner` converts the specs inside a spec.


def _binary(spec: Any, make: Any, _: Any) -> Any:
    converted = make(shape=spec.shape, device=spec.device, dtype=spec.dtype)
    converted.update_mask(spec.mask)
    return converted


def _multi_categorical(spec: Any, make: Any, _: Any) -> Any:
    nvec = spec.nvec
    rows = nvec.reshape(-1, nvec.shape[-1]) if nvec.ndim else nvec.reshape(1, 1)
    if len(rows) and bool((rows == rows[:1]).all()):
        nvec = rows[0].clone()  # TorchRL enumerates the outcomes of specs if `nvec` has a single axis
    shape, singleton = spec.shape or (1,), spec.remove_singleton
    return make(nvec, shape, spec.device, spec.dtype, mask=spec.mask, remove_singleton=singleton)


def _one_hot(spec: Any, make: Any, _: Any) -> Any:
    counts = [int(count) for count in spec.nvec] if hasattr(spec, "nvec") else spec.space.n
    return make(counts, spec.shape, spec.device, spec.dtype, use_register=spec.use_register, mask=spec.mask)


def _categorical(spec: Any, make: Any, _: Any) -> Any:
    converted = make(spec.space.n, spec.shape, spec.device, spec.dtype, mask=spec.mask)
    if spec._provisional_n is not None:  # noqa: SLF001  # both libraries have a setter method, and no property
        converted.set_provisional_n(spec._provisional_n)  # noqa: SLF001
    return converted


def _bounded(spec: Any, make: Any, _: Any) -> Any:
    low, high = (bound.expand([max(size, 1) if size else 0 for size in spec.shape]).clone() for bound in spec.space)
    return make(low, high, spec.shape, spec.device, spec.dtype, domain=spec.domain)


def _unbounded(spec: Any, make: Any, _: Any) -> Any:
    return make(spec.shape, spec.device, spec.dtype, domain=spec.domain)


def _non_tensor(spec: Any, make: Any, _: Any) -> Any:
    default = spec.batched or spec.feature_dims == len(spec.shape)
    options = {"batched": spec.batched or None, "feature_dims": None if default else spec.feature_dims}
    return make(spec.shape, spec.device, example_data=spec.example_data, **options)


def _choice(spec: Any, make: Any, inner: Any) -> Any:
    choices = spec._choices  # noqa: SLF001  # both libraries have this attribute, and no property
    return make([inner(choice) if hasattr(choice, "is_in") else choice.clone() for choice in choices])


def _stacked(spec: Any, make: Any, inner: Any) -> Any:
    return _locked_like(spec, make(*map(inner, spec.unbind(spec.dim)), dim=spec.dim))


def _composite(spec: Any, make: Any, inner: Any) -> Any:
    converted = make(
        shape=spec.shape,
        device=spec.device,
        data_cls=spec.data_cls,
        step_mdp_static=spec.step_mdp_static,
        names=None if all(name is None for name in spec.names) else spec.names,
    )
    for name, entry in spec.items():
        converted[name] = None if entry is None else inner(entry)
    return _locked_like(spec, converted)


def _locked_like(spec: Any, converted: Any) -> Any:
    return converted.lock_() if getattr(spec, "is_locked", False) else converted


_CONVERSIONS: list[tuple[type[TensorSpec], str, Callable[[Any, Any, Any], Any]]] = [
    (LazyStackedCompositeSpec, "StackedComposite", _stacked),
    (LazyStackedTensorSpec, "Stacked", _stacked),
    (CompositeSpec, "Composite", _composite),
    (BinaryDiscreteTensorSpec, "Binary", _binary),
    (MultiDiscreteTensorSpec, "MultiCategorical", _multi_categorical),
    (MultiOneHotDiscreteTensorSpec, "MultiOneHot", _one_hot),
    (OneHotDiscreteTensorSpec, "OneHot", _one_hot),
    (DiscreteTensorSpec, "Categorical", _categorical),
    (BoundedTensorSpec, "Bounded", _bounded),
    (Unbounded, "Unbounded", _unbounded),
    (NonTensorSpec, "NonTensor", _non_tensor),
    (ChoiceSpec, "Choice", _choice),
]
"""Class, name of the class in TorchRL, and function that converts in both directions. Subclasses precede base classes."""
