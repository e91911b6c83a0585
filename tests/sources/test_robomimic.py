"""Alignments, filter keys, ids and files of robomimic's source, compared with the generated demonstrations."""

from __future__ import annotations

import json
from dataclasses import replace

import h5py
import numpy as np
import pytest
from oracles import comparison
from raw.robomimic import (
    LIFT,
    Demo,
    draw,
    libero_attributes,
    of_libero,
    renamed_keys,
    write_file,
    write_libero,
    write_regenerated,
    write_robomimic,
    write_without_next,
)
from servers import serve

from datasets_rl import RobomimicExperienceReplay, Selection, downloading, verification
from datasets_rl.downloading import planning
from datasets_rl.errors import ConversionError, InvalidArgumentError, UnknownIdError
from datasets_rl.format.reader import StoredDataset
from datasets_rl.settings import Settings
from datasets_rl.sources import find, get_source

TASK = "libero/libero_goal/turn_on_the_stove_demo"


@pytest.fixture
def convert(tmp_path):
    """A function that converts the files of a folder, by default as a name that is not in the catalog."""
    settings = Settings(home=tmp_path / "home", progress=False, retries=0)

    def run(name="mine", path=None, *, jobs=1, **options):
        selection = Selection(**{field: options.pop(field) for field in ("episodes", "keys") if field in options})
        part = {name: options.pop(name) for name in ("split", "alignment") if name in options}
        return StoredDataset(
            downloading.download(
                f"robomimic/{name}",
                from_local=path or tmp_path / "tree",
                settings=replace(settings, jobs=jobs),
                selection=replace(selection, options=part),
                **options,
            )
        )

    return run


@pytest.fixture
def rng():
    return np.random.default_rng(1)


def counting(length: int) -> Demo:
    """Return a demonstration of states and actions that are their numbers."""
    numbers = np.arange(length + 1.0)[:, None]
    joints = numbers * np.arange(1, 8)
    obs = {"joint_states": joints, "ee_states": numbers}
    states = np.hstack([numbers, joints, numbers])
    flags = np.arange(length) == length - 1
    return Demo(obs, states, numbers[:-1] + 0.25, flags + np.arange(length) / 8, flags.astype(np.uint8))


def rules(stored):
    return {one.rule: one.count for one in stored.manifest.decisions}


def libero(path, demos, write=write_libero, text="turn on the stove"):
    write_file(path, demos, write, **libero_attributes(text, demos))


def test_the_observation_beside_an_action_of_libero_is_the_one_after_it(convert, tmp_path):
    """The step of a_0 is left out: the file has no observation before it."""
    demo = counting(4)
    libero(tmp_path / "tree" / "a.hdf5", {0: replace(demo, rewards=np.array([0, 0, 1, 1.0]))})

    stored = convert()

    assert stored.column(("observation", "ee_states"))[:, 0].tolist() == [1, 2, 3]
    assert stored.column(("next", "observation", "ee_states"))[:, 0].tolist() == [2, 3, 4]
    assert stored.column(("action",))[:, 0].tolist() == [1.25, 2.25, 3.25]
    assert stored.column(("info", "states"))[:, 0].tolist() == [1, 2, 3]
    assert stored.column(("info", "robot_states"))[:, 0].tolist() == [2, 3, 4]
    assert stored.column(("next", "reward"))[:, 0].tolist() == [0, 1, 1]
    assert stored.column(("next", "terminated"))[:, 0].tolist() == [False, False, True]
    assert stored.episodes["final_known"].tolist() == [True]
    assert rules(stored) == {"alignment-after": 1, "alignment-by-states": 1}


def test_the_observation_in_files_of_libero_that_were_generated_again_is_the_one_before(convert, tmp_path):
    write_file(tmp_path / "tree" / "KITCHEN_SCENE3_turn_it_on_demo.hdf5", {0: counting(4)}, write_regenerated)

    stored = convert()

    assert stored.column(("observation", "ee_states"))[:, 0].tolist() == [0, 1, 2, 3]
    assert stored.column(("action",))[:, 0].tolist() == [0.25, 1.25, 2.25, 3.25]
    assert stored.episodes["final_known"].tolist() == [False]
    assert stored.texts(("language_instruction",))[-1] == "turn it on"
    assert rules(stored) == {"alignment-before": 1, "alignment-by-states": 1, "instruction-of-name": 1}


def test_the_last_next_obs_of_robomimic_is_the_final_observation(convert, tmp_path):
    write_file(tmp_path / "tree" / "a.hdf5", {0: renamed_keys(counting(3))}, write_robomimic)

    stored = convert()

    assert stored.column(("observation", "object"))[:, 0].tolist() == [0, 1, 2]
    assert stored.column(("next", "observation", "object"))[:, 0].tolist() == [1, 2, 3]
    assert stored.episodes["final_known"].tolist() == [True]
    assert rules(stored) == {"alignment-next-obs": 1, "alignment-by-next-obs": 1}


def test_without_next_obs_the_final_observation_is_not_known(convert, tmp_path):
    write_file(tmp_path / "tree" / "a.hdf5", {0: renamed_keys(counting(3))}, write_without_next)

    stored = convert()

    assert stored.column(("next", "observation", "object"))[:, 0].tolist() == [1, 2, 0]
    assert stored.episodes["final_known"].tolist() == [False]
    assert rules(stored) == {"alignment-final": 1, "alignment-by-keys": 1, "arrays-left-out": 1}


@pytest.mark.parametrize(("size", "alignment"), [(128, "after"), (256, "before")])
def test_if_the_robot_stands_still_the_size_of_the_images_shows_the_alignment(convert, tmp_path, rng, size, alignment):
    demo = of_libero(draw(rng, 4, images=size))
    still = replace(demo, obs={**demo.obs, "joint_states": np.zeros((5, 7))}, states=np.zeros((5, 12)))
    libero(tmp_path / "tree" / "a.hdf5", {0: still})

    assert rules(convert()) == {f"alignment-{alignment}": 1, "alignment-by-image-size": 1}


def test_an_alignment_that_nothing_shows_is_refused_until_it_is_stated(convert, tmp_path, rng):
    demo = of_libero(draw(rng, 4, images=64))
    still = replace(demo, obs={**demo.obs, "joint_states": np.zeros((5, 7))}, states=np.zeros((5, 12)))
    libero(tmp_path / "tree" / "a.hdf5", {0: still})

    with pytest.raises(ConversionError, match="neither the simulator states nor the size of the images") as caught:
        convert()
    assert "before" in str(caught.value.hint)
    assert rules(convert(alignment="after")) == {"alignment-after": 1, "alignment-by-given": 1}
    assert len(convert(alignment="before", force=True)) == 4


def test_a_stated_alignment_that_next_obs_contradicts_is_refused(convert, tmp_path):
    write_file(tmp_path / "tree" / "a.hdf5", {0: renamed_keys(counting(3))}, write_robomimic)

    with pytest.raises(ConversionError, match="it has next_obs, so that"):
        convert(alignment="after")


def test_a_next_obs_that_differs_is_refused_until_the_alignment_is_stated(convert, tmp_path):
    path = tmp_path / "tree" / "a.hdf5"
    write_file(path, {0: renamed_keys(counting(4))}, write_robomimic)
    with h5py.File(path, "r+") as file:
        file["data/demo_0/next_obs/object"][1] += 1
        file["data/demo_0/next_obs/object"][2] += 1e-9

    with pytest.raises(ConversionError, match=r"in row 1 differs from .* in row 2 \(1 such rows\)") as caught:
        convert()
    assert "takes the rows as stored" in str(caught.value.hint)
    stored = convert(alignment="before")
    assert stored.column(("next", "observation", "object"))[:, 0].tolist() == [1, 2, 3, 4]
    assert rules(stored)["next-obs-differs"] == rules(stored)["next-obs-rounded"] == 1


@pytest.mark.parametrize(
    ("dones", "rewards", "terminated"),
    [([1, 1], [1, 1], True), ([0, 1], [0, 0], False), ([1, 0], [1, 1], False), ([0, 1], [0.2, 0.9], True)],
)
def test_the_end_is_terminated_if_dones_is_set_and_the_reward_is_positive(
    convert, tmp_path, dones, rewards, terminated
):
    demo = replace(renamed_keys(counting(2)), dones=np.array(dones), rewards=np.array(rewards, float))
    write_file(tmp_path / "tree" / "a.hdf5", {0: demo}, write_robomimic)

    stored = convert()

    assert stored.column(("next", "terminated"))[:, 0].tolist() == [False, terminated]
    assert stored.column(("next", "truncated"))[:, 0].tolist() == [False, not terminated]
    assert stored.column(("dones",)).tolist() == dones
    assert rules(stored).get("dones-inside", 0) == dones[0]


def test_demonstrations_without_rewards_have_zeros(convert, tmp_path):
    path = tmp_path / "tree" / "a.hdf5"
    write_file(path, {0: renamed_keys(counting(3))}, write_robomimic)
    with h5py.File(path, "r+") as file:
        del file["data/demo_0/rewards"]

    stored = convert()

    assert not stored.column(("next", "reward")).any()
    assert stored.column(("next", "truncated"))[:, 0].tolist() == [False, False, True]
    assert rules(stored)["rewards-missing"] == 1


@pytest.mark.parametrize("value", [np.array([3, 3]), "three", 3.5])
def test_a_stated_number_of_rows_of_another_type_is_an_error(convert, tmp_path, value):
    path = tmp_path / "tree" / "a.hdf5"
    write_file(path, {0: renamed_keys(counting(3))}, write_robomimic)
    with h5py.File(path, "r+") as file:
        file["data/demo_0"].attrs["num_samples"] = value

    with pytest.raises(ConversionError, match="num_samples is"):
        convert()


def test_demonstrations_are_in_the_order_of_their_numbers(convert, tmp_path, rng):
    demos = {number: renamed_keys(draw(rng, 1 + number)) for number in (11, 2, 0)}
    write_file(tmp_path / "tree" / "a.hdf5", demos, write_robomimic)

    stored = convert()

    assert stored.episodes["demo"].tolist() == [0, 2, 11]
    assert stored.episodes.lengths.tolist() == [1, 3, 12]


@pytest.mark.parametrize(("write", "left"), [(write_robomimic, []), (write_libero, [0])])
def test_demonstrations_without_a_transition_are_left_out(convert, tmp_path, rng, write, left):
    demos = {0: draw(rng, 1), 1: draw(rng, 3)}
    write_file(tmp_path / "tree" / "a.hdf5", demos, write)

    stored = convert()

    assert stored.episodes["demo"].tolist() == [number for number in (0, 1) if number not in left]
    assert rules(stored).get("no-transition", 0) == len(left)


def test_a_split_is_a_filter_key_and_episodes_are_counted_in_it(convert, tmp_path, rng):
    masks = [("train",), ("valid",), ("train", "few"), ("train",)]
    demos = {number: renamed_keys(draw(rng, 2, masks=names)) for number, names in enumerate(masks)}
    write_file(tmp_path / "tree" / "a.hdf5", demos, write_robomimic)

    stored = convert(split="train")

    assert stored.episodes["demo"].tolist() == [0, 2, 3]
    assert stored.episodes["mask.few"].tolist() == [False, True, False]
    assert convert(split="train", episodes="1:", force=True).episodes["demo"].tolist() == [2, 3]
    with pytest.raises(InvalidArgumentError, match=r"split is 'test', but the filter keys of .* are few, train, valid"):
        convert(split="test", force=True)


@pytest.mark.first(1)
@pytest.mark.parametrize("shard_bytes", [1 << 26, 3000, 700])
def test_pieces_of_files_and_of_demonstrations_give_the_same(convert, tmp_path, rng, monkeypatch, shard_bytes):
    demos = {number: renamed_keys(draw(rng, 3 + number, masks=("train",))) for number in range(5)}
    write_file(tmp_path / "tree" / "a.hdf5", demos, write_robomimic)
    whole = {key: values for stored in [convert("whole")] for key in stored.keys() for values in [stored.column(key)]}  # noqa: SIM118 -- no mapping
    monkeypatch.setattr("datasets_rl.sources.robomimic._SHARD_BYTES", shard_bytes)
    monkeypatch.setattr("datasets_rl.sources.rows._CHUNK_BYTES", 800)

    stored = convert("pieces", jobs=2)

    assert all(np.array_equal(stored.column(key), values) for key, values in whole.items())
    assert comparison.deep_problems(stored.folder) == []


def test_libero_in_pieces_of_demonstrations_is_the_same(convert, tmp_path, rng, monkeypatch):
    libero(tmp_path / "tree" / "a.hdf5", {0: of_libero(draw(rng, 7)), 1: of_libero(draw(rng, 2))})
    whole = {key: values for stored in [convert("whole")] for key in stored.keys() for values in [stored.column(key)]}  # noqa: SIM118 -- no mapping
    for size in (300, 600, 900):
        monkeypatch.setattr("datasets_rl.sources.rows._CHUNK_BYTES", size)

        stored = convert(f"pieces{size}")

        assert all(np.array_equal(stored.column(key), values) for key, values in whole.items())


def test_simulator_states_of_several_sizes_are_left_out(convert, tmp_path, rng):
    """RoboCasa's scenes differ within a file."""
    one, other = renamed_keys(draw(rng, 3)), renamed_keys(draw(rng, 3))
    demos = {0: one, 1: replace(other, states=other.states[:, 1:])}
    write_file(tmp_path / "tree" / "a.hdf5", demos, write_without_next)

    stored = convert()

    assert ("info", "states") not in stored.schema
    assert rules(stored)["states-left-out"] == 2


def test_a_file_of_a_suite_has_its_own_id(convert, tmp_path, rng):
    libero(tmp_path / "tree" / "libero_goal" / "turn_on_the_stove_demo.hdf5", {0: of_libero(draw(rng, 3))})
    libero(tmp_path / "tree" / "libero_goal" / "another_demo.hdf5", {0: of_libero(draw(rng, 5))})

    stored = convert(TASK)

    assert len(stored) == 2
    assert ("info", "states") in stored.schema
    assert find(f"robomimic/{TASK}").title == "Ten tasks that differ in the goal: turn on the stove"
    assert stored.manifest.environment == "Libero_Tabletop_Manipulation"
    assert "Libero" in json.loads(stored.manifest.metadata["env_args"])["env_name"]


@pytest.mark.parametrize("given", ["tree/a.hdf5", "tree"])
def test_any_file_or_folder_can_be_given(convert, tmp_path, rng, given):
    write_file(tmp_path / "tree" / "a.hdf5", {0: renamed_keys(draw(rng, 3))}, write_robomimic)

    assert len(convert("pick/mine", tmp_path / given)) == 3


def test_several_files_are_one_dataset(convert, tmp_path, rng):
    for number, length in enumerate((3, 4)):
        write_file(tmp_path / "tree" / f"{number}.hdf5", {0: renamed_keys(draw(rng, length))}, write_robomimic)

    stored = convert()

    assert stored.episodes["file"].tolist() == [0, 1]
    assert stored.episodes.lengths.tolist() == [3, 4]
    assert stored.manifest.metadata == {"files/0": "mine/0.hdf5", "files/1": "mine/1.hdf5"}
    assert comparison.deep_problems(stored.folder) == []


def test_files_with_other_filter_keys_are_refused(convert, tmp_path, rng):
    for number, masks in enumerate([("train",), ("valid",)]):
        demos = {0: renamed_keys(draw(rng, 3, masks=masks))}
        write_file(tmp_path / "tree" / f"{number}.hdf5", demos, write_robomimic)

    with pytest.raises(ConversionError, match=r"the filter keys are valid, in the first file train"):
        convert()


def test_an_unknown_name_without_files_names_the_nearest_ids(tmp_path):
    with pytest.raises(UnknownIdError) as caught:
        downloading.download("robomimic/lift/ph/low_dim", settings=Settings(home=tmp_path, progress=False))

    assert "robomimic/lift/ph/low_dim_v15" in caught.value.nearest
    assert "give the file, or the folder" in str(caught.value.hint)


def test_the_second_repository_is_asked_if_the_first_has_no_files(tmp_path, rng, monkeypatch):
    from upstreams import hub

    write_file(tmp_path / "repo" / "v1.5" / f"{LIFT}.hdf5", {0: renamed_keys(draw(rng, 3))}, write_robomimic)
    monkeypatch.setenv("NO_PROXY", "*")
    with hub({"amandlek/robomimic": tmp_path / "repo"}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        settings = Settings(home=tmp_path / "home", progress=False, retries=0)
        stored = StoredDataset(downloading.download(f"robomimic/{LIFT}", settings=settings))

    assert stored.manifest.raw[0].url.startswith("hf://datasets/amandlek/robomimic@")


def test_a_mirror_that_lists_no_files_has_names_that_the_catalog_lacks(tmp_path, rng, monkeypatch):
    path = tmp_path / "mine.hdf5"
    write_file(path, {0: renamed_keys(draw(rng, 3))}, write_robomimic)
    monkeypatch.setenv("NO_PROXY", "*")
    with serve({"/team/mine.hdf5": path}) as server:
        settings = Settings(home=tmp_path / "home", progress=False, retries=0)
        folder = downloading.download("robomimic/team/mine", mirrors=[server.url], settings=settings)

    assert len(StoredDataset(folder)) == 3


def test_only_the_requested_fields_are_stored(convert, tmp_path, rng):
    libero(tmp_path / "tree" / "a.hdf5", {0: of_libero(draw(rng, 4, images=128))})

    stored = convert(keys=("observation.agentview_rgb", "language_instruction"))

    assert {field.key for field in stored.schema if field.key[0] != "next"} == {
        ("observation", "agentview_rgb"),
        ("language_instruction",),
        ("episode",),
    }


def test_the_class_has_images_and_instructions(convert, tmp_path, rng):
    libero(tmp_path / "tree" / "libero_goal" / "turn_on_the_stove_demo.hdf5", {0: of_libero(draw(rng, 4, images=128))})
    convert(TASK)

    dataset = RobomimicExperienceReplay(TASK, 2, root=tmp_path / "home" / "robomimic", download=False)
    batch = dataset.sample()

    assert batch["observation", "agentview_rgb"].shape == (2, 128, 128, 3)
    texts = dataset.texts("language_instruction")
    assert {texts[code] for code in batch["language_instruction"].tolist()} == {"turn on the stove"}


def test_the_catalog_has_the_files_of_the_three_projects():
    source = get_source("robomimic")
    names = source.ids()

    assert len(names) == 84
    assert sum(name.startswith("mimicgen/") for name in names) == 12 + 26 + 2 + 16 + 6
    assert sum(name.startswith("libero/") for name in names) == 5
    assert {source.entry(name).license for name in names if name.startswith("libero/")} != {""}
    assert source.addresses(LIFT)[1] == f"hf://datasets/amandlek/robomimic/v1.5/{LIFT}.hdf5"
    assert source.addresses("lift_real/ph/demo") == [
        "http://downloads.cs.stanford.edu/downloads/rt_benchmark/lift_real/ph/demo.hdf5"
    ]
    assert find("robomimic/libero/libero_10").score.high == 1
    assert find("robomimic/transport/mh/low_dim_v15").time_limit == 1100


def test_a_dry_run_estimates_both_forms_of_images(tmp_path, rng):
    demos = {0: of_libero(draw(rng, 9, images=128))}
    libero(tmp_path / "tree" / "libero_goal" / "turn_on_the_stove_demo.hdf5", demos)

    planned = planning.plan(f"robomimic/{TASK}", from_local=tmp_path / "tree", settings=Settings(home=tmp_path))

    assert [*planned.choices] == ["images=raw", "images=compressed"]
    assert planned.stored_bytes == planned.assets[0].size


def test_robomimics_own_reader_gives_the_same_transitions(convert, tmp_path, rng):
    """Its sequences of length 1 are our rows, in the same order, and its goals are the final observations."""
    reader = pytest.importorskip("robomimic.utils.dataset", reason="pip install --no-deps robomimic termcolor")
    obs_utils = pytest.importorskip("robomimic.utils.obs_utils")
    masks = [("train",), (), ("train",)]
    demos = {number: renamed_keys(draw(rng, 3 + number, masks=names)) for number, names in enumerate(masks)}
    demos[10] = renamed_keys(draw(rng, 2, masks=("train",)))
    write_file(tmp_path / "tree" / "a.hdf5", demos, write_robomimic, total=14)
    stored = convert(split="train")
    obs_utils.initialize_obs_modality_mapping_from_dict({"low_dim": ["object", "robot0_joint_pos"]})

    theirs = reader.SequenceDataset(
        str(tmp_path / "tree" / "a.hdf5"),
        obs_keys=("object", "robot0_joint_pos"),
        dataset_keys=("actions", "rewards", "dones"),
        goal_mode="last",
        filter_by_attribute="train",
        hdf5_use_swmr=False,
    )

    assert len(theirs) == len(stored) == 3 + 5 + 2
    final = stored.episodes.stops[stored.column(("episode",))] - 1
    for row in range(len(stored)):
        item = theirs[row]
        for name in ("object", "robot0_joint_pos"):
            key = ("observation", name)
            assert np.array_equal(item["obs"][name][0], stored.column(key)[row])
            assert np.array_equal(item["next_obs"][name][0], stored.column(("next", *key))[row])
            assert np.array_equal(np.squeeze(item["goal_obs"][name]), stored.column(("next", *key))[final[row]])
        assert np.array_equal(item["actions"][0], stored.column(("action",))[row])
        assert item["rewards"][0] == stored.column(("next", "reward"))[row, 0]
        assert item["dones"][0] == stored.column(("dones",))[row]


def isaac(path, lengths, *, total=None, change=None):
    """Write demonstrations as Isaac Lab's recorder does: the states after each action, and the state before the first."""
    with h5py.File(path, "w") as file:
        for number, length in lengths.items():
            group = file.create_group(f"data/demo_{number}")
            group.attrs.update(num_samples=length, success=number % 2 == 0, seed=100 + number)
            joints = number + np.arange(length + 1, dtype=np.float32)[:, None]
            group["actions"] = np.zeros((length, 2), np.float32)
            group["obs/joint_pos"] = joints[:-1]
            group["states/articulation/robot/joint_position"] = joints[1:]
            group["initial_state/articulation/robot/joint_position"] = joints[:1]
            group["states/rigid_object/cube/root_pose"] = np.repeat(joints[1:], 7, axis=1)
            group["initial_state/rigid_object/cube/root_pose"] = np.repeat(joints[:1], 7, axis=1)
            if change:
                change(group)
        file["data"].attrs.update(total=sum(lengths.values()) if total is None else total, env_args="{}")
    return path


def test_states_of_isaac_lab_are_those_before_the_actions(tmp_path):
    settings = Settings(home=tmp_path / "home", progress=False, jobs=1)
    path = isaac(tmp_path / "recorded.hdf5", {0: 4, 1: 3, 12: 2}, total=99)

    stored = StoredDataset(downloading.download(str(path), settings=settings))

    joints = stored.column(("observation", "joint_pos"))
    for name in (("articulation", "robot", "joint_position"), ("rigid_object", "cube", "root_pose")):
        np.testing.assert_array_equal(stored.column(("info", "states", *name))[:, :1], joints)
    assert stored.episodes["success"].tolist() == [True, False, True]
    assert stored.episodes["seed"].tolist() == [100, 101, 112]
    assert np.flatnonzero(stored.column(("next", "terminated"))).tolist() == [3, 8]
    assert np.flatnonzero(stored.column(("next", "truncated"))).tolist() == [6]
    counts = {decision.rule: decision.count for decision in stored.manifest.decisions}
    assert counts["states-after-actions"] == 3
    assert counts["total-differs"] == 1
    assert "arrays-left-out" not in counts
    assert counts["end-without-success"] == 1
    assert verification.verify(stored.folder, deep=True, settings=settings).problems == ()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda group: group.pop("initial_state/rigid_object"), "states and initial_state have different keys"),
        (lambda group: group.attrs.pop("seed") if group.name.endswith("_1") else None, "it has no attribute seed"),
    ],
)
def test_recordings_of_isaac_lab_that_contradict_themselves_are_refused(tmp_path, change, problem):
    settings = Settings(home=tmp_path / "home", progress=False, jobs=1)
    path = isaac(tmp_path / "recorded.hdf5", {0: 4, 1: 3}, change=change)
    with pytest.raises(ConversionError, match=problem):
        downloading.download(str(path), settings=settings)


def moving(path, lengths, lag, *, initial=False):
    """Write demonstrations with simulator states of the row before, the same row, or the row after, by the lag."""
    with h5py.File(path, "w") as file:
        for number, length in enumerate(lengths):
            joints = np.cumsum(np.random.default_rng(number).normal(size=(length + 3, 3)), axis=0)
            group = file.create_group(f"data/demo_{number}")
            group["actions"] = np.zeros((length, 2))
            group["obs/joint_pos"] = joints[1 : length + 1]
            states = np.hstack([np.arange(length)[:, None], joints[1 + lag : length + 1 + lag]])
            group["states/robot" if initial else "states"] = states
            if initial:
                group["initial_state/robot"] = states[:1]
    return path


def downloaded(path, tmp_path, **options):
    return StoredDataset(
        downloading.download(str(path), settings=Settings(home=tmp_path / "home", progress=False, jobs=1), **options)
    )


@pytest.mark.parametrize(("lag", "initial"), [(0, False), (1, True)])
def test_states_of_the_expected_rows_are_recorded(tmp_path, lag, initial):
    stored = downloaded(moving(tmp_path / "a.hdf5", [3, 12], lag, initial=initial), tmp_path)

    assert rules(stored)["states-measured"] == 1


@pytest.mark.parametrize(
    ("lag", "initial", "problem"),
    [
        (1, False, "a.hdf5: states equal obs of the following row, but are expected from before the action"),
        (-1, False, "states equal obs of the preceding row"),
        (0, True, "states equal obs of the same row, but are expected from after the action, beside initial_state"),
    ],
)
def test_states_of_another_row_are_refused_until_they_are_left_out_or_stated(tmp_path, lag, initial, problem):
    path = moving(tmp_path / "a.hdf5", [12, 9], lag, initial=initial)
    with pytest.raises(ConversionError, match=problem) as caught:
        downloaded(path, tmp_path)

    assert "keys=..." in str(caught.value.remedy)
    part = downloaded(path, tmp_path, selection=Selection(keys=("observation", "action")))
    assert "states-measured" not in rules(part)
    assert (
        downloaded(path, tmp_path, selection=Selection(options={"alignment": "before"}), force=True).manifest.steps
        == 21
    )


@pytest.mark.parametrize(
    ("change", "problem", "remedy"),
    [
        (
            lambda data: data["demo_0"].pop("obs"),
            "data/demo_0: this file holds simulator states only",
            "correct the named demonstrations",
        ),
        (
            lambda data: data["demo_0"].move("actions", "action"),
            "data/demo_0: it has no actions, only action, obs, states",
            "correct the named demonstrations",
        ),
        (lambda data: data.create_dataset("x", data=[1]), "data/x is not a group", 'by = "group"'),
    ],
)
def test_a_file_that_cannot_be_opened_names_the_demonstration_and_the_way_out(tmp_path, change, problem, remedy):
    path = moving(tmp_path / "a.hdf5", [4], 0)
    with h5py.File(path, "r+") as file:
        change(file["data"])

    with pytest.raises(ConversionError, match=problem) as caught:
        downloaded(path, tmp_path)
    assert "a.hdf5" in str(caught.value)
    assert remedy in str(caught.value.remedy)
