"""Making the datasets of a lock, byte for byte, or refusing with the reason.

    home       a version of the dataset with the locked digest, which becomes the current version
    places     a folder like the home that others share, or the folder of a dataset: the files are copied
    hub        the addresses of the lock, and those of `places`: the files are copied
    recipe     the locked recipe on the locked input, which is made first
    upstream   a download of which every raw file must have the locked digest

Whatever the way, the result is compared with the lock before it becomes the current version. Nothing of the home is lost:
a version with other content stays beside the new version.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from datasets_rl import disk, sources, store
from datasets_rl.build.engines import Engine
from datasets_rl.disk import MANIFEST_FILE
from datasets_rl.downloading import DownloadOptions, run_download
from datasets_rl.downloading.published import fetch_published, published_dataset
from datasets_rl.downloading.target import Expected
from datasets_rl.errors import (
    Argument,
    Call,
    DatasetsRLError,
    DiskFullError,
    IntegrityError,
    InvalidArgumentError,
    LockMismatchError,
    ManifestError,
    NotADatasetError,
    OutdatedLockError,
    Remedy,
)
from datasets_rl.format.current import is_dataset
from datasets_rl.format.integrity import check_files
from datasets_rl.format.manifest import Manifest, checked_manifest, converter_version
from datasets_rl.format.reader import size_problems
from datasets_rl.format.summary import read_document
from datasets_rl.lockfile.compare import differences, is_locked_content, require_locked
from datasets_rl.lockfile.inputs import outdated
from datasets_rl.lockfile.lock import Lock, LockedDataset, LockedInput, LockedRecipe, default_path
from datasets_rl.lockfile.write import version_with
from datasets_rl.preprocessing.merge import merged_manifest
from datasets_rl.preprocessing.naming import make_step
from datasets_rl.preprocessing.plan import Plan
from datasets_rl.preprocessing.recipe import Recipe
from datasets_rl.progress import report
from datasets_rl.settings import Settings
from datasets_rl.sources import Selection
from datasets_rl.sources.address import is_address
from datasets_rl.store import DatasetPaths, restore
from datasets_rl.store.publish import Build, building, canonical, current_version, publish
from datasets_rl.store.publish import locked as holding
from datasets_rl.store.versions import sweep_dataset


@dataclass(frozen=True, slots=True)
class Synced:
    """A dataset that has the locked content."""

    id: str
    folder: Path
    """The folder of the version."""
    origin: str
    """How the dataset was made: "present", or what was done."""


@dataclass
class Syncing:
    """The making of the datasets of a lock, each once."""

    lock: Lock
    settings: Settings
    places: Sequence[str | Path] = ()
    """Folders and addresses on the hub that are asked before the upstream."""
    engine: Engine | None = None
    jobs: int | None = None
    _made: dict[tuple[str, str], Synced | DatasetsRLError] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check that the places exist.

        Raises:
            InvalidArgumentError: If a place is neither a folder nor an address.
        """
        for place in map(str, self.places):
            if not is_address(place) and not disk.expand_home(place).is_dir():
                raise InvalidArgumentError(
                    f"{place} is not a folder",
                    hint="name a folder of datasets, the folder of a dataset, or hf://USER/NAME",
                )

    def make(self, dataset: LockedDataset) -> Synced:
        """Make a dataset of the lock the current version, or find that it is.

        Raises:
            LockMismatchError: If the dataset that can be made is another dataset. The error names the differences.
            NotADatasetError: If there is no way to make the dataset. The error names what was tried.
            FetchError, IntegrityError, PreprocessError, DiskFullError, LockedError: If the only way fails.
        """
        key = (dataset.id, dataset.digest)
        if key not in self._made:
            try:
                self._made[key] = self._make(dataset)
            except DatasetsRLError as error:  # a download of hours is not tried again for each recipe
                self._made[key] = error
        made = self._made[key]
        if isinstance(made, DatasetsRLError):
            raise made
        return made

    def is_stored(self, dataset: LockedDataset) -> bool:
        """Return whether any dataset is stored under the name of a dataset of the lock."""
        return self._paths(dataset).exists

    def check(self, dataset: LockedDataset) -> list[str]:
        """Return how the current version of a dataset differs from the lock. Nothing is changed."""
        try:
            folder = self._paths(dataset).version
            manifest = Manifest.read(folder)
            return [*differences(dataset, manifest), *size_problems(folder, manifest)]
        except NotADatasetError:
            return ["the dataset is not stored"]

    def _make(self, dataset: LockedDataset) -> Synced:
        paths = self._paths(dataset)
        present = self._stored(dataset, paths)
        if present is not None:
            return present
        former, failures = current_version(paths, replaces=True), list[DatasetsRLError]()
        for origin, attempt in self._ways(dataset, paths):
            try:
                attempt()
            except DiskFullError:
                raise
            except DatasetsRLError as error:
                if (made := self._stored(dataset, paths)) is not None:  # by another process, in the meantime
                    return made
                failures.append(error)
                if former is not None and current_version(paths, replaces=True) != former:
                    restore(paths.folder, former.name)  # the input of a recipe that was applied in place
            else:
                made = Synced(dataset.id, paths.version, origin)
                if dataset.is_parent and former is not None:  # recipes read any version
                    restore(paths.folder, former.name)
                return made
        raise self._refusal(dataset, paths, failures)

    def _paths(self, dataset: LockedDataset) -> DatasetPaths:
        place = self.lock.place(dataset)
        return store.paths_of(place) if isinstance(place, Path) else store.dataset_paths(place, settings=self.settings)

    def _stored(self, dataset: LockedDataset, paths: DatasetPaths) -> Synced | None:
        """Return a dataset that is stored, after its version was made the current version, or None."""
        folder = _version_of(dataset, paths)
        if folder is None:
            return None
        current = current_version(paths, replaces=True)
        origin = "present"
        if not (dataset.is_parent or paths.has_no_pointer or (current is not None and current.folder == folder)):
            restore(paths.folder, folder.name)
            origin = f"version {folder.name} is current again"
        sweep_dataset(paths)  # what a killed process left, that would have deleted it next
        return Synced(dataset.id, folder, origin)

    def _ways(self, dataset: LockedDataset, paths: DatasetPaths) -> Iterator[tuple[str, Callable[[], None]]]:
        """Yield the ways to the locked content, each with what it did."""
        addresses = [str(place) for place in self.places if is_address(str(place))]
        for place in self.places:
            folder = Path(place)
            if str(place) not in addresses and (found := self._shared(dataset, folder)) is not None:
                yield f"copied from {place}", partial(self._copy, dataset, paths, found)
        for address in dict.fromkeys((*dataset.copies, *addresses)):
            yield f"copied from {address}", partial(self._download_copy, dataset, paths, address)
        if dataset.recipes:
            recipe = dataset.recipes[-1]
            made_of = " and ".join(one.id for one in recipe.of)
            yield f"made by the recipe {recipe.name!r} of {made_of}", partial(self._preprocess, dataset, paths)
        elif not dataset.is_recorded:
            yield "downloaded", partial(self._download, dataset)

    def _shared(self, dataset: LockedDataset, place: Path) -> Path | None:
        """Return the folder of the version with the locked digest in a shared folder, or None."""
        place = disk.expand_home(place).absolute()
        if is_dataset(place):
            return version_with(store.paths_of(place), dataset.digest)
        named = self.lock.place(dataset)
        if isinstance(named, Path):
            return None
        settings = replace(self.settings, home=place)
        return version_with(store.dataset_paths(named, settings=settings), dataset.digest)

    def _copy(self, dataset: LockedDataset, paths: DatasetPaths, version: Path) -> None:
        """Publish a copy of a version of another folder."""
        manifest = checked_manifest(read_document(version), where=str(version / MANIFEST_FILE))
        disk.require_free(paths.root, manifest.bytes, "the copy of the dataset")

        def fill(build: Build) -> Manifest:
            disk.remove_tree(build.version, paths.folder)
            for entry in manifest.files:
                disk.check_kind(version / entry.path, folder=False)
                disk.link_or_copy(version / entry.path, build.version / entry.path)
            manifest.write(build.version)
            with report(f"checking {dataset.id}", manifest.bytes, show=self.settings.progress) as advance:
                problems = check_files(build.version, advance)
            if problems:
                disk.remove_tree(build.work, paths.folder)
                raise IntegrityError(str(version), problems, hint="the copy there is damaged: name another place")
            return manifest

        self._adopt(dataset, paths, fill)

    def _download_copy(self, dataset: LockedDataset, paths: DatasetPaths, address: str) -> None:
        """Publish the copy of a dataset of the hub, under the locked id."""
        published = published_dataset(address, settings=self.settings)
        require_locked(dataset, published.manifest, published.address)
        self._adopt(dataset, paths, partial(fetch_published, published.address, settings=self.settings))

    def _adopt(self, dataset: LockedDataset, paths: DatasetPaths, fill: Callable[[Build], Manifest]) -> None:
        """Publish a dataset that was made elsewhere.

        Args:
            dataset: The locked dataset.
            paths: The paths of the dataset.
            fill: Puts the files of the dataset into the folder of the build, and returns the manifest.
        """
        paths.check_changeable()
        with holding(paths, dataset.id):
            parent = current_version(paths, replaces=True)
            # Not the request of the copied version, by which the new version would supersede the stored version.
            with building(paths, canonical({"as_locked": dataset.digest}), parent) as build:
                manifest = fill(build)
                replace(manifest, id=self._id(dataset, manifest)).write(build.version)
                publish(build, self._accept(dataset))

    def _id(self, dataset: LockedDataset, manifest: Manifest) -> str:
        """Return the id in the manifest of a dataset of the lock. A folder has the id of what it was made of."""
        place = self.lock.place(dataset)
        return manifest.id if isinstance(place, Path) else place

    def _accept(self, dataset: LockedDataset) -> Callable[[Manifest], None]:
        paths = self._paths(dataset)

        def accept(manifest: Manifest) -> None:
            require_locked(dataset, manifest, dataset.id, hint=_refused_hint(dataset))
            if _version_of(dataset, paths) is not None:  # a second version would take the same room again
                raise DatasetsRLError(f"another process has just made {dataset.id}")

        return accept

    def _download(self, dataset: LockedDataset) -> None:
        """Download the dataset from the upstream, of which every raw file must have the locked digest."""
        place = self.lock.place(dataset)
        selection = Selection.from_json(dataset.selection)
        if isinstance(place, Path):
            raise NotADatasetError(place, "the folder is gone, and no upstream has it")
        source = sources.get_source(sources.find(place).source)
        has_revisions = any(option.name == "revision" for option in source.all_options)
        if dataset.revision and has_revisions and not dataset.copies:
            selection = replace(selection, options={**selection.options, "revision": dataset.revision})
        raw = {file.path: file.sha256 for file in dataset.raw}
        expected = Expected(dataset.digest, raw, self._accept(dataset))
        options = DownloadOptions(selection=selection, engine=self.engine, settings=self.settings, expected=expected)
        run_download(place, options)

    def _preprocess(self, dataset: LockedDataset, paths: DatasetPaths) -> None:
        """Apply the recipes of the dataset, the first to the locked inputs, which are made before."""
        from datasets_rl.preprocessing.run import make_result  # torch, which most syncs do not need

        folders = [self._input(dataset, one) for one in dataset.recipes[0].of]
        for number, locked in enumerate(dataset.recipes):
            recipe = _recipe_of(locked, dataset.id)
            manifests = [Manifest.read(folder) for folder in folders]
            manifest = manifests[0] if len(manifests) == 1 else merged_manifest(manifests, folders)
            name = self._id(dataset, manifest)
            plan = Plan(
                folders, manifest, recipe, recipe.to_json(), locked.num_frames, locked.seed, paths, name, in_place=False
            )
            is_last = number == len(dataset.recipes) - 1
            accept = self._accept(dataset) if is_last else _accept_input(dataset.recipes[number + 1])
            # Other results under this name stay as versions.
            make_result(plan, jobs=self.jobs, engine=self.engine, force=True, settings=self.settings, accept=accept)
            folders = [paths.version]

    def _input(self, dataset: LockedDataset, wanted: LockedInput) -> Path:
        """Return the folder of the version that the first recipe of a dataset is applied to."""
        found = self.lock.with_digest(wanted)
        if found is None and dataset.raw:  # the recipe was applied in place, to the conversion of these raw files
            found = replace(dataset, digest=wanted.digest, recipes=(), steps=0, fields=(), files=(), is_parent=True)
        if found is None:
            raise OutdatedLockError(
                self.lock.path, [f"the lock has no dataset {wanted.id} with the digest {wanted.digest[:12]}..."]
            )
        try:
            return self.make(found).folder
        except DatasetsRLError as error:
            needed = copy.copy(error)
            needed.notes = (*error.notes, f"{dataset.id} is made of {found.id}")
            raise needed from error

    def _refusal(
        self, dataset: LockedDataset, paths: DatasetPaths, failures: Sequence[DatasetsRLError]
    ) -> DatasetsRLError:
        """Return the error of a dataset that cannot be made."""
        reasons = [error.message for error in failures]
        if not dataset.is_recorded and failures:
            last = failures[-1]
            last.notes = (*last.notes, *(f"before: {reason}" for reason in reasons[:-1]))
            return last
        if dataset.is_recorded:
            asked = [str(place) for place in (*dataset.copies, *self.places)]
            reasons.append("recorded episodes cannot be made again")
            verb = "do" if len(asked) > 1 else "does"
            reasons.append(
                f"{' and '.join(asked)} {verb} not have the dataset" if asked else "the lock has no address of a copy"
            )
        hint = Remedy(
            "name a folder of datasets, or an address on the hub, with the locked dataset: {}",
            Call("lockfile.sync", places=...),
        )
        stored: list[str] = []
        try:
            stored = differences(dataset, Manifest.read(paths.folder)) if paths.exists else []
        except ManifestError as error:
            stored = [error.message]
        if stored:
            return LockMismatchError(dataset.id, [*stored, *reasons], hint=hint)
        return NotADatasetError(paths.folder, "; ".join(reasons) or "there is no way to make it", hint=hint)


def _version_of(dataset: LockedDataset, paths: DatasetPaths) -> Path | None:
    """Return the folder of a stored version with the locked content, or None."""
    folder = version_with(paths, dataset.digest)
    return folder if folder is not None and is_locked_content(dataset, Manifest.read(folder)) else None


def _refused_hint(dataset: LockedDataset) -> Remedy:
    """Return what to do where the only way gives another dataset."""
    other = dataset.package and dataset.package != converter_version()
    install = f"install datasets-rl=={dataset.package}, which wrote the locked dataset" if other else "restore a copy"
    return Remedy(
        "{}, name a place that has the locked dataset with {}, or accept the present data with {}",
        install,
        Argument("places"),
        Call("lockfile.write_lock"),
    )


def _accept_input(recipe: LockedRecipe) -> Callable[[Manifest], None]:
    """Return a check that a dataset is the input of a recipe."""

    def accept(manifest: Manifest) -> None:
        if manifest.files_digest != recipe.of[0].digest:
            digests = (manifest.files_digest, recipe.of[0].digest)
            problem = "the input of the recipe {!r} has the digest {:.12}..., expected {:.12}...".format(
                recipe.name, *digests
            )
            raise LockMismatchError(recipe.of[0].id, [problem])

    return accept


def _recipe_of(locked: LockedRecipe, dataset_id: str) -> Recipe:
    """Return the recipe of a lock.

    Raises:
        InvalidArgumentError: If a step is a function of the user, of which the lock has the digest alone, or no step of
            this version.
    """
    functions = [f"{step.get('use')} {step.get('name', '')}".strip() for step in locked.steps if "digest" in step]
    if functions:
        raise InvalidArgumentError(
            f"{dataset_id} was made by code of the user: {', '.join(functions)} of the recipe {locked.name!r}, which is "
            "not run for a lock",
            hint="apply the recipe yourself, which gives the locked dataset if the code is the same",
        )
    steps = []
    for number, step in enumerate(locked.steps):
        arguments = {name: value for name, value in step.items() if name != "use"}
        try:
            steps.append(make_step(str(step.get("use")), (), arguments))
        except InvalidArgumentError as error:
            where = f"step {number} ({step.get('use')}) of the recipe {locked.name!r} of {dataset_id} is not valid"
            hint = Remedy(
                "install the version of datasets-rl that wrote the lock, or write the lock again with {}",
                Call("lockfile.write_lock"),
            )
            raise InvalidArgumentError(f"{where}: {error.message}", hint=hint) from error
    return Recipe(steps, locked.name)


def sync(
    path: Path | str | None = None,
    *,
    locked: bool = False,
    places: Sequence[str | Path] = (),
    engine: Engine | None = None,
    jobs: int | None = None,
    settings: Settings | None = None,
) -> list[Synced]:
    """Make the datasets of a lock, byte for byte, from the home, other places, recipes and the upstreams.

        >>> from datasets_rl.lockfile import sync
        >>> [dataset.origin for dataset in sync("rlds.lock", places=["/shared/rl"])]

    Each dataset with the locked content becomes the current version of its id. Versions with other content stay.

    Args:
        path: The lock. By default the setting ``lock``, or ``rlds.lock`` in the root of the project.
        locked: Whether the lock must fit its programs and mixtures: nothing is made otherwise.
        places: Folders with datasets as in the home, folders of datasets, and addresses on the hub, ``hf://user/name``,
            which are asked before the upstreams.
        engine: The engine that converts and preprocesses. By default processes of this machine. The result does not
            depend on the engine.
        jobs: The number of processes for each recipe. By default the number of cores if the dataset is large.
        settings: The settings. By default the settings of the environment.

    Returns:
        The datasets that the inputs of the lock name.

    Raises:
        LockMismatchError: If a dataset can only be made with other content. The error names the differences.
        OutdatedLockError: If `locked` is set and the lock does not fit.
        NotADatasetError: If a dataset cannot be made, as a recording without a copy.
        InvalidArgumentError: If the lock cannot be read, or a place is neither a folder nor an address.
        FetchError: If a file cannot be fetched from any address.
    """
    settings = settings or Settings.from_env()
    lock = Lock.read(default_path(settings) if path is None else path)
    if locked and (problems := outdated(lock, settings)):
        raise OutdatedLockError(lock.path, problems)
    syncing = Syncing(lock, settings, places, engine, jobs)
    return [syncing.make(dataset) for dataset in lock.datasets if not dataset.is_parent]
