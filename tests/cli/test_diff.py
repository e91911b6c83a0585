"""``rlds diff``: the summary, the places of the differences, and exit codes."""

from __future__ import annotations

import numpy as np
import pytest
from stored_data import trajectory, write_dataset

DEMO = "demo/pendulum"


@pytest.fixture
def normalized(rlds, stored):
    assert rlds("preprocess", DEMO, "-t", "normalize", "--as", "norm").code == 0
    return stored


def test_equal_datasets_are_a_line_and_exit_with_0(rlds, stored):
    ran = rlds("diff", DEMO, stored)
    assert (ran.code, ran.out) == (0, "equal: 15,000 steps in 75 episodes\n")


def test_a_difference_is_summarized_shown_with_its_place_and_exits_with_1(rlds, normalized):
    del normalized
    ran = rlds("diff", DEMO, f"{DEMO}@norm")
    lines = ran.out.splitlines()
    assert ran.code == 1
    assert lines[0].startswith("different: 75 episodes in both, 75 with other values of observation, 2 changes")
    assert any(line.startswith("observation\t15,075 of 15,075\t45,225\t75\t") for line in lines)
    assert any("episode 0, step 0 [0]: 0.1879 -> -0.08493" in line for line in lines)
    assert any(line.startswith("observation, before\t0.2529 ") for line in lines)
    assert "history" not in ran.out
    assert any(line.startswith("history\t") for line in rlds("diff", DEMO, f"{DEMO}@norm", "-v").out.splitlines())


def test_the_command_that_shows_the_episodes_is_printed_if_episodes_differ(rlds, normalized):
    del normalized
    lines = rlds("diff", DEMO, f"{DEMO}@norm").out.splitlines()
    assert lines[-2:] == ["the episodes beside each other", f"  rlds view {DEMO} {DEMO}@norm --diff"]
    assert rlds("preprocess", DEMO, "-t", "drop_episodes:3,reason=few", "--as", "few").code == 0
    assert "rlds view" not in rlds("diff", DEMO, f"{DEMO}@few").out


def test_statistics_with_the_same_digits_are_not_printed(rlds, tmp_path):
    made = [trajectory(9, seed=number) for number in range(3)]
    folder = write_dataset(tmp_path / "a", made).folder
    made[0].steps["action",][3, 0] = np.nextafter(made[0].steps["action",][3, 0], np.float32(9))
    found = rlds("diff", folder, write_dataset(tmp_path / "b", made).folder)
    assert "statistics, before and after" not in found.out
    assert "episode 0, step 3 [0]" in found.out


def test_json_and_quiet(rlds, normalized):
    del normalized
    found = rlds("diff", DEMO, f"{DEMO}@norm", "--json").json
    assert found["equal"] is False
    assert len(found["pairs"]) == 75
    (field,) = (one for one in found["fields"] if one["first"])
    assert (field["name"], field["values"]) == ("observation", 45_225)
    assert rlds("diff", DEMO, f"{DEMO}@norm", "-q").out.startswith("different: 75 episodes in both")


def test_episodes_of_one_side_are_ranges(rlds, stored):
    del stored
    assert rlds("preprocess", DEMO, "-t", "drop_episodes:3,4,5,9,reason=few", "--as", "few").code == 0
    out = rlds("diff", DEMO, f"{DEMO}@few").out
    assert f"episodes only in {DEMO} (4): 3-5, 9" in out.splitlines()


def test_an_unknown_dataset_and_version_are_explained(rlds, stored):
    del stored
    assert rlds("diff", DEMO, "demo/pendulum@no").code == 3
    ran = rlds("diff", f"{DEMO}:0009", DEMO)
    assert ran.code == 2
    assert "has no version 0009\n" in ran.err
    assert "expected one of 0001-" in ran.err
