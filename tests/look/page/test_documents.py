"""What the addresses of the page answer, compared with the values that were written."""

from __future__ import annotations

import io
import json
from itertools import pairwise

import numpy as np
import pytest
import view_data
from PIL import Image
from stored_data import Model, trajectory, write_dataset

from datasets_rl.errors import InvalidArgumentError, UnknownKeyError
from datasets_rl.format.reader import StoredDataset
from datasets_rl.look.page import Panel
from datasets_rl.look.page.curves import envelope
from datasets_rl.look.page.distributions import MAX_ROWS, histogram, sample_ranges
from datasets_rl.look.page.documents import answer
from datasets_rl.look.page.images import as_pixels

LENGTHS = (5, 90, 12)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A dataset of three episodes, the last without its final observation, and its expected content."""
    folder = tmp_path_factory.mktemp("states")
    made = [trajectory(length, seed=seed, known=seed < 2, terminated=seed == 1) for seed, length in enumerate(LENGTHS)]
    stored = write_dataset(folder / "a", made, score={"low": 0.0, "high": 10.0, "origin": "a paper"})
    return Panel(stored), Model(made)


@pytest.fixture(scope="module")
def ask(written):
    panel, _ = written
    return lambda path, **query: answer([panel], path, {name: str(value) for name, value in query.items()})


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    return Panel(view_data.mixed_dataset(tmp_path_factory.mktemp("mixed") / "a"))


def pixels(data):
    return np.asarray(Image.open(io.BytesIO(data)))


def test_the_overview_has_the_counts_and_the_returns_of_all_episodes(ask, written):
    (facts,) = ask("overview")["datasets"]
    _, model = written

    assert (facts["steps"], facts["episodes"], facts["final_unknown"]) == (107, 3, 1)
    assert facts["summary"]["return"]["mean"] == pytest.approx(np.mean(model.returns))
    assert facts["summary"]["score"]["max"] == pytest.approx(max(model.returns) / 10)
    assert facts["summary"]["length"]["median"] == 12


def test_episodes_are_sorted_filtered_and_paged(ask, written):
    _, model = written
    falling = ask("0/episodes", sort="return", descending=1)
    some = ask("0/episodes", where="length > 5 and final_known = no")

    assert [row["episode"] for row in falling["rows"]] == np.argsort(model.returns)[::-1].tolist()
    assert [row["end"] for row in ask("0/episodes", sort="episode")["rows"]] == ["truncated", "terminated", "truncated"]
    assert [row["episode"] for row in some["rows"]] == [2]
    assert (some["matching"], some["total"]) == (1, 3)


def test_pages_of_the_list_follow_each_other(tmp_path):
    panel = Panel(view_data.sparse_dataset(tmp_path / "a", episodes=120, length=3))

    pages = [panel.page("return", "", offset, descending=True) for offset in (0, 50, 100)]

    assert [row["episode"] for page in pages for row in page["rows"]] == list(range(119, -1, -1))


@pytest.mark.parametrize("where", ["return", "return > many", "> 5", "return > 1 or length < 2"])
def test_a_filter_that_cannot_be_read_is_named_with_an_example(ask, where):
    with pytest.raises(InvalidArgumentError, match="is not a condition, such as return > 100"):
        ask("0/episodes", where=where)


def test_an_unknown_column_of_a_filter_is_named(ask):
    with pytest.raises(UnknownKeyError, match="retrun"):
        ask("0/episodes", where="retrun > 5")


def test_an_episode_knows_its_neighbors_in_the_sorted_list(ask, written):
    _, model = written
    rising = np.argsort(model.returns).tolist()

    middle = ask(f"0/episodes/{rising[1]}", sort="return")

    assert (middle["previous"], middle["next"]) == (rising[0], rising[2])
    assert middle["first_row"] == model.starts[rising[1]]


def test_rows_are_the_values_at_t_and_the_state_after_each(ask, written):
    """The second episode has 90 steps: its rows are in two parts."""
    _, model = written
    rows = ask("0/episodes/1/rows", start=64)

    assert (rows["start"], rows["stop"]) == (64, 90)
    np.testing.assert_allclose(
        rows["states"]["observation"][:-1], model.column(("observation",))[5 + 64 : 95], rtol=1e-6
    )
    np.testing.assert_allclose(
        rows["states"]["observation"][1:], model.column(("next", "observation"))[69:95], rtol=1e-6
    )
    np.testing.assert_allclose(rows["steps"]["action"], model.column(("action",))[69:95], rtol=1e-6)
    assert rows["steps"]["next.terminated"] == [False] * 25 + [True]


def test_the_state_after_the_last_action_is_the_true_one_or_absent(ask, written):
    _, model = written

    known = ask("0/episodes/0/rows")["states"]["observation"][-1]
    unknown = ask("0/episodes/2/rows")["states"]["observation"][-1]

    np.testing.assert_allclose(known, model.final_states["observation",][0], rtol=1e-6)
    assert unknown is None
    np.testing.assert_allclose(ask("0/episodes/0/curves", field="observation")["final"], known)
    assert ask("0/episodes/2/curves", field="observation")["final"] is None


def test_curves_have_every_value_of_a_short_episode(ask, written):
    _, model = written
    curves = ask("0/episodes/2/curves", field="next.reward")

    assert (curves["steps_per_point"], curves["final"]) == (1, None)
    np.testing.assert_allclose(curves["low"][0], model.column(("next", "reward"))[95:, 0], rtol=1e-6)


def test_a_single_reward_in_a_long_episode_stays_visible():
    values = np.zeros((70_001, 1))
    values[43_210] = 1

    width, low, high = envelope(values)

    assert (width, len(low)) == (71, 986)
    assert (low.max(), high.max(), high.argmax()) == (0, 1, 43_210 // 71)


def test_a_histogram_counts_every_value_once(ask, written):
    _, model = written
    (panel,) = ask("histogram", field="next.reward")["panels"]
    rewards = model.column(("next", "reward"))

    counts, _ = np.histogram(rewards.astype(np.float64), panel["edges"])
    assert sum(panel["series"][0]["counts"]) == 107
    assert panel["series"][0]["counts"] == counts.tolist()
    assert ask("histogram", field="next.reward")["sampled"] == [107]


def test_two_datasets_share_the_bins_of_a_histogram():
    document = histogram([np.linspace(0, 1, 500), np.linspace(3, 4, 300), np.empty(0)])

    assert (document["edges"][0], document["edges"][-1]) == (0, 4)
    assert [sum(series["counts"]) for series in document["series"]] == [500, 300, 0]
    assert document["series"][2]["mean"] is None


def test_few_distinct_values_have_a_bar_each():
    document = histogram([np.array([3, 3, 1, 0, 3])])

    assert document["values"] == [0, 1, 3]
    assert document["series"][0]["counts"] == [1, 1, 3]


def test_values_that_are_not_finite_are_counted_apart_and_extremes_do_not_overflow():
    document = histogram([np.array([*np.linspace(-1, 1, 99) * 1.7e308, 1.7e308, np.nan, np.inf])])

    assert document["series"][0]["not_finite"] == 2
    assert sum(document["series"][0]["counts"]) == 100
    json.dumps(document, allow_nan=False)


@pytest.mark.parametrize("rows", [1, 100, MAX_ROWS, MAX_ROWS + 1, 50_000_000])
def test_samples_are_bounded_ordered_and_do_not_overlap(rows):
    ranges = sample_ranges(rows, row_bytes=100)

    assert sum(map(len, ranges)) == min(rows, MAX_ROWS)
    assert all(first.stop <= second.start for first, second in pairwise(ranges))
    assert (ranges[0].start >= 0, ranges[-1].stop <= rows) == (True, True)


def test_samples_of_large_values_are_bounded_by_their_bytes():
    assert sum(map(len, sample_ranges(10**6, row_bytes=1 << 20))) == 256


def test_every_document_of_every_kind_of_field_is_json(mixed):
    for field in ("observation.state", "action", "next.reward", "return", "length"):
        json.dumps(answer([mixed], "histogram", {"field": field}), allow_nan=False)
    for path in ("overview", "0/ends", "0/episodes", "0/episodes/1", "0/episodes/1/rows", "0/episodes/1/curves"):
        json.dumps(answer([mixed], path, {}), allow_nan=False)


@pytest.mark.parametrize("form", ["raw", "compressed"])
def test_encoded_images_are_sent_unchanged_and_others_as_png(mixed, form, tmp_path):
    plain = Panel(view_data.image_dataset(tmp_path / "a", lengths=(3, 4), form=form))

    for step in (0, 3, 6):
        assert (pixels(mixed.frame(0, step, "observation.camera")) == view_data.drawing(0, step)).all()
    assert (pixels(plain.frame(1, 4, "observation"))[::3, ::3] == view_data.drawing(1, 4)[:22, :22]).all()


def test_every_camera_of_a_step_is_sent_whatever_the_form_of_its_images(tmp_path):
    panel = Panel(view_data.cameras_dataset(tmp_path / "a"))

    assert len(panel.image_fields()) == len(view_data.CAMERAS)
    for name in panel.image_fields():
        for episode, step in ((1, 9), (0, 2), (1, 0)):
            assert (pixels(panel.frame(episode, step, name)) == view_data.drawing(episode, step)).all()


@pytest.mark.parametrize(("fps", "shown"), [(15, 15), (None, None), ("fast", None), (-1, None), (10**9, None)])
def test_the_overview_has_the_steps_per_second_of_a_recording(fps, shown, tmp_path):
    panel = Panel(view_data.state_dataset(tmp_path / "a", metadata={"fps": fps}))

    assert panel.facts()["fps"] == shown


def test_an_image_that_is_unknown_or_absent_is_an_error(mixed):
    with pytest.raises(InvalidArgumentError, match="after the last action of episode 1 is unknown"):
        mixed.frame(1, 15, "observation.camera")
    with pytest.raises(InvalidArgumentError, match="expected an image field, and 0 to 6"):
        mixed.frame(0, 7, "observation.camera")
    with pytest.raises(InvalidArgumentError, match="expected an image field"):
        mixed.frame(0, 0, "action")


@pytest.mark.parametrize(
    ("shape", "dtype", "shown"),
    [
        ((9, 8), np.uint8, (9, 8)),
        ((8, 9, 3), np.uint8, (8, 9, 3)),
        ((8, 9, 1), np.uint8, (8, 9)),
        ((3, 16, 17), np.uint8, (16, 17, 3)),
        ((4, 16, 17), np.uint8, (16, 68)),
        ((16, 17, 1), np.float32, (16, 17)),
    ],
)
def test_images_of_every_layout_become_rows_and_columns(shape, dtype, shown):
    values = np.arange(np.prod(shape)).reshape(shape).astype(dtype)

    drawn = as_pixels(values)

    assert (drawn.shape, drawn.dtype) == (shown, np.uint8)
    assert (drawn.min(), drawn.max()) == (0, values.max() if dtype == np.uint8 else 255)


@pytest.mark.parametrize("path", ["", "overview/", "1e3/episodes", "-1/ends", "0/episodes/x", "../manifest.json"])
def test_other_addresses_have_no_document(ask, path):
    assert ask(path) is None


@pytest.mark.parametrize("path", ["1/ends", "0/episodes/3", "0/episodes/3/rows"])
def test_datasets_and_episodes_that_do_not_exist_are_named(ask, path):
    with pytest.raises(InvalidArgumentError, match=r"expected 0 to"):
        ask(path)


def test_columns_of_a_source_are_listed_and_replace_no_other(tmp_path):
    made = [trajectory(3, seed=seed, episode=7 - seed, level=seed + 40) for seed in range(2)]

    page = Panel(write_dataset(tmp_path / "a", made)).page("level", "", 0, descending=True)

    assert [(row["episode"], row["level"]) for row in page["rows"]] == [(1, 41), (0, 40)]


def test_scores_are_absent_after_preprocessing(tmp_path):
    """A step may have scaled the rewards."""
    stored = view_data.state_dataset(
        tmp_path / "a", score={"low": 0, "high": 1, "origin": "x"}, history=({"recipe": {}},)
    )

    assert "score" not in Panel(stored).columns


@pytest.fixture(scope="module")
def robot(tmp_path_factory):
    return Panel(view_data.robot_dataset(tmp_path_factory.mktemp("robot") / "a"))


def test_elements_have_the_names_that_the_manifest_stores(robot):
    curves = answer([robot], "0/episodes/0/curves", {"field": "observation.joints", "start": "3"})
    fields = {field["name"]: field["names"] for field in answer([robot], "overview", {})["datasets"][0]["fields"]}

    assert curves["labels"] == ["observation.joints wrist", "observation.joints gripper"]
    assert fields["observation.joints"] == ["waist", "shoulder", "elbow", "wrist", "gripper"]
    assert fields["action"] is None


@pytest.mark.parametrize("names", ["waist", ["waist"], None, {"waist": 0}, [["waist"]]])
def test_names_that_do_not_fit_the_elements_are_not_used(tmp_path, names):
    panel = Panel(view_data.robot_dataset(tmp_path / "a", joints=names))

    assert panel.labels("observation.joints", 0)[:2] == ["observation.joints[0]", "observation.joints[1]"]


def test_all_depth_images_of_an_episode_have_one_scale(robot):
    """The depths of episode 0 are 0.5 m in a corner, and elsewhere t + 1 m up to 6 m in its last step, 7 m after it."""
    scale = answer([robot], "0/episodes/0", {})["scales"]
    images = [pixels(robot.frame(0, step, "observation.depth")) for step in range(7)]

    assert scale == {"observation.depth": [0.5, 6.0]}
    assert {int(image[0, 0]) for image in images} == {0}
    expected = [round(255 * (min(step + 1, 6) - 0.5) / 5.5) for step in range(7)]
    assert [int(image[8, 8]) for image in images] == expected


def test_the_scale_of_large_depth_images_is_that_of_a_few_of_them(tmp_path, monkeypatch):
    panel = Panel(view_data.robot_dataset(tmp_path / "a", lengths=(200,)))
    rows = []
    column = StoredDataset.items
    monkeypatch.setattr(StoredDataset, "items", lambda stored, key: rows.append(key) or column(stored, key))

    assert panel.episode(0, "episode", "", descending=False)["scales"]["observation.depth"] == [0.5, 200]
    assert rows.count(("observation", "depth")) <= 24


def test_images_of_pixels_have_no_scale(mixed):
    assert answer([mixed], "0/episodes/0", {})["scales"] == {}


def test_a_filter_with_long_runs_of_spaces_is_read_at_once(ask):
    assert ask("0/episodes", where="length > 5" + " " * 60_000 + "and length < 20")["matching"] == 1
