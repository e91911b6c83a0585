"""Two datasets beside each other: the pairs of episodes, what differs in a pair, and the file to send."""

from __future__ import annotations

import json

import numpy as np
import pytest
import view_data
from stored_data import trajectory, write_dataset

from datasets_rl.differences import compare
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.look.page import Pairs, Panel, report_page
from datasets_rl.look.page.curves import MAX_POINTS
from datasets_rl.look.page.documents import answer
from datasets_rl.look.page.pairs import PAGE_PAIRS


def panels_of(first, second):
    found = compare(first, second, names=("first", "<b>second</b>"))
    return [Panel(first, name="first", pairs=Pairs(found, first, second)), Panel(second, name="second")]


def embedded(page):
    """Return the documents and the images in an exported file."""
    found = json.loads(page.decode().split('id="report">')[1].split("</script>")[0])
    return found["documents"], found["frames"]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """Two datasets of images and states: episode 1 differs in an image and in three steps of the states."""
    folder = tmp_path_factory.mktemp("pairs")
    return panels_of(
        view_data.mixed_dataset(folder / "a"), view_data.mixed_dataset(folder / "b", changed=True, name="joints")
    )


@pytest.fixture(scope="module")
def ask(mixed):
    return lambda path, **query: answer(mixed, path, {name: str(value) for name, value in query.items()})


def field_of(document, name):
    (one,) = (one for one in document["fields"] if one["name"] == name)
    return one


def test_the_list_has_the_pairs_that_differ_or_all(ask):
    page = ask("pairs")
    assert (page["total"], page["different"], page["matching"], page["equal"]) == (2, 1, 1, False)
    (row,) = page["rows"]
    assert (row["pair"], row["episodes"], row["lengths"]) == (1, [1, 1], [15, 15])
    assert row["differs"] == ["observation.camera", "observation.state"]
    assert [one["differs"] for one in ask("pairs", whole=1)["rows"]] == [[], row["differs"]]
    assert page["names"] == ["first", "<b>second</b>"]


def test_a_pair_has_the_numbers_of_each_field_and_every_step_that_differs(ask):
    pair = ask("pairs/1")
    camera, state = field_of(pair, "observation.camera"), field_of(pair, "observation.state")

    assert (camera["steps"], camera["runs"], camera["first"]["step"]) == (1, [[7, 8]], 7)
    assert (state["steps"], state["values"], state["runs"], state["elements"]) == (3, 3, [[9, 12]], [4])
    assert state["other"] == "observation.joints"
    assert state["greatest"] == pytest.approx(100, rel=1e-5)
    assert (state["first"]["step"], state["first"]["element"], state["first"]["flat"]) == (9, [4], 4)
    assert pair["first"] == 7
    assert field_of(pair, "action")["first"] is None
    assert field_of(pair, "action")["runs"] == field_of(pair, "action")["elements"] == []


def test_an_equal_pair_has_no_difference_and_knows_the_nearest_that_differs(ask):
    pair = ask("pairs/0")
    assert (pair["first"], pair["previous"], pair["next"]) == (None, None, 1)
    assert not any(one["first"] for one in pair["fields"])


def test_a_pair_and_a_comparison_that_do_not_exist_are_explained(ask, mixed):
    with pytest.raises(InvalidArgumentError, match="pair 2 does not exist, expected 0 to 1"):
        ask("pairs/2")
    for path in ("pairs", "pairs/0"):
        with pytest.raises(InvalidArgumentError, match="the datasets of this page were not compared"):
            answer(mixed[1:], path, {})
    assert answer(mixed[1:], "overview", {})["paired"] is False
    assert ask("overview")["paired"] is True


def test_datasets_without_a_common_episode_have_an_empty_list(tmp_path):
    folders = [
        write_dataset(tmp_path / str(seed), [trajectory(9 + seed, seed=seed)], id=f"toy/{seed}") for seed in (0, 1)
    ]
    panels = panels_of(*folders)
    page = answer(panels, "pairs", {})
    assert (page["total"], page["rows"], [one["total"] for one in page["only"]]) == (0, [], [1, 1])
    assert panels[0].pairs.first is None
    report_page(panels)


def test_the_list_and_the_pairs_agree_for_any_change(tmp_path):
    """The list comes from the whole comparison, and a pair from a comparison of its own."""
    rng = np.random.default_rng(3)
    made = [trajectory(12 + number % 5, seed=number) for number in range(70)]
    first = write_dataset(tmp_path / "a", made)
    touched = sorted(rng.choice(70, 60, replace=False).tolist())
    for number in touched:
        made[number].steps["action",][number % 12, number % 2] = 7
    panels = panels_of(first, write_dataset(tmp_path / "b", made))
    pages = [answer(panels, "pairs", {"offset": str(offset)}) for offset in (0, PAGE_PAIRS)]
    pairs = [answer(panels, f"pairs/{number}", {}) for number in range(70)]

    assert [row["pair"] for page in pages for row in page["rows"]] == touched
    for number, pair in enumerate(pairs):
        action = field_of(pair, "action")
        assert action["runs"] == ([[number % 12, number % 12 + 1]] if number in touched else [])
        assert action["values"] == (number in touched)
    near = {
        number: (before, after)
        for before, number, after in zip([None, *touched], touched, [*touched[1:], None], strict=False)
    }
    assert {number: (pairs[number]["previous"], pairs[number]["next"]) for number in touched} == near


def test_episodes_of_one_dataset_and_of_another_length_are_listed(tmp_path):
    made = [trajectory(12, seed=number, terminated=False) for number in range(4)]
    first = write_dataset(tmp_path / "a", made)
    longer = trajectory(20, seed=1, terminated=False)
    panels = panels_of(first, write_dataset(tmp_path / "b", [made[0], longer, made[3]]))
    page = answer(panels, "pairs", {"whole": "1"})

    assert [row["episodes"] for row in page["rows"]] == [[0, 0], [1, 1], [3, 2]]
    assert page["rows"][1]["differs"][0] == "number of steps"
    assert [one["episodes"] for one in page["only"]] == [(2,), ()]
    assert panels[0].pairs.pair_of(3) == 2
    with pytest.raises(InvalidArgumentError, match=r"episode 2 of first has no counterpart in <b>second</b>"):
        panels[0].pairs.pair_of(2)


def test_the_runs_of_a_long_episode_are_bounded_and_cover_every_step_that_differs(tmp_path):
    steps = 4 * MAX_POINTS
    one = trajectory(steps)
    first = write_dataset(tmp_path / "a", [one])
    one.steps["action",][::2] += 1
    pair = answer(panels_of(first, write_dataset(tmp_path / "b", [one])), "pairs/0", {})

    runs = field_of(pair, "action")["runs"]
    assert field_of(pair, "action")["steps"] == steps // 2
    assert len(runs) <= MAX_POINTS
    covered = np.zeros(steps + 1, bool)
    for start, stop in runs:
        covered[start:stop] = True
    assert covered[:steps:2].all()


def test_every_document_of_pairs_is_json_whatever_the_values(tmp_path):
    one = trajectory(9)
    first = write_dataset(tmp_path / "a", [one])
    one.steps["action",][2:5, 0] = np.nan, np.inf, 1e30
    panels = panels_of(first, write_dataset(tmp_path / "b", [one]))

    for path in ("overview", "pairs", "pairs/0"):
        json.dumps(answer(panels, path, {}), allow_nan=False)
    assert field_of(answer(panels, "pairs/0", {}), "action")["first"]["after"] == "nan"
    report_page(panels)


def test_the_exported_file_has_the_pairs_that_differ_with_images_of_the_same_steps(mixed):
    documents, frames = embedded(report_page(mixed))

    assert [row["pair"] for row in documents["pairs"]["rows"]] == [1]
    assert (documents["pairs/1"]["previous"], documents["pairs/1"]["next"]) == (None, None)
    assert "pairs/0" not in documents
    for number, name in enumerate(("observation.state", "observation.joints")):
        assert f"{number}/episodes/1/curves?field={name}&start=0" in documents
        assert f"{number}/1/7/observation.camera" in frames
    assert frames["0/1/7/observation.camera"] != frames["1/1/7/observation.camera"]
    assert frames["0/1/6/observation.camera"] == frames["1/1/6/observation.camera"]
    assert "pairs/0" in embedded(report_page(mixed, pair=0))[0]


def test_the_exported_file_has_the_elements_that_differ_first(tmp_path):
    from stored_data import Column, columns

    one = trajectory(9)
    one.steps["info", "wide"] = np.arange(9 * 40, dtype=np.float32).reshape(9, 40)
    schema = columns(Column(("info", "wide"), np.dtype(np.float32), (40,)))
    first = write_dataset(tmp_path / "a", [one], schema)
    one.steps["info", "wide"][3, 30] = -1
    documents, _ = embedded(report_page(panels_of(first, write_dataset(tmp_path / "b", [one], schema))))

    for number in (0, 1):
        curves = documents[f"{number}/episodes/0/curves?field=info.wide&start=24"]
        assert curves["low"][6][3] == [3 * 40 + 30, -1][number]
