"""Conventions of the members of a mixture: action scale, signs, gripper, frame rate, and the names of cameras and fields."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from datasets_rl.auditing.data import Data
from datasets_rl.auditing.finding import LEVELS, Audit, Finding, Level
from datasets_rl.auditing.run import open_members
from datasets_rl.settings import Settings
from datasets_rl.ted.keys import Key, dotted_name

_SCALE = 4.0
_CORRELATED = 0.5
_RATES = 0.05
_SAME_END = 0.8
_FEWEST_EPISODES = 8

Floats = NDArray[np.float64]


class Conventions:
    """The check of a mixture, which looks at all members together, and therefore is not a check of a dataset."""

    name = "conventions"
    rule = (
        "Members of a mixture differ in the frame rate by more than "
        f"{_RATES:.0%}, in the names or shapes of actions, states or cameras, in the spread of actions or states by a factor of "
        f"{_SCALE:g} in the median element, in the sign of the correlation of an action with the next state, both above {_CORRELATED:g}, "
        "or in the two values of an element, such as those of a gripper."
    )
    why = "The same action means two movements: the policy learns the mean of both."
    limits = (
        "Transforms of a member in the file of the mixture are not applied before the comparison. Members that do different tasks may "
        "differ in the spread of the states."
    )


@dataclass(frozen=True)
class _Member:
    """A member of a mixture."""

    name: str
    data: Data

    @property
    def rate(self) -> float | None:
        """Steps per second by the metadata, or else by the time stamps."""
        if self.data.steps.stored.manifest.fps:
            return self.data.steps.stored.manifest.fps
        for key in self.data.times:
            step = self.data.usual_interval(key)
            return 1 / step if step > 0 else None
        return None

    @cached_property
    def states(self) -> Floats:
        """Sampled states after the action, [K, S], of all states."""
        return np.hstack([self.data.sample(key).after for key in self.data.states] or [np.zeros((0, 0))])

    def shapes(self, keys: Sequence[Key]) -> dict[str, tuple[int, ...]]:
        return {dotted_name(key): tuple(self.data.field(key).shape) for key in keys}


def audit_mixture(
    members: Sequence[str | Path],
    *,
    name: str = "mixture",
    settings: Settings | None = None,
) -> Audit:
    """Compare the conventions of the members of a mixture, and return what differs.

    Args:
        members: The ids or the folders of stored datasets.
        name: The name of the mixture in the report.
        settings: The settings. By default the settings of the environment.

    Raises:
        UnknownIdError: If there is no such id, or a dataset is not stored.
        ManifestError: If a manifest cannot be trusted.
    """
    settings = settings or Settings.from_env()
    compared = [_Member(*member) for member in open_members(members, settings=settings)]
    findings: list[Finding] = []
    skipped = {}
    if len(compared) < 2:
        skipped[Conventions.name] = "the mixture has a single member"
    else:
        # Differences of infinite values need no warning.
        with np.errstate(invalid="ignore"):
            usual = _usual(compared)
            for other in compared:
                if other is not usual:
                    findings += _differences(usual, other)
    return Audit(
        id=name,
        steps=sum(len(one.data) for one in compared),
        episodes=sum(len(one.data.episodes) for one in compared),
        findings=tuple(sorted(findings, key=lambda one: LEVELS.index(one.level))),
        checked=() if skipped else (Conventions.name,),
        skipped=skipped,
    )


def _usual(members: Sequence[_Member]) -> _Member:
    """Return the member with the fewest differences from the others."""
    if len(members) == 2:
        return members[0]
    counts = [sum(len([*_differences(one, other)]) for other in members if other is not one) for one in members]
    return members[int(np.argmin(counts))]


def _differences(usual: _Member, other: _Member) -> Iterator[Finding]:
    yield from _rates(usual, other)
    for what in ("cameras", "states", "actions"):
        one, two = (
            member.shapes({"cameras": data.images, "states": data.states, "actions": data.actions}[what])
            for member in (usual, other)
            for data in (member.data,)
        )
        if one != two:
            yield _finding(
                "strong",
                f"the {what} of {other.name} are {_listed(two)}, and those of {usual.name} are {_listed(one)}",
                {"kind": what, "usual": sorted(one), "other": sorted(two)},
                f"-t rename:OLD,NEW, or -t exclude:NAME, in {other.name}",
            )
        elif what != "cameras":
            yield from _scales(usual, other, what)
    if usual.shapes(usual.data.actions) == other.shapes(other.data.actions):
        for key in usual.data.actions:
            if key in usual.data.floats and key in other.data.floats:
                yield from _signs(usual, other, key)


def _rates(usual: _Member, other: _Member) -> Iterator[Finding]:
    one, two = usual.rate, other.rate
    if one and two and abs(np.log(one / two)) > _RATES:
        times = max(one, two) / min(one, two)
        yield _finding(
            "strong",
            f"{other.name} has {two:.3g} steps per second, and {usual.name} has {one:.3g}: the same action lasts "
            f"{one / two:.2g} times as long",
            {"kind": "rate", "usual": one, "other": two},
            f"-t frame_skip:{round(times)} in {other.name if two > one else usual.name}"
            if round(times) > 1 and abs(times / round(times) - 1) < _RATES
            else "resample a member at the rate of the other",
        )


def _scales(usual: _Member, other: _Member, what: str) -> Iterator[Finding]:
    for key in usual.data.states if what == "states" else usual.data.actions:
        if key not in usual.data.floats or key not in other.data.floats:
            continue
        one, two = (_spread(member.data, key) for member in (usual, other))
        moving = (one > 0) & (two > 0)
        if not moving.any():
            continue
        factor = float(np.exp(np.median(np.log(two[moving] / one[moving]))))
        if max(factor, 1 / factor) > _SCALE:
            name = dotted_name(key)
            yield _finding(
                "strong" if what == "actions" else "hint",
                f"values of {name} spread {factor:.3g} times as far in {other.name} as in {usual.name}: the unit or the normalization "
                "may be another",
                {"kind": "scale", "factor": factor},
                f"-t fix_unit:key={name},factor={1 / factor:.3g} in {other.name}, or normalize each member by its own statistics",
                key=name,
            )


def _signs(usual: _Member, other: _Member, key: Key) -> Iterator[Finding]:
    """Yield elements of an action with another sign, or with two other values."""
    name = dotted_name(key)
    one, two = usual.data.sample(key).now, other.data.sample(key).now
    for element in range(one.shape[1]):
        levels = [np.unique(values[:, element]) for values in (one, two)]
        label = usual.data.element(key, element)
        binary = len(levels[0]) == len(levels[1]) == 2
        if binary and not np.allclose(levels[0], levels[1]):
            yield _finding(
                "strong",
                f"{label} is {_either(levels[1])} in {other.name}, and {_either(levels[0])} in {usual.name}, such as for an open and a "
                "closed gripper",
                {"kind": "values", "usual": levels[0].tolist(), "other": levels[1].tolist()},
                "map the values of a member to those of the other",
                key=name,
            )
        if binary and _starts_opposite(usual.data, other.data, key, element, levels):
            yield _finding(
                "hint",
                f"{label} starts most episodes of {other.name} with the value with which most episodes of {usual.name} do not start: the "
                "sign of a gripper may be another",
                {"kind": "sign", "element": element},
                "exchange the two values in a member",
                key=name,
            )
    same = usual.shapes(usual.data.states) == other.shapes(other.data.states)
    if not same or not usual.states.size or not other.states.size:
        return
    before, after = (_correlations(member, key) for member in (usual, other))
    for element in range(len(before)):
        best = int(np.abs(before[element]).argmax())
        if before[element, best] * after[element, best] < -(_CORRELATED**2) and abs(after[element, best]) > _CORRELATED:
            label = usual.data.element(key, element)
            yield _finding(
                "strong",
                f"{label} has another sign in {other.name} than in {usual.name}: the correlation with the next state is "
                f"{after[element, best]:.2f} and {before[element, best]:.2f}",
                {"kind": "sign", "element": element, "usual": float(before[element, best])},
                f"multiply {label} by -1 in {other.name}",
                key=name,
            )


def _correlations(member: _Member, key: Key) -> Floats:
    """Return the correlation of each element of an action with the elements of the next state and of its change, [A, 2 S]."""
    sample = member.data.sample(key)
    now = np.hstack([member.data.sample(one).now for one in member.data.states])
    values = np.hstack([sample.now, member.states, member.states - now])
    values = values[sample.has_after & np.isfinite(values).all(axis=1)]
    width = sample.now.shape[1]
    if len(values) < 10:
        return np.zeros((width, 2 * now.shape[1]))
    values = values - values.mean(axis=0)
    deviation = values.std(axis=0)
    values = np.divide(values, deviation, out=np.zeros_like(values), where=deviation > 1e-12)
    correlations: Floats = values[:, :width].T @ values[:, width:] / len(values)
    return correlations


def _starts_opposite(usual: Data, other: Data, key: Key, element: int, levels: Sequence[Floats]) -> bool:
    """Return whether most episodes of a member start with the high value, and most of the other with the low value."""
    shares = []
    for data, (_, high) in zip((usual, other), levels, strict=True):
        if len(data.episodes) < _FEWEST_EPISODES:
            return False
        shares.append(float((data.take(key, data.episodes.starts)[:, element] == high).mean()))
    return min(shares) < 1 - _SAME_END and max(shares) > _SAME_END


def _spread(data: Data, key: Key) -> Floats:
    values = data.sample(key).now
    values = values[np.isfinite(values).all(axis=1)]
    if not len(values):
        return np.zeros(values.shape[1])
    low, high = np.quantile(values, [0.01, 0.99], axis=0)
    spread: Floats = high - low
    return spread


def _either(levels: Floats) -> str:
    return " or ".join(f"{level:g}" for level in levels)


def _listed(shapes: dict[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {list(shape)}" for name, shape in sorted(shapes.items())) or "none"


def _finding(level: Level, message: str, evidence: dict[str, object], remedy: str, key: str = "") -> Finding:
    return Finding(Conventions.name, level, message, evidence=evidence, remedy=remedy, key=key)
