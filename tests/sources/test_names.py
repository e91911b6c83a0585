"""Names of arrays in the user's own files: each name of the table is read as its field, and doubtful names are asked for."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import datasets_rl
from datasets_rl import download
from datasets_rl.errors import ConversionError
from datasets_rl.format.reader import StoredDataset
from datasets_rl.settings import Settings
from datasets_rl.sources.flat.names import DOUBTFUL, NAMES, STATES, usual_keys
from datasets_rl.sources.local.files import describe_files, draft_description
from datasets_rl.ted.keys import dotted_name

LENGTHS = [6, 8]
ROWS = sum(LENGTHS)
LAST = np.isin(np.arange(ROWS), np.cumsum(LENGTHS) - 1)
STATE = np.concatenate(
    [np.cumsum(np.random.default_rng(n).normal(size=(length + 1, 2)), 0) for n, length in enumerate(LENGTHS)]
)
OBS = np.delete(STATE, [6, 15], axis=0)
NEXT_OBS = np.delete(STATE, [0, 7], axis=0)
BASE = {
    "observation": OBS,
    "action": np.arange(2 * ROWS).reshape(ROWS, 2),
    "next.reward": np.linspace(0, 1, ROWS),
    "next.terminated": LAST,
}
"""Arrays by key, which every file has under some name."""
VALUES = {
    **BASE,
    "next.truncated": LAST,
    "next.done": LAST,
    "next.observation": NEXT_OBS,
    "next.cost": np.linspace(2, 3, ROWS),
    "next.success": LAST,
    "goal": OBS + 1,
    "desired_goal": OBS + 2,
    "achieved_goal": OBS + 3,
    "language_instruction": np.array([f"lift cube {row % 3}" for row in range(ROWS)]),
    "info": OBS + 4,
    "info.states": OBS,
    "info.qpos": OBS,
    "info.qvel": OBS,
    "observation.image": np.arange(ROWS * 12, dtype=np.uint8).reshape(ROWS, 2, 2, 3),
    "discount": np.ones(ROWS),
    "timestamp": np.arange(ROWS) * 0.1,
    "action_logp": np.linspace(-1, 0, ROWS),
    "action_prob": np.linspace(0, 1, ROWS),
    "processed_actions": np.ones((ROWS, 2)),
    "actions_abs": np.zeros((ROWS, 2)),
}
CASES = [(dotted_name(key), name) for table in (NAMES, STATES) for key, names in table.items() for name in names]
ENDS = ("next.terminated", "next.truncated", "next.done")


def arrays_of(key, name):
    """Return the arrays of a file that has an array by the name of the case, and otherwise the first names."""
    others = {base: values for base, values in BASE.items() if base != key and not (base in ENDS and key in ENDS)}
    first = {"observation": "obs", "action": "actions", "next.reward": "rewards", "next.terminated": "terminals"}
    return {**{first[base]: values for base, values in others.items()}, name: VALUES[key]}


@pytest.mark.parametrize(("key", "name"), CASES)
def test_each_name_of_the_table_is_its_field(tmp_path, key, name):
    np.savez(tmp_path / "a.npz", **arrays_of(key, name))

    found = describe_files(tmp_path / "a.npz")

    assert {one.array: one.key for one in found.fields}[name] == key
    assert found.left_out == ()
    assert (found.by, found.episodes) == ("flags", 2)


def test_the_page_lists_every_name_of_the_table():
    text = (Path(datasets_rl.__file__).parents[1] / "docs" / "sources" / "local.md").read_text("utf-8")
    section = text.partition("## Arrays with common names")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([\w.]+)`(?:, beside an observation)? \| (.*?)(?:\. .*)? \|$", section, re.MULTILINE)
    listed = [(key, name) for key, names in rows for name in re.findall(r"`([^`]+)`", names)]

    assert listed == CASES, "write the table of docs/sources/local.md"


@pytest.mark.parametrize("change", [str.upper, str.title])
def test_the_case_of_letters_does_not_matter(tmp_path, change):
    np.savez(tmp_path / "a.npz", **{change(name): values for name, values in arrays_of("next.cost", "cost").items()})

    assert [one.key for one in describe_files(tmp_path / "a.npz").fields] == [
        "observation", "action", "next.reward", "next.cost", "next.terminated",
    ]  # fmt: skip


def test_names_that_differ_in_case_only_are_not_both_a_field():
    assert usual_keys(["Obs", "obs", "obs/x"]) == {"Obs": ("observation",), "obs/x": ("observation", "x")}


def stored(tmp_path, arrays):
    np.savez(tmp_path / "a.npz", **arrays)
    return StoredDataset(download(str(tmp_path / "a.npz"), settings=Settings(home=tmp_path / "home", progress=False)))


def test_the_values_of_the_fields_are_stored(tmp_path):
    keys = (
        "next.cost",
        "next.success",
        "goal",
        "desired_goal",
        "achieved_goal",
        "observation.image",
        "language_instruction",
    )
    made = stored(
        tmp_path, {**arrays_of("next.cost", "costs"), **{key.rpartition(".")[2]: VALUES[key] for key in keys[1:]}}
    )

    assert made.column(("next", "cost")).shape == (ROWS, 1)
    np.testing.assert_allclose(made.column(("next", "cost"))[:, 0], VALUES["next.cost"])
    np.testing.assert_array_equal(made.column(("next", "success"))[:, 0], LAST)
    for key in keys[2:5]:
        np.testing.assert_array_equal(made.column((key,)), VALUES[key])
    np.testing.assert_array_equal(made.column(("observation", "image")), VALUES["observation.image"])
    np.testing.assert_array_equal(made.column(("observation", "state")), OBS)
    columns = {column.key: column for column in made.schema}
    assert columns["achieved_goal",].shared
    assert not columns["desired_goal",].shared


@pytest.mark.parametrize(
    ("flags", "terminated", "truncated"),
    [
        ({"dones": [5, 13], "timeouts": [5]}, [13], [5]),
        ({"dones": [5, 13], "terminated": [13]}, [13], [5]),
        ({"dones": [5, 13], "terminals": [13], "truncations": [5]}, [13], [5]),
        ({"dones": [5, 13], "terminals": [13], "truncations": []}, [13], [5]),
        ({"dones": [13], "terminals": [13], "truncations": [5]}, [13], [5]),
        ({"dones": [5, 13]}, [5, 13], []),
    ],
)
def test_done_beside_another_flag_ends_episodes(tmp_path, flags, terminated, truncated):
    made = stored(
        tmp_path,
        {
            "obs": OBS,
            "action": BASE["action"],
            "reward": BASE["next.reward"],
            **{name: np.isin(np.arange(ROWS), rows) for name, rows in flags.items()},
        },
    )

    assert made.episodes.lengths.tolist() == LENGTHS
    assert np.flatnonzero(made.column(("next", "terminated"))[:, 0]).tolist() == terminated
    assert np.flatnonzero(made.column(("next", "truncated"))[:, 0]).tolist() == truncated


@pytest.mark.parametrize(("name", "meaning"), DOUBTFUL.items())
def test_a_name_that_means_two_things_is_asked_for(tmp_path, name, meaning):
    known = {} if meaning in {"the observation", "the action"} or name.startswith(("q", "joint")) else {"obs": OBS}
    np.savez(tmp_path / "a.npz", action=BASE["action"], reward=BASE["next.reward"], dones=LAST, **known, **{name: OBS})

    drafted = draft_description(tmp_path / "a.npz")

    assert f"{name} may be {meaning}" in drafted.questions
    assert f'# ... = "{name}"    # float64 [14, 2]' in drafted.text
    assert f": {meaning}?" in drafted.text
    with pytest.raises(ConversionError, match="which fields are"):
        stored(tmp_path, dict(np.load(tmp_path / "a.npz")))


@pytest.mark.parametrize("name", ["success", "is_success", "Successes"])
def test_the_success_of_each_episode_is_in_the_table_of_episodes(tmp_path, name):
    made = stored(tmp_path, {**arrays_of("next.reward", "rewards"), name: np.array([True, False])})

    assert made.episodes["success"].tolist() == [True, False]
    assert {one.rule: one.count for one in made.manifest.decisions}["success-of-episodes"] == 2


def episode_files(folder, successes):
    folder.mkdir()
    for number, success in enumerate(successes):
        more = {} if success is None else {"success": success}
        np.savez(folder / f"ep{number}.npz", obs=OBS, action=BASE["action"], **more)
    return folder


def test_the_success_of_a_file_is_that_of_its_episode(tmp_path):
    folder = episode_files(tmp_path / "mine", [True, np.array([False]), True])

    made = StoredDataset(download(str(folder), settings=Settings(home=tmp_path / "home", progress=False)))

    assert made.episodes["success"].tolist() == [True, False, True]


@pytest.mark.parametrize("successes", [[True, None], [None, True]])
def test_files_of_which_some_have_a_success_are_refused(tmp_path, successes):
    folder = episode_files(tmp_path / "mine", successes)

    with pytest.raises(ConversionError, match="success of each episode, unlike the first file"):
        download(str(folder), settings=Settings(home=tmp_path / "home", progress=False))


@pytest.mark.parametrize("name", ["goal", "desired_goal", "language_instruction"])
def test_a_value_of_each_episode_is_left_out_and_counted(tmp_path, name):
    values = {"language_instruction": ["lift", "push"]}.get(name, [[1.0, 2.0], [3.0, 4.0]])

    made = stored(tmp_path, {**arrays_of("next.reward", "rewards"), name: np.array(values)})

    assert {one.rule: one.count for one in made.manifest.decisions}["left-out"] == 1


def test_paths_of_images_are_not_read_as_images(tmp_path):
    with pytest.raises(ConversionError, match=r"image 'a\.jpg' in row 0 does not exist"):
        stored(tmp_path, {**arrays_of("next.reward", "rewards"), "image": np.array(["a.jpg"] * ROWS)})
