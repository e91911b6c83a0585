"""Datasets for tests of the viewer: of states, of images, of both, and of any number of steps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image
from stored_data import FLAGS, Trajectory, Whole, columns, trajectory, write_dataset

from datasets_rl.format.images.base import Form
from datasets_rl.format.images.video import VideoFrames
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import Column
from datasets_rl.read.compressed_frames import FrameDictionary
from datasets_rl.read.video import index_video
from datasets_rl.ted.episode import EncodedImages, Episode, TextStates

__all__ = [
    "CAMERAS",
    "cameras_dataset",
    "drawing",
    "image_dataset",
    "image_files",
    "mixed_dataset",
    "robot_dataset",
    "sparse_dataset",
    "state_dataset",
    "video_frames",
]

SIDE = 24
CAMERAS: Sequence[Form] = ("raw", "compressed", "encoded", *(["video"] if find_spec("av") else []))
"""The form of each camera's images: all forms, without PyAV all but videos."""
UINT8, FLOAT32 = np.dtype(np.uint8), np.dtype(np.float32)


def drawing(episode: int, step: int) -> np.ndarray:
    """Return an image, uint8 [24, 24, 3], whose upper left pixel tells the episode and the step."""
    image = np.full((SIDE, SIDE, 3), 40, np.uint8)
    left = step % (SIDE - 6)
    image[9:15, left : left + 6] = (240, 120, 40)
    image[0, 0] = (episode, step, 200)
    return image


def _base(episode: int, steps: int) -> tuple[dict, np.ndarray]:
    rng = np.random.default_rng([episode, steps])
    last = (np.arange(steps) == steps - 1)[:, None]
    data = {
        ("action",): rng.uniform(-1, 1, (steps, 2)).astype(np.float32),
        ("next", "reward"): np.arange(steps, dtype=np.float32)[:, None] + episode,
        ("next", "terminated"): last & (episode % 2 == 0),
        ("next", "truncated"): last & (episode % 2 == 1),
    }
    return data, np.stack([drawing(episode, step) for step in range(steps + 1)])


def state_dataset(folder: Path, lengths=(5, 30, 12), known=True, **manifest) -> StoredDataset:
    """Write episodes of states, [3] each; with `known` False, the last one lacks its final observation."""
    made = [
        trajectory(length, seed=seed, terminated=bool(seed % 2), known=known or seed < len(lengths) - 1)
        for seed, length in enumerate(lengths)
    ]
    return write_dataset(folder, made, **{"id": "toy/states", **manifest})


def image_dataset(folder: Path, lengths=(8, 20), side=64, form: Form = "raw") -> StoredDataset:
    """Write episodes of images, uint8 [64, 64, 3], in a file of their own, as pixels or compressed."""
    of = [
        Column(("observation",), UINT8, (side, side, 3), shared=True, form=form),
        Column(("action",), FLOAT32, (2,)),
        Column(("next", "reward"), FLOAT32, (1,)),
        *FLAGS,
    ]
    made = []
    for episode, steps in enumerate(lengths):
        data, images = _base(episode, steps)
        large = np.repeat(np.repeat(images, 3, axis=1), 3, axis=2)[:, :side, :side]
        made.append(Trajectory(steps=data, states={("observation",): large}))
    frames = np.concatenate([one.states["observation",] for one in made])
    return write_dataset(folder, made, of, {("observation",): FrameDictionary.train(frames, 1 << 14)}, id="toy/images")


def mixed_dataset(folder: Path, lengths=(6, 15), *, changed: bool = False, name: str = "state") -> StoredDataset:
    """Write episodes of encoded images and states; the final observation of the last one is unknown.

    With `changed`, episode 1 has a green pixel in the image at step 7, and 100 more in element 4 of the state at the steps 9 to 11.
    """
    of = [
        Column(("observation", "camera"), UINT8, (SIDE, SIDE, 3), shared=True, form="encoded"),
        Column(("observation", name), FLOAT32, (6,), shared=True),
        Column(("action",), FLOAT32, (2,)),
        Column(("next", "reward"), FLOAT32, (1,)),
        *FLAGS,
    ]
    made = []
    for episode, steps in enumerate(lengths):
        data, images = _base(episode, steps)
        known = episode < len(lengths) - 1
        state = np.random.default_rng(episode).normal(size=(steps + known, 6)).astype(np.float32)
        if changed and episode == 1:
            images[7, 3, 4] = (0, 255, 0)
            state[9:12, 4] += 100
        encoded = EncodedImages([_png(image) for image in images[: steps + known]])
        states = {("observation", "camera"): encoded, ("observation", name): state}
        made.append(Trajectory(steps=data, states=states))
    return write_dataset(folder, made, of, id="toy/mixed")


def cameras_dataset(folder: Path, lengths=(4, 9)) -> StoredDataset:
    """Write episodes of a robot at 15 steps per second, whose `CAMERAS` have the same images."""
    keys = {form: ("observation", "images", form) for form in CAMERAS}
    of = [
        *(Column(key, UINT8, (SIDE, SIDE, 3), shared=True, form=form) for form, key in keys.items()),
        Column(("action",), FLOAT32, (2,)),
        Column(("next", "reward"), FLOAT32, (1,)),
        *FLAGS,
    ]
    made, frames = [], []
    for episode, steps in enumerate(lengths):
        data, images = _base(episode, steps)
        frames.append(images)
        states: dict = dict.fromkeys(keys.values(), images)
        states[keys["encoded"]] = EncodedImages(image_files(images))
        if "video" in keys:
            states[keys["video"]] = video_frames(folder / "upstream" / f"{episode}.mp4", images)
        made.append(Trajectory(steps=data, states=states))
    dictionary = FrameDictionary.train(np.concatenate(frames), 1 << 14)
    specs = {
        ".".join(one.key): {"kind": "unbounded", "dtype": one.dtype.name, "shape": [*one.shape]}
        for one in (*of, Column(("next", "done"), np.dtype(bool), (1,)), Column(("episode",), np.dtype(np.int64), ()))
    }
    dictionaries = {keys["compressed"]: dictionary}
    return write_dataset(folder, made, of, dictionaries, id="toy/cameras", metadata={"fps": 15}, specs=specs)


JOINTS = ["waist", "shoulder", "elbow", "wrist", "gripper"]


def robot_dataset(folder: Path, lengths=(6, 9), joints: object = JOINTS) -> StoredDataset:
    """Write episodes of a robot: named joints, depth images of 1 to T + 1 meters, a discrete action and a task.

    The depth image at t is t + 1 meters everywhere but in a corner, which is at 0.5 meters.
    """
    of = [
        Column(("observation", "depth"), FLOAT32, (16, 16, 1), shared=True),
        Column(("observation", "joints"), FLOAT32, (5,), shared=True),
        Column(("task",), np.dtype(np.int32), (), text=True),
        Column(("action",), np.dtype(np.int64), (1,)),
        Column(("next", "reward"), FLOAT32, (1,)),
        *FLAGS,
    ]
    made = []
    for episode, steps in enumerate(lengths):
        data, _ = _base(episode, steps)
        data["action",] = np.arange(steps)[:, None] % 3
        data["task",] = TextStates.from_texts([("open the drawer", "close the <b>drawer</b>")[episode % 2]] * steps)
        depth = np.ones((steps + 1, 16, 16, 1), np.float32) * np.arange(1, steps + 2, dtype=np.float32).reshape(
            -1, 1, 1, 1
        )
        depth[:, 0, 0] = 0.5
        state = np.random.default_rng(episode).normal(size=(steps + 1, 5)).astype(np.float32)
        states = {("observation", "depth"): depth, ("observation", "joints"): state}
        made.append(Whole(Episode(steps=data, states=states)))
    return write_dataset(folder, made, of, id="toy/robot", metadata={"names": {"observation.joints": joints}})


def video_frames(path: Path, images: np.ndarray) -> VideoFrames:
    """Write images, uint8 [F, rows, columns, 3], as the frames of a video without loss, and return its frames."""
    import av

    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as out:
        stream = out.add_stream("libx264rgb", 15, options={"qp": "0", "g": "4", "threads": "1"})
        stream.height, stream.width, stream.pix_fmt = *images.shape[1:3], "rgb24"
        for image in images:
            out.mux(stream.encode(av.VideoFrame.from_ndarray(image, "rgb24")))
        out.mux(stream.encode(None))
    video = index_video(path)
    return VideoFrames((video,), np.zeros(len(images), np.int64), video.frames, images.shape[1:])


def image_files(images: np.ndarray) -> list[bytes]:
    """Return images, uint8 [n, rows, columns, 3], as PNG files."""
    return [_png(image) for image in images]


def _png(image: np.ndarray) -> bytes:
    import io

    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


def sparse_dataset(folder: Path, episodes: int, length: int, *, unknown: int = 0) -> StoredDataset:
    """Write a dataset of zeros whose rows take no room on disk; the return of episode e is e.

    The final observations of the first `unknown` episodes are unknown.
    """
    stored = write_dataset(folder, [trajectory(2)], columns())
    schema, steps = stored.schema, episodes * length
    table = np.zeros(episodes, np.load(folder / "episodes.npy").dtype)
    table["start"], table["length"] = np.arange(episodes) * length, length
    table["return"] = table["source"] = np.arange(episodes)
    table["final_known"] = np.arange(episodes) >= unknown
    np.save(folder / "episodes.npy", table)
    files = schema.array_files
    for name, rows, trailing in (
        ("rows.npy", steps, schema.record_bytes),
        ("final.npy", episodes, 0),
        ("fingerprints.npy", episodes, 0),
        ("sketches.npy", episodes, 0),
    ):
        path = folder / name
        path.unlink()
        np.lib.format.open_memmap(path, "w+", files[name].dtype, (rows, *files[name].shape)).flush()
        with path.open("r+b") as stream:
            stream.truncate(path.stat().st_size + trailing)
    document = json.loads((folder / "manifest.json").read_text())
    document["steps"], document["episodes"], document["final_unknown"] = steps, episodes, unknown
    for entry in document["files"]:
        entry["bytes"] = (folder / entry["path"]).stat().st_size
    (folder / "manifest.json").write_text(json.dumps(document))
    return StoredDataset(folder)
