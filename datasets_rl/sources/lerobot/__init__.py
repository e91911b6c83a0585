"""LeRobot: robots on the Hugging Face hub, ``lerobot/USER/NAME``, in versions 2.0, 2.1 and 3.0 of the layout.

    meta/info.json                  the features, the frame rate, and templates of the paths
    data/...parquet                 a row per frame: states, actions, and images as PNG
    videos/...mp4                   a file per camera and episode, or per camera and many episodes

The files are read directly: neither lerobot nor the library of datasets is imported, and nothing is converted between
versions first.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from datasets_rl.errors import (
    Argument,
    ConversionError,
    FetchError,
    InvalidArgumentError,
    OfflineError,
    Remedy,
    UnknownIdError,
    join_names,
)
from datasets_rl.read.streams import first_problems
from datasets_rl.sources.base import Entry, Listing, Selection, Shard, Source, by_images, group_by_size
from datasets_rl.sources.lerobot.layout import NO_FILES, Feature, Info, keys_of, read_info
from datasets_rl.sources.selection import IMAGES, MIN_RATIO, Option, read_numbers
from datasets_rl.ted.keys import NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, Key, dotted_name

if TYPE_CHECKING:
    from datasets_rl.fetch.asset import Asset, Folder
    from datasets_rl.fetch.upstream import Upstream
    from datasets_rl.sources.address_files import AddressFiles

__all__ = ["SOURCE", "LeRobot"]

_ID = re.compile(r"[A-Za-z0-9][-\w.]*/[A-Za-z0-9][-\w.]*", re.ASCII)
_SIZE = re.compile(r"([1-9]\d{0,4})(?:x([1-9]\d{0,4}))?", re.ASCII)
_LICENSE = re.compile(r"^license:\s*(\S+)", re.MULTILINE)
_INFO = "meta/info.json"
_MODALITY = "meta/modality.json"
_ALWAYS = frozenset({NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED})
_SHARD_BYTES = 64 << 20
_ROW_BYTES = 100  # of everything except images, to estimate sizes
_JPEG = 0.15  # assumed bytes per byte of pixels, at the default quality
_QUALITY = "95"
_READ_NANOSECONDS = {"encoded": 1.6, "raw": 0.3, "compressed": 1.0, "video": 6.0}
"""Measured time of a core to read a byte of pixels in a random row: of videos, with every second frame a key frame."""


class LeRobot(Source):
    """Source of every dataset repository with meta/info.json. The catalog lists a few repositories."""

    name = "lerobot"
    reader = "datasets_rl.sources.lerobot.reader:LeRobotReader"
    restated = frozenset({"license"})
    selects = frozenset({"episodes"})
    image_forms = (*IMAGES.choices, "video")
    options = (
        Option("revision", "Branch, tag or commit of a dataset on the hub."),
        Option("quality", "Quality of the JPEG images that frames of videos become, 1 to 100.", _QUALITY),
        Option("image-size", "Rows and columns that frames of videos are resized to: 224, or 240x320."),
    )

    @override
    def listed_facts(self, name: str) -> dict[str, Any]:
        if not _ID.fullmatch(name):
            raise UnknownIdError(f"{self.name}/{name}", known=f"datasets of the hub, expected {self.name}/USER/NAME")
        return dict(self.catalog["ids"].get(name, {}))

    @override
    def addresses(self, name: str) -> Sequence[str]:
        return (f"hf://datasets/{name}",)

    @override
    def check(self, selection: Selection) -> None:
        super().check(selection)
        options = selection.options
        problems = []
        if "/" in options.get("revision", ""):
            problems.append(f"revision is {options['revision']!r}, expected a name without '/', such as a commit")
        quality = options.get("quality") or _QUALITY
        if not (quality.isdecimal() and 1 <= int(quality) <= 100):
            problems.append(f"quality is {quality!r}, expected an integer from 1 to 100")
        if (size := options.get("image-size")) and not _SIZE.fullmatch(size):
            problems.append(f"image-size is {size!r}, expected 224, or rows and columns, 240x320")
        elif size and options.get(IMAGES.name) == "video":
            problems.append(f"image-size is {size!r}, but videos that stay videos keep the size")
        if problems:
            raise InvalidArgumentError("; ".join(problems))

    @override
    def resolve(self, name: str, selection: Selection, upstream: Upstream) -> Listing:
        revision = selection.options.get("revision", "")
        try:
            folder = upstream.folder(name, [f"hf://datasets/{name}{f'@{revision}' if revision else ''}"])
        except FetchError as error:
            refused = any(url.startswith("hf:") for url, _ in error.failures)
            if refused and not isinstance(error, OfflineError) and not error.unreached:
                error.hint = "check the name and the revision. A private or gated dataset needs a token: set HF_TOKEN"
            raise
        return self.resolve_files(self.entry(name), folder, selection, upstream)

    @override
    def recognize(self, files: AddressFiles) -> str:
        if _INFO in files.paths and files.size_of(_INFO) == 0 and "dataset.toml" not in files.paths:
            return f"{_INFO} is there, and is empty"  # the tables alone would be read without the videos
        info = files.document(_INFO)
        if not {"codebase_version", "features"} <= info.keys():
            return ""
        return f"{_INFO} has features, and codebase_version {info['codebase_version']}"

    @override
    def resolve_files(self, entry: Entry, folder: Folder, selection: Selection, upstream: Upstream) -> Listing:
        inside = _files_by_path(folder, entry.name)
        if _INFO not in inside:
            names = ", ".join(sorted(inside)[:5])
            raise ConversionError(entry.id, [f"it has no {_INFO}. The first files are {names}"])
        _check_sizes(inside, entry)
        info = read_info(upstream.text(inside[_INFO]), entry.id)
        tables = _tables(info, inside, entry)
        kept = selection.kept_keys(keys_of(info))
        absent = _unused_cameras(info, kept, inside, upstream)
        info = info.without(absent, NO_FILES)
        cameras = [one.name for one in _cameras(info) if one.key in kept]
        if cameras:
            from datasets_rl.read.video import check_installed

            check_installed(f"decoding the videos of {', '.join(cameras)}, unless only other keys are selected,")
        if info.many:
            episodes = _episodes_by_table(tables["episodes"], upstream, info, cameras, entry)
        else:
            episodes = [*_episodes_by_lines(upstream.text(tables["episodes"][0]), info, cameras, entry)]
        _locate(episodes, inside, info)
        chosen = [episodes[number] for number in read_numbers(selection.episodes, len(episodes))]
        _check_files(chosen, inside, entry, info, kept)
        common = [inside[_INFO], *(asset for assets in tables.values() for asset in assets)]
        common += [inside[_MODALITY]] if _MODALITY in inside else []
        if "README.md" in inside:
            found = _LICENSE.search(upstream.text(inside["README.md"]))
            entry = replace(entry, license=found[1] if found else entry.license)
            common.append(inside["README.md"])
        shards = tuple(_shards(chosen, episodes, inside))
        paths = dict.fromkeys(path for shard in shards for path in shard.paths)
        by_path = {asset.path: asset for asset in inside.values()}
        rows = sum(episode["rows"] for episode in chosen)
        videos = {video["path"] for episode in chosen for video in episode["videos"].values()}
        video_bytes = sum(inside[path].size or 0 for path in videos)
        size = selection.options.get("image-size", "")
        return Listing(
            (*common, *(_as_kind(by_path[path]) for path in paths)),
            shards,
            common=tuple(asset.path for asset in common),
            params={
                "info": inside[_INFO].path,
                "tasks": [asset.path for asset in tables["tasks"]],
                "stats": [asset.path for asset in tables["stats"]],
                "absent": absent,
                "images": selection.options.get(IMAGES.name, ""),
                "quality": int(selection.options.get("quality") or _QUALITY),
                "size": _parse_size(size) if size else None,
            },
            entry=entry,
            revision=folder.revision,
            # An episode with a video that does not fit the table is left out.
            steps=None if cameras else rows,
            keys=keys_of(info),
            stored_bytes=_stored_bytes(rows, info, kept, selection, video_bytes),
            read_seconds=_read_seconds(info, kept, selection, has_videos=bool(videos)),
        )


def _files_by_path(folder: Folder, name: str) -> dict[str, Asset]:
    """Return the files by path in the repository."""
    return {asset.path.removeprefix(f"{name}/"): asset for asset in folder.assets}


def _check_sizes(inside: Mapping[str, Asset], entry: Entry) -> None:
    """Refuse empty files in meta, which are placeholders of files that were not copied."""
    tables = (_INFO, "meta/episodes.jsonl", "meta/tasks.jsonl", "meta/tasks.parquet")
    empty = [path for path, asset in inside.items() if asset.size == 0 and path.startswith(("meta/episodes/", *tables))]
    if empty:
        raise ConversionError(
            entry.id,
            [f"{path} is empty (0 bytes)" for path in sorted(empty)],
            hint="copy the files again. In a git repository whose files are stored with git-LFS, `git lfs pull` fetches them",
        )


def _unused_cameras(info: Info, kept: Collection[Key], inside: Mapping[str, Asset], upstream: Upstream) -> list[str]:
    """Return the cameras that have no file and that meta/modality.json, the list of fields of GR00T, does not name.

    Without such a list, a camera without files may be a part that was not copied, which `_check_files` refuses.
    """
    if _MODALITY not in inside:
        return []
    try:
        videos = json.loads(upstream.text(inside[_MODALITY]))["video"].items()
        used = {str(one.get("original_key", f"observation.images.{name}")) for name, one in videos}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return []  # the list is GR00T's, and nothing is read by the list
    unnamed = [one.name for one in _cameras(info) if one.key in kept and one.name not in used]
    paths = [path.split("/") for path in inside if path.endswith(".mp4")]
    return [name for name in unnamed if not any(name in parts for parts in paths)]


def _cameras(info: Info) -> list[Feature]:
    return [feature for feature in info.features.values() if feature.kind == "video"]


def _locate(episodes: Sequence[dict[str, Any]], inside: Mapping[str, Asset], info: Info) -> None:
    """Replace each path without a file by the path of the only file of the same name, and count the paths as elsewhere.

    videos/KEY/file-000.mp4 is the same name as video/KEY/file-000.mp4. If names of files have the number of the episode,
    a folder chunk-004 in place of chunk-000 is the same name, too.
    """
    templates = [str(info.described.get(name)) for name in ("data_path", "video_path")]
    has_number = not info.many and all("{episode_index" in one.rpartition("/")[2] for one in templates if "/" in one)

    def name_of(path: str) -> str:
        path = re.sub(r"^video/", "videos/", path)
        return re.sub(r"/chunk-\d+/", "/", path) if has_number else path

    places = [
        (episode, holder, name)
        for episode in episodes
        for holder, name in ((episode, "data"), *((video, "path") for video in episode["videos"].values()))
        if holder[name] not in inside
    ]
    by_name: dict[str, list[str]] = {}
    for path in inside if places else ():
        by_name.setdefault(name_of(path), []).append(path)
    for episode, holder, name in places:
        if len(found := by_name.get(name_of(holder[name]), [])) == 1:
            holder[name] = found[0]
            episode["elsewhere"] = episode.get("elsewhere", 0) + 1


def _as_kind(asset: Asset) -> Asset:
    if asset.path.endswith(".parquet"):
        return replace(asset, magic=b"PAR1", kind="Parquet")
    return replace(asset, kind="video")


def _parse_size(text: str) -> list[int]:
    rows, _, columns = text.partition("x")
    return [int(rows), int(columns or rows)]


def _tables(info: Info, inside: Mapping[str, Asset], entry: Entry) -> dict[str, list[Asset]]:
    """Return the files of the episodes, the tasks and the statistics."""
    if info.many:
        names = sorted(path for path in inside if path.startswith("meta/episodes/") and path.endswith(".parquet"))
        found = {"episodes": names, "tasks": ["meta/tasks.parquet"]}
    else:
        found = {"episodes": ["meta/episodes.jsonl"], "tasks": ["meta/tasks.jsonl"]}
    found["tasks"] = found["tasks"] if "task_index" in info.features else []
    missing = [path for path in (*found["episodes"], *found["tasks"]) if path not in inside]
    if missing or not found["episodes"]:
        lacks = ", ".join(missing) or "files in meta/episodes"
        raise ConversionError(entry.id, [f"it lacks {lacks}, which version {info.version} has"])
    stats = [path for path in ("meta/stats.json", "meta/episodes_stats.jsonl") if path in inside][:1]
    return {
        name: [_as_kind(inside[path]) if path.endswith(".parquet") else inside[path] for path in paths]
        for name, paths in {**found, "stats": stats}.items()
    }


def _episodes_by_lines(text: str, info: Info, cameras: Sequence[str], entry: Entry) -> Iterator[dict[str, Any]]:
    """Yield the number, the number of rows and the files of each episode, by meta/episodes.jsonl."""
    try:
        lines = [json.loads(line) for line in text.splitlines() if line.strip()]
        lengths = {int(line["episode_index"]): int(line["length"]) for line in lines}
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        problem = f"meta/episodes.jsonl does not list episodes: {type(error).__name__} {error}"
        raise ConversionError(entry.id, [problem]) from error
    _check_numbers([*lengths], len(lines), entry)
    for number, rows in sorted(lengths.items()):
        chunk = info.chunk_of(number)
        fields = {"episode_chunk": chunk, "chunk_index": chunk, "episode_index": number}
        yield {
            "number": number,
            "rows": rows,
            "data": info.path("data_path", **fields),
            "videos": {camera: {"path": info.path("video_path", video_key=camera, **fields)} for camera in cameras},
        }


def _episodes_by_table(
    tables: Sequence[Asset], upstream: Upstream, info: Info, cameras: Sequence[str], entry: Entry
) -> list[dict[str, Any]]:
    """Return the same by meta/episodes, with the times at which an episode begins and ends in the videos."""
    import numpy as np

    from datasets_rl.read.parquet import TableFile

    names = ["episode_index", "length", "data/chunk_index", "data/file_index"]
    for camera in cameras:
        places = ("chunk_index", "file_index", "from_timestamp", "to_timestamp")
        names += [f"videos/{camera}/{place}" for place in places]
    found: list[dict[str, Any]] = []
    for table in tables:
        with TableFile(upstream.file(table)) as file:
            for block in file.blocks(names, rows=1 << 16):
                columns = {name: values.tolist() for name, values in block.items() if isinstance(values, np.ndarray)}
                if odd := [name for name in names if name not in columns]:
                    raise ConversionError(entry.id, [f"{table.path}: {', '.join(odd)} has no numbers"])
                found += [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    _check_numbers([row["episode_index"] for row in found], len(found), entry)
    try:
        episodes = [
            _described_episode(row, info, cameras) for row in sorted(found, key=lambda row: int(row["episode_index"]))
        ]
    except (ValueError, OverflowError) as error:
        problem = f"meta/episodes has an episode without files: {error}"
        raise ConversionError(entry.id, [problem]) from error
    _compare_spans(episodes, info.fps)
    return episodes


def _described_episode(row: Mapping[str, Any], info: Info, cameras: Sequence[str]) -> dict[str, Any]:
    """Return the number, the number of rows and the files of an episode, by the row of meta/episodes.

    Raises:
        ValueError, OverflowError: If a value is not a number.
    """

    def path_of(template: str, columns: str, **fields: str) -> str:
        places = {place: int(row[f"{columns}/{place}"]) for place in ("chunk_index", "file_index")}
        return info.path(template, **places, **fields)

    videos = {}
    for camera in cameras:
        columns = f"videos/{camera}"
        times = [float(row[f"{columns}/{place}"]) for place in ("from_timestamp", "to_timestamp")]
        if not all(map(math.isfinite, times)):
            raise ValueError(f"the times of episode {row['episode_index']} in {camera} are {times}")
        videos[camera] = {"path": path_of("video_path", columns, video_key=camera), "start": times[0], "stop": times[1]}
    data = path_of("data_path", "data")
    return {"number": int(row["episode_index"]), "rows": int(row["length"]), "data": data, "videos": videos}


def _compare_spans(episodes: Sequence[Mapping[str, Any]], fps: float) -> None:
    """Add to each video of an episode another episode with the same frames, and whether the video is the last of the file.

    Times are computed from frames, and differ from frames by rounding: half a frame is not an overlap. A span of
    another length than of the rows are wrong by themselves.
    """
    spans: dict[tuple[str, str], list[tuple[dict[str, Any], int, bool]]] = {}
    for episode in episodes:
        for camera, video in episode["videos"].items():
            fits = round((video["stop"] - video["start"]) * fps) == episode["rows"]
            spans.setdefault((camera, video["path"]), []).append((video, episode["number"], fits))
    for placed in spans.values():
        max(placed, key=lambda span: span[0]["stop"])[0]["is_last"] = True
        fitting = sorted((span for span in placed if span[2]), key=lambda span: span[0]["start"])
        latest = fitting[:1]  # the span that ends the latest
        for span in fitting[1:]:
            (earlier, earlier_number, _), (later, number, _) = *latest, span
            if later["start"] < earlier["stop"] - 0.5 / fps:
                earlier.setdefault("overlaps", number)
                later["overlaps"] = earlier_number
            latest = [span] if later["stop"] > earlier["stop"] else latest


def _check_numbers(numbers: Sequence[int], count: int, entry: Entry) -> None:
    if not count or sorted(numbers) != [*range(count)]:
        problem = f"meta/episodes lists {count:,} episodes, expected each number from 0 once"
        raise ConversionError(entry.id, [problem])


def _check_files(
    episodes: Sequence[Mapping[str, Any]], inside: Mapping[str, Asset], entry: Entry, info: Info, kept: AbstractSet[Key]
) -> None:
    needed = {path: episode["number"] for episode in reversed(episodes) for path in _paths(episode)}
    missing = [f"it lacks {path} of episode {number}" for path, number in needed.items() if path not in inside]
    if not missing:
        return
    videos = [episode["videos"] for episode in episodes]
    gone = {name for name in videos[0] if all(places[name]["path"] not in inside for places in videos)}
    others = [dotted_name(key) for key in keys_of(info.without(gone, "")) if key in kept - _ALWAYS]
    if gone and others:
        listed = join_names(sorted(gone))
        example = next(place["path"] for name, place in videos[0].items() if name in gone)
        raise ConversionError(
            entry.id,
            [f"it has no file of {listed}, such as {example}"],
            hint=Remedy("read the other fields with {}, or add the files", Argument("keys", ",".join(others))),
        )
    complete = [one["number"] for one in episodes if all(path in inside for path in _paths(one))]
    if not complete:
        raise ConversionError(entry.id, first_problems(missing, "files"))
    numbers = _ranges_text(complete)
    few = f"it has the files of {len(complete):,} of {len(episodes):,} episodes ({numbers})"
    raise ConversionError(
        entry.id,
        [f"{few}, and lacks {len(missing):,} files of the others, such as {missing[0].removeprefix('it lacks ')}"],
        hint=Remedy("convert the complete episodes with {}, or add the files", Argument("episodes", numbers)),
    )


def _ranges_text(numbers: Sequence[int]) -> str:
    """Return sorted numbers as `Selection` reads them: ``0:3,7,9`` for 0, 1, 2, 7 and 9."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number:
            runs[-1][1] += 1
        else:
            runs.append([number, number + 1])
    return ",".join(str(start) if stop == start + 1 else f"{start}:{stop}" for start, stop in runs)


def _paths(episode: Mapping[str, Any]) -> list[str]:
    return [episode["data"], *(video["path"] for video in episode["videos"].values())]


def _shards(
    chosen: Sequence[Mapping[str, Any]], episodes: Sequence[Mapping[str, Any]], inside: Mapping[str, Asset]
) -> Iterator[Shard]:
    """Group episodes by the share of the bytes of their files. The part of a shard describes the episodes."""
    rows_by_path: dict[str, int] = {}
    for episode in episodes:
        for path in _paths(episode):
            rows_by_path[path] = rows_by_path.get(path, 0) + episode["rows"]
    sizes = (
        sum((inside[path].size or 0) * episode["rows"] / max(rows_by_path[path], 1) for path in _paths(episode))
        for episode in chosen
    )
    for group in group_by_size(chosen, (int(size) for size in sizes), _SHARD_BYTES):
        part = [
            {
                **episode,
                "data": inside[episode["data"]].path,
                "videos": {
                    camera: {**video, "path": inside[video["path"]].path} for camera, video in episode["videos"].items()
                },
            }
            for episode in group
        ]
        yield Shard(tuple(dict.fromkeys(path for episode in part for path in _paths(episode))), part)


def _pixel_bytes(info: Info, kept: set[Any], selection: Selection, kinds: set[str]) -> int:
    """Return the bytes of the pixels of a step, of the features of some kinds, in the stored size."""
    size = selection.options.get("image-size", "")
    pixels = 0
    for feature in info.features.values():
        if feature.kind in kinds and feature.key in kept:
            shape = (*_parse_size(size), feature.shape[2]) if size and feature.kind == "video" else feature.shape
            pixels += math.prod(shape) * (feature.depth is None)
    return pixels


def _stored_bytes(rows: int, info: Info, kept: set[Any], selection: Selection, video_bytes: int) -> dict[str, float]:
    depths = sum(one.pixels for one in info.features.values() if one.depth is not None and one.key in kept)
    others = float(rows * (_ROW_BYTES + depths))
    pixels = _pixel_bytes(info, kept, selection, {"image", "video"})
    if not pixels:
        return {"": others}
    shares = {"encoded": _JPEG, "raw": 1.0, "compressed": 1 / MIN_RATIO}
    sizes = {form: rows * pixels * share + others for form, share in shares.items()}
    if video_bytes:
        encoded = _pixel_bytes(info, kept, selection, {"image"})
        sizes["video"] = video_bytes + rows * encoded * _JPEG + others
    return by_images(sizes, selection)


def _read_seconds(info: Info, kept: set[Any], selection: Selection, *, has_videos: bool) -> dict[str, float]:
    pixels = _pixel_bytes(info, kept, selection, {"image", "video"})
    if not pixels:
        return {}
    seconds = {form: pixels * time * 1e-9 for form, time in _READ_NANOSECONDS.items() if form != "video"}
    if has_videos:  # which keep the size
        frames = _pixel_bytes(info, kept, Selection(), {"video"})
        images = _pixel_bytes(info, kept, selection, {"image"})
        seconds["video"] = (frames * _READ_NANOSECONDS["video"] + images * _READ_NANOSECONDS["encoded"]) * 1e-9
    return by_images(seconds, selection)


SOURCE = LeRobot()
