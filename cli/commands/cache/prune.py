"""``rlds cache prune``: what datasets no longer need."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from datasets_rl.errors import ConfirmationRequiredError

from ... import candidates
from ...errors import exit_code_of
from ...options import Shell, ask_to_confirm, dataset_arguments
from ...output import Lines, Result, Table, size_text

if TYPE_CHECKING:
    from datasets_rl.store import DatasetPaths

REFUSED = exit_code_of(ConfirmationRequiredError(""))


@dataclass(frozen=True)
class _Item:
    """Something that can be deleted."""

    kind: str
    id: str
    bytes: int


def run(
    shell: Shell,
    datasets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ID|PATH...]",
            help="With --versions and --raw: delete only those of these datasets.",
            autocompletion=candidates.stored_ids,
        ),
    ] = None,
    versions: Annotated[
        bool, typer.Option("--versions", help="Delete the versions of datasets that are not current.")
    ] = False,
    builds: Annotated[
        bool, typer.Option("--builds", help="Delete unfinished builds, which the same command would complete.")
    ] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Delete kept raw files and partial downloads.")] = False,
    streams: Annotated[
        bool, typer.Option("--streams", help="Delete shards cached by streams, which are then fetched again.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be freed, and delete nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking.")] = False,
) -> Result:
    """Delete the temporary files of killed commands and, with options, files that datasets no longer need.

    Scratch folders of buffers whose process is dead are deleted, too. Files that the options select are listed with
    their sizes, and deleted after a confirmation.

    \b
    Examples:
      rlds cache prune
      rlds cache prune --versions --builds --raw --dry-run
      rlds cache prune --versions demo/pendulum --yes
    """
    from datasets_rl.storages.scratch import sweep_scratch

    if not dry_run:
        _sweep(shell, datasets or [])
    prunes = dict(_prunes(shell, datasets or [], versions=versions, builds=builds, raw=raw, streams=streams))
    items = [item for prune in prunes.values() for item in prune(dry_run=True)]
    total = sum(item.bytes for item in items)
    if items and not dry_run and not yes:
        for item in items:
            shell.printer.note(f"{item.kind} of {item.id}: {size_text(item.bytes)}")
        if not ask_to_confirm(f"delete what is listed ({size_text(total)})"):
            shell.printer.note("nothing was deleted")
            return Result({"freed": {}, "items": [], "dry_run": False}, code=REFUSED)
    freed = {"scratch folders": 0 if dry_run else sweep_scratch()}
    done = items if dry_run else []
    for kind, prune in prunes.items():
        deleted = [item for item in items if item.kind == kind] if dry_run else prune(dry_run=False)
        done += [] if dry_run else deleted
        freed[kind] = sum(item.bytes for item in deleted)
    verb = "would be freed" if dry_run else "freed"
    table = Table(("what", "of", "size"), tuple((one.kind, one.id, size_text(one.bytes)) for one in done))
    return Result(
        {"freed": freed, "items": done, "dry_run": dry_run},
        [*([table] if done else []), Lines(tuple(f"{name}: {size_text(size)} {verb}" for name, size in freed.items()))],
        quiet=[str(sum(freed.values()))],
    )


def _sweep(shell: Shell, datasets: Sequence[str]) -> None:
    """Complete the changes of killed commands, and delete what they left, in the data folder and of named datasets."""
    from datasets_rl import store
    from datasets_rl.store.find import locate

    for root in store.source_folders(shell.settings.home):
        store.sweep_all(root)
    for one in datasets:
        store.sweep_dataset(store.paths_of(locate(**dataset_arguments(shell, one))))


_Prune = Callable[..., list[_Item]]


def _prunes(
    shell: Shell, datasets: list[str], *, versions: bool, builds: bool, raw: bool, streams: bool
) -> Iterator[tuple[str, _Prune]]:
    """Yield the kinds of things to delete, each with the function that deletes and returns them, or only returns them."""
    from datasets_rl import store

    home = shell.settings.home
    roots = store.source_folders(home)
    if builds:
        yield "unfinished builds", partial(_prune_roots, "unfinished builds", store.sweep_builds, roots)
    if streams:
        yield "shards of streams", partial(_prune_roots, "shards of streams", store.prune_streams, [home, *roots])
    if versions:
        yield "other versions", partial(_prune_each, "other versions", store.prune, _stored(shell, datasets))
    if raw:
        yield "raw files", partial(_prune_each, "raw files", store.prune_raw, _with_raw_files(shell, datasets))


def _prune_roots(kind: str, prune: Callable[..., int], roots: Sequence[Path], *, dry_run: bool) -> list[_Item]:
    freed = {root.name: prune(root, dry_run=dry_run) for root in roots}
    return [_Item(kind, name, size) for name, size in freed.items() if size]


def _prune_each(
    kind: str, prune: Callable[..., int], datasets: Mapping[str, DatasetPaths], *, dry_run: bool
) -> list[_Item]:
    freed = {name: prune(paths, dry_run=dry_run) for name, paths in datasets.items()}
    return [_Item(kind, name, size) for name, size in freed.items() if size]


def _stored(shell: Shell, datasets: Sequence[str]) -> dict[str, DatasetPaths]:
    """Return the paths of the named datasets or, if none is named, of all stored ones."""
    from datasets_rl import store
    from datasets_rl.store.find import locate

    if datasets:
        return {one: store.paths_of(locate(**dataset_arguments(shell, one))) for one in datasets}
    home = shell.settings.home
    # A folder may be a link to another disk, whose name says nothing.
    return {path.relative_to(home).as_posix(): store.paths_of(path) for path in store.stored_folders(home)}


def _with_raw_files(shell: Shell, datasets: Sequence[str]) -> dict[str, DatasetPaths]:
    """Return the paths of the named datasets or, if none is named, of every dataset that has raw files.

    Without a name, files that may be the only copy of the user's are left alone.
    """
    from datasets_rl import disk, store
    from datasets_rl.store import DatasetPaths
    from datasets_rl.store.usage import take_inventory

    if datasets:
        return _stored(shell, datasets)
    home = shell.settings.home
    split = [one.id.partition("/") for one in take_inventory(home).datasets]
    every = {f"{source}/{name}": DatasetPaths(home / source, name) for source, _, name in split}
    return {
        name: paths for name, paths in every.items() if disk.claims_of(paths.raw) and not store.has_only_copy(paths)
    }
