"""Folders of npy files as files of the user: the files are arrays of the same rows, or are refused."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from datasets_rl.sources.local.files import describe_files, draft_description

LENGTHS = [3, 5, 2]
ROWS = sum(LENGTHS)
DRAW = np.random.default_rng(4)
STATES = [DRAW.normal(size=(length + 1, 3)) for length in LENGTHS]
ACTIONS = [DRAW.normal(size=(length, 2)) for length in LENGTHS]
ARRAYS = {
    "observations": np.concatenate([states[:-1] for states in STATES]),
    "actions": np.concatenate(ACTIONS),
    "rewards": np.arange(ROWS) / 8,
    "terminals": np.isin(np.arange(ROWS), np.cumsum(LENGTHS) - 1),
}


def write(folder, **arrays):
    folder.mkdir(parents=True, exist_ok=True)
    for name, values in arrays.items():
        np.save(folder / f"{name}.npy", values)
    return folder


def test_the_files_of_a_folder_are_arrays_of_the_same_rows(tmp_path, stored):
    folder = write(tmp_path / "run", **ARRAYS, mean=np.zeros(3))
    (folder / "readme.txt").write_text("states and actions")

    dataset = stored(folder)

    assert dataset.episodes.lengths.tolist() == LENGTHS
    np.testing.assert_array_equal(dataset.column(("observation",)), ARRAYS["observations"])
    np.testing.assert_array_equal(dataset.column(("action",)), ARRAYS["actions"])
    assert describe_files(folder).first == "run"
    assert draft_description(folder).is_certain


def test_a_folder_of_files_for_each_episode_is_read_in_numeric_order(tmp_path, stored):
    for number in (10, 2):
        write(tmp_path / "runs" / f"episode_{number}", obs=STATES[0] + number, acts=ACTIONS[0])

    dataset = stored(tmp_path / "runs")

    assert dataset.episodes.lengths.tolist() == [3, 3]
    np.testing.assert_array_equal(
        dataset.column(("observation",)), np.concatenate([STATES[0][:-1] + 2, STATES[0][:-1] + 10])
    )
    assert dataset.episodes["final_known"].all()


def test_files_in_fortran_order_and_of_other_byte_orders_are_read(tmp_path, stored):
    arrays = {
        **ARRAYS,
        "observations": np.asfortranarray(ARRAYS["observations"]),
        "rewards": ARRAYS["rewards"].astype(">f4"),
    }

    dataset = stored(write(tmp_path / "run", **arrays))

    np.testing.assert_array_equal(dataset.column(("observation",)), ARRAYS["observations"])
    np.testing.assert_array_equal(dataset.column(("next", "reward"))[:, 0], ARRAYS["rewards"].astype(np.float32))


def test_files_with_names_of_your_own_are_arrays_by_a_description(tmp_path, stored):
    folder = write(tmp_path / "run", x=ARRAYS["observations"], u=ARRAYS["actions"], end=ARRAYS["terminals"])
    (folder / "dataset.toml").write_text(
        'format = "npy-folder"\n[fields]\nobservation = "x"\naction = "u"\nterminated = "end"'
    )

    assert stored(folder).episodes.lengths.tolist() == LENGTHS


def test_arrays_of_objects_are_refused_with_lines_that_make_arrays_of_them(tmp_path, refused, stored, monkeypatch):
    ragged = {}
    for name, parts in (("observations", STATES), ("actions", ACTIONS)):
        ragged[name] = np.empty(len(parts), object)
        ragged[name][:] = parts
    folder = write(tmp_path / "run", **ragged)

    text = refused(folder)

    assert "observations, actions have Python objects, expected arrays with the rows of all episodes" in text
    monkeypatch.chdir(folder)
    exec(text.partition("were made: ")[2], {})
    (tmp_path / "fixed").mkdir()
    shutil.copy(folder / "episodes.npz", tmp_path / "fixed")
    dataset = stored(tmp_path / "fixed" / "episodes.npz")
    assert dataset.episodes.lengths.tolist() == LENGTHS
    np.testing.assert_array_equal(dataset.column(("observation",)), ARRAYS["observations"])
    assert dataset.episodes["final_known"].all()


def test_arrays_of_other_lengths_are_refused(tmp_path, refused):
    text = refused(write(tmp_path / "run", **{**ARRAYS, "rewards": ARRAYS["rewards"][:-1]}))

    assert "actions has 10 rows" in text
    assert "rewards has 9 rows" in text


@pytest.mark.parametrize(("size", "problem"), [(-9, "truncated"), (20, "header"), (0, "empty")])
def test_a_truncated_file_is_refused_with_its_name(tmp_path, refused, size, problem):
    folder = write(tmp_path / "run", **ARRAYS)
    path = folder / "actions.npy"
    path.write_bytes(path.read_bytes()[:size])

    text = refused(folder)

    assert "actions.npy" in text
    assert problem in text or "can have at most" in text


def test_a_file_that_states_more_rows_than_it_has_is_refused(tmp_path, refused):
    folder = write(tmp_path / "run", **ARRAYS)
    path = folder / "actions.npy"
    path.write_bytes(path.read_bytes().replace(b"(10, 2)", b"(10000000, 2)", 1))

    assert "actions.npy" in refused(folder)


@pytest.mark.parametrize("names", [("ep_0", "ep_1"), ("x", "u"), ("observations",)])
def test_files_whose_names_are_not_those_of_fields_are_no_arrays_of_one_file(tmp_path, refused, names):
    folder = write(tmp_path / "run", **dict.fromkeys(names, ARRAYS["actions"]))

    assert "it has no dataset.toml" in refused(folder)
