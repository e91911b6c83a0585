"""The datasets on this disk: where they lie, how they get there, whether they are intact."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datasets_rl import disk, sources
from datasets_rl.disk import MANIFEST_FILE
from datasets_rl.errors import BadArgument, ConversionFailed, ManifestInvalid, NotADataset, UnknownId
from datasets_rl.progress import report
from datasets_rl.settings import Settings

if TYPE_CHECKING:
    from datasets_rl.fetch.asset import Asset, Fetched
    from datasets_rl.format.reader import StoredDataset
    from datasets_rl.manifest import Manifest

__all__ = [
    "Place",
    "Plan",
    "Verification",
    "download",
    "locate",
    "place",
    "plan",
    "raw_files",
    "refuse_foreign_files",
    "remove",
    "stored",
    "verify",
]

_SIZE_GUESS = 1.2  # converted bytes per raw byte, before the raw file can be opened; exact afterwards


@dataclass(frozen=True, slots=True)
class Place:
    """Where everything of one dataset lies, below its source's folder."""

    root: Path
    """The source's folder, ``<RLDS_HOME>/d4rl``."""
    name: str
    """The id within the source."""

    @property
    def folder(self) -> Path:
        """The finished dataset."""
        return self.root / self.name

    @property
    def raw(self) -> Path:
        """Upstream files, on their way or kept."""
        return self.root / ".raw" / self.name

    @property
    def work(self) -> Path:
        """Everything that is not finished."""
        return self.root / ".work" / self.name

    @property
    def build(self) -> Path:
        """The dataset while it is made."""
        return self.work / "build"

    @property
    def aside(self) -> Path:
        """The dataset that is being replaced, for the moment between two renames."""
        return self.work / "replaced"

    @property
    def lock(self) -> Path:
        """The owner file of the process that makes the dataset."""
        return self.root / ".work" / f"{self.name.replace('/', '--')}.lock"

    @property
    def exists(self) -> bool:
        """Whether there is a finished dataset."""
        return (self.folder / MANIFEST_FILE).is_file()


@dataclass(frozen=True, slots=True)
class Options:
    """Where raw files may come from; see `download`."""

    force: bool = False
    from_local: Path | str | None = None
    mirrors: tuple[str, ...] = ()
    hash_check: bool = True
    limit_rate: int | None = None


@dataclass(frozen=True, slots=True)
class Verification:
    """What `verify` found."""

    id: str
    folder: Path
    problems: tuple[str, ...]
    """Why the dataset must not be used; empty if it is intact."""
    remarks: tuple[str, ...]
    """What is allowed and worth knowing."""
    checked: tuple[str, ...]
    """What was looked at, a sentence each."""
    files: int
    bytes: int


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
    free_bytes: int


def place(dataset_id: str, *, root: Path | str | None = None, settings: Settings | None = None) -> Place:
    """Return where a dataset lies or would lie.

    Args:
        dataset_id: With its source, ``d4rl/hopper-medium-v2``.
        root: The source's folder; by default ``<RLDS_HOME>/<source>``.
        settings: By default those of the environment.

    Raises:
        UnknownId: If there is no such id.
    """
    entry = sources.find(dataset_id)
    if root is None:
        root = (settings or Settings.from_env()).home / entry.source
    return Place(Path(root).expanduser().absolute(), entry.name)


def locate(dataset: str | Path, *, root: Path | str | None = None, settings: Settings | None = None) -> Path:
    """Return the folder of a finished dataset, given by its id or by its folder.

    Raises:
        UnknownId: If there is no such id, or (`NotADataset`) nothing finished is there.
    """
    as_path = Path(dataset).expanduser()
    if isinstance(dataset, Path) or (root is None and (as_path / MANIFEST_FILE).is_file()):
        if not (as_path / MANIFEST_FILE).is_file():
            raise NotADataset(as_path)
        return as_path.absolute()
    spot = place(dataset, root=root, settings=settings)
    if not spot.exists:
        recoverable = spot.aside.exists()
        reason = "it is not downloaded" if not recoverable else "its replacement was interrupted"
        raise NotADataset(spot.folder, reason, hint=f"rlds download {dataset}")
    return spot.folder


def stored(home: Path) -> Iterator[Path]:
    """Yield the folder of every finished dataset below a home folder, sorted."""
    seen: set[Path] = set()
    for source_folder in sorted(path for path in home.glob("*") if path.is_dir() and path.name[0] != "."):
        # Datasets may lie on other disks behind links; a link that leads back up is met once.
        for found, folders, files in os.walk(source_folder, followlinks=True):
            folder = Path(found)
            inside = MANIFEST_FILE in files or folder.resolve() in seen
            seen.add(folder.resolve())
            folders[:] = [] if inside else sorted(name for name in folders if not name.startswith("."))
            if MANIFEST_FILE in files:
                yield folder


def plan(dataset_id: str, **options: Any) -> Plan:
    """Say what `download` with the same options would do, without a request and without writing.

    Raises:
        UnknownId: If there is no such id.
    """
    from datasets_rl.fetch import remaining_bytes

    settings = options.get("settings") or Settings.from_env()
    spot = place(dataset_id, root=options.get("root"), settings=settings)
    entry = sources.find(dataset_id)
    assets = _assets(dataset_id, options.get("mirrors", ()), settings)
    local = options.get("from_local") is not None
    raw_bytes = entry.bytes
    return Plan(
        id=entry.id,
        folder=spot.folder,
        assets=assets,
        present=spot.exists and not options.get("force", False),
        wire_bytes=0 if local else remaining_bytes(assets, spot.raw),
        stored_bytes=None if raw_bytes is None or options.get("raw_only") else int(raw_bytes * _SIZE_GUESS),
        free_bytes=disk.free_bytes(spot.root),
    )


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
    wait: float = 3600.0,
    settings: Settings | None = None,
) -> Path:
    """Make a dataset whole on disk: fetch its raw files, convert them, check them, put the folder in its place.

    Rerunning after any interruption resumes. A dataset that is there already is left alone.

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
        wait: Seconds to wait for another process that makes the same dataset.
        settings: By default those of the environment.

    Returns:
        The dataset's folder; with `raw_only` the folder of the raw files.

    Raises:
        UnknownId: If there is no such id.
        FetchFailed: If no address gave a file.
        IntegrityFailed: If a file is not the one expected.
        ConversionFailed: If a file breaks its own format.
        DiskFull: If there is no room.
        Locked: If another process did not finish in time.
    """
    settings = settings or Settings.from_env()
    spot = place(dataset_id, root=root, settings=settings)
    if spot.exists and not force and not raw_only:
        return spot.folder
    _refuse_foreign(spot)
    if spot.exists and not raw_only:
        refuse_foreign_files(spot.folder)
    with disk.lock(spot.lock, dataset_id, wait=wait, waiting=lambda owner: _say(f"waiting for {owner}")):
        disk.recover_folder(spot.folder, aside=spot.aside)
        if spot.exists and not force and not raw_only:
            return spot.folder
        disk.remove_tree(spot.build)
        options = Options(force, from_local, tuple(mirrors), hash_check, limit_rate)
        files = _fetch(dataset_id, spot, settings, options)
        if raw_only:
            return spot.raw if files[0].path.is_relative_to(spot.raw) else files[0].path.parent
        _convert(dataset_id, spot, files, settings)
        disk.publish_folder(spot.build, spot.folder, aside=spot.aside)
        if not keep_raw:
            disk.remove_tree(spot.raw)
        disk.remove_tree(spot.work)
    return spot.folder


def _say(text: str) -> None:
    print(text, file=sys.stderr)  # noqa: T201 -- the one line that explains a silent wait


def refuse_foreign_files(folder: Path) -> None:
    """Check that a dataset's folder holds nothing else, before it is deleted.

    Raises:
        BadArgument: If there are files that are not the dataset's; the error names them.
    """
    from datasets_rl.manifest import Manifest

    try:
        known = {entry.path for entry in Manifest.read(folder).files}
    except ManifestInvalid:
        known = {path.relative_to(folder).as_posix() for path in folder.rglob("*.npy")}
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}
    foreign = sorted(found - known - {MANIFEST_FILE})
    if foreign:
        more = f" and {len(foreign) - 3:,} more" if len(foreign) > 3 else ""
        raise BadArgument(
            f"{folder} holds files that are not the dataset's: {', '.join(foreign[:3])}{more}",
            hint="move them: the folder is about to be deleted",
        )


def _refuse_foreign(spot: Place) -> None:
    if spot.folder.exists() and not spot.exists and (not spot.folder.is_dir() or any(spot.folder.iterdir())):
        raise BadArgument(
            f"{spot.folder} is in the way: it holds something that is not a dataset",
            hint="move it, or choose another root",
        )


def _assets(dataset_id: str, mirrors: Sequence[str], settings: Settings) -> tuple[Asset, ...]:
    from datasets_rl.fetch import mirrored

    head, name = sources.split_id(dataset_id)
    bases = (*mirrors, *settings.mirrors.get(head, ()))
    return tuple(mirrored(asset, bases) for asset in sources.source(head).assets(name))


def _fetch(dataset_id: str, spot: Place, settings: Settings, options: Options) -> list[Fetched]:
    from datasets_rl.fetch import fetch, fetch_local, remaining_bytes

    assets = _assets(dataset_id, options.mirrors, settings)
    if options.from_local is not None:
        local = Path(options.from_local).expanduser().absolute()
        return fetch_local(assets, local, hash_check=options.hash_check)
    if options.force:
        for asset in assets:
            # Unfinished parts stay: what they hold is checked when they are resumed.
            disk.remove_tree(spot.raw / asset.path)
    wire = remaining_bytes(assets, spot.raw)
    if wire:
        whole = sum(asset.size or 0 for asset in assets)
        disk.require_free(spot.root, wire + int(whole * _SIZE_GUESS), "the download and the converted dataset")
    return fetch(
        assets,
        spot.raw,
        settings=settings,
        hash_check=options.hash_check,
        limit_rate=options.limit_rate,
        label=dataset_id,
    )


def _convert(dataset_id: str, spot: Place, files: Sequence[Fetched], settings: Settings) -> Manifest:
    from datasets_rl.convert import convert

    head, name = sources.split_id(dataset_id)
    origin = sources.source(head)
    spot.build.mkdir(parents=True)
    try:
        with origin.open(name, {file.asset.path: file.path for file in files}) as recording:
            label = f"converting {dataset_id}"
            with report(label, recording.steps, unit=" steps", show=settings.progress) as advance:
                return convert(recording, spot.build, origin.entry(name), files, advance)
    except ConversionFailed as error:
        fetched = any(file.path.is_relative_to(spot.raw) for file in files)
        error.hint = error.hint or ("fetch the file again with --force" if fetched else "give another file")
        raise
    finally:
        if not (spot.build / MANIFEST_FILE).is_file():
            disk.remove_tree(spot.build)


def verify(
    dataset: str | Path, *, deep: bool = False, root: Path | str | None = None, settings: Settings | None = None
) -> Verification:
    """Check a finished dataset.

    Args:
        dataset: Its id, or its folder.
        deep: Beside sizes and digests, check every rule of TED, look for values that are no data, and, where the raw
            files are at hand, compare the converted values with theirs, column by column.
        root: The source's folder; by default ``<RLDS_HOME>/<source>``.
        settings: By default those of the environment.

    Raises:
        UnknownId: If there is no such id, or nothing finished is there.
        ManifestInvalid: If the manifest cannot be trusted.
    """
    from datasets_rl.format.reader import StoredDataset
    from datasets_rl.format.verify import check_files
    from datasets_rl.manifest import Manifest
    from datasets_rl.ted.check import check_rules

    settings = settings or Settings.from_env()
    folder = locate(dataset, root=root, settings=settings)
    manifest = Manifest.read(folder)
    with report(f"checking {manifest.id}", manifest.bytes, show=settings.progress) as advance:
        problems = check_files(folder, advance)
    checked = [f"size and sha256 of {len(manifest.files)} files"]
    remarks: list[str] = []
    if deep and not problems:
        stored_dataset = StoredDataset(folder)
        findings = check_rules(stored_dataset.schema, stored_dataset.episodes, stored_dataset.column)
        problems, remarks = findings.problems, findings.remarks
        checked.append(f"the rules of TED on {manifest.steps:,} steps of {manifest.episodes:,} episodes")
        problems += _compare(stored_dataset, folder, checked)
    return Verification(
        id=manifest.id,
        folder=folder,
        problems=tuple(problems),
        remarks=tuple(remarks),
        checked=tuple(checked),
        files=len(manifest.files),
        bytes=manifest.bytes,
    )


def _compare(stored_dataset: StoredDataset, folder: Path, checked: list[str]) -> list[str]:
    manifest = stored_dataset.manifest
    try:
        head, name = sources.split_id(manifest.id)
        origin = sources.source(head)
        origin.entry(name)
    except UnknownId:
        checked.append(f"not compared with raw files: this version has no source for {manifest.id}")
        return []
    spot = Place(folder.parents[name.count("/")], name) if folder.as_posix().endswith(f"/{name}") else None
    files = raw_files(manifest, spot)
    if files is None:
        checked.append("not compared with raw files: they are not at hand (rlds download --keep-raw keeps them)")
        return []
    checked.append(f"every converted value against {', '.join(file.name for file in files.values())}")
    return origin.compare(name, files, stored_dataset.column)


def raw_files(manifest: Manifest, spot: Place | None) -> Mapping[str, Path] | None:
    """Return where the raw files of a dataset lie, or None unless all of them are at hand.

    They are when they were kept, or when the dataset was made of local files that are still as they were.
    """
    found: dict[str, Path] = {}
    for file in manifest.raw:
        kept = spot.raw / file.path if spot is not None else None
        path = kept if kept is not None and kept.is_file() else _in_place(file.url)
        if path is None or not path.is_file() or path.stat().st_size != file.bytes:
            return None
        found[file.path] = path
    return found or None


def _in_place(url: str) -> Path | None:
    from datasets_rl.fetch.schemes import NotThere, scheme_of

    try:
        scheme = scheme_of(url)
        found = scheme.resolve(url, _no_requests) if scheme.IN_PLACE else None
    except (BadArgument, NotThere):
        return None
    return found if isinstance(found, Path) else None


def _no_requests(url: str, headers: Mapping[str, str]) -> Mapping[str, str]:
    raise BadArgument(f"{url} would need a request with {len(headers)} headers; local files need none")


def remove(dataset_id: str, *, root: Path | str | None = None, settings: Settings | None = None) -> int:
    """Delete a dataset with its raw and unfinished files.

    Returns:
        Bytes freed; 0 if nothing was there.

    Raises:
        UnknownId: If there is no such id.
        Locked: If another process is making it.
    """
    spot = place(dataset_id, root=root, settings=settings)
    with disk.lock(spot.lock, dataset_id, wait=0):
        paths = [path for path in (spot.raw, spot.work) if path.exists()] + [spot.folder] * spot.exists
        freed = sum(disk.tree_bytes(path) for path in paths)
        if spot.exists:
            refuse_foreign_files(spot.folder)
            disk.discard_folder(spot.folder, by_way_of=spot.work / "removed")
        disk.remove_tree(spot.work)
        disk.remove_tree(spot.raw)
    return freed
