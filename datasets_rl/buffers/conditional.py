"""Updates of steps that are applied only while the steps are the sampled steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datasets_rl.arguments import check
from datasets_rl.buffers.fields import overwrite_fields
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.storages.base import Storage
from datasets_rl.ted.keys import Key, as_key, dotted_name


@dataclass(frozen=True, eq=False)
class ConditionalUpdateResult:
    """Which steps `ReplayBuffer.update_if_present` has overwritten.

    Every step is updated, stale, or rejected because of its version.

    Attributes:
        updated: Whether each step was overwritten, bool [B].
        version_rejected: Whether each step that is still present was not overwritten because of the step's version,
            bool [B]. None without a version.
    """

    updated: Tensor
    version_rejected: Tensor | None = None

    @property
    def updated_count(self) -> int:
        """Number of steps that were overwritten."""
        return int(self.updated.sum())

    @property
    def version_rejected_count(self) -> int:
        """Number of steps that are still present, but were not overwritten because of their version."""
        return 0 if self.version_rejected is None else int(self.version_rejected.sum())

    @property
    def stale_count(self) -> int:
        """Number of steps that are no longer present."""
        return self.updated.numel() - self.updated_count - self.version_rejected_count


def update_if_present(
    storage: Storage,
    rows: Tensor,
    patch: Mapping[Key, Any],
    live: Tensor,
    version_key: Any,
    version: Any,
    *,
    require_newer: bool,
) -> ConditionalUpdateResult:
    """Overwrite the steps that are still present, see `ReplayBuffer.update_if_present`.

    All arguments are checked before.

    Args:
        storage: The storage of the steps.
        rows: The rows of the steps, int64 [B].
        patch: The new values by key, each [B, ...].
        live: Which of the steps are still present, bool [B].
        version_key: Field with the version of each step. None for no comparison.
        version: The new version, a single number or a number per step.
        require_newer: Whether a new version must be above the stored version, or may equal the stored version.
    """
    problems: list[str] = []
    if (version_key is None) is not (version is None):
        problems.append("version_key or version was given alone, expected both, or neither")
    if isinstance(version_key, str) and "." in version_key:
        problems.append(f"Dotted-string version_key {version_key!r}, expected {tuple(version_key.split('.'))!r}")
    check(problems)
    key = None if version_key is None else as_key(version_key)
    if key in patch:
        raise InvalidArgumentError(f"version_key {dotted_name(key or ())!r} may not appear in patch")
    values = {name: _checked(storage, rows, name, value, problems) for name, value in patch.items()}
    versions = None if key is None else _checked_version(storage, len(rows), key, torch.as_tensor(version), problems)
    if problems:
        raise InvalidArgumentError(f"the steps cannot be updated: {'; '.join(problems)}")
    updated, rejected = live, None
    if key is not None and versions is not None:
        updated = live.clone()
        new = versions[live.to(versions.device)].cpu()
        updated[live] = _accepted(storage.pick(key, rows[live]).reshape(-1).cpu(), rows[live], new, require_newer)
        rejected = live & ~updated
        values[key] = versions.reshape(-1, *storage.column(key).shape[1:])
    if updated.any():
        chosen = {name: value[updated.to(value.device)] for name, value in values.items()}
        overwrite_fields(storage, chosen, rows[updated])
    return ConditionalUpdateResult(updated, rejected)


def _checked(storage: Storage, rows: Tensor, key: Key, value: Any, problems: list[str]) -> Tensor:
    """Return the values of a field in the order of the rows, and append problems to `problems`."""
    column: Any = storage.writable_column(key)
    new = torch.as_tensor(value)
    if not isinstance(column, Tensor):
        problems.append(f"{dotted_name(key)!r} holds several fields, expected the key of a single field")
        return new
    if new.dtype != column.dtype:
        problems.append(f"the value of {dotted_name(key)!r} is {new.dtype}, expected {column.dtype}")
    shape = (len(rows), *column.shape[1:])
    if new.numel() != torch.Size(shape).numel():
        problems.append(f"the value of {dotted_name(key)!r} has shape {list(new.shape)}, expected {list(shape)}")
        return new
    # Values may have the shape of the data that was extended, [envs, time, ...]. Rows are in order of time.
    axes = storage.ndim
    is_data_shaped = axes > 1 and new.shape[axes:] == column.shape[1:] and new.ndim == axes + column.ndim - 1
    return (new.movedim(axes - 1, 0) if is_data_shaped else new).reshape(shape)


def _checked_version(storage: Storage, steps: int, key: Key, version: Tensor, problems: list[str]) -> Tensor:
    """Return the new version of each step, [B], and append problems to `problems`."""
    column: Any = storage.writable_column(key)
    if not isinstance(column, Tensor) or column[:1].numel() != 1:
        problems.append(f"version_key {dotted_name(key)!r} does not hold a single number per step")
        return version
    if version.numel() not in {1, steps}:
        problems.append(f"version has shape {list(version.shape)}, expected a single number, or [{steps}]")
        return version
    return version.reshape(-1).expand(steps).to(column.dtype)


def _accepted(stored: Tensor, rows: Tensor, version: Tensor, require_newer: bool) -> Tensor:
    """Return which of the present steps have an acceptable version, bool [present steps]."""
    accepted = version > stored if require_newer else version >= stored
    # Of several updates of the same step, the last update with the highest version wins.
    steps, step = torch.unique(rows, return_inverse=True)
    order = torch.argsort(version, stable=True).numpy()
    winner = np.zeros(len(steps), np.int64)
    winner[step.numpy()[order]] = order  # of several values for the same element, numpy keeps the last
    return accepted & (torch.from_numpy(winner)[step] == torch.arange(len(rows)))
