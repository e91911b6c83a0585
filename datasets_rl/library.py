"""The datasets on this disk: where they lie, how they get there, whether they are intact."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datasets_rl import disk, sources
from datasets_rl.disk import MANIFEST_FILE
from datasets_rl.errors import ConversionError, InvalidArgumentError, ManifestError, UnknownIdError, UnknownKeyError
from datasets_rl.progress import Counted, report
from datasets_rl.settings import Settings
from datasets_rl.sources import Selection
from datasets_rl.store import (
    DatasetPaths,
    check_own_files,
    dataset_paths,
    locate,
    remove,
    stored,
    transaction,
    unfinished,
)

if TYPE_CHECKING:
    from datasets_rl.fetch.asset import Asset, Fetched
    from datasets_rl.fetch.parallel import CancelToken, Limiter
    from datasets_rl.format.manifest import Manifest
    from datasets_rl.pipeline.engines import Engine
    from datasets_rl.pipeline.shards import FetchedShard
    from datasets_rl.sources import Entry, Listing, Shard

__all__ = [
    "DatasetPaths",
    "Plan",
    "dataset_paths",
    "download",
    "listed",
    "locate",
    "missing_part",
    "plan",
    "remove",
    "require_part",
    "resolve",
    "stored",
]

_SIZE_GUESS = 1.2  # converted bytes per raw byte, before the raw file can be opened; exact afterwards
_WORTH_PROCESSES = 64 << 20
"""Bytes of raw files from which on shards are read by several processes."""


@dataclass(frozen=True, slots=True)
class Options:
    """Where raw files may come from; see `download`."""

    force: bool = False
    from_local: Path | str | None = None
    mirrors: tuple[str, ...] = ()
    hash_check: bool = True
    limiter: Limiter | None = None
    """Keeps the rate over all files of all shards."""
    keep_raw: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """What `download` would do."""

    id: str
    folder: Path
    assets: tuple[Asset, ...]
    present: bool
    """The finished dataset is there already."""
    wire_bytes: int | None
    """Bytes still to come over the network, where all sizes are known."""
    stored_bytes: int | None
    """About how many bytes the dataset takes."""
    peak_bytes: int | None
    """About how many bytes are taken at once meanwhile."""
    free_bytes: int
    selection: Selection = field(default_factory=Selection)
    choices: Mapping[str, int] = field(default_factory=dict)
    """The same as `stored_bytes` for each choice that changes it, as one types it; that taken first."""


def resolve(dataset: str | Path) -> str | Path:
    """Distinguish the folder of a dataset, or another path, from an id.

    Args:
        dataset: An id or a path. A folder of the working directory never hides a known id.

    Returns:
        The id as it is, or a path.
    """
    path = Path(dataset).expanduser()
    if isinstance(dataset, Path) or path.is_absolute() or dataset.startswith((".", "~")):
        return path
    with suppress(UnknownIdError):
        sources.find(dataset)
        return dataset
    # Unlike the method of Path, this is False for a name that is too long for the file system.
    return path if dataset and os.path.exists(path) else dataset  # noqa: PTH110 - see above


def listed(source: str, *, settings: Settings | None = None) -> Sequence[str]:
    """Return every id that the upstream of a source has today, by asking it; nothing is kept.

    Args:
        source: Its name.
        settings: By default those of the environment.

    Raises:
        UnknownIdError: If there is no such source.
        FetchError: If the upstream does not answer; `OfflineError` if the network is forbidden.
    """
    from datasets_rl.fetch.upstream import Upstream

    settings = settings or Settings.from_env()
    with tempfile.TemporaryDirectory(prefix="rlds-list-") as aside:
        return sources.source(source).listed(Upstream(Path(aside), Path(aside, "upstream.json"), settings=settings))


def plan(
    dataset_id: str,
    *,
    root: Path | str | None = None,
    force: bool = False,
    from_local: Path | str | None = None,
    mirrors: Sequence[str] = (),
    raw_only: bool = False,
    keep_raw: bool = False,
    selection: Selection | None = None,
    settings: Settings | None = None,
) -> Plan:
    """Say what `download` with the same options would do, without writing anything.

    Nothing is requested where the catalog knows the files; otherwise the upstream is asked for its list.

    Raises:
        UnknownIdError: If there is no such id.
        FetchError: If the upstream had to be asked, and did not answer.
        InvalidArgumentError: As `download` does.
    """
    from datasets_rl.fetch import remaining_bytes

    settings = settings or Settings.from_env()
    selection = selection or Selection()
    paths = dataset_paths(dataset_id, root=root, settings=settings)
    entry = _checked(dataset_id, selection)
    replaced = force or raw_only or not paths.exists
    growing = None if replaced else missing_part(paths.folder, selection)
    selection = growing or selection
    options = Options(force, from_local, tuple(mirrors), keep_raw=keep_raw)
    with tempfile.TemporaryDirectory(prefix="rlds-plan-") as aside:
        listing = _resolve(dataset_id, paths, settings, options, selection, aside=Path(aside))
    local = from_local is not None
    raw_bytes = _sum(asset.size for asset in listing.assets)
    raw_bytes = entry.bytes if raw_bytes is None else raw_bytes
    choices = {} if raw_only else _stored_bytes(listing, raw_bytes, selection)
    stored_bytes = next(iter(choices.values()), None)
    wire = 0 if local else remaining_bytes(listing.assets, paths.raw)
    return Plan(
        id=entry.id,
        folder=paths.folder,
        assets=listing.assets,
        present=paths.exists and not force and growing is None,
        wire_bytes=wire,
        stored_bytes=stored_bytes,
        peak_bytes=None if wire is None else _peak(listing, wire, stored_bytes or 0, paths, options, settings),
        free_bytes=disk.free_bytes(paths.root),
        selection=selection,
        choices=choices if len(choices) > 1 else {},
    )


def _sum(sizes: Iterable[int | None]) -> int | None:
    known = list(sizes)
    return None if None in known else sum(size or 0 for size in known)


def _stored_bytes(listing: Listing, raw_bytes: int | None, selection: Selection) -> dict[str, int]:
    """Return about how many bytes are stored, by the choices that decide it, that taken first; nothing if unknown."""
    if listing.stored_bytes is not None:
        return {"": listing.stored_bytes}
    if raw_bytes is None or selection.keys:
        return {}
    return {name: int(raw_bytes * one) for name, one in (listing.growth or {"": _SIZE_GUESS}).items()}


def _peak(
    listing: Listing, wire: int, stored_bytes: int, paths: DatasetPaths, options: Options, settings: Settings
) -> int:
    """Return how many bytes are still to be written and lie on the disk at once, at most."""
    return _raw_at_once(listing, wire, options, settings) + max(0, stored_bytes - disk.tree_bytes(paths.build))


def _raw_at_once(listing: Listing, wire: int, options: Options, settings: Settings) -> int:
    """Return how many bytes of raw files lie on the disk at once, at most."""
    sizes = {asset.path: asset.size or 0 for asset in listing.assets}
    groups = [sum(sizes[path] for path in group) for group in _groups(listing, listing.shards)]
    room = len(groups) if options.keep_raw else _jobs(listing, settings) + 1
    return min(wire, max(sum(groups[start : start + room]) for start in range(len(groups))))


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
    """Make a dataset whole on disk: fetch its raw files, convert them, check them, put the folder in its place.

    Rerunning after any interruption resumes. A dataset that is there already is left alone.

    Where a dataset consists of several files, a file is converted while the next one comes, and deleted when its rows
    are on the disk.

    Args:
        dataset_id: With its source, ``d4rl/hopper-medium-v2``.
        root: The source's folder; by default ``<RLDS_HOME>/<source>``.
        force: Make it anew although it is there; the old one stays until the new one is complete.
        from_local: A raw file, or a folder of raw files, that the user already has; used in place.
        mirrors: Base addresses tried before the upstream's, with the upstream's own layout below them.
        hash_check: False accepts files whose size or digest is not the catalog's, and the manifest says so.
        keep_raw: Keep the raw files beside the dataset.
        raw_only: Fetch and check the raw files, and convert nothing.
        limit_rate: Bytes a second over all connections.
        selection: The part that is wanted; by default the whole dataset. A stored part that lacks some of it grows: a
            dataset that has both parts replaces it in one step.
        as_stored: Whether everything that the selection leaves open is as in the stored part, if there is one.
        engine: Converts the files of a dataset that has several, `RayEngine()` on a cluster that shares `root`; by default
            processes of this machine do. What is written is the same.
        wait: Seconds to wait for another process that makes the same dataset.
        settings: By default those of the environment.

    Returns:
        The dataset's folder; with `raw_only` the folder of the raw files.

    Raises:
        UnknownIdError: If there is no such id.
        FetchError: If no address gave a file.
        IntegrityError: If a file is not the one expected.
        ConversionError: If a file breaks its own format.
        InvalidArgumentError: If there is no such part of the dataset; or, without `force`, if a choice contradicts the stored one,
            the stored dataset was preprocessed and lacks a part of the selection, or the files of `from_local` are not
            those that it was made of.
        DiskFullError: If there is no room.
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
                hint="rlds preprocess with --force makes it anew",
            )
        folder = locate(dataset_id, root=root, settings=settings)
        require_part(folder, selection)
        return folder
    _checked(dataset_id, selection)
    there = paths.exists and not force and not raw_only and not unfinished(paths)
    if there and missing_part(paths.folder, selection, as_stored=as_stored) is None:
        _check_files_unchanged(dataset_id, paths, from_local, settings)
        return paths.known_as
    _check_ours(paths)
    if paths.exists and not raw_only:
        check_own_files(paths.folder)
    request = ["download", dataset_id, selection.to_json(), as_stored, force, hash_check, keep_raw, raw_only]
    with transaction(
        paths, dataset_id, request, wait=wait, waiting=lambda owner: _say(f"waiting for {owner}")
    ) as change:
        if paths.exists and not raw_only and (change.finished or not force):
            if (larger := missing_part(paths.folder, selection, as_stored=as_stored)) is None:
                return paths.known_as
            selection, keep_raw = larger, keep_raw or _keeps_raw(paths)
        options = Options(force, from_local, tuple(mirrors), hash_check, Limiter(limit_rate), keep_raw)
        if not paths.build.exists():
            # What was learned and journalled belongs to a dataset that is finished, or was not begun.
            paths.journal.unlink(missing_ok=True)
            if force:
                paths.upstream.unlink(missing_ok=True)
        listing = _resolve(dataset_id, paths, settings, options, selection)
        _require_room(listing, paths, settings, options, selection, raw_only=raw_only)
        if raw_only:
            files = _fetch(dataset_id, listing.assets, paths, settings, options)
            return paths.raw if files[0].path.is_relative_to(paths.raw) else files[0].path.parent
        _convert(dataset_id, listing, paths, settings, options, selection, engine)
        # A version that was preprocessed in place can be had again only from what it was made of.
        given = from_local is not None and Path(from_local).expanduser().absolute().is_relative_to(paths.raw)
        change.publish(keep=_was_preprocessed(paths), drop=() if keep_raw or given else (paths.raw,))
    return paths.known_as


def _check_files_unchanged(dataset_id: str, paths: DatasetPaths, local: Path | str | None, settings: Settings) -> None:
    """Refuse files of the user that are not those of the stored dataset: it would be taken for theirs."""
    from datasets_rl.fetch.partial_download import digest_file
    from datasets_rl.fetch.schemes.file import file_of
    from datasets_rl.format.manifest import Manifest

    if local is None:
        return
    manifest = Manifest.read(paths.folder)
    with tempfile.TemporaryDirectory(prefix="rlds-plan-") as aside:
        options, whole = Options(from_local=local), Selection()
        listing = _resolve(dataset_id, paths, settings, options, whole, aside=Path(aside))
    if not all(asset.urls[0].startswith("file:") for asset in listing.assets):
        return  # files of an upstream, which do not change
    made = (paths.folder / MANIFEST_FILE).stat().st_mtime
    raw = {one.path: one for one in manifest.raw}
    changed = []
    for asset in listing.assets:
        file, known = file_of(asset.urls[0]), raw.get(asset.path)
        state = file.stat()
        if known is None:
            changed += [] if manifest.selection else [f"{asset.path} is new"]
        elif known.bytes != state.st_size:
            changed.append(f"{asset.path} has {state.st_size:,} bytes, and had {known.bytes:,}")
        elif state.st_mtime > made and digest_file(file).hexdigest() != known.sha256:
            changed.append(f"{asset.path} has other bytes")
    changed += [f"{path} is gone" for path in raw.keys() - {asset.path for asset in listing.assets}]
    if changed:
        more = f", and {len(changed) - 3:,} more" if len(changed) > 3 else ""
        raise InvalidArgumentError(
            f"{dataset_id} is stored, and was made of other files: {', '.join(changed[:3])}{more}",
            hint="--force converts these files and replaces it",
        )


def _was_preprocessed(paths: DatasetPaths) -> bool:
    from datasets_rl.format.manifest import Manifest

    if not paths.exists:
        return False
    try:
        return bool(Manifest.read(paths.folder).history)
    except ManifestError:
        return False


def _say(text: str) -> None:
    print(text, file=sys.stderr)  # noqa: T201 -- the one line that explains a silent wait


def _check_ours(paths: DatasetPaths) -> None:
    disk.check_nesting(paths.folder)
    if paths.folder.exists() and not paths.exists and (not paths.folder.is_dir() or any(paths.folder.iterdir())):
        raise InvalidArgumentError(
            f"{paths.folder} is in the way: it holds something that is not a dataset",
            hint="move it, or choose another root",
        )


def _checked(dataset_id: str, selection: Selection) -> Entry:
    head, name = sources.split_id(dataset_id)
    origin = sources.source(head)
    entry = origin.entry(name)
    origin.check(selection)
    return entry


def missing_part(folder: Path, selection: Selection, *, as_stored: bool = False) -> Selection | None:
    """Return the part to which a stored dataset must grow for a request, or None if it lacks nothing.

    Args:
        folder: The dataset's folder.
        selection: The part that is asked for.
        as_stored: Whether everything that the selection leaves open is as in the stored part.

    Raises:
        InvalidArgumentError: If no growth can give both parts: a choice contradicts what is stored, the dataset was preprocessed,
            or the two count episodes over other files. The error names both.
    """
    from datasets_rl.format.manifest import Manifest

    manifest = Manifest.read(folder)
    part = Selection.from_json(manifest.selection)
    options = _options_of(manifest.id)
    anew = "replace it with --force, or use another place with --root"
    if contradicted := part.contradicts(selection, options):
        here, there = (
            ", ".join(f"--{name} {one.choice(name, options) or 'left open'}" for name in contradicted)
            for one in (part, selection)
        )
        raise InvalidArgumentError(f"{folder} was made with {here}; {there} was asked for", hint=anew)
    if as_stored:
        selection = selection.within(part)
    if part.covers(selection, options):
        return None
    both = f"{folder} holds {part}; {selection} was asked for"
    if manifest.history:
        raise InvalidArgumentError(f"{both}, and a preprocessed dataset does not grow", hint=anew)
    if part.episodes and selection.episodes and not part.counts_as(selection, options):
        raise InvalidArgumentError(f"{both}, which counts its episodes over other files", hint=anew)
    return part.joined(selection, options)


def require_part(folder: Path, selection: Selection) -> None:
    """Check that a stored dataset has everything a request asks for.

    Args:
        folder: The dataset's folder.
        selection: The part that is asked for; everything that it leaves open is as in the stored part.

    Raises:
        InvalidArgumentError: If it has not; the error names both.
    """
    from datasets_rl.format.manifest import Manifest

    if missing_part(folder, selection, as_stored=True) is not None:
        manifest = Manifest.read(folder)
        part = Selection.from_json(manifest.selection)
        raise InvalidArgumentError(
            f"{folder} holds {part}; {selection} was asked for",
            hint=f"`rlds download {shlex.quote(manifest.id)} {selection.within(part)}` adds the rest; without a "
            "selection, the stored part opens",
        )


def _options_of(dataset_id: str) -> Sequence[sources.Option]:
    try:
        return sources.source(sources.split_id(dataset_id)[0]).options
    except UnknownIdError:  # the user's own dataset, or one of a newer version
        return ()


def _keeps_raw(paths: DatasetPaths) -> bool:
    """Return whether the raw files of a stored dataset were kept beside it."""
    from datasets_rl.format.manifest import Manifest

    return all((paths.raw / file.path).is_file() for file in Manifest.read(paths.folder).raw)


def _resolve(
    dataset_id: str,
    paths: DatasetPaths,
    settings: Settings,
    options: Options,
    selection: Selection,
    *,
    aside: Path | None = None,
) -> Listing:
    """Find out which files are needed and where they are; with `aside`, without writing anywhere else."""
    from datasets_rl.fetch import mirrored
    from datasets_rl.fetch.upstream import Upstream

    head, name = sources.split_id(dataset_id)
    local = None if options.from_local is None else Path(options.from_local).expanduser().absolute()
    bases = () if local is not None else (*options.mirrors, *settings.mirrors.get(head, ()))
    kept = paths.upstream
    if aside is not None:
        kept = aside / "upstream.json"
        if paths.upstream.is_file() and not options.force:
            shutil.copyfile(paths.upstream, kept)
    upstream = Upstream(
        aside or paths.raw,
        kept,
        settings=settings,
        mirrors=bases,
        local=local,
        hash_check=options.hash_check,
    )
    listing = sources.source(head).resolve(name, selection, upstream).narrowed(selection)
    return replace(listing, assets=tuple(mirrored(asset, bases) for asset in listing.assets))


def _require_room(
    listing: Listing, paths: DatasetPaths, settings: Settings, options: Options, selection: Selection, *, raw_only: bool
) -> None:
    """Check that there is room for what is known of a dataset, before anything comes.

    Raises:
        DiskFullError: If there is not.
    """
    from datasets_rl.fetch import remaining_bytes

    wire = remaining_bytes(listing.assets, paths.raw)
    if not wire or options.from_local is not None:
        return
    if raw_only:
        disk.require_free(paths.root, wire, "the download")
        return
    stored = _stored_bytes(listing, _sum(asset.size for asset in listing.assets), selection)
    needed = _peak(listing, wire, next(iter(stored.values()), 0), paths, options, settings)
    disk.require_free(paths.root, needed, "the download and the converted dataset")


def _fetch(
    dataset_id: str, assets: Sequence[Asset], paths: DatasetPaths, settings: Settings, options: Options, **progress: Any
) -> list[Fetched]:
    from datasets_rl.fetch import fetch, fetch_local

    if options.from_local is not None and not all(url.startswith("file:") for asset in assets for url in asset.urls):
        local = Path(options.from_local).expanduser().absolute()
        return fetch_local(assets, local, hash_check=options.hash_check)
    if options.force:
        for asset in assets:
            # Unfinished parts stay: what they hold is checked when they are resumed.
            disk.remove_tree(paths.raw / asset.path)
    return fetch(
        assets,
        paths.raw,
        settings=settings,
        hash_check=options.hash_check,
        limiter=options.limiter,
        label=dataset_id,
        **progress,
    )


def _groups(listing: Listing, shards: Sequence[Shard]) -> list[list[str]]:
    """Return the files that come for each shard: those that no earlier one of them needed."""
    seen: set[str] = set()
    groups: list[list[str]] = []
    for shard in shards:
        wanted = (*listing.common, *shard.paths)
        groups.append([path for path in dict.fromkeys(wanted) if path not in seen])
        seen.update(wanted)
    return groups


def _as_assets(listing: Listing, groups: Sequence[Sequence[str]]) -> list[list[Asset]]:
    assets = {asset.path: asset for asset in listing.assets}
    return [[assets[path] for path in group] for group in groups]


def _getter(
    stack: ExitStack,
    dataset_id: str,
    groups: Sequence[Sequence[Asset]],
    paths: DatasetPaths,
    settings: Settings,
    options: Options,
) -> Callable[[Sequence[Asset], CancelToken], list[Fetched]]:
    """Return what fetches a group; several groups share one progress and one rate."""
    from datasets_rl.fetch import remaining_bytes

    if len(groups) == 1:
        return lambda group, _: _fetch(dataset_id, group, paths, settings, options)
    everything = [asset for group in groups for asset in group]
    show = settings.progress and options.from_local is None
    counted = stack.enter_context(report(dataset_id, remaining_bytes(everything, paths.raw), show=show))
    advance = Counted(counted)
    return lambda group, cancel: _fetch(dataset_id, group, paths, settings, options, advance=advance, cancel=cancel)


def _drop_raw(paths: DatasetPaths, listing: Listing, ready: FetchedShard) -> None:
    """Delete the files that no later shard needs; those of the user stay where they are."""
    later = listing.shards[listing.shards.index(ready.shard) + 1 :]
    needed = {path for shard in later for path in shard.paths} | set(listing.common)
    for path, file in ready.files.items():
        if path not in needed and file.is_relative_to(paths.raw):
            file.unlink(missing_ok=True)
            file.with_name(f"{file.name}.fetched.json").unlink(missing_ok=True)


def _jobs(listing: Listing, settings: Settings) -> int:
    """Return how many shards are read at once: processes cost half a second each, and are worth it for long work."""
    known = _sum(asset.size for asset in listing.assets)
    worth = known is None or known >= _WORTH_PROCESSES
    return min(settings.jobs, len(listing.shards), os.cpu_count() or 1) if worth and sys.executable else 1


def _convert(
    dataset_id: str,
    listing: Listing,
    paths: DatasetPaths,
    settings: Settings,
    options: Options,
    selection: Selection,
    engine: Engine | None,
) -> Manifest:
    from datasets_rl.pipeline.conversion import ConversionJob, convert
    from datasets_rl.pipeline.engines.local import Local
    from datasets_rl.pipeline.journal import Journal

    head, name = sources.split_id(dataset_id)
    work = ConversionJob(listing.entry or sources.source(head).entry(name), listing, selection)
    journal = Journal(paths.journal, work.key) if len(listing.shards) > 1 else None
    if journal is None:
        disk.remove_tree(paths.build)
    else:
        journal.roll_back(paths.build)
    paths.build.mkdir(parents=True, exist_ok=True)
    left = listing.shards[len(journal.entries) if journal is not None else 0 :]
    try:
        with ExitStack() as stack:
            # Where episodes are chosen by their numbers over all shards, these come one behind the other.
            if len(left) < 2 or listing.numbers is not None:
                engine = None
            elif engine is None and (jobs := _jobs(listing, settings)) > 1:
                engine = Local(jobs)
            if engine is not None:
                stack.enter_context(engine)
            groups = _as_assets(listing, _groups(listing, left))
            get = _getter(stack, dataset_id, groups, paths, settings, options)
            converting = report(f"converting {dataset_id}", None, unit=" steps", show=settings.progress)
            return convert(
                work,
                groups,
                get,
                paths.build,
                journal=journal,
                engine=engine,
                parts=paths.work / "parts",
                report=stack.enter_context(converting),
                committed=bool if options.keep_raw else partial(_drop_raw, paths, listing),
            )
    except ConversionError as error:
        fetched = options.from_local is None
        error.hint = error.hint or ("fetch the file again with --force" if fetched else "give another file")
        raise
    except UnknownKeyError as error:
        if options.from_local is None and not options.force:
            error.hint = f"{error.hint} what was fetched is kept, and does not come again".lstrip()
        raise
    finally:
        if (journal is None or not journal.entries) and not (paths.build / MANIFEST_FILE).is_file():
            # There is nothing to go on with.
            disk.remove_tree(paths.build)
            paths.journal.unlink(missing_ok=True)
