"""Datasets that are published in the stored format: what an address has, before anything large is fetched."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from datasets_rl.downloading.planning import DownloadRequest, find_files
from datasets_rl.downloading.target import DownloadOptions, Target
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.format.manifest import Manifest
from datasets_rl.settings import Settings


@dataclass(frozen=True, slots=True)
class Published:
    """A published dataset."""

    address: str
    """The address with a pinned commit."""
    manifest: Manifest


def published_dataset(address: str, *, settings: Settings | None = None) -> Published:
    """Return the manifest of a published dataset, ``hf://user/name@revision``. Nothing is stored.

    Raises:
        FetchError: If the manifest cannot be fetched.
        InvalidArgumentError: If the address has no dataset in the stored format.
    """
    with tempfile.TemporaryDirectory(prefix="rlds-published-") as aside:
        target = Target.find(address, DownloadOptions(root=Path(aside), settings=settings))
        request = DownloadRequest(target, target.selection, Path(aside), Path(aside, "upstream.json"))
        listing = find_files(request, aside=Path(aside))
    if listing.copied is None:
        raise InvalidArgumentError(
            f"{address} has no published dataset, but files of another layout",
            hint="name a repository that push has published",
        )
    return Published(listing.params["address"].rstrip("/"), listing.copied)
