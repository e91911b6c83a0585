"""Downloads: the raw files of a dataset are fetched and converted, and the result is published as a stored dataset."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from datasets_rl import disk, sources
from datasets_rl.disk import MANIFEST_FILE
from datasets_rl.errors import ConversionError, InvalidArgumentError, UnknownKeyError
from datasets_rl.growth import check_contains, grown_selection
from datasets_rl.planning import DownloadOptions, checked_entry, find_files, require_disk_space
from datasets_rl.progress import report
from datasets_rl.remedy import Argument, Call, Remedy
from datasets_rl.settings import Settings
from datasets_rl.sources import Selection
from datasets_rl.store import (
    DatasetPaths,
    add_abandoned_recordings,
    check_own_files,
    dataset_paths,
    has_unfinished_change,
    last_history_entry,
    locate,
    transaction,
)

if TYPE_CHECKING:
    from datasets_rl.fetch.fetcher import Fetcher
    from datasets_rl.format.manifest import Manifest
    from datasets_rl.pipeline.engines import Engine
    from datasets_rl.sources import Listing

__all__ = ["download"]


def download(
    dataset_id: str,
    *,
    root: Path | str | None = None,
    force: bool = False,
    from_local: Path | str | None = None,
    mirrors: Sequence[str] = (),
    hash_check: bool = True,
    keep_raw: bool = False,
    raw_only: bool = False,
    limit_rate: int | None = None,
    selection: Selection | None = None,
    as_stored: bool = False,
    engine: Engine | None = None,
    wait: float = 3600.0,
    settings: Settings | None = None,
) -> Path:
    """Download a dataset: fetch its raw files, check and convert them, and publish the result.

    Repeating an interrupted call resumes it. A dataset that is stored already is unchanged.

    If a dataset consists of several files, a file is converted while the next one is fetched, and deleted when its rows
    are on the disk.

    Args:
        dataset_id: The id with its source, ``d4rl/hopper-medium-v2``.
        root: The folder of the source; by default ``<RLDS_HOME>/<source>``.
        force: Download and convert a stored dataset again; the old version stays until the new one is complete.
        from_local: A raw file, or a folder of raw files, that the user already has; it is read in place.
        mirrors: Base addresses that are tried before those of the upstream, with the same layout below them.
        hash_check: If False, accept files whose size or digest differs from the catalog; the manifest records it.
        keep_raw: Keep the raw files of the dataset.
        raw_only: Fetch and check the raw files without converting them.
        limit_rate: The maximum rate in bytes per second over all connections.
        selection: The selection to download; by default the whole dataset. A stored dataset that lacks some of it
            grows: it is replaced, atomically, by a dataset that contains both selections.
        as_stored: Whether the stored selection, if there is one, decides everything that `selection` leaves open.
        engine: The engine that converts several files at once, `RayEngine()` on a cluster that shares `root`; by
            default processes of this machine. The result does not depend on it.
        wait: Seconds to wait for another process that downloads the same dataset.
        settings: The settings; by default those of the environment.

    Returns:
        The folder of the dataset; with `raw_only` the folder of the raw files.

    Raises:
        UnknownIdError: If there is no such id.
        FetchError: If a file cannot be fetched from any address.
        IntegrityError: If a file differs from the expected one.
        ConversionError: If a file violates its own format.
        InvalidArgumentError: If the dataset does not have the selection; or, without `force`, if a choice contradicts
            the stored one, the stored dataset was preprocessed and lacks a part of the selection, or the files of
            `from_local` are not those from which it was converted.
        DiskFullError: If the disk has too little space.
        LockedError: If another process did not finish in time.
    """
    from datasets_rl.fetch.parallel import Limiter

    settings = settings or Settings.from_env()
    selection = selection or Selection()
    paths = dataset_paths(dataset_id, root=root, settings=settings)
    if sources.split_derived(dataset_id)[1]:
        if force or raw_only:
            raise InvalidArgumentError(
                f"{dataset_id} was derived from another dataset, and cannot be downloaded",
                hint=Remedy("`{}` makes it again", Call("preprocess", ..., force=True)),
            )
        folder = locate(dataset_id, root=root, settings=settings)
        check_contains(folder, selection)
        return folder
    checked_entry(dataset_id, selection)
    add_abandoned_recordings(paths)
    is_stored = paths.exists and not force and not raw_only and not has_unfinished_change(paths)
    if is_stored and grown_selection(paths.folder, selection, as_stored=as_stored) is None:
        _check_files_unchanged(dataset_id, paths, from_local, settings)
        return paths.user_path
    _check_folder(paths)
    if paths.exists and not raw_only:
        check_own_files(paths.folder)
    request = ["download", dataset_id, selection.to_json(), as_stored, force, hash_check, keep_raw, raw_only]
    with transaction(
        paths, dataset_id, request, wait=wait, waiting=lambda owner: _warn(f"waiting for {owner}")
    ) as change:
        if paths.exists and not raw_only and (change.finished or not force):
            if (larger := grown_selection(paths.folder, selection, as_stored=as_stored)) is None:
                return paths.user_path
            selection, keep_raw = larger, keep_raw or _keeps_raw(paths)
        options = DownloadOptions(force, from_local, tuple(mirrors), hash_check, Limiter(limit_rate), keep_raw)
        if not paths.build.exists():
            # Without a build, the journal and the upstream's description are of a dataset that is finished.
            paths.journal.unlink(missing_ok=True)
            if force:
                paths.upstream.unlink(missing_ok=True)
        listing = find_files(dataset_id, paths, settings, options, selection)
        require_disk_space(listing, paths, settings, options, selection, raw_only=raw_only)
        if raw_only:
            files = _make_fetcher(dataset_id, paths, settings, options).fetch(listing.assets)
            return paths.raw if files[0].path.is_relative_to(paths.raw) else files[0].path.parent
        _convert(dataset_id, listing, paths, settings, options, selection, engine)
        # A version that was preprocessed in place cannot be downloaded again, so it is kept.
        given = options.local is not None and options.local.is_relative_to(paths.raw)
        change.publish(keep=bool(last_history_entry(paths)), drop=() if keep_raw or given else (paths.raw,))
    return paths.user_path


def _check_files_unchanged(dataset_id: str, paths: DatasetPaths, local: Path | str | None, settings: Settings) -> None:
    """Check that files of the user are those from which the stored dataset was converted."""
    from datasets_rl.fetch.partial_download import digest_file
    from datasets_rl.fetch.schemes.file import path_of_url
    from datasets_rl.format.manifest import Manifest

    if local is None:
        return
    manifest = Manifest.read(paths.folder)
    with tempfile.TemporaryDirectory(prefix="rlds-plan-") as aside:
        options = DownloadOptions(from_local=local)
        listing = find_files(dataset_id, paths, settings, options, Selection(), aside=Path(aside))
    if not all(asset.urls[0].startswith("file:") for asset in listing.assets):
        return  # files of an upstream, which do not change
    converted_at = (paths.folder / MANIFEST_FILE).stat().st_mtime
    recorded = {file.path: file for file in manifest.raw}
    changed = []
    for asset in listing.assets:
        file, raw = path_of_url(asset.urls[0]), recorded.get(asset.path)
        state = file.stat()
        if raw is None:
            changed += [] if manifest.selection else [f"{asset.path} is new"]
        elif raw.bytes != state.st_size:
            changed.append(f"{asset.path} has {state.st_size:,} bytes, and had {raw.bytes:,}")
        elif state.st_mtime > converted_at and digest_file(file).hexdigest() != raw.sha256:
            changed.append(f"{asset.path} has other bytes")
    changed += [f"{path} is missing" for path in recorded.keys() - {asset.path for asset in listing.assets}]
    if changed:
        more = f", and {len(changed) - 3:,} more" if len(changed) > 3 else ""
        raise InvalidArgumentError(
            f"{dataset_id} is stored, and was converted from other files: {', '.join(changed[:3])}{more}",
            hint=Remedy("{} converts these files and replaces it", Argument("force", True)),
        )


def _keeps_raw(paths: DatasetPaths) -> bool:
    """Return whether the raw files of a stored dataset were kept."""
    from datasets_rl.format.manifest import Manifest

    return all((paths.raw / file.path).is_file() for file in Manifest.read(paths.folder).raw)


def _warn(text: str) -> None:
    print(text, file=sys.stderr)  # noqa: T201 -- the one line that explains a silent wait


def _check_folder(paths: DatasetPaths) -> None:
    disk.check_nesting(paths.folder)
    if paths.folder.exists() and not paths.exists and (not paths.folder.is_dir() or any(paths.folder.iterdir())):
        raise InvalidArgumentError(
            f"{paths.folder} already exists: it holds files that are not a dataset",
            hint="move it, or choose another root",
        )


def _make_fetcher(dataset_id: str, paths: DatasetPaths, settings: Settings, options: DownloadOptions) -> Fetcher:
    from datasets_rl.fetch.fetcher import Fetcher

    return Fetcher(
        paths.raw,
        settings,
        label=dataset_id,
        local=options.local,
        hash_check=options.hash_check,
        limiter=options.limiter,
        force=options.force,
    )


def _convert(
    dataset_id: str,
    listing: Listing,
    paths: DatasetPaths,
    settings: Settings,
    options: DownloadOptions,
    selection: Selection,
    engine: Engine | None,
) -> Manifest:
    from datasets_rl.pipeline.conversion import ConversionJob, convert

    head, name = sources.split_id(dataset_id)
    job = ConversionJob(listing.entry or sources.get_source(head).entry(name), listing, selection)
    try:
        with report(f"converting {dataset_id}", None, unit=" steps", show=settings.progress) as progress:
            return convert(
                job,
                _make_fetcher(dataset_id, paths, settings, options),
                paths.build,
                work=paths.work,
                engine=engine,
                settings=settings,
                keep_raw=options.keep_raw,
                report=progress,
            )
    except ConversionError as error:
        again = Remedy("fetch the file again with {}", Argument("force", True))
        error.hint = error.remedy or (again if options.from_local is None else "give another file")
        raise
    except UnknownKeyError as error:
        if options.from_local is None and not options.force:
            kept = "the fetched files are kept, and are not fetched again"
            error.hint = Remedy("{} {}", error.remedy, kept) if error.remedy else kept
        raise
