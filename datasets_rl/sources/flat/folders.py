"""Folders that are a single file of arrays: stores of zarr, and folders of npy files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from datasets_rl.read.zarr_paths import MARKERS, folders_above, roots_of
from datasets_rl.sources.flat.names import usual_keys
from datasets_rl.ted.keys import ACTION, OBSERVATION

ZARR, NPY = "zarr", "npy-folder"
"""Formats of such folders in `FORMATS`."""


@dataclass(frozen=True, slots=True)
class DataFolder:
    """Folder that is a file of arrays."""

    format: str
    """`ZARR` or `NPY`."""
    members: tuple[str, ...]
    """Paths of the files that belong to the folder."""


def data_folders(paths: Iterable[str], stated: str = "") -> dict[str, DataFolder]:
    """Return the folders among paths that are files of arrays, by the path of the file that stands for the folder.

    x.zarr/.zgroup, x.zarr/action/.zarray, x.zarr/action/0.0     x.zarr/.zgroup stands for all
    run/actions.npy, run/observations.npy, run/rewards.npy       run/actions.npy stands for all

    Args:
        paths: Paths of files.
        stated: The format that the user states, if any. Files of npy are then arrays whatever the names are, or files of
            objects.
    """
    paths = sorted(paths)
    found = {}
    stores = roots_of(paths)
    inside: dict[str, list[str]] = {store: [] for store in stores}
    others: dict[str, list[str]] = {}
    for path in paths:
        store = next((folder for folder in folders_above(path) if folder in inside), None)
        if store is not None:
            inside[store].append(path)
        elif path.lower().endswith(".npy"):
            others.setdefault(path.rpartition("/")[0], []).append(path)
    for store, members in inside.items():
        prefix = f"{store}/" if store else ""
        head = next(f"{prefix}{name}" for name in MARKERS if f"{prefix}{name}" in members)
        found[head] = DataFolder(ZARR, tuple(members))
    for members in others.values():
        if stated == NPY or (not stated and _are_arrays(members)):
            found[members[0]] = DataFolder(NPY, tuple(members))
    return found


def _are_arrays(paths: Iterable[str]) -> bool:
    """Return whether the names of npy files say that the files are the arrays of the same rows."""
    roots = {key[0] for key in usual_keys(Path(path).stem for path in paths).values()}
    return {*OBSERVATION, *ACTION} <= roots


def shown_path(path: str, folders: Mapping[str, DataFolder]) -> str:
    """Return the path of a data file as users know it: that of the folder, if the file stands for a folder.

    The path is empty if all paths are in the folder.
    """
    return path.rpartition("/")[0] if path in folders else path
