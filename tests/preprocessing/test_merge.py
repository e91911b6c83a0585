"""Merging several datasets into one."""

from __future__ import annotations

import json

import numpy as np
import pytest
from stored_data import Model, columns, store_dataset, trajectory, write_dataset

from datasets_rl import Selection, download, export, load
from datasets_rl.errors import InvalidArgumentError, PreprocessError, UnknownIdError
from datasets_rl.format.check import check_rules
from datasets_rl.format.integrity import check_files
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import Column
from datasets_rl.look import StepReader, describe
from datasets_rl.preprocessing import Recipe, preprocess, preview
from datasets_rl.progress import Report
from datasets_rl.store import version_folder

LENGTHS = (((3, True), (2, False)), ((4, True),), ((1, False), (5, True)))


@pytest.fixture
def given():
    return [
        [trajectory(steps, seed=10 * number + at, known=known) for at, (steps, known) in enumerate(several)]
        for number, several in enumerate(LENGTHS)
    ]


@pytest.fixture
def folders(given, tmp_path):
    return [
        store_dataset(
            tmp_path / name / "data", one, columns(), id=f"{name}/data", metadata={"seed": number}
        ).folder.parent
        for number, (name, one) in enumerate(zip("abc", given, strict=True))
    ]


def strict(folder):
    stored = StoredDataset(folder)
    assert not check_files(folder, Report())
    assert not check_rules(stored.schema, stored.episodes, stored.column).problems
    return stored


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_a_merge_has_the_dataset_of_each_step(folders, given, tmp_path, parts):
    made = strict(preprocess(folders, Recipe.inline(["reward_scaling:scale=2"]), out=tmp_path / "all", num_parts=parts))

    model = Model([one for several in given for one in several])
    assert made.column(("dataset",)).tolist() == [0] * 5 + [1] * 4 + [2] * 6
    for key in (("observation",), ("next", "observation"), ("action",)):
        assert np.array_equal(made.column(key), model.column(key))
    assert np.array_equal(made.column(("next", "reward")), model.column(("next", "reward")) * 2)
    assert made.episodes.lengths.tolist() == [3, 2, 4, 1, 5]
    assert made.episodes["final_known"].tolist() == [True, False, True, False, True]
    assert made.episodes["source"].tolist() == made.episodes.numbers.tolist() == [0, 1, 2, 3, 4]


def test_datasets_and_recipes_are_given_by_name(tmp_path, monkeypatch):
    monkeypatch.setenv("RLDS_HOME", str(tmp_path))
    folder = download("demo/pendulum")
    float32 = preprocess("demo/pendulum", "float32")
    both = preprocess(["demo/pendulum", "demo/pendulum@float32"], Recipe([]), out=str(tmp_path / "both"))

    assert float32 == folder.with_name("pendulum@float32")
    assert preview("demo/pendulum", "float32").folder == float32
    assert StoredDataset(both).manifest.steps == 30_000
    with pytest.raises(UnknownIdError, match="did you mean demo/pendulum"):
        preprocess("demo/pendul", "float32")


def test_a_merge_keeps_the_metadata_and_the_origin_of_each_dataset(folders, tmp_path):
    preprocess(folders[0], Recipe.inline(["normalize"]), in_place=True)
    made = strict(preprocess(folders, Recipe.inline(["keep_episodes:1:4"]), out=tmp_path / "all"))

    manifest = made.manifest
    assert manifest.id == "a/data + b/data + c/data"
    assert manifest.episodes == 3
    assert [one["id"] for one in manifest.history[0]["merged"]] == ["a/data", "b/data", "c/data"]
    assert manifest.history[0]["merged"][0]["history"][0]["recipe"]["steps"] == [{"use": "normalize"}]
    assert manifest.history[1]["of"]["episodes"] == 5
    assert [manifest.metadata[f"{number}/seed"] for number in range(3)] == [0, 1, 2]
    fitted = StoredDataset(folders[0]).manifest.metadata["preprocess/0/0.normalize/observation/scale"]["file"]
    kept = manifest.metadata["0/preprocess/0/0.normalize/observation/scale"]["file"]
    assert np.array_equal(np.load(made.folder / kept), np.load(version_folder(folders[0]) / fitted))


def test_a_merge_is_reused_and_its_steps_are_fitted_to_all_datasets(folders, tmp_path):
    recipe = Recipe.inline(["keep_top_returns:20"])
    folder = preprocess(folders, recipe, out=tmp_path / "all")
    wanted = max(float(StoredDataset(one).episodes["return"].max()) for one in folders)
    assert strict(folder).episodes["return"].tolist() == pytest.approx([wanted])

    written = version_folder(folder)
    assert preview(folders, recipe, out=folder).present
    preprocess(folders, Recipe.inline(["keep_top_returns:20"]), out=folder)
    assert version_folder(folder) == written
    preprocess(folders[:2], recipe, out=folder, force=True)
    assert version_folder(folder) != written


@pytest.mark.usefixtures("warm_python")
def test_several_processes_merge_to_the_same_result(folders, tmp_path):
    recipe = Recipe.inline(["cast:float16,observation"])
    one, two = (preprocess(folders, recipe, out=tmp_path / f"{n}", num_parts=3, jobs=n) for n in (1, 2))

    assert strict(one).manifest.files == strict(two).manifest.files


def test_fields_that_differ_are_named_key_by_key(folders, tmp_path):
    more = [Column(("reading",), np.dtype("i4"), (2,))]
    other = trajectory(3)
    steps = {key: values if values.dtype == bool else values.astype(np.float64) for key, values in other.steps.items()}
    steps["reading",] = np.ones((3, 2), np.int32)
    other = type(other)(steps, {("observation",): other.states["observation",].astype(np.float64)})
    odd = write_dataset(tmp_path / "d" / "data", [other], [*columns(dtype=np.float64), *more], id="d/data").folder

    with pytest.raises(
        InvalidArgumentError,
        match=r"observation is float32 \[3\] in a/data, float64 \[3\] in d/data; .*reading is missing in a/data, int32 \[2\] in d/data",
    ):
        preprocess([folders[0], odd], Recipe.inline(["reward_scaling"]), out=tmp_path / "all")
    assert not (tmp_path / "all").exists()
    alike = Recipe.inline(["select:observation,action,dataset", "cast:float32"])
    assert len(strict(preprocess([folders[0], odd], alike, out=tmp_path / "all"))) == 8


def test_a_merge_of_a_merge_does_not_lose_the_dataset_of_each_step(folders, tmp_path):
    recipe = Recipe.inline(["reward_scaling:scale=2"])
    both = preprocess(folders[:2], recipe, out=tmp_path / "both")

    with pytest.raises(InvalidArgumentError, match=f"{both} has a field dataset already") as raised:
        preprocess([both, folders[2]], recipe, out=tmp_path / "all")
    assert "exclude:dataset" in raised.value.hint
    assert not (tmp_path / "all").exists()
    plain = preprocess(both, Recipe.inline(["exclude:dataset"]), out=tmp_path / "plain")
    made = strict(preprocess([plain, folders[2]], recipe, out=tmp_path / "all"))
    assert made.column(("dataset",)).tolist() == [0] * 9 + [1] * 6


def test_a_merge_needs_a_destination_and_at_least_one_episode(folders, tmp_path):
    with pytest.raises(InvalidArgumentError, match="the merge of 3 datasets has no destination"):
        preprocess(folders, Recipe.inline(["reward_scaling"]), in_place=True)
    with pytest.raises(PreprocessError, match=r"of the 15 steps of a/data \+ b/data.*: 0 of 5 epi"):
        preprocess(folders, Recipe.inline(["keep_lengths:6"]), out=tmp_path / "all")
    made = strict(preprocess(folders, Recipe.inline(["keep_lengths:5"]), out=tmp_path / "all"))
    assert made.column(("dataset",)).tolist() == [2] * 5


def test_a_dataset_and_its_derived_dataset_are_distinguished_by_their_folders(folders, tmp_path):
    small = preprocess(folders[0], Recipe.inline(["cast:float16,observation"]), out=tmp_path / "small")

    with pytest.raises(InvalidArgumentError, match=rf"float32 \[3\] in {folders[0]}.*, float16 \[3\] in {small}"):
        preprocess([folders[0], small], Recipe.inline(["reward_scaling:scale=2"]), out=tmp_path / "all")


def shown(folder, episodes):
    dataset = load(folder, selection=Selection(episodes=episodes))
    return dataset.episodes.numbers.tolist(), dataset[:]["dataset"].unique().tolist()


def test_a_selection_of_a_merge_takes_the_episodes_with_these_numbers(folders, tmp_path):
    both = preprocess(folders, Recipe([]), out=tmp_path / "all")

    assert shown(both, "0:2") == ([0, 1], [0])
    assert shown(both, [2]) == ([2], [1])
    assert shown(both, [-1, 3]) == ([3, 4], [2])
    rest = preprocess(both, Recipe.inline(["drop_episodes:1,3"]), out=tmp_path / "rest")
    assert load(rest).episodes.numbers.tolist() == [0, 2, 4]
    with pytest.raises(InvalidArgumentError, match="'3', which selects none of the 3 with the numbers 0 to 4"):
        load(rest, selection=Selection(episodes=3))


def test_copies_of_one_episode_share_their_number_and_their_side_of_a_split(tmp_path, monkeypatch):
    monkeypatch.setenv("RLDS_HOME", str(tmp_path))
    download("demo/pendulum")
    preprocess("demo/pendulum", Recipe.inline(["reward_scaling:scale=2", "keep_episodes:10:40"]), name="some")
    store_dataset(tmp_path / "other", [trajectory(3, seed=n) for n in range(5)], columns(), id="local/other")
    alike = Recipe.inline(["select:observation,action,dataset", "exclude:observation,action"])
    both = preprocess(
        ["demo/pendulum", tmp_path / "other", "demo/pendulum@some"], Recipe([*alike.steps]), out=tmp_path / "both"
    )

    numbers = load(both).episodes.numbers.tolist()
    assert numbers == [*range(75), *range(75, 80), *range(10, 40)]
    sides = [
        load(preprocess(both, f"{side}_split", out=tmp_path / side)).episodes.numbers
        for side in ("train", "validation")
    ]
    assert not {*sides[0]} & {*sides[1]}
    assert sum(map(len, sides)) == 110
    assert shown(both, [12, 77]) == ([12, 77, 12], [0, 1, 2])


def test_a_merge_of_a_merge_with_one_of_its_datasets_is_refused(folders, tmp_path):
    both = preprocess(folders[:2], Recipe.inline(["exclude:dataset"]), out=tmp_path / "both")
    scaled = preprocess(both, Recipe.inline(["reward_scaling:scale=2"]), out=tmp_path / "scaled")

    with pytest.raises(InvalidArgumentError, match=r"a/data \+ b/data and a/data have copies of the same episodes"):
        preprocess([both, folders[0]], Recipe([]), out=tmp_path / "all")
    assert not (tmp_path / "all").exists()
    again = preprocess([both, folders[2], scaled], Recipe([]), out=tmp_path / "again")
    assert load(again).episodes.numbers.tolist() == [0, 1, 2, 3, 4, 0, 1, 2]


def test_a_merge_has_the_names_of_elements_that_all_of_its_datasets_state(given, tmp_path):
    """Nothing is guessed where the datasets differ, or where one of them states no names."""
    alike, other = ["pan", "lift", "grip"], ["x", "y", "z"]
    stated = {
        "one": {"names": {"observation": alike, "action": ["left", "right"]}, "robot_type": "arm"},
        "two": {"names": {"observation": alike, "action": ["left", "right"]}, "robot_type": "arm"},
        "three": {"names": {"observation": other, "action": ["left", "right"]}, "robot_type": "hand"},
        "four": {},
    }
    for name, metadata in stated.items():
        store_dataset(tmp_path / name / "data", given[0], columns(), id=f"local/{name}", metadata=metadata)

    def described(*names):
        merged = preprocess([tmp_path / name / "data" for name in names], Recipe([]), out=tmp_path / "-".join(names))
        manifest = StoredDataset(merged).manifest
        return [manifest.element_names(manifest.schema[key]) for key in (("observation",), ("action",))], merged

    both, merged = described("one", "two")
    assert both == [(*alike,), ("left", "right")]
    assert described("one", "three")[0] == [(), ("left", "right")]
    assert described("one", "four")[0] == described("four", "two")[0] == [(), ()]

    fields = {one.key: one.names() for one in describe(StepReader(StoredDataset(merged))).fields}
    assert fields["action"] == ["action left", "action right"]
    export(merged, "lerobot", tmp_path / "lerobot", lossy=True)
    info = json.loads((tmp_path / "lerobot" / "meta" / "info.json").read_text())
    assert info["features"]["observation.state"]["names"] == alike
    assert info["robot_type"] == "arm"
