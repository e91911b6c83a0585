"""Downloads: the raw files of a dataset are fetched and converted, and the result is published as a stored dataset."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from datasets_rl import disk
from datasets_rl.disk import MANIFEST_FILE
from datasets_rl.downloading.copies import copied_files, copy_problems
from datasets_rl.downloading.planning import DownloadRequest, find_files, require_disk_space
from datasets_rl.downloading.target import DownloadOptions, Target
from datasets_rl.errors import Argument, ConversionError, InvalidArgumentError, Remedy, UnknownKeyError, join_names
from datasets_rl.fetch.asset import LOCAL
from datasets_rl.fetch.partial_download import ANSWERS_FILE
from datasets_rl.progress import report
from datasets_rl.settings import Settings
from datasets_rl.sources import Selection, path_of_id, select_episodes
from datasets_rl.store import current_version, has_only_copy, sweep_dataset
from datasets_rl.store.find import raw_files_id, stored_manifest, warn_of_recordings
from datasets_rl.store.layout import OWN_SOURCE
from datasets_rl.store.publish import Build, Version, building, locked, point_to_published, publish

if TYPE_CHECKING:
    from datasets_rl.build.conversion import ConversionJob
    from datasets_rl.build.engines import Engine
    from datasets_rl.fetch.fetcher import Fetcher
    from datasets_rl.format.manifest import Manifest
    from datasets_rl.sources import Entry, Listing


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
    """Download a dataset: fetch, check and convert the raw files, and publish the result.

        >>> from datasets_rl import download
        >>> from datasets_rl.store import version_folder
        >>> folder = download("demo/pendulum")
        >>> sorted(file.name for file in version_folder(folder).iterdir())
        ['digests.npy', 'episodes.npy', 'final.npy', 'fingerprints.npy', 'manifest.json', 'rows.npy', 'sketches.npy']

    A repeated call resumes an interrupted call. A dataset that is stored already is unchanged.

    If a dataset consists of several files, a file is converted while the next file is fetched, and deleted when its
    rows are on the disk.

    Args:
        dataset_id: The id with its source, ``d4rl/hopper-medium-v2``, or the address of a published dataset,
            ``hf://user/name@revision``.
        root: The folder of the source. By default ``<RLDS_HOME>/<source>``.
        force: Download and convert a stored dataset again. The old version stays until the new version is complete.
        from_local: A raw file, or a folder of raw files, that the user already has, and that is read in place.
        mirrors: Base addresses that are tried before the upstream's addresses, with the same layout below.
        hash_check: If False, accept files that differ in size or digest from the catalog. The manifest records this.
        keep_raw: Keep the raw files of the dataset.
        raw_only: Fetch and check the raw files without a conversion.
        limit_rate: The maximum rate in bytes per second over all connections.
        selection: The selection to download. By default the whole dataset. A stored dataset that lacks a part of the
            selection grows: the dataset is replaced, atomically, by a dataset that contains both selections.
        as_stored: Whether the stored selection, if any, decides everything that `selection` leaves open.
        engine: The engine that converts several files at once, `RayEngine()` on a cluster that shares `root`. By
            default processes of this machine. The result does not depend on the engine.
        wait: Seconds to wait for another process that downloads the same dataset.
        settings: The settings. By default the settings of the environment.

    Returns:
        The folder of the dataset, or with `raw_only` the folder of the raw files.

    Raises:
        UnknownIdError: If there is no such id.
        FetchError: If a file cannot be fetched from any address.
        IntegrityError: If a file differs from the expected file.
        ConversionError: If a file violates its own format.
        InvalidArgumentError: If the dataset does not have the selection, or, without `force`, if a choice contradicts
            the stored choice, the stored dataset was preprocessed and lacks a part of the selection, or the files of
            `from_local` are not the converted files.
        DiskFullError: If the disk has too little space.
        LockedError: If another process did not finish in time.
    """
    options = DownloadOptions(
        root=root,
        force=force,
        from_local=from_local,
        mirrors=mirrors,
        hash_check=hash_check,
        keep_raw=keep_raw,
        raw_only=raw_only,
        limit_rate=limit_rate,
        selection=selection,
        as_stored=as_stored,
        engine=engine,
        wait=wait,
        settings=settings,
    )
    return run_download(dataset_id, options).folder


@dataclass(frozen=True, slots=True)
class Downloaded:
    """The result of a download."""

    id: str
    folder: Path
    """The folder of the dataset, or of its raw files."""
    present: bool
    """Whether the dataset was stored before."""
    entry: Entry
    """The catalog entry, of the original dataset for a derived dataset."""
    manifest: Manifest | None
    """The manifest of the dataset, or None for raw files."""


def run_download(dataset: str, options: DownloadOptions) -> Downloaded:
    """Download a dataset that a user names by an id, an address or the path of raw files, see `download`."""
    target = Target.find(raw_files_id(dataset), options)
    if not _is_present(target):
        return _download(target)
    sweep_dataset(target.paths)
    return _present(target)


def ensure_stored(dataset_id: str, options: DownloadOptions) -> Downloaded:
    """Return the dataset of an id, which is only read if what is requested is stored, and else downloaded."""
    target = Target.find(dataset_id, options)
    return _present(target) if _is_present(target) else _download(target)


def _download(target: Target) -> Downloaded:
    """Download what the stored dataset lacks."""
    paths, options = target.paths, target.options
    paths.check_changeable()
    with locked(paths, target.id, wait=options.wait, waiting=lambda owner: _warn(f"waiting for {owner}")):
        if not options.force and not options.raw_only and options.expected is None:
            # Another process may have stored the dataset in the meantime.
            target = replace(target, stored=stored_manifest(paths))
        selection = target.missing()
        if selection is None:
            return _present(target)
        request_text, parent = target.request(selection), current_version(paths, replaces=options.force)
        if not options.raw_only and point_to_published(paths, request_text, parent):
            return _stored(target)
        # A folder that the user has named as the place of raw files is only read.
        is_read = options.local is not None and options.local.resolve().is_relative_to(paths.raw.resolve())
        with (
            building(paths, request_text, parent) as build,
            nullcontext(paths.raw) if is_read else disk.claimed(paths.raw) as raw,
        ):
            build.return_raw(raw)
            # Files that were kept are kept again.
            was_kept = target.stored is not None and all((raw / file.path).is_file() for file in target.stored.raw)
            keep_raw = options.keep_raw or was_kept
            request = DownloadRequest(target, selection, raw, build.upstream, keep_raw)
            if target.own_copy:
                _warn(f"{target.id} is read in place from {options.from_local}, where the upstream's library stored it")
            _forget_finished(build, upstream=options.force)
            listing = find_files(request)
            require_disk_space(request, listing)
            if options.raw_only:
                folder = _fetch_raw(request, listing)
                folder = paths.raw if folder == raw else folder
                return Downloaded(target.id, folder, present=False, entry=target.entry, manifest=None)
            if listing.copied is not None:
                copy_published(request, listing, build)
                keep_raw = False
            else:
                _convert(request, listing, build)
            if not keep_raw and raw != paths.raw and not has_only_copy(paths, Version(build.version)):
                build.take_raw(raw)  # a process that is killed after this line leaves no part of the files
            publish(build, None if options.expected is None else options.expected.accept)
    return _stored(target)


def _present(target: Target) -> Downloaded:
    """Return the result for a dataset that was stored before."""
    return Downloaded(target.id, target.paths.folder, present=True, entry=target.entry, manifest=target.stored)


def _stored(target: Target) -> Downloaded:
    """Return the result of a download that has published a dataset."""
    manifest = stored_manifest(target.paths)
    return Downloaded(target.id, target.paths.folder, present=False, entry=target.entry, manifest=manifest)


def _is_present(target: Target) -> bool:
    """Return whether the stored dataset has what is requested. The dataset is only read."""
    from datasets_rl.format.reader import StoredDataset

    warn_of_recordings(target.paths)
    if target.missing() is not None:
        return False
    if target.options.from_local is not None and target.stored is not None:
        _check_files_unchanged(target, target.stored)
    if episodes := target.selection.episodes:
        select_episodes(episodes, StoredDataset(target.paths.folder).episodes.numbers)
    return True


def _check_files_unchanged(target: Target, manifest: Manifest) -> None:
    """Check that files of the user are the files from which the stored dataset was converted."""
    from datasets_rl.fetch.download import digest_local
    from datasets_rl.fetch.schemes.base import path_of_url

    place = path_of_id(target.entry.id)
    if place is not None and not os.path.lexists(place):
        return  # the file was moved away, and the stored dataset remains under the path
    raw = target.paths.raw
    # The choices decide what the files are, and files of the rest of the dataset may be absent.
    request = DownloadRequest(target, Selection.from_json(manifest.selection), raw, raw / "upstream.json")
    with tempfile.TemporaryDirectory(prefix="rlds-plan-") as aside:
        listing = find_files(request, aside=Path(aside))
    if not all(asset.urls[0].startswith(LOCAL) for asset in listing.assets):
        return  # files of an upstream, which do not change
    converted_at = (target.paths.version / MANIFEST_FILE).stat().st_mtime
    recorded = {file.path: file for file in manifest.raw}
    changed = []
    for asset in listing.assets:
        state, former = path_of_url(asset.urls[0]).stat(), recorded.get(asset.path)
        size = (asset.size or 0) if asset.is_packed else state.st_size
        if former is None:
            changed += [] if manifest.selection else [f"{asset.path} is new"]
        elif former.bytes != size:
            changed.append(f"{asset.path} has {size:,} bytes, and had {former.bytes:,}")
        elif state.st_mtime > converted_at and digest_local(asset.urls[0]) != former.sha256:
            changed.append(f"{asset.path} has other bytes")
    changed += [f"{path} is missing" for path in recorded.keys() - {asset.path for asset in listing.assets}]
    if changed:
        raise InvalidArgumentError(
            f"{target.entry.id} is stored, and was converted from other files: {join_names(changed)}",
            hint=Remedy("{} converts these files and replaces the dataset", Argument("force", True)),
        )


def _warn(text: str) -> None:
    print(text, file=sys.stderr)  # noqa: T201 -- the line that explains a silent wait


def _forget_finished(build: Build, *, upstream: bool) -> None:
    """Delete the journal of a build that has no rows: the journal is of a dataset that is finished.

    Args:
        build: The build.
        upstream: Whether the upstream's description of its files is deleted, too, and then requested again.
    """
    if not build.version.exists():
        disk.remove_file(build.journal)
        if upstream:
            disk.remove_file(build.upstream)


def _make_fetcher(request: DownloadRequest) -> Fetcher:
    from datasets_rl.fetch.fetcher import Fetcher
    from datasets_rl.fetch.parallel import Limiter

    options = request.target.options
    return Fetcher(
        request.raw,
        request.target.settings,
        label=request.target.entry.id,
        local=options.local,
        hash_check=options.hash_check,
        limiter=Limiter(options.limit_rate),
        force=options.force,
    )


def _check_copies(manifest: Manifest, job: ConversionJob) -> None:
    """Compare a dataset with the catalog that was converted from copies with an unknown digest."""
    copies = copied_files(manifest, job.entry)
    is_whole = replace(job.selection, keys=(), options={}) == Selection()
    if problems := [*copy_problems(manifest, job.entry)] if copies and is_whole else []:
        named = [f"{file.url} is a copy by others with an unknown digest" for file in copies]
        accept = Remedy(
            "try again when the upstream answers, or accept the copy with {}", Argument("hash_check", False)
        )
        raise ConversionError(manifest.id, [*named, *problems], hint=accept)


def _fetch_raw(request: DownloadRequest, listing: Listing) -> Path:
    """Fetch the raw files, and return the folder."""
    first, raw = _make_fetcher(request).fetch(listing.assets)[0].path, request.raw
    return raw if first.is_relative_to(raw) else first.parent


def copy_published(request: DownloadRequest, listing: Listing, build: Build) -> Manifest:
    """Fetch the files of a dataset that was published in the stored format, into the folder of the build.

    Returns:
        The manifest of the copy, which is in the folder, too.
    """
    from datasets_rl.build.copying import CopyJob, copy_stored

    job = CopyJob(listing.entry or request.target.entry, listing, request.selection)
    return copy_stored(job, _make_fetcher(request), build.version, work=build.work)


def _convert(request: DownloadRequest, listing: Listing, build: Build) -> None:
    """Fetch and convert the raw files into the folder of the build."""
    from datasets_rl.build.conversion import ConversionJob, convert

    target, options = request.target, request.target.options
    job = ConversionJob(listing.entry or target.entry, listing, request.selection)
    try:
        with report(f"converting {target.entry.id}", None, unit=" steps", show=target.settings.progress) as progress:
            manifest = convert(
                job,
                _make_fetcher(request),
                build.version,
                work=build.work,
                engine=options.engine,
                settings=target.settings,
                keep_raw=request.keep_raw,
                report=progress,
            )
        if options.hash_check:
            _check_copies(manifest, job)
    except ConversionError as error:
        again = Remedy("fetch the file again with {}", Argument("force", True))
        is_own = target.entry.source == OWN_SOURCE
        other = "correct the files, or the description in dataset.toml" if is_own else "give another file"
        error.hint = error.remedy or (again if options.from_local is None or target.own_copy else other)
        raise
    except UnknownKeyError as error:
        if options.from_local is None and not options.force:
            kept = "the fetched files are kept, and are not fetched again"
            error.hint = Remedy("{} {}", error.remedy, kept) if error.remedy else kept
        raise
    if request.keep_raw and request.upstream.is_file():
        # A later verification needs the list of all files, of which only the selected files are kept.
        shutil.copyfile(request.upstream, request.raw / ANSWERS_FILE)
