"""``rlds remove``: delete stored datasets."""

from __future__ import annotations

import shlex
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from datasets_rl.errors import (
    ConfirmationRequiredError,
    InvalidArgumentError,
    ManifestError,
    NotADatasetError,
    UnknownIdError,
    join_names,
)

from ..errors import exit_code_of
from ..options import Outcome, Shell, StoredIds, apply_to_each, ask_to_confirm, combined_exit_code, id_or_folder
from ..output import Lines, Result, size_text

GROUP = "Maintain"

REFUSED = exit_code_of(ConfirmationRequiredError(""))


@dataclass(frozen=True)
class _StoredFiles:
    """The folder of a stored dataset, and the size of its files."""

    folder: str
    bytes: int
    link_to: str | None = None
    """Where the folder really is, if a link leads there."""
    is_link_alone: bool = False
    """Whether only a link is deleted, and the linked data stay."""
    kept: tuple[str, ...] = ()
    """Names in the folder that are not the dataset's, which are not deleted."""
    paths: tuple[str, ...] = ()
    """The files and folders that are deleted."""


def run(
    shell: Shell,
    ids: StoredIds,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be deleted, and delete nothing.")
    ] = False,
) -> Result:
    """Delete stored datasets, with all versions, raw files and unfinished files.

    \b
    Examples:
      rlds remove d4rl/hopper-medium-v2
      rlds remove demo/pendulum --yes
      rlds remove d4rl/hopper-medium-v2 d4rl/ant-medium-v2 --dry-run
    """
    from datasets_rl import store

    found = apply_to_each(shell, ids, lambda one: _stored_files(shell, one))
    total = sum(one.value.bytes for one in found if one.value)
    if dry_run:
        return _result(found, removed=False, dry_run=True)
    # Without files there may still be the empty folder of a killed removal.
    removed = [_name_with_target(one) for one in found if _has_files(one)]
    size = f" ({size_text(total)})" if total else ""
    if removed and not yes:
        for path in (path for one in found if one.value for path in one.value.paths):
            shell.printer.note(path)
    if removed and not yes and not ask_to_confirm(f"delete {', '.join(removed)}{size}"):
        shell.printer.note("nothing was deleted")
        return Result({"datasets": [], "dry_run": False}, code=REFUSED)

    by_id = {one.item: one.value for one in found if one.value}

    def delete(item: str) -> _StoredFiles:
        return replace(by_id[item], bytes=store.remove(item, settings=shell.settings))

    deleted = iter(apply_to_each(shell, by_id, delete))
    return _result([next(deleted) if one.value else one for one in found], removed=True, dry_run=False)


def _stored_files(shell: Shell, dataset_id: str) -> _StoredFiles:
    from datasets_rl import store

    if isinstance(folder := id_or_folder(dataset_id), Path):
        raise InvalidArgumentError(
            f"{folder} is a path, expected the id of a dataset, SOURCE/NAME", hint=_removal_hint(shell, folder)
        )
    paths = store.dataset_paths(dataset_id, settings=shell.settings)
    place = paths.folder.resolve()
    link_to = str(place) if place != shell.settings.home.resolve() / paths.root.name / paths.name else None
    if store.is_link_alone(paths):
        return _StoredFiles(str(paths.folder), 0, link_to, is_link_alone=True, paths=(str(paths.folder),))
    kept = tuple(path.name for path in paths.foreign()) if paths.is_own else ()
    own = [paths.folder] if paths.has_no_pointer else paths.entries()
    return _StoredFiles(str(paths.folder), paths.bytes(), link_to, kept=kept, paths=tuple(map(str, own)))


def _removal_hint(shell: Shell, folder: Path) -> str:
    """Return the command that removes a folder: by its id if the folder is where that id is stored."""
    from datasets_rl import store
    from datasets_rl.format.manifest import Manifest

    try:
        dataset_id = Manifest.read(folder).id
    except (ManifestError, NotADatasetError, OSError):
        return f"`{shell.rlds('list', '--downloaded')}` shows the ids"
    with suppress(UnknownIdError):
        if store.dataset_paths(dataset_id, settings=shell.settings).folder.resolve() == folder.resolve():
            return shell.rlds("remove", dataset_id)
    return f"the dataset is yours, and rm -r {shlex.quote(str(folder))} deletes it"


def _has_files(one: Outcome[_StoredFiles]) -> bool:
    return one.value is not None and (one.value.bytes > 0 or one.value.is_link_alone)


def _name_with_target(one: Outcome[_StoredFiles]) -> str:
    """Return the id and, for a link, the part that is deleted."""
    if one.value is None or one.value.link_to is None:
        return one.item
    if one.value.is_link_alone:
        return f"the link {one.item}, without the target {one.value.link_to}"
    return f"{one.item} at {one.value.link_to}"


def _result(outcomes: list[Outcome[_StoredFiles]], *, removed: bool, dry_run: bool) -> Result:
    documents = [_document(one, removed=removed) for one in outcomes]
    lines = tuple(_line(one, removed=removed) for one in outcomes if one.value)
    return Result(
        {"datasets": documents, "dry_run": dry_run},
        [Lines(lines)],
        quiet=[one.item for one in outcomes if _has_files(one)],
        code=combined_exit_code([one.code for one in outcomes]),
    )


def _document(outcome: Outcome[_StoredFiles], *, removed: bool) -> dict[str, Any]:
    document = outcome.document({"folder": None, "bytes": 0, "link_to": None, "kept": [], "paths": []})
    return {**document, "removed": removed and _has_files(outcome)}


def _line(outcome: Outcome[_StoredFiles], *, removed: bool) -> str:
    if outcome.value is None or not _has_files(outcome):
        return f"{outcome.item}: nothing is stored"
    verb = "deleted" if removed else "would be deleted"
    if outcome.value.is_link_alone:
        return f"{outcome.item}: link {verb}, and {outcome.value.link_to} stays"
    where = "" if outcome.value.link_to is None else f" in {outcome.value.link_to}"
    line = f"{outcome.item}: {size_text(outcome.value.bytes)}{where} {verb}"
    if not (kept := outcome.value.kept):
        return line
    return f"{line}, and {join_names(kept)} {'stays' if len(kept) == 1 else 'stay'}: not a part of the dataset"
