"""Small datasets of known content on disk, those of `datasets_rl.testing`, and their digests computed by hand."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from datasets_rl.format.manifest import Manifest
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import Column
from datasets_rl.read.compressed_frames import FrameDictionary
from datasets_rl.store import version_folder
from datasets_rl.ted.keys import Key
from datasets_rl.testing.stored_data import (
    FLAGS,
    Model,
    Trajectory,
    Whole,
    columns,
    plain,
    trajectory,
    write_dataset,
)

__all__ = [
    "FLAGS",
    "Model",
    "Trajectory",
    "Whole",
    "columns",
    "plain",
    "reseal",
    "store_dataset",
    "trajectory",
    "write_dataset",
    "write_manifest_with_digest",
]


def store_dataset(
    folder: Path,
    trajectories: Sequence[Trajectory],
    of: Sequence[Column] | None = None,
    dictionaries: Mapping[Key, FrameDictionary] | None = None,
    **manifest: Any,
) -> StoredDataset:
    """Store trajectories as the first version of the dataset in a folder, which commands can change; see `write_dataset`."""
    write_dataset(folder / "version", trajectories, of, dictionaries, **manifest)
    version = folder / f"0001-{Manifest.read(folder / 'version').digest[:8]}"
    (folder / "version").rename(version)
    (folder / "CURRENT").write_text(f"{version.name}\n")
    return StoredDataset(folder)


def write_manifest_with_digest(folder: Path, document: dict[str, Any] | None = None) -> None:
    """Write a manifest with the digest that FORMAT.md specifies, so that its content passes as intact."""
    folder = version_folder(folder)
    document = json.loads((folder / "manifest.json").read_text()) if document is None else document
    content = {name: value for name, value in document.items() if name != "digest"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    document = {**content, "digest": hashlib.sha256(text.encode()).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps(document))


def ranges_by_hand(data: bytes) -> bytes:
    """Return the SHA-256 of each range of a file, joined, as FORMAT.md specifies them."""
    return b"".join(hashlib.sha256(data[at : at + 262_144]).digest() for at in range(0, len(data), 262_144))


def digest_by_hand(data: bytes) -> str:
    """Return the digest of a file in the manifest, as FORMAT.md specifies it."""
    return hashlib.sha256(ranges_by_hand(data)).hexdigest()


def reseal(folder: Path, document: dict[str, Any] | None = None) -> None:
    """Write the digests of the files as they are now, as FORMAT.md specifies them, so that a changed file passes as intact.

    Args:
        folder: The dataset.
        document: The content of the manifest; by default the one in the folder.
    """
    folder = version_folder(folder)
    document = json.loads((folder / "manifest.json").read_text()) if document is None else document
    digests = []
    for entry in sorted(document["files"], key=lambda entry: entry["path"]):
        data = (folder / entry["path"]).read_bytes()
        ranges = ranges_by_hand(data)
        entry.update(bytes=len(data), digest=hashlib.sha256(ranges).hexdigest())
        if entry["path"] != "digests.npy" and not entry["path"].startswith("metadata/"):
            digests.append(ranges)
    for entry in document["files"]:
        if entry["path"] == "digests.npy":
            path = folder / "digests.npy"
            np.save(path, np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32))
            entry.update(bytes=path.stat().st_size, digest=digest_by_hand(path.read_bytes()))
    write_manifest_with_digest(folder, document)
