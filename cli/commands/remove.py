"""``rlds remove``: delete stored datasets."""

from __future__ import annotations

import shlex
from contextlib import suppress
from dataclasses import dataclass
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
    kept: tuple[str, ...] = ()
    """Names in the folder that are not the dataset's, which are not deleted."""


def run(
    shell: Shell,
    ids: StoredIds,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be deleted, and delete nothing.")
    ] = False,
) -> Result:
    """Delete stored datasets, with all their versions and their raw and unfinished files.

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
    if total and not yes and not ask_to_confirm(f"delete {', '.join(_removed_paths(found))} ({size_text(total)})"):
        shell.printer.note("nothing was deleted")
        return Result({"datasets": [], "dry_run": False}, code=REFUSED)

    def delete(one: Outcome[_StoredFiles]) -> _StoredFiles:
        freed = store.remove(one.item, settings=shell.settings)
        left = _stored_files(shell, one.item)
        return _StoredFiles(left.folder, freed, left.kept)

    by_id = {one.item: one for one in found if one.value}
    deleted = iter(apply_to_each(shell, by_id, lambda item: delete(by_id[item])))
    return _result([next(deleted) if one.value else one for one in found], removed=True, dry_run=False)


def _stored_files(shell: Shell, dataset_id: str) -> _StoredFiles:
    from datasets_rl import store

    if isinstance(folder := id_or_folder(dataset_id), Path):
        raise InvalidArgumentError(
            f"{folder} is a path; expected the id of a dataset, SOURCE/NAME", hint=_removal_hint(shell, folder)
        )
    paths = store.dataset_paths(dataset_id, settings=shell.settings)
    return _StoredFiles(str(paths.folder), paths.bytes(), tuple(path.name for path in paths.foreign()))


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
    return f"it is a dataset of your own, which rm -r {shlex.quote(str(folder))} deletes"


def _removed_paths(stored_files: list[Outcome[_StoredFiles]]) -> list[str]:
    return [one.item for one in stored_files if one.value and one.value.bytes]


def _result(outcomes: list[Outcome[_StoredFiles]], *, removed: bool, dry_run: bool) -> Result:
    documents = [_document(one, removed=removed) for one in outcomes]
    lines = tuple(_line(one, removed=removed) for one in outcomes if one.value)
    return Result(
        {"datasets": documents, "dry_run": dry_run},
        [Lines(lines)],
        quiet=_removed_paths(outcomes),
        code=combined_exit_code([one.code for one in outcomes]),
    )


def _document(outcome: Outcome[_StoredFiles], *, removed: bool) -> dict[str, Any]:
    document = outcome.document({"folder": None, "bytes": 0, "kept": []})
    return {**document, "removed": removed and document["bytes"] > 0}


def _line(outcome: Outcome[_StoredFiles], *, removed: bool) -> str:
    size = outcome.value.bytes if outcome.value else 0
    if not size:
        return f"{outcome.item}: nothing is stored"
    line = f"{outcome.item}: {size_text(size)} {'deleted' if removed else 'would be deleted'}"
    kept = outcome.value.kept if outcome.value else ()
    if not kept:
        return line
    return f"{line}; {join_names(kept)} {'stays' if len(kept) == 1 else 'stay'}: not a part of the dataset"
