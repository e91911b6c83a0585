"""Writing a lock: which datasets ids, mixtures and programs name, and what identifies each stored dataset."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from datasets_rl import disk, sources, store
from datasets_rl.downloading.published import published_dataset
from datasets_rl.errors import (
    DatasetsRLError,
    InvalidArgumentError,
    LockMismatchError,
    ManifestError,
    NotADatasetError,
    Remedy,
    UnknownIdError,
)
from datasets_rl.format.manifest import Manifest
from datasets_rl.format.reader import size_problems
from datasets_rl.lockfile.compare import differences, field_text, is_locked_content, selected_part
from datasets_rl.lockfile.inputs import Inputs, target_of
from datasets_rl.lockfile.lock import (
    Lock,
    LockedDataset,
    LockedInput,
    LockedMixture,
    LockedRawFile,
    LockedRecipe,
    default_path,
    is_lock,
    is_newer,
    name_in_lock,
    place_of,
    relative_path,
)
from datasets_rl.settings import Settings
from datasets_rl.store import DatasetPaths
from datasets_rl.store.find import locate
from datasets_rl.store.publish import versions_of


@dataclass(frozen=True)
class Written:
    """A lock, and what is to be known about it."""

    lock: Lock
    former: Lock | None
    """The lock that the file had before, or None without a former lock."""
    computed: tuple[str, ...]
    """Calls of programs with datasets that are not locked, because only running the program shows the datasets."""
    changed: bool
    """Whether the file differs from the lock, or differed until it was written."""


def write_lock(
    *targets: str | Path,
    path: Path | str | None = None,
    copies: Sequence[str] = (),
    check: bool = False,
    settings: Settings | None = None,
) -> Written:
    """Write a lock of stored datasets, ``rlds.lock``, which identifies each dataset byte for byte.

        >>> from datasets_rl.lockfile import write_lock
        >>> write_lock("demo/pendulum", "mix.toml", "train.py")

    Equal datasets give an equal file on every machine and on every day. The datasets of recipes are locked, too.

    Args:
        *targets: Ids, folders of datasets, files of mixtures and programs. By default the inputs of the present lock. Of
            a program, the datasets are locked that are constants in calls of this package. The program is not run.
        path: The file. By default the setting ``lock``, or ``rlds.lock`` in the root of the project.
        copies: Addresses on the hub, ``hf://user/name``, where some of the datasets are published. The lock has the
            address of each with the commit, and needs it for recordings, which cannot be made again.
        check: Only compare: nothing is written.
        settings: The settings. By default the settings of the environment.

    Raises:
        NotADatasetError: If a dataset is not stored.
        UnknownIdError: If there is no such dataset.
        InvalidArgumentError: If there is no input, or an input or the present lock cannot be read.
        LockMismatchError: If an address of `copies` has none of the datasets.
    """
    settings = settings or Settings.from_env()
    file = default_path(settings) if path is None else disk.expand_home(path).absolute()
    former, base = None, file.parent
    named = [*targets]
    if file.is_dir():
        raise InvalidArgumentError(
            f"{file} is a folder, expected the path of a file", hint="name the file in the folder"
        )
    if not base.is_dir():
        raise InvalidArgumentError(
            f"there is no folder {base} for the lock", hint="create the folder, or name another file"
        )
    if file.is_file() and file.stat().st_size:
        try:
            former = Lock.read(file)
            listed = former.inputs
        except InvalidArgumentError:
            if not is_lock(file):
                raise InvalidArgumentError(
                    f"{file} is not replaced: it is not a lock", hint="name another file, or move this file away"
                ) from None
            listed = _stated_inputs(file)
            if is_newer(file) or not (targets or listed):
                raise
        named = named or [target_of(one, base) for one in listed]
    if not named:
        raise InvalidArgumentError(
            f"there is no lock {file}, and no dataset is named",
            hint="name the ids, the files of mixtures and the programs of the project",
        )
    inputs = Inputs.read(named, base, settings)
    lock = lock_datasets(inputs, file, settings)
    lock = _with_copies(lock, copies, former, settings)
    # Version control may have changed the ends of lines.
    changed = not file.is_file() or file.read_text("utf-8", "replace") != lock.text
    if changed and not check:
        lock.write()
    return Written(lock, former, tuple(inputs.computed), changed)


_CONFLICT = ("<<<<<<<", "|||||||", "=======", ">>>>>>>")
"""Beginnings of the lines with which version control marks the two sides of a conflict."""
_INPUTS = re.compile(r"^inputs = \[\n(.*?)^\]$", re.MULTILINE | re.DOTALL)


def _stated_inputs(path: Path) -> tuple[str, ...]:
    """Return the inputs of a lock that is not valid, of both sides of a conflict, or nothing if they are not certain."""
    found = _INPUTS.search(path.read_text("utf-8", "replace"))
    lines = [] if found is None else [line for line in found[1].splitlines() if not line.startswith(_CONFLICT)]
    try:
        return tuple(dict.fromkeys(str(json.loads(line.strip().removesuffix(","))) for line in lines))
    except ValueError:
        return ()


def lock_opened(path: Path, targets: Sequence[str], opened: Sequence[tuple[str, Manifest, Path]]) -> Lock:
    """Return the lock of datasets that are open, and of the datasets that their recipes were applied to.

    Args:
        path: The file of the lock.
        targets: The ids, the folders, and the files of mixtures that name the datasets.
        opened: For each dataset the id or the path by which the dataset was opened, the manifest of the open version, and
            the folder of the dataset.
    """
    path, settings = path.absolute(), Settings.from_env()
    inputs = Inputs.read([one for one in targets if one.endswith(".toml")], path.parent, settings)
    blocks: dict[tuple[str, str], LockedDataset] = {}
    names = {}
    for dataset, manifest, folder in opened:
        try:
            name = names[dataset] = name_in_lock(store.id_or_path(dataset), path.parent, settings)
        except UnknownIdError:  # a prefix that the program has registered
            name = names[dataset] = name_in_lock(folder, path.parent, settings)
        _add_blocks(blocks, locked_blocks(name, manifest, store.paths_of(folder), path.parent, settings))
    listed = [*inputs.listed, *(names[one] for one in targets if not one.endswith(".toml"))]
    return _lock_of(path, blocks, listed, inputs.mixtures)


def lock_datasets(inputs: Inputs, path: Path, settings: Settings) -> Lock:
    """Return the lock of stored datasets, and of the datasets that their recipes were applied to.

    Args:
        inputs: The names of the datasets.
        path: The file of the lock.
        settings: The settings, with the home of the datasets.

    Raises:
        NotADatasetError: If a dataset is not stored.
    """
    blocks: dict[tuple[str, str], LockedDataset] = {}
    for name in inputs.named:
        place = place_of(name, path.parent)
        folder = store.version_folder(locate(place, settings=settings))
        manifest = Manifest.read(folder)
        _add_blocks(blocks, locked_blocks(name, manifest, _paths(place, settings), path.parent, settings))
    return _lock_of(path, blocks, [*inputs.listed], inputs.mixtures)


def _add_blocks(blocks: dict[tuple[str, str], LockedDataset], added: Iterable[LockedDataset]) -> None:
    """Add datasets of a lock. A dataset that an input names and that is a parent of another is no parent in the lock."""
    for block in added:
        present = blocks.get((block.id, block.digest))
        if present is None or present.is_parent:
            blocks[block.id, block.digest] = block


def _lock_of(
    path: Path,
    blocks: Mapping[tuple[str, str], LockedDataset],
    inputs: Sequence[str],
    mixtures: Sequence[LockedMixture],
) -> Lock:
    """Return a lock with everything sorted."""
    datasets = tuple(blocks[key] for key in sorted(blocks))
    return Lock(path, datasets, tuple(sorted(inputs)), tuple(sorted(mixtures, key=lambda one: one.file)))


def locked_blocks(
    name: str, manifest: Manifest, paths: DatasetPaths, base: Path, settings: Settings
) -> Iterator[LockedDataset]:
    """Yield a dataset as a lock has it, and then the datasets that its recipes were applied to.

    Args:
        name: The name of the dataset in the lock.
        manifest: The manifest of the dataset.
        paths: The paths of the dataset, with other versions.
        base: The folder of the lock.
        settings: The settings, with the home in which other datasets are found.
    """
    recipes, parents, history = _split_history(name, manifest, paths, base)
    dataset_id = manifest.id if name.startswith(".") else name
    yield LockedDataset(
        id=name,
        digest=manifest.files_digest,
        package=manifest.converter,
        steps=manifest.steps,
        episodes=manifest.episodes,
        selection=selected_part(manifest),
        revision=manifest.revision,
        recordings=manifest.recordings if not parents else (),
        copies=(manifest.copied_from["address"],) if "address" in manifest.copied_from else (),
        fields=tuple(sorted(map(field_text, manifest.schema))),
        files=manifest.content_files,
        raw=() if parents else tuple(_raw_files(manifest, dataset_id, settings)),
        recipes=tuple(recipes),
    )
    for parent in parents:
        yield from _parent_blocks(parent, manifest, history if len(parents) == 1 else None, base, settings)


def _split_history(
    name: str, manifest: Manifest, paths: DatasetPaths, base: Path
) -> tuple[list[LockedRecipe], tuple[LockedInput, ...], Sequence[Mapping[str, Any]]]:
    """Return the recipes of a dataset since another dataset, that other dataset, and its history.

    Recipes that were applied in place are the dataset's own, down to a conversion of its raw files.
    """
    recipes: list[LockedRecipe] = []
    history = [*manifest.history]
    own = {name, manifest.id}
    while history:
        run = history.pop()
        if history and "merged" in history[-1]:
            inputs = tuple(LockedInput(_named(one["id"], base), one["files"]) for one in history.pop()["merged"])
        elif "of" in run:
            inputs = (LockedInput(_named(run["of"]["id"], base), run["of"]["files"]),)
        else:
            raise InvalidArgumentError(
                f"{name} cannot be locked: its manifest does not say what the recipe of history[{len(history)}] was applied to",
                hint="make the dataset again",
            )
        recipe = run.get("recipe", {})
        steps = tuple(recipe.get("steps", ()))
        recipes.insert(
            0, LockedRecipe(recipe.get("name", ""), inputs, steps, run.get("num_frames"), run.get("seed", 0))
        )
        in_place = len(inputs) == 1 and (
            inputs[0].id == name if not name.startswith(".") else inputs[0].id in own and _has(paths, inputs[0].digest)
        )
        if not in_place:
            return recipes, inputs, history
    return recipes, (), ()


def _named(dataset_id: str, base: Path) -> str:
    """Return the name in a lock of an id in a manifest: of files of this machine, the path relative to the lock."""
    origin = sources.split_derived(dataset_id)[0]
    raw = sources.path_of_id(origin)
    return dataset_id if raw is None else f"{relative_path(raw, base)}{dataset_id.removeprefix(origin)}"


def _has(paths: DatasetPaths, digest: str) -> bool:
    return version_with(paths, digest) is not None


def version_with(paths: DatasetPaths, digest: str) -> Path | None:
    """Return the folder of the version of a dataset with these files, the current version first, or None.

    A version that lost a file, or a part of one, does not count. The data is not read.
    """
    folders = [version.folder for version in reversed(versions_of(paths))]
    with suppress(NotADatasetError, ManifestError):
        folders.insert(0, paths.version)
    for folder in dict.fromkeys(folders):
        with suppress(NotADatasetError, ManifestError):
            manifest = Manifest.read(folder)
            if manifest.files_digest == digest and not any(size_problems(folder, manifest)):
                return folder
    return None


def _paths(place: str | Path, settings: Settings) -> DatasetPaths:
    return store.find_paths(place, settings=settings)


def _parent_blocks(
    parent: LockedInput,
    manifest: Manifest,
    history: Sequence[Mapping[str, Any]] | None,
    base: Path,
    settings: Settings,
) -> Iterator[LockedDataset]:
    """Yield the dataset that a recipe was applied to, and the datasets that it was made of.

    Args:
        parent: The dataset.
        manifest: The manifest of the result, which has the raw files of a parent that is no longer stored.
        history: The history of the parent, or None for a member of a merge.
        base: The folder of the lock.
        settings: The settings.
    """
    with suppress(DatasetsRLError):
        paths = _paths(place_of(parent.id, base), settings)
        if (folder := version_with(paths, parent.digest)) is not None:
            for block in locked_blocks(parent.id, Manifest.read(folder), paths, base, settings):
                yield replace(block, is_parent=True)
            return
    block = LockedDataset(parent.id, parent.digest, is_parent=True)
    if history is None:
        yield block
        return
    derived = replace(manifest, id=parent.id, history=tuple(history))
    recipes, parents, before = _split_history(parent.id, derived, DatasetPaths(Path(os.devnull), parent.id), base)
    if parents:
        yield replace(block, recipes=tuple(recipes))
        for one in parents:
            yield from _parent_blocks(one, derived, before if len(parents) == 1 else None, base, settings)
    else:
        raw = tuple(_raw_files(manifest, parent.id, settings))
        yield replace(
            block,
            raw=raw,
            recipes=tuple(recipes),
            selection=selected_part(manifest),
            revision=manifest.revision,
            recordings=manifest.recordings,
        )


def _raw_files(manifest: Manifest, dataset_id: str, settings: Settings) -> Iterator[LockedRawFile]:
    """Yield the raw files of a dataset, sorted, each with the address at the upstream, wherever the file came from."""
    source, urls = "", {}
    with suppress(DatasetsRLError, NotImplementedError):
        entry = sources.find(sources.split_derived(dataset_id)[0])
        source = entry.source
        urls = {asset.path: asset.urls[0] for asset in sources.get_source(source).assets(entry.name) if asset.urls}
    mirrors = settings.mirrors.get(source, ())
    for file in sorted(manifest.raw, key=lambda one: one.path):
        is_own = file.url.startswith(("file:", *mirrors))
        yield LockedRawFile(file.path, file.bytes, file.sha256, urls.get(file.path, "" if is_own else file.url))


def _with_copies(lock: Lock, addresses: Sequence[str], former: Lock | None, settings: Settings) -> Lock:
    """Return a lock with the addresses at which datasets are published, those of the former lock included.

    Raises:
        LockMismatchError: If an address has none of the datasets.
    """
    known = {(one.id, one.digest): one.copies for one in former.datasets} if former is not None else {}
    datasets = [replace(one, copies=(*one.copies, *known.get((one.id, one.digest), ()))) for one in lock.datasets]
    for address in addresses:
        published = published_dataset(address, settings=settings)
        has = partial(is_locked_content, manifest=published.manifest)
        if not any(map(has, datasets)):
            nearest = [one for one in datasets if one.id == published.manifest.id] or datasets
            raise LockMismatchError(
                published.address,
                differences(nearest[0], published.manifest),
                hint=Remedy("publish the locked dataset there, or name another address"),
            )
        datasets = [replace(one, copies=(*one.copies, published.address)) if has(one) else one for one in datasets]
    return replace(lock, datasets=tuple(replace(one, copies=tuple(sorted({*one.copies}))) for one in datasets))
