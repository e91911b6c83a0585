"""LeRobot's folders, versions 2.1 and 3.0, written by pyarrow, pillow, PyAV and json as LeRobot's own writers do."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet
from raw.case import Case, Fault
from raw.images import encoded, scene
from upstreams import hub

from datasets_rl.ted.episode import Episode, TextStates

__all__ = ["CASES", "NEW", "OLD", "Drawn", "draw", "golden", "write_new", "write_old", "write_video"]

OLD, NEW = "me/arm_old", "me/arm_new"
TOP = (64, 96, 3)
WRIST = (48, 48, 3)
FPS = 10
TASKS = ("lift the lid", "ö → ü")
LENGTHS = (7, 4, 1, 12, 5)
LOSS = 8
"""Greatest difference of a pixel after yuv420p, H.264 and JPEG; frames that follow each other differ by more."""


@dataclass
class Drawn:
    """A generated episode of T rows."""

    state: np.ndarray
    """[T, 3], float32."""
    action: np.ndarray
    """[T, 2], float32."""
    reward: np.ndarray
    """[T], float32."""
    success: bool
    tasks: np.ndarray
    """[T], the number of the task at each row."""
    top: np.ndarray
    """[T, *TOP], uint8: frames of a video."""
    wrist: list[bytes]
    """T PNG images of `WRIST`."""
    grid: np.ndarray
    """[T, 2, 2], float32."""
    note: str = "a"
    stated: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.reward)


def draw(rows: int, seed: int = 0, shape: tuple[int, int, int] = TOP) -> Drawn:
    """Generate an episode; it changes its task in the middle if its number is odd."""
    rng = np.random.default_rng(seed)
    tasks = np.full(rows, seed % len(TASKS))
    if seed % 2:
        tasks[rows // 2 :] = 0
    return Drawn(
        rng.normal(size=(rows, 3)).astype(np.float32),
        rng.normal(size=(rows, 2)).astype(np.float32),
        rng.normal(size=rows).astype(np.float32),
        bool(seed % 2),
        tasks,
        np.stack([_frame(shape, seed * 5 + row) for row in range(rows)]),
        [encoded(scene(*WRIST, 1000 * seed + row)) for row in range(rows)],
        rng.normal(size=(rows, 2, 2)).astype(np.float32),
        f"run {seed}",
    )


def _frame(shape: tuple[int, int, int], number: int) -> np.ndarray:
    """Return a smooth image with a brightness that tells the number of the frame."""
    rows, columns, _ = shape
    ramp = np.linspace(0, 30, columns)[None, :, None] + np.linspace(0, 20, rows)[:, None, None]
    level = 40 + number * 61 % 160
    return (ramp + level + np.array([0, 8, 16])).clip(0, 255).astype(np.uint8)


def golden(drawn: Drawn, number: int, *, done: bool = True, video: bool = True) -> Episode:
    """Return the episode that must be stored: T states, because the state after the last action is unknown."""
    rows = len(drawn)
    end = (np.arange(rows) == rows - 1)[:, None]
    is_terminal = drawn.success if done else False
    steps: dict[Any, Any] = {
        ("action",): drawn.action,
        ("timestamp",): (np.arange(rows) / FPS).astype(np.float32),
        ("frame",): np.arange(rows),
        ("task_index",): drawn.tasks.astype(np.int64),
        ("language_instruction",): TextStates.from_texts([TASKS[task] for task in drawn.tasks]),
        ("next", "reward"): drawn.reward[:, None],
        ("next", "terminated"): end & is_terminal,
        ("next", "truncated"): end & (not is_terminal),
        ("language_events",): TextStates.from_texts(['[{"role": "user", "content": "stop"}]'] * rows),
        ("note",): TextStates.from_texts([drawn.note] * rows),
        ("grid",): drawn.grid,
    }
    if done:
        steps[("next", "success")] = end & drawn.success
    from raw.images import decoded

    states: dict[Any, Any] = {
        ("observation", "state"): drawn.state,
        ("observation", "image", "wrist"): np.stack([decoded(image) for image in drawn.wrist]),
    }
    if video:
        states[("observation", "image", "top")] = drawn.top
    return Episode(steps, states, metadata={"source": np.int64(number)})


def features(*, done: bool = True, video: bool = True, shape: tuple[int, int, int] = TOP) -> dict[str, Any]:
    """Return the features of info.json."""
    names = ["height", "width", "channels"]
    found: dict[str, Any] = {
        "observation.state": {"dtype": "float32", "shape": [3], "names": ["x", "y", "z"]},
        "action": {"dtype": "float32", "shape": [2], "names": None},
        "observation.images.wrist": {"dtype": "image", "shape": list(WRIST), "names": names},
        "grid": {"dtype": "float32", "shape": [2, 2], "names": None},
        "note": {"dtype": "string", "shape": [1], "names": None},
        "next.reward": {"dtype": "float32", "shape": [1], "names": None},
        "language_events": {"dtype": "language", "shape": [1], "names": None},
    }
    if video:
        about = {"video.fps": FPS, "video.codec": "h264", "video.is_depth_map": False, "has_audio": False}
        found["observation.images.top"] = {"dtype": "video", "shape": list(shape), "names": names, "info": about}
    if done:
        found |= {f"next.{name}": {"dtype": "bool", "shape": [1], "names": None} for name in ("done", "success")}
    counters = {
        "timestamp": "float32",
        **dict.fromkeys(("frame_index", "episode_index", "index", "task_index"), "int64"),
    }
    return found | {name: {"dtype": dtype, "shape": [1], "names": None} for name, dtype in counters.items()}


def table(drawn: Sequence[Drawn], first: int, row: int, *, done: bool = True) -> pa.Table:
    """Return the rows of episodes, the first of which has this number and begins at this row of the dataset."""
    lengths = [len(one) for one in drawn]
    rows = sum(lengths)
    frames = np.concatenate([np.arange(length) for length in lengths])

    def joined(name: str) -> np.ndarray:
        return np.concatenate([getattr(one, name) for one in drawn])

    def lists(values: np.ndarray) -> pa.Array:
        flat = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[-1])
        if values.ndim == 2:
            return flat
        return pa.ListArray.from_arrays(
            np.arange(0, len(flat) + 1, values.shape[1], np.int32), flat.cast(pa.list_(pa.float32()))
        )

    wrist = [
        {"bytes": image, "path": f"frame_{number:06d}.png"} for one in drawn for number, image in enumerate(one.wrist)
    ]
    events = [[{"role": "user", "content": "stop"}]] * rows
    columns: dict[str, Any] = {
        "observation.state": lists(joined("state")),
        "action": lists(joined("action")),
        "observation.images.wrist": pa.array(wrist, pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
        "grid": lists(joined("grid")),
        "note": pa.array([one.note for one in drawn for _ in range(len(one))]),
        "next.reward": pa.array(joined("reward")),
        "language_events": pa.array(events),
        "timestamp": pa.array((frames / FPS).astype(np.float32)),
        "frame_index": pa.array(frames),
        "episode_index": pa.array(np.repeat(np.arange(first, first + len(drawn)), lengths)),
        "index": pa.array(np.arange(row, row + rows)),
        "task_index": pa.array(joined("tasks")),
    }
    if done:
        ends = np.concatenate([np.arange(length) == length - 1 for length in lengths])
        columns["next.done"] = pa.array(ends)
        columns["next.success"] = pa.array(ends & np.repeat([one.success for one in drawn], lengths))
    metadata = {"huggingface": json.dumps({"info": {"features": {}}})}
    return pa.table(columns).replace_schema_metadata(metadata)


def write_video(path: Path, frames: np.ndarray, *, fps: int = FPS, codec: str = "libx264", **options: str) -> None:
    """Write frames, [F, rows, columns, 3], of which every second is a key frame, as LeRobot does."""
    import av

    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as out:
        stream = out.add_stream(codec, fps, options={"g": "2", "crf": "4", "threads": "1", **options})
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        for frame in frames:
            out.mux(stream.encode(av.VideoFrame.from_ndarray(frame, "rgb24")))
        out.mux(stream.encode(None))


def _info(version: str, drawn: Sequence[Drawn], described: Mapping[str, Any], **paths: Any) -> dict[str, Any]:
    return {
        "codebase_version": version,
        "robot_type": "so100",
        "total_episodes": len(drawn),
        "total_frames": sum(map(len, drawn)),
        "total_tasks": len(TASKS),
        "chunks_size": 2,
        "fps": FPS,
        "splits": {"train": f"0:{len(drawn)}"},
        **paths,
        "features": described,
    }


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _stats(values: np.ndarray) -> dict[str, Any]:
    """Return the statistics of a feature, [T, k], as LeRobot computes them."""
    found = {name: getattr(values, name)(0).tolist() for name in ("min", "max", "mean", "std")}
    return {**found, "count": [len(values)]}


def _lines(rows: Sequence[Any]) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def write_old(folder: Path, drawn: Sequence[Drawn], *, done: bool = True, video: bool = True, **options: Any) -> None:
    """Write version 2.1: a table and a video per episode, two episodes in a folder."""
    data, mp4 = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}", "episode_{episode_index:06d}.mp4"
    paths = {
        "data_path": f"{data}.parquet",
        "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/" + mp4 if video else None,
    }
    info = _info("v2.1", drawn, features(done=done, video=video, shape=drawn[0].top.shape[1:]), **paths)
    _write(folder / "meta/info.json", json.dumps(info, indent=4))
    _write(folder / "meta/tasks.jsonl", _lines([{"task_index": row, "task": text} for row, text in enumerate(TASKS)]))
    episodes = [
        {
            "episode_index": number,
            "tasks": [TASKS[task] for task in dict.fromkeys(one.tasks.tolist())],
            "length": len(one),
        }
        for number, one in enumerate(drawn)
    ]
    _write(folder / "meta/episodes.jsonl", _lines(episodes))
    stats = [{"episode_index": number, "stats": {"action": _stats(one.action)}} for number, one in enumerate(drawn)]
    _write(folder / "meta/episodes_stats.jsonl", _lines(stats))
    _write(folder / "README.md", "---\nlicense: apache-2.0\ntags:\n- LeRobot\n---\nAn arm.\n")
    row = 0
    for number, one in enumerate(drawn):
        place = {"episode_chunk": number // 2, "episode_index": number, "video_key": "observation.images.top"}
        path = folder / paths["data_path"].format(**place)
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(table([one], number, row, done=done), path)
        if video:
            write_video(folder / paths["video_path"].format(**place), one.top, **options)
        row += len(one)


def write_new(
    folder: Path,
    drawn: Sequence[Drawn],
    *,
    done: bool = True,
    video: bool = True,
    per_data: int = 2,
    per_video: int = 3,
    **options: Any,
) -> None:
    """Write version 3.0: several episodes in a table, and another number of them in a video."""
    place = "chunk-{chunk_index:03d}/file-{file_index:03d}"
    camera = "observation.images.top"
    paths = {
        "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 200,
        "data_path": f"data/{place}.parquet",
        "video_path": "videos/{video_key}/" + place + ".mp4" if video else None,
    }
    info = _info("v3.0", drawn, features(done=done, video=video, shape=drawn[0].top.shape[1:]), **paths)
    _write(folder / "meta/info.json", json.dumps(info, indent=4))
    stats = {"action": _stats(np.concatenate([one.action for one in drawn]))}
    _write(folder / "meta/stats.json", json.dumps(stats))
    tasks = pa.table({"task_index": pa.array(range(len(TASKS))), "__index_level_0__": pa.array(TASKS)})
    parquet.write_table(tasks, folder / "meta/tasks.parquet")
    starts = np.concatenate([[0], np.cumsum([len(one) for one in drawn])])

    def index(file: int) -> dict[str, int]:
        return {"chunk_index": file // 2, "file_index": file % 2}

    rows: list[dict[str, Any]] = []
    for number, one in enumerate(drawn):
        data, mp4 = index(number // per_data), index(number // per_video)
        before = sum(len(other) for other in drawn[number // per_video * per_video : number])
        tasks_of = [TASKS[task] for task in dict.fromkeys(one.tasks.tolist())]
        rows.append({"episode_index": number, "tasks": tasks_of, "length": len(one)})
        rows[-1] |= {f"data/{name}": value for name, value in data.items()}
        rows[-1] |= {"dataset_from_index": int(starts[number]), "dataset_to_index": int(starts[number + 1])}
        if video:
            rows[-1] |= {f"videos/{camera}/{name}": value for name, value in mp4.items()}
            rows[-1][f"videos/{camera}/from_timestamp"] = before / FPS
            rows[-1][f"videos/{camera}/to_timestamp"] = (before + len(one)) / FPS
        rows[-1] |= {"meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0}
        rows[-1] |= {"stats/action/min": [0.0, 0.0]}
    path = folder / "meta/episodes" / f"{place.format(**index(0))}.parquet"
    path.parent.mkdir(parents=True)
    parquet.write_table(pa.Table.from_pylist(rows), path)
    for file in range(math.ceil(len(drawn) / per_data)):
        first = file * per_data
        path = folder / paths["data_path"].format(**index(file))
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(
            table(drawn[first : first + per_data], first, int(starts[first]), done=done), path, row_group_size=5
        )
    for file in range(math.ceil(len(drawn) / per_video) if video else 0):
        path = folder / paths["video_path"].format(video_key=camera, **index(file))
        write_video(path, np.concatenate([one.top for one in drawn[file * per_video :][:per_video]]), **options)


def _case(folder: Path, *, name: str, write: Callable[..., None], video: bool, done: bool = True) -> list[Episode]:
    drawn = [draw(length, seed) for seed, length in enumerate(LENGTHS)]
    write(folder / name, drawn, video=video, done=done)
    return [golden(one, number, video=video, done=done) for number, one in enumerate(drawn)]


def _many(folder: Path, size: int, *, name: str, write: Callable[..., None], video: bool) -> None:
    """Write about `size` bytes."""
    one = draw(100)
    one.wrist = [encoded(np.random.default_rng(row).integers(0, 256, WRIST, np.uint8)) for row in range(100)]
    count = max(2, size // (100 * len(one.wrist[0])))
    write(folder / name, [one] * count, video=video)


@contextmanager
def _served(folder: Path, *, name: str) -> Iterator[Mapping[str, str]]:
    """Serve the repository from the hub."""
    with hub({name: folder / name}, page=5) as server:
        yield {"HF_ENDPOINT": server.url}


def _edit_info(name: str, change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    def corrupt(folder: Path) -> None:
        path = folder / name / "meta/info.json"
        info = json.loads(path.read_text())
        change(info)
        path.write_text(json.dumps(info))

    return corrupt


def _edit_table(name: str, file: str, change: Callable[[pa.Table], pa.Table]) -> Callable[[Path], object]:
    def corrupt(folder: Path) -> None:
        path = folder / name / file
        parquet.write_table(change(parquet.read_table(path)), path)

    return corrupt


def _put(column: str, values: Any) -> Callable[[pa.Table], pa.Table]:
    def change(one: pa.Table) -> pa.Table:
        at = one.column_names.index(column)
        new = pa.array(values) if not callable(values) else values(one[column])
        return one.set_column(at, column, new)

    return change


def _replace(name: str, file: str, data: bytes | Callable[[bytes], bytes]) -> Callable[[Path], object]:
    def corrupt(folder: Path) -> None:
        path = folder / name / file
        path.write_bytes(data(path.read_bytes()) if callable(data) else data)

    return corrupt


_LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n"
_FIRST_OLD, _FIRST_NEW = "data/chunk-000/episode_000000.parquet", "data/chunk-000/file-000.parquet"
_EPISODES = "meta/episodes/chunk-000/file-000.parquet"
OLD_FAULTS = {
    "no info": Fault(lambda folder: (folder / OLD / "meta/info.json").unlink(), "it has no meta/info.json"),
    "an info that is not JSON": Fault(_replace(OLD, "meta/info.json", b"{"), "does not describe a LeRobot dataset"),
    "a version to come": Fault(
        _edit_info(OLD, lambda info: info.update(codebase_version="v4.0")), "codebase_version is '4.0'"
    ),
    "a version before": Fault(
        _edit_info(OLD, lambda info: info.update(codebase_version="v1.6")), "expected 2.0, 2.1, 3.0"
    ),
    "a path that leads out": Fault(
        _edit_info(OLD, lambda info: info.update(data_path="../{episode_index:06d}.parquet")), "leads out of the folder"
    ),
    "a path with an attribute": Fault(
        _edit_info(OLD, lambda info: info.update(data_path="{episode_index.__class__}.parquet")), "data_path is"
    ),
    "a path with an unknown field": Fault(
        _edit_info(OLD, lambda info: info.update(data_path="{robot}/{episode_index}.parquet")), "data_path is"
    ),
    "a path with a width that fills the memory": Fault(
        _edit_info(OLD, lambda info: info.update(data_path="data/{episode_index:0999999999d}.parquet")),
        "the form of episode_index is not that of a number",
    ),
    "no frame rate": Fault(_edit_info(OLD, lambda info: info.update(fps=0)), "fps is 0.0"),
    "a shape that is none": Fault(
        _edit_info(OLD, lambda info: info["features"]["action"].update(shape=["a"])), "action: the shape is ['a']"
    ),
    "a table that is missing": Fault(lambda folder: (folder / OLD / _FIRST_OLD).unlink(), "such as data/chunk-000"),
    "an episode of another length": Fault(
        _edit_table(OLD, _FIRST_OLD, lambda one: one.slice(1)), "episode 0 has 6 rows, but meta/episodes states 7"
    ),
    "frames out of order": Fault(
        _edit_table(OLD, _FIRST_OLD, lambda one: one.take([1, 0, *range(2, 7)])),
        "frame_index of episode 0 is not 0 to 6",
    ),
    "another episode": Fault(
        _edit_table(OLD, _FIRST_OLD, _put("episode_index", [3] * 7)), "it has no row of episode 0"
    ),
    "a task without text": Fault(_edit_table(OLD, _FIRST_OLD, _put("task_index", [9] * 7)), "task_index is 9"),
    "an empty cell": Fault(
        _edit_table(OLD, _FIRST_OLD, _put("next.reward", [None, *map(float, range(6))])), "1 of 7 cells are empty"
    ),
    "images of another size": Fault(
        _edit_info(OLD, lambda info: info["features"]["observation.images.wrist"].update(shape=[40, 48, 3])),
        "image 0 is [48, 48, 3] of uint8, expected [40, 48, 3]",
    ),
    "a git-LFS pointer": Fault(_replace(OLD, _FIRST_OLD, _LFS), "git-LFS pointer"),
    "a cut table": Fault(_replace(OLD, _FIRST_OLD, lambda data: data[:-20]), ""),
}
NEW_FAULTS = {
    "no list of episodes": Fault(lambda folder: (folder / NEW / _EPISODES).unlink(), "it lacks files in meta/episodes"),
    "an episode twice": Fault(
        _edit_table(NEW, _EPISODES, _put("episode_index", [0, 1, 1, 3, 4])), "expected each number from 0 once"
    ),
    "an episode that no file has": Fault(
        _edit_table(NEW, _FIRST_NEW, lambda one: one.slice(LENGTHS[0])), "it has no row of episode 0"
    ),
    "rows of an episode apart": Fault(
        _edit_table(NEW, _FIRST_NEW, lambda one: one.take([*range(6), *range(7, 11), 6])),
        "the rows of episode 0 are not consecutive",
    ),
    "a vector of another length": Fault(
        _edit_info(NEW, lambda info: info["features"]["action"].update(shape=[3])), "action has 2 values in a row"
    ),
    "statistics without numbers": Fault(_replace(NEW, "meta/stats.json", b'{"action": 3}'), "no statistics"),
    "a column that is missing": Fault(
        _edit_table(NEW, _FIRST_NEW, lambda one: one.drop_columns(["action"])), "it has no column action"
    ),
}
MANIFEST = {"license": "apache-2.0"}
SMALL = {"datasets_rl.sources.lerobot._SHARD_BYTES": 40_000}
_LOSSES = {"observation.image.top": LOSS}
CASES = [
    Case(
        f"lerobot/{OLD}",
        partial(_case, name=OLD, write=write_old, video=False),
        partial(_served, name=OLD),
        faults=OLD_FAULTS,
        many=partial(_many, name=OLD, write=write_old, video=False),
        manifest=MANIFEST,
        small=SMALL,
    ),
    Case(
        f"lerobot/{NEW}",
        partial(_case, name=NEW, write=write_new, video=False, done=False),
        partial(_served, name=NEW),
        faults=NEW_FAULTS,
        many=partial(_many, name=NEW, write=write_new, video=False),
        small=SMALL,
    ),
]
if find_spec("av") is not None:
    CASES += [
        Case(
            f"lerobot/{OLD}",
            partial(_case, name=OLD, write=write_old, video=True),
            partial(_served, name=OLD),
            manifest=MANIFEST,
            small=SMALL,
            lossy=_LOSSES,
        ),
        Case(
            f"lerobot/{NEW}",
            partial(_case, name=NEW, write=write_new, video=True),
            partial(_served, name=NEW),
            options={"images": "raw"},
            many=partial(_many, name=NEW, write=write_new, video=True),
            small=SMALL,
            lossy=_LOSSES,
        ),
        Case(
            f"lerobot/{NEW}",
            partial(_case, name=NEW, write=write_new, video=True),
            partial(_served, name=NEW),
            options={"images": "video"},
            small=SMALL,
            lossy=_LOSSES,
        ),
    ]
