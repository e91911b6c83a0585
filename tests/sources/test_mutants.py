"""Changed files of every layout: refused, or counted, or valid data for all that the file shows. Never wrong without a word."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from layouts import (
    FLAGS,
    FLAT,
    LAYOUTS,
    LENGTHS,
    NEXT_OBS,
    NUMBERS,
    REWARDS,
    STARTS,
    STEPS,
    Layout,
    hdf5,
    npz,
)
from mutants import load, mutants

from datasets_rl import download
from datasets_rl.errors import ConversionError
from datasets_rl.format.reader import StoredDataset
from datasets_rl.settings import Settings
from datasets_rl.sources.local.files import check_files

TABLE = Path(__file__).with_name("mutants.md")
ALL_MARKS = "flat arrays with every mark"
SUBJECTS = {
    **LAYOUTS,
    ALL_MARKS: Layout(
        npz(
            **FLAT,
            **FLAGS,
            next_observations=NEXT_OBS,
            traj_id=NUMBERS,
            timestep=np.arange(STEPS) - STARTS[NUMBERS],
            episode_lengths=LENGTHS,
            episode_returns=[rewards.sum() for rewards in REWARDS],
        )
    ),
}
DOWNLOADED = {
    "D4RL's HDF5": Layout(hdf5({**FLAT, **FLAGS})),
    "D4RL's HDF5 with next observations": Layout(hdf5({**FLAT, **FLAGS, "next_observations": NEXT_OBS})),
}
"""Layouts that a source of public datasets reads, by the names of the arrays."""
SUBJECTS |= DOWNLOADED
FIRST = {
    "flat arrays with next observations",
    "observations [E, T + 1, ...], padded, with lengths",
    "an npz file for each episode, with the last observation",
    "CSV with a column for each element",
    "JSON lines",
    "a pickle of CS285's paths",
}
"""Layouts of the default tests, a layout of each container and structure."""
GROWING = {"not-finite", "no-transition", "both-flags", "left-out", "equal-rows", "equal-episodes"}
"""Decisions that are about faults: a greater count says something about a changed file. Any new decision does."""
ANSWERS = ("refused", "counted", "valid")
MUTATIONS = (
    "array missing",
    "array cut",
    "array prolonged",
    "dtype",
    "NaN",
    "flag moved",
    "joined",
    "inverted",
    "flag within",
    "next shifted",
    "steps from 2",
    "file missing",
    "row missing",
    "duplicated",
    "swapped",
    "shuffled",
)
_NEXT, _STEPS, _IDS = r"next_ob.*|obs_next", r"timestep", r"traj_id|trial_id|ep|episode|episode_id|episode_index"
_RETURNS = r"episode_returns"
VALID = {
    "array cut: traj_starts": ("the first rows of two episodes are as certain as those of three", _NEXT),
    "array cut: infos": ("objects are left out, and counted", ""),
    "array cut: episode_returns": ("the return of an episode that did not end is not in the array", ""),
    "array missing": ("a file without the array is a file of another layout", _NEXT),
    "array missing: episode_returns": ("no other array has returns", ""),
    "array cut: _indices": ("numbers of the rows of a buffer, which say nothing about them", ""),
    "array missing: _indices": ("numbers of the rows of a buffer, which say nothing about them", ""),
    "array missing: _meta/done": ("the other two flags have the same ends", ""),
    "array prolonged: _indices": ("numbers of the rows of a buffer, which say nothing about them", ""),
    "array missing: timestep": ("other arrays mark the same ends", ""),
    "array missing: traj_id": ("other arrays mark the same ends", ""),
    "array prolonged: infos": ("objects are left out, and counted", ""),
    "dtype": ("the values are the same, or rounded before they were written", ""),
    "duplicated: an episode": (
        "the last episode may be a long one, of rows that are equal to earlier rows",
        f"{_NEXT}|{_STEPS}|{_IDS}",
    ),
    "duplicated: the last row of an episode": (
        "rows that end an episode elsewhere, which no array contradicts",
        f"{_NEXT}|{_STEPS}|{_IDS}",
    ),
    "file missing": ("the numbers of the other files or groups have no gap", ""),
    "flag moved": ("rows of another length of two episodes", f"{_NEXT}|{_RETURNS}"),
    "flag within": ("a file of two episodes", _NEXT),
    "joined": ("one long episode", f"{_NEXT}|{_RETURNS}"),
    "row missing": ("an episode with a row less", f"{_NEXT}|{_STEPS}|{_RETURNS}|.*lengths"),
    "row missing: the first row": ("an episode that begins a row later", f"{_STEPS}|{_RETURNS}|.*lengths"),
    "row missing: the last row": ("an episode that was recorded up to this row", f"{_RETURNS}|.*lengths"),
    "shuffled: all rows": (
        "rows in another order, with the flags of these rows",
        f"{_NEXT}|{_STEPS}|{_IDS}|{_RETURNS}",
    ),
    "shuffled: rows of an episode": ("rows in another order", f"{_NEXT}|{_STEPS}"),
    "swapped": ("episodes in another order", f"(?!{_NEXT}).*_returns"),
}
"""Changes after which the files are valid data: the reason, and the names of arrays which would show the change."""


def decisions(found):
    return {decision.rule: decision.count for decision in found.decisions}


class Subject:
    """Content of a layout, and folders for changed files."""

    def __init__(self, layout, folder):
        (folder / "original").mkdir(parents=True)
        self.content = load(layout, folder / "original")
        self._folders = (folder / str(number) for number in range(10_000))
        self._toml = layout.toml

    def save(self, episodes):
        """Write changed arrays, and return the path that the user names."""
        folder = next(self._folders)
        folder.mkdir()
        path = self.content.save(folder, episodes)
        if not self._toml:
            return path
        (folder / "dataset.toml").write_text(self._toml)
        return folder


def decided(path, settings=None):
    """Return the counts of the decisions about files, by a check, or with settings by a download."""
    return decisions(
        check_files(path) if settings is None else StoredDataset(download(str(path), settings=settings)).manifest
    )


def verdict(path, whole, settings):
    """Return what is said about changed files, beside the decisions on the original files."""
    try:
        found = decided(path, settings)
    except ConversionError:
        return "refused"
    new = {rule for rule, count in found.items() if rule not in whole or (rule in GROWING and count > whole[rule])}
    return "counted" if new else "valid"


def verdicts(layout, folder):
    """Return how often each verdict was given on each kind of change, and the changes that were wrong without a word."""
    subject = Subject(layout, folder)
    settings = Settings(home=folder / "home", progress=False, jobs=1) if layout in DOWNLOADED.values() else None
    whole = decided(subject.save(subject.content.episodes), settings)
    arrays = {array.rpartition("/")[2] for array in subject.content.episodes[0]}
    found, silent = {}, []
    for mutant in mutants(subject.content):
        answer = verdict(subject.save(mutant.episodes), whole, settings)
        found.setdefault(mutant.mutation, Counter())[answer] += 1
        if answer == "valid":
            detail = f"{mutant.mutation}: {mutant.detail}"
            _, witnesses = VALID.get(detail) or VALID.get(mutant.mutation) or ("", ".*")
            silent += [f"{detail}, which {array} shows" for array in arrays if re.fullmatch(witnesses, array)]
    return found, silent


def row_of(name, found):
    """Return the row of a layout in the table."""
    assert found.keys() <= {*MUTATIONS}
    cells = [
        " ".join(f"{found[kind][answer]} {answer}" for answer in ANSWERS if found[kind][answer])
        if kind in found
        else "-"
        for kind in MUTATIONS
    ]
    return "| " + " | ".join([name, *cells]) + " |"


@pytest.mark.parametrize(
    "name", [name if name in FIRST else pytest.param(name, marks=pytest.mark.slow) for name in SUBJECTS]
)
def test_a_changed_file_is_refused_or_counted_or_nothing_in_the_file_shows_the_change(tmp_path, name):
    found, silent = verdicts(SUBJECTS[name], tmp_path)

    assert not silent, "\n".join(silent)
    assert row_of(name, found) in TABLE.read_text("utf-8").splitlines()


def rows_of(mutant, names, *, flat):
    """Return the rows of the array with any of the names in changed files, [N, D], or None if the files show no such rows."""
    episodes = [own for own in mutant.episodes if own]
    found = [
        next((name for name in own if re.fullmatch(names, name.rpartition("/")[2].rstrip("_{}"))), "")
        for own in episodes
    ]
    arrays = [own.get(name) for own, name in zip(episodes, found, strict=True)]
    if any(array is None or np.ndim(array) != 2 or array.dtype.kind != "f" for array in arrays):
        return None
    return arrays[0] if flat else np.concatenate(arrays)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SUBJECTS if name != "tianshou's buffer"])
def test_what_is_read_of_a_changed_file_is_what_the_file_has(tmp_path, name):
    subject = Subject(SUBJECTS[name], tmp_path / "files")
    settings = Settings(home=tmp_path / "home", progress=False, jobs=1)
    for mutant in mutants(subject.content):
        observation = rows_of(mutant, r"(expert_)?obs(ervations?)?|states?|x|qpos", flat=subject.content.flat)
        action = rows_of(mutant, r"(expert_)?act(ion|s)?s?|u", flat=subject.content.flat)
        if observation is None or action is None:
            continue
        path = subject.save(mutant.episodes)
        try:
            stored = StoredDataset(download(str(path), settings=settings))
        except ConversionError:
            continue
        (key,) = [field.key for field in stored.schema if field.key[0] == "observation"]
        np.testing.assert_allclose(stored.column(("action",)), action, rtol=1e-6)
        if len(observation) == len(action):
            np.testing.assert_allclose(stored.column(key), observation, rtol=1e-6)
        assert stored.episodes.lengths.sum() == len(action)
        shutil.rmtree(tmp_path / "home")


def main():
    """Write the table of the verdicts."""
    with TemporaryDirectory() as folder:
        found = {name: verdicts(SUBJECTS[name], Path(folder) / str(n))[0] for n, name in enumerate(SUBJECTS)}
    total = sum((Counter(cell) for row in found.values() for cell in row.values()), Counter())
    lines = [
        "# What is said about changed files",
        "",
        "`python tests/sources/test_mutants.py` writes this table. `VALID` there has the reason of each valid change.",
        f"Of {total.total():,} changed files, "
        + ", ".join(f"{total[answer]:,} are {answer}" for answer in ANSWERS)
        + ".",
        "",
        "| " + " | ".join(["layout", *MUTATIONS]) + " |",
        "| --- " * (1 + len(MUTATIONS)) + "|",
        *(row_of(name, row) for name, row in found.items()),
    ]
    TABLE.write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
