"""Layouts of tables with images beside, each with three recordings of small images whose brightness is the number of the row."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image
from raw.lerobot import write_video

LENGTHS = [4, 6, 3]
STEPS = sum(LENGTHS)
NUMBERS = np.repeat(np.arange(3), LENGTHS)
SHAPE = (16, 24, 3)
_DRAW = np.random.default_rng(35)
PIXELS = _DRAW.integers(0, 255, size=(STEPS, *SHAPE), dtype=np.uint8)
ACTION = _DRAW.uniform(-1, 1, size=(STEPS, 2)).round(6)
SPEED = _DRAW.uniform(0, 30, size=STEPS).round(6)


def frame(row: int) -> np.ndarray:
    """Return the frame of a row in a video: the brightness is a multiple of the number of the row."""
    return np.full((64, 96, 3), 10 + 18 * row, np.uint8)


@dataclass(frozen=True)
class Layout:
    """Files of the three recordings."""

    write: Callable[[Path], Path]
    """Writes the files into a folder, and returns the path that the user names."""
    toml: str = ""
    """Description that the user has to write beside the files, of at most five lines."""
    images: str = "observation.image"
    """Key of the images."""
    decoded: Callable[[int], np.ndarray] = lambda row: PIXELS[row]
    """Returns the pixels of a row, [rows, columns, channels]."""
    loss: int = 0
    """Greatest difference of a pixel, if the images are frames of videos."""
    action: np.ndarray = field(default_factory=lambda: ACTION)


def encoded(pixels: np.ndarray, kind: str = "png") -> bytes:
    """Return an image as a file."""
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, kind, **({"quality": 90} if kind == "jpeg" else {}))
    return stream.getvalue()


def jpeg(row: int) -> np.ndarray:
    """Return the pixels of a row after a loss, by another decoder than that of the package under test."""
    return np.asarray(Image.open(io.BytesIO(encoded(PIXELS[row], "jpeg"))))


def write_images(folder: Path, name: str, kind: str = "png") -> list[str]:
    """Write an image for each row, and return the names. {} is the number of the row."""
    names = [name.format(row) for row in range(STEPS)]
    for row, one in enumerate(names):
        (folder / one).parent.mkdir(parents=True, exist_ok=True)
        (folder / one).write_bytes(encoded(PIXELS[row], kind))
    return names


def table(
    kind: Callable[[pd.DataFrame, Path], Any],
    name: str,
    images: str,
    column: str = "image",
    text: str = "{}",
    **columns: Any,
) -> Callable[[Path], Path]:
    """Return a writer of a table with a column of paths."""

    def write(folder: Path) -> Path:
        paths = [text.format(path) for path in write_images(folder, images)]
        kind(pd.DataFrame({column: paths, **columns}), folder / name)
        return folder

    return write


def tub_rows() -> list[dict[str, Any]]:
    """Return the rows of a tub with a session for each recording, without the images."""
    return [
        {
            "_index": row,
            "_session_id": f"21-06-01_{NUMBERS[row]}",
            "_timestamp_ms": 1622512345000 + 50 * row,
            "cam/image_array": f"{row}_cam_image_array_.jpg",
            "user/angle": float(ACTION[row, 0]),
            "user/mode": "user",
            "user/throttle": float(ACTION[row, 1]),
        }
        for row in range(STEPS)
    ]


def write_tub(
    folder: Path, rows: list[dict[str, Any]] | None = None, deleted: tuple[int, ...] = (), size: int = 5
) -> Path:
    """Write a tub as Donkeycar does, with catalogs of `size` rows."""
    rows = tub_rows() if rows is None else rows
    write_images(folder, "images/{}_cam_image_array_.jpg", "jpeg")
    catalogs = []
    for start in range(0, len(rows), size):
        lines = [json.dumps(row, sort_keys=True) + "\r\n" for row in rows[start : start + size]]
        catalogs.append(f"catalog_{start // size}.catalog")
        (folder / catalogs[-1]).write_text("".join(lines), newline="")
        manifest = {"created_at": 1.5, "line_lengths": [*map(len, lines)], "path": catalogs[-1], "start_index": start}
        (folder / f"{catalogs[-1]}_manifest").write_text(json.dumps(manifest) + "\r\n", newline="")
    state = {"current_index": len(rows), "deleted_indexes": [*deleted], "max_len": size, "paths": catalogs}
    head = [[*rows[0]], ["str"] * len(rows[0]), {}, {"created_at": 1.5, "sessions": {}}, state]
    (folder / "manifest.json").write_text("".join(json.dumps(line) + "\r\n" for line in head), newline="")
    return folder


def write_records(folder: Path) -> Path:
    """Write tubs of version 1: a folder for each recording, and a file for each row."""
    for row in range(STEPS):
        number = row - int(np.flatnonzero(NUMBERS[row] == NUMBERS)[0])
        tub = folder / f"tub_{NUMBERS[row]}_21-06-01"
        tub.mkdir(exist_ok=True)
        (tub / "meta.json").write_text(json.dumps({"inputs": ["cam/image_array"], "start": 1.5}))
        (tub / f"{number}_cam-image_array_.jpg").write_bytes(encoded(PIXELS[row], "jpeg"))
        record = {"cam/image_array": f"{number}_cam-image_array_.jpg", "user/mode": "user", "timestamp": f"t{row}"}
        record |= {"user/angle": float(ACTION[row, 0]), "user/throttle": float(ACTION[row, 1])}
        (tub / f"record_{number}.json").write_text(json.dumps(record))
    return folder


TWO = {f"action_{element}": ACTION[:, element] for element in range(2)}
CONTROLS = np.stack([ACTION[:, 0], np.abs(ACTION[:, 1]), np.zeros(STEPS)], axis=1)


def times(row: int) -> str:
    """Return the time of a row, with a pause of 5 seconds between recordings."""
    seconds = 30 + row // 10 + 6 * int(NUMBERS[row])
    return f"2019_04_02_19_{25 + seconds // 60}_{seconds % 60:02}_{100 * (row % 10):03}"


def driving_log(header: bool = False, prefix: str = "C:\\Users\\me\\Desktop\\IMG\\") -> Callable[[Path], Path]:
    """Return a writer of a log of Udacity's simulator."""

    def write(folder: Path) -> Path:
        (folder / "IMG").mkdir()
        with (folder / "driving_log.csv").open("w", newline="") as stream:
            lines = csv.writer(stream)
            if header:
                lines.writerow(["center", "left", "right", "steering", "throttle", "brake", "speed"])
            for row in range(STEPS):
                names = [f"{camera}_{times(row)}.jpg" for camera in ("center", "left", "right")]
                for shift, name in enumerate(names):
                    (folder / "IMG" / name).write_bytes(encoded(PIXELS[(row + shift) % STEPS], "jpeg"))
                paths = [f"{' ' * bool(shift)}{prefix}{name}" for shift, name in enumerate(names)]
                lines.writerow([*paths, *CONTROLS[row, :2], 0, SPEED[row]])
        return folder

    return write


def video(path: Path, rows: Any, flip: bool = False) -> None:
    """Write a video of the frames of some rows."""
    frames = np.stack([255 - frame(row) if flip else frame(row) for row in rows])
    write_video(path, frames, fps=10)


def filmed(
    videos: Mapping[str, Any], tables: Mapping[str, Any] | None = None, **columns: Any
) -> Callable[[Path], Path]:
    """Return a writer of tables with videos beside: the rows of each video and of each table, by the path."""

    def write(folder: Path) -> Path:
        for name, rows in videos.items():
            video(folder / name, rows, flip="rear" in name)
        for name, rows in (tables or {"log.csv": range(STEPS)}).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            frame_of = {column: values[list(rows)] for column, values in {**TWO, **columns}.items()}
            pd.DataFrame(frame_of).to_csv(folder / name, index=False)
        return folder

    return write


STARTS = np.cumsum([0, *LENGTHS[:-1]])
WITHIN = np.arange(STEPS) - STARTS[NUMBERS]
ROWS = [range(start, start + length) for start, length in zip(STARTS.tolist(), LENGTHS, strict=True)]
CSV = lambda frame, path: frame.to_csv(path, index=False)  # noqa: E731
PARQUET = lambda frame, path: frame.to_parquet(path)  # noqa: E731
JSONL = lambda frame, path: frame.to_json(path, orient="records", lines=True, double_precision=15)  # noqa: E731

LAYOUTS: Mapping[str, Layout] = {
    "a tub of Donkeycar": Layout(write_tub, decoded=jpeg),
    "tubs of Donkeycar, version 1": Layout(write_records, '[episodes]\nby = "file"', decoded=jpeg),
    "Udacity's driving_log.csv": Layout(
        driving_log(),
        '[episodes]\nby = "column"\narray = "recording"',
        images="observation.center",
        decoded=jpeg,
        action=CONTROLS,
    ),
    "Udacity's driving_log.csv with a header": Layout(
        driving_log(header=True, prefix="IMG/"),
        '[episodes]\nby = "column"\narray = "recording"',
        images="observation.center",
        decoded=jpeg,
        action=CONTROLS,
    ),
    "CSV with a column of paths": Layout(table(CSV, "data.csv", "frames/{:06}.png", **TWO, episode=NUMBERS)),
    "JSON lines with a column of paths": Layout(
        table(JSONL, "data.jsonl", "frames/{:06}.PNG", "image_path", action=ACTION.tolist(), episode=NUMBERS)
    ),
    "Parquet with paths of another machine": Layout(
        table(
            PARQUET,
            "data.parquet",
            "frames/{:06}.png",
            text="/home/me/data/{}",
            action=ACTION.tolist(),
            episode=NUMBERS,
        )
    ),
    "CSV with paths and names of your own": Layout(
        table(CSV, "log.csv", "cam/{}.png", "shot", steering=ACTION[:, 0], gas=ACTION[:, 1], run=NUMBERS),
        '[episodes]\nby = "column"\narray = "run"\n[fields]\nobservation.image = "shot"\naction = ["steering", "gas"]',
    ),
    "CSV for each episode, with a video of the same name": Layout(
        filmed(
            {f"ep_{number}.mp4": ROWS[number] for number in range(3)},
            {f"ep_{number}.csv": ROWS[number] for number in range(3)},
            frame=WITHIN,
        ),
        decoded=frame,
        loss=3,
    ),
    "folder for each episode, with two cameras": Layout(
        filmed(
            {f"run_{number}/{camera}.mp4": ROWS[number] for number in range(3) for camera in ("front", "rear")},
            {f"run_{number}/log.csv": ROWS[number] for number in range(3)},
            frame_index=WITHIN,
        ),
        images="observation.image.front",
        decoded=frame,
        loss=3,
    ),
    "CSV with a video for each episode": Layout(
        filmed({f"videos/{number:03}.mp4": ROWS[number] for number in range(3)}, episode=NUMBERS, frame_index=WITHIN),
        decoded=frame,
        loss=3,
    ),
    "CSV with one video": Layout(
        filmed({"camera.mp4": range(STEPS)}, episode=NUMBERS, frame=np.arange(STEPS)), decoded=frame, loss=3
    ),
    "CSV with paths of videos": Layout(
        filmed(
            {f"{number}.mp4": ROWS[number] for number in range(3)},
            episode=NUMBERS,
            frame_index=WITHIN + 1,
            video=np.array([f"/data/{number}.mp4" for number in NUMBERS]),
        ),
        decoded=frame,
        loss=3,
    ),
}
