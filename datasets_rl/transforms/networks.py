"""Transforms by modules of tensordict."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from typing_extensions import override

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.transforms.base import Transform, key_list


class ModuleTransform(Transform):
    """Apply a module, such as an encoder, to a batch.

        >>> dataset.append_transform(ModuleTransform(module=TensorDictModule(encoder, ["pixels"], ["features"])))

    Args:
        module: Module of a TensorDict, such as a TensorDictModule.
        module_factory: Function that returns the module, given instead of `module`.
        no_grad: Whether to run the module without gradients.
        inverse: Whether to apply the module to written data instead of sampled batches.
        device: Device of the module. Batches are moved to this device and back.

    Raises:
        InvalidArgumentError: If not exactly one of `module` and `module_factory` is given.
    """

    def __init__(
        self,
        *,
        module: Any = None,
        module_factory: Callable[[], Any] | None = None,
        no_grad: bool = False,
        inverse: bool = False,
        device: Any = None,
    ) -> None:
        super().__init__()
        if (module is None) == (module_factory is None):
            raise InvalidArgumentError("expected exactly one of module and module_factory")
        self.module = module_factory() if module_factory is not None else module
        self.no_grad, self.inverse = no_grad, inverse
        self.device = None if device is None else torch.device(device)
        if device is not None:
            self.module = self.module.to(device)
        read, written = (key_list(getattr(self.module, name, None)) for name in ("in_keys", "out_keys"))
        if inverse:
            self.in_keys_inv, self.out_keys_inv = written, read
        else:
            self.in_keys, self.out_keys = read, written

    def _apply_module(self, batch: Any) -> Any:
        home = batch.device
        with torch.no_grad() if self.no_grad else nullcontext():
            result = self.module(batch if self.device is None else batch.to(self.device))
        return result if self.device is None or home is None else result.to(home)

    @override
    def transform_batch(self, batch: Any) -> Any:
        return batch if self.inverse else self._apply_module(batch)

    @override
    def _inv_call(self, tensordict: Any) -> Any:
        return self._apply_module(tensordict) if self.inverse else tensordict

    def _repr_arguments(self) -> dict[str, Any]:
        return {"module": type(self.module).__name__, **({"inverse": True} if self.inverse else {})}
