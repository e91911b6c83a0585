"""V-D4RL: actions in the row of the next image, flags at fixed intervals, and files that split episodes."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import h5py
import numpy as np
import pytest
import torch
from oracles import comparison
from raw.vd4rl import CASES, EPISODES_64, EPISODES_84, Rollout, as_npz, roll, write_npz, write_shards

from datasets_rl import Selection, VD4RLExperienceReplay, downloading, verification
from datasets_rl.downloading import planning
from datasets_rl.errors import ConversionError, InvalidArgumentError, UnknownIdError
from datasets_rl.format.reader import StoredDataset
from datasets_rl.settings import Settings
from datasets_rl.sources import find, get_source
from datasets_rl.sources.vd4rl.episodes import EpisodeFiles
from datasets_rl.transforms import ToTensorImage

NPZ, HDF5 = f"vd4rl/{EPISODES_64}", f"vd4rl/{EPISODES_84}"


@pytest.fixture
def place(tmp_path):
    return tmp_path / "tree" / NPZ


@pytest.fixture
def rows(tmp_path):
    return tmp_path / "tree" / HDF5


@pytest.fixture
def convert(tmp_path):
    """A function that converts the files in ``tmp_path / "tree"``."""

    def run(name=NPZ, **selection):
        settings = Settings(home=tmp_path / "home", progress=False)
        wanted = Selection(**selection)
        return StoredDataset(
            downloading.download(name, from_local=tmp_path / "tree", settings=settings, selection=wanted, force=True)
        )

    return run


def counted(rows, offset=0):
    """Return a rollout in which row k has the pixel value k, the action k and the reward 10 k."""
    numbers = np.arange(offset, offset + rows)
    action = np.stack([numbers, -numbers], 1).astype(np.float32)
    reward = (10 * numbers).astype(np.float32)
    action[0], reward[0] = 0, 0
    pixels = np.broadcast_to(numbers[:, None, None, None], (rows, 4, 5, 3)).astype(np.uint8)
    return Rollout(pixels, action, reward, np.ones(rows, np.float32), {})


def images(stored, key=("pixels",)):
    return stored.column(key)[:, 0, 0, 0].tolist()


def decided(stored):
    return {one.rule: one.count for one in stored.manifest.decisions}


@pytest.mark.parametrize("rows", [0, 1])
@pytest.mark.parametrize("at", [0, 1])
def test_a_file_without_a_transition_is_left_out_and_counted(place, convert, rows, at):
    """Files with only a reset, or without rows."""
    arrays = as_npz(counted(5))
    write_npz(place, {name: values[:rows] for name, values in arrays.items()}, at)
    write_npz(place, arrays, 1 - at)

    stored = convert()
    assert stored.episodes["source"].tolist() == [1 - at]
    assert images(stored) == [0, 1, 2, 3]
    assert decided(stored)["no-transition"] == 1
    assert comparison.deep_problems(stored.folder) == []


def test_every_action_is_in_the_row_of_the_image_before_it(place, convert):
    write_npz(place, as_npz(counted(5)))

    stored = convert()

    assert images(stored) == [0, 1, 2, 3]
    assert stored.column(("action",)).tolist() == [[1, -1], [2, -2], [3, -3], [4, -4]]
    assert stored.column(("next", "reward")).tolist() == [[10], [20], [30], [40]]
    assert images(stored, ("next", "pixels")) == [1, 2, 3, 4]
    assert stored.column(("is_init",)).tolist() == [True, False, False, False]
    assert stored.column(("next", "truncated"))[:, 0].tolist() == [False, False, False, True]
    assert not stored.column(("next", "terminated")).any()
    assert stored.episodes["final_known"].all()
    assert decided(stored) == {"action-before-frame": 4, "unusual-length": 1}


def test_an_episode_of_501_rows_has_500_steps(place, convert):
    write_npz(place, as_npz(roll(501)))

    stored = convert()

    assert stored.episodes.lengths.tolist() == [500]
    assert decided(stored) == {"action-before-frame": 500}


def test_a_surplus_flag_is_ignored(place, convert):
    flags = np.arange(6)
    write_npz(place, as_npz(counted(5), is_first=flags == 0, is_last=flags == 5, is_terminal=flags < 0))

    stored = convert()

    assert images(stored) == [0, 1, 2, 3]
    assert stored.column(("next", "truncated"))[:, 0].tolist() == [False, False, False, True]
    assert decided(stored)["flags-one-longer"] == 1
    assert decided(stored)["end-without-flag"] == 1


@pytest.mark.parametrize("at", [1, 2, 4])
def test_a_reset_inside_a_file_begins_an_episode(place, convert, at):
    """The upstream set the flags at every 501 rows; the reset has neither an action nor a reward."""
    old, new = counted(10), counted(6, 100)
    mixed = [np.concatenate([one[-at:], two]) for one, two in zip(_arrays(old), _arrays(new), strict=True)]
    write_npz(place, as_npz(Rollout(*mixed, {})))

    stored = convert()

    tail = [*range(10 - at, 9)]
    assert images(stored) == [*tail, 100, 101, 102, 103, 104]
    assert stored.column(("action",))[:, 0].tolist() == [*(one + 1 for one in tail), 101, 102, 103, 104, 105]
    assert stored.column(("is_init",)).tolist() == [*(False for _ in tail), True, False, False, False, False]
    assert stored.episodes.lengths.tolist() == [*([at - 1] if at > 1 else []), 5]
    assert decided(stored)["reset-inside-file"] == 1
    assert decided(stored).get("row-without-step", 0) == (at == 1)
    assert comparison.deep_problems(stored.folder) == []


def _arrays(one):
    return one.pixels, one.action, one.reward, one.discount


@pytest.mark.parametrize("discount", [0, 1])
def test_without_is_terminal_the_last_discount_determines_termination(place, convert, discount):
    made = counted(5)
    made.discount[-1] = discount
    write_npz(place, as_npz(made, is_terminal=None, discount=made.discount.astype(np.float64)))

    stored = convert()

    assert stored.column(("next", "terminated"))[-1, 0] == (discount == 0)
    assert stored.column(("next", "truncated"))[-1, 0] == (discount == 1)
    assert stored.column(("state", "discount")).dtype == np.float32
    assert stored.column(("next", "state", "discount"))[-1] == discount
    assert decided(stored)["terminal-from-discount"] == 1


def test_values_that_float32_cannot_represent_are_counted(place, convert):
    write_npz(place, as_npz(counted(5), height=np.array([0.5, 0.1, 1, 0.2, np.nan])))

    stored = convert()

    assert stored.column(("state", "height")).tolist() == [0.5, float(np.float32(0.1)), 1, float(np.float32(0.2))]
    assert decided(stored)["rounded"] == 2
    assert decided(stored)["not-finite"] == 1


def test_only_the_folder_itself_is_the_dataset(place, convert):
    """Its name is a prefix of other names, and it has other folders below it."""
    write_npz(place, as_npz(counted(5)))
    write_npz(place.with_name("64px_more"), as_npz(counted(9)), 1)
    write_npz(place / "below", as_npz(counted(9)), 2)

    assert len(convert()) == 4


def test_a_long_episode_is_read_in_pieces_that_join(tmp_path):
    path = write_npz(tmp_path, as_npz(roll(1500)))
    recording = EpisodeFiles("x", {path.name: path})

    found = [*recording.episodes([[7, path.name]])]

    assert len(found) == 3
    assert [one.continues for one in found] == [True, True, False]
    assert all(one.states["pixels",].nbytes < 9_000_000 for one in found)
    assert [int(one.metadata["source"]) for one in found] == [7, 7, 7]
    wanted = roll(1500)
    assert np.array_equal(np.concatenate([one.states["pixels",] for one in found]), wanted.pixels)
    assert np.array_equal(np.concatenate([one.steps["action",] for one in found]), wanted.action[1:])


def test_episodes_that_files_split_are_joined(rows, convert):
    write_shards(rows, [counted(25), counted(9, 100)], 12)

    stored = convert(HDF5)

    assert stored.episodes.lengths.tolist() == [24, 8]
    assert stored.column(("pixels",))[:, 0, 0, 0].tolist() == [*range(24), *range(100, 108)]
    assert stored.column(("next", "pixels"))[:, 0, 0, 0].tolist() == [*range(1, 25), *range(101, 109)]
    assert stored.column(("action",))[:, 0].tolist() == [*range(1, 25), *range(101, 109)]
    assert stored.column(("pixels",)).shape[1:] == (3, 4, 5)
    assert ("state", "step_type") not in set(stored.keys())
    assert decided(stored) == {"action-before-frame": 32}


def test_a_termination_of_the_row_files_has_the_discount_0(rows, convert):
    ended = counted(5)
    ended.discount[-1] = 0
    write_shards(rows, [ended, counted(4)], 1)

    stored = convert(HDF5)

    assert stored.column(("next", "terminated"))[:, 0].tolist() == [False, False, False, True, False, False, False]
    assert stored.column(("next", "truncated"))[:, 0].tolist() == [False, False, False, False, False, False, True]


def test_consecutive_files_can_be_selected_and_cut_episodes_at_their_ends(rows, convert):
    """Twelve rows in four files, of which the second and third have rows 3 to 8."""
    write_shards(rows, [counted(6), counted(6, 100)], 4)

    stored = convert(HDF5, include=("1.hdf5", "2.hdf5"))

    assert stored.column(("pixels",))[:, 0, 0, 0].tolist() == [3, 4, 100, 101]
    assert stored.column(("action",))[:, 0].tolist() == [4, 5, 101, 102]
    assert stored.column(("is_init",)).tolist() == [False, False, True, False]
    assert stored.column(("next", "truncated"))[:, 0].tolist() == [False, True, False, True]
    assert decided(stored)["end-without-flag"] == 1
    assert comparison.deep_problems(stored.folder) == []
    with pytest.raises(InvalidArgumentError, match=r"1\.hdf5 is excluded, but an episode may continue in it"):
        convert(HDF5, exclude=("1.hdf5",))


def test_a_deep_verification_lists_the_folder_of_which_files_were_selected(place, convert):
    """Their numbers are those in the folder; if it has other files since, the selection means other episodes."""
    for number in range(4):
        write_npz(place, as_npz(counted(5, 10 * number)), number)
    stored = convert(episodes="2:")

    found = verification.verify(stored.folder, deep=True)

    assert stored.episodes["source"].tolist() == [2, 3]
    assert found.problems == ()
    assert found.checked[-1].startswith("every converted value against")

    write_npz(place, as_npz(counted(5)), 4)
    found = verification.verify(stored.folder, deep=True)

    assert found.problems == ()
    assert any(text.startswith("not compared with raw files: ") for text in found.checked)


def test_episodes_of_row_files_are_counted_over_all_files(rows, convert):
    write_shards(rows, [counted(6), counted(7, 50), counted(5, 100)], 4)

    stored = convert(HDF5, episodes="1")

    assert stored.column(("pixels",))[:, 0, 0, 0].tolist() == [50, 51, 52, 53, 54, 55]
    assert stored.episodes["source"].tolist() == [1]
    assert comparison.deep_problems(stored.folder) == []
    with pytest.raises(InvalidArgumentError, match="count from the start"):
        convert(HDF5, episodes="-1:")


def test_excluding_a_file_keeps_the_others(place, convert):
    paths = [write_npz(place, as_npz(counted(4, 10 * number)), number) for number in range(3)]

    stored = convert(exclude=(paths[1].name,))

    assert stored.episodes["source"].tolist() == [0, 2]
    assert stored.column(("pixels",))[:, 0, 0, 0].tolist() == [0, 1, 2, 20, 21, 22]
    assert comparison.deep_problems(stored.folder) == []
    with pytest.raises(InvalidArgumentError, match="match none of the 3 files"):
        convert(episodes="1", exclude=(paths[1].name,))


def test_max_size_selects_single_episodes(place, convert):
    sizes = [write_npz(place, as_npz(counted(4, 10 * number)), number).stat().st_size for number in range(3)]

    assert convert(max_size=sum(sizes) - 1).episodes["source"].tolist() == [0, 1]


@pytest.mark.parametrize("most", [1 << 26, 10])
@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"velocity": np.zeros(4, np.float32)}, "it has state.velocity, unlike the first file"),
        ({"discount": np.zeros((4, 2), np.float32)}, r"state.discount is float32 \[2\], in the first file"),
    ],
)
def test_a_file_with_other_columns_is_refused_at_any_position(place, convert, monkeypatch, most, arrays, says):
    """In a separate shard, its own first file would define the columns, and an additional column would be lost."""
    monkeypatch.setattr("datasets_rl.sources.vd4rl._SHARD_BYTES", most)
    write_npz(place, as_npz(counted(4)))
    write_npz(place, as_npz(counted(4), **arrays), 1)

    with pytest.raises(ConversionError, match=says):
        convert()


def test_a_row_file_with_other_columns_is_refused(rows, convert):
    write_shards(rows, [counted(6), counted(6, 100)], 3)
    with h5py.File(rows / "2.hdf5", "r+") as file:
        file["more"] = np.zeros(len(file["reward"]))

    with pytest.raises(ConversionError, match=r"2\.hdf5: it has state.more, unlike the first file"):
        convert(HDF5)


def test_files_of_both_formats_are_refused(place, convert):
    write_npz(place, as_npz(counted(5)))
    write_shards(place, [counted(5)], 1)

    with pytest.raises(ConversionError, match=r"expected \.npz files or \.hdf5 files"):
        convert()


@pytest.fixture
def root(place, rows, convert):
    """The source's folder with a dataset of each format."""
    write_npz(place, as_npz(roll(20)))
    write_shards(rows, [replace(roll(20, 84), state={})], 2)
    convert()
    return convert(HDF5).folder.parents[4]


@pytest.mark.parametrize("name", [EPISODES_64, EPISODES_84])
def test_the_class_returns_floats_with_channels_first_for_both_formats(root, name):
    dataset = VD4RLExperienceReplay(name, 8, root=root, download=False, image_size=50)

    batch = dataset.sample()

    for key in ("pixels", ("next", "pixels")):
        assert batch[key].shape == (8, 3, 50, 50)
        assert batch[key].dtype == torch.float32
        assert 0 <= batch[key].min() <= batch[key].max() <= 1
    assert dataset["pixels"].dtype == torch.uint8


def test_the_class_returns_unchanged_images_on_request(root):
    options = {"root": root, "download": False}

    plain = VD4RLExperienceReplay(EPISODES_64, 8, totensor=False, **options).sample()
    own = ToTensorImage(in_keys=["pixels", ("next", "pixels")], dtype=torch.float64)
    given = VD4RLExperienceReplay(EPISODES_64, 8, transform=own, image_size=(10, 20), **options)

    assert (plain["pixels"].shape, plain["pixels"].dtype) == ((8, 64, 64, 3), torch.uint8)
    assert sum(isinstance(one, ToTensorImage) for one in given.transforms) == 1
    assert (given.sample()["pixels"].shape, given.sample()["pixels"].dtype) == ((8, 3, 10, 20), torch.float64)


def test_the_class_opens_a_part_without_images(root):
    few = Selection(keys=("action",))

    dataset = VD4RLExperienceReplay(EPISODES_64, 8, root=root, download=False, image_size=50, selection=few)

    assert "pixels" not in set(dataset.sample().keys())


def test_the_ids_are_known_without_a_network():
    ids = get_source("vd4rl").ids()

    assert len(ids) == 35
    assert set(ids) == set(VD4RLExperienceReplay.available_datasets)
    assert find("vd4rl/main/humanoid_walk/medium_replay/84px").time_limit == 500
    assert any("501 flags" in fault for fault in find("vd4rl/main/humanoid_walk/medium/64px").known_issues)
    assert find("vd4rl/distracting/walker_walk_random/84px/easy").license == "MIT"
    with pytest.raises(UnknownIdError) as caught:
        find("vd4rl/main/walker_walk/exprt/64px")
    assert caught.value.nearest[0] == "vd4rl/main/walker_walk/expert/64px"


@pytest.mark.parametrize("name", ["vd4rl", "gen_dgrl"])
def test_reading_the_catalogs_imports_neither_numpy_nor_torch(name):
    script = f"""
import sys
from datasets_rl import sources
source = sources.get_source({name!r})
count = len([source.entry(name) for name in source.ids()])
print(count, *({{"numpy", "torch", "h5py", "httpx"}} & set(sys.modules)))
"""
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()

    assert out == [str(len(get_source(name).ids()))]


def test_the_size_of_episodes_of_64_pixels_is_estimated_from_file_names(tmp_path):
    CASES[0].write(tmp_path / "tree")
    settings = Settings(home=tmp_path / "home", progress=False)

    raw = Selection(options={"images": "raw"})
    told = planning.plan(NPZ, from_local=tmp_path / "tree", settings=settings, selection=raw).stored_bytes
    folder = downloading.download(NPZ, from_local=tmp_path / "tree", settings=settings, selection=raw)

    assert told == pytest.approx(StoredDataset(folder).manifest.bytes, rel=0.05)
