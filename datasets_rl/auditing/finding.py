"""What an audit reports: findings, each with evidence in numbers, and the checks that were made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypeAlias

from datasets_rl.auditing.lengths import LengthControl
from datasets_rl.auditing.remedy import Correction, recipe_of
from datasets_rl.errors import InvalidArgumentError

Level: TypeAlias = Literal["proof", "strong", "hint"]
LEVELS: tuple[Level, ...] = ("proof", "strong", "hint")
"""How sure a finding is, the surest first. A proof follows from the values alone, such as NaN or two equal episodes. A
strong finding is at most a false alarm in 1,000 clean episodes, and a hint at most a false alarm in 50: see docs/audit.md."""


_LISTED = 10


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, as in "1 step" and "2,000 steps"."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def listed(episodes: Sequence[int]) -> str:
    """Return numbers of episodes as text, as in "4, 8, 19": the first ten, and how many more there are."""
    numbers = ", ".join(f"{one:,}" for one in episodes[:_LISTED])
    return f"{numbers} and {len(episodes) - _LISTED:,} more" if len(episodes) > _LISTED else numbers


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault that a check found.

    Attributes:
        check: Name of the check.
        level: How sure the finding is: "proof", "strong" or "hint".
        message: A sentence with the fault and the evidence, readable without another page.
        episodes: Numbers of the episodes in question, ascending. Empty if the finding is about the whole dataset.
        rows: Ranges of rows in question, as (first row, stop row), ascending.
        evidence: The measured numbers by name.
        remedy: What to do: a step of a recipe, of which the text is an option of the shell, or a sentence. Empty if the data
            cannot be corrected.
        key: Dotted key of the field in question. Empty if the finding is about no single field.
    """

    check: str
    level: Level
    message: str
    episodes: tuple[int, ...] = ()
    rows: tuple[tuple[int, int], ...] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict)
    remedy: Correction | str = ""
    key: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the finding as plain data: the remedy as a text, and as a `step` of a recipe, or None."""
        step = self.remedy.to_json() if isinstance(self.remedy, Correction) else None
        return {**asdict(replace(self, remedy=str(self.remedy))), "step": step}


@dataclass(frozen=True, slots=True)
class Audit:
    """The result of `audit`.

    >>> from datasets_rl import audit, load
    >>> audit(load("demo/pendulum")).of_level("strong")
    ()
    """

    id: str
    steps: int
    episodes: int
    findings: tuple[Finding, ...]
    """The findings, the surest first."""
    checked: tuple[str, ...]
    """Names of the checks that were made."""
    skipped: Mapping[str, str]
    """The reason by the name of each check that does not apply to the dataset."""
    lengths: tuple[LengthControl, ...] = ()
    """What the length of episodes has to do with the score of each check, for each field, where both vary."""

    def of_level(self, level: str) -> tuple[Finding, ...]:
        """Return the findings that are at least as sure as a level.

        Raises:
            InvalidArgumentError: If there is no such level.
        """
        if level not in LEVELS:
            raise InvalidArgumentError(f"level is {level!r}, expected one of {', '.join(LEVELS)}")
        sure = LEVELS[: LEVELS.index(level) + 1]
        return tuple(finding for finding in self.findings if finding.level in sure)

    def remedies(self, level: str = "strong") -> str:
        """Return a recipe, as TOML, with the steps of the remedies, each with the finding as its reason.

        Nothing is applied. The file of the recipe is for `Recipe.of`. The episodes are those of the
        audited dataset.

        Args:
            level: The findings that are at least as sure.

        Raises:
            InvalidArgumentError: If there is no such level.
        """
        return recipe_of(self.id, self.of_level(level), self.episodes)

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {
            "id": self.id,
            "steps": self.steps,
            "episodes": self.episodes,
            "findings": [finding.to_json() for finding in self.findings],
            "checked": list(self.checked),
            "skipped": dict(self.skipped),
            "lengths": [asdict(one) for one in self.lengths],
        }
