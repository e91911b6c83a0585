"""LeRobot datasets, version 3.0: read by the libraries that LeRobot reads them with, and by LeRobot where it is installed."""

from __future__ import annotations

import io
import json

import numpy as np
import pandas as pd
import pytest
from exports import export_stored, write_images, write_robot
from PIL import Image
from stored_data import Trajectory, columns, trajectory, write_dataset

from datasets_rl.errors import InvalidArgumentError, LossyExportError
from datasets_rl.exporting import Content, plan_export, run_export
from datasets_rl.format.schema import Column


@pytest.fixture(scope="module")
def robot(tmp_path_factory):
    return write_robot(tmp_path_factory.mktemp("robot"))


@pytest.fixture(scope="module")
def folder(robot, tmp_path_factory):
    return export_stored(robot, "lerobot", tmp_path_factory.mktemp("export") / "out")


@pytest.fixture(scope="module")
def info(folder):
    return json.loads((folder / "meta" / "info.json").read_text())


def hub_features(info):
    """Return the features as `lerobot.datasets.utils.get_hf_features_from_features` does."""
    # By a module of it: without the library, its name is that of the folder tests/datasets.
    datasets = pytest.importorskip("datasets.features", reason="pip install datasets")

    features = {}
    for name, feature in info["features"].items():
        if feature["dtype"] == "image":
            features[name] = datasets.Image()
        elif feature["shape"] == [1]:
            features[name] = datasets.Value(feature["dtype"])
        elif len(feature["shape"]) == 2:
            features[name] = datasets.Array2D(feature["shape"], feature["dtype"])
        else:
            features[name] = datasets.List(datasets.Value(feature["dtype"]), length=feature["shape"][0])
    return datasets.Features(features)


def test_the_library_datasets_loads_every_value(robot, folder, info, tmp_path):
    datasets = pytest.importorskip("datasets.arrow_dataset", reason="pip install datasets")

    paths = [str(path) for path in sorted((folder / "data").glob("*/*.parquet"))]
    data = datasets.Dataset.from_parquet(paths, features=hub_features(info), cache_dir=str(tmp_path))
    values = {name: np.array(data[name][:]) for name in data.column_names}

    assert len(data) == len(robot) == info["total_frames"]
    assert np.array_equal(values["observation.joints"], robot.column(("observation", "joints")))
    assert np.array_equal(values["observation.gripper"], robot.column(("observation", "gripper")))
    assert np.array_equal(values["observation.images.camera"], robot.column(("observation", "camera")))
    assert np.array_equal(values["action"], robot.column(("action",)))
    assert np.array_equal(values["next.reward"], robot.column(("next", "reward"))[:, 0])
    for flag in ("done", "terminated", "truncated"):
        assert np.array_equal(values[f"next.{flag}"], robot.column(("next", flag))[:, 0])
    assert np.array_equal(values["weight"], robot.column(("weight",)))
    assert values["episode_index"].tolist() == [0] * 4 + [1] * 3 + [2] * 5
    assert values["index"].tolist() == list(range(12))
    assert values["frame_index"].tolist() == [*range(4), *range(3), *range(5)]
    assert np.allclose(values["timestamp"], values["frame_index"] / 10)


def test_images_keep_their_bytes(robot, folder):
    rows = pd.read_parquet(folder / "data" / "chunk-000" / "file-000.parquet")

    kept = [one["bytes"] for one in rows["observation.images.camera"]]
    assert kept == [bytes(one) for one in robot.items(("observation", "camera")).read_stored(0, 12).images]


def test_tasks_and_episodes_are_as_pandas_writes_them(folder, info):
    tasks = pd.read_parquet(folder / "meta" / "tasks.parquet")
    episodes = pd.read_parquet(folder / "meta" / "episodes" / "chunk-000" / "file-000.parquet")
    rows = pd.read_parquet(folder / "data" / "chunk-000" / "file-000.parquet")

    assert set(tasks.index) == {'pick up "0"', 'pick up "1"', 'pick up "2"', "café"}
    assert tasks.iloc[rows["task_index"]].index[:3].tolist() == ['pick up "0"', 'pick up "0"', "café"]
    assert [list(one) for one in episodes["tasks"]] == [[f'pick up "{number}"', "café"] for number in range(3)]
    assert episodes["length"].tolist() == [4, 3, 5]
    assert episodes["dataset_from_index"].tolist() == [0, 4, 7]
    assert episodes["dataset_to_index"].tolist() == [4, 7, 12]
    assert info["total_tasks"] == len(tasks)
    assert info["fps"] == 10


def test_statistics_are_those_of_numpy(robot, folder):
    stats = json.loads((folder / "meta" / "stats.json").read_text())

    joints = robot.column(("observation", "joints"))
    for name in ("min", "max", "mean", "std"):
        assert np.allclose(stats["observation.joints"][name], getattr(np, name)(joints, axis=0))
    pixels = robot.column(("observation", "camera")) / 255
    assert np.allclose(stats["observation.images.camera"]["mean"], pixels.mean((0, 1, 2)).reshape(3, 1, 1))
    assert stats["observation.images.camera"]["count"] == [12]


def test_a_single_observation_is_the_state_and_what_is_lost_is_named(tmp_path):
    stored = write_dataset(tmp_path / "stored", [trajectory(3)])

    with pytest.raises(LossyExportError) as caught:
        run_export(Content(stored), "lerobot", tmp_path / "out", show=False)

    assert [loss.partition(":")[0] for loss in caught.value.losses] == [
        "the observation after the last action of 1 episodes is left out",
        "the dataset states no frame rate",
    ]
    out = export_stored(stored, "lerobot", tmp_path / "out")
    rows = pd.read_parquet(out / "data" / "chunk-000" / "file-000.parquet")
    assert np.array_equal(np.stack(rows["observation.state"]), stored.column(("observation",)))


def test_pixels_become_png_images(tmp_path):
    stored = write_images(tmp_path / "stored")
    out = export_stored(stored, "lerobot", tmp_path / "out")

    rows = pd.read_parquet(out / "data" / "chunk-000" / "file-000.parquet")
    first = Image.open(io.BytesIO(rows["observation.images.pixels"][0]["bytes"]))
    assert np.array_equal(np.asarray(first), stored.column(("pixels",))[0])


def with_field(folder, column, values):
    """Write an episode of two steps with another field, or with another action."""
    one = trajectory(2)
    kept = [each for each in columns() if each.key != column.key]
    return write_dataset(folder, [type(one)({**one.steps, column.key: values}, one.states)], [*kept, column])


@pytest.mark.parametrize("key", [("depth",), ("action",)])
def test_arrays_of_several_axes_are_read_by_the_library_datasets(tmp_path, key):
    datasets = pytest.importorskip("datasets.arrow_dataset", reason="pip install datasets")

    values = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    stored = with_field(tmp_path / "stored", Column(key, np.dtype(np.float32), (2, 3)), values)
    out = export_stored(stored, "lerobot", tmp_path / "out")

    info = json.loads((out / "meta" / "info.json").read_text())
    assert info["features"][key[0]] == {"dtype": "float32", "shape": [2, 3], "names": None}
    path = str(next((out / "data").glob("*/*.parquet")))
    for features in (hub_features(info), None):  # as LeRobot gives them, and as the file states them
        data = datasets.Dataset.from_parquet(path, features=features, cache_dir=str(tmp_path / "cache"))
        assert np.array_equal(np.array(data[key[0]][:]), values)


def test_more_than_five_axes_are_left_out_with_consent_and_refused_as_the_action(tmp_path):
    values = np.zeros((2, 1, 1, 1, 1, 1, 2), np.float32)
    for key, error, text in (
        (("grid",), LossyExportError, "grid: left out, having more than 5 axes"),
        (("action",), InvalidArgumentError, "the format has arrays of at most 5 axes, and action has more"),
    ):
        stored = with_field(tmp_path / key[0], Column(key, np.dtype(np.float32), values.shape[1:]), values)
        with pytest.raises(error, match=text):
            run_export(Content(stored, fps=20), "lerobot", tmp_path / "out", show=False)


def test_counters_are_replaced_and_a_difference_is_a_loss(tmp_path):
    for name, values, losses in (
        ("timestamp", [0.0, 0.1], []),
        ("timestamp", [0.0, 0.2], ["timestamp: replaced by the counters of LeRobot, which differ"]),
        ("task_index", [0, 0], []),
        ("task_index", [0, 1], ["task_index: replaced by the counters of LeRobot, which differ"]),
    ):
        column = Column((name,), np.dtype(np.float32 if name == "timestamp" else np.int64), ())
        folder = tmp_path / f"{name}{values[1]}"
        stored = with_field(folder / "stored", column, np.asarray(values, column.dtype))
        out = export_stored(stored, "lerobot", folder / "out")
        rows = pd.read_parquet(out / "data" / "chunk-000" / "file-000.parquet")
        assert rows.columns.tolist().count(name) == 1
        with pytest.raises(LossyExportError) as caught:
            run_export(Content(stored, fps=10), "lerobot", folder / "again", show=False)
        assert [loss for loss in caught.value.losses if "final" not in loss and "last action" not in loss] == losses


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (Column(("timestamp",), np.dtype(np.float64), (1,)), [[7.0], [8.0]]),
        (Column(("timestamp",), np.dtype(np.float64), (), shared=True), [7.0, 8.0, 9.0]),
        (Column(("index",), np.dtype(np.int64), (2,)), [[0, 0], [1, 1]]),
    ],
    ids=["vector of one", "state", "vector"],
)
def test_fields_of_any_shape_that_counters_replace_are_a_loss(column, values, tmp_path):
    one, own = trajectory(2), {column.key: np.asarray(values, column.dtype)}
    episode = (
        Trajectory(one.steps, {**one.states, **own}) if column.shared else Trajectory({**one.steps, **own}, one.states)
    )
    stored = write_dataset(tmp_path / "stored", [episode], columns(column), metadata={"fps": 10})

    losses = plan_export(Content(stored), "lerobot", tmp_path / "out").losses

    assert f"{column.key[0]}: replaced by the counters of LeRobot, which differ" in losses


def test_features_have_the_names_of_lerobot_and_of_the_metadata(tmp_path):
    """Cameras below observation.images or observation.image keep their names; fps and the names of elements come from the metadata."""
    top, side, wrist = (
        Column(("observation", *key), np.dtype(np.uint8), (32, 32, 3), shared=True)
        for key in (("images", "top"), ("image", "side"), ("wrist",))
    )
    state = Column(("observation", "state"), np.dtype(np.float32), (3,), shared=True)
    one = trajectory(2)
    images = np.zeros((3, 32, 32, 3), np.uint8)
    states = {state.key: one.states["observation",], top.key: images, side.key: images, wrist.key: images}
    kept = [column for column in columns() if column.key != ("observation",)]
    names = {"observation.state": ["a", "b", "c"], "action": ["left", "right"], "next.reward": ["x", "y"]}
    stored = write_dataset(
        tmp_path / "stored",
        [type(one)(one.steps, states)],
        [*kept, state, top, side, wrist],
        metadata={"fps": 12.5, "names": names},
    )

    info = json.loads((export_stored(stored, "lerobot", tmp_path / "out") / "meta" / "info.json").read_text())

    cameras = {f"observation.images.{name}" for name in ("top", "side", "wrist")}
    assert {*cameras, "observation.state"} <= info["features"].keys()
    assert info["features"]["observation.state"]["names"] == ["a", "b", "c"]
    assert info["features"]["action"]["names"] == ["left", "right"]
    assert info["features"]["next.reward"]["names"] is None
    assert info["fps"] == 12.5


def test_a_given_frame_rate_is_no_loss_and_another_export(tmp_path):
    stored = write_dataset(tmp_path / "stored", [trajectory(3, known=False)])
    out = run_export(Content(stored, fps=20.0), "lerobot", tmp_path / "out", show=False)

    assert json.loads((out / "meta" / "info.json").read_text())["fps"] == 20
    rows = pd.read_parquet(out / "data" / "chunk-000" / "file-000.parquet")
    assert np.allclose(rows["timestamp"], [0, 0.05, 0.1])
    with pytest.raises(InvalidArgumentError, match="out is not replaced: it exists"):
        run_export(Content(stored, fps=10.0), "lerobot", tmp_path / "out", show=False)
    with pytest.raises(InvalidArgumentError, match="fps is 0, expected a number of steps per second above 0"):
        Content(stored, fps=0)


def test_a_large_dataset_is_split_into_files(robot, tmp_path, monkeypatch):
    monkeypatch.setattr("datasets_rl.exporting.formats.lerobot._FILE_BYTES", 1)
    monkeypatch.setattr("datasets_rl.exporting.formats.lerobot._FILES_PER_CHUNK", 2)
    monkeypatch.setattr("datasets_rl.exporting.content.Content.batches.__defaults__", (1,))

    out = export_stored(robot, "lerobot", tmp_path / "out")

    names = [path.relative_to(out / "data").as_posix() for path in sorted((out / "data").rglob("*.parquet"))]
    assert names == ["chunk-000/file-000.parquet", "chunk-000/file-001.parquet", "chunk-001/file-000.parquet"]
    episodes = pd.read_parquet(out / "meta" / "episodes" / "chunk-000" / "file-000.parquet")
    assert episodes["data/chunk_index"].tolist() == [0, 0, 1]
    assert episodes["data/file_index"].tolist() == [0, 1, 0]


@pytest.mark.filterwarnings("ignore")
def test_lerobot_opens_it(robot, folder):
    """Its wheel pins old versions of torch and datasets; the test runs where it is installed with them."""
    lerobot = pytest.importorskip(
        "lerobot.datasets.lerobot_dataset", reason="pip install lerobot", exc_type=ImportError
    )

    dataset = lerobot.LeRobotDataset("me/robot", root=folder)

    assert dataset.num_episodes == 3
    joints = robot.column(("observation", "joints"))[0].astype(np.float32)  # LeRobot makes tensors of Python numbers
    assert np.array_equal(dataset[0]["observation.joints"].numpy(), joints)
    assert dataset[0]["task"] == 'pick up "0"'
