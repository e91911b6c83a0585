"""ExORL: the replay buffers of agents that explored domains of the DM control suite, one zip file per id.

    <domain>/<algorithm>.zip       buffer/episode_000000_1000.npz       one episode each: its number and its steps
                                   video/...                            not read

The zip file is read in place, in parts of whole episodes. A folder of the unpacked files is read in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from datasets_rl.errors import FetchError
from datasets_rl.sources.base import (
    Entry,
    EpisodeReader,
    Listing,
    Selection,
    Shard,
    Source,
    SpaceSummary,
    group_by_size,
)
from datasets_rl.sources.exorl.names import episode_order
from datasets_rl.sources.selection import Numbers

if TYPE_CHECKING:
    from datasets_rl.fetch.asset import Asset
    from datasets_rl.fetch.upstream import Upstream

__all__ = ["SOURCE", "ExORL"]

_FOLDERS = ("", "buffer")
"""Folders with episodes below the folder of an id, or of the user."""
_SHARD_BYTES = 64 << 20
_UNSIZED_SHARDS = 16
"""Shards of a zip file whose size no address reports."""
_ZIP = b"PK\x03\x04"
_GROWTH = {"": 1.1}
"""Assumed number of stored bytes per fetched byte, to estimate sizes: that of generated episodes."""


class ExORL(Source):
    """Source of six domains, each explored by nine algorithms."""

    name = "exorl"
    image_forms = ()
    selects = frozenset({"episodes"})

    @override
    def ids(self) -> Sequence[str]:
        catalog = self.catalog
        return sorted(f"{domain}/{algorithm}" for domain in catalog["domains"] for algorithm in catalog["algorithms"])

    @override
    def entry(self, name: str) -> Entry:
        domain, _, algorithm = name.partition("/")
        catalog = self.catalog
        if domain not in catalog["domains"] or algorithm not in catalog["algorithms"]:
            raise self.unknown(name)
        facts, steps = catalog["domains"][domain], catalog["steps"]
        # Of each step: float32 for the observation, the action, the reward and the discount, and float64 for the physics.
        step_bytes = 4 * (facts["observation"] + facts["action"] + 2) + 8 * facts["physics"]
        size = [int(steps * step_bytes * catalog["ratio"]), "values"]
        return self.catalog_entry(
            name,
            title=f"{facts['title']}, explored by {catalog['algorithms'][algorithm]}",
            description=f"{catalog['description']} Tasks of the domain: {facts['tasks']}.",
            observation=SpaceSummary("state", (facts["observation"],)),
            action=SpaceSummary("continuous", (facts["action"],), None, -1, 1),
            **self.figures(
                {
                    "bytes": [catalog["bytes"][name], "server"] if name in catalog["bytes"] else size,
                    "steps": [steps, "paper"],
                    "episodes": [steps // facts["time_limit"], "limit"],
                }
            ),
            tags=("dm_control", "exploration", "unsupervised"),
            known_issues=tuple(catalog["known_issues"]),
            time_limit=facts["time_limit"],
        )

    @override
    def assets(self, name: str) -> Sequence[Asset]:
        from datasets_rl.fetch.asset import Asset

        self.entry(name)
        path = f"{name}.zip"
        return (Asset((self.catalog["base_url"] + path,), path, magic=_ZIP, kind="zip"),)

    def resolve(self, name: str, selection: Selection, upstream: Upstream) -> Listing:
        """Split the zip file, or a folder of its files, into shards; see `Source.resolve`."""
        entry = self.entry(name)
        params = {"keys": list(selection.keys)}
        numbers = Numbers.read(selection.episodes)
        if unpacked := _unpacked_episodes(name, upstream):
            # Files are excluded before they are grouped, because a shard with an excluded file is dropped completely.
            unpacked = [asset for asset in unpacked if selection.keeps_file(asset.path)] or unpacked
            return Listing(
                tuple(unpacked),
                tuple(
                    Shard(tuple(asset.path for asset in group))
                    for group in group_by_size(unpacked, (asset.size or 0 for asset in unpacked), _SHARD_BYTES)
                ),
                params=params,
                entry=entry,
                growth=_GROWTH,
                numbers=numbers,
            )
        (asset,) = self.assets(name)
        asset = upstream.with_size(asset)
        count = _UNSIZED_SHARDS if asset.size is None else max(1, -(-asset.size // _SHARD_BYTES))
        return Listing(
            (asset,),
            tuple(Shard((asset.path,), [number, count]) for number in range(count)),
            params=params,
            entry=entry,
            growth=_GROWTH,
            numbers=numbers,
        )

    @override
    def open(self, name: str, files: Mapping[str, Path], params: Mapping[str, Any] | None = None) -> EpisodeReader:
        from datasets_rl.sources.exorl.reader import ExORLReader

        return ExORLReader(f"{self.name}/{name}", files, (params or {}).get("keys", ()))


def _unpacked_episodes(name: str, upstream: Upstream) -> list[Asset]:
    """Return the files of episodes in a folder of the user, or of a mirror that lists folders; none if it has the zip file."""
    try:
        listed = upstream.folder(name, ()).assets
    except FetchError:
        return []  # neither a folder nor a mirror that lists files
    found = {asset.path.removeprefix(f"{name}/"): asset for asset in listed}
    if f"{name}.zip" in found:
        return []
    ordered = sorted(
        (order, asset)
        for path, asset in found.items()
        if path.rpartition("/")[0] in _FOLDERS and (order := episode_order(path)) is not None
    )
    return [replace(asset, magic=_ZIP, kind="npz") for _, asset in ordered]


SOURCE = ExORL()
