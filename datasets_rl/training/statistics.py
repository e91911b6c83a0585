"""The statistics of the steps that a run trains on: of some episodes of a dataset, or of all members of a mixture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.format.schema import Field
from datasets_rl.format.statistics import Moments, episode_statistics, field_quantiles, has_quantiles, has_statistics
from datasets_rl.look import StepReader

Statistics = Mapping[str, Mapping[str, Any]]
_BLOCK_BYTES = 4 << 20


class PartStatistics(Mapping[str, Mapping[str, Any]]):
    """The statistics of some episodes, by dotted key, as in a manifest. The steps of a field are read on first use.

    Args:
        steps: The steps of the episodes.
    """

    def __init__(self, steps: StepReader) -> None:
        self._steps = steps
        self._fields = {field.name: field for field in steps.fields if has_statistics(field)}
        self._known: dict[str, Mapping[str, Any]] = {}

    @override
    def __getitem__(self, name: str) -> Mapping[str, Any]:
        if name not in self._known:
            self._known[name] = self._moments(self._fields[name]) if name in self._fields else self._of_episodes[name]
        return self._known[name]

    @override
    def __iter__(self) -> Iterator[str]:
        yield from (*self._fields, *self._of_episodes)

    @override
    def __len__(self) -> int:
        return len(self._fields) + len(self._of_episodes)

    @cached_property
    def _of_episodes(self) -> Mapping[str, Mapping[str, Any]]:
        return episode_statistics(self._steps.episodes)

    def _moments(self, field: Field) -> Mapping[str, Any]:
        steps, moments = self._steps, Moments(field.shape)
        block = max(1, _BLOCK_BYTES // max(1, field.step_bytes))
        for start in range(0, len(steps), block):
            moments.update(steps.read(field.key, start, min(start + block, len(steps))))
        if not has_quantiles(field):
            return moments.to_json()
        taken = field_quantiles([field], len(steps), lambda keys, rows: [steps.take(key, rows) for key in keys])
        return moments.to_json() | taken[field.name]


def mixed_statistics(members: Sequence[Statistics], shares: Sequence[float]) -> Statistics:
    """Return the statistics of the steps of several datasets that are drawn in given shares, by dotted key.

    The mean and the standard deviation are those of the drawn steps. There are no quantiles, which the statistics of the
    members do not determine.

    Args:
        members: The statistics of each dataset. Keys that only some datasets have are left out.
        shares: The share of each dataset, with sum 1. A dataset with the share 0 counts for nothing.
    """
    drawn = [(member, share) for member, share in zip(members, shares, strict=True) if share]
    names = [name for name in drawn[0][0] if all(name in member for member, _ in drawn)]
    return {name: _mixed([member[name] for member, _ in drawn], [share for _, share in drawn]) for name in names}


def _mixed(members: Sequence[Mapping[str, Any]], shares: Sequence[float]) -> dict[str, Any]:
    weights = np.array(shares, np.float64)

    def of_members(name: str) -> NDArray[np.float64]:
        return np.array([member[name] for member in members], np.float64)  # None becomes NaN

    means, deviations = of_members("mean"), of_members("std")
    mean = np.tensordot(weights, means, 1)
    # Around the mean, a large mean does not cancel a small deviation.
    variance = np.tensordot(weights, deviations**2 + (means - mean) ** 2, 1)
    mixed = {"min": of_members("min").min(0), "max": of_members("max").max(0), "mean": mean, "std": np.sqrt(variance)}
    return {name: values.tolist() for name, values in mixed.items()}
