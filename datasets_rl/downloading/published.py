"""Datasets that are published in the stored format: what an address has, before anything large is fetched, and a copy."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from datasets_rl.downloading.planning import DownloadRequest, find_files
from datasets_rl.downloading.run import copy_published
from datasets_rl.downloading.target import DownloadOptions, Target
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.format.manifest import Manifest
from datasets_rl.settings import Settings
from datasets_rl.sources import Listing
from datasets_rl.store.publish import Build


@dataclass(frozen=True, slots=True)
class Published:
    """A published dataset."""

    address: str
    """The address with a pinned commit."""
    manifest: Manifest


def published_dataset(address: str, *, settings: Settings) -> Published:
    """Return the manifest of a published dataset, ``hf://user/name@revision``. Nothing is stored.

    Raises:
        FetchError: If the manifest cannot be fetched.
        InvalidArgumentError: If the address has no dataset in the stored format.
    """
    with tempfile.TemporaryDirectory(prefix="rlds-published-") as aside:
        listing, manifest = _listed(_request(address, Path(aside), settings))
    return Published(listing.params["address"].rstrip("/"), manifest)


def fetch_published(address: str, build: Build, *, settings: Settings) -> Manifest:
    """Fetch the files of a published dataset into the folder of a build, and return the manifest of the copy.

    A repeated call with the same build continues.

    Raises:
        FetchError, IntegrityError, DiskFullError: If a file cannot be fetched or stored.
        InvalidArgumentError: If the address has no dataset in the stored format.
    """
    request = _request(address, build.work, settings)
    return copy_published(request, _listed(request)[0], build)


def _request(address: str, work: Path, settings: Settings) -> DownloadRequest:
    target = Target.find(address, DownloadOptions(settings=settings))
    return DownloadRequest(target, target.selection, work / "raw", work / "upstream.json")


def _listed(request: DownloadRequest) -> tuple[Listing, Manifest]:
    listing = find_files(request)
    if listing.copied is None:
        raise InvalidArgumentError(
            f"{request.target.id} is no published dataset, but has files of another layout",
            hint="name a repository that push has published",
        )
    return listing, listing.copied
