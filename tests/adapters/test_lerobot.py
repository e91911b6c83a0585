"""`as_lerobot`: its items are those of LeRobot's rules over an export, and of LeRobot itself where it is installed."""

from __future__ import annotations

import json
import math
import pickle
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from exports import export_stored, write_images, write_robot
from lerobot_items import FPS, ExportedItems, check_equal
from stored_data import store_dataset, trajectory
from torch.utils.data import DataLoader

from datasets_rl import Selection, downloading, load
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.settings import Settings
from datasets_rl.training import make_train_eval_datasets

SECONDS = {
    "observation.images.camera": [-0.1, 0.0],
    "observation.joints": [-0.2, 0.0],
    "action": [0.1 * step for step in range(4)],
    "next.reward": [0.0, 0.1],
}


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    return write_robot(tmp_path_factory.mktemp("robot") / "robot")


@pytest.fixture(scope="module")
def folder(stored, tmp_path_factory):
    return export_stored(stored, "lerobot", tmp_path_factory.mktemp("export") / "out")


@pytest.fixture
def robot(stored):
    return load(str(stored.folder))


@pytest.mark.parametrize("seconds", [None, SECONDS], ids=["frames", "windows"])
def test_each_item_is_that_of_an_export(robot, folder, seconds):
    frames = robot.as_lerobot(seconds)

    assert len(frames) == frames.num_frames == 12
    for frame, item in enumerate(frames[:]):
        check_equal(item, ExportedItems(folder).item(frame, seconds))


def test_pixels_without_an_instruction_are_frames_with_a_default_task(tmp_path):
    stored = write_images(tmp_path / "images")
    dataset = load(str(stored.folder))
    folder = dataset.export("lerobot", tmp_path / "out", lossy=True, fps=FPS)
    frames = dataset.as_lerobot({"action": [0.0, 0.1]}, fps=FPS)

    for frame in range(len(frames)):
        check_equal(frames[frame], ExportedItems(folder).item(frame, {"action": [0.0, 0.1]}))
    assert frames.meta.camera_keys == ["observation.images.pixels"]


def test_features_tasks_episodes_and_statistics_are_those_of_an_export(robot, folder):
    meta = robot.as_lerobot().meta

    info = json.loads((folder / "meta/info.json").read_text())
    features = {name: {**one, "shape": list(one["shape"])} for name, one in meta.features.items()}
    assert features == info["features"]
    assert (meta.fps, meta.robot_type) == (info["fps"], info["robot_type"])
    counts = (meta.total_episodes, meta.total_frames, meta.total_tasks)
    assert counts == (info["total_episodes"], info["total_frames"], info["total_tasks"])
    tasks = pd.read_parquet(folder / "meta/tasks.parquet")
    assert meta.tasks["task_index"].to_dict() == tasks["task_index"].to_dict()
    assert meta.get_task_index("café") == tasks["task_index"]["café"]
    assert meta.get_task_index("fly") is None
    episodes = pd.read_parquet(folder / "meta/episodes/chunk-000/file-000.parquet")
    for name in meta.episodes.column_names:
        assert [*map(str, meta.episodes[name])] == [*map(str, map(np.ndarray.tolist, map(np.asarray, episodes[name])))]
    assert meta.episodes[1]["length"] == 3
    assert meta.episodes.to_pandas()["length"].tolist() == [one["length"] for one in meta.episodes] == [4, 3, 5]
    stats = json.loads((folder / "meta/stats.json").read_text())
    assert meta.stats.keys() == stats.keys()
    for name, one in stats.items():
        for statistic, numbers in one.items():
            assert np.shape(meta.stats[name][statistic]) == np.shape(numbers)
            assert np.allclose(meta.stats[name][statistic], numbers, rtol=1e-12)


def test_chosen_episodes_keep_their_numbers_and_rows(robot, folder):
    frames = robot.as_lerobot(SECONDS, episodes=[2, 0])

    assert (frames.num_episodes, len(frames), frames.episodes) == (2, 9, [2, 0])
    for position, row in enumerate([*range(4), *range(7, 12)]):
        check_equal(frames[position], ExportedItems(folder).item(row, SECONDS))
        assert frames.absolute_to_relative_idx[row] == position
    for absent in (4, 6, 12, -1):
        with pytest.raises(KeyError):
            frames.absolute_to_relative_idx[absent]
    assert dict(frames.absolute_to_relative_idx) == {row: at for at, row in enumerate([*range(4), *range(7, 12)])}
    assert robot.as_lerobot().absolute_to_relative_idx is None


def test_a_selection_of_the_dataset_is_all_that_there_is(robot):
    frames = robot.select(["observation.joints", "action"]).as_lerobot({"action": [0.0, 0.1]})

    assert {name for name in frames[0] if "." not in name} >= {"action", "action_is_pad", "task", "index"}
    assert "observation.images.camera" not in frames.features
    assert frames.meta.camera_keys == []


def test_the_columns_without_images_are_a_table_of_the_library_datasets(robot, folder):
    pytest.importorskip("datasets.arrow_dataset", reason="pip install datasets")
    rows = pd.read_parquet(folder / "data/chunk-000/file-000.parquet")[7:]

    table = robot.as_lerobot(episodes=[2]).hf_dataset

    assert table.data.column("task_index").to_numpy().tolist() == rows["task_index"].tolist()
    assert torch.equal(table[1]["action"], torch.tensor(rows["action"].iloc[1]))
    assert table["index"][:].tolist() == [*range(7, 12)]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_loader_of_torch_collates_batches(robot, folder, workers):
    loader = DataLoader(robot.as_lerobot(SECONDS), batch_size=5, num_workers=workers)

    batches = [*loader]

    assert [len(batch["task"]) for batch in batches] == [5, 5, 2]
    assert batches[0]["observation.images.camera"].shape == (5, 2, 3, 32, 32)
    for frame in range(12):
        expected, batch, at = ExportedItems(folder).item(frame, SECONDS), batches[frame // 5], frame % 5
        check_equal({name: values[at] for name, values in batch.items()}, expected)


def test_a_spawned_worker_reads_the_same_frames(robot):
    frames = pickle.loads(pickle.dumps(robot.as_lerobot(SECONDS, episodes=[1, 2])))

    check_equal(frames[5], robot.as_lerobot(SECONDS)[9])


def test_image_transforms_are_applied_to_each_item(robot):
    frames = robot.as_lerobot({"observation.images.camera": [-0.1, 0.0]}, image_transforms=lambda image: image[..., :2])

    assert frames[3]["observation.images.camera"].shape == (2, 3, 32, 2)
    frames.clear_image_transforms()
    assert frames[3]["observation.images.camera"].shape == (2, 3, 32, 32)


def test_the_last_episodes_of_each_task_are_held_out():
    train, held = load("demo/pendulum").as_lerobot(fps=20).split(0.1)

    tasks = train.meta.episodes["tasks"]
    for text in train.meta.task_texts:
        numbers = [number for number, own in enumerate(tasks) if own[0] == text]
        count = math.ceil(len(numbers) * 0.1)
        assert [one for one in train.episodes if one in numbers] == numbers[:-count]
        assert [one for one in held.episodes if one in numbers] == numbers[-count:]
    assert len(train) + len(held) == 15_000
    assert (train.num_episodes, held.num_episodes) == (len(train.episodes), len(held.episodes))


def test_held_out_copies_of_episodes_for_training_are_a_warning(tmp_path):
    """Episodes 1 and 9 are equal, and LeRobot holds out the last ones."""
    seeds = [*range(9), 1]
    dataset = load(store_dataset(tmp_path / "toy", [trajectory(10, seed=seed) for seed in seeds]).folder)
    with pytest.warns(
        UserWarning, match="1 of 2 held-out episodes of toy/data have copies among the episodes for training"
    ):
        dataset.as_lerobot().split(0.2)


def test_wrong_arguments_are_named(robot):
    with pytest.raises(InvalidArgumentError, match=r"action has 0\.05, expected multiples of 1/10 s"):
        robot.as_lerobot({"action": [0.0, 0.05]})
    with pytest.raises(InvalidArgumentError, match=r"observation\.arm is not a feature of numbers or images"):
        robot.as_lerobot({"observation.arm": [0.0]})
    with pytest.raises(InvalidArgumentError, match=r"episodes has 3, expected numbers in \[0, 3\)"):
        robot.as_lerobot(episodes=[0, 3])
    with pytest.raises(InvalidArgumentError, match="episodes is empty"):
        robot.as_lerobot(episodes=[])
    with pytest.raises(InvalidArgumentError, match="leaves 0 of 3 episodes for training"):
        robot.as_lerobot().split(0.9)
    with pytest.raises(InvalidArgumentError, match=r"eval_split is 1\.5, expected a share"):
        robot.as_lerobot().split(1.5)
    with pytest.raises(InvalidArgumentError, match="does not state its steps per second"):
        load("demo/pendulum").as_lerobot({"action": [0.0]})
    with pytest.raises(InvalidArgumentError, match="the elements are whole episodes"):
        load("demo/pendulum", split_trajs=True).as_lerobot()
    with pytest.raises(IndexError):
        robot.as_lerobot()[12]


def config(**dataset):
    """Return what the program reads of LeRobot's `TrainPipelineConfig`."""
    defaults = {"repo_id": "me/robot", "root": None, "streaming": False, "episodes": None, "eval_split": 0.0}
    defaults |= {"use_imagenet_stats": True, "image_transforms": SimpleNamespace(enable=False)}
    deltas = {"action_delta_indices": [0, 1, 2], "observation_delta_indices": [-1, 0], "reward_delta_indices": None}
    return SimpleNamespace(dataset=SimpleNamespace(**defaults | dataset), trainable_config=SimpleNamespace(**deltas))


def test_the_datasets_of_a_configuration_have_the_windows_of_the_policy(stored):
    train, _ = make_train_eval_datasets(config(root=stored.folder))

    item = train[0]
    assert item["action"].shape == (3, 2)
    assert item["observation.joints"].shape == (2, 2)
    assert item["observation.images.camera"].shape == (2, 3, 32, 32)
    assert item["next.reward"].shape == ()
    assert train.meta.stats["observation.images.camera"]["mean"].flatten().tolist() == pytest.approx(
        [0.485, 0.456, 0.406]
    )


def test_the_held_out_split_of_a_configuration_is_in_frames_of_a_second_without_a_rate():
    train, held = make_train_eval_datasets(config(repo_id="demo/pendulum", eval_split=0.2))

    assert train.fps == 1
    assert (train.num_episodes + held.num_episodes, held[0]["action"].shape) == (75, (3,))


def test_the_dataset_may_be_given_and_streaming_is_refused(robot):
    train, held = make_train_eval_datasets(config(use_imagenet_stats=False), robot)

    assert held is None
    assert len(train) == 12
    assert train.meta.stats["observation.images.camera"]["count"] == 12
    with pytest.raises(InvalidArgumentError, match="streaming is True, expected False"):
        make_train_eval_datasets(config(streaming=True))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seconds", [None, SECONDS], ids=["frames", "windows"])
def test_lerobot_reads_the_same_items_from_an_export(robot, folder, seconds):
    """It needs Python 3.12; the test runs where it is installed."""
    lerobot = pytest.importorskip(
        "lerobot.datasets.lerobot_dataset", reason="pip install lerobot", exc_type=ImportError
    )
    theirs = lerobot.LeRobotDataset("me/robot", root=folder, delta_timestamps=seconds)
    ours = robot.as_lerobot(seconds)

    for frame in range(12):
        item = ours[frame]
        item["observation.images.camera"] = item["observation.images.camera"].float() / 255
        check_equal(item, theirs[frame])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("videos", [False, True], ids=["images", "videos"])
def test_lerobot_reads_the_same_items_from_its_own_folder(tmp_path, videos):
    """The dataset is written by LeRobot, and its videos are kept. The test runs where LeRobot is installed."""
    lerobot = pytest.importorskip(
        "lerobot.datasets.lerobot_dataset", reason="pip install lerobot", exc_type=ImportError
    )
    vector = {"dtype": "float32", "names": None}
    image = {"dtype": "video" if videos else "image", "shape": (64, 96, 3), "names": ["height", "width", "channels"]}
    features = {"observation.state": {**vector, "shape": (3,)}, "action": {**vector, "shape": (2,)}}
    features |= {"observation.images.top": image, "next.reward": {**vector, "shape": (1,)}}
    written = lerobot.LeRobotDataset.create("me/arm", 10, features, root=tmp_path / "arm", use_videos=videos)
    rng = np.random.default_rng(0)
    for episode in range(3):
        pixels = rng.integers(0, 255, (64, 96, 3), np.uint8)
        for step in range(8 + episode):
            frame = {"observation.state": rng.normal(size=3), "action": rng.normal(size=2), "next.reward": [step]}
            frame = {name: np.array(value, np.float32) for name, value in frame.items()}
            frame |= {"observation.images.top": np.roll(pixels, step, 0), "task": f"push {episode % 2}"}
            written.add_frame(frame)
        written.save_episode()
    written.finalize()
    seconds = {"observation.images.top": [-0.1, 0.0], "observation.state": [-0.1, 0.0], "action": [0.0, 0.1, 0.2]}
    theirs = lerobot.LeRobotDataset("me/arm", root=tmp_path / "arm", delta_timestamps=seconds, return_uint8=True)
    options = {"images": "video"} if videos else {}
    settings = Settings(home=tmp_path / "home", progress=False, jobs=1)
    selection = Selection(options=options)
    made = downloading.download("lerobot/me/arm", from_local=tmp_path / "arm", settings=settings, selection=selection)
    ours = load(str(made)).as_lerobot(seconds)

    assert len(ours) == len(theirs) == 27
    assert ours.meta.tasks.equals(theirs.meta.tasks)
    for frame in range(27):
        item, expected = ours[frame], theirs[frame]
        if not videos:
            item["observation.images.top"] = item["observation.images.top"].float() / 255
        check_equal({name: item[name] for name in expected}, expected)
