"""Specs of a dataset, from its manifest."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

import numpy as np
import torch

from datasets_rl.errors import ManifestInvalid
from datasets_rl.manifest import Manifest
from datasets_rl.specs._base import TensorSpec
from datasets_rl.specs.composite import CompositeSpec
from datasets_rl.specs.discrete import DiscreteTensorSpec
from datasets_rl.specs.unbounded import UnboundedContinuousTensorSpec, UnboundedDiscreteTensorSpec
from datasets_rl.ted.keys import NEXT, ROOT_FLAGS, Key, nested

__all__ = ["from_manifest"]


def from_manifest(manifest: Manifest, fields: Mapping[Key, torch.dtype | None] | None = None) -> CompositeSpec:
    """Return the spec of one transition of a dataset.

    Args:
        manifest: Of the dataset.
        fields: The keys that are shown, and the dtype that each is read as (None for its own); all keys by default.

    Raises:
        ManifestInvalid: If the manifest describes a kind of spec that this version does not know.
    """
    leaves: dict[Key, TensorSpec] = {key: DiscreteTensorSpec(2, (1,), dtype=torch.bool) for key in ROOT_FLAGS}
    for field in manifest.schema:
        leaves[field.key] = spec = _spec(field.name, manifest.specs.get(field.name, {}))
        if field.carried:
            leaves[(NEXT, *field.key)] = spec
    if fields is not None:
        leaves = {key: _read_as(leaves[key], dtype) for key, dtype in fields.items()}
    return CompositeSpec(nested(leaves))


def _read_as(spec: TensorSpec, dtype: torch.dtype | None) -> TensorSpec:
    if dtype is None:
        return spec
    if isinstance(spec, UnboundedDiscreteTensorSpec) and dtype.is_floating_point:
        return UnboundedContinuousTensorSpec(spec.shape, dtype=dtype)
    spec = copy(spec)
    spec.dtype = dtype
    return spec


def _spec(name: str, described: dict[str, Any]) -> TensorSpec:
    try:
        shape = [int(size) for size in described["shape"]]
        dtype = torch.from_numpy(np.empty(0, described["dtype"])).dtype
        if described["kind"] == "discrete":
            return DiscreteTensorSpec(int(described.get("n", 2)), shape, dtype=dtype)
        continuous = described["kind"] == "unbounded" and dtype.is_floating_point
        kinds = UnboundedContinuousTensorSpec if continuous else UnboundedDiscreteTensorSpec
        return kinds(shape, dtype=dtype)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ManifestInvalid("manifest.json", [f"specs.{name} is {described!r}: {error!r}"]) from error
