"""Description of a dataset: returns, lengths, ends of episodes, and the distribution of every field."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import join_names
from datasets_rl.format.quantiles import sample_rows, sample_size
from datasets_rl.format.schema import Field
from datasets_rl.format.statistics import Moments
from datasets_rl.look.histograms import BINS, Distribution, distribution, distributions
from datasets_rl.look.steps import StepReader
from datasets_rl.ted.keys import (
    EPISODE,
    NEXT,
    NEXT_DONE,
    NEXT_REWARD,
    NEXT_TERMINATED,
    NEXT_TRUNCATED,
    OBSERVATION,
    Key,
    dotted_name,
)

_BLOCK_VALUES = 1 << 19
_WIDE_ROWS = 256
_WIDE_BYTES = 64 << 20
_TEXTS = 10
_FLAGS = frozenset({NEXT_DONE, NEXT_TERMINATED, NEXT_TRUNCATED, EPISODE})


@dataclass(frozen=True, slots=True)
class FieldDescription:
    """Distribution of the values of a field."""

    key: str
    """Dotted key."""
    dtype: str
    shape: tuple[int, ...]
    """Shape of a step."""
    elements: tuple[Distribution, ...] = ()
    """A distribution for each element of a step, in row-major order. A field with more than 256 elements has a single
    distribution of all elements."""
    sampled: int | None = None
    """Number of steps that were read, or None if all were read. Images are decoded for at most 256 steps."""
    texts: tuple[tuple[str, int], ...] = ()
    """The most frequent texts of a text field, as (text, number of steps)."""
    element_names: tuple[str, ...] = ()
    """The name of each element of a step, if the dataset has element names."""

    @property
    def pooled(self) -> bool:
        """Whether a single distribution describes all elements of a step."""
        return len(self.elements) == 1 and int(np.prod(self.shape)) > 1

    def names(self) -> list[str]:
        """Return a name for each distribution: ``observation[3]``, ``action gripper``, or the key of the whole field."""
        if len(self.elements) < 2:  # a field of texts has no distribution
            return [self.key] * len(self.elements)
        if self.element_names:
            return [f"{self.key} {name}" for name in self.element_names]
        indices = np.ndindex(self.shape)
        return [f"{self.key}[{', '.join(map(str, index))}]" for index in indices]


@dataclass(frozen=True, slots=True)
class EndStatistics:
    """Statistics of the episodes that are terminated, or of the episodes that are timed out."""

    episodes: int
    mean_return: float | None
    mean_length: float | None
    mean_reward: float | None
    """Mean of the rewards per step of these episodes."""


@dataclass(frozen=True, slots=True)
class Ends:
    """How episodes end: by a terminal state, or by a time-out (truncated and not terminated)."""

    terminated: EndStatistics
    timed_out: EndStatistics
    final_unknown: int
    """Number of episodes without a known final observation."""
    correlation: dict[str, float | None]
    """Pearson correlation of the time-outs, 0 or 1, with "return", "length" and "reward per step" over the episodes, or
    None if either is constant or not finite. A strong correlation means that success or failure decides when episodes
    end."""


@dataclass(frozen=True, slots=True)
class Description:
    """Contents of a dataset, as numbers."""

    id: str
    steps: int
    episodes: int
    returns: Distribution
    lengths: Distribution
    ends: Ends
    fields: tuple[FieldDescription, ...]

    def field(self, key: str) -> FieldDescription | None:
        """Return the description of a field by dotted key, or None if there is no such field."""
        return next((field for field in self.fields if field.key == key), None)

    def issues(self) -> list[str]:
        """Return sentences that warn before training: values that are not finite, constants, and unknown final states."""
        issues = [*_number_issues("return", [self.returns], ["return"])]
        for field in self.fields:
            issues += _number_issues(field.key, field.elements, field.names())
        if self.ends.final_unknown:
            counts = f"{self.ends.final_unknown:,} of {self.episodes:,} episodes"
            issues.append(f"the final observation of {counts} is unknown and reads as zeros")
        if not self.ends.terminated.episodes:
            issues.append("no episode is terminated: all are time-outs")
        return issues


def _number_issues(key: str, elements: Sequence[Distribution], names: Sequence[str]) -> Iterator[str]:
    for kind, counts in (
        ("NaN", [element.nan for element in elements]),
        ("infinite", [element.positive_infinity + element.negative_infinity for element in elements]),
    ):
        affected = [name for name, count in zip(names, counts, strict=True) if count]
        if affected:
            values = "1 value" if sum(counts) == 1 else f"{sum(counts):,} values"
            yield f"{key} has {values} that {'is' if sum(counts) == 1 else 'are'} {kind}, in {join_names(affected, 4)}"
    constant = [name for name, element in zip(names, elements, strict=True) if element.constant]
    if constant and key != "return":
        yield f"{join_names(constant, 4)} {'is' if len(constant) == 1 else 'are'} constant"


def describe(steps: StepReader, *, keys: Sequence[Key] | None = None, bins: int = BINS) -> Description:
    """Return the description of steps, which are read twice, in blocks.

    Narrow fields are read whole. Of a field with a separate file, such as images, at most 256 steps are read. The value
    of an observation after the last action of an episode is not counted.

    Args:
        steps: The steps.
        keys: The fields to describe, by default all but the flags.
        bins: Maximum number of bins of a histogram.

    Raises:
        UnknownKeyError: If a key does not exist. The error names the existing keys.
    """
    chosen = _default_fields(steps) if keys is None else [steps.field(key) for key in keys]
    table = steps.episodes
    return Description(
        id=steps.stored.manifest.id,
        steps=len(steps),
        episodes=len(table),
        returns=distribution(table["return"], bins),
        lengths=distribution(table.lengths, bins),
        ends=_ends(steps),
        fields=tuple(_described(steps, field, bins) for field in chosen),
    )


def _default_fields(steps: StepReader) -> list[Field]:
    """Return the fields: observations, actions and rewards first. ``next.observation`` is left out if both are stored."""
    keys = {field.key for field in steps.fields}
    fields = [
        field
        for field in steps.fields
        if field.key not in _FLAGS and not (field.key[0] == NEXT and field.key[1:] in keys)
    ]
    order = (OBSERVATION[0], "action", dotted_name(NEXT_REWARD))
    return sorted(
        fields, key=lambda field: next((n for n, name in enumerate(order) if _is_in(field, name)), len(order))
    )


def _is_in(field: Field, name: str) -> bool:
    return field.name == name or field.name.startswith(f"{name}.")


def _described(steps: StepReader, field: Field, bins: int) -> FieldDescription:
    dtype = field.read_dtype.name
    if field.text:
        return FieldDescription(field.name, "text", field.shape, texts=_frequent_texts(steps, field))
    elements = int(np.prod(field.shape))
    if not elements:
        return FieldDescription(field.name, dtype, field.shape)
    names = steps.stored.manifest.element_names(field)
    shape = () if Moments.pools(field.shape) else field.shape
    if field.wide:
        count = min(len(steps), _WIDE_ROWS, max(1, _WIDE_BYTES // max(field.step_bytes, 1)))
        sample = steps.take(field.key, sample_rows(len(steps), count))
        blocks = _blocks_of(sample, max(1, _BLOCK_VALUES // elements))
        per_element = distributions(lambda: blocks, shape, sample, bins)
        sampled = None if count == len(steps) else count
        return FieldDescription(field.name, dtype, field.shape, tuple(per_element), sampled, element_names=names)
    sample = steps.take(field.key, sample_rows(len(steps), sample_size(len(steps), elements)))
    per_element = distributions(lambda: _read_blocks(steps, field), shape, sample, bins)
    return FieldDescription(field.name, dtype, field.shape, tuple(per_element), element_names=names)


def _read_blocks(steps: StepReader, field: Field) -> Iterator[NDArray[np.generic]]:
    size = max(1, _BLOCK_VALUES // max(1, int(np.prod(field.shape))))
    for start in range(0, len(steps), size):
        yield steps.read(field.key, start, min(start + size, len(steps)))


def _blocks_of(values: NDArray[np.generic], size: int) -> list[NDArray[np.generic]]:
    return [values[start : start + size] for start in range(0, len(values), size)]


def _frequent_texts(steps: StepReader, field: Field) -> tuple[tuple[str, int], ...]:
    texts = steps.stored.texts(field.key)
    counts = np.zeros(len(texts), np.int64)
    for block in _read_blocks(steps, field):
        counts += np.bincount(block.reshape(-1), minlength=len(texts))
    frequent = Counter({number: int(count) for number, count in enumerate(counts) if count})
    return tuple((texts[number], count) for number, count in frequent.most_common(_TEXTS))


def _ends(steps: StepReader) -> Ends:
    table = steps.episodes
    terminated = np.empty(len(table), np.bool_)
    for start in range(0, len(table), _BLOCK_VALUES):
        last = table.stops[start : start + _BLOCK_VALUES] - 1
        terminated[start : start + len(last)] = steps.take(NEXT_TERMINATED, last)[:, 0]
    columns = {"return": table["return"], "length": table.lengths.astype(np.float64)}
    columns["reward per step"] = table["return"] / table.lengths
    return Ends(
        terminated=_end_statistics(columns, terminated),
        timed_out=_end_statistics(columns, ~terminated),
        final_unknown=int((~table["final_known"]).sum()),
        correlation={name: _correlation(~terminated, column) for name, column in columns.items()},
    )


def _end_statistics(columns: dict[str, NDArray[np.float64]], chosen: NDArray[np.bool_]) -> EndStatistics:
    means = [_finite_mean(column[chosen]) for column in columns.values()]
    return EndStatistics(int(chosen.sum()), *means)


def _finite_mean(values: NDArray[np.float64]) -> float | None:
    mean = float(values.mean()) if len(values) and np.isfinite(values).all() else np.nan
    return mean if np.isfinite(mean) else None


def _correlation(flags: NDArray[np.bool_], values: NDArray[np.float64]) -> float | None:
    if flags.all() or not flags.any() or not np.isfinite(values).all() or values.min() == values.max():
        return None
    return float(np.corrcoef(flags, values)[0, 1])
