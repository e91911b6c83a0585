"""Checks of batches, and selection of their rows and entries."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from tensordict import is_tensor_collection
from torch import Tensor
from typing_extensions import override

from datasets_rl.arguments import check, size_problems
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs import CompositeSpec
from datasets_rl.transforms.base import NestedKey, Transform, get_entry


class FiniteTensorDictCheck(Transform):
    """Raise an error if an entry of a batch has an element that is NaN or infinite."""

    @override
    def transform_batch(self, batch: Any) -> Any:
        for key, value in batch.items(include_nested=True, leaves_only=True):
            if isinstance(value, Tensor) and value.is_floating_point() and not bool(value.isfinite().all()):
                raise InvalidArgumentError(f"{key} has elements that are not finite, expected finite numbers")
        return batch


class PolicyAgeFilter(Transform):
    """Remove the steps of behavior policies that are too old, from sampled batches and from written data.

    A sampled batch may have fewer rows than requested.

    Args:
        current_version: Version of the current policy, an integer, or a function that returns it.
        max_policy_lag: Maximum difference between the current version and that of a step.
        policy_version_key: Key of the version of the policy of each step, integers [B, ...]. If there are several
            versions, the oldest version counts.
        strict: Whether a missing version is an error. If not, the data is not filtered, with a warning.

    Raises:
        InvalidArgumentError: If `max_policy_lag` is negative.
    """

    shown = ("max_policy_lag",)

    def __init__(
        self,
        current_version: int | Callable[[], int],
        max_policy_lag: int,
        *,
        policy_version_key: NestedKey = "policy_version",
        strict: bool = False,
    ) -> None:
        super().__init__()
        check(size_problems(0, max_policy_lag=max_policy_lag))
        self.current_version, self.max_policy_lag = current_version, max_policy_lag
        self.policy_version_key, self.strict = policy_version_key, strict
        self._warned = False

    @override
    def transform_batch(self, batch: Any) -> Any:
        if not batch.ndim or not len(batch):
            return batch
        versions = batch.get(self.policy_version_key, None)
        if versions is None:
            if self.strict:
                get_entry(batch, self.policy_version_key)
            if not self._warned:
                warnings.warn(f"batches have no {self.policy_version_key}, and are not filtered", stacklevel=2)
                self._warned = True
            return batch
        current = self.current_version() if callable(self.current_version) else self.current_version
        kept = current - versions.reshape(len(batch), -1).min(-1).values <= self.max_policy_lag
        return batch if bool(kept.all()) else batch[kept.to(batch.device)]

    @override
    def _inv_call(self, tensordict: Any) -> Any:
        kept = self.transform_batch(tensordict)
        return None if tensordict.ndim and len(tensordict) and not len(kept) else kept

    @override
    def update_specs(self, spec: CompositeSpec) -> None:
        del spec


class RemoveEmptySpecs(Transform):
    """Remove groups without entries from batches and specs."""

    @override
    def transform_batch(self, batch: Any) -> Any:
        _remove_empty_groups(batch, batch.values(), is_tensor_collection)
        return batch

    @override
    def update_specs(self, spec: CompositeSpec) -> None:
        _remove_empty_groups(spec, spec.values(), lambda inner: isinstance(inner, CompositeSpec))


def _remove_empty_groups(container: Any, values: Any, is_group: Callable[[Any], bool]) -> None:
    for key, value in list(zip(container.keys(), values, strict=True)):
        if is_group(value):
            group = value.copy() if is_tensor_collection(value) else value
            _remove_empty_groups(group, group.values(), is_group)
            if not list(group.keys()):
                del container[key]
            elif group is not value:
                container.set(key, group)
