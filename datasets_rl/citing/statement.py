"""The contract of statements: the facts of a dataset, from which each document is made."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from datasets_rl.catalog.citations import Citation, manifest_citations
from datasets_rl.disk import MANIFEST_FILE
from datasets_rl.errors import DatasetsRLError
from datasets_rl.format.manifest import Manifest
from datasets_rl.format.reader import StoredDataset
from datasets_rl.hub.attached import SPLIT
from datasets_rl.lockfile.lock import LockedMixture
from datasets_rl.sources import find

if TYPE_CHECKING:
    from datasets_rl.auditing import Audit

_YEAR = re.compile(r"year\s*=\s*[{\"]?\s*(\d{4})")
_UPSTREAM_VERSION = re.compile(r"[-_]v(\d+)(?:@.*)?$")


@dataclass(frozen=True, slots=True)
class Statement:
    """The facts of a stored dataset."""

    id: str
    """The id under which the dataset is stored, or the id in the manifest."""
    manifest: Manifest
    citations: tuple[Citation, ...]
    audit: Audit | None
    """None if no audit was made."""
    splits: tuple[str, ...]
    """The splits that the upstream states, a sentence each."""
    shares: tuple[str, ...]
    """The share of the dataset in each mixture of the lock, a sentence each."""
    stored: str
    """The day on which the version was stored, in UTC, such as 2026-11-28."""
    lock: str = ""
    """The name of the lock that has the dataset. Empty without a lock."""
    description: str = ""
    """The description of the whole dataset in the catalog. Empty for derived datasets and for parts."""

    @classmethod
    def of(
        cls,
        folder: Path,
        name: str,
        *,
        audit: Audit | None = None,
        mixtures: Sequence[LockedMixture] = (),
        lock: str = "",
    ) -> Statement:
        """Return the statement of a stored dataset.

        Args:
            folder: The folder of the version.
            name: The id under which the dataset is stored, as in the lock.
            audit: The audit of the dataset.
            mixtures: The mixtures of the lock.
            lock: The name of the lock.
        """
        stored = StoredDataset(folder)
        citations = {one.key: one for one in manifest_citations(stored.manifest)}
        written = datetime.fromtimestamp((folder / MANIFEST_FILE).stat().st_mtime, timezone.utc)
        return cls(
            name,
            stored.manifest,
            tuple(citations.values()),
            audit,
            tuple(_splits(stored)),
            tuple(_shares(name, mixtures)),
            written.date().isoformat(),
            lock,
            _description(stored.manifest),
        )

    @property
    def year(self) -> str:
        """The year of the last publication that the dataset cites. Empty if no entry has a year."""
        return max((year for one in self.citations for year in _YEAR.findall(one.bibtex)), default="")

    @property
    def upstream_version(self) -> str:
        """The version number at the end of the name: 2 of ``d4rl/hopper-medium-v2``. Empty if the name has none."""
        found = _UPSTREAM_VERSION.search(self.manifest.id)
        return found[1] if found else ""

    @property
    def is_license_stated(self) -> bool:
        """Whether the upstream states a license."""
        return bool(self.manifest.license) and not self.manifest.license.lower().startswith("not stated")


def _splits(stored: StoredDataset) -> Iterator[str]:
    """Yield the number of episodes of each split that the upstream states."""
    if SPLIT not in stored.episodes.metadata_names:
        return
    values = np.asarray(stored.episodes[SPLIT])
    for name, count in sorted(Counter(map(str, values.tolist())).items()):
        episodes = "1 episode has" if count == 1 else f"{count:,} episodes have"
        yield f"{episodes} the split {name}, as the upstream states"


def _description(manifest: Manifest) -> str:
    if manifest.history or manifest.selection:
        return ""
    with suppress(DatasetsRLError):  # an id that no catalog has
        return find(manifest.id).description
    return ""


def _shares(name: str, mixtures: Sequence[LockedMixture]) -> Iterator[str]:
    for mixture in mixtures:
        weights = [member.get("weight") for member in mixture.members]
        total = sum(weight for weight in weights if weight is not None)
        for member, weight in zip(mixture.members, weights, strict=True):
            if member.get("dataset") == name:
                share = "a share by its size" if weight is None else f"the weight {weight:g}"
                of_all = "" if None in weights else f" of {total:g}"
                yield f"{mixture.file} draws from the dataset with {share}{of_all}"
