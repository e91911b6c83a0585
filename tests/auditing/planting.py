"""Faults that are planted in clean recordings, and how many of them an audit finds, misses, or finds where there are none.

A fault is a function in one of the modules ``faults_*.py``, declared with the check that should find the fault and the kinds
of recordings in which the fault makes sense. A plant changes some episodes of a recording, at one of three strengths.
"""

from __future__ import annotations

import functools
import importlib
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

import clean
import numpy as np

from datasets_rl.auditing import Audit, SharedEpisodes, audit, audit_mixture, audit_parts

Strength: TypeAlias = Literal["weak", "medium", "strong"]
STRENGTHS: tuple[Strength, ...] = ("weak", "medium", "strong")
FEWEST_STEPS = 5
"""Length of an episode below which nothing is planted in the episode alone."""
EPISODES = 40
"""Episodes of a recording before a fault is planted."""
PLANTED = 3
"""Episodes with a fault in a recording, unless the fault is a fault of the whole dataset."""


@dataclass(frozen=True)
class Planted:
    """A recording with a fault."""

    recording: clean.Recording
    episodes: frozenset[int]
    """The episodes that a finding has to name. Empty for a fault of the whole dataset."""
    others: tuple[clean.Recording, ...] = ()
    """Further members, if the fault is a fault of a mixture."""


CHECKS_OF_IMAGES = frozenset(
    {
        "blurred_images",
        "cameras_swapped",
        "channels_swapped",
        "conventions",
        "dark_or_bright_images",
        "dropped_frames",
        "frozen_frames",
        "images_flipped",
        "video_lag",
    }
)
"""The checks for which a fault needs images."""

Plant: TypeAlias = Callable[[clean.Recording, Strength, np.random.Generator], Planted]


@dataclass(frozen=True)
class Fault:
    """A fault, its check, and the kinds of recordings that can have the fault."""

    name: str
    check: str
    kinds: tuple[str, ...]
    plant: Plant


FAULTS: dict[str, Fault] = {}


def fault(check: str, *kinds: str) -> Callable[[Plant], Plant]:
    """Declare a function as a fault, of the name of the function, that a check should find in recordings of some kinds."""

    def declare(plant: Plant) -> Plant:
        FAULTS[plant.__name__] = Fault(plant.__name__, check, kinds, plant)
        return plant

    return declare


def each_episode(change: Callable[[clean.Recorded, Strength, np.random.Generator], clean.Recorded]) -> Plant:
    """Return the plant that changes some episodes, each by itself."""

    @functools.wraps(change)
    def plant(recording: clean.Recording, strength: Strength, rng: np.random.Generator) -> Planted:
        fit = [number for number, one in enumerate(recording.episodes) if len(one) >= FEWEST_STEPS]
        chosen = rng.choice(fit, PLANTED, replace=False).tolist()
        changed = {number: change(recording.episodes[number], strength, rng) for number in chosen}
        return Planted(recording.replaced(changed), frozenset(chosen))

    return plant


def load_faults() -> Mapping[str, Fault]:
    """Return all faults by name."""
    for path in sorted(Path(__file__).parent.glob("faults_*.py")):
        importlib.import_module(path.stem)
    return FAULTS


@dataclass
class Counts:
    """What an audit found of planted episodes: a dataset as a whole counts as an episode."""

    planted: Counter[str] = field(default_factory=Counter)
    found: Counter[str] = field(default_factory=Counter)
    false: Counter[str] = field(default_factory=Counter)
    """Episodes that a finding of the check named, without a fault, by level."""


def measure(
    one: Fault, kind: str, strength: Strength, *, episodes: int = EPISODES, seed: int = 0
) -> tuple[int, int, int]:
    """Return the number of planted, of found and of falsely named episodes of a fault in a recording of a kind."""
    rng = np.random.default_rng([zlib.crc32(one.name.encode()), STRENGTHS.index(strength), seed])
    # Images take most of the time.
    images = one.check in CHECKS_OF_IMAGES or kind not in clean.WITH_IMAGES
    planted = one.plant(clean.record(kind, episodes, seed, images=images), strength, rng)
    if planted.others:
        compare = audit_parts if one.check == SharedEpisodes.name else audit_mixture
        return 1, int(bool(mixture_audited([planted.recording, *planted.others], compare).findings)), 0
    found = audited(planted.recording, [one.check])
    named = {episode for finding in found.findings for episode in finding.episodes}
    if not planted.episodes:
        return 1, int(any(True for _ in found.findings)), 0
    return len(planted.episodes), len(planted.episodes & named), len(named - planted.episodes)


def audited(recording: clean.Recording, checks: list[str] | None = None) -> Audit:
    """Return the audit of a recording."""
    with tempfile.TemporaryDirectory() as folder:
        recording.store(Path(folder) / "dataset")
        return audit(Path(folder) / "dataset", checks=checks)


def mixture_audited(members: Sequence[clean.Recording], compare: Callable[..., Audit] = audit_mixture) -> Audit:
    """Return the audit of the conventions of recordings, or of the episodes that they share."""
    with tempfile.TemporaryDirectory() as folder:
        folders = [Path(folder) / f"member{number}" for number in range(len(members))]
        for path, recording in zip(folders, members, strict=True):
            recording.store(path)
        return compare(folders)


def cases() -> Iterator[tuple[Fault, str, Strength]]:
    """Yield each fault with each kind of recording and each strength."""
    for one in load_faults().values():
        for kind in one.kinds:
            for strength in STRENGTHS:
                yield one, kind, strength
