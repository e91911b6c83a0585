"""``rlds cache prune``: what datasets no longer need."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from datasets_rl.errors import ConfirmationRequiredError, join_names

from ... import candidates
from ...errors import exit_code_of
from ...options import Shell, ask_to_confirm, dataset_arguments
from ...output import Lines, Result, Table, size_text

if TYPE_CHECKING:
    from datasets_rl.store import DatasetPaths

REFUSED = exit_code_of(ConfirmationRequiredError(""))


@dataclass(frozen=True)
class _Item:
    """A file or folder that can be deleted."""

    kind: str
    id: str
    """The id of the dataset. Empty if the files do not belong to a dataset."""
    path: str
    bytes: int

    @property
    def of(self) -> str:
        return f"{self.kind} of {self.id}" if self.id else self.kind


def run(
    shell: Shell,
    datasets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ID|PATH...]",
            help="Delete only what is of these datasets.",
            autocompletion=candidates.stored_ids,
        ),
    ] = None,
    versions: Annotated[
        bool, typer.Option("--versions", help="Delete the versions of datasets that are not current.")
    ] = False,
    builds: Annotated[
        bool,
        typer.Option("--builds", help="Delete unfinished builds and audits, which the same command would complete."),
    ] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Delete kept raw files and partial downloads.")] = False,
    streams: Annotated[
        bool, typer.Option("--streams", help="Delete shards cached by streams, which are then fetched again.")
    ] = False,
    index: Annotated[
        bool, typer.Option("--index", help="Delete the index of fingerprints, which `rlds identify` makes again.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be freed, and delete nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking.")] = False,
) -> Result:
    """Delete the temporary files of killed commands and, with options, files that datasets no longer need.

    Scratch folders of buffers of dead processes are deleted, too. Files that the options select are deleted after a
    confirmation. Every path is listed with its size. Nothing is deleted outside the folders of datasets, and nothing to
    which a link leads out of the data folder, unless that dataset is named.

    \b
    Examples:
      rlds cache prune
      rlds cache prune --versions --builds --raw --dry-run
      rlds cache prune --versions demo/pendulum --yes
    """
    prunes = dict(
        _prunes(shell, datasets or [], versions=versions, builds=builds, raw=raw, streams=streams, index=index)
    )
    items = {item.path: item for prune in reversed(prunes.values()) for item in prune(dry_run=True)}
    planned = [item for kind in prunes for item in items.values() if item.kind == kind]
    total = sum(item.bytes for item in planned)
    if any(item.kind in _SELECTED for item in planned) and not dry_run and not yes:
        for item in planned:
            shell.printer.note(f"{item.of}: {size_text(item.bytes)} in {item.path}")
        if not ask_to_confirm(f"delete what is listed ({size_text(total)})"):
            shell.printer.note("nothing was deleted")
            return Result({"freed": {}, "items": [], "dry_run": False}, code=REFUSED)
    done = planned if dry_run else [item for prune in prunes.values() for item in prune(dry_run=False)]
    freed = {kind: sum(item.bytes for item in done if item.kind == kind) for kind in prunes}
    verb = "would be freed" if dry_run else "freed"
    table = Table(
        ("what", "of", "size", "path"), tuple((one.kind, one.id, size_text(one.bytes), one.path) for one in done)
    )
    return Result(
        {"freed": freed, "items": done, "dry_run": dry_run},
        [*([table] if done else []), Lines(tuple(f"{name}: {size_text(size)} {verb}" for name, size in freed.items()))],
        quiet=[str(sum(freed.values()))],
    )


_LEFT = "left by killed commands"
_SELECTED = (
    "unfinished builds",
    "unfinished audits",
    "shards of streams",
    "index of fingerprints",
    "other versions",
    "raw files",
)
"""The kinds of files that options select, which are deleted after a confirmation."""
_BUILDS, _AUDITS, _STREAMS, _INDEX, _VERSIONS, _RAW = _SELECTED
_Prune = Callable[..., list[_Item]]


def _prunes(
    shell: Shell, datasets: list[str], *, versions: bool, builds: bool, raw: bool, streams: bool, index: bool
) -> Iterator[tuple[str, _Prune]]:
    """Yield the kinds of things to delete, each with the function that deletes and returns such paths, or only returns
    the paths."""
    from datasets_rl import store
    from datasets_rl.disk import sweep_scratch

    home = shell.settings.home
    places = _named(shell, datasets) if datasets else _inside(shell)
    yield "scratch folders", partial(_prune_each, "scratch folders", sweep_scratch, {"": None})
    everywhere = {} if datasets else {"": home}
    yield _LEFT, partial(_prune_all, _LEFT, ((store.sweep_index, everywhere), (store.sweep_dataset, places)))
    if builds:
        yield _BUILDS, partial(_prune_each, _BUILDS, store.prune_builds, places)
        if not datasets and (home / store.AUDIT_FOLDER).is_dir():
            yield _AUDITS, partial(_prune_each, _AUDITS, store.prune_audits, {"": home})
    if streams:
        roots = {"": home, **{root.name: root for root in store.source_folders(home) if not root.is_symlink()}}
        yield _STREAMS, partial(_prune_each, _STREAMS, store.prune_streams, roots)
    if index:
        yield _INDEX, partial(_prune_each, _INDEX, store.prune_index, {"": home})
    if versions:
        yield _VERSIONS, partial(_prune_each, _VERSIONS, store.prune, places)
    if raw:
        # Without a name, files that may be the only copy of the user's are left alone.
        chosen = {name: paths for name, paths in places.items() if datasets or not store.has_only_copy(paths)}
        yield _RAW, partial(_prune_each, _RAW, store.prune_raw, chosen)


def _prune_each(
    kind: str, prune: Callable[..., Mapping[Path, int]], places: Mapping[str, Any], *, dry_run: bool
) -> list[_Item]:
    arguments = {name: () if place is None else (place,) for name, place in places.items()}
    return [
        _Item(kind, name, str(path), size)
        for name, value in arguments.items()
        for path, size in prune(*value, dry_run=dry_run).items()
    ]


def _prune_all(
    kind: str, prunes: Sequence[tuple[Callable[..., Mapping[Path, int]], Mapping[str, Any]]], *, dry_run: bool
) -> list[_Item]:
    return [item for prune, places in prunes for item in _prune_each(kind, prune, places, dry_run=dry_run)]


def _named(shell: Shell, datasets: Sequence[str]) -> dict[str, DatasetPaths]:
    """Return the paths of the named datasets.

    Raises:
        NotADatasetError: If nothing of a dataset is stored.
    """
    from datasets_rl import store
    from datasets_rl.store.find import missing_error

    found = {}
    for one in datasets:
        arguments = dataset_arguments(shell, one)
        found[one] = store.find_paths(**arguments)
        if not found[one].is_own:
            raise missing_error(arguments["dataset"], found[one])
    return found


def _inside(shell: Shell) -> dict[str, DatasetPaths]:
    """Return the paths of all files of a dataset in the data folder. Links out of the folder are reported."""
    from datasets_rl import store

    home = shell.settings.home
    places = {
        f"{root.name}/{paths.name}": paths
        for root in store.source_folders(home)
        for paths in store.dataset_places(root)
    }
    inside = {name: paths for name, paths in places.items() if paths.folder.resolve().is_relative_to(home.resolve())}
    if outside := [name for name in places if name not in inside]:
        shell.printer.note(
            f"nothing is deleted of {join_names(outside)}, to which links lead out of {home}, unless you name them"
        )
    return inside
