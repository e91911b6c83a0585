"""Files in formats of other packages, which no source reads: recognized by the first bytes or by the names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from datasets_rl.errors import ConversionError
from datasets_rl.fetch.schemes.base import path_of_url
from datasets_rl.read.streams import LFS
from datasets_rl.read.zarr_paths import MARKERS, roots_of

if TYPE_CHECKING:
    from pathlib import Path

    from datasets_rl.fetch.asset import Asset

PAGE = "docs/recording.md#files-of-other-packages"
_HEAD = 64
_OPENED_MAX = 50
"""Files whose first bytes are read. Other files are recognized by name."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """A format that no source reads."""

    title: str
    way: str
    """How the episodes become a dataset."""
    names: re.Pattern[str]
    """Paths of such files."""
    magic: bytes = b""
    """The first bytes of such files, or empty if no bytes are common to all."""
    has_tables: bool = False
    """Whether such files are tables or arrays that would be taken for files of the user, without their images."""

    def fits(self, path: str, head: bytes | None) -> bool:
        """Return whether a file has this format, by the first bytes, or by the name if the bytes are not known."""
        if self.magic and head is not None:
            return head.startswith(self.magic)
        return self.names.search(path) is not None


def _way(package: str) -> str:
    return f"read it with {package} and store the episodes with EpisodeWriter: {PAGE} has the program"


_NAMES_NOTHING = re.compile(r"(?!)")
_POLICY = "it has a policy and no episodes: run the policy in its environment and record with RecordEpisodes, see docs/recording.md"
_TENSORS = (
    'a file of arrays of episodes becomes a pickle by `python -c "import pickle, torch; '
    "pickle.dump({k: v.numpy() for k, v in torch.load('NAME').items()}, open('episodes.pkl', 'wb'))\"`"
)
_ROSBAGS = _way("the package rosbags")
_FORMATS = (
    Foreign(
        "a pointer of git-LFS, and the file itself is elsewhere",
        "run `git lfs pull` in the clone of the repository, which fetches the files",
        _NAMES_NOTHING,
        LFS,
    ),
    Foreign("a bag of ROS 2 (MCAP)", _ROSBAGS, re.compile(r"\.mcap$"), b"\x89MCAP0\r\n"),
    Foreign("a bag of ROS 2 (SQLite)", _ROSBAGS, re.compile(r"\.db3$"), b"SQLite format 3\0"),
    Foreign("a bag of ROS 1", _ROSBAGS, re.compile(r"\.bag$"), b"#ROSBAG V"),
    Foreign("a demonstration of Unity ML-Agents", _way("the package mlagents-envs"), re.compile(r"\.demo$")),
    Foreign(
        "a file of TFRecords without features.json",
        _way("the package tfrecord"),
        re.compile(r"\.tfrecords?(-\d+-of-\d+)?(\.gz)?$"),
    ),
    Foreign("a recording of a terminal (ttyrec)", _way("the package nle"), re.compile(r"\.ttyrec\d?(\.(bz2|gz))?$")),
    Foreign(
        "a recording of MineRL",
        _way("the packages numpy and av"),
        re.compile(r"(^|/)(rendered\.npz|univ\.json)$"),
        has_tables=True,
    ),
    Foreign(
        "a chunk of zarr whose metadata, the hidden .zgroup and .zarray or zarr.json, are absent",
        "copy the whole folder of the store, with hidden files",
        re.compile(r"(^|/)\d+(\.\d+)+$|(^|/)c(/\d+)+$"),
    ),
    Foreign(
        "a tensor without the meta.json that names its shape and dtype",
        "copy the whole folder that TorchRL or tensordict wrote. A storage of tensors without keys has no meta.json: store the "
        "steps as a TensorDict, see docs/sources/torchrl.md",
        re.compile(r"\.memmap$"),
    ),
    Foreign(
        "a checkpoint of a policy or a network",
        f"{_POLICY}; {_TENSORS}",
        re.compile(r"\.(pt|pth|ckpt|safetensors|onnx)$|(^|/)policy\.pth$"),
    ),
)
_ZARR = Foreign(
    "a zip file with a store of zarr", "give the file a name that ends with .zarr.zip, or unpack it", _NAMES_NOTHING
)
_TEXT_TABLE = Foreign(
    "a table of numbers without the names of the columns",
    'write a dataset.toml beside the file, with format = "csv", files = ["*.txt"] and columns = ["obs_0", "action", ...], '
    "a name for each column",
    re.compile(r"\.(txt|dat|asc)$"),
)
_NUMBERS = re.compile(rb"\s*[-+]?(\d|\.\d)[\d.eE+-]*[ \t,;]+[-+.]?\d")
_ARCHIVES = (
    (re.compile(r"\.(tar\.\w+|tgz|tbz2?|txz)$"), "tar -xf"),
    (re.compile(r"\.7z$"), "7z x"),
    (re.compile(r"\.rar$"), "unrar x"),
)


def archive_command(name: str) -> str:
    """Return the command that unpacks an archive, or an empty text if the name is not the name of an archive."""
    return next((f"{command} {name}" for names, command in _ARCHIVES if names.search(name.lower())), "")


def foreign_file(path: Path) -> Foreign | None:
    """Return the format of a file of this machine, or None if the format is not known."""
    return _format_of(path.name, _head_of(path))


def foreign_files(assets: dict[str, Asset]) -> Iterator[tuple[str, Foreign]]:
    """Yield the first file of each format, and the format. Files of this machine are opened.

    Args:
        assets: The files by path.
    """
    seen = set()
    has_features = any(path.rpartition("/")[2] == "features.json" for path in assets)
    for number, (path, asset) in enumerate(assets.items()):
        is_opened = number < _OPENED_MAX and asset.urls[0].startswith("file:")
        found = _format_of(path, _head_of(path_of_url(asset.urls[0])) if is_opened else None)
        if found is None and is_opened and path.lower().endswith(".zip") and _has_zarr(path_of_url(asset.urls[0])):
            found = _ZARR
        if found is not None and found.title not in seen and not (has_features and "TFRecords" in found.title):
            seen.add(found.title)
            yield path, found


def _format_of(path: str, head: bytes | None) -> Foreign | None:
    if head is not None and _is_stable_baselines(path, head):
        return _FORMATS[-1]
    if head is not None and _TEXT_TABLE.names.search(path.lower()) and _NUMBERS.match(head):
        return _TEXT_TABLE
    return next((one for one in _FORMATS if one.fits(path.lower(), head)), None)


def _head_of(path: Path) -> bytes | None:
    with suppress(OSError), path.open("rb") as stream:
        return stream.read(_HEAD)
    return None


def _has_zarr(path: Path) -> bool:
    from datasets_rl.read.zips import ZipReader

    with suppress(OSError, ConversionError), ZipReader(path, repeated=MARKERS) as archive:
        return bool(roots_of(archive.members))
    return False


def _is_stable_baselines(path: str, head: bytes) -> bool:
    """Return whether a zip archive begins with the member ``data``, the arguments of an agent of stable-baselines."""
    return (
        path.lower().endswith(".zip")
        and head[:4] == b"PK\x03\x04"
        and head[30:34] == b"data"
        and head[26:28] == b"\4\0"
    )
