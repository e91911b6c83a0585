"""Ids, alignment and episode ends of RL Unplugged."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from raw.rl_unplugged import FINGER, POLE, RODENT, draw, features, framed, write_files
from raw.tfrecords import example

from datasets_rl import RLUnpluggedExperienceReplay, Selection, downloading, normalized_score
from datasets_rl.errors import ConversionError, InvalidArgumentError, UnknownIdError
from datasets_rl.format.reader import StoredDataset
from datasets_rl.read.tfrecord import read_record_file
from datasets_rl.settings import Settings
from datasets_rl.sources import find, get_source

GOLDEN = Path(__file__).parents[1] / "golden" / "dm_control.npz"
IDS = {
    FINGER: "rl_unplugged/control_suite/finger_turn_hard",
    RODENT: "rl_unplugged/locomotion/rodent_gaps",
    POLE: "rl_unplugged/rwrl/cartpole_swingup_easy_1_percent",
}


@pytest.fixture
def convert(tmp_path):
    def run(kind, *records, **selection):
        folder = tmp_path / "raw"
        write_files(folder, kind, [records])
        settings = Settings(home=tmp_path / "home", progress=False, retries=0)
        selection = Selection(**selection)
        return StoredDataset(downloading.download(IDS[kind], from_local=folder, settings=settings, selection=selection))

    return run


def rules(stored):
    return {one.rule: one.count for one in stored.manifest.decisions}


def test_there_are_nine_seven_and_forty_ids():
    ids = get_source("rl_unplugged").ids()

    assert [sum(one.startswith(f"{part}/") for one in ids) for part in ("control_suite", "locomotion", "rwrl")] == [
        9,
        7,
        40,
    ]
    assert all(find(f"rl_unplugged/{one}").episodes for one in ids)


@pytest.mark.parametrize(
    "name",
    ["rwrl/cartpole_walk_easy_1_percent", "rwrl/cartpole_swingup_hard_1_percent", "rwrl/cheetah_run", "fish_swim"],
)
def test_other_names_are_unknown(name):
    with pytest.raises(UnknownIdError):
        find(f"rl_unplugged/{name}")


def test_an_id_is_a_folder_of_the_bucket():
    source = get_source("rl_unplugged")

    (address,) = source.addresses("rwrl/cartpole_swingup_easy_20_percent")

    assert address == "gs://rl_unplugged/rwrl/combined_challenge_easy/cartpole/swingup/20_percent"
    assert source.addresses("control_suite/fish_swim") == ("gs://rl_unplugged/dm_control_suite_episodes/fish_swim",)


def test_episodes_of_the_control_suite_are_those_that_its_agent_saw(tmp_path):
    """The record of each episode and its transitions are from a loop over dm_control: tests/golden/make_dm_control.py."""
    with np.load(GOLDEN) as file:
        golden = {name.removeprefix("rl_unplugged/"): file[name] for name in file.files if "exorl" not in name}
    folder = tmp_path / "raw" / "dm_control_suite_episodes" / "cheetah_run"
    folder.mkdir(parents=True)
    (folder / "train-00000-of-00001").write_bytes(golden.pop("rl_unplugged").tobytes())
    settings = Settings(home=tmp_path / "home", progress=False)

    name = "rl_unplugged/control_suite/cheetah_run"
    stored = StoredDataset(downloading.download(name, from_local=tmp_path / "raw", settings=settings))

    assert stored.episodes.lengths.tolist() == [40, 40]
    for name, values in golden.items():
        assert np.array_equal(stored.column(tuple(name.split("."))), values), name
    assert np.flatnonzero(stored.column(("next", "truncated"))).tolist() == [39, 79]
    assert not stored.column(("next", "terminated")).any()


def test_values_of_the_row_without_a_step_are_never_stored(convert):
    """They are -5 and 7 in the test's files."""
    for kind in IDS:
        stored = convert(kind, features(kind, draw(kind, 6, 3, terminated=True)))

        assert stored.column(("next", "reward")).min() >= 0
        assert np.abs(stored.column(("action",))).max() <= 1


def test_rewards_of_the_two_alignments_differ_by_the_row_of_the_action(convert):
    rows = draw(POLE, 4, 0)
    late = convert(POLE, features(POLE, rows))
    rule = rules(late)
    taken = convert(FINGER, features(FINGER, draw(FINGER, 4, 0)))

    assert rule == {"action-before-observation": 4}
    assert rules(taken) == {"reward-before-observation": 4}
    assert np.array_equal(late.column(("action",)), rows.action)
    assert np.array_equal(late.column(("next", "reward"))[:, 0], rows.reward)


def test_an_episode_is_terminated_if_its_last_discount_is_0(convert):
    records = [features(FINGER, draw(FINGER, 3, n, terminated=n == 1)) for n in range(3)]

    stored = convert(FINGER, *records)

    assert np.flatnonzero(stored.column(("next", "terminated"))).tolist() == [5]
    assert np.flatnonzero(stored.column(("next", "truncated"))).tolist() == [2, 8]
    assert stored.column(("next", "discount"))[:, 0].tolist() == [1, 1, 1, 1, 1, 0, 1, 1, 1]


def test_a_record_without_its_last_step_is_truncated(convert):
    record = features(FINGER, draw(FINGER, 3, 0, terminated=True)) | {"step_type": [0.0, 1.0, 1.0, 1.0]}

    stored = convert(FINGER, record)

    assert stored.column(("next", "truncated"))[:, 0].tolist() == [False, False, True]
    assert rules(stored)["end-without-flag"] == 1


def test_a_discount_of_0_inside_is_kept_and_counted(convert):
    stored = convert(POLE, features(POLE, draw(POLE, 4, 0)) | {"discount": [1.0, 1.0, 0.0, 1.0, 1.0]})

    assert stored.column(("next", "discount"))[:, 0].tolist() == [1, 0, 1, 1]
    assert np.flatnonzero(stored.column(("next", "done"))).tolist() == [3]
    assert rules(stored)["discount-0-inside"] == 1


def test_other_features_are_left_out_and_named(convert):
    stored = convert(FINGER, features(FINGER, draw(FINGER, 3, 0)) | {"episodic_reward": [1.0] * 4})

    assert "left-out episodic_reward" in rules(stored)
    assert not any("episodic" in field.name for field in stored.schema)


def test_rewards_that_are_not_finite_are_kept_and_counted(convert):
    record = features(FINGER, draw(FINGER, 3, 0))
    record["reward"] = [float("nan"), 1.0, float("nan"), 2.0]

    stored = convert(FINGER, record)

    assert np.array_equal(stored.column(("next", "reward"))[:, 0], [1, np.nan, 2], equal_nan=True)
    assert rules(stored)["not-finite"] == 1


def test_a_long_episode_with_images_is_one_episode(convert):
    """Its images have more than a chunk of 8 MB."""
    rows = draw(RODENT, 800, 0)

    stored = convert(RODENT, features(RODENT, rows), options={"images": "raw"})

    images = rows.states["walker/egocentric_camera"]
    assert stored.episodes.lengths.tolist() == [800]
    assert np.array_equal(stored.column(("next", "observation", "walker", "egocentric_camera")), images[1:])


def test_images_are_not_read_if_other_fields_are_selected(convert):
    record = features(RODENT, draw(RODENT, 4, 0))

    stored = convert(RODENT, record, keys=("observation.walker.joints_pos",))

    assert {field.name for field in stored.schema if field.name.startswith("observation")} == {
        "observation.walker.joints_pos"
    }


def test_episodes_are_counted_over_all_files(tmp_path):
    folder = tmp_path / "raw"
    drawn = [draw(POLE, 3, seed) for seed in range(4)]
    write_files(folder, POLE, [[features(POLE, one) for one in drawn[:3]], [features(POLE, drawn[3])]])
    settings = Settings(home=tmp_path / "home", progress=False)
    selection = Selection(episodes="1,3")

    stored = StoredDataset(downloading.download(IDS[POLE], from_local=folder, settings=settings, selection=selection))

    assert stored.episodes["source"].tolist() == [1, 3]
    assert np.array_equal(stored.column(("action",)), np.concatenate([drawn[1].action, drawn[3].action]))


def test_files_that_state_different_numbers_of_files_are_refused(tmp_path):
    write_files(tmp_path, POLE, [[features(POLE, draw(POLE, 3, 0))]])
    write_files(tmp_path, POLE, [[features(POLE, draw(POLE, 3, 0))]] * 2)

    with pytest.raises(ConversionError, match="state 1 and 2 files"):
        downloading.download(IDS[POLE], from_local=tmp_path, settings=Settings(home=tmp_path / "home", progress=False))


def test_files_without_a_step_are_refused(tmp_path):
    write_files(tmp_path, POLE, [[], []])

    with pytest.raises(ConversionError, match="there is no step in"):
        downloading.download(IDS[POLE], from_local=tmp_path, settings=Settings(home=tmp_path / "home", progress=False))


def test_a_selection_from_the_end_is_refused(convert):
    with pytest.raises(InvalidArgumentError, match="number of episodes is not known"):
        convert(POLE, features(POLE, draw(POLE, 3, 0)), episodes="-2:")


def test_batches_have_the_names_of_the_upstream(convert, tmp_path):
    convert(FINGER, features(FINGER, draw(FINGER, 9, 0)))

    name = "control_suite/finger_turn_hard"
    dataset = RLUnpluggedExperienceReplay(name, 8, root=tmp_path / "home" / "rl_unplugged", download=False)

    batch = dataset.sample()
    assert batch["observation", "dist_to_target"].shape == (8, 1)
    assert batch["next", "discount"].shape == (8, 1)


def test_scores_are_shares_of_the_highest_return():
    assert normalized_score("rl_unplugged/control_suite/cheetah_run", 500) == 0.5
    assert find("rl_unplugged/locomotion/rodent_gaps").score is None


def test_a_plain_record_whose_length_begins_like_gzip_is_read(tmp_path):
    payload = example({"text": [bytes(0x8B1F - 26)]})
    assert len(payload) % 65536 == 0x8B1F, "the length of the record has the magic bytes of gzip"
    for name, data in (("plain", framed(payload)), ("packed", gzip.compress(framed(payload)))):
        (tmp_path / name).write_bytes(data)

        assert [bytes(one) for one in read_record_file(tmp_path / name)] == [payload]
