"""The statistics of the steps that a run trains on: of some episodes of a dataset, or of all members of a mixture."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.format.schema import Field
from datasets_rl.format.statistics import Moments, episode_statistics, field_quantiles, has_quantiles, has_statistics
from datasets_rl.look import StepReader

Numbers = Mapping[str, Any]
"""Statistics of a field by name, such as "mean", as in a manifest."""
Statistics = Mapping[str, Numbers]
"""Statistics by dotted key."""
_BLOCK_BYTES = 4 << 20


class LazyStatistics(Mapping[str, Numbers]):
    """Statistics by dotted key, each computed on first use: a network needs few fields, and a field may be large.

    Args:
        compute: Returns the statistics of a field, by dotted key.
    """

    def __init__(self, compute: Mapping[str, Callable[[], Numbers]]) -> None:
        self._compute = compute
        self._known: dict[str, Numbers] = {}

    @override
    def __getitem__(self, name: str) -> Numbers:
        if name not in self._known:
            self._known[name] = self._compute[name]()
        return self._known[name]

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(self._compute)

    @override
    def __len__(self) -> int:
        return len(self._compute)


def part_statistics(steps: StepReader) -> Statistics:
    """Return the statistics of some episodes, as the manifest of a dataset of these episodes has them.

    Args:
        steps: The steps of the episodes. A field is read in blocks.
    """
    fields = {field.name: partial(_field_statistics, steps, field) for field in steps.fields if has_statistics(field)}
    return LazyStatistics({**fields, **{name: partial(_of_episodes, steps, name) for name in ("return", "length")}})


def _of_episodes(steps: StepReader, name: str) -> Numbers:
    numbers: Numbers = episode_statistics(steps.episodes)[name]
    return numbers


def _field_statistics(steps: StepReader, field: Field) -> Numbers:
    moments = Moments(field.shape)
    block = max(1, _BLOCK_BYTES // max(1, field.step_bytes))
    for start in range(0, len(steps), block):
        moments.update(steps.read(field.key, start, min(start + block, len(steps))))
    if not has_quantiles(field):
        return moments.to_json()
    taken = field_quantiles([field], len(steps), lambda keys, rows: [steps.take(key, rows) for key in keys])
    return moments.to_json() | taken[field.name]


def mixed_statistics(members: Sequence[Statistics], shares: Sequence[float]) -> Statistics:
    """Return the statistics of the steps of several datasets that are drawn in given shares.

    The mean and the standard deviation are those of the drawn steps. There are no quantiles, which the statistics of the
    members do not determine.

    Args:
        members: The statistics of each dataset. Keys that only some datasets have are left out.
        shares: The share of each dataset, with sum 1. A dataset with the share 0 counts for nothing.
    """
    drawn = [(member, share) for member, share in zip(members, shares, strict=True) if share]
    names = [name for name in drawn[0][0] if all(name in member for member, _ in drawn)]
    return LazyStatistics({name: partial(_mixed, drawn, name) for name in names})


def _mixed(drawn: Sequence[tuple[Statistics, float]], name: str) -> Numbers:
    weights = np.array([share for _, share in drawn])

    def of_members(statistic: str) -> NDArray[np.float64]:
        return np.array([member[name][statistic] for member, _ in drawn], np.float64)  # None becomes NaN

    means, deviations = of_members("mean"), of_members("std")
    mean = np.tensordot(weights, means, 1)
    # Around the mean, a large mean does not cancel a small deviation.
    variance = np.tensordot(weights, deviations**2 + (means - mean) ** 2, 1)
    mixed = {"min": of_members("min").min(0), "max": of_members("max").max(0), "mean": mean, "std": np.sqrt(variance)}
    return {statistic: values.tolist() for statistic, values in mixed.items()}
