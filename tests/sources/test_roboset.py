"""RoboSet's two layouts, its episode numbers and its ids, compared with the generated trials."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import h5py
import numpy as np
import pytest
import torch
from oracles import comparison
from raw.roboset import NAME, Trial, draw, write_file
from upstreams import hub

from datasets_rl import RobosetExperienceReplay, Selection, downloading
from datasets_rl.errors import ConversionError, InvalidArgumentError, UnknownIdError
from datasets_rl.format.check import check_rules
from datasets_rl.format.reader import StoredDataset
from datasets_rl.settings import Settings
from datasets_rl.sources import find, get_source

ID = f"roboset/{NAME}"


@pytest.fixture
def convert(tmp_path):
    settings = Settings(home=tmp_path / "home", progress=False, retries=0)

    def run(*files, **options):
        """A function that writes files, given as dicts of trials, and converts them."""
        for number, trials in enumerate(files):
            write_file(tmp_path / "tree" / NAME / f"seed{number}.h5", trials)
        return StoredDataset(downloading.download(ID, from_local=tmp_path / "tree", settings=settings, **options))

    return run


@pytest.fixture
def rng():
    return np.random.default_rng(1)


def counting(length, *, by_state, done=None):
    """Return a trial of states, actions and rewards that are consecutive numbers."""
    states = {"observations": np.arange(length + 1.0)[:, None]}
    return Trial(states, np.arange(length)[:, None] + 0.25, np.arange(length) + 100.0, done, by_state)


def test_if_the_last_action_is_nan_rewards_and_flags_belong_to_the_previous_row(convert):
    """Row t has s_t, r_t, d_t and a_t; the reward and flag of a_0 are in row 1."""
    stored = convert({0: counting(3, by_state=True, done=np.array([False, False, True]))})

    assert stored.column(("observation",))[:, 0].tolist() == [0, 1, 2]
    assert stored.column(("next", "observation"))[:, 0].tolist() == [1, 2, 3]
    assert stored.column(("action",))[:, 0].tolist() == [0.25, 1.25, 2.25]
    assert stored.column(("next", "reward"))[:, 0].tolist() == [100, 101, 102]
    assert stored.column(("next", "terminated"))[:, 0].tolist() == [False, False, True]
    assert stored.column(("time",)).tolist() == [0, 0.04, 0.08]
    assert stored.episodes["final_known"].tolist() == [True]
    assert [one.rule for one in stored.manifest.decisions] == ["rows-are-states"]


@pytest.mark.parametrize("rows", [0, 1])
@pytest.mark.parametrize("at", [0, 1])
def test_trials_without_a_step_are_left_out_and_counted(tmp_path, rows, at):
    """Trials with a single state, or without rows."""
    path = tmp_path / "tree" / NAME / "seed0.h5"
    write_file(
        path, {at: counting(1, by_state=True), 1 - at: counting(3, by_state=True), 2: counting(2, by_state=False)}
    )
    with h5py.File(path, "r+") as file:
        names: list[str] = []
        file[f"Trial{at}"].visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
        for name in names:
            kept = file[f"Trial{at}/{name}"][2 - rows :]
            del file[f"Trial{at}/{name}"]
            file[f"Trial{at}/{name}"] = kept

    settings = Settings(home=tmp_path / "home", progress=False, retries=0)
    stored = StoredDataset(downloading.download(ID, from_local=tmp_path / "tree", settings=settings))
    assert stored.episodes["trial"].tolist() == [1 - at, 2]
    assert stored.episodes.lengths.tolist() == [3, 2]
    assert {one.rule: one.count for one in stored.manifest.decisions}["no-transition"] == 1
    assert comparison.deep_problems(stored.folder) == []


def test_if_the_last_action_is_finite_rewards_and_flags_belong_to_the_same_row(convert):
    stored = convert({0: counting(3, by_state=False)})

    assert stored.column(("observation",))[:, 0].tolist() == [0, 1, 2]
    assert stored.column(("next", "observation"))[:, 0].tolist() == [1, 2, 0]
    assert stored.column(("next", "reward"))[:, 0].tolist() == [100, 101, 102]
    assert stored.column(("next", "truncated"))[:, 0].tolist() == [False, False, True]
    assert stored.episodes["final_known"].tolist() == [False]
    rules = {one.rule: one.count for one in stored.manifest.decisions}
    assert rules == {"rows-are-steps": 1, "end-without-flag": 1}


def test_the_layout_is_detected_for_each_trial(convert):
    stored = convert({0: counting(2, by_state=True), 1: counting(2, by_state=False)})

    assert stored.column(("next", "observation"))[:, 0].tolist() == [1, 2, 1, 0]
    assert stored.episodes["final_known"].tolist() == [True, False]


@pytest.mark.parametrize(("by_state", "final"), [(True, 4), (False, 0)])
def test_an_end_flag_inside_a_trial_ends_the_trajectory(convert, by_state, final):
    stored = convert({0: counting(4, by_state=by_state, done=np.array([False, True, False, False]))})

    assert stored.episodes.lengths.tolist() == [2, 2]
    assert stored.episodes["trial"].tolist() == [0, 0]
    assert stored.episodes["source"].tolist() == [0, 1]
    assert stored.column(("next", "observation"))[:, 0].tolist() == [1, 2, 3, final]
    assert stored.column(("next", "terminated"))[:, 0].tolist() == [False, True, False, False]
    assert stored.column(("next", "truncated"))[:, 0].tolist() == [False, False, False, True]
    assert check_rules(stored.schema, stored.episodes, stored.column).problems == []
    assert comparison.deep_problems(stored.folder) == []


def test_trials_are_ordered_by_file_and_number_with_unique_episodes(convert, rng):
    stored = convert({10: draw(rng, 1), 2: draw(rng, 2)}, {2: draw(rng, 3), 0: draw(rng, 4)})

    assert stored.episodes["trial"].tolist() == [2, 10, 0, 2]
    assert stored.episodes["source"].tolist() == [0, 1, 2, 3]
    assert stored.episodes["seed"].tolist() == [0, 0, 1, 1]
    assert stored.column(("seed",)).tolist() == [0] * 3 + [1] * 7
    assert stored.column(("episode",)).tolist() == [0, 0, 1, 2, 2, 2, 2, 3, 3, 3]
    assert stored.manifest.metadata == {f"files/{seed}": f"{NAME}/seed{seed}.h5" for seed in range(2)}


def test_trials_longer_than_a_piece_are_read_in_pieces(convert, rng, monkeypatch):
    given = {0: draw(rng, 9, done=True), 1: draw(rng, 8, by_state=False, done=None), 2: draw(rng, 7)}
    whole = convert(given)
    wanted = {key: whole.column(key).copy() for key in [*whole.keys()]}
    # A row has about 127 bytes: pieces of two, three and one rows end at, before and after the last row.
    for size in (130, 260, 400, 1000):
        monkeypatch.setattr("datasets_rl.sources.rows._CHUNK_BYTES", size)
        stored = convert(force=True)
        assert stored.episodes.lengths.tolist() == [9, 8, 7]
        for key, values in wanted.items():
            assert np.array_equal(stored.column(key), values), (size, key)


def test_numbers_of_16_bits_are_widened_without_loss(convert, rng):
    trial = draw(rng, 3, dtype=np.float16)
    stored = convert({0: trial})

    assert stored.column(("observation",)).dtype == np.float32
    assert np.array_equal(stored.column(("action",)), trial.actions.astype(np.float32))
    assert {one.rule for one in stored.manifest.decisions} >= {"widened"}


def test_a_later_file_with_narrower_numbers_is_widened_and_one_with_wider_ones_refused(convert, rng):
    narrow, wide = draw(rng, 3, dtype=np.float32), draw(rng, 3)

    stored = convert({0: wide}, {0: narrow})
    assert np.array_equal(stored.column(("action",))[3:], narrow.actions.astype(np.float64))
    with pytest.raises(ConversionError, match=r"seed1\.h5: Trial0: .*float64.*first trial float32"):
        convert({0: narrow}, {0: wide}, force=True)


def test_a_flag_on_the_first_state_is_ignored(convert, tmp_path, rng):
    write_file(tmp_path / "tree" / NAME / "seed0.h5", {0: draw(rng, 3)})
    with h5py.File(tmp_path / "tree" / NAME / "seed0.h5", "r+") as file:
        file["Trial0/done"][0] = True

    assert not convert().column(("next", "terminated")).any()


def test_all_errors_of_all_trials_are_reported_at_once(convert, rng, tmp_path):
    write_file(tmp_path / "tree" / NAME / "seed0.h5", {number: draw(rng, 3) for number in range(3)})
    with h5py.File(tmp_path / "tree" / NAME / "seed0.h5", "r+") as file:
        file["Trial1/observations"][1, 2] = np.inf
        del file["Trial2/time"]
    with pytest.raises(ConversionError) as caught:
        convert()

    assert len(caught.value.problems) == 2


def test_an_id_has_no_files_of_an_id_with_the_same_prefix(convert, rng, tmp_path):
    tree = tmp_path / "tree"
    write_file(tree / f"{NAME}.h5", {0: draw(rng, 1)})
    write_file(tree / f"{NAME}2" / "seed1.h5", {0: draw(rng, 2)})
    stored = convert({0: draw(rng, 3)})

    assert [file.path for file in stored.manifest.raw] == [f"{NAME}.h5", f"{NAME}/seed0.h5"]


def test_the_folder_of_the_id_itself_can_be_given(rng, tmp_path):
    write_file(tmp_path / "mine" / "a.h5", {0: draw(rng, 3)})
    settings = Settings(home=tmp_path / "home", progress=False)

    folder = downloading.download(ID, from_local=tmp_path / "mine", settings=settings)

    assert len(StoredDataset(folder)) == 3


def test_names_with_parentheses_are_requested_percent_encoded(rng, tmp_path, monkeypatch):
    write_file(tmp_path / "tree" / NAME / "seed0.h5", {0: draw(rng, 3)})
    monkeypatch.setenv("NO_PROXY", "*")
    with hub({"jdvakil/RoboSet_Sim": tmp_path / "tree"}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        downloading.download(ID, settings=Settings(home=tmp_path / "home", progress=False, retries=0))

    asked = [request.path for request in server.requests]
    assert any("/resolve/" in path for path in asked)
    assert not any("(" in path for path in asked)


def test_pickles_can_be_left_out(convert, rng, tmp_path):
    (tmp_path / "tree" / NAME).mkdir(parents=True)
    (tmp_path / "tree" / NAME / "seed1.pickle").write_bytes(b"\x80\x04.")

    with pytest.raises(ConversionError, match="pickles"):
        convert({0: draw(rng, 3)})
    assert len(convert(selection=Selection(exclude=("*.pickle",)))) == 3


def test_excluding_a_file_keeps_the_others_and_their_seed_numbers(convert, rng):
    stored = convert({0: draw(rng, 3)}, {0: draw(rng, 2)}, selection=Selection(exclude=("seed0.h5",)))

    assert stored.column(("seed",)).tolist() == [1, 1]
    assert comparison.deep_problems(stored.folder) == []


@pytest.mark.first(2)
@pytest.mark.parametrize("shard_bytes", [1 << 26, 10])
@pytest.mark.parametrize(
    ("episodes", "numbers"), [("0:3", [0, 1, 2]), ("2:", [2, 3, 4, 5, 6]), ("5:99", [5, 6]), ("6,1", [1, 6])]
)
def test_episodes_are_counted_over_all_files(convert, rng, monkeypatch, episodes, numbers, shard_bytes):
    monkeypatch.setattr("datasets_rl.sources.roboset._SHARD_BYTES", shard_bytes)
    ended = np.array([False, True, False])
    files = (
        {0: draw(rng, 2), 7: draw(rng, 1, by_state=False)},
        {3: replace(draw(rng, 3), done=ended), 4: draw(rng, 2)},
        {0: draw(rng, 5), 1: draw(rng, 1)},
    )
    # Trial 3 of the second file is two episodes.
    seeds, trials, lengths = [0, 0, 1, 1, 1, 2, 2], [0, 7, 3, 3, 4, 0, 1], [2, 1, 2, 1, 2, 5, 1]

    stored = convert(*files, selection=Selection(episodes=episodes))

    assert stored.episodes["source"].tolist() == numbers
    assert stored.episodes["seed"].tolist() == [seeds[number] for number in numbers]
    assert stored.episodes["trial"].tolist() == [trials[number] for number in numbers]
    assert stored.episodes.lengths.tolist() == [lengths[number] for number in numbers]
    assert comparison.deep_problems(stored.folder) == []


def test_episodes_can_be_selected_from_the_remaining_files(convert, rng):
    given = [{0: draw(rng, length), 1: draw(rng, 1)} for length in (2, 3, 4)]

    stored = convert(*given, selection=Selection(episodes="2", exclude=("seed1.h5",)))

    assert (stored.episodes["seed"].tolist(), stored.episodes.lengths.tolist()) == ([2], [4])
    assert comparison.deep_problems(stored.folder) == []


def test_the_class_selects_the_same_episodes_of_a_complete_dataset(convert, rng, tmp_path):
    convert({0: draw(rng, 2), 1: draw(rng, 1)}, {0: draw(rng, 3), 1: draw(rng, 4)})

    dataset = RobosetExperienceReplay(
        NAME, root=tmp_path / "home" / "roboset", download=False, selection=Selection(episodes="1:3")
    )

    assert dataset["seed"].tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize(
    ("episodes", "says"), [("-2:", "not known before"), ("3:1", "selects no episode"), ("a", "expected numbers")]
)
def test_negative_numbers_and_empty_selections_are_refused(convert, rng, episodes, says):
    with pytest.raises(InvalidArgumentError, match=says):
        convert({0: draw(rng, 2)}, selection=Selection(episodes=episodes))


def test_a_deep_verification_finds_episodes_of_another_trial(convert, rng):
    stored = convert({0: draw(rng, 2), 1: draw(rng, 2)})
    wrong = stored.episodes["trial"][::-1]
    table = {"trial": wrong, "source": stored.episodes["source"]}

    class Table:
        starts, lengths = stored.episodes.starts, stored.episodes.lengths
        __getitem__ = table.get

    files = {file.path: Path(url2pathname(urlsplit(file.url).path)) for file in stored.manifest.raw}
    found = comparison.compare(f"roboset/{NAME}", files, stored.column, Table())

    assert len(found) == 1
    assert "episode 0 is trial 1 with 2 rows" in found[0]


def test_more_than_one_flag_per_row_is_refused(convert, rng, tmp_path):
    """Otherwise flags [T, 2] would be read as 2 T flags."""
    write_file(tmp_path / "tree" / NAME / "seed0.h5", {0: draw(rng, 3)})
    with h5py.File(tmp_path / "tree" / NAME / "seed0.h5", "r+") as file:
        del file["Trial0/done"]
        file["Trial0/done"] = np.zeros((4, 2), bool)

    with pytest.raises(ConversionError, match=r"Trial0/done is \[4, 2\], expected one flag per row"):
        convert()


def test_excluded_fields_are_not_read(convert, rng, tmp_path):
    write_file(tmp_path / "tree" / NAME / "seed0.h5", {0: draw(rng, 3)})
    with h5py.File(tmp_path / "tree" / NAME / "seed0.h5", "r+") as file:
        file["Trial0/env_infos/obs_dict/qp"][1] = np.nan

    stored = convert(selection=Selection(keys=("observation", "action")))

    assert ("info", "obs_dict", "qp") not in stored.schema
    assert comparison.deep_problems(stored.folder) == []


def test_the_class_has_the_keys_of_torchrl(convert, rng, tmp_path):
    convert({0: draw(rng, 4), 1: draw(rng, 3)})

    dataset = RobosetExperienceReplay(NAME, 5, root=tmp_path / "home" / "roboset", download=False)
    batch = dataset.sample()

    assert set(batch.keys()) - {"index"} == {
        *("action", "done", "episode", "info", "next", "observation", "seed", "terminated", "time", "truncated")
    }
    assert set(batch["next"].keys()) == {"done", "info", "observation", "reward", "terminated", "truncated"}
    assert (batch["seed"].dtype, batch["seed"].shape) == (torch.int64, (5,))
    assert batch["next", "reward"].shape == (5, 1)
    assert dataset.metadata["files"] == {"0": f"{NAME}/seed0.h5"}
    assert len(RobosetExperienceReplay.available_datasets) == 20


def test_the_catalog_has_the_twenty_ids():
    names = get_source("roboset").ids()

    assert len(names) == 20
    assert sum(name.startswith("FK1-v4(human)/human_demos_by_task/") for name in names) == 6
    assert find(ID).title == "Franka kitchen, policies: FK1_MicroOpenRandom_v2d-v4"
    with pytest.raises(UnknownIdError) as caught:
        find("roboset/FK1-v4(human)/human_demos_by_task")
    assert caught.value.nearest[0].startswith("roboset/FK1-v4(human)/human_demos_by_task/")
