"""Loc and scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import is_tensor_collection
from torch import Tensor

from datasets_rl.checkpoint import refuse
from datasets_rl.errors import InvalidArgumentError, UnknownKeyError
from datasets_rl.format.manifest import Manifest
from datasets_rl.specs import TensorSpec
from datasets_rl.ted.keys import NEXT
from datasets_rl.transforms._bounds import mapped
from datasets_rl.transforms.base import Keys, NestedKey, Transform, any_like, listed, taken

__all__ = ["ObservationNorm", "RewardScaling", "VecNorm"]

Number = float | Tensor | None


class _Affine(Transform):
    """``value * scale + loc``, or with `standard_normal` ``(value - loc) / scale``; `inv` undoes it."""

    def __init__(self, loc: Number, scale: Number, *keys: Keys | None, standard_normal: bool = False) -> None:
        super().__init__(*keys)
        self.loc, self.scale, self.standard_normal = _as_tensor(loc), _as_tensor(scale), standard_normal

    def _both(self, value: Tensor) -> tuple[Tensor, Tensor]:
        if self.loc is None or self.scale is None:
            raise InvalidArgumentError(
                f"{type(self).__name__} has no loc and scale yet",
                hint="give them to the constructor, or call init_stats(dataset)",
            )
        # A fraction keeps its dtype, whatever that of the statistics is.
        dtype = value.dtype if value.is_floating_point() else self.loc.dtype
        return self.loc.to(value.device, dtype), self.scale.to(value.device, dtype)

    def each(self, value: Tensor) -> Tensor:
        """Normalise one entry."""
        loc, scale = self._both(value)
        return (value - loc).div_(scale) if self.standard_normal else (value * scale).add_(loc)

    def each_inv(self, value: Tensor) -> Tensor:
        """Undo it."""
        loc, scale = self._both(value)
        return (value * scale).add_(loc) if self.standard_normal else (value - loc).div_(scale)

    def spec_of(self, spec: TensorSpec) -> TensorSpec:
        """Normalise the bounds."""
        return mapped(spec, self.each)

    def state_dict(self) -> dict[str, Any]:
        """Return loc and scale."""
        return {"loc": self.loc, "scale": self.scale}

    def misfits(self, state_dict: dict[str, Any]) -> list[str]:
        """Say why a state cannot be taken over."""
        return [
            f"{name} is {state_dict.get(name)!r}; expected a tensor"
            for name in ("loc", "scale")
            if not isinstance(state_dict.get(name), Tensor | None) or name not in state_dict
        ]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over loc and scale."""
        refuse(self.misfits(state_dict))
        self.loc, self.scale = (_as_tensor(state_dict[name]) for name in ("loc", "scale"))

    def _facts(self) -> dict[str, Any]:
        shown = {name: _shown(value) for name, value in (("loc", self.loc), ("scale", self.scale))}
        return {**shown, **({"standard_normal": True} if self.standard_normal else {})}


class ObservationNorm(_Affine):
    """Shift and scale entries: ``value * scale + loc``, or with `standard_normal` ``(value - loc) / scale``.

        >>> dataset.append_transform(ObservationNorm(standard_normal=True).init_stats(dataset))

    Args:
        loc: A number, or a tensor that broadcasts against one step.
        scale: Likewise.
        in_keys: Entries that are normalised; ``"observation"`` and ``("next", "observation")`` by default. TorchRL
            has no default, and its documentation relies on one.
        out_keys: Where they are written.
        in_keys_inv: Entries that `inv` writes, with the normalisation undone.
        out_keys_inv: Entries that it reads.
        standard_normal: Whether `loc` and `scale` are a mean and a standard deviation.
        eps: What counts as no deviation in `init_stats`: a number that hardly varies is shifted, and not scaled.
    """

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
        """Take loc and scale from data, so that it comes out with mean 0 and standard deviation 1.

        TorchRL steps an environment for this; here there is data.

        Args:
            source: A dataset: what was stored of it when it was converted, at once. Or its manifest, a TensorDict, or
                a tensor.
            reduce_dim: Axes of a tensor that are averaged over: the batch axes of a TensorDict by default, the first of
                a tensor.
            key: The entry; the first of `in_keys` by default.

        Returns:
            This transform.

        Raises:
            UnknownKeyError: If there is no such entry.
            InvalidArgumentError: If nothing is known of it.
        """
        key = self.in_keys[0] if key is None else listed([key])[0]
        manifest = getattr(source, "manifest", source)
        if isinstance(manifest, Manifest):
            mean, std = _stored(manifest, key)
        else:
            mean, std = _measured(source, key, reduce_dim)
        std = torch.where(std > self.eps, std, 1)
        self.loc, self.scale = (mean, std) if self.standard_normal else (-mean / std, 1 / std)
        return self


class RewardScaling(_Affine):
    """Shift and scale rewards: ``reward * scale + loc``, or with `standard_normal` ``(reward - loc) / scale``.

    Args:
        loc: What is added.
        scale: What they are multiplied by.
        in_keys: The rewards; ``("next", "reward")`` by default, where TED has them.
        out_keys: Where they are written.
        standard_normal: Whether `loc` and `scale` are a mean and a standard deviation.
    """

    def __init__(
        self,
        loc: Number,
        scale: Number,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        standard_normal: bool = False,
    ) -> None:
        super().__init__(
            loc, scale, [(NEXT, "reward")] if in_keys is None else in_keys, out_keys, standard_normal=standard_normal
        )


class VecNorm(Transform):
    """Normalise entries by the mean and the deviation of all steps seen so far, or of some data once and for all.

        >>> norm = VecNorm(in_keys=["observation"]).fit(dataset[:100_000])     # as it stays
        >>> norm = VecNorm(in_keys=["observation"], decay=0.999)               # learns from every batch

    Args:
        in_keys: Entries that are normalised, each by its own statistics.
        out_keys: Where they are written.
        decay: What a step counts for after each further batch, in (0, 1].
        eps: The least standard deviation that is divided by.
    """

    def __init__(
        self, in_keys: Keys, out_keys: Keys | None = None, *, decay: float = 0.9999, eps: float = 1e-4
    ) -> None:
        super().__init__(in_keys, out_keys)
        if not 0 < decay <= 1:
            raise InvalidArgumentError(f"decay is {decay}; expected a number in (0, 1]")
        self.decay, self.eps = decay, eps
        self.frozen = False
        self._counts = [0.0] * len(self.in_keys)
        self._means: list[Tensor | None] = [None] * len(self.in_keys)
        self._variances: list[Tensor | None] = [None] * len(self.in_keys)

    def fit(self, data: Any) -> VecNorm:
        """Take the statistics of data, forget what was seen before, and learn nothing more. Returns this transform."""
        self._counts = [0.0] * len(self.in_keys)
        for place, key in enumerate(self.in_keys):
            self._see(place, taken(data, key), data.ndim)
        return self.freeze()

    def freeze(self) -> VecNorm:
        """Learn nothing from batches from now on."""
        return self.train(mode=False)

    def unfreeze(self) -> VecNorm:
        """Learn from batches again."""
        return self.train()

    def train(self, mode: bool = True) -> VecNorm:
        """Learn from batches, or do so no more."""
        self.frozen = not mode
        return self

    def apply(self, batch: Any) -> Any:
        """Normalise the entries."""
        for place, (in_key, out_key) in enumerate(zip(self.in_keys, self.out_keys, strict=True)):
            value = taken(batch, in_key)
            if not self.frozen:
                self._see(place, value, batch.ndim)
            batch.set(out_key, self._normal(place, value))
        return batch

    def _see(self, place: int, value: Tensor, ndim: int) -> None:
        """Merge the moments of a batch: in float64, so that a large mean does not swallow a small deviation."""
        steps = value.detach().reshape(-1, *value.shape[ndim:]).double()
        count, mean, variance = len(steps), steps.mean(0), steps.var(0, correction=0)
        before, old_mean, old_variance = self._counts[place] * self.decay, self._means[place], self._variances[place]
        if before and old_mean is not None and old_variance is not None:
            share, apart = count / (before + count), mean - old_mean
            variance = old_variance + (variance - old_variance) * share + apart**2 * (share * (1 - share))
            mean = old_mean + apart * share
        self._counts[place], self._means[place], self._variances[place] = before + count, mean, variance

    def _normal(self, place: int, value: Tensor) -> Tensor:
        mean, variance = self._means[place], self._variances[place]
        if mean is None or variance is None:
            raise InvalidArgumentError("VecNorm has seen no data yet", hint="call fit(data), or unfreeze()")
        dtype = value.dtype if value.is_floating_point() else torch.get_default_dtype()
        return (value - mean.to(value.device, dtype)).div_(variance.sqrt().clamp(min=self.eps).to(value.device, dtype))

    def to_observation_norm(self, key: NestedKey | None = None) -> ObservationNorm:
        """Return what this does now to an entry, by default the first one, as a transform that stays as it is."""
        place = 0 if key is None else self.in_keys.index(listed([key])[0])
        mean, variance = self._means[place], self._variances[place]
        if mean is None or variance is None:
            raise InvalidArgumentError("VecNorm has seen no data yet", hint="call fit(data)")
        dtype = torch.get_default_dtype()
        scale = variance.sqrt().clamp(min=self.eps)
        keys = self.in_keys[place : place + 1], self.out_keys[place : place + 1]
        return ObservationNorm(mean.to(dtype), scale.to(dtype), *keys, standard_normal=True)

    def spec_of(self, spec: TensorSpec) -> TensorSpec:
        """Return the spec of any fractions in this shape."""
        value = spec.zero()
        return any_like(value if value.is_floating_point() else value.to(torch.get_default_dtype()))

    def state_dict(self) -> dict[str, Any]:
        """Return the statistics."""
        return {"counts": list(self._counts), "means": list(self._means), "variances": list(self._variances)}

    def misfits(self, state_dict: dict[str, Any]) -> list[str]:
        """Say why a state cannot be taken over."""
        return [
            f"{name} are {state_dict.get(name)!r}; expected {len(self.in_keys)}, one for each entry"
            for name in ("counts", "means", "variances")
            if len(state_dict.get(name, ())) != len(self.in_keys)
        ]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the statistics."""
        refuse(self.misfits(state_dict))
        self._counts = list(state_dict["counts"])
        self._means, self._variances = (
            [None if one is None else one.clone() for one in state_dict[name]] for name in ("means", "variances")
        )

    def _facts(self) -> dict[str, Any]:
        return {"decay": self.decay, "frozen": self.frozen}


def _as_tensor(value: Number) -> Tensor | None:
    return (
        None
        if value is None
        else torch.as_tensor(value, dtype=None if isinstance(value, Tensor) else torch.get_default_dtype()).clone()
    )


def _shown(value: Tensor | None) -> Any:
    return value if value is None else value.item() if value.ndim == 0 else f"tensor{list(value.shape)}"


def _stored(manifest: Manifest, key: NestedKey) -> tuple[Tensor, Tensor]:
    path = (key,) if isinstance(key, str) else key
    # What stands at t and at t+1 is stored once, and its statistics too.
    known = manifest.statistics
    name = next((one for one in (".".join(path), ".".join(path[1:])) if one in known), None)
    if name is None:
        raise UnknownKeyError(".".join(path), sorted(known))
    mean, std = (known[name].get(part) for part in ("mean", "std"))
    try:
        dtype = torch.get_default_dtype()
        return torch.tensor(mean, dtype=dtype), torch.tensor(std, dtype=dtype)
    except (TypeError, RuntimeError):
        raise InvalidArgumentError(f"{name} has a mean of {mean} and a deviation of {std}; expected numbers") from None


def _measured(source: Any, key: NestedKey, reduce_dim: int | Sequence[int] | None) -> tuple[Tensor, Tensor]:
    if is_tensor_collection(source):
        axes = tuple(range(source.ndim)) if reduce_dim is None else reduce_dim
        source = taken(source, key)
    elif isinstance(source, Tensor):
        axes = 0 if reduce_dim is None else reduce_dim
    else:
        raise InvalidArgumentError(
            f"a {type(source).__name__} has no statistics; expected a dataset, a TensorDict or a tensor"
        )
    axes = (axes,) if isinstance(axes, int) else tuple(axes)
    values = source.double()
    dtype = source.dtype if source.is_floating_point() else torch.get_default_dtype()
    return values.mean(axes).to(dtype), values.std(axes, correction=0).to(dtype)
