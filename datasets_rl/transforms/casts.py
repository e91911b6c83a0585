"""Conversion of entries to another dtype, device or kind of memory."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from datasets_rl.errors import WrongTypeError
from datasets_rl.specs import CompositeSpec, TensorSpec
from datasets_rl.transforms.base import Keys, Transform


class DTypeCastTransform(Transform):
    """Cast entries from one dtype to another.

    Without `in_keys`, the transform casts every entry of dtype `dtype_in`. Data that is written to the buffer is cast
    only if `in_keys_inv` is given.

        >>> import torch
        >>> from tensordict import TensorDict
        >>> from datasets_rl.transforms import DTypeCastTransform
        >>> batch = TensorDict({"observation": torch.zeros(4, 2)}, [4])
        >>> DTypeCastTransform(torch.float32, torch.float16, in_keys=["observation"])(batch)["observation"].dtype
        torch.float16

    Args:
        dtype_in: Dtype of the entries to cast. Not checked for entries that `in_keys` names.
        dtype_out: Dtype of the results.
        in_keys: Keys of the entries to cast, every entry of dtype `dtype_in` by default.
        in_keys_inv: Keys of the entries that `inv` writes, cast to `dtype_in`.
    """

    shown: ClassVar[tuple[str, ...]] = ("dtype_in", "dtype_out")
    per_step = True
    instead = "cast"

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
        self._cast_all = in_keys is None

    @override
    def transform_batch(self, batch: Any) -> Any:
        if not self._cast_all:
            return super().transform_batch(batch)
        for key, value in batch.items(include_nested=True, leaves_only=True):
            if isinstance(value, Tensor) and value.dtype == self.dtype_in:
                batch.set(key, value.to(self.dtype_out))
        return batch

    @override
    def transform_value(self, value: Tensor) -> Tensor:
        return value.to(self.dtype_out)

    @override
    def invert_value(self, value: Tensor) -> Tensor:
        return value.to(self.dtype_in)

    @override
    def update_specs(self, spec: CompositeSpec) -> None:
        if not self._cast_all:
            super().update_specs(spec)
            return
        for key, leaf in list(spec.items(include_nested=True, leaves_only=True)):
            if getattr(leaf, "dtype", None) == self.dtype_in:
                spec.set(key, self.transformed_spec(leaf))

    @override
    def transformed_spec(self, spec: TensorSpec) -> TensorSpec:
        cast: TensorSpec = spec.to(self.dtype_out)
        return cast


class DoubleToFloat(DTypeCastTransform):
    """Cast float64 to float32. `inv` casts float32 to float64.

        >>> import torch
        >>> from tensordict import TensorDict
        >>> from datasets_rl.transforms import DoubleToFloat
        >>> batch = TensorDict({"observation": torch.zeros(4, 2, dtype=torch.float64)}, [4])
        >>> DoubleToFloat(in_keys=["observation"])(batch)["observation"].dtype
        torch.float32

    Args:
        in_keys: Keys of the entries to cast, every entry of dtype float64 by default.
        in_keys_inv: Keys of the entries that `inv` writes, as float64.
    """

    shown = ()
    instead = "cast"

    def __init__(
        self,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        in_keys_inv: Keys | None = None,
        out_keys_inv: Keys | None = None,
    ) -> None:
        super().__init__(torch.float64, torch.float32, in_keys, out_keys, in_keys_inv, out_keys_inv)


class DeviceCastTransform(Transform):
    """Rearrange a batch to a device.

    A whole batch in main memory is first copied to a single block, page-locked for a GPU, which moves by one copy.

        >>> import torch
        >>> from tensordict import TensorDict
        >>> from datasets_rl.transforms import DeviceCastTransform
        >>> batch = TensorDict({"observation": torch.zeros(4, 2)}, [4])
        >>> DeviceCastTransform("cpu")(batch).device
        device(type='cpu')

    Args:
        device: Device of the result.
        orig_device: Device to which `inv` moves data that is written to the buffer. By default the data is not moved.
        in_keys: Keys of the entries to move, the whole batch by default.
        in_keys_inv: Keys of the entries that `inv` writes, all entries by default.
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
        self.device = _as_device(device)
        self.orig_device = None if orig_device is None else _as_device(orig_device)

    @override
    def transform_batch(self, batch: Any) -> Any:
        if not self.in_keys:
            if self.device.type == "cpu" or not _is_in_main_memory(batch):
                return batch.to(self.device, non_blocking=True)
            block = batch.consolidate(pin_memory=torch.cuda.is_available())
            return block.to(self.device, non_blocking=True).copy()  # a block is locked, its copy has the same tensors
        # A TensorDict with a device moves every entry that is set to that device.
        return super().transform_batch(batch.clear_device_())

    @override
    def transform_value(self, value: Tensor) -> Tensor:
        return value.to(self.device, non_blocking=True)

    def inv(self, data: Any) -> Any:
        """Rearrange data that is written to the buffer to `orig_device`, or return the data unchanged."""
        if self.orig_device is None:
            return data
        if self.in_keys_inv:
            return super().inv(data)
        return [item.to(self.orig_device) for item in data] if isinstance(data, list) else data.to(self.orig_device)

    @override
    def invert_value(self, value: Tensor) -> Tensor:
        return value.to(self.orig_device)

    @override
    def update_specs(self, spec: CompositeSpec) -> None:
        if self.in_keys:
            spec.clear_device_()
            super().update_specs(spec)
            return
        for key, inner in list(spec.items()):
            spec.set(key, inner if inner is None else inner.to(self.device))
        spec.device = self.device

    @override
    def transformed_spec(self, spec: TensorSpec) -> TensorSpec:
        moved: TensorSpec = spec.to(self.device)
        return moved

    def _repr_arguments(self) -> dict[str, Any]:
        return {"device": str(self.device), **({"orig_device": str(self.orig_device)} if self.orig_device else {})}


def _is_in_main_memory(batch: Any) -> bool:
    leaves = [*batch.values(include_nested=True, leaves_only=True)]
    return bool(leaves) and all(isinstance(leaf, Tensor) and leaf.is_cpu for leaf in leaves)


class PinMemoryTransform(Transform):
    """Copy a batch on the CPU to page-locked memory, which a GPU reads faster. Without a GPU, return the batch."""

    @override
    def transform_batch(self, batch: Any) -> Any:
        if not torch.accelerator.is_available() or any(
            value.device.type != "cpu" for value in batch.values(True, True)
        ):
            return batch
        return batch.pin_memory()


def _as_device(device: Any) -> torch.device:
    try:
        return torch.device(device)
    except (TypeError, RuntimeError) as error:
        raise WrongTypeError(f"the device is {device!r:.60}, expected a device, such as 'cuda:0'") from error
