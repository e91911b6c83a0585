"""Atari DQN Replay in the layouts of its two upstreams, generated with the frames of ale-py.

buffer = Buffer(folder, capacity=60)        # Dopamine's replay buffer, which writes a checkpoint whenever it is full
buffer.play(17)                             # an episode of 17 steps
buffer.log_final()

write_records(folder, "Pong/2", {0: [[17, 5], [9]]})    # RL Unplugged: one file per list of episodes
"""

from __future__ import annotations

import gzip
import io
import json
import pickle
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import ale_py
import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray
from PIL import Image
from raw.case import Case, Fault
from raw.tfrecords import example, record
from upstreams import bucket

from datasets_rl.ted.episode import Episode

__all__ = ["CASES", "Buffer", "changed", "screens", "write_logs", "write_records"]

SIDE = 84


@cache
def screens(count: int, game: str = "pong") -> NDArray[np.uint8]:
    """Play a game with random sticky actions; return its screens, [count, 84, 84]."""
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    for name, value in (("random_seed", 0), ("frame_skip", 4)):
        ale.setInt(name, value)
    ale.setFloat("repeat_action_probability", 0.25)
    ale.loadROM(ale_py.roms.get_rom_path(game))
    actions, rng = ale.getMinimalActionSet(), np.random.default_rng(0)
    found = np.empty((count, SIDE, SIDE), np.uint8)
    for frame in found:
        if ale.game_over():
            ale.reset_game()
        frame[:] = Image.fromarray(ale.getScreenGrayscale()).resize((SIDE, SIDE), Image.Resampling.BOX)
        ale.act(actions[rng.integers(len(actions))])
    return found


_play = screens


class Buffer:
    """The circular replay buffer of Dopamine, which batch_rl writes to checkpoints.

    Before the first step of an episode it adds three rows of zeros, which count as rows. It writes a checkpoint when it
    has added a step and its cursor is at the last row; if the cursor reaches the last row with a row of zeros, it does
    not.

    Args:
        folder: The folder of the checkpoints.
        capacity: The number of rows.
        level: The compression level of gzip.
        game: The game on the screens.
        screens: The number of its screens, which are played again and again.
    """

    def __init__(self, folder: Path, capacity: int, *, level: int = 9, game: str = "pong", screens: int = 512) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._level = folder, level
        self._screens = _play(screens, game)
        self._rng = np.random.default_rng(7)
        # Values of rows that were never written.
        self.store: dict[str, NDArray[Any]] = {
            "observation": np.full((capacity, SIDE, SIDE), 99, np.uint8),
            "action": np.full(capacity, -7, np.int32),
            "reward": np.full(capacity, np.nan, np.float32),
            "terminal": np.full(capacity, 77, np.uint8),
        }
        self.capacity = capacity
        self.add_count = 0
        self.logs = 0
        self.games: list[Episode] = []
        """What was played."""
        self._screen = 0

    def play(self, steps: int, *, over: bool = True, dark: bool = False) -> None:
        """Play an episode.

        Args:
            steps: The number of steps.
            over: Whether the game ends; otherwise the training ends here.
            dark: Whether the first step is a black frame with action 0 and reward 0, like a row of zeros.
        """
        known = self._screens
        frames = known[np.arange(self._screen, self._screen + steps) % len(known)]
        self._screen += steps
        action = self._rng.integers(0, 6, steps).astype(np.int32)
        reward = self._rng.choice(np.array([-1, 0, 0, 1], np.float32), steps)
        if dark:
            frames[0] = action[0] = reward[0] = 0
        terminal = np.arange(steps) == steps - 1 if over else np.zeros(steps, bool)
        for step in range(steps):
            checkpoint = self.logs
            self.add(frames[step], action[step], reward[step], terminal[step])
        columns = {
            ("action",): action,
            ("next", "reward"): reward[:, None],
            ("next", "terminated"): terminal[:, None],
            ("next", "truncated"): (np.arange(steps) == steps - 1)[:, None] & (not over),
        }
        self.games.append(Episode(columns, {("observation",): frames}, metadata={"checkpoint": checkpoint}))

    def add(self, observation: Any, action: Any, reward: Any, terminal: Any) -> None:
        """Add a step, after three rows of zeros at the start of an episode, and write a checkpoint if it is due."""
        if self.add_count == 0 or self.store["terminal"][self.cursor - 1] == 1:
            for _ in range(3):
                self._add(np.zeros((SIDE, SIDE), np.uint8), 0, 0.0, 0)
        self._add(observation, action, reward, terminal)
        if self.cursor == self.capacity - 1:
            self.log(self.add_count)

    def _add(self, *row: Any) -> None:
        """Write a row at the cursor."""
        for column, value in zip(self.store.values(), row, strict=True):
            column[self.cursor] = value
        self.add_count += 1

    @property
    def cursor(self) -> int:
        """The index of the next row."""
        return self.add_count % self.capacity

    def log(self, add_count: int) -> None:
        """Write a checkpoint."""
        invalid = (self.cursor - 1 + np.arange(5)) % self.capacity
        small = {"add_count": np.array(add_count), "invalid_range": invalid}
        for name, array in {**{f"$store$_{name}": one for name, one in self.store.items()}, **small}.items():
            put(self._folder / f"{name}_ckpt.{self.logs}.gz", array, self._level)
        self.logs += 1

    def log_final(self) -> None:
        """Write the checkpoint at the end of the training, with the cursor as `add_count`."""
        self.log(self.cursor)


def put(place: Path, array: NDArray[Any], level: int = 9, *, pickled: bool = False) -> None:
    """Write an array as a gzip-compressed .npy file."""
    content = io.BytesIO()
    np.save(content, array, allow_pickle=pickled)
    place.write_bytes(gzip.compress(content.getvalue(), level, mtime=0))


GAME = "Pong/1"
LOGS = Path("dqn") / GAME / "replay_logs"
CAPACITY = 60


def write_logs(tree: Path) -> list[Episode]:
    """Write five checkpoints of 60 rows; between them, episodes continue in every possible way."""
    buffer = Buffer(tree / LOGS, CAPACITY)
    buffer.play(17)
    buffer.play(50, dark=True)  # continues past the end of checkpoint 0
    buffer.play(43)  # ends with checkpoint 1; the row between the checkpoints is a row of zeros
    buffer.play(58)  # ends with the row between checkpoints 2 and 3
    buffer.play(1)
    buffer.play(100)  # continues past the end of checkpoint 3
    buffer.play(5, over=False)
    buffer.log_final()
    return buffer.games


@contextmanager
def _served_logs(tree: Path) -> Iterator[Mapping[str, str]]:
    """Serve the checkpoints from the bucket of the first upstream."""
    with bucket({"atari-replay-datasets": tree}) as server:
        yield {"STORAGE_EMULATOR_HOST": server.url}


def _many_logs(tree: Path, size: int) -> None:
    """Write two checkpoints of about `size` bytes before compression."""
    buffer = Buffer(tree / LOGS, max(16, size // SIDE**2 // 2), level=1)
    while buffer.logs < 2:
        buffer.play(min(500, buffer.capacity // 2))


RUN = "Pong/2"
RECORDS = Path("datasets/rlu_atari_checkpoints_ordered") / RUN.replace("/", "_run_") / "1.1.0"


def _tensor(dtype: str) -> dict[str, Any]:
    """Return the description of a scalar feature."""
    return {"tensor": {"shape": {}, "dtype": dtype, "encoding": "none"}}


def features() -> dict[str, Any]:
    """``features.json`` as TensorFlow Datasets writes it."""
    image = {"shape": {"dimensions": [str(SIDE), str(SIDE), "1"]}, "dtype": "uint8", "encodingFormat": "png"}
    steps = {
        "observation": {"image": image},
        "action": _tensor("int64"),
        **{name: _tensor("float32") for name in ("reward", "discount")},
        **{name: _tensor("bool") for name in ("is_first", "is_last", "is_terminal")},
    }
    inner = {"featuresDict": {"features": steps}}
    whole = {"steps": {"sequence": {"feature": inner, "length": "-1"}}}
    whole |= {name: _tensor("int64") for name in ("checkpoint_id", "episode_id")} | {
        "episode_return": _tensor("float32")
    }
    return {"featuresDict": {"features": whole}}


def png(frame: NDArray[np.uint8]) -> bytes:
    """Return a frame encoded as PNG."""
    out = io.BytesIO()
    Image.fromarray(frame).save(out, "PNG")
    return out.getvalue()


def steps_of(length: int, *, over: bool, rng: np.random.Generator) -> dict[str, list[Any]]:
    """Return the features of the steps of an episode with `length` observations."""
    first = int(rng.integers(400))
    last = [0] * (length - 1) + [1]
    return {
        "observation": list(screens(512)[(first + np.arange(length)) % 512]),
        "action": rng.integers(0, 6, length).tolist(),
        "reward": [float(one) for one in rng.normal(size=length).astype(np.float32)],
        "discount": [1.0] * (length - 1) + [0.0 if over else 1.0],
        "is_first": [1] + [0] * (length - 1),
        "is_last": last,
        "is_terminal": last if over else [0] * length,
    }


def packed(steps: Mapping[str, Sequence[Any]], checkpoint: int, number: int) -> bytes:
    """Return an episode as a framed record of a TFRecord file."""
    images = [png(frame) if isinstance(frame, np.ndarray) else frame for frame in steps["observation"]]
    whole = {f"steps/{name}": images if name == "observation" else values for name, values in steps.items()}
    total = float(sum(steps["reward"]))
    payload = example({**whole, "checkpoint_id": [checkpoint], "episode_id": [number], "episode_return": [total]})
    crc = crc32c(payload)
    return record(payload, check=((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def write_records(tree: Path, lengths: Mapping[int, Sequence[Sequence[int]]]) -> list[Episode]:
    """Write TFRecord files; `lengths` has, by checkpoint and file, the lengths of the episodes.

    Every third episode ends before the end of the game. Returns the episodes that must be stored.
    """
    folder = tree / RECORDS
    folder.mkdir(parents=True)
    (folder / "features.json").write_text(json.dumps(features()))
    rng, games = np.random.default_rng(3), []
    for checkpoint, files in lengths.items():
        for part, many in enumerate(files):
            data = b""
            for length in many:
                over = len(games) % 3 != 2
                steps = steps_of(length, over=over, rng=rng)
                data += packed(steps, checkpoint, len(games))
                if length > 1:
                    games.append(_golden(steps, checkpoint, over=over))
            (folder / _records_name(checkpoint, part, len(files))).write_bytes(data)
    return games


def _golden(steps: Mapping[str, Sequence[Any]], checkpoint: int, *, over: bool) -> Episode:
    """Return the episode that must be stored for some steps."""
    count = len(steps["action"]) - 1
    last = (np.arange(count) == count - 1)[:, None]
    columns = {
        ("action",): np.array(steps["action"][:-1], np.int32),
        ("next", "reward"): np.array(steps["reward"][:-1], np.float32)[:, None],
        ("next", "terminated"): last & over,
        ("next", "truncated"): last & (not over),
    }
    return Episode(columns, {("observation",): np.stack(steps["observation"])}, metadata={"checkpoint": checkpoint})


def _records_name(checkpoint: int, part: int, parts: int) -> str:
    """Return the name of a TFRecord file."""
    return f"rlu_atari_checkpoints_ordered-checkpoint_{checkpoint:02d}.tfrecord-{part:05d}-of-{parts:05d}"


@contextmanager
def _served_records(tree: Path) -> Iterator[Mapping[str, str]]:
    """Serve the records from the bucket of TensorFlow Datasets."""
    with bucket({"tfds-data": tree}) as server:
        yield {"STORAGE_EMULATOR_HOST": server.url}


def _many_records(tree: Path, size: int) -> None:
    """Write two files of episodes with about `size` bytes of decoded frames."""
    frames = max(4, size // SIDE**2 // 2)
    lengths = [500] * (frames // 500) + [frames % 500 or 2]
    write_records(tree, {0: [lengths], 1: [lengths]})


def _log(name: str, act: Callable[[Path], object]) -> Callable[[Path], object]:
    """Return a function that applies `act` to a file of the checkpoints."""
    return lambda tree: act(tree / LOGS / name)


def _bytes(name: str, data: bytes) -> Callable[[Path], object]:
    """Return a function that replaces a file of the checkpoints."""
    return _log(name, lambda place: place.write_bytes(data))


def _array(name: str, array: Any, *, pickled: bool = False) -> Callable[[Path], object]:
    """Return a function that replaces an array of the checkpoints."""
    return _log(name, lambda place: put(place, np.asarray(array), pickled=pickled))


def changed(name: str, change: Callable[[NDArray[Any]], object]) -> Callable[[Path], object]:
    """Return a function that changes an array of the checkpoints in place."""

    def act(place: Path) -> None:
        array = np.load(io.BytesIO(gzip.decompress(place.read_bytes())))
        change(array)
        put(place, array)

    return _log(name, act)


def _flipped(place: Path, at: int) -> None:
    """Flip the lowest bit of the byte at position `at`."""
    data = bytearray(place.read_bytes())
    data[at] ^= 1
    place.write_bytes(data)


def _bomb() -> bytes:
    """Return a gzip stream whose .npy header declares 4 TB and whose data has 1,000 bytes."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<i4", "fortran_order": False, "shape": (10**12,)})
    return gzip.compress(header.getvalue() + bytes(1000), mtime=0)


def _records_file(part: int = 0) -> Callable[[Path], Path]:
    """Return a function that gives the path of a TFRecord file."""
    return lambda tree: tree / RECORDS / _records_name(0, part, 2)


def _replaced(**changes: Any) -> Callable[[Path], object]:
    """Replace the first file by a file with a single episode of five observations, with some features changed."""

    def act(tree: Path) -> None:
        steps = {**steps_of(5, over=True, rng=np.random.default_rng(0)), **changes}
        _records_file()(tree).write_bytes(packed(steps, 0, 0))

    return act


def _schema(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    """Return a function that changes the features of a step in ``features.json``."""

    def act(tree: Path) -> None:
        document = features()
        change(document["featuresDict"]["features"]["steps"]["sequence"]["feature"]["featuresDict"]["features"])
        (tree / RECORDS / "features.json").write_text(json.dumps(document))

    return act


_FRAMES, _ACTION, _REWARD = ("$store$_observation_ckpt", "$store$_action_ckpt", "$store$_reward_ckpt")
_TERMINAL = "$store$_terminal_ckpt"
_LIST = {"tensor": {"shape": {"dimensions": ["1"]}, "dtype": "bool", "encoding": "none"}}
_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"
_OBJECTS = np.array([print], object)
LOG_FAULTS = {
    "frames whose checksum is wrong": Fault(_log(f"{_FRAMES}.1.gz", lambda place: _flipped(place, -8)), "damaged"),
    "truncated frames": Fault(
        _log(f"{_FRAMES}.1.gz", lambda place: place.write_bytes(place.read_bytes()[:-100])),
        "the gzip stream is truncated",
    ),
    "a pickle instead of an array": Fault(
        _bytes("add_count_ckpt.1.gz", gzip.compress(pickle.dumps(119))), "is not a .npy array"
    ),
    "an array of objects": Fault(_array(f"{_ACTION}.0.gz", _OBJECTS, pickled=True), "is object [1], expected int32"),
    "a web page": Fault(_bytes(f"{_REWARD}.2.gz", b"<html>Sign in</html>"), "web page"),
    "a git-LFS pointer": Fault(_bytes(f"{_FRAMES}.2.gz", _POINTER), "LFS"),
    "an array that is far too long": Fault(_bytes(f"{_ACTION}.1.gz", _bomb()), "the file can have at most"),
    "bytes after the array": Fault(
        _log(f"{_TERMINAL}.1.gz", lambda place: place.write_bytes(place.read_bytes() + gzip.compress(b"more"))),
        "more bytes follow",
    ),
    "a file that is missing": Fault(_log(f"{_REWARD}.1.gz", Path.unlink), "checkpoint 1 has no reward"),
    "columns of unequal lengths": Fault(
        _array(f"{_REWARD}.1.gz", np.zeros(59, "f4")), "is float32 [59], expected float32 [60]"
    ),
    "frames of another size": Fault(
        _array(f"{_FRAMES}.0.gz", np.zeros((60, 42, 42), "u1")), "is uint8 [60, 42, 42], expected uint8 [rows, 84, 84]"
    ),
    "rewards of another type": Fault(_array(f"{_REWARD}.0.gz", np.zeros(60)), "is float64 [60], expected float32 [60]"),
    "a buffer that was not full": Fault(_array("add_count_ckpt.1.gz", 110), "the cursor was at 50 of 60"),
    "another invalid range": Fault(_array("invalid_range_ckpt.1.gz", np.arange(5)), "expected [58, 59, 0, 1, 2]"),
    "a flag that is 2": Fault(changed(f"{_TERMINAL}.1.gz", lambda one: one.put(5, 2)), "terminal is 2 at row 5"),
    "a reward that is not a number": Fault(
        changed(f"{_REWARD}.2.gz", lambda one: one.put([7, 9], np.nan)), "reward is nan at row 7"
    ),
    "an unknown action": Fault(changed(f"{_ACTION}.4.gz", lambda one: one.put(3, 18)), "action is 18 at row 3"),
    "a flag that is 3 in the row between": Fault(
        changed(f"{_TERMINAL}.3.gz", lambda one: one.put(59, 3)), "terminal is 3 at row 59"
    ),
    "the count of the first checkpoint": Fault(_array("add_count_ckpt.2.gz", 59), "that of the first checkpoint"),
    "a blank row with a frame": Fault(
        changed(f"{_FRAMES}.2.gz", lambda one: one[-1].fill(1)), "row 59 has a frame, expected a blank row"
    ),
    "another run": Fault(lambda tree: (tree / "dqn/Pong").rename(tree / "dqn/Breakout"), "belongs to this run"),
}
RECORD_FAULTS = {
    "a record whose checksum is wrong": Fault(lambda tree: _flipped(_records_file()(tree), -1), "CRC32C"),
    "a file that is missing": Fault(lambda tree: _records_file(1)(tree).unlink(), "checkpoint 0 has 1 files"),
    "no features.json": Fault(lambda tree: (tree / RECORDS / "features.json").unlink(), "has no features.json"),
    "features without frames": Fault(_schema(lambda steps: steps.pop("observation")), "it has no steps/observation"),
    "frames that are numbers": Fault(
        _schema(lambda steps: steps.update(observation=_tensor("uint8"))),
        "steps/observation is numbers, expected image",
    ),
    "a git-LFS pointer": Fault(lambda tree: _records_file()(tree).write_bytes(_POINTER), "LFS"),
    "an end inside an episode": Fault(_replaced(is_last=[0, 1, 0, 0, 1]), "is_last is True at [1, 4], expected only 4"),
    "a terminal state inside an episode": Fault(
        _replaced(is_terminal=[0, 0, 1, 0, 1]), "is_terminal is True at step 2"
    ),
    "a reward that is not a number": Fault(
        _replaced(reward=[0.0, float("nan"), 0.0, 0.0, 0.0]), "reward is nan at step 1"
    ),
    "an unknown action": Fault(_replaced(action=[0, 0, 0, -1, 0]), "action is -1 at step 3"),
    "columns of unequal lengths": Fault(_replaced(action=[0, 0, 0]), "lengths differ"),
    "a frame that is damaged": Fault(_replaced(observation=[b"\x89PNG\r\n\x1a\n" + bytes(9)] * 5), "image 0"),
    "frames of another size": Fault(_replaced(observation=[np.zeros((42, 42), "u1")] * 5), "expected [84, 84, 1]"),
    "flags that are lists": Fault(_schema(lambda steps: steps.update(is_last=_LIST)), "is_last has lists or arrays"),
    "an invalid checkpoint number": Fault(
        lambda tree: _records_file()(tree).write_bytes(
            packed(steps_of(5, over=True, rng=np.random.default_rng(0)), 1 << 40, 0)
        ),
        "checkpoint_id is 1,099,511,627,776",
    ),
    "another run": Fault(lambda tree: shutil.move(tree / RECORDS, tree / "Pong_run_3"), "belongs to this run"),
}
CASES = [
    Case(f"atari_dqn/{GAME}", write_logs, _served_logs, faults=LOG_FAULTS, many=_many_logs),
    Case(
        f"atari_dqn/{RUN}",
        lambda tree: write_records(tree, {0: [[12, 3], [40]], 1: [[2, 1, 9]], 3: [[30, 5]]}),
        _served_records,
        options={"upstream": "rlu"},
        faults=RECORD_FAULTS,
        many=_many_records,
    ),
]
