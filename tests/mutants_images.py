"""Mutations of tables with images: images by path, image columns, videos beside tables, tubs, and driving logs."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from layouts_images import (
    ACTION,
    CONTROLS,
    LENGTHS,
    NUMBERS,
    PIXELS,
    ROWS,
    STEPS,
    TWO,
    WITHIN,
    driving_log,
    encoded,
    frame,
    jpeg,
    tub_rows,
    video,
    write_images,
    write_records,
    write_tub,
)
from mutants_oracle import FileMutant, Truth
from PIL import Image
from pyarrow import parquet

Names = Sequence[str]
Write = Callable[[Path], Path]
VIDEO_FRAMES = np.stack([frame(row) for row in range(STEPS)])
JPEGS = np.stack([jpeg(row) for row in range(STEPS)])


def truth(rows: Any = slice(None), lengths: Sequence[int] = tuple(LENGTHS), loss: float = 1e-6, **others: Any) -> Truth:
    """Return the values of some rows. `others` replaces values."""
    values = {"observation.image": PIXELS[rows], "action": ACTION[rows]}
    return Truth(lengths, {**values, **{name.replace("__", "."): one for name, one in others.items()}}, loss)


RIGHT = (truth(),)


def of_paths(
    name: str = "frames/{}.png",
    text: str = "{}",
    *,
    change: Callable[[Path, list[str]], Any] = lambda folder, paths: None,
    kind: str = "csv",
    **columns: Any,
) -> Write:
    """Return a writer of images and a table with a column of their paths.

    Args:
        name: The name of the image of a row.
        text: The text in the table for a path.
        change: Changes the files, and the list of texts in place.
        kind: The format of the table.
        columns: Further columns.
    """

    def write(folder: Path) -> Path:
        texts = [text.format(path) for path in write_images(folder, name)]
        change(folder, texts)
        table = pd.DataFrame({"image": texts, **TWO, "episode": NUMBERS, **columns})
        if kind == "csv":
            table.to_csv(folder / "log.csv", index=False)
        elif kind == "parquet":
            table.to_parquet(folder / "log.parquet")
        else:
            table.to_json(folder / "log.jsonl", orient="records", lines=True, double_precision=15)
        return folder

    return write


def saved(row: int, make: Callable[[np.ndarray], Any], **options: Any) -> Callable[[Path, list[str]], None]:
    """Return a change of the image of a row."""

    def change(folder: Path, paths: list[str]) -> None:
        made = make(PIXELS[row])
        image = made if isinstance(made, Image.Image) else Image.fromarray(made)
        image.save(folder / paths[row], **options)

    return change


def every(make: Callable[[np.ndarray], Any], **options: Any) -> Callable[[Path, list[str]], None]:
    """Return a change of all images."""

    def change(folder: Path, paths: list[str]) -> None:
        for row in range(STEPS):
            saved(row, make, **options)(folder, paths)

    return change


def with_alpha(pixels: np.ndarray) -> np.ndarray:
    """Return pixels with a channel of alpha."""
    return np.concatenate([pixels, pixels[..., :1]], axis=-1)


def turned(folder: Path, paths: list[str], row: int | None = None) -> None:
    """Write JPEG images whose EXIF says that they are upside down, or that the image of a row is."""
    exif = Image.Exif()
    for number, path in enumerate(paths):
        exif[0x0112] = 3 if row in {None, number} else 1
        Image.fromarray(PIXELS[number]).save(folder / path, "jpeg", quality=90, exif=exif)


def copied(where: str, change: Callable[[bytes], bytes] = bytes) -> Callable[[Path, list[str]], None]:
    """Return a change that adds other images of the same last names below a folder."""

    def write(folder: Path, paths: list[str]) -> None:
        (folder / where).mkdir(parents=True)
        for row, path in enumerate(paths):
            other = encoded(255 - PIXELS[row])
            (folder / where / path.rpartition("/")[2]).write_bytes(change(other))

    return write


def of_images_by_path() -> Iterator[FileMutant]:
    """Yield mutants of images by path."""
    numbers = [WITHIN[row] for row in range(STEPS)]
    right: dict[str, Any] = {"truths": RIGHT}
    by_name: dict[str, Any] = {"truths": RIGHT, "counted": ("image-by-name",)}

    def edit(change: Callable[[list[str]], Any]) -> Callable[[Path, list[str]], None]:
        return lambda folder, paths: change(paths)

    def unlink(row: int) -> Callable[[Path, list[str]], None]:
        return lambda folder, paths: (folder / paths[row].rpartition("\\")[2]).unlink()

    gray = PIXELS[..., 0].copy()
    deep = (gray.astype(np.uint16) * 256) + 7
    changes: dict[str, tuple[Write, dict[str, Any]]] = {
        # Names.
        "numbers without zeros": (of_paths("frames/frame_{}.png"), right),
        "numbers with zeros": (of_paths("frames/frame_{:06}.png"), right),
        "numbers from 1": (
            of_paths("frames/frame_{}.png", change=lambda f, p: _renumbered(f, p, 1)), right),
        "names alone": (of_paths(change=edit(lambda p: p.__setitem__(slice(None), [one.rpartition("/")[2] for one in p]))), by_name),
        "numbers alone": (of_paths(change=edit(lambda p: p.__setitem__(slice(None), [str(n) for n in range(STEPS)]))), {}),
        "paths of Windows": (of_paths(text="C:\\data\\{}"), by_name),
        "paths of another machine": (of_paths(text="/home/me/{}"), by_name),
        "paths with backslashes": (of_paths(change=edit(lambda p: p.__setitem__(slice(None), [one.replace("/", "\\") for one in p]))), right),
        "paths in capitals": (of_paths(change=edit(lambda p: p.__setitem__(slice(None), [one.upper() for one in p]))), right),
        "paths with spaces around": (of_paths(text=" {} "), right),
        "paths with ./": (of_paths(text="./{}"), right),
        "paths quoted as addresses": (of_paths("frames/frame {}.png", change=edit(lambda p: p.__setitem__(slice(None), [one.replace(" ", "%20") for one in p]))), right),
        "addresses": (of_paths(text="https://host/{}"), {}),
        "paths without endings": (of_paths(change=edit(lambda p: p.__setitem__(slice(None), [one[:-4] for one in p]))), {}),
        "the ending .jpg for PNG files": (of_paths("frames/{}.jpg"), right),
        "paths shared by two columns": (of_paths(image_rear=[f"frames/{row}.png" for row in range(STEPS)]), right),
        # Missing and doubled images.
        "an image is missing": (of_paths(change=unlink(5)), {}),
        "the last image is missing": (of_paths(change=unlink(STEPS - 1)), {}),
        "an image of a foreign path is missing": (
            of_paths(text="/home/me/{}", change=lambda f, p: (f / "frames/5.png").unlink()), {}),
        "a path is empty": (of_paths(change=edit(lambda p: p.__setitem__(5, None))), {}),
        "a path is nan": (of_paths(change=edit(lambda p: p.__setitem__(5, "nan"))), {}),
        "an image in two rows": (
            of_paths(change=edit(lambda p: p.__setitem__(5, p[4]))), {"truths": (truth(observation__image=PIXELS[[*range(5), 4, *range(6, STEPS)]]),)}),
        "images that no row names": (of_paths(change=lambda f, p: [(f / f"frames/{n}.png").write_bytes(encoded(PIXELS[0])) for n in range(20, 30)]), right),
        "an image more than rows": (of_paths(change=lambda f, p: (f / "frames/13.png").write_bytes(encoded(PIXELS[0]))), right),
        "an image is empty": (of_paths(change=lambda f, p: (f / p[5]).write_bytes(b"")), {}),
        "an image is cut": (of_paths(change=lambda f, p: (f / p[5]).write_bytes((f / p[5]).read_bytes()[:-30])), {}),
        "an image is a pointer of git-LFS": (of_paths(change=lambda f, p: (f / p[5]).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")), {}),
        "an image is a web page": (of_paths(change=lambda f, p: (f / p[5]).write_text("<html>404</html>")), {}),
        # Size, mode and dtype.
        "an image of another size": (of_paths(change=saved(5, lambda p: p[:8])), {}),
        "an image is turned": (of_paths(change=saved(5, lambda p: p.transpose(1, 0, 2))), {}),
        "an image with alpha": (of_paths(change=saved(5, with_alpha)), {}),
        "a gray image": (of_paths(change=saved(5, lambda p: p[..., 0])), {}),
        "an image of 16 bits": (of_paths(change=saved(5, lambda p: p[..., 0].astype(np.uint16) * 256)), {}),
        "an image with a palette": (
            of_paths(change=saved(5, lambda p: Image.fromarray(p // 64 * 64).quantize(256))),
            {"truths": (truth(observation__image=_with(PIXELS, 5, np.asarray(Image.fromarray(PIXELS[5] // 64 * 64).quantize(256).convert("RGB")))),)}),
        "a JPEG image": (
            of_paths(change=lambda f, p: (f / p[5]).write_bytes(encoded(PIXELS[5], "jpeg"))), {"truths": (truth(observation__image=_with(PIXELS, 5, JPEGS[5])),)}),
        "a BMP image": (of_paths(change=saved(5, lambda p: p, format="bmp")), {}),
        "a GIF image": (of_paths(change=saved(5, lambda p: p, format="gif")), {}),
        "a WebP image": (of_paths(change=saved(5, lambda p: p, format="webp")), {}),
        "all images with alpha": (of_paths(change=every(with_alpha)), {"truths": (truth(observation__image=np.stack([*map(with_alpha, PIXELS)])),)}),
        "all images gray": (of_paths(change=every(lambda p: p[..., 0])), {"truths": (truth(observation__image=gray[..., None]),)}),
        "all images of 16 bits": (
            of_paths(change=every(lambda p: p[..., 0].astype(np.uint16) * 256 + 7)), {"truths": (truth(observation__image=deep[..., None]),)}),
        "all images of 1 bit": (
            of_paths(change=every(lambda p: p[..., 0] > 99)), {"truths": (truth(observation__image=(gray > 99)[..., None] * 255),)}),
        "all images gray with alpha": (
            of_paths(change=every(lambda p: Image.fromarray(p[..., 0]).convert("LA"))),
            {"truths": (truth(observation__image=np.stack([gray, np.full_like(gray, 255)], -1)),)}),
        "CMYK": (of_paths("frames/{}.jpg", change=every(lambda p: Image.fromarray(p).convert("CMYK"), format="jpeg")), {}),
        "EXIF says upside down": (of_paths("frames/{}.jpg", change=turned), {
            "truths": (truth(observation__image=JPEGS),), "counted": ("exif-not-applied",)}),
        "EXIF of an image says upside down": (of_paths("frames/{}.jpg", change=lambda f, p: turned(f, p, 5)), {}),
        "an animated PNG": (
            of_paths(change=saved(5, lambda p: p, save_all=True, append_images=[Image.fromarray(PIXELS[4])])), right),
        # Further files.
        "thumbs beside": (of_paths(change=copied("thumbs")), right),
        "masks beside": (of_paths("rgb/{}.png", change=copied("mask")), right),
        "depth beside": (of_paths("rgb/{}.png", change=copied("depth")), right),
        "depth beside names alone": (
            of_paths("rgb/{}.png", change=lambda f, p: [copied("depth")(f, p), p.__setitem__(slice(None), [one.rpartition("/")[2] for one in p])]), {}),
        "thumbs in place of missing images": (of_paths(change=lambda f, p: [copied("thumbs")(f, p), shutil.rmtree(f / "frames")]), {}),
        "thumbs of names alone in place of missing images": (
            of_paths(change=lambda f, p: [copied("thumbs")(f, p), (f / "frames/5.png").unlink(), p.__setitem__(slice(None), [one.rpartition("/")[2] for one in p])]), {}),
        "thumbs of foreign paths beside": (of_paths(text="C:\\data\\{}", change=copied("thumbs")), by_name),
        "hidden files of macOS": (
            of_paths(change=lambda f, p: [(f / f"frames/._{n}.png").write_bytes(b"\0\5\26\7") for n in range(STEPS)]), right),
        "Thumbs.db": (of_paths(change=lambda f, p: (f / "frames/Thumbs.db").write_bytes(b"x")), right),
        "a further table of labels": (of_paths(change=lambda f, p: (f / "labels.csv").write_text("image,label\n0.png,cat\n")), right),
        "the images of another split": (of_paths(change=copied("test/frames")), right),
        # Columns.
        "a column image_bgr": (of_paths(change=edit(lambda p: None), image_bgr=[f"frames/{row}.png" for row in range(STEPS)]), right),
        "frame numbers": (of_paths(frame=numbers), right),
        "frame numbers from 1": (of_paths(frame=[n + 1 for n in numbers]), right),
        "frame numbers over all rows": (of_paths(frame=np.arange(STEPS)), right),
        "frame numbers in another order": (of_paths(frame=[n if e != 1 else 5 - n for n, e in zip(numbers, NUMBERS, strict=True)]), {}),
        "frame numbers that the names contradict": (of_paths(frame=np.roll(np.arange(STEPS), 1)), {}),
    }  # fmt: skip
    for mutation, (write, arguments) in changes.items():
        yield FileMutant(mutation, "images by path", write, **arguments)
    for kind in ("parquet", "jsonl"):
        for mutation, change, arguments in (
            ("none", lambda f, p: None, right),
            ("an image is missing", unlink(5), {}),
            ("a path is empty", edit(lambda p: p.__setitem__(5, None)), {}),
            ("a gray image", saved(5, lambda p: p[..., 0]), {}),
            ("thumbs beside", copied("thumbs"), right),
        ):
            yield FileMutant(mutation, f"images by path, {kind}", of_paths(change=change, kind=kind), **arguments)


def _with(values: np.ndarray, row: int, value: np.ndarray) -> np.ndarray:
    changed = values.copy()
    changed[row] = value
    return changed


def _renumbered(folder: Path, paths: list[str], more: int) -> None:
    for row in reversed(range(STEPS)):
        path = f"frames/frame_{row + more}.png"
        (folder / paths[row]).rename(folder / path)
        paths[row] = path


def of_folders() -> Iterator[FileMutant]:
    """Yield mutants of folders of images without a column of paths."""
    states = {f"obs_{n}": np.arange(STEPS) * (n + 1.0) for n in range(2)}

    def flat(name: str, **columns: Any) -> Write:
        def write(folder: Path) -> Path:
            write_images(folder, name)
            pd.DataFrame({**TWO, "episode": NUMBERS, **columns}).to_csv(folder / "log.csv", index=False)
            return folder

        return write

    def nested(name: str, **columns: Any) -> Write:
        def write(folder: Path) -> Path:
            for row in range(STEPS):
                path = folder / name.format(episode=NUMBERS[row], frame=WITHIN[row])
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(encoded(PIXELS[row]))
            for number, rows in enumerate(ROWS):
                (folder / f"ep_{number}").mkdir(exist_ok=True)
                own = {name: np.asarray(values)[list(rows)] for name, values in {**TWO, **columns}.items()}
                pd.DataFrame(own).to_csv(folder / f"ep_{number}" / "log.csv", index=False)
            return folder

        return write

    def named(text: str, change: Callable[[Path], Any] = lambda folder: None) -> Write:
        """Return a writer of a table of names of images in the folder of each episode."""

        def write(folder: Path) -> Path:
            for number, rows in enumerate(ROWS):
                (folder / f"ep_{number}").mkdir()
                own = {name: values[list(rows)] for name, values in TWO.items()}
                names = [f"{WITHIN[row]}.png" for row in rows]
                for row, name in zip(rows, names, strict=True):
                    (folder / f"ep_{number}" / name).write_bytes(encoded(PIXELS[row]))
                own["image"] = np.array([text.format(episode=number, name=name) for name in names])
                pd.DataFrame(own).to_csv(folder / f"ep_{number}" / "log.csv", index=False)
            change(folder)
            return folder

        return write

    by_name = ("image-by-name",)
    layout = "folders of episodes with images"
    yield FileMutant("names", layout, named("{name}"), RIGHT)
    yield FileMutant("paths of another machine", layout, named("/data/ep_{episode}/{name}"), RIGHT, by_name)
    yield FileMutant("paths below the folder of all", layout, named("ep_{episode}/{name}"), RIGHT, by_name)
    yield FileMutant("paths of another episode", layout, named("/data/ep_7/{name}"), RIGHT, by_name)
    for text in ("{name}", "/data/ep_{episode}/{name}", "ep_{episode}/{name}"):
        missing = named(text, lambda folder: (folder / "ep_1/2.png").unlink())
        yield FileMutant(f"{text}, an image is missing", layout, missing)
        moved = named(text, lambda folder: (folder / "ep_1/2.png").rename(folder / "ep_2/2.png"))
        yield FileMutant(f"{text}, an image is in another folder", layout, moved)
    # A table with states beside images that no row names: the images must not be left out without a word.
    yield FileMutant("images without a column of paths", "folders of images", flat("frames/{}.png"), RIGHT)
    yield FileMutant("images beside states", "folders of images", flat("frames/{}.png", **states), ())
    yield FileMutant(
        "images beside states and frame numbers",
        "folders of images",
        flat("frames/{}.png", frame=np.arange(STEPS), **states),
        (),
    )
    yield FileMutant("a plot beside states", "folders of images", _with_plot(states), (
        Truth(LENGTHS, {"action": ACTION, "observation": np.column_stack([*states.values()])}),
    ))  # fmt: skip
    yield FileMutant("folders of episodes", "folders of images", nested("ep_{episode}/{frame}.png"), RIGHT)
    yield FileMutant(
        "folders of episodes, beside states", "folders of images", nested("ep_{episode}/{frame}.png", **states), ()
    )
    yield FileMutant(
        "folders of episodes, rgb", "folders of images", nested("ep_{episode}/rgb/{frame}.png", **states), ()
    )


def _with_plot(states: Mapping[str, Any]) -> Write:
    def write(folder: Path) -> Path:
        (folder / "plot.png").write_bytes(encoded(PIXELS[0]))
        pd.DataFrame({**TWO, "episode": NUMBERS, **states}).to_csv(folder / "log.csv", index=False)
        return folder

    return write


def filmed(
    videos: Mapping[str, Sequence[int]], tables: Mapping[str, Sequence[int]] | None = None, **columns: Any
) -> Write:
    """Return a writer of videos of rows and of tables of rows."""

    def write(folder: Path) -> Path:
        for name, rows in videos.items():
            video(folder / name, rows, flip="depth" in name or "rear" in name)
        for name, rows in (tables or {"log.csv": range(STEPS)}).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            own = {column: np.asarray(values)[list(rows)] for column, values in {**TWO, **columns}.items()}
            pd.DataFrame(own).to_csv(folder / name, index=False)
        return folder

    return write


def of_videos() -> Iterator[FileMutant]:
    """Yield mutants of videos beside tables."""
    shown = truth(loss=3, observation__image=VIDEO_FRAMES)
    right: dict[str, Any] = {"truths": (shown,)}
    marks = {"episode": NUMBERS, "frame_index": WITHIN}
    three = {f"{number}.mp4": list(rows) for number, rows in enumerate(ROWS)}
    all_rows = [*range(STEPS)]
    states = {"obs_0": np.arange(STEPS) * 1.0, "obs_1": np.arange(STEPS) * 2.0}
    of_each = {f"ep_{n}.csv": rows for n, rows in enumerate(ROWS)}
    by_name = {f"ep_{n}.mp4": list(rows) for n, rows in enumerate(ROWS)}

    def more(videos: Mapping[str, list[int]], name: str, rows: list[int]) -> dict[str, list[int]]:
        return {**videos, name: rows}

    cases: dict[str, tuple[Write, dict[str, Any]]] = {
        "none": (filmed(three, **marks), right),
        "one frame more": (filmed(more(three, "1.mp4", [*ROWS[1], 10]), **marks), {}),
        "one frame less": (filmed(more(three, "1.mp4", [*ROWS[1]][:-1]), **marks), {}),
        "a frame moved to the next video": (filmed({"0.mp4": [*range(5)], "1.mp4": [*range(5, 10)], "2.mp4": [*ROWS[2]]}, **marks), {}),
        "a video is missing": (filmed({k: v for k, v in three.items() if k != "1.mp4"}, **marks), {}),
        "a video more": (filmed(more(three, "3.mp4", [0, 1, 2]), **marks), {}),
        "videos from 1": (filmed({f"{n + 1}.mp4": list(rows) for n, rows in enumerate(ROWS)}, **marks), {}),
        "videos from 1, episodes from 1": (filmed({f"{n + 1}.mp4": list(rows) for n, rows in enumerate(ROWS)}, episode=NUMBERS + 1, frame_index=WITHIN), right),
        "videos with gaps, and their episodes": (
            filmed({f"{n}.mp4": list(rows) for n, rows in zip((2, 9, 10), ROWS, strict=True)}, episode=np.array([2, 9, 10])[NUMBERS], frame_index=WITHIN), right),
        "videos with zeros": (filmed({f"ep_{n:03}.mp4": list(rows) for n, rows in enumerate(ROWS)}, **marks), right),
        "videos named by two numbers": (filmed({f"{n}_2026.mp4": list(rows) for n, rows in enumerate(ROWS)}, **marks), {}),
        "frame numbers from 1": (filmed(three, episode=NUMBERS, frame_index=WITHIN + 1), right),
        "frame numbers from 2": (filmed(three, episode=NUMBERS, frame_index=WITHIN + 2), {}),
        "a frame number is skipped": (filmed(three, episode=NUMBERS, frame_index=WITHIN + (np.arange(STEPS) == 9)), {}),
        "frame numbers by 2": (filmed(three, episode=NUMBERS, frame_index=WITHIN * 2), {}),
        "episodes of the same lengths exchanged": (
            filmed({"0.mp4": list(ROWS[0]), "1.mp4": list(ROWS[1]), "2.mp4": list(ROWS[2])}, episode=np.array([0, 2, 1])[NUMBERS], frame_index=WITHIN), {}),
        "no frame numbers": (filmed(three, episode=NUMBERS), right),
        "no frame numbers, beside states": (filmed(three, episode=NUMBERS, **states), {
            "truths": (truth(loss=3, observation__image=VIDEO_FRAMES, observation__state=np.column_stack([*states.values()])),)}),
        "no frame numbers, beside states, one frame more": (filmed(more(three, "1.mp4", [*ROWS[1], 10]), episode=NUMBERS, **states), {}),
        "no frame numbers, beside states, videos from 1": (filmed({f"{n + 1}.mp4": list(rows) for n, rows in enumerate(ROWS)}, episode=NUMBERS, **states), {}),
        "no frame numbers, beside states, one video of all rows and one frame more": (
            filmed({"camera.mp4": [*all_rows, 12]}, episode=NUMBERS, **states), {}),
        "one video": (filmed({"camera.mp4": all_rows}, episode=NUMBERS, frame=np.arange(STEPS)), right),
        "one video, one frame more": (filmed({"camera.mp4": [*all_rows, 12]}, episode=NUMBERS, frame=np.arange(STEPS)), {}),
        "one video, one frame less": (filmed({"camera.mp4": all_rows[:-1]}, episode=NUMBERS, frame=np.arange(STEPS)), {}),
        "one video, depth beside": (
            filmed({"camera.mp4": all_rows, "depth.mp4": all_rows}, episode=NUMBERS, frame=np.arange(STEPS)),
            {"truths": (Truth(LENGTHS, {"observation.image.camera": VIDEO_FRAMES, "observation.image.depth": 255 - VIDEO_FRAMES, "action": ACTION}, loss=4),)}),
        "one video, a preview beside": (filmed({"camera.mp4": all_rows, "preview.mp4": [0, 5]}, episode=NUMBERS, frame=np.arange(STEPS)), {}),
        "a hidden video beside": (_and(filmed(three, **marks), lambda f: (f / "._0.mp4").write_bytes(b"\0\5\26\7")), right),
        "a video is cut": (_and(filmed(three, **marks), lambda f: (f / "1.mp4").write_bytes((f / "1.mp4").read_bytes()[:-200])), {}),
        "a video is empty": (_and(filmed(three, **marks), lambda f: (f / "1.mp4").write_bytes(b"")), {}),
        "a video beside each table": (filmed(by_name, of_each, frame=WITHIN), right),
        "a video beside each table, one is missing": (filmed({k: v for k, v in by_name.items() if "1" not in k}, of_each, frame=WITHIN), {}),
        "a video beside each table, one is missing, beside states": (
            filmed({k: v for k, v in by_name.items() if "1" not in k}, of_each, frame=WITHIN, **states), {}),
        "a video beside each table, of other names": (
            filmed({f"video_{n}.mp4": list(rows) for n, rows in enumerate(ROWS)}, of_each, frame=WITHIN, **states), {}),
        "a video beside each table, without frame numbers, one frame more": (filmed(more(by_name, "ep_1.mp4", [*ROWS[1], 10]), of_each), {}),
        "videos in folders of episodes": (
            filmed({f"ep_{n}/camera.mp4": list(rows) for n, rows in enumerate(ROWS)}, {f"ep_{n}/log.csv": rows for n, rows in enumerate(ROWS)}, frame=WITHIN), right),
        "videos in folders of episodes with gaps": (
            filmed({f"ep_{n}/camera.mp4": list(rows) for n, rows in zip((2, 9, 10), ROWS, strict=True)},
                   {f"ep_{n}/log.csv": rows for n, rows in zip((2, 9, 10), ROWS, strict=True)}, frame=WITHIN), right),
        "videos in folders of episodes, two of one name": (
            filmed({**{f"ep_{n}/camera.mp4": list(rows) for n, rows in enumerate(ROWS)}, "ep_1/rear.mp4": list(ROWS[1])},
                   {f"ep_{n}/log.csv": rows for n, rows in enumerate(ROWS)}, frame=WITHIN), {}),
        "paths of videos": (filmed(three, **marks, video=np.array([f"{n}.mp4" for n in NUMBERS])), right),
        "paths of videos, exchanged": (filmed(three, **marks, video=np.array([f"{(1, 0, 2)[n]}.mp4" for n in NUMBERS])), {}),
        "paths of videos, one is missing": (filmed(three, **marks, video=np.array([f"{n + (n == 2)}.mp4" for n in NUMBERS])), {}),
        "paths of videos, rows alternate": (
            filmed(three, **marks, video=np.array([f"{n}.mp4" for n in np.roll(NUMBERS, 1)])), {}),
    }  # fmt: skip
    for mutation, (write, arguments) in cases.items():
        yield FileMutant(mutation, "videos beside tables", write, **arguments)


def _and(write: Write, change: Callable[[Path], Any]) -> Write:
    def both(folder: Path) -> Path:
        path = write(folder)
        change(folder)
        return path

    return both


def of_image_columns() -> Iterator[FileMutant]:
    """Yield mutants of Parquet files with encoded images."""

    def column(images: Sequence[Any], *, struct: bool = False) -> Write:
        def write(folder: Path) -> Path:
            cells = [{"bytes": one, "path": f"{n}.png"} for n, one in enumerate(images)] if struct else [*images]
            table = pa.table({"image": pa.array(cells), "episode": NUMBERS, "action": ACTION.tolist()})
            parquet.write_table(table, folder / "data.parquet")
            return folder / "data.parquet"

        return write

    own = [encoded(pixels) for pixels in PIXELS]

    def other(make: Callable[[np.ndarray], Any], kind: str = "png") -> list[Any]:
        return [make(PIXELS[5]) if row == 5 else one for row, one in enumerate(own)]

    gray = other(lambda p: encoded(p[..., 0]))
    cases: dict[str, tuple[list[Any], tuple[Truth, ...]]] = {
        "none": (own, RIGHT),
        "a null": (other(lambda p: None), ()),
        "an empty image": (other(lambda p: b""), ()),
        "a gray image": (gray, ()),
        "an image with alpha": (other(lambda p: encoded(with_alpha(p))), ()),
        "an image of another size": (other(lambda p: encoded(p[:8])), ()),
        "an image is cut": (other(lambda p: encoded(p)[:-30]), ()),
        "a JPEG image": (other(lambda p: encoded(p, "jpeg")), (truth(observation__image=_with(PIXELS, 5, JPEGS[5])),)),
        "a BMP image": (other(_bmp), ()),
        "the first image is gray": ([encoded(PIXELS[0][..., 0]), *own[1:]], ()),
        "all images of 16 bits": (
            [encoded(p[..., 0].astype(np.uint16) * 256) for p in PIXELS],
            (truth(observation__image=PIXELS[..., :1].astype(np.uint16) * 256),),
        ),
        "pixels as bytes": ([p.tobytes() for p in PIXELS], ()),
        "pixels as lists": ([p.tolist() for p in PIXELS], RIGHT),
        "pixels as lists, one shorter": (other(lambda p: None) and [
            (p[:8] if row == 5 else p).tolist() for row, p in enumerate(PIXELS)
        ], ()),
    }  # fmt: skip
    for mutation, (images, truths) in cases.items():
        yield FileMutant(mutation, "image column", column(images), truths)
        if isinstance(images[0], bytes):
            named = tuple(
                Truth(one.lengths, {k.replace(".image", ".image.bytes"): v for k, v in one.columns.items()})
                for one in truths
            )
            yield FileMutant(mutation, "image column of Hugging Face", column(images, struct=True), (*truths, *named))


def _bmp(pixels: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "bmp")
    return stream.getvalue()


def of_tubs() -> Iterator[FileMutant]:
    """Yield mutants of Donkeycar's tubs."""
    right = (truth(observation__image=JPEGS),)

    def changed(change: Callable[[list[dict[str, Any]]], Any], **options: Any) -> Write:
        def write(folder: Path) -> Path:
            rows = tub_rows()
            change(rows)
            return write_tub(folder, rows, **options)

        return write

    def some(rows: Sequence[int], lengths: Sequence[int]) -> tuple[Truth, ...]:
        return (truth([*rows], lengths, observation__image=JPEGS[[*rows]]),)

    less = [*range(5), *range(6, STEPS)]
    cases: dict[str, tuple[Write, dict[str, Any]]] = {
        "none": (write_tub, {"truths": right}),
        "catalogs of 1 row, to catalog_12": (lambda folder: write_tub(folder, size=1), {"truths": right}),
        "a deleted row": (lambda folder: write_tub(folder, deleted=(5,)), {
            "truths": some(less, [4, 1, 4, 3]), "counted": ("deleted-rows",)}),
        "an index is missing": (changed(lambda rows: rows.pop(5)), {"truths": some(less, [4, 1, 4, 3]), "counted": ("session-split",)}),
        "an index twice": (changed(lambda rows: rows.insert(5, rows[5])), {}),
        "rows in another order": (changed(lambda rows: rows.reverse()), {}),
        "a row without image": (changed(lambda rows: rows[5].pop("cam/image_array")), {}),
        "a row without angle": (changed(lambda rows: rows[5].pop("user/angle")), {}),
        "a session returns": (changed(lambda rows: [row.update(_session_id="21-06-01_0") for row in rows[10:]]), {}),
        "an image is missing": (_and(write_tub, lambda f: (f / "images/5_cam_image_array_.jpg").unlink()), {}),
        "an image more": (_and(write_tub, lambda f: (f / "images/99_cam_image_array_.jpg").write_bytes(encoded(PIXELS[0], "jpeg"))), {"truths": right}),
        "a gray image": (_and(write_tub, lambda f: (f / "images/5_cam_image_array_.jpg").write_bytes(encoded(PIXELS[5][..., 0], "jpeg"))), {}),
        "thumbs beside": (_and(write_tub, lambda f: shutil.copytree(f / "images", f / "thumbs")), {"truths": right}),
        "a catalog is missing": (_and(write_tub, lambda f: (f / "catalog_1.catalog").unlink()), {}),
        "a catalog is cut": (_and(write_tub, lambda f: (f / "catalog_1.catalog").write_bytes((f / "catalog_1.catalog").read_bytes()[:-30])), {}),
        "a catalog has a row less": (_and(write_tub, lambda f: (f / "catalog_1.catalog").write_text("".join(
            (f / "catalog_1.catalog").read_text().splitlines(keepends=True)[:-1]))), {}),
        "a further catalog": (_and(write_tub, lambda f: shutil.copy(f / "catalog_1.catalog", f / "catalog_9.catalog")), {}),
    }  # fmt: skip
    for mutation, (write, arguments) in cases.items():
        yield FileMutant(mutation, "tub", write, **arguments)

    by_file = '[episodes]\nby = "file"'
    record = "tub_1_21-06-01/record_{}.json"
    records: dict[str, tuple[Write, dict[str, Any]]] = {
        "none": (write_records, {"truths": right}),
        "a record is missing": (_and(write_records, lambda f: (f / record.format(3)).unlink()), {
            "truths": some([*range(7), *range(8, STEPS)], [4, 5, 3]), "counted": ("missing-records",)}),
        "the last record is missing": (_and(write_records, lambda f: (f / record.format(5)).unlink()), {
            "truths": some([*range(9), *range(10, STEPS)], [4, 5, 3])}),
        "records from 1": (_and(write_records, lambda f: [
            (f / record.format(n)).rename(f / record.format(n + 1)) for n in reversed(range(6))]), {"truths": right}),
        "records without zeros, 7 to 12": (_and(write_records, lambda f: [
            (f / record.format(n)).rename(f / record.format(n + 7)) for n in reversed(range(6))]), {"truths": right}),
        "a record is cut": (_and(write_records, lambda f: (f / record.format(3)).write_text("{")), {}),
        "a record names the image of another": (_and(write_records, lambda f: _reimaged(f / record.format(3))), {
            "truths": (truth(observation__image=_with(JPEGS, 7, JPEGS[6])),)}),
        "a copy of a record": (_and(write_records, lambda f: shutil.copy(
            f / record.format(3), f / "tub_1_21-06-01/record_3 (1).json")), {"truths": right}),
    }  # fmt: skip
    for mutation, (write, arguments) in records.items():
        yield FileMutant(mutation, "tubs of version 1", write, toml=by_file, **arguments)


def _reimaged(path: Path) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), "cam/image_array": "2_cam-image_array_.jpg"}))


def of_logs() -> Iterator[FileMutant]:
    """Yield mutants of driving logs."""
    by = '[episodes]\nby = "column"\narray = "recording"'
    keys = {f"observation.{camera}": np.roll(JPEGS, -n, axis=0) for n, camera in enumerate(("center", "left", "right"))}
    right = Truth(LENGTHS, {**keys, "action": CONTROLS})

    def lines(change: Callable[[list[str]], Any], *, header: bool = False) -> Write:
        def edit(folder: Path) -> None:
            kept = (folder / "driving_log.csv").read_text().splitlines()
            change(kept)
            (folder / "driving_log.csv").write_text("".join(f"{line}\n" for line in kept))

        return _and(driving_log(header=header), edit)

    def columns(kept: list[str], order: Sequence[int]) -> None:
        kept[:] = [",".join(line.split(",")[n] for n in order) for line in kept]

    def dropped(kept: list[str]) -> None:
        del kept[6]

    less = [*range(6), *range(7, STEPS)]
    shorter = Truth([4, 5, 3], {name: values[less] for name, values in right.columns.items()})
    cases: dict[str, tuple[Write, Sequence[Truth]]] = {
        "none": (driving_log(), (right,)),
        "a header, and other order of the columns": (
            lines(lambda kept: columns(kept, [6, 3, 4, 5, 0, 1, 2]), header=True), (right,)),
        "no header, and other order of the columns": (lines(lambda kept: columns(kept, [6, 3, 4, 5, 0, 1, 2])), ()),
        "no header, and no speed": (lines(lambda kept: columns(kept, [0, 1, 2, 3, 4, 5])), ()),
        "a row is missing": (lines(dropped), (shorter,)),
        "rows in another order": (lines(lambda kept: kept.reverse()), ()),
        "two rows exchanged": (lines(lambda kept: kept.insert(5, kept.pop(6))), ()),
        "an image is missing": (_and(driving_log(), lambda f: next((f / "IMG").glob("left*")).unlink()), ()),
        "a gray image": (_and(driving_log(), lambda f: next((f / "IMG").glob("left*")).write_bytes(encoded(PIXELS[0][..., 0], "jpeg"))), ()),
        "decimal commas": (lines(lambda kept: kept.__setitem__(3, kept[3].replace("0.", '"0,5"', 1))), ()),
        "an older log beside": (_and(driving_log(), lambda f: shutil.copy(f / "driving_log.csv", f / "driving_log_old.csv")), (right,)),
        "a second log in a folder": (_and(driving_log(), lambda f: shutil.copytree(f, f.parent / "x") and shutil.move(f.parent / "x", f / "backup")), ()),
    }  # fmt: skip
    for mutation, (write, truths) in cases.items():
        counted = ("time-not-later",) if mutation == "two rows exchanged" else ()
        yield FileMutant(mutation, "driving log", write, truths, counted, toml=by)


def mutants() -> Iterator[FileMutant]:
    """Yield all mutants of images."""
    yield from of_images_by_path()
    yield from of_folders()
    yield from of_image_columns()
    yield from of_videos()
    yield from of_tubs()
    yield from of_logs()
