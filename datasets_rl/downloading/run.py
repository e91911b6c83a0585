"""Downloads: the raw files of a dataset are fetched and converted, and the result is published as a stored dataset."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from datasets_rl import sources
from datasets_rl.disk import MANIFEST_FILE
from datasets_rl.downloading.growth import check_contains, check_episodes, grown_selection
from datasets_rl.downloading.planning import DownloadRequest, find_files, require_disk_space
from datasets_rl.errors import ConversionError, InvalidArgumentError, UnknownKeyError
from datasets_rl.fetch.upstream import ANSWERS_FILE
from datasets_rl.progress import report
from datasets_rl.remedy import Argument, Call, Remedy
from datasets_rl.settings import Settings
from datasets_rl.sources import Selection
from datasets_rl.store import (
    DatasetPaths,
    check_folder,
    check_own_files,
    dataset_paths,
    has_unfinished_change,
    is_present,
    last_history_entry,
    settle,
    transaction,
)
from datasets_rl.store.locating import locate, warn_of_recordings

if TYPE_CHECKING:
    from datasets_rl.build.engines import Engine
    from datasets_rl.fetch.fetcher import Fetcher
    from datasets_rl.sources import Listing


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

        >>> from datasets_rl import download
        >>> sorted(file.name for file in download("demo/pendulum").iterdir())
        ['digests.npy', 'episodes.npy', 'final.npy', 'manifest.json', 'rows.npy']

    Repeating an interrupted call resumes it. A dataset that is stored already is unchanged.

    If a dataset consists of several files, a file is converted while the next one is fetched, and deleted when its rows
    are on the disk.

    Args:
        dataset_id: The id with its source, ``d4rl/hopper-medium-v2``; or the address of a published dataset,
            ``hf://user/name@revision``.
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
    dataset_id, selection = sources.split_address(dataset_id, selection or Selection())
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
    warn_of_recordings(paths)
    is_stored = paths.exists and not force and not raw_only and not has_unfinished_change(paths)
    # Episodes of a stored dataset are chosen from its own table, also where the upstream has one file for all of them.
    entry = sources.checked_entry(dataset_id, replace(selection, episodes="") if is_stored else selection)
    if is_stored and grown_selection(paths.folder, selection, as_stored=as_stored) is None:
        settle(paths)
        if from_local is not None:
            _check_files_unchanged(DownloadRequest(entry, paths, settings, from_local=from_local))
        check_episodes(paths.folder, selection)
        return paths.user_path
    check_folder(paths)
    if paths.exists and not raw_only:
        check_own_files(paths.folder)
    identity = ["download", dataset_id, selection.to_json(), as_stored, force, hash_check, keep_raw, raw_only]
    with transaction(
        paths, dataset_id, identity, wait=wait, waiting=lambda owner: _warn(f"waiting for {owner}")
    ) as change:
        if paths.exists and not raw_only and (change.finished or not force):
            if (larger := grown_selection(paths.folder, selection, as_stored=as_stored)) is None:
                return paths.user_path
            selection, keep_raw = larger, keep_raw or _keeps_raw(paths)
        request = DownloadRequest(
            entry,
            paths,
            settings,
            selection,
            force,
            from_local,
            tuple(mirrors),
            hash_check,
            Limiter(limit_rate),
            keep_raw,
            raw_only,
        )
        listing = _find_files(request)
        if raw_only:
            return _fetch_raw(request, listing)
        if listing.copied is not None:
            _copy(request, listing)
            keep_raw = False
        else:
            _convert(request, listing, engine)
        # A version that was preprocessed in place cannot be downloaded again, so it is kept.
        given = request.local is not None and request.local.is_relative_to(paths.raw)
        change.publish(keep=bool(last_history_entry(paths)), drop=() if keep_raw or given else (paths.raw,))
    return paths.user_path


def stored_folder(
    dataset_id: str,
    selection: Selection,
    *,
    root: Path | str | None = None,
    from_local: Path | str | None = None,
    settings: Settings | None = None,
) -> Path | None:
    """Return the folder of a stored dataset that contains a selection; None if a download is needed. Changes nothing.

    Args:
        dataset_id: The id with its source.
        selection: The selection; the stored one decides everything that it leaves open.
        root: The folder of the source; by default ``<RLDS_HOME>/<source>``.
        from_local: A raw file, or a folder of raw files, that the dataset was made of.
        settings: The settings; by default those of the environment.

    Raises:
        UnknownIdError: If there is no such id.
        InvalidArgumentError: If a choice contradicts the stored one, or the files of `from_local` are not those from
            which the dataset was converted.
    """
    settings = settings or Settings.from_env()
    dataset_id, selection = sources.split_address(dataset_id, selection)
    paths = dataset_paths(dataset_id, root=root, settings=settings)
    if sources.split_derived(dataset_id)[1] or not is_present(paths):
        return None
    entry = sources.checked_entry(dataset_id, replace(selection, episodes=""))
    if grown_selection(paths.folder, selection, as_stored=True) is not None:
        return None
    warn_of_recordings(paths)
    if from_local is not None:
        _check_files_unchanged(DownloadRequest(entry, paths, settings, from_local=from_local))
    return paths.user_path


def _check_files_unchanged(request: DownloadRequest) -> None:
    """Check that files of the user are those from which the stored dataset was converted."""
    from datasets_rl.fetch.partial_download import digest_file
    from datasets_rl.fetch.schemes.file import path_of_url
    from datasets_rl.format.manifest import Manifest

    with tempfile.TemporaryDirectory(prefix="rlds-plan-") as aside:
        listing = find_files(request, aside=Path(aside))
    if not all(asset.urls[0].startswith("file:") for asset in listing.assets):
        return  # files of an upstream, which do not change
    manifest = Manifest.read(request.paths.folder)
    converted_at = (request.paths.folder / MANIFEST_FILE).stat().st_mtime
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
            f"{request.entry.id} is stored, and was converted from other files: {', '.join(changed[:3])}{more}",
            hint=Remedy("{} converts these files and replaces it", Argument("force", True)),
        )


def _keeps_raw(paths: DatasetPaths) -> bool:
    """Return whether the raw files of a stored dataset were kept."""
    from datasets_rl.format.manifest import Manifest

    return all((paths.raw / file.path).is_file() for file in Manifest.read(paths.folder).raw)


def _warn(text: str) -> None:
    print(text, file=sys.stderr)  # noqa: T201 -- the one line that explains a silent wait


def _find_files(request: DownloadRequest) -> Listing:
    """Return the files to fetch, for which the disk has enough space."""
    paths = request.paths
    if not paths.build.exists():
        # Without a build, the journal and the upstream's description are of a dataset that is finished.
        paths.journal.unlink(missing_ok=True)
        if request.force:
            paths.upstream.unlink(missing_ok=True)
    listing = find_files(request)
    require_disk_space(request, listing)
    return listing


def _make_fetcher(request: DownloadRequest) -> Fetcher:
    from datasets_rl.fetch.fetcher import Fetcher

    return Fetcher(
        request.paths.raw,
        request.settings,
        label=request.entry.id,
        local=request.local,
        hash_check=request.hash_check,
        limiter=request.limiter,
        force=request.force,
    )


def _fetch_raw(request: DownloadRequest, listing: Listing) -> Path:
    """Fetch the raw files, and return their folder."""
    first, raw = _make_fetcher(request).fetch(listing.assets)[0].path, request.paths.raw
    return raw if first.is_relative_to(raw) else first.parent


def _copy(request: DownloadRequest, listing: Listing) -> None:
    """Fetch the files of a dataset that was published in the stored format, into the folder of the build."""
    from datasets_rl.build.copying import CopyJob, copy_stored

    job = CopyJob(listing.entry or request.entry, listing, request.selection)
    copy_stored(job, _make_fetcher(request), request.paths.build, work=request.paths.work)


def _convert(request: DownloadRequest, listing: Listing, engine: Engine | None) -> None:
    """Fetch and convert the raw files into the folder of the build."""
    from datasets_rl.build.conversion import ConversionJob, convert

    job = ConversionJob(listing.entry or request.entry, listing, request.selection)
    try:
        with report(f"converting {request.entry.id}", None, unit=" steps", show=request.settings.progress) as progress:
            convert(
                job,
                _make_fetcher(request),
                request.paths.build,
                work=request.paths.work,
                engine=engine,
                settings=request.settings,
                keep_raw=request.keep_raw,
                report=progress,
            )
    except ConversionError as error:
        again = Remedy("fetch the file again with {}", Argument("force", True))
        error.hint = error.remedy or (again if request.from_local is None else "give another file")
        raise
    except UnknownKeyError as error:
        if request.from_local is None and not request.force:
            kept = "the fetched files are kept, and are not fetched again"
            error.hint = Remedy("{} {}", error.remedy, kept) if error.remedy else kept
        raise
    if request.keep_raw and request.paths.upstream.is_file():
        # A later verification needs the list of all files, of which only the selected ones are kept.
        shutil.copyfile(request.paths.upstream, request.paths.raw / ANSWERS_FILE)
