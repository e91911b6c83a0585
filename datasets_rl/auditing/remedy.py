"""What to do about findings: steps of a recipe, and the recipe of an audit. Nothing is applied here.

finding   episode 4 is also stored as episode 17
remedy    Correction("drop_episodes", (17,))
shell     -t drop_episodes:17
recipe    [[step]]
          use = "drop_episodes"
          numbers = [17]
          reason = "duplicate_episodes: episode 4 is also stored as episode 17"
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from datasets_rl.auditing.data import Data
    from datasets_rl.auditing.finding import Finding

_PLACES = {"drop_episodes": "numbers", "split_episodes": "places", "trim_steps": "spans", "fix_wraps": "elements"}
"""The name of the first argument of the steps, of which there may be several. It is "episodes" for the other steps."""
_ORDER = ("drop_episodes", "split_episodes", "trim_steps", "fix_shift")
"""Steps that come first, in this order: what they name are episodes and steps of the source, and values are corrected after
that."""
_LAST = ("fix_signs", "fix_wraps", "fix_ends")
_REASONS = 3
_UNITS, _JUMPS = "unit_changes", "joined_episodes"
_JUMPS_OF = {
    _UNITS: "the episode is in another unit",
    "angle_wraps": "an angle jumps by a full turn in the episode",
    "quaternions": "a quaternion changes its sign in the episode",
}
"""Checks of which a correction of values takes the jumps out of an episode, and the jump in words."""
_SHIFTS = frozenset({"action_shift", "reward_shift"})
"""Checks that predict values from the states of all episodes."""
_NO_SEAMS = frozenset({_UNITS, "repeated_seeds"})
"""Checks with findings that no seam can give."""
_SEAM = 2
"""Steps between two places that are one seam."""

Place: TypeAlias = "int | str"


@dataclass(frozen=True, slots=True)
class Correction:
    """A step of a recipe that corrects what a check found. The text of a correction is an option of the shell, `-t`.

    Attributes:
        step: Name of the step.
        places: The first argument of the step: episodes, as in "3" or "10:20", or places in episodes, as in "4/31". Empty for
            all episodes.
        arguments: The other arguments by name.
    """

    step: str
    places: tuple[Place, ...] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        named = [f"{name}={_inline(value)}" for name, value in self.arguments.items()]
        step = f"{self.step}:{','.join([*map(str, self.places), *named])}".rstrip(":")
        return f"-t {shlex.quote(step)}"

    def to_json(self) -> dict[str, Any]:
        """Return the step as in a recipe: its name as `use`, and its arguments."""
        places = {_PLACES.get(self.step, "episodes"): list(self.places)} if self.places else {}
        return {"use": self.step, **places, **self.arguments}


def drop(episodes: Iterable[int]) -> Correction:
    """Return the step that drops episodes."""
    return Correction("drop_episodes", _spans(episodes))


def shift(key: str, steps: int, episodes: Iterable[int] = ()) -> Correction:
    """Return the step that gives a field of step t the value of step t + `steps`, by default in all episodes."""
    return Correction("fix_shift", _spans(episodes), {"key": key, "steps": steps})


def shift_episode(data: Data, key: str, steps: int, episode: int) -> Correction:
    """Return the step that gives a field of step t of an episode the value of step t + `steps`.

    A shift to a following step drops the last steps, which have no value. If these say how the episode ended, the episode is dropped.
    """
    return drop([episode]) if steps > 0 and data.has_outcome(episode) else shift(key, steps, [episode])


def dropped_by_shift(steps: int) -> str:
    """Return in words what a shift of the whole dataset drops, for the end of a message. Empty if no rewards are dropped."""
    count = f"{steps} steps" if steps > 1 else "step"
    return f". The remedy drops the last {count} of each episode, with the rewards there" if steps > 0 else ""


def scale(key: str, factor: float, episodes: Iterable[int] = ()) -> Correction:
    """Return the step that multiplies a field by a factor, by default in all episodes."""
    return Correction("fix_unit", _spans(episodes), {"key": key, "factor": float(f"{factor:.6g}")})


def clip(key: str, low: float, high: float) -> Correction:
    """Return the step that clips a field."""
    return Correction("clip", (), {"low": float(f"{low:.6g}"), "high": float(f"{high:.6g}"), "in_keys": (key,)})


def exchange_channels(key: str, episodes: Iterable[int] = ()) -> Correction:
    """Return the step that exchanges the first and the last channel of images, by default in all episodes."""
    return Correction("fix_channels", _spans(episodes), {"key": key})


def align_signs(key: str, first: int) -> Correction:
    """Return the step that aligns the signs of the quaternions that begin with an element."""
    return Correction("fix_signs", (), {"first": first, "key": key})


def unwrap(key: str, elements: Sequence[int], turn: float, around: Sequence[float]) -> Correction:
    """Return the step that unwraps angles, with the first angle of each episode within half a turn of an angle."""
    angles = [float(f"{angle:.3g}") for angle in around]
    return Correction("fix_wraps", tuple(elements), {"key": key, "turn": float(turn), "around": angles})


def end_by_truncation(episodes: Iterable[int] = ()) -> Correction:
    """Return the step that marks terminated episodes as truncated, by default all."""
    return Correction("fix_ends", _spans(episodes))


def split_at(data: Data, rows: Iterable[int]) -> Correction:
    """Return the step that divides the episodes of rows, so that each row is the first of an episode."""
    return Correction("split_episodes", tuple("{}/{}".format(*_place(data, row)) for row in rows))


def keep_rows(data: Data, first: int, stop: int) -> Correction:
    """Return the step that keeps the rows [first, stop) of an episode."""
    episode, start = _place(data, first)
    count = stop - first
    whole = int(data.episodes.lengths[episode])
    return Correction("trim_steps", (f"{episode}/{start or ''}:{'' if start + count >= whole else start + count}",))


def recipe_of(name: str, findings: Sequence[Finding], episodes: int | None = None) -> str:
    """Return the recipe, as TOML, with the steps of the remedies of findings. What no step corrects is a comment.

    Steps of a check that differ in the episodes only become a single step. Nothing else is done to an episode that is dropped. A step
    that drops more than half of the episodes is a comment.

    Args:
        name: Name of the dataset.
        findings: The findings.
        episodes: Number of episodes of the dataset.
    """
    kept, comments = [], []
    for finding in findings:
        dropped = _episodes_of([finding], "drop_episodes")
        if episodes is not None and 2 * len(dropped) > episodes:
            comments.append(
                f"{finding.check}: {finding.message}: {finding.remedy} drops {len(dropped):,} of {episodes:,} episodes"
            )
        else:
            kept.append(finding)
    groups, more = _grouped(kept)
    comments += more
    lines = [
        f"summary = {_toml(f'Corrections of {name}, after its audit')}",
        "",
        "# Read the steps before you apply the recipe, and delete the steps that you do not want.",
    ]
    for correction, reason in groups:
        lines += ["", "[[step]]", f"use = {_toml(correction.step)}"]
        lines += [
            f"{argument} = {_toml(value)}" for argument, value in correction.to_json().items() if argument != "use"
        ]
        lines += [f"reason = {_toml(reason)}"] if correction.step.startswith(_CORRECTIONS) else [f"# {reason}"]
    if comments:
        lines += ["", "# No step corrects:", *(f"# {' '.join(one.split())}" for one in comments)]
    return "\n".join(lines) + "\n"


def without_seams(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings, the surest first, each with a remedy that none before it has.

    The seam of an episode that is two looks like other faults, too: like a gap of the clock, a quaternion that flips, an outlier. Such an
    episode is divided. It is neither dropped nor trimmed, and not divided at the same place again: the next audit shows the remaining faults.
    A proof, such as a NaN, and a finding about other rows do not come from the seam, and keep their remedy.
    """
    seams: dict[int, list[int]] = {}
    # A hint must not keep a surer finding from its remedy, unless that is about the same rows.
    sure = [finding.rows for finding in findings if finding.level != "hint"]
    settled = [
        _unrepeated(finding, seams) if finding.level != "hint" or _touches(finding.rows, sure) else finding
        for finding in findings
    ]
    rows = [span for one in settled if _divides(one) for span in one.rows]
    return [_spared(finding, seams.keys()) if _may_be_seam(finding, rows) else finding for finding in settled]


def doubted(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings without the remedies of those for which another finding may be the reason.

    Values in another unit, angles that wrap and quaternions that flip jump inside an episode, which is not divided for that. States in
    another unit bend the model that predicts the actions of all episodes, so that a shift is no more than a hint.
    """
    return [_doubted(finding, findings) for finding in findings]


def _doubted(finding: Finding, findings: Sequence[Finding]) -> Finding:
    if finding.check == _JUMPS and _divides(finding):
        for other in findings:
            if other.check in _JUMPS_OF and not set(finding.episodes).isdisjoint(other.episodes) and _corrects(other):
                return replace(finding, remedy=_again(_JUMPS_OF[other.check]))
    if finding.check in _SHIFTS and any(one.check == _UNITS and one.key.startswith("observation") for one in findings):
        return replace(finding, level="hint", remedy=_again("states are in another unit in some episodes"))
    return finding


def _again(reason: str) -> str:
    return f"{reason}, which may be the reason of this finding: correct that, and audit the result again"


def _corrects(finding: Finding) -> bool:
    return finding.check == _UNITS or (
        isinstance(finding.remedy, Correction) and finding.remedy.step.startswith("fix_")
    )


def _divides(finding: Finding) -> bool:
    return isinstance(finding.remedy, Correction) and finding.remedy.step == "split_episodes"


def _may_be_seam(finding: Finding, seams: Sequence[tuple[int, int]]) -> bool:
    """Return whether a finding may be what a seam looks like: it is no proof, and its rows, if it has any, are around a seam."""
    if isinstance(finding.remedy, Correction) and finding.remedy.step == "trim_steps":
        return True  # the steps of a divided episode are counted from the start of each part
    if finding.level == "proof" or finding.check in _NO_SEAMS:
        return False
    return not finding.rows or any(
        start - _SEAM <= stop_of_seam and start_of_seam <= stop + _SEAM
        for start, stop in finding.rows
        for start_of_seam, stop_of_seam in seams
    )


def _unrepeated(finding: Finding, seams: dict[int, list[int]]) -> Finding:
    """Return a finding with a remedy that divides at new places alone, which are added to the steps of the seams by episode."""
    if not _divides(finding) or not isinstance(finding.remedy, Correction):
        return finding
    places = [(int(episode), int(step)) for episode, step in (str(one).split("/") for one in finding.remedy.places)]
    new = [one for one in places if all(abs(one[1] - step) > _SEAM for step in seams.get(one[0], ()))]
    for episode, step in new:
        seams.setdefault(episode, []).append(step)
    if not new:
        return replace(finding, remedy=f"episode {places[0][0]:,} is divided there after another finding")
    return replace(finding, remedy=replace(finding.remedy, places=tuple(f"{one}/{step}" for one, step in new)))


def _touches(rows: Sequence[tuple[int, int]], others: Iterable[Sequence[tuple[int, int]]]) -> bool:
    """Return whether ranges of rows are a seam apart, at most, from a short range of other findings."""
    return any(
        start - _SEAM <= stop_of_other and start_of_other <= stop + _SEAM
        for start, stop in rows
        for of_other in others
        for start_of_other, stop_of_other in of_other
        if stop_of_other - start_of_other <= 2 * _SEAM
    )


def _spared(finding: Finding, divided: AbstractSet[int]) -> Finding:
    """Return a finding with a remedy that neither drops nor trims the divided episodes."""
    if not isinstance(finding.remedy, Correction) or finding.remedy.step not in {"drop_episodes", "trim_steps"}:
        return finding
    named = _numbers(finding.remedy)
    if not named & divided:
        return finding
    if left := named - divided:
        return replace(finding, remedy=replace(finding.remedy, places=_spans(left)))
    several = len(named) > 1
    numbers = ", ".join(f"{episode:,}" for episode in sorted(named)[:_REASONS]) + " and more" * (len(named) > _REASONS)
    return replace(
        finding,
        remedy=f"{'episodes' if several else 'episode'} {numbers} {'are' if several else 'is'} divided after another finding, which may be "
        "the reason of this one: audit the result again",
    )


_CORRECTIONS = ("fix_", "drop_episodes", "split_episodes", "trim_steps")
"""How the names of the steps begin that have a reason."""


def _grouped(findings: Sequence[Finding]) -> tuple[list[tuple[Correction, str]], list[str]]:
    """Return the steps in the order of the recipe, each with its reason, and what no step corrects."""
    dropped = _episodes_of(findings, "drop_episodes")
    groups: dict[str, list[tuple[Correction, Finding]]] = {}
    comments: list[str] = []
    for finding in findings:
        if not isinstance(finding.remedy, Correction):
            comments.append(f"{finding.check}: {finding.message}: {finding.remedy or 'nothing corrects this'}")
            continue
        correction = finding.remedy
        if correction.step not in {"drop_episodes", "fix_wraps"} and correction.places:
            left = tuple(
                place for place in correction.places if not _numbers(replace(correction, places=(place,))) <= dropped
            )
            if not left:
                continue
            correction = replace(correction, places=left)
        same = json.dumps(
            [finding.check, correction.step, bool(correction.places), dict(correction.arguments)], default=str
        )
        groups.setdefault(same, []).append((correction, finding))
    found = [_joined(group) for group in groups.values()]
    return sorted(found, key=lambda one: _rank(one[0].step)), comments


def _joined(group: Sequence[tuple[Correction, Finding]]) -> tuple[Correction, str]:
    first = group[0][0]
    if first.step in {"split_episodes", "trim_steps", "fix_wraps"}:
        places = tuple(dict.fromkeys(place for correction, _ in group for place in correction.places))
    else:
        places = _spans(set().union(*(_numbers(correction) for correction, _ in group)))
    messages = [finding.message for _, finding in group]
    more = f"; and {len(messages) - _REASONS} more" if len(messages) > _REASONS else ""
    return replace(first, places=places), f"{group[0][1].check}: {'; '.join(messages[:_REASONS])}{more}"


def _rank(step: str) -> tuple[int, int]:
    if step in _ORDER:
        return 0, _ORDER.index(step)
    return (2, _LAST.index(step)) if step in _LAST else (1, 0)


def _episodes_of(findings: Iterable[Finding], step: str) -> set[int]:
    remedies = [one.remedy for one in findings if isinstance(one.remedy, Correction) and one.remedy.step == step]
    return set().union(*map(_numbers, remedies))


def _numbers(correction: Correction) -> set[int]:
    """Return the episodes that a correction names."""
    if correction.step == "fix_wraps":
        return set()
    found: set[int] = set()
    for place in correction.places:
        text = str(place)
        if "/" in text or ":" not in text:
            found.add(int(text.partition("/")[0]))
        else:
            start, stop = text.split(":")
            found.update(range(int(start), int(stop)))
    return found


def _spans(episodes: Iterable[int]) -> tuple[Place, ...]:
    """Return episodes as numbers and ranges START:STOP, ascending."""
    spans: list[Place] = []
    start = stop = None
    for episode in [*sorted({int(one) for one in episodes}), None]:
        if start is not None and stop is not None and episode != stop:
            spans += [f"{start}:{stop}"] if stop - start > 2 else list(range(start, stop))
            start = None
        if episode is not None:
            start, stop = (episode if start is None else start), episode + 1
    return tuple(spans)


def _place(data: Data, row: int) -> tuple[int, int]:
    """Return the episode of a row, and the step of the row in the episode."""
    episode = int(data.episodes.episode_of(np.array([row]))[0])
    return episode, int(row) - int(data.episodes.starts[episode])


def _inline(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(_inline, value))}]"
    return str(value)


def _toml(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    # Texts, numbers and truth values are written alike in JSON and TOML.
    return json.dumps(value, ensure_ascii=False)
