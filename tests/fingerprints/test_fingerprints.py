"""The fingerprints of stored episodes: independent of how they were written, checked by a deep verification."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest

from datasets_rl.fingerprints.canonical import digest_numbers
from datasets_rl.fingerprints.copies import evidence, find_copies
from datasets_rl.fingerprints.fingerprint import FieldRows, Fingerprinter
from datasets_rl.format.fingerprints import computed_fingerprints, fingerprint_problems
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.writer import DatasetWriter
from datasets_rl.testing.stored_data import columns, trajectory, write_dataset

LENGTHS = (40, 3, 25, 90, 1, 33)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    episodes = [trajectory(length, seed=length, known=length != 25) for length in LENGTHS]
    return write_dataset(tmp_path_factory.mktemp("stored") / "data", episodes)


def test_the_fingerprints_of_the_files_are_those_of_the_writer(stored):
    assert list(fingerprint_problems(stored)) == []
    for number in range(len(LENGTHS)):
        ((first, one),) = computed_fingerprints(stored, np.array([number]))

        assert first == number
        assert one.records.tobytes() == stored.fingerprints.records[[number]].tobytes()
        assert one.sketches.tobytes() == stored.fingerprints.sketches[[number]].tobytes()


@pytest.mark.parametrize("cuts", [(1,), (10, 11, 12), (16, 32, 48, 64, 80)])
def test_pieces_of_an_episode_have_the_fingerprints_of_the_whole(tmp_path, stored, cuts):
    episodes = [
        trajectory(length, seed=length, known=length != 25, cuts=[cut for cut in cuts if cut < length])
        for length in LENGTHS
    ]

    cut = write_dataset(tmp_path / "cut", episodes)

    assert cut.fingerprints.records.tobytes() == stored.fingerprints.records.tobytes()
    assert cut.fingerprints.sketches.tobytes() == stored.fingerprints.sketches.tobytes()


@pytest.mark.parametrize("place", [5, 41, 60])
def test_a_writer_that_goes_on_after_a_commit_inside_an_episode_has_the_same_fingerprints(tmp_path, stored, place):
    """Place is a number of steps: the episode that is open there is computed from the files."""
    commits, steps = [], 0
    writer = DatasetWriter(tmp_path, columns(), name="toy/data")
    for length in LENGTHS:
        cuts = [place - steps] if 0 < place - steps < length else []
        for piece in trajectory(length, seed=length, known=length != 25, cuts=cuts).pieces():
            writer.append(piece)
            steps += len(piece)
            if steps == place:
                commits.append(writer.commit())
                writer.discard()
                writer = DatasetWriter(tmp_path, columns(), name="toy/data", commits=commits)
    writer.finish()
    writer.discard()

    for name in ("fingerprints.npy", "sketches.npy"):
        assert (tmp_path / name).read_bytes() == (stored.folder / name).read_bytes()


def test_a_partial_dataset_that_ends_inside_an_episode_gives_the_same_fingerprints(tmp_path, stored):
    pieces = [
        piece
        for length in LENGTHS
        for piece in trajectory(length, seed=length, known=length != 25, cuts=[20] if length == 90 else []).pieces()
    ]
    writer = DatasetWriter(
        tmp_path / "whole" if (tmp_path / "whole").mkdir() is None else tmp_path, columns(), name="toy/data"
    )
    for number, part in enumerate((pieces[:4], pieces[4:])):
        folder = tmp_path / str(number)
        folder.mkdir()
        partial = DatasetWriter(folder, columns(), name="toy/data")
        for piece in part:
            partial.append(piece)
        commit = partial.commit()
        partial.discard()
        writer.append_partial(folder, commit)
    writer.finish()
    writer.discard()

    for name in ("fingerprints.npy", "sketches.npy"):
        assert (tmp_path / "whole" / name).read_bytes() == (stored.folder / name).read_bytes()


def test_a_changed_value_and_a_changed_fingerprint_are_found(tmp_path, stored):
    folder = tmp_path / "changed"
    shutil.copytree(stored.folder, folder)
    rows = np.load(folder / "rows.npy", mmap_mode="r+")
    rows["action"][45, 1] += 1e-6
    rows.flush()
    sketches = np.load(folder / "sketches.npy", mmap_mode="r+")
    sketches["step"][3, 0] += 1
    sketches.flush()

    problems = list(fingerprint_problems(StoredDataset(folder)))

    assert problems[0] == "the fingerprint of action in episode 2 is not that of its values (1 such episodes)"
    assert problems[1].startswith("the fingerprint of the sketch in episode ")


def test_renamed_and_reordered_episodes_are_found_and_no_others(tmp_path, stored):
    other = write_dataset(
        tmp_path / "other", [trajectory(length, seed=seed) for seed, length in ((90, 90), (7, 40), (40, 40), (33, 33))]
    )
    renamed = other.fingerprints
    renamed = replace(
        renamed, records=renamed.records.view([(f"x.{name}", renamed.records.dtype[name]) for name in renamed.names])
    )

    copies = find_copies(stored.fingerprints, renamed)

    assert copies.episodes.tolist() == [2, -1, -1, 0, -1, 3]
    assert copies.equal[0, [copies.names.index(name) for name in ("observation", "action", "next.reward")]].all()


def prints_of(*episodes):
    """Return records of episodes, each a dict of values by name."""
    printer = Fingerprinter(dict.fromkeys(episodes[0], 0))
    records = []
    for rows in episodes:
        count = len(next(iter(rows.values())))
        digests = {name: FieldRows(digest_numbers(values), values) for name, values in rows.items()}
        records.append(printer.add(digests, {}, np.array([0]), np.array([count]), np.array([True]))[0])
    return np.concatenate(records)


TIMES = np.arange(200)[:, None]


@pytest.mark.parametrize(
    ("values", "least", "most"),
    [
        (np.full((200, 3), 0.123), 0, 20),
        (TIMES * 0.05, 0, 50),
        (TIMES, 0, 50),
        (TIMES % 2, 0, 60),
        (np.where(TIMES < 100, 0.3, 0.7), 0, 60),
        (np.random.default_rng(0).standard_normal((200, 3)), 96, 96),
        (np.random.default_rng(0).integers(0, 2, (200, 1)), 60, 96),
        (np.random.default_rng(0).standard_normal((10, 3)), 96, 96),
        (np.random.default_rng(0).standard_normal((5, 3)), 0, 80),
        (np.concatenate([np.ones((300, 3)), np.random.default_rng(0).standard_normal((9, 3))]), 96, 96),
    ],
    ids=["constant", "time", "step", "alternating", "two values", "noise", "coins", "ten steps", "five steps", "wait"],
)
def test_information_is_little_for_what_repeats_or_counts(values, least, most):
    bits = int(prints_of({"x": np.asarray(values)})["x"]["bits"][0])

    assert least <= bits <= most


def test_actions_that_episodes_with_other_states_have_are_no_evidence(tmp_path):
    script = trajectory(40, seed=1).steps["action",]
    episodes = []
    for seed in range(3):
        one = trajectory(40, seed=seed)
        episodes.append(replace(one, steps={**one.steps, ("action",): script}))
    prints = write_dataset(tmp_path / "scripted", episodes).fingerprints

    known = dict(zip(prints.names, evidence(prints).all(axis=0), strict=True))

    assert known["observation"]
    assert known["next.reward"]
    assert not known["action"]
