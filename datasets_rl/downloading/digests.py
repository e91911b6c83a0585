"""Sizes and digests of the files that a catalog lists: of the stored copy, and from each address.

The hub reports the sha256 of a large file without sending the file, and a web server the size. Addresses that agree
serve the same file, also where the upstream publishes no digest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from datasets_rl import sources
from datasets_rl.errors import InvalidArgumentError, Remedy
from datasets_rl.fetch.asset import Asset
from datasets_rl.fetch.probe import probe_all
from datasets_rl.settings import Settings
from datasets_rl.store import dataset_paths
from datasets_rl.store.find import stored_manifest

CATALOG, STORED = "the catalog", "the stored copy"


@dataclass(frozen=True, slots=True)
class ReportedDigest:
    """What a place states about a file."""

    origin: str
    """The address, or "the catalog", or "the stored copy"."""
    size: int | None = None
    sha256: str | None = None
    problem: str = ""
    """Why an address states nothing. Empty if it does."""


@dataclass(frozen=True, slots=True)
class FileDigests:
    """The sizes and the digests that are reported of a file, and by whom."""

    dataset_id: str
    path: str
    """The path of the upstream."""
    reported: tuple[ReportedDigest, ...]

    @property
    def sizes(self) -> set[int]:
        """The different sizes, several if the places contradict each other."""
        return {one.size for one in self.reported if one.size is not None}

    @property
    def digests(self) -> set[str]:
        """The different digests."""
        return {one.sha256 for one in self.reported if one.sha256 is not None}

    @property
    def agree(self) -> bool:
        """Whether no place contradicts another place."""
        return len(self.sizes) < 2 and len(self.digests) < 2

    @property
    def entry(self) -> dict[str, int | str]:
        """The size and the sha256 for the catalog. Empty if unknown or uncertain."""
        if not self.agree or not self.sizes or not self.digests:
            return {}
        return {"size": next(iter(self.sizes)), "sha256": next(iter(self.digests))}


def file_digests(dataset_id: str, *, settings: Settings | None = None) -> list[FileDigests]:
    """Return the reported sizes and digests of each file of an id, without downloading any.

    Args:
        dataset_id: The id.
        settings: The settings. By default the settings of the environment. Offline, no address is asked.

    Raises:
        UnknownIdError: If there is no such id.
        InvalidArgumentError: If the upstream lists the files of the source, with digests.
    """
    settings = settings or Settings.from_env()
    entry = sources.find(dataset_id)
    try:
        assets = sources.get_source(entry.source).assets(entry.name)
    except NotImplementedError:
        raise InvalidArgumentError(
            f"the catalog lists no files of {entry.id}: the upstream lists the files, with digests",
            hint=Remedy("the manifest of a stored dataset has the digests of its files"),
        ) from None
    manifest = stored_manifest(dataset_paths(entry.id, settings=settings))
    stored = {} if manifest is None else {file.path: file for file in manifest.raw}
    found = []
    for asset in assets:
        reported = [ReportedDigest(CATALOG, asset.size, asset.sha256)] if asset.size or asset.sha256 else []
        if asset.path in stored:
            reported.append(ReportedDigest(STORED, stored[asset.path].bytes, stored[asset.path].sha256))
        found.append(FileDigests(entry.id, asset.path, (*reported, *_ask(asset, settings))))
    return found


def _ask(asset: Asset, settings: Settings) -> Sequence[ReportedDigest]:
    if settings.offline:
        return [ReportedDigest(url, problem="not asked: the network is off") for url in asset.urls]
    probes = probe_all(asset.urls, settings)
    return [ReportedDigest(one.url, one.size if not one.problem else None, one.sha256, one.problem) for one in probes]
