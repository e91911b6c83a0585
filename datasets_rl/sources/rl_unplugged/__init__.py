"""RL Unplugged beyond Atari: whole episodes of simulated robots as TFRecords, in a bucket of Google Cloud Storage.

    dm_control_suite_episodes/<task>/train-00000-of-00100                             gzip
    dm_locomotion_episodes/<task>/train-00000-of-00100                                gzip
    rwrl/combined_challenge_<none|easy>/<domain>/<task>/<n>_percent/episodes.tfrecord-00000-of-00003

The Atari games are in `datasets_rl.sources.atari_dqn`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from datasets_rl.errors import ConversionError
from datasets_rl.read.streams import refuse
from datasets_rl.sources.base import Entry, Listing, Selection, Source, by_images, group_files

if TYPE_CHECKING:
    from datasets_rl.fetch.asset import Asset, Folder
    from datasets_rl.fetch.upstream import Upstream
    from datasets_rl.sources.address_files import AddressFiles

__all__ = ["SOURCE", "RLUnplugged"]

_RWRL, _LOCOMOTION = "rwrl", "locomotion"
_FILE = re.compile(r"(?:train|episodes\.tfrecord)-(?P<number>\d{5})-of-(?P<count>\d{5})")
_SHARD_BYTES = 64 << 20
_GROWTH = {"compressed": 1.2, "raw": 2.0}
"""Assumed number of stored bytes per fetched byte of episodes with images, to estimate sizes."""


class RLUnplugged(Source):
    """Source of the tasks of the control suite, of locomotion and of the real-world RL suite."""

    name = "rl_unplugged"
    reader = "datasets_rl.sources.rl_unplugged.reader:RLUnpluggedReader"
    image_forms = ("raw", "compressed")
    selects = frozenset({"episodes"})

    @override
    def addresses(self, name: str) -> Sequence[str]:
        return (f"{self.catalog['bucket']}/{self.facts(name)['folder']}",)

    def resolve(self, name: str, selection: Selection, upstream: Upstream) -> Listing:
        """Group the files of the folder into shards, see `Source.resolve`."""
        entry, path = self.entry(name), self.facts(name)["folder"]
        folder = upstream.folder(path, self.addresses(name))
        listing = self.listing(_complete_files(entry, path, folder.assets), selection)
        growth = by_images(_GROWTH, selection) if name.startswith(f"{_LOCOMOTION}/") and not selection.keys else {}
        return replace(listing, entry=entry, revision=folder.revision, growth=growth)

    @override
    def recognize(self, files: AddressFiles) -> str:
        first = next(filter(_FILE.fullmatch, files.paths), None)
        separator = "" if first is None else _separator(files, first)
        return (
            f"the first record of {first} has observation{separator}..., action, reward and discount"
            if separator
            else ""
        )

    @override
    def resolve_files(self, entry: Entry, folder: Folder, selection: Selection, upstream: Upstream) -> Listing:
        from datasets_rl.sources.address_files import AddressFiles

        files = AddressFiles(folder, entry.name, upstream)
        separator = _separator(files, next(filter(_FILE.fullmatch, files.paths)))
        listing = self.listing(_complete_files(entry, entry.name, folder.assets), selection)
        return replace(listing, params={"separator": separator}, revision=folder.revision)

    @override
    def listing(self, assets: Sequence[Asset], selection: Selection) -> Listing:
        """Group files into shards."""
        kept, shards = group_files(assets, selection, min(_SHARD_BYTES, selection.max_size or _SHARD_BYTES))
        return replace(super().listing(kept, selection), shards=shards)

    @override
    def reader_facts(self, name: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        return params or {"separator": ":" if name.startswith(f"{_RWRL}/") else "/"}


def _separator(files: AddressFiles, path: str) -> str:
    """Return the separator of the names of observations in the first record of a file, or empty for another layout."""
    from datasets_rl.sources.rl_unplugged.reader import inspect_file

    return str(files.inspected(path, inspect_file).get("separator", ""))


def _complete_files(entry: Entry, path: str, assets: Sequence[Asset]) -> list[Asset]:
    """Return the files of a dataset in order, after checking that none is missing."""
    matches = {
        asset.path: match
        for asset in assets
        if asset.path.rpartition("/")[0] == path
        and (match := _FILE.fullmatch(asset.path.rpartition("/")[2])) is not None
    }
    if not matches:
        names = ", ".join(asset.path for asset in assets[:3])
        raise ConversionError(entry.id, [f"{path} has no files of episodes. The first files are {names}"])
    counts = sorted({int(match["count"]) for match in matches.values()})
    missing = sorted({*range(counts[0])} - {int(match["number"]) for match in matches.values()})
    problems = [f"{path} lacks file {number:,} of the {counts[0]:,} that the names state" for number in missing[:20]]
    if len(counts) > 1:
        problems = [f"the names of the files in {path} state {' and '.join(f'{count:,}' for count in counts)} files"]
    refuse(entry.id, problems)
    by_path = {asset.path: asset for asset in assets}
    return [replace(by_path[file], kind="TFRecord") for file in sorted(matches)]


SOURCE = RLUnplugged()
