"""The dtype and the device of entries."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from datasets_rl.specs import CompositeSpec, TensorSpec
from datasets_rl.transforms.base import Keys, Transform

__all__ = ["DTypeCastTransform", "DeviceCastTransform", "DoubleToFloat", "PinMemoryTransform"]


class DTypeCastTransform(Transform):
    """Cast entries from one dtype to another.

    Without keys, every entry of `dtype_in` is cast, and nothing on its way into the buffer.

    Args:
        dtype_in: The dtype before; of named entries, whatever they have.
        dtype_out: The dtype after.
        in_keys: Entries that are cast.
        out_keys: Where they are written.
        in_keys_inv: Entries that `inv` writes, cast to `dtype_in`.
        out_keys_inv: Entries that it reads.
    """

    def __init__(
        self,
        dtype_in: torch.dtype,
        dtype_out: torch.dtype,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        in_keys_inv: Keys | None = None,
        out_keys_inv: Keys | None = None,
    ) -> None:
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        self.dtype_in, self.dtype_out = dtype_in, dtype_out
        self._every = in_keys is None

    def apply(self, batch: Any) -> Any:
        """Cast the entries."""
        if not self._every:
            return super().apply(batch)
        for key, value in batch.items(include_nested=True, leaves_only=True):
            if isinstance(value, Tensor) and value.dtype == self.dtype_in:
                batch.set(key, value.to(self.dtype_out))
        return batch

    def each(self, value: Tensor) -> Tensor:
        """Cast one entry."""
        return value.to(self.dtype_out)

    def each_inv(self, value: Tensor) -> Tensor:
        """Cast one entry back."""
        return value.to(self.dtype_in)

    def respec(self, spec: CompositeSpec) -> None:
        """Cast the specs."""
        if not self._every:
            super().respec(spec)
            return
        for key, one in list(spec.items(include_nested=True, leaves_only=True)):
            if getattr(one, "dtype", None) == self.dtype_in:
                spec.set(key, self.spec_of(one))

    def spec_of(self, spec: TensorSpec) -> TensorSpec:
        """Return the spec in the other dtype."""
        cast: TensorSpec = spec.to(self.dtype_out)
        return cast

    def _facts(self) -> dict[str, Any]:
        return {"dtype_in": self.dtype_in, "dtype_out": self.dtype_out}


class DoubleToFloat(DTypeCastTransform):
    """Cast float64 to float32; `inv` the other way round.

    Args:
        in_keys: Entries that are cast; every entry of float64 by default.
        out_keys: Where they are written.
        in_keys_inv: Entries that `inv` writes, as float64.
        out_keys_inv: Entries that it reads.
    """

    def __init__(
        self,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        in_keys_inv: Keys | None = None,
        out_keys_inv: Keys | None = None,
    ) -> None:
        super().__init__(torch.float64, torch.float32, in_keys, out_keys, in_keys_inv, out_keys_inv)

    def _facts(self) -> dict[str, Any]:
        return {}


class DeviceCastTransform(Transform):
    """Move a batch to a device.

    Args:
        device: Where to.
        orig_device: Where `inv` moves what is written; it stays where it is by default.
        in_keys: Entries that are moved; the whole batch by default.
        out_keys: Where they are written.
        in_keys_inv: Entries that `inv` writes; all by default.
        out_keys_inv: Entries that it reads.
    """

    def __init__(
        self,
        device: torch.device | str | int,
        orig_device: torch.device | str | int | None = None,
        *,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        in_keys_inv: Keys | None = None,
        out_keys_inv: Keys | None = None,
    ) -> None:
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        self.device = torch.device(device)
        self.orig_device = None if orig_device is None else torch.device(orig_device)

    def apply(self, batch: Any) -> Any:
        """Move the batch."""
        if not self.in_keys:
            return batch.to(self.device, non_blocking=True)
        # A TensorDict of one device moves whatever is set back to it.
        return super().apply(batch.clear_device_())

    def each(self, value: Tensor) -> Tensor:
        """Move one entry."""
        return value.to(self.device, non_blocking=True)

    def inv(self, data: Any) -> Any:
        """Move what is written to `orig_device`."""
        if self.orig_device is None:
            return data
        if self.in_keys_inv:
            return super().inv(data)
        return [one.to(self.orig_device) for one in data] if isinstance(data, list) else data.to(self.orig_device)

    def each_inv(self, value: Tensor) -> Tensor:
        """Move one entry back."""
        return value.to(self.orig_device)

    def respec(self, spec: CompositeSpec) -> None:
        """Move the specs."""
        if self.in_keys:
            spec.clear_device_()
            super().respec(spec)
            return
        for key, one in list(spec.items()):
            spec.set(key, one if one is None else one.to(self.device))
        spec.device = self.device

    def spec_of(self, spec: TensorSpec) -> TensorSpec:
        """Return the spec on the other device."""
        moved: TensorSpec = spec.to(self.device)
        return moved

    def _facts(self) -> dict[str, Any]:
        return {"device": str(self.device), **({"orig_device": str(self.orig_device)} if self.orig_device else {})}


class PinMemoryTransform(Transform):
    """Copy a batch to page-locked memory, from which a GPU reads faster; without a GPU, nothing happens."""

    def apply(self, batch: Any) -> Any:
        """Pin the batch."""
        if not torch.accelerator.is_available() or any(
            value.device.type != "cpu" for value in batch.values(True, True)
        ):
            return batch
        return batch.pin_memory()
