"""Inference of specs: from the manifest of a dataset, and from data such as a TensorDict."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from tensordict import LazyStackedTensorDict, is_non_tensor, is_tensor_collection
from torch import Tensor

from datasets_rl.errors import InvalidArgumentError, ManifestError
from datasets_rl.format.manifest import Manifest
from datasets_rl.specs.base import TensorSpec
from datasets_rl.specs.bounded import BoundedTensorSpec
from datasets_rl.specs.categorical import DiscreteTensorSpec
from datasets_rl.specs.composite import CompositeSpec
from datasets_rl.specs.lazy import stack_specs
from datasets_rl.specs.non_tensor import NonTensorSpec
from datasets_rl.specs.unbounded import Unbounded
from datasets_rl.ted.keys import NEXT, NEXT_FINAL_KNOWN, ROOT_FLAGS, Key, as_key, dotted_name, nest_keys

_CHUNK_BYTES = 1 << 24


def from_manifest(manifest: Manifest, fields: Mapping[Key, torch.dtype | None] | None = None) -> CompositeSpec:
    """Return the spec of a transition of a dataset.

    The bounds are the bounds of the specs in the manifest. The minimum and maximum in the statistics are not bounds:
    other datasets of the same task may exceed these values.

    Args:
        manifest: Manifest of the dataset.
        fields: Keys of the spec, each with the dtype of read values (`None` for the stored dtype). All keys by default.

    Raises:
        ManifestError: If the manifest describes a spec that this version does not support. The message lists all
            problems.
    """
    leaves: dict[Key, Any] = {key: DiscreteTensorSpec(2, (1,), dtype=torch.bool) for key in ROOT_FLAGS}
    problems: list[str] = []
    for field in manifest.schema:
        if field.name not in manifest.specs:
            problems.append(f"specs.{field.name} is missing")
            continue
        try:
            leaves[field.key] = spec = TensorSpec.from_json(manifest.specs[field.name])
        except InvalidArgumentError as error:
            problems.append(f"specs.{field.name}: {error.message}")
            continue
        if field.shared:
            leaves[(NEXT, *field.key)] = spec
    if problems:
        raise ManifestError("manifest.json", problems)
    if manifest.final_unknown:
        leaves[NEXT_FINAL_KNOWN] = DiscreteTensorSpec(2, (1,), dtype=torch.bool)
    if fields is not None:
        leaves = {key: leaves[key].to(dtype) for key, dtype in fields.items()}
    return CompositeSpec(nest_keys(leaves))


def misfits_of_columns(spec: CompositeSpec, column: Callable[[Key, int, int], Any], steps: int) -> list[str]:
    """Return the values of a stored dataset that are outside the spec, as messages.

    For each field, only the first chunk with such values is reported. NaN and infinity, which are never inside bounds,
    are left out, because the statistics of the dataset count these values.

    Args:
        spec: Spec of a transition.
        column: Function of a key, the first row and the last row (exclusive) that returns the values,
            [stop - start, ...].
        steps: Number of rows of the dataset.
    """
    reasons: list[str] = []
    for name, leaf in spec.items(include_nested=True, leaves_only=True):
        key = as_key((name,) if isinstance(name, str) else name)
        if isinstance(leaf, (Unbounded, NonTensorSpec)) or key in ROOT_FLAGS:
            continue
        rows = max(_CHUNK_BYTES // max(leaf.zero().nbytes, 1), 1)
        for start in range(0, steps, rows):
            values = torch.from_numpy(np.array(column(key, start, min(start + rows, steps))))
            values = _finite(values.to(leaf.dtype), leaf)
            problems = leaf.problems(values, f"{dotted_name(key)}[{start}:]")
            if problems:
                reasons += problems
                break
    return reasons


def _finite(values: Tensor, leaf: TensorSpec) -> Tensor:
    """Return values, [n, ...], with the lower bound in place of NaN and infinity."""
    if not isinstance(leaf, BoundedTensorSpec) or not values.is_floating_point() or bool(values.isfinite().all()):
        return values
    return torch.where(values.isfinite(), values, leaf.low)


def spec_from_data(data: Any) -> Any:
    """Return a spec with the shape, dtypes and devices of data, and without bounds except for flags.

        >>> import torch
        >>> from tensordict import TensorDict
        >>> from datasets_rl import spec_from_data
        >>> batch = TensorDict({"observation": torch.zeros(4, 3), "done": torch.zeros(4, 1, dtype=torch.bool)}, [4])
        >>> spec = spec_from_data(batch)
        >>> spec["observation"].shape
        torch.Size([4, 3])

    Args:
        data: A tensor, a TensorDict or a mapping. Any other object gets a non-tensor spec. The batch size of a TensorDict
            becomes the shape of the spec.
    """
    if is_non_tensor(data):
        return NonTensorSpec(data.batch_size, data.device, batched=not hasattr(data, "data"))
    if isinstance(data, LazyStackedTensorDict):
        return stack_specs([spec_from_data(item) for item in data.unbind(data.stack_dim)], data.stack_dim)
    if is_tensor_collection(data) or isinstance(data, Mapping):
        specs = {key: spec_from_data(data.get(key)) for key in data.keys()}  # noqa: SIM118  # a TensorDict iterates over rows
        return CompositeSpec(specs, shape=getattr(data, "batch_size", ()), device=getattr(data, "device", None))
    return _leaf(data) if isinstance(data, Tensor) else NonTensorSpec(())


def _leaf(data: Tensor) -> Any:
    if data.is_nested:
        return stack_specs([_leaf(item) for item in data.unbind(0)])
    if data.dtype == torch.bool:
        return DiscreteTensorSpec(2, data.shape, data.device, torch.bool)
    return Unbounded(data.shape, data.device, data.dtype)
