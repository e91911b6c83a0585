"""Minari: a folder per id, on the Hugging Face hub and in a Google bucket.

    <namespace>/<name>-v<k>/data/metadata.json
    <namespace>/<name>-v<k>/data/main_data.hdf5
    <namespace>/<name>-v<k>/data/<episode>/part-0.arrow, metadata.json        or part-0.parquet

The files are read directly: neither minari nor any environment is imported.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from datasets_rl.disk import expand_home
from datasets_rl.errors import ConversionError, FetchError, InvalidArgumentError
from datasets_rl.read.streams import first_problems, refuse
from datasets_rl.sources.base import Entry, Listing, Score, Selection, Shard, Source, group_by_size, quality_tags
from datasets_rl.sources.selection import MAX_EPISODES, Option, read_numbers

if TYPE_CHECKING:
    from datasets_rl.fetch.asset import Asset, Folder
    from datasets_rl.fetch.upstream import Upstream
    from datasets_rl.sources.address_files import AddressFiles

__all__ = ["SOURCE", "Minari", "minari_cache_folder"]

_ID = re.compile(r"(?:[-\w]+/)*[-\w]+-v\d+", re.ASCII)
_REMOTE = re.compile(r"(hf|gcp)://([^/]+)")
_DEFAULT_REMOTES = ("hf://farama-minari", "gcp://minari-remote")
_MAIN = "main_data.hdf5"
_METADATA = "/data/metadata.json"
_NAMESPACE = "namespace_metadata.json"
_SHARD_BYTES = 64 << 20
_EPISODE_FOLDER = re.compile(r"(?:episode_id=)?(\d+)/[^/]+")


class Minari(Source):
    """Source of every dataset with an id of Minari's form. The catalog lists the ids that are known to exist."""

    name = "minari"
    reader = "datasets_rl.sources.minari.reader:MinariReader"
    restated = frozenset({"score"})
    selects = frozenset({"episodes"})
    options = (Option("revision", "Branch, tag or commit of a dataset on the hub."),)

    @override
    def check(self, selection: Selection) -> None:
        super().check(selection)
        revision = selection.options.get("revision", "")
        if "/" in revision or "@" in revision:
            raise InvalidArgumentError(
                f"revision is {revision!r}, expected a name without '/' and '@', such as a commit"
            )

    def listed(self, upstream: Upstream) -> Sequence[str]:
        """Return the ids in the namespaces of the remote, which MINARI_REMOTE may set.

        Raises:
            FetchError: If no remote answers.
        """
        failures = []
        for remote in _remotes():
            try:
                names = _hub_ids(remote[1], upstream) if remote[0] == "hf" else _bucket_ids(remote[1], upstream)
                return sorted(name for name in names if _ID.fullmatch(name))
            except FetchError as error:
                failures.append(error)
        raise failures[0]

    @override
    def listed_facts(self, name: str) -> dict[str, Any]:
        """Return the facts of an id. For an id that the catalog does not list, these are words of the name.

        Raises:
            UnknownIdError: If the id is not of Minari's form: names joined by slashes, with a version,
                ``D4RL/door/human-v2``.
        """
        if not _ID.fullmatch(name):
            raise self.unknown(name)
        return dict(self.catalog["ids"].get(name, {"tags": quality_tags(name)}))

    @override
    def addresses(self, name: str) -> Sequence[str]:
        return _dataset_urls(name)

    @override
    def resolve(self, name: str, selection: Selection, upstream: Upstream) -> Listing:
        entry = self.entry(name)
        folder = upstream.folder(name, _dataset_urls(name, selection.options.get("revision", "")))
        return _listing(entry, folder, selection, upstream, dataset_id=name)

    @override
    def own_copy(self, name: str) -> Path | None:
        folder = minari_cache_folder() / name
        return folder if _is_complete(folder / "data") else None

    @override
    def recognize(self, files: AddressFiles) -> str:
        for path in ("data/metadata.json", "metadata.json"):
            stated = files.document(path)
            if {"total_episodes", "total_steps"} <= stated.keys():
                return (
                    f"{path} has total_episodes and total_steps of minari {stated.get('minari_version', 'before 0.5')}"
                )
        for path in (f"data/{_MAIN}", _MAIN):
            if path in files.paths and {"total_episodes", "total_steps"} <= _attributes(files, path).keys():
                return f"{path} has the attributes total_episodes and total_steps of minari before 0.5"
        return ""

    @override
    def resolve_files(self, entry: Entry, folder: Folder, selection: Selection, upstream: Upstream) -> Listing:
        return _listing(entry, folder, selection, upstream)


def _attributes(files: AddressFiles, path: str) -> Mapping[str, Any]:
    from datasets_rl.sources.minari.links import inspect_file

    attributes: Mapping[str, Any] = files.inspected(path, inspect_file).get("attributes", {})
    return attributes


def minari_cache_folder() -> Path:
    """Return the folder in which the minari package stores datasets: MINARI_DATASETS_PATH, or the default."""
    return expand_home(os.environ.get("MINARI_DATASETS_PATH") or "~/.minari/datasets").absolute()


def _is_complete(data: Path) -> bool:
    """Return whether a folder has the metadata and the files of all episodes, as after a finished download."""
    try:
        metadata = json.loads((data / "metadata.json").read_text("utf-8"))
        if metadata.get("data_format", "hdf5") == "hdf5":
            return (data / _MAIN).is_file()
        tables = [*data.glob(f"*/*.{metadata['data_format']}")]
        return bool(tables) and len(tables) == int(metadata["total_episodes"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False


def _remotes() -> list[tuple[str, str]]:
    """Return the remotes, ``("hf", author)`` or ``("gcp", bucket)``, in the order of the attempts."""
    configured = os.environ.get("MINARI_REMOTE")
    remotes = []
    for remote in [configured] if configured else _DEFAULT_REMOTES:
        match = _REMOTE.fullmatch(remote.rstrip("/"))
        if match is None:
            raise InvalidArgumentError(f"MINARI_REMOTE is {remote!r}, expected hf://AUTHOR or gcp://BUCKET")
        remotes.append((match[1], match[2]))
    return remotes


def _dataset_urls(name: str, revision: str = "") -> list[str]:
    """Return the addresses of a dataset. A revision has addresses on the hub alone, because buckets have no revisions.

    Raises:
        InvalidArgumentError: If MINARI_REMOTE is a bucket, and a revision is requested.
    """
    # On the hub, the first name is a repository. In the bucket, all names are folders.
    repository, slash, rest = name.partition("/")
    at = f"@{revision}" if revision else ""
    found = [
        f"hf://datasets/{owner}/{repository}{at}{slash}{rest}" if kind == "hf" else f"gs://{owner}/{name}"
        for kind, owner in _remotes()
        if kind == "hf" or not revision
    ]
    if not found:
        raise InvalidArgumentError(f"revision is {revision!r}, but MINARI_REMOTE is a bucket, which has no revisions")
    return found


def _hub_ids(author: str, upstream: Upstream) -> list[str]:
    """Return the ids of an author: each repository is a dataset, or a namespace with a list of datasets."""
    from datasets_rl.fetch.asset import Asset

    names: list[str] = []
    for repo in upstream.repositories(author):
        name = repo.rpartition("/")[2]
        if _ID.fullmatch(name):
            names.append(name)
            continue
        path = f"{name}/{_NAMESPACE}"
        try:
            text = upstream.text(Asset((f"hf://datasets/{repo}/{_NAMESPACE}",), path))
            names += [str(dataset) for dataset in json.loads(text).get("datasets", [])]
        except (FetchError, AttributeError, TypeError, ValueError):
            continue  # a repository of the author that is not a namespace
    return names


def _bucket_ids(bucket: str, upstream: Upstream) -> list[str]:
    """Return the ids of a bucket: every folder that has metadata."""
    assets = upstream.folder("", [f"gs://{bucket}"]).assets
    return [asset.path.removesuffix(_METADATA) for asset in assets if asset.path.endswith(_METADATA)]


def _data_files(folder: Folder, name: str) -> dict[str, Asset]:
    """Return the data files by the path below ``data``. A local folder of the user may be ``data`` itself."""
    start = f"{name}/data/"
    below = {asset.path[len(start) :]: asset for asset in folder.assets if asset.path.startswith(start)}
    return below or {asset.path[len(name) + 1 :]: asset for asset in folder.assets}


def _listing(
    entry: Entry, folder: Folder, selection: Selection, upstream: Upstream, *, dataset_id: str = ""
) -> Listing:
    """Return the listing of the files in a folder. With an id, the files must not state another id."""
    inside = _data_files(folder, entry.name)
    if "metadata.json" not in inside:
        linked = _linked_listing(entry, folder, inside, selection, upstream)
        return linked or _single_file_listing(entry, folder, inside, selection)
    metadata = _parse_metadata(upstream.text(inside["metadata.json"]), entry, dataset_id)
    if metadata["data_format"] == "hdf5" and metadata.get("combined_datasets"):
        linked = _linked_listing(entry, folder, inside, selection, upstream, metadata)
        if linked is not None:
            return linked
    total = metadata["total_episodes"]
    numbers = read_numbers(selection.episodes, total)
    common = inside["metadata.json"]
    if metadata["data_format"] == "hdf5":
        main = _hdf5_asset(entry, inside)
        count = max(1, (main.size or 0) * len(numbers) // (total * _SHARD_BYTES))
        cuts = [len(numbers) * cut // count for cut in range(count + 1)]
        parts = (numbers[start:stop] for start, stop in pairwise(cuts))
        shards = tuple(Shard((main.path,), part) for part in parts if part)
        assets: tuple[Asset, ...] = (common, main)
    else:
        episodes = _files_by_episode(entry, inside, metadata["data_format"], numbers)
        sizes = (sum(asset.size or 0 for asset in episodes[number]) for number in numbers)
        shards = tuple(
            Shard(tuple(asset.path for number in group for asset in episodes[number]), group)
            for group in group_by_size(numbers, sizes, _SHARD_BYTES)
        )
        assets = (common, *(asset for number in numbers for asset in episodes[number]))
    return Listing(
        assets,
        shards,
        common=(common.path,),
        params={"metadata": metadata},
        entry=_entry_from_metadata(entry, metadata),
        revision=folder.revision,
        steps=metadata["total_steps"] if len(numbers) == total else None,
    )


def _single_file_listing(entry: Entry, folder: Folder, inside: Mapping[str, Asset], selection: Selection) -> Listing:
    """Return the listing of a dataset of a version before 0.5: the metadata is in the HDF5 file."""
    main = _hdf5_asset(entry, inside)
    params = {"episodes": selection.episodes}
    return Listing((main,), (Shard((main.path,)),), params=params, entry=entry, revision=folder.revision)


def _linked_listing(
    entry: Entry,
    folder: Folder,
    inside: Mapping[str, Asset],
    selection: Selection,
    upstream: Upstream,
    metadata: dict[str, Any] | None = None,
) -> Listing | None:
    """Return the listing of a dataset with episodes that are links to other files, or None if no episode is a link."""
    from datasets_rl.sources.minari.links import Links

    def files_of(part: str) -> Mapping[str, Asset]:
        own = (metadata or links.attributes).get("dataset_id", entry.name)
        urls = _dataset_urls(part, selection.options.get("revision", "")) if entry.source == Minari.name else []
        return _data_files(upstream.neighbor(folder, str(own), part, urls), part)

    main = _hdf5_asset(entry, inside)
    links = Links(entry.id, upstream, files_of)
    runs = links.resolve({**inside, _MAIN: main}, selection.episodes)
    if not runs:
        return None
    stated = {"total_episodes": links.total, **links.attributes, **(metadata or {})}
    if stated["total_episodes"] != links.total:
        problem = f"it has {links.total:,} episodes, but the metadata states {stated['total_episodes']}"
        raise ConversionError(entry.id, [problem])
    shards = []
    for path, group in groupby(runs, key=attrgetter("file")):
        numbers = [number for run in group for number in range(run.start, run.stop)]
        count = min(max(1, (links.assets[path].size or 0) // _SHARD_BYTES), len(numbers))
        cuts = [len(numbers) * cut // count for cut in range(count + 1)]
        shards += [Shard((path,), numbers[start:stop]) for start, stop in pairwise(cuts)]
    metadata_file = [inside["metadata.json"]] if metadata is not None else []
    common = {asset.path: asset for asset in (*metadata_file, main, *links.parts.values())}
    whole = sum(run.stop - run.start for run in runs) == links.total
    steps = stated.get("total_steps")
    return Listing(
        tuple({**common, **links.assets}.values()),
        tuple(shards),
        common=tuple(common),
        params={"metadata": stated, "runs": [list(run) for run in runs]},
        entry=_entry_from_metadata(entry, stated),
        revision=folder.revision,
        steps=steps if whole and isinstance(steps, int) else None,
    )


def _hdf5_asset(entry: Entry, inside: Mapping[str, Asset]) -> Asset:
    if _MAIN not in inside:
        raise ConversionError(
            entry.id, [f"it has no data/{_MAIN}. The files are {', '.join(sorted(inside)[:5]) or 'none'}"]
        )
    return inside[_MAIN].of_kind("HDF5")


def _parse_metadata(text: str, entry: Entry, dataset_id: str) -> dict[str, Any]:
    """Parse and validate metadata.json.

    Args:
        text: The content of the file.
        entry: The entry, for messages.
        dataset_id: The id that the text must state, if it states an id, or empty for files at another address, which
            have any id.

    Raises:
        ConversionError: If the text does not describe this dataset. The error names every problem.
    """
    try:
        metadata = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConversionError(entry.id, [f"metadata.json is not valid JSON: {error}"]) from error
    if not isinstance(metadata, dict):
        raise ConversionError(entry.id, [f"metadata.json is a {type(metadata).__name__}, expected an object"])
    problems = [
        f"metadata.json: {field} is {metadata.get(field)!r:.60}, expected an integer >= 1"
        for field in ("total_episodes", "total_steps")
        if not isinstance(metadata.get(field), int) or isinstance(metadata[field], bool) or metadata[field] < 1
    ]
    if not problems and metadata["total_episodes"] > MAX_EPISODES:
        problems.append(
            f"metadata.json: total_episodes is {metadata['total_episodes']}, expected at most {MAX_EPISODES:,}"
        )
    if metadata.setdefault("data_format", "hdf5") not in {"hdf5", "arrow", "parquet"}:
        problems.append(
            f"metadata.json: data_format is {metadata['data_format']!r:.60}, expected hdf5, arrow or parquet"
        )
    if dataset_id and metadata.get("dataset_id", dataset_id) != dataset_id:
        problems.append(f"metadata.json: dataset_id is {metadata['dataset_id']!r:.60}, expected {dataset_id}")
    refuse(entry.id, problems)
    return metadata


def _entry_from_metadata(entry: Entry, metadata: Mapping[str, Any]) -> Entry:
    low, high = metadata.get("ref_min_score"), metadata.get("ref_max_score")
    score = entry.score
    if isinstance(low, (int, float)) and isinstance(high, (int, float)) and low < high:
        score = Score(float(low), float(high), "the dataset's own metadata")
    return replace(entry, title=entry.title or str(metadata.get("description", ""))[:80], score=score)


def _files_by_episode(
    entry: Entry, inside: Mapping[str, Asset], kind: str, numbers: Sequence[int]
) -> dict[int, list[Asset]]:
    """Return the files of each episode, the table first."""
    files: dict[int, list[Asset]] = {}
    for path, asset in sorted(inside.items(), key=lambda item: not item[0].endswith(kind)):
        match = _EPISODE_FOLDER.fullmatch(path)
        if match is not None and path.endswith((f".{kind}", "/metadata.json")):
            magic = b"PAR1" if path.endswith(".parquet") else b"ARROW1" if path.endswith(".arrow") else b""
            files.setdefault(int(match[1]), []).append(replace(asset, magic=magic, kind=kind if magic else "JSON"))
    problems = []
    for number in numbers:
        tables = sum(asset.path.endswith(f".{kind}") for asset in files.get(number, []))
        if tables != 1:
            problems.append(f"episode {number} has {tables} {kind} files, expected 1")
    refuse(entry.id, first_problems(problems))
    return files


SOURCE = Minari()
