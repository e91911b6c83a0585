"""npz files, one per episode, for ``numpy.load`` and for the source ``local``.

episode_000000.npz    observation [T + 1, ...], action [T, ...], next.reward [T, 1], next.terminated, ...
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from typing_extensions import override

from datasets_rl.exporting.base import ExportFormat
from datasets_rl.exporting.content import Content, pixels, text_list
from datasets_rl.exporting.described import write_description
from datasets_rl.progress import Report
from datasets_rl.ted.episode import TextStates
from datasets_rl.ted.keys import dotted_name


class Npz(ExportFormat):
    """A folder of npz files, one per episode. Images are decoded, because npz has no arrays of byte strings."""

    name = "npz"
    title = "a folder with an npz file per episode"

    @override
    def write(self, content: Content, target: Path, progress: Report) -> None:
        digits = max(6, len(str(len(content.lengths))))
        metadata = {name: content.metadata(name) for name in content.metadata_names}
        for number, episode in enumerate(content):
            arrays = {dotted_name(key): values for key, values in (*episode.states.items(), *episode.steps.items())}
            whole = {f"episode.{name}": values[number] for name, values in metadata.items()}
            write_npz(target / f"episode_{number:0{digits}d}.npz", {**arrays, **whole})
            progress(len(episode))
        write_description(target, content, "npz", "episode_*.npz", {"by": "file"}, ".")


def write_npz(path: Path, arrays: dict[str, Any]) -> None:
    """Write an uncompressed npz file, unlike ``numpy.savez`` with any names and without a copy of an array."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, values in arrays.items():
            array = np.asarray(text_list(values), np.str_) if isinstance(values, TextStates) else pixels(values)
            # A fixed time of change makes equal exports equal files.
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as stream:
                npy.write_array(stream, np.ascontiguousarray(array).reshape(array.shape), allow_pickle=False)
