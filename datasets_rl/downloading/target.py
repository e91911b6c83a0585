"""What an id, an address, a selection and a root mean on this disk: worked out once per command, and handed on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from datasets_rl import sources
from datasets_rl.disk import expand_home
from datasets_rl.downloading.stored_selection import check_contains, grown_selection
from datasets_rl.errors import Argument, Call, InvalidArgumentError, LockMismatchError, Remedy
from datasets_rl.settings import Settings
from datasets_rl.sources import Entry, Listing, Selection
from datasets_rl.store import DatasetPaths
from datasets_rl.store.find import entry_paths, missing_error, stored_manifest
from datasets_rl.store.publish import canonical
from datasets_rl.ted.keys import NEXT

if TYPE_CHECKING:
    from datasets_rl.build.engines import Engine
    from datasets_rl.format.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Expected:
    """What a download must give, as a lock of datasets states it."""

    digest: str
    """The digest of the files of the dataset, see `Manifest.files_digest`."""
    raw: Mapping[str, str]
    """The SHA-256 of each raw file, by path. Empty if the raw files are not known."""
    accept: Callable[[Manifest], None]
    """Raises an error of this package for the manifest of another dataset, which is then not published."""

    def require_digests(self, listing: Listing, dataset_id: str) -> Listing:
        """Return a listing of which each file must have the expected digest.

        Raises:
            LockMismatchError: If the upstream lists another digest, or lacks a file.
        """
        listed = {asset.path: asset for asset in listing.assets}
        problems = [
            f"the raw file {path} is not among the files of the upstream, expected the sha256 {sha256}"
            for path, sha256 in self.raw.items()
            if path not in listed
        ]
        problems += [
            f"the raw file {path} has the sha256 {asset.sha256} at the upstream, expected {self.raw[path]}"
            for path, asset in listed.items()
            if self.raw.get(path, asset.sha256) != asset.sha256 and asset.sha256 is not None
        ]
        if problems:
            other = Remedy(
                "the upstream publishes another file: name a place that has the locked dataset with {}, or lock the new "
                "file after a download",
                Argument("places"),
            )
            raise LockMismatchError(dataset_id, problems, hint=other)
        assets = (replace(asset, sha256=self.raw.get(asset.path, asset.sha256)) for asset in listing.assets)
        return replace(listing, assets=tuple(assets))


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadOptions:
    """The arguments of a download, which `download` describes."""

    root: Path | str | None = None
    force: bool = False
    from_local: Path | str | None = None
    mirrors: Sequence[str] = ()
    hash_check: bool = True
    keep_raw: bool = False
    raw_only: bool = False
    limit_rate: int | None = None
    selection: Selection | None = None
    as_stored: bool = False
    engine: Engine | None = None
    wait: float = 3600.0
    settings: Settings | None = None
    expected: Expected | None = None
    """What the result must be. A stored dataset is then replaced, and stays as another version."""

    @property
    def local(self) -> Path | None:
        """The absolute path of the user's raw files."""
        return None if self.from_local is None else expand_home(self.from_local).absolute()


@dataclass(frozen=True, slots=True)
class Target:
    """A dataset to download, or to find on the disk."""

    id: str
    """The id with its source, or the id of the repository for an address."""
    entry: Entry
    """The catalog entry, of the original dataset for a derived dataset."""
    paths: DatasetPaths
    selection: Selection
    """The requested selection, with the revision of an address."""
    stored: Manifest | None
    """The manifest of the current version. None if nothing is stored, or if the version will be replaced in any
    case."""
    options: DownloadOptions
    settings: Settings
    """The settings of the options, or of the environment."""
    is_derived: bool = False
    own_copy: bool = False
    """Whether the local files of the options are in the cache of the upstream's library."""

    @classmethod
    def find(cls, dataset_id: str, options: DownloadOptions) -> Target:
        """Return the target of an id or an address, ``hf://user/name@revision``.

        Raises:
            UnknownIdError: If there is no such id.
            InvalidArgumentError: If its source does not support the selection, or a derived dataset is to be replaced.
            ManifestError: If the stored version is damaged.
        """
        settings = options.settings or Settings.from_env()
        if not isinstance(options.selection, Selection | None):
            raise InvalidArgumentError(
                f"selection is {options.selection!r}, expected a Selection",
                hint="as in Selection(episodes='0:100', keys=('observation', 'action'))",
            )
        dataset_id, selection = sources.split_address(dataset_id, options.selection or Selection())
        entry = sources.find(dataset_id)
        if options.from_local is None:
            options = replace(options, from_local=sources.path_of_id(entry.id))
        suffix = dataset_id.removeprefix(sources.split_derived(dataset_id)[0])
        paths = entry_paths(entry, suffix, root=options.root, settings=settings)
        # A version that is replaced in any case is not read.
        replaces = options.force or options.raw_only or options.expected is not None
        if suffix and replaces:
            raise InvalidArgumentError(
                f"{dataset_id} was derived from another dataset, and cannot be downloaded",
                hint=Remedy("`{}` makes the dataset again", Call("preprocess", ..., force=True)),
            )
        stored = None if replaces else stored_manifest(paths)
        own_copy = False
        # A stored dataset grows from its original files. The copy of the upstream's own library does not state its
        # revision.
        asks_upstream = options.from_local or replaces or options.mirrors or "revision" in selection.options
        if stored is None and not (suffix or asks_upstream):
            copy = sources.get_source(entry.source).own_copy(entry.name)
            options, own_copy = replace(options, from_local=copy), copy is not None
        if not suffix:
            # Episodes of a stored dataset are chosen from its table, also where the upstream has a single file for all.
            checked = replace(selection, episodes="") if stored is not None else selection
            sources.get_source(entry.source).check(checked)
        return cls(dataset_id, entry, paths, selection, stored, options, settings, bool(suffix), own_copy)

    def missing(self) -> Selection | None:
        """Return the selection to download, including the stored selection, or None if nothing is missing.

        Raises:
            NotADatasetError: If a derived dataset is not stored.
            InvalidArgumentError: As `grown_selection` does, or if a derived dataset lacks some of the requested selection.
            UnknownKeyError: If the stored dataset is whole and does not have a requested field.
        """
        if self.is_derived:
            if self.stored is None:
                raise missing_error(self.id, self.paths)
            check_contains(self.stored, self.paths.folder, self.selection)
            return None
        if self.stored is None:
            return self.selection
        grown = grown_selection(self.stored, self.paths.folder, self.selection, as_stored=self.options.as_stored)
        if grown is None:
            states = [(NEXT, *field.key) for field in self.stored.schema if field.shared]
            self.selection.kept_keys([*(field.key for field in self.stored.schema), *states])
        return grown

    def request(self, selection: Selection) -> str:
        """Return the request of a download, as canonical JSON: equal for calls that make the same dataset."""
        request = {"download": self.entry.id, "selection": selection.to_json()}
        # Not the request of a download, by which the expected version would supersede the stored version.
        return canonical(
            request if (expected := self.options.expected) is None else {"as_locked": expected.digest, **request}
        )
