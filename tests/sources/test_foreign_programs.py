"""The programs of the documentation for files of other packages, run on files in the documented layouts.

The packages are not requirements of the tests: a program is skipped where its package is not installed.
"""

from __future__ import annotations

import bz2
import json
import re
import struct
from pathlib import Path

import numpy as np
import pytest

import datasets_rl
from datasets_rl import EpisodeWriter, downloading, load
from datasets_rl.errors import DatasetsRLError


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """The names that the programs of the section define."""
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "home"))
    text = (Path(datasets_rl.__file__).parents[1] / "docs/recording.md").read_text(encoding="utf-8")
    section = text.partition("## Files of other packages")[2].partition("\n## ")[0]
    names = {"EpisodeWriter": EpisodeWriter}
    for program in re.findall(r"^```python\n(.*?)^```$", section, flags=re.MULTILINE | re.DOTALL):
        exec(program, names)
    return names


def check_named(path, title):
    with pytest.raises(DatasetsRLError, match=title):
        downloading.download(str(path))


def write_bag(path, version):
    """Write a bag of states 0 to 4 and of a command after each state but the first and the last."""
    types_of = pytest.importorskip("rosbags.typesys", reason="pip install rosbags")
    from rosbags.rosbag1 import Writer as Writer1
    from rosbags.rosbag2 import StoragePlugin, Writer

    is_first = version == "ROS 1"
    types = types_of.get_typestore(types_of.Stores.ROS1_NOETIC if is_first else types_of.Stores.ROS2_HUMBLE)
    serialize = types.serialize_ros1 if is_first else types.serialize_cdr
    time = types.types["builtin_interfaces/msg/Time"](0, 0)
    header = types.types["std_msgs/msg/Header"](*([0] if is_first else []), time, "")
    layout = types.types["std_msgs/msg/MultiArrayLayout"]([], 0)
    state, command = types.types["sensor_msgs/msg/JointState"], types.types["std_msgs/msg/Float64MultiArray"]
    plugin = StoragePlugin.MCAP if version == "MCAP" else StoragePlugin.SQLITE3
    with Writer1(path) if is_first else Writer(path, version=9, storage_plugin=plugin) as writer:
        topics = {
            kind: writer.add_connection(f"/{name}", kind.__msgtype__, typestore=types)
            for name, kind in {"states": state, "commands": command}.items()
        }

        def write_message(at, kind, message):
            writer.write(topics[kind], at, serialize(message, kind.__msgtype__))

        none = np.zeros(0)
        for at, value in enumerate([0.0, 1.0, 2.0, 3.0]):
            write_message(10 * at, state, state(header, [], np.array([value]), none, none))
            if at:
                write_message(10 * at + 5, command, command(layout, np.array([-value])))
        write_message(50, state, state(header, [], np.array([4.0]), none, none))


@pytest.mark.parametrize("version", ["ROS 1", "SQLite", "MCAP"])
def test_the_program_for_bags_pairs_each_state_with_the_last_command(tmp_path, programs, version):
    path = tmp_path / ("run.bag" if version == "ROS 1" else "run")
    write_bag(path, version)
    check_named(path, f"is a bag of {version}" if version == "ROS 1" else rf"is a bag of ROS 2 \({version}\)")

    programs["record_bag"](path, "local/bag", "/states", "/commands")

    rows = load("local/bag")[:]
    assert rows["observation"].flatten().tolist() == [1.0, 2.0, 3.0]
    assert rows["action"].flatten().tolist() == [-1.0, -2.0, -3.0]
    assert rows["next", "observation"].flatten().tolist() == [2.0, 3.0, 4.0]


def varint(number):
    return bytes([number & 127 | 128]) + varint(number >> 7) if number > 127 else bytes([number])


def field(number, value):
    """Encode a field of a protobuf message: an integer, a float, or bytes."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def floats(values):
    return struct.pack(f"<{len(values)}f", *values)


def test_the_program_for_demonstrations_pairs_actions_with_the_rewards_after_them(tmp_path, programs):
    pytest.importorskip(
        "mlagents_envs.rpc_utils", reason='pip install mlagents-envs "protobuf<3.21"', exc_type=(ImportError, TypeError)
    )

    def record(value, reward, *, done=False, is_limit=False):
        vector = field(1, varint(200)) + field(2, 0) + field(4, field(1, floats([value] * 200)))
        info = field(7, reward) + field(8, int(done)) + field(9, int(is_limit)) + field(10, 1) + field(13, vector)
        return field(1, info) + field(2, field(6, floats([-value])))

    records = [record(0.0, 0.0), record(1.0, 0.5), record(2.0, 1.0, done=True)]
    records += [record(5.0, 0.0), record(6.0, 0.25, done=True, is_limit=True), record(7.0, 0.0), record(8.0, 2.0)]
    head = field(1, 1) + field(2, b"walk") + field(3, len(records))
    head = varint(len(head)) + head
    messages = [field(3, b"Walker"), *records]
    body = b"".join(varint(len(message)) + message for message in messages)
    (tmp_path / "walk.demo").write_bytes(head.ljust(33, b"\0") + body)
    check_named(tmp_path / "walk.demo", "is a demonstration of Unity ML-Agents")

    programs["record_demonstration"](tmp_path / "walk.demo", "local/walk")

    stored = load("local/walk")
    rows = stored[:]
    assert stored.episodes.lengths.tolist() == [2, 1, 1]
    assert rows["observation", "sensor_0"][:, 7].tolist() == [0, 1, 5, 7]
    assert rows["next", "observation", "sensor_0"][:, 199].tolist() == [1, 2, 6, 8]
    assert rows["action"][:, 0].tolist() == [0, -1, -5, -7]
    assert rows["next", "reward"][:, 0].tolist() == [0.5, 1, 0.25, 2]
    assert rows["next", "terminated"][:, 0].tolist() == [False, True, False, False]
    assert rows["next", "truncated"][:, 0].tolist() == [False, False, True, True]


def test_the_program_for_tfrecords_makes_an_episode_of_each_file(tmp_path, programs):
    pytest.importorskip("tfrecord", reason="pip install tfrecord")
    for episode, length in enumerate([3, 4]):
        with (tmp_path / f"{episode}.tfrecord").open("wb") as stream:
            for step in range(length):
                value = 10.0 * episode + step
                row = {"qpos": [value, value], "torque": [-value], "gain": [value / 2]}
                features = [(name.encode(), field(2, field(1, floats(values)))) for name, values in row.items()]
                example = field(1, b"".join(field(1, field(1, name) + field(2, value)) for name, value in features))
                stream.write(struct.pack("<QI", len(example), 0) + example + bytes(4))
    files = sorted(tmp_path.glob("*.tfrecord"))
    check_named(tmp_path, "is a file of TFRecords without features.json")

    programs["record_tfrecords"](files, "local/arm", "qpos", "torque", "gain")

    stored = load("local/arm")
    rows = stored[:]
    assert stored.episodes.lengths.tolist() == [2, 3]
    assert rows["observation"].tolist() == [[0, 0], [1, 1], [10, 10], [11, 11], [12, 12]]
    assert rows["action"][:, 0].tolist() == [0, -1, -10, -11, -12]
    assert rows["next", "reward"][:, 0].tolist() == [0, 0.5, 5, 5.5, 6]


def test_the_program_for_recordings_of_terminals_rewards_the_gain_of_the_score(tmp_path, programs):
    pytest.importorskip("nle.dataset", reason="pip install nle")
    folder = tmp_path / "games/20260101-000000_a"
    folder.mkdir(parents=True)
    ends = []
    for game, length in enumerate([3, 2]):
        content = b""
        for step in range(length):
            screen = b"\x1b[H" + bytes([ord("A") + 10 * game + step])
            content += struct.pack("<iiiB", 1, step, len(screen), 0) + screen
            content += struct.pack("<iiiBi", 1, step, 4, 2, 100 * game + step * step)
            content += struct.pack("<iiiBB", 1, step, 1, 1, ord("h") + step)
        content += struct.pack("<iiiB", 2, 0, 4, 0) + b"\x1b[HZ"  # as NLE ends a file, after the last key
        (folder / f"nle.7.{game}.ttyrec3.bz2").write_bytes(bz2.compress(content))
        ends.append(f"version=3.6.6\tpoints=9\tname=Agent\tdeath=quit\tttyrecname=nle.7.{game}.ttyrec3.bz2")
    (folder / "nle.7.xlogfile").write_text("\n".join(ends) + "\n")
    check_named(tmp_path / "games", r"is a recording of a terminal \(ttyrec\)")

    programs["record_ttyrecs"](tmp_path / "games", "local/nethack")

    stored = load("local/nethack")
    rows = stored[:]
    assert stored.episodes.lengths.tolist() == [2, 1]
    assert rows["observation", "tty_chars"].shape == (3, 24, 80)
    assert [chr(one) for one in rows["observation", "tty_chars"][:, 0, 0]] == ["A", "B", "K"]
    assert [chr(one) for one in rows["next", "observation", "tty_chars"][:, 0, 0]] == ["B", "C", "L"]
    assert [chr(one) for one in rows["action"].flatten()] == ["h", "i", "h"]
    assert rows["next", "reward"].flatten().tolist() == [1, 3, 1]


def test_the_program_for_minerl_pairs_the_last_frames_with_the_steps(tmp_path, programs):
    av = pytest.importorskip("av", reason="pip install av")
    stream = tmp_path / "MineRLTreechop-v0/v3_a"
    stream.mkdir(parents=True)
    with av.open(str(stream / "recording.mp4"), "w") as video:
        track = video.add_stream("mpeg4", rate=20)
        track.width = track.height = 64
        for value in (250, 250, 0, 60, 120, 180):  # two frames from before the episode
            frame = av.VideoFrame.from_ndarray(np.full((64, 64, 3), value, np.uint8), format="rgb24")
            video.mux(track.encode(frame))
        video.mux(track.encode())
    (stream / "metadata.json").write_text(json.dumps({"success": True, "true_video_frame_count": 6}))
    arrays = {"reward": np.array([0.0, 0.0, 1.0]), "observation$inventory$log": np.arange(4)}
    arrays |= {"action$forward": np.array([1, 0, 1]), "action$camera": np.arange(6.0).reshape(3, 2)}
    arrays |= {"action$craft": np.array(["none", "planks", "none"])}
    np.savez(stream / "rendered.npz", **arrays)
    check_named(tmp_path / "MineRLTreechop-v0", "is a recording of MineRL")

    programs["record_minerl"](tmp_path, "local/treechop")

    stored = load("local/treechop")
    rows = stored[:]
    assert stored.episodes.lengths.tolist() == [3]
    assert rows["observation", "pov"].float().mean((1, 2, 3)).tolist() == pytest.approx([0, 60, 120], abs=3)
    assert rows["next", "observation", "pov"].float().mean((1, 2, 3)).tolist() == pytest.approx([60, 120, 180], abs=3)
    assert rows["observation", "inventory$log"].flatten().tolist() == [0, 1, 2]
    assert rows["action", "camera"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert stored.texts("action.craft")[1:] == ["none", "planks"]
    assert rows["next", "reward"].flatten().tolist() == [0, 0, 1]
    assert rows["next", "terminated"].flatten().tolist() == [False, False, True]
