"""Custom datasets: files of arrays with common names, or a folder with a ``dataset.toml`` that describes the files.

    download("local/gripper", from_local="~/data/gripper")

The id is any name. A folder that contains many such folders, local or on a server, can be set as a mirror of ``local``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, BinaryIO

from typing_extensions import override

from datasets_rl.errors import (
    Argument,
    Call,
    ConversionError,
    Remedy,
    join_names,
)
from datasets_rl.sources.base import (
    Entry,
    Listing,
    Score,
    Selection,
    Shard,
    group_by_size,
    none_kept,
)
from datasets_rl.sources.flat.folders import data_folders, shown_path
from datasets_rl.sources.flat.formats import FORMATS, VIDEOS, files_beside, formats_of, is_image
from datasets_rl.sources.foreign import PAGE, foreign_files
from datasets_rl.sources.local.description import (
    FILE,
    Description,
    missing_numbers,
    no_episode_numbers_error,
)
from datasets_rl.sources.local.file_names import check_names
from datasets_rl.sources.own_folders import OwnFolders
from datasets_rl.sources.selection import IMAGES, read_numbers

if TYPE_CHECKING:
    from datasets_rl.fetch.asset import Asset, Folder
    from datasets_rl.fetch.upstream import Upstream
    from datasets_rl.sources.address_files import AddressFiles
    from datasets_rl.sources.flat.folders import DataFolder

__all__ = ["SOURCE", "Local"]

_SHARD_BYTES = 64 << 20
_RANGES = "npz"
"""Format of which the names of the arrays can be read by requests for ranges of a file elsewhere."""


class Local(OwnFolders):
    """Source of custom datasets: any name for a folder of the user."""

    name = "local"
    reader = "datasets_rl.sources.local.reader:LocalReader"
    restated = frozenset({"license", "citation", "homepage", "known_issues", "score"})
    selects = frozenset({"episodes"})
    image_forms = (*IMAGES.choices, "video")

    @property
    @override
    def wanted(self) -> Remedy:
        return Remedy("give the folder with the files and a {}: {}", FILE, Argument("from_local"))

    @override
    def recognize(self, files: AddressFiles) -> str:
        return f"it has {FILE}" if FILE in files.paths else ""

    @override
    def recognize_last(self, files: AddressFiles) -> str:
        folders = data_folders(files.paths) if files.is_local else {}
        forms = formats_of(files.paths, folders)
        path = next(iter(forms), "")
        if path in folders:
            return f"{shown_path(path, folders) or 'it'} is a folder of {FORMATS[forms[path]].title}"
        if path and not files.is_local and (forms[path] != _RANGES or not files.arrays(path)):
            return ""
        return f"{path} is a file of {FORMATS[forms[path]].title}" if path else ""

    @override
    def resolve_files(self, entry: Entry, folder: Folder, selection: Selection, upstream: Upstream) -> Listing:
        inside = {asset.path.removeprefix(f"{entry.name}/"): asset for asset in folder.assets}
        stated = [inside[FILE]] if FILE in inside else []
        document = (
            _parse_description(upstream.text(*stated), entry.id)
            if stated
            else _certain_description(entry, inside, upstream)
        )
        description = Description.read(document, entry.id)
        form, paths = description.data_files(inside, entry.id)
        numbers = _selected_files(selection, description, len(paths))
        folders = data_folders([path for path in inside if path != FILE], form)
        data = {
            paths[number]: (number, _assets_of(paths[number], form, inside, folders))
            for number in numbers
            if selection.keeps_file(inside[paths[number]].path)
        }
        if not data:
            raise none_kept([inside[path] for path in paths])
        first = next(iter(data))
        if (
            not description.files and FORMATS[form].endings
        ):  # other files are known by whole names, equal in all folders
            shown = [shown_path(path, folders) or path for path in paths]
            inner = {member for one in folders.values() for member in one.members}
            check_names(entry.id, shown, inside.keys() - {*paths, *inner, *files_beside(form, inside), FILE})
        if description.table and description.table not in inside:
            raise ConversionError(
                entry.id, [f"{FILE}: episodes.table is {description.table}, which is not in the folder"]
            )
        tables = [inside[description.table]] if description.table else []
        named = _named_files(form, inside, paths)
        tables += [inside[path] for path in named]
        unnamed = [path.lower() for path in inside.keys() - {*named}]
        sizes = [sum(asset.size or 0 for asset in assets) for _, assets in data.values()]
        described = replace(
            entry,
            title=description.name,
            license=description.license,
            citation=description.citation,
            homepage=description.homepage,
            known_issues=description.known_issues,
            environment=description.environment,
            score=None if description.score is None else Score(*description.score),
        )
        groups = [*group_by_size(data, sizes, _SHARD_BYTES)]
        # An episode may be in the last file of a shard and in the first file of the next shard.
        befores = [[], *(group[-1:] for group in groups[:-1])]
        return Listing(
            (*stated, *tables, *(asset for _, assets in data.values() for asset in assets)),
            tuple(
                Shard(
                    tuple(asset.path for path in (*before, *group) for asset in data[path][1]),
                    [[path, data[path][0]] for path in group],
                )
                for before, group in zip(befores, groups, strict=True)
            ),
            common=tuple(asset.path for asset in (*stated, *data[first][1], *tables)),
            params={
                "document": document,
                "format": form,
                "first": first,
                "alone": len(paths) == 1,
                "chosen": bool(selection.episodes),
                "tables": paths,
                "images": selection.options.get(IMAGES.name, ""),
                "missing_files": missing_numbers(paths),
                "unnamed_images": sum(map(is_image, unnamed)),
                "unnamed_videos": sum(path.endswith(VIDEOS) for path in unnamed),
            },
            entry=described,
            revision=folder.revision,
        )


def _assets_of(path: str, form: str, assets: Mapping[str, Asset], folders: Mapping[str, DataFolder]) -> list[Asset]:
    """Return the assets of a data file: a single asset, or the assets of the folder for which the file stands.

    Raises:
        ConversionError: If the folder is in an archive, where the files of the folder cannot be opened by path.
    """
    if path in folders:
        _check_unpacked(path, assets, folders[path])
        return [assets[member] for member in folders[path].members]
    return [replace(assets[path], magic=FORMATS[form].magic, kind=FORMATS[form].title)]


def _check_unpacked(path: str, assets: Mapping[str, Asset], folder: DataFolder) -> None:
    if assets[path].urls[0].startswith("tar:"):
        problem = f"it is in a folder of {FORMATS[folder.format].title}, which is read only outside of an archive"
        raise ConversionError(path, [problem], hint="unpack the archive, and give the folder")


def _parse_description(text: str, name: str) -> dict[str, Any]:
    from datasets_rl.read.toml import parse_toml

    try:
        return parse_toml(text)
    except ValueError as error:
        raise ConversionError(name, [f"{FILE} is not valid TOML: {error}"]) from error


def _selected_files(selection: Selection, description: Description, total: int) -> list[int]:
    """Return the numbers of the files with the selected episodes."""
    # If the description does not state how episodes are marked, the first file determines whether each file is an episode.
    if selection.episodes and description.by not in {"file", ""}:
        raise no_episode_numbers_error(description.by)
    return read_numbers(selection.episodes, total)


def _certain_description(entry: Entry, assets: Mapping[str, Asset], upstream: Upstream) -> dict[str, Any]:
    """Return the description of a folder without ``dataset.toml``: empty, if the names say what all arrays are.

    Of files elsewhere, only the names, shapes and dtypes of the first file are read before the download.

    Raises:
        ConversionError: If a name is unusual. The error has a template that is filled from the files.
    """
    data = data_assets(entry.id, assets)
    from datasets_rl.sources.local.template import draft

    headers = None
    if not _path_of(assets):
        first = Description().data_files(assets, entry.id)[1][0]
        headers = upstream.inspected(assets[first], array_headers)
    drafted = draft(entry.name, data, beside=assets, headers=headers)
    if drafted.is_certain:
        return {}
    path = _path_of(assets)
    place = "to the folder" if len(assets) > 1 else "beside the file, and give the folder"
    place += "" if path else " of a copy"
    drafts = Remedy("; {} drafts one", Call("sources.local.files.draft_description", path)) if path else Remedy("")
    hint = Remedy("add one {}{}, such as\n\n{}", place, drafts, drafted.text)
    raise ConversionError(entry.id, [f"it has no {FILE}", *drafted.questions], hint=hint)


def array_headers(stream: BinaryIO) -> dict[str, tuple[list[int], str]]:
    """Return the shape and the dtype of each array of an npz file by name, as JSON values.

    Raises:
        ConversionError: If the file is damaged.
    """
    from datasets_rl.read.npz import NpzFile

    with NpzFile(stream) as file:
        return {name: (list(array.shape), array.dtype.str) for name, array in file.arrays.items()}


def _path_of(assets: Mapping[str, Asset]) -> str:
    """Return the path of a file or a folder on this machine, or an empty text for an address elsewhere."""
    from datasets_rl.sources.local.template import local_file

    inner, asset = next(iter(assets.items()))
    path = local_file(asset)
    if path is None:
        return ""
    return str(path if len(assets) == 1 else path.parents[inner.count("/")])


def _named_files(file_format: str, assets: Mapping[str, Asset], paths: Sequence[str]) -> list[str]:
    """Return the files that rows may name: images only if the first table with a row has a column of their paths."""
    found = files_beside(file_format, assets)
    if not any(map(is_image, found)) or not FORMATS[file_format].endings:
        return found
    from datasets_rl.sources.local.template import first_texts

    texts = first_texts(file_format, {path: assets[path] for path in paths})
    return found if texts is None or any(map(is_image, texts)) else [path for path in found if not is_image(path)]


def data_assets(name: str, assets: Mapping[str, Asset]) -> dict[str, Asset]:
    """Return the files of arrays.

    Args:
        name: The name of the folder, for messages.
        assets: The files by path.

    Raises:
        ConversionError: If there is no file of arrays.
    """
    folders = data_folders(assets)
    paths = formats_of([*assets], folders)
    for path in paths.keys() & folders.keys():
        _check_unpacked(path, assets, folders[path])
    members = {member for path in paths.keys() & folders.keys() for member in folders[path].members}
    data = {path: asset for path, asset in assets.items() if path in paths or path in members}
    if not data:
        names, known = ", ".join(sorted(assets)[:5]), join_names([form.title for form in FORMATS.values()])
        problem = f"it has neither {FILE} nor a file of {known}. The first files are {names}"
        foreign = [*foreign_files(dict(sorted(assets.items())))]
        ways = dict.fromkeys(one.way for _, one in foreign)
        raise ConversionError(
            name,
            [problem, *(f"{path} is {one.title}" for path, one in foreign)],
            hint="; ".join(ways) or f"read the files and store the episodes with EpisodeWriter, see {PAGE}",
        )
    return data


SOURCE = Local()
