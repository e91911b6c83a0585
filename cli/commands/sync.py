"""``rlds sync``: the datasets of a lock, byte for byte."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ..errors import SOME_FAILED
from ..options import RayAddress, Shell, apply_to_each, combined_exit_code, make_engine
from ..output import Lines, Result

if TYPE_CHECKING:
    from datasets_rl.lockfile.lock import LockedDataset
    from datasets_rl.lockfile.syncing import Syncing

GROUP = "Share"

_DOCUMENT = {"folder": None, "origin": ""}


def run(
    shell: Shell,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="The lock. By default rlds.lock in the root of the project."),
    ] = None,
    locked: Annotated[
        bool,
        typer.Option(
            "--locked",
            help="Refuse a lock that does not fit its programs and mixtures, and exit with 1, before all else.",
        ),
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Only compare the manifests and the sizes of files with the lock, and exit with 1 if one differs. rlds verify "
            "reads every byte.",
        ),
    ] = False,
    places: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            metavar="PLACE",
            help="Data folder of others, folder of a dataset, or hf://USER/NAME, to ask before the upstream. Can be "
            "repeated.",
        ),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, metavar="N", help="Number of connections, and of processes.")
    ] = None,
    engine: Annotated[
        Literal["local", "ray"], typer.Option(help="Convert and preprocess on this machine, or on a Ray cluster.")
    ] = "local",
    address: RayAddress = "",
) -> Result:
    """Make the datasets of a lock, byte for byte, or refuse and show the difference. Prints the folders.

    A dataset is taken from the data folder, from --from, from its address on the hub, or made again from the upstream and
    the recipe. Nothing is deleted: a version with other content stays, see `rlds use`.

    \b
    Examples:
      rlds sync
      rlds sync --locked --from /shared/rl
      rlds sync --check
      rlds sync runs/bc/rlds.lock --from hf://me/heater
    """
    from datasets_rl.errors import OutdatedLockError
    from datasets_rl.lockfile.inputs import outdated
    from datasets_rl.lockfile.lock import Lock, default_path
    from datasets_rl.lockfile.syncing import Syncing

    settings = shell.settings if jobs is None else dataclasses.replace(shell.settings, jobs=jobs)
    lock = Lock.read(default_path(settings) if file is None else file)
    if problems := outdated(lock, settings):
        error = OutdatedLockError(lock.path, problems)
        if locked:
            raise error
        shell.printer.note(error.message)
    syncing = Syncing(lock, settings, places or (), make_engine(engine, address), jobs)
    wanted = {one.id: one for one in lock.datasets if not one.is_parent}
    if check:
        return _check(shell, syncing, wanted)
    found = apply_to_each(shell, wanted, lambda name: syncing.make(wanted[name]))
    for one in found:
        if one.value is not None:
            shell.printer.note(f"{one.item}: {one.value.origin}")
    folders = [str(one.value.folder) for one in found if one.value]
    return Result(
        {"lock": str(lock.path), "datasets": [one.document(_DOCUMENT) for one in found], "check": False},
        [Lines(tuple(folders))],
        quiet=folders,
        code=combined_exit_code([one.code for one in found]),
    )


def _check(shell: Shell, syncing: Syncing, wanted: dict[str, LockedDataset]) -> Result:
    outcomes = apply_to_each(shell, wanted, lambda name: syncing.check(wanted[name]))
    found = {one.item: one.value for one in outcomes if one.value is not None}
    lines = [
        line
        for name, problems in found.items()
        for line in (f"{name}: {'as locked' if not problems else 'not as locked'}", *(f"  {text}" for text in problems))
    ]
    return Result(
        {
            "lock": str(syncing.lock.path),
            "datasets": [{"id": name, "problems": problems} for name, problems in found.items()],
            "check": True,
        },
        [Lines(tuple(lines))],
        quiet=[name for name, problems in found.items() if problems],
        code=SOME_FAILED if any(found.values()) else combined_exit_code([one.code for one in outcomes]),
    )
