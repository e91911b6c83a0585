"""Datasets of Minari up to 0.4.1, in which some episodes are links to other HDF5 files.

    combine_datasets                        /home/me/.minari/datasets/<id>/data/main_data.hdf5    of each part
    update_dataset_from_collector_env       additional_data_0.hdf5                                in the same folder

Where a link leads is decided from the list of files: no link is followed on this machine. A part may have links itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import h5py
import numpy as np

from datasets_rl.errors import Call, ConversionError, FetchError, Remedy
from datasets_rl.read.hdf5 import library_errors
from datasets_rl.sources.selection import MAX_EPISODES, read_numbers

if TYPE_CHECKING:
    from datasets_rl.fetch.asset import Asset
    from datasets_rl.fetch.upstream import Upstream

MAIN = "main_data.hdf5"
_EPISODE = "episode_"
_SPACES = ("observation_space", "action_space")


class Run(NamedTuple):
    """Successive episodes of a dataset that are successive in a file."""

    start: int
    stop: int
    """Number after that of the last episode."""
    file: str
    """Name of the file in the links, empty for the file of the links. With `Links`, it is the path of an asset."""
    first: int
    """Number of the first of these episodes in the file."""

    def meets(self, start: int, stop: int) -> bool:
        """Return whether an episode in [start, stop) is in the run."""
        return self.start < stop and start < self.stop

    def part(self, start: int, stop: int) -> Run:
        """Return the run of the episodes in [start, stop)."""
        start, stop = max(start, self.start), min(stop, self.stop)
        return Run(start, stop, self.file, self.first + start - self.start)


def inspect_file(stream: BinaryIO) -> dict[str, Any]:
    """Return the attributes of a main_data.hdf5, and the runs of the episodes, or no runs if no episode is a link.

    Args:
        stream: The file, at the start.

    Raises:
        ConversionError: If the stream is not an HDF5 file, or the directory is damaged.
    """
    with library_errors(MAIN), h5py.File(stream, "r") as file:
        attributes = {name: plain_value(value) for name, value in file.attrs.items()}
        total = attributes.get("total_episodes")
        # Episodes of other files are the first episodes, or were added after the last episode.
        ends = (0, total - 1) if isinstance(total, int) and total > 0 else (0,)
        linked = any(_link_of(file, f"{_EPISODE}{number}") is not None for number in ends)
        return {"attributes": attributes, "runs": [*_runs_of(file)] if linked else []}


def plain_value(value: Any) -> Any:
    """Return an attribute of an HDF5 file as a JSON value."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, np.ndarray):
        return [plain_value(one) for one in value.tolist()]
    return value.item() if isinstance(value, np.generic) else value


def _runs_of(file: h5py.File) -> Iterator[Run]:
    numbers = sorted(int(name[len(_EPISODE) :]) for name in file if name[len(_EPISODE) :].isdecimal())
    run: Run | None = None
    for number in numbers:
        target, episode = _link_of(file, f"{_EPISODE}{number}") or ("", number)
        if run is not None and (number, target, episode) == (run.stop, run.file, run.first + number - run.start):
            run = run._replace(stop=number + 1)
            continue
        if run is not None:
            yield run
        run = Run(number, number + 1, target, episode)
    if run is not None:
        yield run


def _link_of(file: h5py.File, name: str) -> tuple[str, int] | None:
    """Return the file and the number of a linked episode, or None if the episode is in this file, or missing."""
    link = file.get(name, getlink=True)
    if not isinstance(link, h5py.ExternalLink):
        return None
    episode = link.path.strip("/")
    if not episode.startswith(_EPISODE) or not episode[len(_EPISODE) :].isdecimal():
        raise ConversionError(MAIN, [f"{name} is a link to {link.path!r}, expected the data itself, or an episode"])
    return link.filename, int(episode[len(_EPISODE) :])


@dataclass
class Links:
    """The files that the episodes of a dataset are in.

    Args:
        dataset_id: Id of the dataset, for messages.
        upstream: Inspects the files.
        files_of: Returns the files of a dataset of Minari by the path below ``data``.
    """

    dataset_id: str
    upstream: Upstream
    files_of: Callable[[str], Mapping[str, Asset]]
    assets: dict[str, Asset] = field(default_factory=dict)
    """The files of the runs that `resolve` returned, by path."""
    parts: dict[str, Asset] = field(default_factory=dict)
    """The files of the parts that have links themselves, by path."""
    attributes: dict[str, Any] = field(default_factory=dict)
    """Attributes of the dataset, with the spaces of the first part if the dataset has no spaces."""
    total: int = 0
    """Number of episodes of the dataset that `resolve` was called for."""

    def resolve(self, inside: Mapping[str, Asset], episodes: str = "") -> list[Run]:
        """Return the runs of a dataset, each in the file that has the episodes, or no runs if no episode is a link.

        Args:
            inside: The files of the dataset by the path below ``data``.
            episodes: The selected episodes, as in a `Selection`. Only files with such episodes are asked for.

        Raises:
            ConversionError: If a link leads to a file that is neither of the dataset nor of a part.
            FetchError: If a part cannot be had.
            InvalidArgumentError: If the dataset does not have the selected episodes.
        """
        self.attributes, runs = self._inspected(inside[MAIN])
        if not runs:
            return []
        self.total = runs[-1].stop
        if gaps := [
            one.start
            for one, before in zip(runs, [0, *(run.stop for run in runs)], strict=False)
            if one.start != before
        ]:
            raise ConversionError(self.dataset_id, [f"{MAIN} lacks the episode before episode {gaps[0]}"])
        if self.total > MAX_EPISODES:
            problem = f"{MAIN} has an episode {self.total - 1}, expected at most {MAX_EPISODES:,} episodes"
            raise ConversionError(self.dataset_id, [problem])
        numbers = np.asarray(read_numbers(episodes, self.total))
        ranges = [
            (int(one[0]), int(one[-1]) + 1) for one in np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1)
        ]
        needed = [run.part(*one) for one in ranges for run in runs if run.meets(*one)]
        return [*self._resolve(needed, inside, self.attributes, ())]

    def _inspected(self, main: Asset) -> tuple[dict[str, Any], list[Run]]:
        found = self.upstream.inspected(main, inspect_file)
        return dict(found["attributes"]), [Run(*run) for run in found["runs"]]

    def _resolve(
        self, runs: Sequence[Run], inside: Mapping[str, Asset], attributes: Mapping[str, Any], above: tuple[str, ...]
    ) -> Iterator[Run]:
        for run in runs:
            if run.file in {"", *inside}:
                asset = inside[run.file or MAIN]
                self.assets[asset.path] = asset
                yield run._replace(file=asset.path)
                continue
            part = self._part_of(run, attributes)
            if part in above:
                raise ConversionError(
                    self.dataset_id, [f"episode {run.start}: {' > '.join((*above, part))} is a circle"]
                )
            yield from self._runs_in_part(run, part, attributes, above)

    def _runs_in_part(
        self, run: Run, part: str, attributes: Mapping[str, Any], above: tuple[str, ...]
    ) -> Iterator[Run]:
        try:
            inside = self.files_of(part)
            if MAIN not in inside:
                raise ConversionError(self.dataset_id, [f"the part {part} has no data/{MAIN}"])
        except FetchError as error:
            error.hint = _download_parts(attributes)
            raise
        stated, inner = self._inspected(inside[MAIN])
        for name in _SPACES:
            if name in stated:
                self.attributes.setdefault(name, stated[name])
        stop = run.first + run.stop - run.start
        if inner:
            self.parts[inside[MAIN].path] = inside[MAIN]
        needed = [one.part(run.first, stop) for one in inner if one.meets(run.first, stop)]
        offset = run.start - run.first
        for one in self._resolve(needed or [Run(run.first, stop, "", run.first)], inside, stated, (*above, part)):
            yield one._replace(start=one.start + offset, stop=one.stop + offset)

    def _part_of(self, run: Run, attributes: Mapping[str, Any]) -> str:
        """Return the id of the part that a link leads to."""
        parts = attributes.get("combined_datasets", ())
        target = run.file.replace("\\", "/")
        found = [part for part in parts if target.endswith(f"/{part}/data/{MAIN}")]
        if not found:
            names = f"a file of {', '.join(parts)}" if len(parts) else "the data itself"
            raise ConversionError(
                self.dataset_id, [f"episode {run.start}: episode_{run.start} is a link to {run.file}, expected {names}"]
            )
        return str(max(found, key=len))


def _download_parts(metadata: Mapping[str, Any]) -> Remedy:
    """Return the remedy to download the parts of a combined dataset."""
    calls = [Call("download", f"minari/{name}") for name in metadata.get("combined_datasets", ())]
    return Remedy(f"download the parts instead: {'; '.join(['{}'] * len(calls))}", *calls)
