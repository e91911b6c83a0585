"""`delta_timestamps` of a dataset: every value of a dataset that LeRobot wrote is that which its reader returns."""

from __future__ import annotations

import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from raw import lerobot, make_lerobot
from torch.utils.data import DataLoader

from datasets_rl import SamplerWithoutReplacement, Settings, downloading, load
from datasets_rl.datasets.open_mixture import mixture
from datasets_rl.errors import InvalidArgumentError, UnknownKeyError
from datasets_rl.format.reader import StoredDataset
from datasets_rl.preprocessing.steps.times import FrameSkip
from datasets_rl.samplers import WindowSampler
from datasets_rl.sources import Selection
from datasets_rl.transforms import ObservationNorm

FPS, LENGTHS = make_lerobot.FPS, make_lerobot.LENGTHS
COUNT = sum(LENGTHS)
SECONDS = {
    "observation.images.top": [-0.1, 0],
    "observation.images.wrist": [0.2, -0.3, 0],
    "observation.state": [-0.5, -0.1, 0],
    "action": [step / FPS for step in range(8)],
    "next.reward": [0.1],
}
KEYS = {
    "observation.images.top": ("observation", "image", "top"),
    "observation.images.wrist": ("observation", "image", "wrist"),
    "observation.state": ("observation", "state"),
    "action": ("action",),
    "next.reward": ("next", "reward"),
}
pytestmark = pytest.mark.filterwarnings("ignore::datasets_rl.errors.UnknownFinalWarning")


@pytest.fixture(scope="module", params=["raw", "encoded", "compressed", "video"])
def folder(request, tmp_path_factory):
    """The folder of the stored dataset, with images in each form."""
    files = tmp_path_factory.mktemp("files")
    with tarfile.open(Path(lerobot.__file__).with_name("lerobot-0.4.4.tar.gz")) as archive:
        archive.extractall(files, filter="data")
    settings = Settings(home=tmp_path_factory.mktemp("home"), progress=False)
    selection = Selection(options={"images": request.param})
    return downloading.download("lerobot/me/made", from_local=files, settings=settings, selection=selection)


@pytest.fixture(scope="module")
def columns(folder):
    """The columns that LeRobot was given; its videos have a loss, so that these are those that were stored."""
    rows = [row for episode in make_lerobot.episodes() for row in episode]
    stored = StoredDataset(folder)
    columns = {name: np.stack([row[name] for row in rows]) for name in KEYS if "top" not in name}
    return {**columns, "observation.images.top": stored.column(KEYS["observation.images.top"], 0, COUNT)}


def item(columns, row, seconds=SECONDS):
    """`LeRobotDataset[row]` of lerobot 0.4.4, from `_get_query_indices` and `_query_hf_dataset`."""
    stops = np.cumsum(LENGTHS)
    episode = int(np.searchsorted(stops, row, "right"))
    start, stop = stops[episode] - LENGTHS[episode], stops[episode]
    found = {}
    for name, deltas in seconds.items():
        wanted = [row + round(delta * FPS) for delta in deltas]
        found[name] = np.stack([columns[name][max(start, min(stop - 1, one))] for one in wanted])
        found[f"{name}_is_pad"] = np.array([(one < start) | (one >= stop) for one in wanted])
    return found


def assert_lerobot(batch, columns, rows, seconds=SECONDS):
    items = [item(columns, int(row), seconds) for row in rows]
    for name in seconds:
        *groups, last = KEYS[name]
        for key, wanted in ((KEYS[name], name), ((*groups, f"{last}_is_pad"), f"{name}_is_pad")):
            expected = torch.from_numpy(np.stack([one[wanted] for one in items]))
            assert batch[key].dtype == expected.dtype
            assert torch.equal(batch[key], expected), key


def test_every_item_is_that_of_lerobot(folder, columns):
    dataset = load(folder, delta_timestamps=SECONDS)

    assert_lerobot(dataset[:], columns, range(COUNT))
    assert_lerobot(dataset.sample(rows=torch.arange(COUNT)), columns, range(COUNT))
    assert_lerobot(dataset[torch.tensor([23, 0, 6, 6])], columns, [23, 0, 6, 6])
    drawn = dataset.sample(50)
    assert_lerobot(drawn, columns, drawn["index"])


@pytest.mark.first(2)
@pytest.mark.parametrize("options", [{}, {"prefetch": 2}, {"device": "cpu"}])
def test_epochs_batches_and_other_transforms_see_the_windows(folder, columns, options):
    if "device" in options and StoredDataset(folder).schema[KEYS["observation.images.top"]].form in {
        "encoded",
        "video",
    }:
        pytest.skip("encoded images are not kept on a device")
    scaled = ObservationNorm(0.0, 2.0, in_keys=["action"])
    dataset = load(
        folder, 5, delta_timestamps=SECONDS, sampler=SamplerWithoutReplacement(), transform=scaled, **options
    )
    doubled = {**columns, "action": columns["action"] * 2}

    seen = []
    for batch in dataset:
        assert_lerobot(batch, doubled, batch["index"])
        seen += batch["index"].tolist()
    assert sorted(seen) == [*range(COUNT)]
    for batch in dataset.batches(7):
        assert_lerobot(batch, doubled, batch["index"])


@pytest.mark.first(2)
@pytest.mark.parametrize("workers", [0, 1])
def test_a_data_loader_reads_them_by_row(folder, columns, workers):
    dataset = load(folder, delta_timestamps=SECONDS)
    loader = DataLoader(dataset, batch_size=6, num_workers=workers, collate_fn=lambda batch: batch)
    for number, batch in enumerate(loader):
        assert_lerobot(batch, columns, range(6 * number, 6 * number + len(batch)))


def test_a_part_of_the_fields_and_of_the_episodes_has_the_same_windows(folder, columns):
    seconds = {name: SECONDS[name] for name in ("observation.images.top", "action")}
    dataset = load(folder, delta_timestamps=seconds, keys=["observation.image.top", "action"])
    assert {*dataset[:3].keys()} == {"observation", "action", "action_is_pad"}
    assert_lerobot(dataset[:], columns, range(COUNT), seconds)

    last = load(folder, delta_timestamps=SECONDS, selection=Selection(episodes="1:3"))
    assert_lerobot(last[:], columns, range(LENGTHS[0], COUNT))


def test_rows_without_a_known_next_state_are_not_in_windows_if_they_are_dropped(folder, columns):
    """The last step of each episode is left out, so that windows end one step earlier."""
    dropped = load(folder, delta_timestamps={"action": [0, 0.1]}, final_unknown="drop")[:]
    ends = np.cumsum(LENGTHS) - 1
    rows = np.setdiff1d(np.arange(COUNT), ends)
    following = np.where(np.isin(rows + 1, ends), rows, rows + 1)

    assert torch.equal(dropped["action"][:, 1], torch.from_numpy(columns["action"][following]))
    assert dropped["action_is_pad"][:, 1].tolist() == np.isin(rows + 1, ends).tolist()


def test_whole_episodes_have_windows_along_their_time_axis(folder, columns):
    seconds = {"action": [-0.1, 0, 0.3]}
    episodes = load(folder, delta_timestamps=seconds, split_trajs=True)[:]
    assert episodes["action"].shape == (3, max(LENGTHS), 3, 2)
    real = episodes["mask"]
    assert_lerobot(episodes[real], columns, range(COUNT), seconds)


def test_a_mixture_has_the_windows_of_each_dataset(folder, columns):
    members = [load(folder, delta_timestamps=SECONDS) for _ in range(2)]
    batch = mixture(members, batch_size=40).sample()
    assert_lerobot(batch, columns, batch["index", "index"])


def test_any_sampler_chooses_the_steps(folder):
    dataset = load(folder, 64, delta_timestamps={"action": [-0.1, 0, 0.3]}, sampler=WindowSampler(1, 3))
    assert not dataset.sample()["action_is_pad"].any()


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("observation.images.top", ("observation", "image", "top")),
        ("observation.image.top", ("observation", "image", "top")),
        (("observation", "image", "top"), ("observation", "image", "top")),
        ("observation.images", ("observation", "image", "wrist")),
        ("observation", ("observation", "state")),
        ("state", ("observation", "state")),
        ("actions", ("action",)),
        ("action", ("action",)),
        ("frame_index", ("frame",)),
        ("next.reward", ("next", "reward")),
    ],
)
def test_fields_are_named_as_in_lerobot_or_by_their_keys(folder, name, key):
    batch = load(folder, delta_timestamps={name: [-0.1, 0]})[:4]
    assert batch[key].shape[:2] == (4, 2)
    assert batch[(*key[:-1], f"{key[-1]}_is_pad")].shape == (4, 2)


def test_wrong_arguments_are_named(folder):
    with pytest.raises(UnknownKeyError, match=r"observation\.images\.left"):
        load(folder, delta_timestamps={"observation.images.left": [0]})
    with pytest.raises(InvalidArgumentError, match=r"'action' has 0.13 \(nearest: 0.1\), expected multiples of 1/10 s"):
        load(folder, delta_timestamps={"action": [0, 0.13]})
    assert load(folder, delta_timestamps={"action": [0, 0.13]}, tolerance_s=0.04)[:2]["action"].shape == (2, 2, 2)
    with pytest.raises(InvalidArgumentError, match="has action twice, once as 'actions'"):
        load(folder, delta_timestamps={"action": [0], "actions": [0.1]})
    with pytest.raises(InvalidArgumentError, match="fps is 5, which needs delta_timestamps"):
        load(folder, fps=5)


def test_a_given_frame_rate_replaces_the_stated_one(folder, columns):
    batch = load(folder, delta_timestamps={"action": [0, 0.2]}, fps=5)[:]
    assert_lerobot(batch, columns, range(COUNT), {"action": [0, 0.1]})


def test_a_dataset_without_a_frame_rate_needs_one(tmp_path):
    options = {"root": tmp_path / "demo", "delta_timestamps": {"action": [0, 0.1]}}
    with pytest.raises(InvalidArgumentError, match="demo/pendulum does not state its steps per second") as raised:
        load("demo/pendulum", **options)
    assert "pass fps=" in raised.value.hint
    assert load("demo/pendulum", 4, fps=20, **options).sample()["action"].shape == (4, 2, 1)


def test_skipped_frames_divide_the_frame_rate(folder, columns, tmp_path):
    load(folder).preprocess(FrameSkip(2), dest=tmp_path / "half")
    half = load(tmp_path / "half", delta_timestamps={"action": [0, 0.2]})

    assert half.manifest.fps == FPS / 2
    assert torch.equal(half[:4]["action"], torch.from_numpy(columns["action"][[[0, 2], [2, 4], [4, 6], [6, 6]]]))
