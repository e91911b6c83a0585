"""Exports that are read back by the source `local`, and the comparison of datasets bit for bit."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from oracles import comparison
from PIL import Image
from stored_data import FLAGS, Trajectory, Whole, write_dataset

from datasets_rl import downloading
from datasets_rl.exporting import Content, run_export
from datasets_rl.format.images.base import Form
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import Column
from datasets_rl.read.compressed_frames import FrameDictionary
from datasets_rl.settings import Settings
from datasets_rl.ted.episode import EncodedImages, Episode, TextStates
from datasets_rl.ted.keys import dotted_name

__all__ = ["SIDE", "encoded", "equal_bits", "export_stored", "read_back", "write_images", "write_robot"]

SIDE = 32
"""Rows and columns of the images; Minari takes no smaller array for an image."""


def export_stored(stored: StoredDataset, to: str, out: Path, **options: Any) -> Path:
    """Export a dataset; what the format cannot hold is left out."""
    return run_export(Content(stored), to, out, **{"lossy": True, "show": False, **options})


def read_back(stored: StoredDataset, to: str, folder: Path, **options: Any) -> StoredDataset:
    """Export a dataset without loss, download the export as a dataset of `local`, and verify it against the export."""
    out = export_stored(stored, to, folder / "exported", lossy=False, **options)
    settings = Settings(home=folder / "home", progress=False, jobs=1)
    made = downloading.download("local/back", from_local=out, settings=settings)
    assert comparison.deep_problems(made, settings=settings) == []
    return StoredDataset(made)


def equal_bits(stored: StoredDataset, other: StoredDataset) -> None:
    """Assert that two datasets have the same keys, dtypes, shapes and bits; texts are compared as texts."""
    assert set(stored.keys()) == set(other.keys())
    assert stored.episodes.lengths.tolist() == other.episodes.lengths.tolist()
    assert stored.episodes["final_known"].tolist() == other.episodes["final_known"].tolist()
    for key in stored.keys():  # noqa: SIM118 -- a dataset is no dict
        wanted, got = texts_or_values(stored, key), texts_or_values(other, key)
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape), dotted_name(key)
        assert got.tobytes() == wanted.tobytes(), dotted_name(key)


def texts_or_values(stored: StoredDataset, key: tuple[str, ...]) -> np.ndarray:
    """Return the values of a key, [N, ...]; the texts themselves for a text field, whose codes may differ."""
    values = np.ascontiguousarray(stored.column(key))
    root = key[1:] if key[0] == "next" and key not in stored.schema else key
    if root in stored.schema and stored.schema[root].text:
        return np.asarray(stored.texts(root), object)[values].astype("U80")
    return values


def encoded(image: np.ndarray, form: str = "png") -> bytes:
    """Return an image as the bytes of a file."""
    stream = BytesIO()
    Image.fromarray(image).save(stream, form)
    return stream.getvalue()


def write_robot(folder: Path, *, known: bool = True, form: str = "png") -> StoredDataset:
    """Write three episodes of a robot: nested observations, encoded images, texts, float64, info and metadata.

    Args:
        folder: The folder of the dataset.
        known: Whether all final states are known; otherwise that of the second episode is not.
        form: The format of the images, png or jpeg; or how their pixels are stored, raw or compressed.
    """
    stored: Form = form if form in {"raw", "compressed"} else "encoded"
    camera = ("observation", "camera")
    image = Column(camera, np.dtype(np.uint8), (SIDE, SIDE, 3), shared=True, form=stored)
    columns = [
        Column(("observation", "joints"), np.dtype(np.float64), (2,), shared=True),
        image,
        Column(("observation", "gripper"), np.dtype(np.int16), (), shared=True),
        Column(("action",), np.dtype(np.float32), (2,)),
        Column(("next", "reward"), np.dtype(np.float32), (1,)),
        *FLAGS,
        Column(("info", "goal"), np.dtype(np.float32), (1,), shared=True),
        Column(("task",), np.dtype(np.int32), (), text=True),
        Column(("weight",), np.dtype(np.float64), ()),
    ]
    episodes = [_robot(steps, seed, known=known or seed != 1, form=form) for seed, steps in enumerate((4, 3, 5))]
    specs = {"action": {"kind": "bounded", "dtype": "float32", "shape": [2], "low": -1.0, "high": [0.5, 1.0]}}
    dictionaries = {camera: FrameDictionary()}
    return write_dataset(folder, episodes, columns, dictionaries, specs=specs, license="MIT", metadata={"fps": 10})


def _robot(steps: int, seed: int, *, known: bool, form: str) -> Any:
    random = np.random.default_rng(seed)
    rows, last = steps + known, (np.arange(steps) == steps - 1)[:, None]
    pixels = random.integers(0, 255, (rows, SIDE, SIDE, 3), dtype=np.uint8)
    is_encoded = form not in {"raw", "compressed"}
    images = EncodedImages([encoded(image, form) for image in pixels]) if is_encoded else pixels
    episode = Episode(
        steps={
            ("action",): random.uniform(-1, 0.5, (steps, 2)).astype(np.float32),
            ("next", "reward"): random.normal(size=(steps, 1)).astype(np.float32),
            ("next", "terminated"): last & (seed == 0),
            ("next", "truncated"): last & (seed != 0),
            ("task",): TextStates.from_texts([f'pick up "{seed}"' if step < 2 else "café" for step in range(steps)]),
            ("weight",): random.normal(size=steps),
        },
        states={
            ("observation", "joints"): random.normal(size=(rows, 2)),
            ("observation", "camera"): images,
            ("observation", "gripper"): random.integers(-300, 300, rows).astype(np.int16),
            ("info", "goal"): random.normal(size=(rows, 1)).astype(np.float32),
        },
        metadata={"seed": np.int64(100 + seed), "difficulty": np.float64(seed / 3)},
    )
    return Whole(episode)


def write_images(folder: Path, *, known: bool = True, form: Form = "raw") -> StoredDataset:
    """Write two episodes whose only states are pixels, stored as an array or compressed, with discrete actions."""
    columns = [
        Column(("pixels",), np.dtype(np.uint8), (SIDE, SIDE, 3), shared=True, form=form),
        Column(("action",), np.dtype(np.int64), ()),
        Column(("next", "reward"), np.dtype(np.float32), (1,)),
        *FLAGS,
    ]
    episodes = []
    for seed, steps in enumerate((3, 2)):
        random, last = np.random.default_rng(seed), (np.arange(steps) == steps - 1)[:, None]
        episodes.append(
            Trajectory(
                steps={
                    ("action",): random.integers(0, 4, steps),
                    ("next", "reward"): random.normal(size=(steps, 1)).astype(np.float32),
                    ("next", "terminated"): last & (seed == 0),
                    ("next", "truncated"): last & (seed == 1),
                },
                states={("pixels",): random.integers(0, 255, (steps + known, SIDE, SIDE, 3), dtype=np.uint8)},
            )
        )
    specs = {"action": {"kind": "discrete", "dtype": "int64", "shape": [], "n": 4}}
    return write_dataset(folder, episodes, columns, {("pixels",): FrameDictionary()}, specs=specs)
