"""Open X-Embodiment: episodes of many robots, as the authors published the episodes, and on a mirror.

    <id>/<version>/features.json, dataset_info.json, <id>-<split>.tfrecord-00000-of-00008        Google's buckets
    <id>/<id>_00000.tar                                                                     the hub: pickled episodes

The records come with the types of the values, the number of episodes of each file, and checksums. The mirror has one
split, and is used if the buckets do not answer.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from datasets_rl.errors import Argument, Call, ConversionError, FetchError, InvalidArgumentError, Remedy
from datasets_rl.read.streams import refuse
from datasets_rl.sources.base import Entry, Listing, Selection, Shard, Source, by_images, group_by_size
from datasets_rl.sources.selection import IMAGES, MAX_EPISODES, Numbers, Option, read_numbers
from datasets_rl.ted.keys import NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, Key

if TYPE_CHECKING:
    from datasets_rl.fetch.asset import Folder
    from datasets_rl.fetch.upstream import Upstream
    from datasets_rl.read.tfds import Schema
    from datasets_rl.sources.address_files import AddressFiles

__all__ = ["SOURCE", "OpenX"]

_ID = re.compile(r"[A-Za-z0-9_]+")
_FEATURES_PATH = re.compile(r"([\d.]+/)?features\.json")
_TRAIN = "train"
_FEATURES, _INFO = "features.json", "dataset_info.json"
_SHARD_BYTES = 64 << 20
_SMALLER = {"jpeg": 0.12, "png": 0.6}  # assumed number of encoded bytes per byte of pixels, to estimate sizes
_RECORDS = re.compile(r".*/[^/]+?-(?P<split>[^/-]+)\.tfrecord-(?P<number>\d{5})-of-(?P<count>\d{5})")


class OpenX(Source):
    """Source of every dataset in the folders of the collection. The catalog lists the datasets that are known to exist."""

    name = "openx"
    reader = "datasets_rl.sources.openx.reader:OpenXReader"
    restated = frozenset({"citation", "known_issues"})
    selects = frozenset({"episodes"})
    options = (
        Option(
            "upstream",
            "The records in Google's buckets, or the mirror of the records on the hub.",
            choices=("rlds", "hub"),
        ),
        Option("split", "Split of the records.", _TRAIN, choices=(_TRAIN, "test", "val")),
        Option(
            "last-step",
            "The last step is the state after the last action (observation), or has an action too (transition).",
            "observation",
            choices=("observation", "transition"),
        ),
    )

    @override
    def listed_facts(self, name: str) -> dict[str, Any]:
        """Return the facts of an id. An id that the catalog does not list has an empty title.

        Raises:
            UnknownIdError: If the id has characters other than letters, digits and underscores.
        """
        if not _ID.fullmatch(name):
            raise self.unknown(name)
        return dict(self.catalog["ids"].get(name, {"in": "arm", "title": ""}))

    @override
    def addresses(self, name: str) -> Sequence[str]:
        hub = [self.catalog["hub"]] if self.catalog["ids"].get(name, {}).get("hub") else []
        return [address.format(id=name) for address in (*self.catalog["rlds"], *hub)]

    def resolve(self, name: str, selection: Selection, upstream: Upstream) -> Listing:
        """Group the files of the newest version into shards, see `Source.resolve`."""
        entry = self.entry(name)
        folder = self._list_folder(name, selection, upstream)
        version = _newest_version(folder)
        if version is not None and selection.options.get("upstream") != "hub":
            return _list_records(entry, folder, version, selection, upstream, _params(selection))
        return _list_archives(entry, folder, selection, _params(selection))

    @override
    def recognize(self, files: AddressFiles) -> str:
        # The folder of a version, or the folder above: further below are other datasets.
        for path in (path for path in files.paths if _FEATURES_PATH.fullmatch(path)):
            described = f"{path.removesuffix(_FEATURES)}{_INFO}"
            features = files.document(path).get("featuresDict")
            if described in files.paths and isinstance(features, dict) and "steps" in features.get("features", {}):
                return f"{path} has steps, and {described} is beside {path}"
        return ""

    @override
    def resolve_files(self, entry: Entry, folder: Folder, selection: Selection, upstream: Upstream) -> Listing:
        version = _newest_version(folder) or entry.name
        return _list_records(entry, folder, version, selection, upstream, _params(selection))

    def _list_folder(self, name: str, selection: Selection, upstream: Upstream) -> Folder:
        choice, split = selection.options.get("upstream"), selection.options.get("split") or _TRAIN
        if choice == "hub" and split != _TRAIN:
            raise InvalidArgumentError(
                f"split is {split!r}, but the mirror has only {_TRAIN}",
                hint=Remedy(
                    "{} has all splits", Argument("selection", Call("Selection", options={"upstream": "rlds"}))
                ),
            )
        records = [url.format(id=name) for url in self.catalog["rlds"]]
        mirror = [self.catalog["hub"].format(id=name)] if split == _TRAIN else []
        try:
            return upstream.folder(name, {"rlds": records, "hub": mirror}.get(choice or "", records + mirror))
        except FetchError as error:
            if name not in self.catalog["ids"]:
                nearest = self.unknown(name).nearest
                error.hint = f"the catalog has no such id. Similar ids: {', '.join(nearest) or 'none'}"
            raise


def _params(selection: Selection) -> dict[str, Any]:
    return {
        "images": selection.options.get(IMAGES.name, "encoded"),
        "last": selection.options.get("last-step") or "observation",
    }


def _newest_version(folder: Folder) -> str | None:
    """Return the folder of the newest version of the records, or None if there are no records."""
    folders = [asset.path.rpartition("/")[0] for asset in folder.assets if asset.path.endswith(f"/{_FEATURES}")]
    return max(folders, key=_version_of_path, default=None)


def _version_of_path(path: str) -> tuple[int, ...]:
    numbers = path.rpartition("/")[2].split(".")
    return tuple(map(int, numbers)) if all(number.isdecimal() for number in numbers) else ()


def _selected_parts(lengths: Sequence[int], selection: Selection) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number of each file that has selected episodes, and the part of its `Shard` without the path."""
    selected = read_numbers(selection.episodes, sum(lengths)) if selection.episodes else None
    first = 0
    for number, count in enumerate(lengths):
        rows = None
        if selected is not None:
            inside = slice(bisect_left(selected, first), bisect_left(selected, first + count))
            rows = [episode - first for episode in selected[inside]]
        if count and rows != []:
            yield number, {"first": first, "count": count, "rows": rows}
        first += count


def _list_records(
    entry: Entry, folder: Folder, path: str, selection: Selection, upstream: Upstream, params: Mapping[str, Any]
) -> Listing:
    split = selection.options.get("split") or _TRAIN
    inside = {asset.path: asset for asset in folder.assets if asset.path.startswith(f"{path}/")}
    features, described = (inside.get(f"{path}/{name}") for name in (_FEATURES, _INFO))
    if features is None or described is None:
        raise ConversionError(entry.id, [f"{path} has no dataset_info.json, which states the number of episodes"])
    info, lengths = _parse_info(upstream.text(described), entry, split)
    matches = {_RECORDS.fullmatch(file_path): asset for file_path, asset in inside.items()}
    files = {
        int(match["number"]): replace(asset, kind="TFRecord")
        for match, asset in matches.items()
        if match is not None and match["split"] == split and int(match["count"]) == len(lengths)
    }
    if not files:
        problem = f"{path} has no {len(lengths)} files of the split {split}, which dataset_info.json states"
        raise ConversionError(entry.id, [problem])
    parts = [*_selected_parts(lengths, selection)]
    missing = [number for number, _ in parts if number not in files]
    if missing:
        problems = [f"{path} lacks file {number} of the {len(lengths)} files of {split}" for number in missing[:20]]
        raise ConversionError(entry.id, problems)
    chosen = [(files[number], {"path": files[number].path, **part}) for number, part in parts]
    metadata = {"version": path.rpartition("/")[2], "split": split, "upstream": "rlds"}
    metadata |= {name: info[name] for name in ("name", "description") if isinstance(info.get(name), str)}
    citation = info.get("citation")
    from datasets_rl.read.tfds import Schema

    schema = Schema(upstream.text(features), features.path)
    return Listing(
        (features, described, *(asset for asset, _ in chosen)),
        tuple(
            Shard(tuple(asset.path for asset, _ in group), [part for _, part in group])
            for group in group_by_size(chosen, (asset.size or 0 for asset, _ in chosen), _SHARD_BYTES)
        ),
        common=(features.path, described.path),
        params={**params, "features": features.path, "metadata": metadata},
        keys=_step_keys(schema),
        growth=_growth_by_images(_step_bytes(schema), selection),
        entry=replace(entry, citation=citation if isinstance(citation, str) and citation else entry.citation),
        revision=folder.revision or metadata["version"],
    )


def _parse_info(text: str, entry: Entry, split: str) -> tuple[dict[str, Any], list[int]]:
    """Parse and validate dataset_info.json.

    Returns:
        The document, and the number of episodes of each file of the split.
    """
    try:
        info = json.loads(text)
        splits = {str(item["name"]): item for item in info["splits"]}
    except (ValueError, RecursionError, TypeError, KeyError) as error:
        problem = f"dataset_info.json does not describe splits: {type(error).__name__} {error}"
        raise ConversionError(entry.id, [problem]) from error
    problems = []
    if (file_format := info.get("fileFormat", "tfrecord")) != "tfrecord":
        problems.append(f"dataset_info.json: fileFormat is {file_format!r:.40}, expected tfrecord")
    if not problems and split not in splits:
        raise InvalidArgumentError(f"split is {split!r}, but {entry.id} has {', '.join(sorted(splits)) or 'none'}")
    stated = splits.get(split, {}).get("shardLengths", [])
    lengths = [int(length) for length in stated if str(length).isdecimal()] if isinstance(stated, list) else []
    if not problems and (not lengths or len(lengths) != len(stated)):
        problems.append(f"dataset_info.json: shardLengths of {split} are {stated!r:.60}, expected integers >= 0")
    if not problems and not 0 < sum(lengths) <= MAX_EPISODES:
        problems.append(
            f"dataset_info.json: the split {split} has {sum(lengths):,} episodes, expected 1 to {MAX_EPISODES:,}"
        )
    refuse(entry.id, problems)
    return info, lengths


def _list_archives(entry: Entry, folder: Folder, selection: Selection, params: Mapping[str, Any]) -> Listing:
    assets = [replace(asset, kind="tar") for asset in folder.assets if asset.path.endswith(".tar")]
    if not assets:
        names = ", ".join(asset.path for asset in folder.assets[:5])
        raise ConversionError(entry.id, [f"it has neither features.json nor tar archives. The first files are {names}"])
    numbers = Numbers.read(selection.episodes)
    # No archive has to give more episodes than the number of the last selected episode plus 1.
    most = None if numbers is None else numbers.last + 1
    return Listing(
        tuple(assets),
        tuple(Shard((asset.path,), [{"path": asset.path, "most": most}]) for asset in assets),
        params={**params, "metadata": {"split": _TRAIN, "upstream": "hub"}},
        entry=replace(entry, known_issues=(SOURCE.catalog["hub_known_issue"], *entry.known_issues)),
        revision=folder.revision,
        growth=_growth_by_images((1.0, 1 / _SMALLER["jpeg"], 1.0), selection),
        numbers=numbers,
    )


def _growth_by_images(sizes: tuple[float, float, float], selection: Selection) -> dict[str, float]:
    fetched, raw, encoded = sizes
    # Images of cameras have nothing in common that a dictionary could hold.
    return by_images({"encoded": encoded / fetched, "raw": raw / fetched, "compressed": raw / fetched}, selection)


def _step_keys(schema: Schema) -> list[Key]:
    """Return every field of a step."""
    from datasets_rl.sources.openx.episodes import key_by_feature
    from datasets_rl.sources.openx.reader import stored_key

    # Numbers of a whole episode are stored as metadata of the episode, and end flags as other flags.
    paths = {
        name: path for name, path in key_by_feature(schema).items() if path not in {("is_last",), ("is_terminal",)}
    }
    fields = [
        path for name, path in paths.items() if name.startswith("steps/") or schema.leaves[name].kind != "numbers"
    ]
    return [*dict.fromkeys([*map(stored_key, fields), NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED])]


def _step_bytes(schema: Schema) -> tuple[float, float, float]:
    """Estimate the bytes of a step: in a record, stored with pixels, and stored with encoded images."""
    fetched = decoded = encoded = 1.0
    for leaf in schema.leaves.values():
        size = math.prod(size or 1 for size in leaf.shape) * (leaf.dtype.itemsize if leaf.kind != "text" else 4)
        small = size * _SMALLER[leaf.encoding or "jpeg"] if leaf.kind == "image" else size
        wide = size * 2 if leaf.kind == "image" and leaf.dtype.itemsize == 2 else size  # depth becomes int32
        fetched, decoded = fetched + small, decoded + wide
        encoded += small if leaf.dtype.itemsize == 1 else wide
    return fetched, decoded, encoded


SOURCE = OpenX()
