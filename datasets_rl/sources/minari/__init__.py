"""Minari: a folder an id, on the Hugging Face hub and in a Google bucket.

    <namespace>/<name>-v<k>/data/metadata.json
    <namespace>/<name>-v<k>/data/main_data.hdf5
    <namespace>/<name>-v<k>/data/<episode>/part-0.arrow, metadata.json        or part-0.parquet

The files are read as they are: neither minari nor any environment is imported.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datasets_rl.errors import ConversionError, FetchError, InvalidArgumentError
from datasets_rl.sources.base import Entry, EpisodeReader, Listing, Score, Selection, Shard, Source
from datasets_rl.sources.selection import read_numbers

if TYPE_CHECKING:
    from datasets_rl.fetch.asset import Asset, Folder
    from datasets_rl.fetch.upstream import Upstream
    from datasets_rl.ted.table import EpisodeTable

__all__ = ["SOURCE", "Minari", "own_cache"]

_ID = re.compile(r"(?:[-\w]+/)*[-\w]+-v\d+", re.ASCII)
_REMOTE = re.compile(r"(hf|gcp)://([^/]+)")
_DEFAULT_REMOTES = ("hf://farama-minari", "gcp://minari-remote")
_MAIN = "main_data.hdf5"
_METADATA = "/data/metadata.json"
_NAMESPACE = "namespace_metadata.json"
_SHARD_BYTES = 64 << 20
_EPISODE_FOLDER = re.compile(r"(?:episode_id=)?(\d+)/[^/]+")
_HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"


class Minari(Source):
    """Every dataset that follows Minari's naming; those in the catalog are the ones known to exist."""

    name = "minari"
    restated = frozenset({"score"})
    selects = frozenset({"episodes"})

    def ids(self) -> Sequence[str]:
        """Return the ids that are known without asking the upstream, sorted."""
        return sorted(self.catalog["ids"])

    def listed(self, upstream: Upstream) -> Sequence[str]:
        """Return the ids that the namespaces of the remote name; that of MINARI_REMOTE, where it is set.

        Raises:
            FetchError: If no remote answers.
        """
        failures = []
        for remote in _remotes():
            try:
                found = _of_hub(remote[1], upstream) if remote[0] == "hf" else _of_bucket(remote[1], upstream)
                return sorted(one for one in found if _ID.fullmatch(one))
            except FetchError as error:
                failures.append(error)
        raise failures[0]

    def entry(self, name: str) -> Entry:
        """Return what is known of an id; no network.

        Raises:
            UnknownIdError: If it is no id of Minari's: names joined by slashes, with a version, ``D4RL/door/human-v2``.
        """
        if not _ID.fullmatch(name):
            raise self.unknown(name)
        catalog = self.catalog
        return Entry(
            source=self.name,
            name=name,
            title=catalog["ids"].get(name, ""),
            license=catalog["license"],
            citation=catalog["citation"],
            homepage=catalog["homepage"],
        )

    def resolve(self, name: str, selection: Selection, upstream: Upstream) -> Listing:
        """Read the metadata, and cut the episodes into shards."""
        entry = self.entry(name)
        folder = upstream.folder(name, _addresses(name))
        inside = _inside(folder, name)
        if "metadata.json" not in inside:
            return _contents_of_one_file(entry, folder, inside, selection)
        metadata = _metadata(upstream.text(inside["metadata.json"]), entry, name)
        total = metadata["total_episodes"]
        numbers = read_numbers(selection.episodes, total)
        params: dict[str, Any] = {"metadata": metadata, "keys": list(selection.keys)}
        common = inside["metadata.json"]
        if metadata["data_format"] == "hdf5":
            main = _hdf5(entry, inside)
            count = max(1, (main.size or 0) * len(numbers) // (total * _SHARD_BYTES))
            cuts = [len(numbers) * cut // count for cut in range(count + 1)]
            parts = (numbers[start:stop] for start, stop in pairwise(cuts))
            shards = tuple(Shard((main.path,), part) for part in parts if part)
            assets: tuple[Asset, ...] = (common, main)
        else:
            episodes = _episode_files(entry, inside, metadata["data_format"], numbers)
            shards = tuple(_grouped(numbers, episodes))
            assets = (common, *(asset for number in numbers for asset in episodes[number]))
        return Listing(
            assets,
            shards,
            common=(common.path,),
            params=params,
            entry=_described(entry, metadata),
            revision=folder.revision,
            steps=metadata["total_steps"] if len(numbers) == total else None,
        )

    def open(self, name: str, files: Mapping[str, Path], params: Mapping[str, Any] | None = None) -> EpisodeReader:
        """Open the files of a shard."""
        from datasets_rl.sources.minari.reader import MinariReader

        return MinariReader(f"{self.name}/{name}", {path: Path(place) for path, place in files.items()}, params or {})

    def compare(
        self, name: str, files: Mapping[str, Path], column: Any, episodes: EpisodeTable | None = None
    ) -> list[str]:
        """Compare a converted dataset with its raw files, column by column."""
        from datasets_rl.sources.minari.compare import compare

        del name
        return [] if episodes is None else compare(files, column, episodes)


def own_cache() -> Path:
    """Return the folder in which Minari itself keeps its datasets: MINARI_DATASETS_PATH, or its default."""
    return Path(os.environ.get("MINARI_DATASETS_PATH") or "~/.minari/datasets").expanduser().absolute()


def _remotes() -> list[tuple[str, str]]:
    """Return where datasets may be, ``("hf", author)`` or ``("gcp", bucket)``, in the order in which they are asked."""
    said = os.environ.get("MINARI_REMOTE")
    found = []
    for remote in [said] if said else _DEFAULT_REMOTES:
        place = _REMOTE.fullmatch(remote.rstrip("/"))
        if place is None:
            raise InvalidArgumentError(f"MINARI_REMOTE is {remote!r}; expected hf://AUTHOR or gcp://BUCKET")
        found.append((place[1], place[2]))
    return found


def _addresses(name: str) -> list[str]:
    # On the hub the first name is a repository; in the bucket all are folders.
    return [f"hf://datasets/{place}/{name}" if kind == "hf" else f"gs://{place}/{name}" for kind, place in _remotes()]


def _of_hub(author: str, upstream: Upstream) -> list[str]:
    """Return the ids of an author: a repository is a dataset, or a namespace that names all below it."""
    from datasets_rl.fetch.asset import Asset

    found: list[str] = []
    for repo in upstream.repositories(author):
        name = repo.rpartition("/")[2]
        if _ID.fullmatch(name):
            found.append(name)
            continue
        path = f"{name}/{_NAMESPACE}"
        try:
            text = upstream.text(Asset((f"hf://datasets/{repo}/{_NAMESPACE}",), path))
            found += [str(one) for one in json.loads(text).get("datasets", [])]
        except (FetchError, AttributeError, TypeError, ValueError):
            continue  # something else of the author's
    return found


def _of_bucket(bucket: str, upstream: Upstream) -> list[str]:
    """Return the ids of a bucket: every folder with metadata."""
    assets = upstream.folder("", [f"gs://{bucket}"]).assets
    return [asset.path.removesuffix(_METADATA) for asset in assets if asset.path.endswith(_METADATA)]


def _inside(folder: Folder, name: str) -> dict[str, Asset]:
    """Return the data files by their path below ``data``; the user may have named the folder ``data`` itself."""
    start = f"{name}/data/"
    below = {asset.path[len(start) :]: asset for asset in folder.assets if asset.path.startswith(start)}
    return below or {asset.path[len(name) + 1 :]: asset for asset in folder.assets}


def _contents_of_one_file(entry: Entry, folder: Folder, inside: Mapping[str, Asset], selection: Selection) -> Listing:
    """Before version 0.5 the metadata is in the HDF5 file."""
    main = _hdf5(entry, inside)
    params = {"episodes": selection.episodes, "keys": list(selection.keys)}
    return Listing((main,), (Shard((main.path,)),), params=params, entry=entry, revision=folder.revision)


def _hdf5(entry: Entry, inside: Mapping[str, Asset]) -> Asset:
    if _MAIN not in inside:
        raise ConversionError(entry.id, [f"it has no data/{_MAIN}, but {', '.join(sorted(inside)[:5]) or 'nothing'}"])
    return replace(inside[_MAIN], magic=_HDF5_MAGIC, kind="HDF5")


def _metadata(text: str, entry: Entry, name: str) -> dict[str, Any]:
    """Read metadata.json, trusting nothing in it.

    Raises:
        ConversionError: If it does not describe this dataset; all faults at once.
    """
    try:
        metadata = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConversionError(entry.id, [f"metadata.json is no JSON: {error}"]) from error
    if not isinstance(metadata, dict):
        raise ConversionError(entry.id, [f"metadata.json is a {type(metadata).__name__}; expected an object"])
    faults = [
        f"metadata.json: {field} is {metadata.get(field)!r:.60}; expected a whole number from 1"
        for field in ("total_episodes", "total_steps")
        if not isinstance(metadata.get(field), int) or isinstance(metadata[field], bool) or metadata[field] < 1
    ]
    if metadata.setdefault("data_format", "hdf5") not in {"hdf5", "arrow", "parquet"}:
        faults.append(f"metadata.json: data_format is {metadata['data_format']!r:.60}; expected hdf5, arrow or parquet")
    if metadata.get("dataset_id", name) != name:
        faults.append(f"metadata.json: it is of the dataset {metadata['dataset_id']!r:.60}; expected {name}")
    if faults:
        raise ConversionError(entry.id, faults)
    return metadata


def _described(entry: Entry, metadata: Mapping[str, Any]) -> Entry:
    low, high = metadata.get("ref_min_score"), metadata.get("ref_max_score")
    score: Score | None = None
    if isinstance(low, (int, float)) and isinstance(high, (int, float)) and low < high:
        score = Score(float(low), float(high), "the dataset's own metadata")
    return replace(entry, title=entry.title or str(metadata.get("description", ""))[:80], score=score)


def _episode_files(
    entry: Entry, inside: Mapping[str, Asset], kind: str, numbers: Sequence[int]
) -> dict[int, list[Asset]]:
    """Return the files of each episode, the table first."""
    found: dict[int, list[Asset]] = {}
    for path, asset in sorted(inside.items(), key=lambda item: not item[0].endswith(kind)):
        place = _EPISODE_FOLDER.fullmatch(path)
        if place is not None and path.endswith((f".{kind}", "/metadata.json")):
            magic = b"PAR1" if path.endswith(".parquet") else b"ARROW1" if path.endswith(".arrow") else b""
            found.setdefault(int(place[1]), []).append(replace(asset, magic=magic, kind=kind if magic else "JSON"))
    faults = []
    for number in numbers:
        tables = sum(asset.path.endswith(f".{kind}") for asset in found.get(number, []))
        if tables != 1:
            faults.append(f"episode {number} has {tables} {kind} files; expected 1")
    if faults:
        raise ConversionError(entry.id, [*faults[:20], *([f"and {len(faults) - 20:,} more"] if faults[20:] else [])])
    return found


def _grouped(numbers: Sequence[int], episodes: Mapping[int, Sequence[Asset]]) -> Iterator[Shard]:
    """Put as many episodes into a shard as make it worth a commit."""
    group: list[int] = []
    size = 0
    for number in numbers:
        more = sum(asset.size or 0 for asset in episodes[number])
        if group and size + more > _SHARD_BYTES:
            yield _shard(group, episodes)
            group, size = [], 0
        group.append(number)
        size += more
    yield _shard(group, episodes)


def _shard(group: list[int], episodes: Mapping[int, Sequence[Asset]]) -> Shard:
    return Shard(tuple(asset.path for number in group for asset in episodes[number]), list(group))


SOURCE = Minari()
