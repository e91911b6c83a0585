"""The plan of a download: the needed files, their size and the size of the stored dataset."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from datasets_rl import disk, sources
from datasets_rl.build.engines import Engine, useful_job_count
from datasets_rl.downloading.copies import expecting_recorded
from datasets_rl.downloading.target import DownloadOptions, Target
from datasets_rl.errors import Argument, InvalidArgumentError, Remedy
from datasets_rl.settings import Settings
from datasets_rl.sources import Selection
from datasets_rl.store import current_version
from datasets_rl.store.find import raw_files_id
from datasets_rl.store.publish import build_folder

if TYPE_CHECKING:
    from datasets_rl.fetch.asset import Asset
    from datasets_rl.sources import Listing

_SIZE_GUESS = 1.2  # converted bytes per raw byte, before the raw file can be opened, exact afterwards


@dataclass(frozen=True, slots=True)
class DownloadRequest:
    """What a download fetches, and where."""

    target: Target
    selection: Selection
    """The selection that will be stored."""
    raw: Path
    """The folder of the raw files."""
    upstream: Path
    """The file with the upstream's description of its files, which need not exist."""
    keep_raw: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """The expected actions of `download`, and the needed space."""

    id: str
    folder: Path
    assets: tuple[Asset, ...]
    present: bool
    """Whether the finished dataset exists already."""
    wire_bytes: int | None
    """The bytes to download, or None if the size of a file is unknown."""
    stored_bytes: int | None
    """The estimated size of the stored dataset."""
    peak_bytes: int | None
    """The estimated maximum of the additional space in use during the download."""
    free_bytes: int
    selection: Selection = field(default_factory=Selection)
    choices: Mapping[str, int] = field(default_factory=dict)
    """The value of `stored_bytes` for each choice that affects it, such as ``images=encoded``, the choice in effect
    first."""
    layout: str = ""
    """The source with the layout of the files at an address, and the evidence. Empty for an id of a catalog."""
    read_seconds: Mapping[str, float] = field(default_factory=dict)
    """The estimated seconds in which a core reads the images of a step, for each choice. Empty if unknown."""


def plan(
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
) -> Plan:
    """Return what `download` with the same options would do, without writing anything.

    If the catalog knows the files, nothing is requested. Otherwise the list of files is requested from the upstream.

        >>> from datasets_rl import plan
        >>> planned = plan("demo/pendulum")
        >>> planned.id
        'demo/pendulum'

    Raises:
        UnknownIdError: If there is no such id.
        FetchError: If the list of files had to be requested, and the request failed.
        InvalidArgumentError: As `download` does.
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
    return plan_download(dataset_id, options)


def plan_download(dataset_id: str, options: DownloadOptions) -> Plan:
    """Return the plan of a download, see `plan`."""
    from datasets_rl.fetch import remaining_bytes

    target = Target.find(raw_files_id(dataset_id), options)
    paths, missing = target.paths, target.missing()
    selection = missing or target.selection
    build = _abandoned(build_folder(paths, target.request(selection), current_version(paths)))
    request = DownloadRequest(target, selection, _abandoned(paths.raw), build / "upstream.json", options.keep_raw)
    with tempfile.TemporaryDirectory(prefix="rlds-plan-") as aside:
        listing = find_files(request, aside=Path(aside))
    raw_bytes = _sum_sizes(asset.size for asset in listing.assets)
    raw_bytes = target.entry.bytes if raw_bytes is None else raw_bytes
    choices = {} if options.raw_only else _stored_bytes(listing, raw_bytes, selection)
    stored_bytes = next(iter(choices.values()), None)
    wire = 0 if options.from_local is not None else remaining_bytes(listing.assets, request.raw)
    packed = sum(asset.size or 0 for asset in listing.assets if asset.is_packed)
    return Plan(
        id=target.entry.id,
        folder=paths.folder,
        assets=listing.assets,
        present=missing is None,
        wire_bytes=wire,
        stored_bytes=stored_bytes,
        peak_bytes=None if wire is None else _peak_bytes(request, listing, wire + packed, stored_bytes or 0),
        free_bytes=disk.free_bytes(paths.root),
        selection=selection,
        choices=choices if len(choices) > 1 else {},
        layout=listing.layout,
        read_seconds=listing.read_seconds if len(choices) > 1 else {},
    )


def _abandoned(folder: Path) -> Path:
    """Return a folder that a dead process has claimed, under the name of the claim, else the path itself."""
    return next(filter(disk.is_abandoned, disk.claims_of(folder)), folder)


def list_upstream_ids(source: str, *, settings: Settings | None = None) -> Sequence[str]:
    """Return the ids that the upstream of a source currently has, by a request of the upstream's list.

    Nothing is stored.

    Args:
        source: The name of the source.
        settings: The settings. By default the settings of the environment.

    Raises:
        UnknownIdError: If there is no such source.
        FetchError: If the request fails, as an `OfflineError` if the network is disabled.
    """
    from datasets_rl.fetch.upstream import Upstream

    settings = settings or Settings.from_env()
    with tempfile.TemporaryDirectory(prefix="rlds-list-") as aside:
        return sources.get_source(source).listed(Upstream(Path(aside), Path(aside, "upstream.json"), settings=settings))


def find_files(request: DownloadRequest, *, aside: Path | None = None) -> Listing:
    """Return the files that a selection needs, with addresses. With `aside`, write only into that folder."""
    from datasets_rl.fetch import with_mirrors
    from datasets_rl.fetch.upstream import Upstream

    target, options = request.target, request.target.options
    if options.local is not None and not options.local.exists():
        raise InvalidArgumentError(
            f"{options.local} does not exist, expected a raw file, or a folder of raw files",
            hint=Remedy("correct {}", Argument("from_local")),
        )
    origin = sources.get_source(target.entry.source)
    bases = () if options.local is not None else (*options.mirrors, *target.settings.mirrors.get(origin.name, ()))
    upstream_file = request.upstream
    if aside is not None:
        upstream_file = aside / "upstream.json"
        if request.upstream.is_file() and not options.force:
            shutil.copyfile(request.upstream, upstream_file)
    upstream = Upstream(
        aside or request.raw,
        upstream_file,
        settings=target.settings,
        mirrors=bases,
        local=options.local,
        hash_check=options.hash_check,
    )
    listing = origin.resolve(target.entry.name, request.selection, upstream).narrow_to(request.selection)
    if options.expected is not None and listing.copied is None:
        listing = options.expected.require_digests(listing, target.id)
    elif options.local is None and options.hash_check:
        listing = expecting_recorded(listing, target.entry, target.paths)
    return replace(listing, assets=tuple(with_mirrors(asset, bases) for asset in listing.assets))


def require_disk_space(request: DownloadRequest, listing: Listing) -> None:
    """Check before a download that the disk has enough space for the files of known size.

    Raises:
        DiskFullError: If the space is too small.
    """
    from datasets_rl.fetch import remaining_bytes

    wire = remaining_bytes(listing.assets, request.raw)
    if not wire or request.target.options.from_local is not None:
        return
    if request.target.options.raw_only:
        disk.require_free(request.target.paths.root, wire, "the download")
        return
    stored = _stored_bytes(listing, _sum_sizes(asset.size for asset in listing.assets), request.selection)
    needed = _peak_bytes(request, listing, wire, next(iter(stored.values()), 0))
    disk.require_free(request.target.paths.root, needed, "the download and the converted dataset")


def _sum_sizes(sizes: Iterable[int | None]) -> int | None:
    all_sizes = list(sizes)
    return None if None in all_sizes else sum(size or 0 for size in all_sizes)


def _stored_bytes(listing: Listing, raw_bytes: int | None, selection: Selection) -> dict[str, int]:
    """Return the estimated size of the stored dataset by the choices that affect it. Empty if unknown."""
    if listing.stored_bytes:
        return {choice: int(size) for choice, size in listing.stored_bytes.items()}
    if raw_bytes is None or selection.keys:
        return {}
    return {name: int(raw_bytes * factor) for name, factor in (listing.growth or {"": _SIZE_GUESS}).items()}


def _peak_bytes(request: DownloadRequest, listing: Listing, raw_bytes: int, stored_bytes: int) -> int:
    """Return the maximum of the additional bytes on the disk at any time during the download."""
    return _peak_raw_bytes(request, listing, raw_bytes) + max(
        0, stored_bytes - disk.tree_bytes(request.upstream.with_name("version"))
    )


def _peak_raw_bytes(request: DownloadRequest, listing: Listing, raw_bytes: int) -> int:
    """Return the maximum of the bytes of raw files on the disk at any time."""
    sizes = {asset.path: asset.size or 0 for asset in listing.assets}
    groups = [sum(sizes[asset.path] for asset in group) for group in listing.assets_by_shard(listing.shards)]
    jobs = useful_job_count([asset.size for asset in listing.assets], len(groups), request.target.settings.jobs)
    concurrent = len(groups) if request.keep_raw else jobs + 1
    return min(raw_bytes, max(sum(groups[start : start + concurrent]) for start in range(len(groups))))
