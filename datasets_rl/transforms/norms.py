"""Normalization of observations and rewards by location and scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import is_tensor_collection
from torch import Tensor
from typing_extensions import override

from datasets_rl.errors import InvalidArgumentError, UnknownKeyError
from datasets_rl.format.manifest import Manifest
from datasets_rl.returns import float_rewards
from datasets_rl.specs import TensorSpec
from datasets_rl.ted.keys import NEXT
from datasets_rl.transforms._bounds import map_bounds
from datasets_rl.transforms.base import Keys, NestedKey, Transform, flat_key, get_entry, number_tensor, resolve_key

Number = float | Tensor | None


class _Affine(Transform):
    """Base class: ``value * scale + loc``, or with `standard_normal` ``(value - loc) / scale``, and the inverse."""

    per_step = True

    loc: Tensor | None
    scale: Tensor | None

    def __init__(self, loc: Number, scale: Number, *keys: Keys | None, standard_normal: bool = False) -> None:
        super().__init__(*keys)
        self.standard_normal = standard_normal
        self.register_buffer("loc", _as_tensor(loc))
        self.register_buffer("scale", _as_tensor(scale))
        if standard_normal and self.scale is not None and bool((self.scale == 0).any()):
            raise InvalidArgumentError(f"scale is {self.scale.tolist()}, expected numbers other than 0")

    @override
    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # States of TorchRL also contain this argument.
        flag = state_dict.pop(f"{prefix}standard_normal", None)
        self.standard_normal = self.standard_normal if flag is None else bool(flag)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _loc_and_scale(self, value: Tensor) -> tuple[Tensor, Tensor]:
        # Faster than the attributes, which are looked up in Python.
        loc, scale = self._buffers["loc"], self._buffers["scale"]
        if loc is None or scale is None:
            raise InvalidArgumentError(
                f"loc and scale of {type(self).__name__} are not set",
                hint="pass both, or call init_stats(dataset). In a recipe, the step normalize computes them",
            )
        # Floats keep their dtype, even if the statistics have a wider dtype.
        dtype = value.dtype if value.is_floating_point() else loc.dtype
        return loc.to(value.device, dtype), scale.to(value.device, dtype)

    @override
    def transform_value(self, value: Tensor) -> Tensor:
        loc, scale = self._loc_and_scale(value)
        value = value.to(loc.dtype) if value.dtype == torch.bool else value  # torch subtracts no bools
        return (value - loc).div_(scale) if self.standard_normal else (value * scale).add_(loc)

    @override
    def invert_value(self, value: Tensor) -> Tensor:
        loc, scale = self._loc_and_scale(value)
        return (value * scale).add_(loc) if self.standard_normal else (value - loc).div_(scale)

    @override
    def transformed_spec(self, spec: TensorSpec) -> TensorSpec:
        return map_bounds(spec, self.transform_value)

    def _repr_arguments(self) -> dict[str, Any]:
        arguments = {name: _as_number(value) for name, value in (("loc", self.loc), ("scale", self.scale))}
        return {**arguments, **({"standard_normal": True} if self.standard_normal else {})}


class ObservationNorm(_Affine):
    """Shift and scale entries: ``value * scale + loc``, or with `standard_normal` ``(value - loc) / scale``.

        >>> dataset.append_transform(ObservationNorm(standard_normal=True).init_stats(dataset))

    Args:
        loc: Location: a number, or a tensor that broadcasts with the entry of one step. In a recipe, the statistics of
            another dataset, such as the dataset that a policy was trained on.
        scale: Scale: a number, or a tensor that broadcasts with the entry of one step.
        in_keys: Keys of the entries to normalize, ``"observation"`` and ``("next", "observation")`` by default. TorchRL
            has no default, although the documentation of TorchRL assumes a default.
        in_keys_inv: Keys of the entries that `inv` writes, denormalized.
        standard_normal: Whether `loc` and `scale` are a mean and a standard deviation.
        eps: Threshold for `init_stats`: elements whose standard deviation is at most `eps` are shifted, but not scaled.
    """

    in_double = True
    in_recipes = True

    def __init__(
        self,
        loc: Number = None,
        scale: Number = None,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        in_keys_inv: Keys | None = None,
        out_keys_inv: Keys | None = None,
        standard_normal: bool = False,
        eps: float = 1e-6,
    ) -> None:
        default: Keys = ["observation", (NEXT, "observation")]
        in_keys = default if in_keys is None else in_keys
        super().__init__(loc, scale, in_keys, out_keys, in_keys_inv, out_keys_inv, standard_normal=standard_normal)
        self.eps = eps

    def init_stats(
        self, source: Any, *, reduce_dim: int | Sequence[int] | None = None, key: NestedKey | None = None
    ) -> ObservationNorm:
        """Set loc and scale so that the normalized data has mean 0 and standard deviation 1.

        TorchRL's method of the same name steps an environment to collect data.

        Args:
            source: A dataset or a manifest with stored statistics, which are used without reading data, or a TensorDict
                or a tensor to compute the statistics of.
            reduce_dim: Axes of a tensor to average over. By default the batch axes of a TensorDict, or the first axis
                of a tensor.
            key: Key of the entry, the first of `in_keys` by default.

        Returns:
            The transform.

        Raises:
            UnknownKeyError: If the source has no such entry.
            InvalidArgumentError: If the source has no statistics of the entry.
        """
        key = self.in_keys[0] if key is None else flat_key(key)
        manifest = getattr(source, "manifest", source)
        if isinstance(manifest, Manifest):
            mean, std = _stored_statistics(manifest, key)
        else:
            mean, std = _computed_statistics(source, key, reduce_dim)
        std = torch.where(std > self.eps, std, 1)
        self.loc, self.scale = (mean, std) if self.standard_normal else (-mean / std, 1 / std)
        return self


class RewardScaling(_Affine):
    """Shift and scale rewards: ``reward * scale + loc``, or with `standard_normal` ``(reward - loc) / scale``.

        >>> import torch
        >>> from tensordict import TensorDict
        >>> from datasets_rl.transforms import RewardScaling
        >>> batch = TensorDict({"next": {"reward": torch.tensor([[1.0], [2.0]])}}, [2])
        >>> RewardScaling(loc=-0.5, scale=10.0, in_keys=[("next", "reward")])(batch)["next", "reward"].flatten()
        tensor([ 9.5000, 19.5000])

    Args:
        loc: Location, a number or a tensor, 0 by default, and required in TorchRL.
        scale: Scale, a number or a tensor, 1 by default, and required in TorchRL.
        in_keys: Keys of the rewards, ``("next", "reward")`` by default, their key in TED.
        standard_normal: Whether `loc` and `scale` are a mean and a standard deviation.
    """

    in_recipes = True

    def __init__(
        self,
        loc: Number = 0.0,
        scale: Number = 1.0,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        standard_normal: bool = False,
    ) -> None:
        super().__init__(
            loc, scale, [(NEXT, "reward")] if in_keys is None else in_keys, out_keys, standard_normal=standard_normal
        )

    @override
    def transform_value(self, value: Tensor) -> Tensor:
        return super().transform_value(float_rewards(value))


def _as_tensor(value: Number) -> Tensor | None:
    return (
        None
        if value is None
        else number_tensor(
            value, "a shift or a scale", None if isinstance(value, Tensor) else torch.get_default_dtype()
        ).clone()
    )


def _as_number(value: Tensor | None) -> Any:
    return value if value is None else value.item() if value.ndim == 0 else f"tensor{list(value.shape)}"


def _stored_statistics(manifest: Manifest, key: NestedKey) -> tuple[Tensor, Tensor]:
    path = (key,) if isinstance(key, str) else key
    # A key shared by a step and its next step is stored once, with one set of statistics.
    statistics = manifest.statistics
    name = next((field for field in (".".join(path), ".".join(path[1:])) if field in statistics), None)
    if name is None:
        raise UnknownKeyError(".".join(path), sorted(statistics))
    mean, std = (statistics[name].get(statistic) for statistic in ("mean", "std"))
    try:
        dtype = torch.get_default_dtype()
        return torch.tensor(mean, dtype=dtype), torch.tensor(std, dtype=dtype)
    except (TypeError, RuntimeError):
        raise InvalidArgumentError(
            f"the mean of {name} is {mean} and its standard deviation is {std}, expected numbers"
        ) from None


def _computed_statistics(source: Any, key: NestedKey, reduce_dim: int | Sequence[int] | None) -> tuple[Tensor, Tensor]:
    if is_tensor_collection(source):
        axes = tuple(range(source.ndim)) if reduce_dim is None else reduce_dim
        source = get_entry(source, resolve_key(key, source))
    elif isinstance(source, Tensor):
        axes = 0 if reduce_dim is None else reduce_dim
    else:
        raise InvalidArgumentError(
            f"source is a {type(source).__name__}, expected a dataset, a manifest, a TensorDict or a tensor"
        )
    axes = (axes,) if isinstance(axes, int) else tuple(axes)
    values = source.double()
    dtype = source.dtype if source.is_floating_point() else torch.get_default_dtype()
    return values.mean(axes).to(dtype), values.std(axes, correction=0).to(dtype)
