"""Updates of steps that are applied only while the steps are those that were sampled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datasets_rl.buffers.fields import overwrite_fields
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.storages.base import Storage
from datasets_rl.ted.keys import Key, as_key, dotted_name

__all__ = ["ConditionalUpdate", "ConditionalUpdateResult"]


@dataclass(frozen=True, eq=False)
class ConditionalUpdateResult:
    """Which steps `ReplayBuffer.update_if_present` has overwritten.

    Every step is updated, stale, or rejected because of its version.

    Attributes:
        updated: Whether each step was overwritten, bool [B].
        version_rejected: Whether each step that is still present was not overwritten because of its version, bool [B];
            None without a version.
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


class ConditionalUpdate:
    """New values for some steps, checked before anything is written.

    Args:
        storage: The storage of the steps.
        rows: The rows of the steps, int64 [B].
        patch: The new values by key, each [B, ...].
        version_key: Field with the version of each step; None for no comparison.
        version: The new version, one number or one per step.

    Raises:
        UnknownKeyError: If there is no such key.
        InvalidArgumentError: If a value has another dtype or shape, or only one of `version_key` and `version` is
            given. The message lists all problems.
    """

    def __init__(
        self, storage: Storage, rows: Tensor, patch: Mapping[Key, Any], version_key: Any, version: Any
    ) -> None:
        problems: list[str] = []
        if (version_key is None) is not (version is None):
            problems.append("only one of version_key and version was given; expected both, or neither")
        if isinstance(version_key, str) and "." in version_key:
            problems.append(f"Dotted-string version_key {version_key!r}; expected {tuple(version_key.split('.'))!r}")
        if problems:
            raise InvalidArgumentError("; ".join(problems))
        self._storage, self._rows = storage, rows
        self._version_key = None if version_key is None else as_key(version_key)
        if self._version_key in patch:
            raise InvalidArgumentError(f"version_key {dotted_name(self._version_key or ())!r} may not appear in patch")
        self._patch = {key: self._checked(key, value, problems) for key, value in patch.items()}
        if self._version_key is not None:
            self._version = self._checked_version(self._version_key, torch.as_tensor(version), problems)
        if problems:
            raise InvalidArgumentError(f"the steps cannot be updated: {'; '.join(problems)}")

    def _checked(self, key: Key, value: Any, problems: list[str]) -> Tensor:
        column: Any = self._storage.column(key)
        new = torch.as_tensor(value)
        if not isinstance(column, Tensor):
            problems.append(f"{dotted_name(key)!r} holds several fields; expected the key of one")
            return new
        if new.dtype != column.dtype:
            problems.append(f"the value of {dotted_name(key)!r} is {new.dtype}; expected {column.dtype}")
        shape = (len(self._rows), *column.shape[1:])
        if new.numel() != torch.Size(shape).numel():
            problems.append(f"the value of {dotted_name(key)!r} has shape {list(new.shape)}; expected {list(shape)}")
            return new
        return self._in_row_order(new, column.shape[1:]).reshape(shape)

    def _in_row_order(self, new: Tensor, shape: torch.Size) -> Tensor:
        """Move time to the front of values in the shape of the data that was extended, [envs, time, *shape].

        The rows of an index from `extend` are ordered by time, and then by environment.
        """
        axes = self._storage.ndim
        is_data_shaped = axes > 1 and new.shape[axes:] == shape and new.ndim == axes + len(shape)
        return new.movedim(axes - 1, 0) if is_data_shaped else new

    def _checked_version(self, key: Key, version: Tensor, problems: list[str]) -> Tensor:
        column: Any = self._storage.column(key)
        if not isinstance(column, Tensor) or column[:1].numel() != 1:
            problems.append(f"version_key {dotted_name(key)!r} does not hold one number per step")
            return version
        if version.numel() not in {1, len(self._rows)}:
            problems.append(f"version has shape {list(version.shape)}; expected one number, or [{len(self._rows)}]")
            return version
        return version.reshape(-1).expand(len(self._rows)).to(column.dtype)

    def apply(self, generation: Tensor, current: Tensor, *, require_newer: bool) -> ConditionalUpdateResult:
        """Overwrite the steps that are still present.

        Args:
            generation: The generations of their slots when they were sampled, [B].
            current: The generations now, [B].
            require_newer: Whether a new version must be above the stored one, or may equal it.

        Raises:
            InvalidArgumentError: If the number of generations is not that of the steps; nothing is written.
        """
        if generation.numel() != len(self._rows):
            raise InvalidArgumentError(
                f"there are {generation.numel()} generations for {len(self._rows)} steps; expected one each"
            )
        live = (current >= 0) & (current == generation.reshape(-1).to(current.device))
        live &= self._rows < len(self._storage)
        updated, rejected, values = live, None, dict(self._patch)
        if self._version_key is not None:
            updated = live.clone()
            updated[live] = self._accepted(self._version_key, live, require_newer=require_newer)
            rejected = live & ~updated
            column = self._storage.column(self._version_key)
            values[self._version_key] = self._version.reshape(-1, *column.shape[1:])
        if updated.any():
            chosen = {key: value[updated.to(value.device)] for key, value in values.items()}
            overwrite_fields(self._storage, chosen, self._rows[updated])
        return ConditionalUpdateResult(updated, rejected)

    def _accepted(self, key: Key, live: Tensor, *, require_newer: bool) -> Tensor:
        """Return which of the present steps have an acceptable version, bool [present steps]."""
        rows, version = self._rows[live], self._version[live.to(self._version.device)].cpu()
        stored = self._storage.pick(key, rows).reshape(-1).cpu()
        accepted = version > stored if require_newer else version >= stored
        # Of several updates of one step, the last one with the highest version wins.
        steps, step = torch.unique(rows, return_inverse=True)
        order = torch.argsort(version, stable=True).numpy()
        winner = np.zeros(len(steps), np.int64)
        winner[step.numpy()[order]] = order  # of several values for one element, numpy keeps the last
        return accepted & (torch.from_numpy(winner)[step] == torch.arange(len(rows)))
