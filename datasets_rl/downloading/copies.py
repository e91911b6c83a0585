"""Files without a published digest: what is compared instead.

    a stored version recorded the digest          every address must serve the same file at the next fetch
    a further address of the catalog has it       the number of steps must agree with the catalog, beside the shapes

The first address is that of the upstream, and the others have copies by third parties. A mirror of the user is trusted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from urllib.parse import urlsplit

from datasets_rl import sources
from datasets_rl.errors import ManifestError
from datasets_rl.fetch.asset import Asset
from datasets_rl.format.manifest import Manifest, RawFile
from datasets_rl.sources import Entry, Listing
from datasets_rl.store import DatasetPaths
from datasets_rl.store.find import stored_manifest

_TOLERANCE = {"exact": 1.0, "recorded": 1.01, "estimated": 2.0}
"""Ratio up to which the number of steps may differ from the catalog, by how well the number is known."""


def expecting_recorded(listing: Listing, entry: Entry, paths: DatasetPaths) -> Listing:
    """Return a listing in which files without a known digest must have the digest that the stored dataset recorded."""
    unknown = {asset.path for asset in _unknown_files(entry)}
    manifest = None
    with suppress(ManifestError):
        manifest = stored_manifest(paths) if unknown else None
    recorded = {} if manifest is None else {file.path: file.sha256 for file in manifest.raw if file.path in unknown}
    assets = (replace(asset, sha256=asset.sha256 or recorded.get(asset.path)) for asset in listing.assets)
    return replace(listing, assets=tuple(assets))


def copied_files(manifest: Manifest, entry: Entry) -> list[RawFile]:
    """Return the raw files that are copies by a third party, which alone may state a digest.

    Args:
        manifest: The manifest of the stored dataset.
        entry: The catalog entry, of the original dataset for a derived dataset.
    """
    files = {file.path: file for file in manifest.raw}
    found = []
    for asset in _unknown_files(entry):
        first, *others = [urlsplit(url).netloc for url in asset.urls]
        if asset.path in files and urlsplit(files[asset.path].url).netloc in {*others} - {first}:
            found.append(files[asset.path])
    return found


def copy_problems(manifest: Manifest, entry: Entry) -> Iterator[str]:
    """Yield how a dataset that was converted from such copies contradicts the catalog.

    A part of a dataset has fewer steps.
    """
    if not {asset.path for asset in _unknown_files(entry)} <= {file.path for file in manifest.raw}:
        return
    kind = entry.basis["steps"].kind if "steps" in entry.basis else "exact"
    if entry.steps and not entry.steps / _TOLERANCE[kind] <= manifest.steps <= entry.steps * _TOLERANCE[kind]:
        about = "" if kind == "exact" else "about "
        yield f"the dataset has {manifest.steps:,} steps, expected {about}{entry.steps:,} as in the catalog"


def _unknown_files(entry: Entry) -> list[Asset]:
    """Return the files in a catalog entry without a digest."""
    try:
        assets = sources.get_source(entry.source).assets(entry.name)
    except NotImplementedError:
        return []
    return [asset for asset in assets if asset.urls and asset.sha256 is None and asset.md5 is None]
