"""Fetching of the raw files of a dataset, with the settings of a download."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from datasets_rl import disk
from datasets_rl.fetch.asset import Asset, Fetched
from datasets_rl.fetch.download import fetch, fetch_local, remaining_bytes
from datasets_rl.fetch.parallel import CancelToken, Limiter
from datasets_rl.fetch.partial_download import remove_with_record
from datasets_rl.progress import CountingReport, Report, report
from datasets_rl.settings import Settings


@dataclass(frozen=True)
class Fetcher:
    """The origin and the destination of a dataset's raw files."""

    folder: Path
    """Folder for the fetched files. Each file is written to `folder / asset.path`."""
    settings: Settings
    label: str = ""
    """The name of the progress bar."""
    local: Path | None = None
    """A raw file of the user, or a folder of raw files, which are read in place. No request is sent."""
    hash_check: bool = True
    """Whether sizes and digests are compared."""
    limiter: Limiter | None = None
    """The rate that all files share."""
    force: bool = False
    """Whether complete files in the folder are fetched again."""
    progress: Report | None = None
    """Receives the bytes, instead of a progress bar for each call."""

    def fetch(self, assets: Sequence[Asset], cancel: CancelToken | None = None) -> list[Fetched]:
        """Fetch files, or find the files in `local`.

        Raises:
            FetchError, IntegrityError, DiskFullError: If a file cannot be fetched or found.
        """
        listed = all(asset.is_local for asset in assets)
        if self.local is not None and not listed:
            return fetch_local(assets, self.local, hash_check=self.hash_check)
        if self.force:
            for asset in assets:
                # Unfinished downloads stay: a resumed download checks the existing bytes.
                disk.remove_tree(self.folder / asset.path)
        return fetch(
            assets,
            self.folder,
            settings=self.settings,
            hash_check=self.hash_check,
            limiter=self.limiter,
            label=self.label,
            advance=self.progress,
            cancel=cancel,
        )

    @contextmanager
    def for_groups(self, groups: Sequence[Sequence[Asset]]) -> Iterator[Fetcher]:
        """Yield a fetcher for one call per group. All calls share a progress bar."""
        if len(groups) == 1:
            yield self
            return
        assets = [asset for group in groups for asset in group]
        show = self.settings.progress and self.local is None
        with report(self.label, remaining_bytes(assets, self.folder), show=show) as progress:
            yield replace(self, progress=CountingReport(progress))

    def drop(self, paths: Iterable[Path]) -> None:
        """Delete fetched files. Files of the user stay."""
        for path in paths:
            if path.is_relative_to(self.folder):
                remove_with_record(path)
